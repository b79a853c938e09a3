"""In which rounds a client took part, in words."""

from __future__ import annotations

from verfedsv.texts import count


def describe_attendance(first: int | None, last: int | None, n_missed: int, n_rounds: int) -> str:
    """Return in which of `n_rounds` rounds a client took part; empty if in all.

    `first` and `last` are its first and last round, from 1, None if it never took part; `n_missed` counts all rounds in
    which it did not.

    >>> describe_attendance(11, 60, 10, 60), describe_attendance(11, 50, 23, 60), describe_attendance(1, 60, 3, 60)
    ('rounds 11 to 60', 'rounds 11 to 50, missed 3 of these', 'missed 3 of 60 rounds')
    >>> describe_attendance(1, 60, 0, 60), describe_attendance(None, None, 60, 60), describe_attendance(7, 7, 59, 60)
    ('', 'no round', 'round 7')
    """
    if not n_missed:
        return ""
    if first is None or last is None:
        return "no round"
    n_between = n_missed - (n_rounds - (last - first + 1))
    if (first, last) == (1, n_rounds):
        return f"missed {n_missed:,} of {count(n_rounds, 'round')}"
    stay = f"round {first:,}" if first == last else f"rounds {first:,} to {last:,}"
    return f"{stay}, missed {n_between:,} of these" if n_between else stay
