"""Language models generate faster, with the same text."""
