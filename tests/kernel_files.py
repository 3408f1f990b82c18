"""Marks for tests that need the kernel's figures about a process's memory, which not every Linux or sandbox has."""

import os
import re
from pathlib import Path

import pytest

_STATUS, _MAPS, _RESET = Path("/proc/self/status"), Path("/proc/self/smaps"), Path("/proc/self/clear_refs")


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _shares() -> bool:
    """Return whether a page that several processes share counts in part for each, as those of C's library do."""
    sums = {name: sum(map(int, re.findall(rf"^{name}: +(\d+)", _text(_MAPS), re.MULTILINE))) for name in ("Rss", "Pss")}
    return 0 < sums["Pss"] < sums["Rss"]


needs_peaks = pytest.mark.skipif(
    "VmHWM:" not in _text(_STATUS) or not os.access(_RESET, os.W_OK), reason="this kernel does not tell of peaks"
)
needs_shares = pytest.mark.skipif(not _shares(), reason="this kernel does not tell what is shared")
