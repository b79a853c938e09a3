"""From values to money: settlements, signed statements, extracts for single clients, and audits of them all."""

from verfedsv.settlement.payouts import settle
from verfedsv.settlement.result import Settlement
from verfedsv.settlement.terms import Terms

__all__ = ["Settlement", "Terms", "settle"]
