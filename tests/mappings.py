"""The mapped files of this process, as Linux describes them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mapping(NamedTuple):
    start: int
    end: int
    file: str
    random: bool  # whether the system expects reads in no order


def mappings() -> Iterator[Mapping]:
    start, end, file = 0, 0, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ *(.*)", line):
            start, end, file = int(found[1], 16), int(found[2], 16), found[3]
        elif line.startswith("VmFlags:"):
            yield Mapping(start, end, file, "rr" in line.split())
