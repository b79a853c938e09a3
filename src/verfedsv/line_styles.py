"""Colours and dashes that tell lines of a chart apart."""

from __future__ import annotations

from typing import NamedTuple

COLOURS = (
    "#3274c8",
    "#c4570f",
    "#1f8a5b",
    "#c23b6b",
    "#7d5fd0",
    "#8a7000",
    "#0f8a99",
    "#a4503f",
    "#5e7a1e",
    "#b04fc0",
)
"""Colours of lines. Each has a contrast of at least 3 to white and to the dark page; a test holds that."""

DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
"""Dashes distinguish lines of the same colour."""

N_STYLES = len(COLOURS) * len(DASHES)


class LineStyle(NamedTuple):
    """How a line is drawn: its colour, and its index into DASHES."""

    colour: str
    dash: int

    @property
    def dashes(self) -> str:
        """The dashes as SVG takes them."""
        return " ".join(map(str, DASHES[self.dash]))


def line_style(index: int) -> LineStyle:
    """Return how the line of an index is drawn; after N_STYLES lines, styles repeat."""
    return LineStyle(COLOURS[index % len(COLOURS)], index // len(COLOURS) % len(DASHES))
