"""Completion of a client's partly uploaded embeddings by low-rank factors."""

from verfedsv.completion.complete import Completion, CompletionReport, complete
from verfedsv.completion.rank import epsilon_rank, rank_bound

__all__ = ["Completion", "CompletionReport", "complete", "epsilon_rank", "rank_bound"]
