"""`python -m verfedsv` is `verfedsv`."""

from verfedsv.cli import app

app()
