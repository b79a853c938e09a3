"""From values to money: settlements, signed statements, extracts for single clients, and audits of them all."""

from verfedsv.settlement.payouts import settle
from verfedsv.settlement.result import Settlement

__all__ = ["Settlement", "settle"]
