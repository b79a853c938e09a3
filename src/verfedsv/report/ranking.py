"""Which clients cannot be ranked: those whose values overlap within their errors."""

from __future__ import annotations

import numpy as np

from verfedsv.arrays import Floats


def overlapping_groups(values: Floats, errors: Floats) -> list[tuple[int, ...]]:
    """Return the largest groups of clients whose intervals, value ± error, all have a point in common, as indices.

    Two clients cannot be ranked if, and only if, some group has both: intervals that overlap in pairs all share a
    point. Clients without a known error are in no group.

    >>> overlapping_groups(np.array([10.0, 9.0, 8.0, 1.0]), np.array([0.2, 0.2, 3.0, 0.1]))
    [(0, 2), (1, 2)]
    """
    known = [int(m) for m in np.flatnonzero(np.isfinite(errors))]
    # From the largest value down: an interval opens at its upper end and closes after its lower end.
    opens = [(-(values[m] + errors[m]), 0, m) for m in known]
    closes = [(-(values[m] - errors[m]), 1, m) for m in known]
    groups: list[tuple[int, ...]] = []
    there: set[int] = set()
    has_grown = False
    for _, is_end, m in sorted(opens + closes):
        if not is_end:
            there.add(m)
            has_grown = True
            continue
        # A group that gained nobody since the last one is part of it.
        if has_grown and len(there) > 1:
            groups.append(tuple(sorted(there)))
        there.discard(m)
        has_grown = False
    return groups


def possible_places(values: Floats, errors: Floats) -> list[tuple[int, int]]:
    """Return the best and the worst place of each client, counted from 1, that the errors of the values leave open.

    A client without a known error may have any place.

    >>> possible_places(np.array([9.0, 5.0, 4.9, 1.0]), np.array([0.1, 0.2, 0.2, 0.1]))
    [(1, 1), (2, 3), (2, 3), (4, 4)]
    """
    low, high = values - errors, values + errors
    is_known = np.isfinite(errors)
    lows, highs = np.sort(low[is_known]), np.sort(high[is_known])
    n_above = len(lows) - np.searchsorted(lows, high, side="right")
    n_below = np.searchsorted(highs, low, side="left")
    n_clients = len(values)
    return [
        (int(n_above[m]) + 1, n_clients - int(n_below[m])) if is_known[m] else (1, n_clients) for m in range(n_clients)
    ]
