"""Data sets, users' files, and how both are split between clients."""

from verfedsv.data.adult import AdultRound, load_adult, load_adult_round
from verfedsv.data.catalogue import CATALOGUE, Samples, fetch, load
from verfedsv.data.preparation import Preparation, Scale, prepare
from verfedsv.data.sources import ClientFile
from verfedsv.data.tables import join_tables
from verfedsv.data.targets import LabelScale
from verfedsv.data.vertical import ClientData, VerticalData, noisy_copy, random_client, split_features, take_rows

__all__ = [
    "CATALOGUE",
    "AdultRound",
    "ClientData",
    "ClientFile",
    "LabelScale",
    "Preparation",
    "Samples",
    "Scale",
    "VerticalData",
    "fetch",
    "join_tables",
    "load",
    "load_adult",
    "load_adult_round",
    "noisy_copy",
    "prepare",
    "random_client",
    "split_features",
    "take_rows",
]
