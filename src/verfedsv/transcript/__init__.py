"""Recorder and reader of a training: the bridge between training and valuation, which are independent."""

from verfedsv.transcript.description import Description, Head
from verfedsv.transcript.parquet import export_parquet
from verfedsv.transcript.reader import Transcript
from verfedsv.transcript.recorder import Recorder
from verfedsv.transcript.records import Join, Leave, Record, Stamp, Upload

__all__ = [
    "Description",
    "Head",
    "Join",
    "Leave",
    "Record",
    "Recorder",
    "Stamp",
    "Transcript",
    "Upload",
    "export_parquet",
]
