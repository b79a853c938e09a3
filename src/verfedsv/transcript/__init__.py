"""The record of a training: the bridge between training and valuation, which know nothing of each other."""

from verfedsv.transcript.reader import Stamp, Transcript, Upload
from verfedsv.transcript.recorder import Recorder

__all__ = ["Recorder", "Stamp", "Transcript", "Upload"]
