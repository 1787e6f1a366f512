"""`python -m outrider.cli`."""

from outrider.cli import app

app()
