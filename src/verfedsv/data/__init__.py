"""Data sets."""

from verfedsv.data.adult import Round, load_adult, load_adult_round

__all__ = ["Round", "load_adult", "load_adult_round"]
