"""Alignment of ids: which samples all parties have, without showing the others. docs/security.md has the protocol."""
