"""Every change of a command fails once, from the first to the last, while `disk` chooses one at random."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from torture.cage import Ended, Fault

if TYPE_CHECKING:
    from torture.scenarios import Stage

WAYS = [("EIO", False), ("ENOSPC", False), ("EINTR", False), ("ENOSPC", True), ("EIO", True)]  # once, or from then on


def each_change(stage: "Stage", name: str, kind: str, stays: bool) -> Iterator[tuple[Ended, list[str]]]:
    """Yield how the command ended, and the problems, for each change that can fail; a full disk refuses only growth."""
    last, at = stage.clean(name).changes, 0
    while True:
        fault = Fault(at + 1, kind, stays)
        ended = stage.ended(name, fault)
        if not ended.failed and at >= last:
            return
        at = ended.failed_at or at + 1
        if ended.failed or not ended.changes:  # otherwise no later change can fail in this way
            yield ended, [f"{fault} ({ended.failed}): {what}" for what in stage.complaints(name, ended)]


def each_change_of(stage: "Stage", names: Sequence[str]) -> int:
    """Print what is wrong, and how often each call failed; return the number of problems."""
    total = 0
    for (kind, stays), name in product(WAYS, names):
        calls, found, began = Counter[str](), 0, time.monotonic()
        for ended, complaints in each_change(stage, name, kind, stays):
            calls[ended.failed.partition(" ")[0] or "untold"] += 1
            found += len(complaints)
            for complaint in complaints:
                print(f"every, {name}: {complaint}", flush=True)
        way, took = f"{kind}{' and from then on' * stays}", time.monotonic() - began
        told = ", ".join(f"{call} {number}" for call, number in sorted(calls.items()))
        print(f"{name}, {way}: {calls.total()} failed in {took:.0f} s ({told}); {found} found", flush=True)
        total += found
    return total
