"""The memory of this process, on Linux. In `resource`, its peak begins with that of the process that started it."""

from pathlib import Path


def peak(what: str = "VmHWM") -> int:
    """Return the largest number of bytes that this process has had in memory since `reset_peak`."""
    return int(Path("/proc/self/status").read_text().partition(f"{what}:")[2].split()[0]) * 1024


def reset_peak() -> int:
    """Return how many bytes this process has in memory, and let `peak` begin from there."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak("VmRSS")
