"""One forward over (committed + tree) for any model."""
