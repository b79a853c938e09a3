"""Parties on several machines: who they are, and what travels between them."""
