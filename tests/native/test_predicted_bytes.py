"""What the policy promises of memory beside what the CPU engine then holds, by its own account."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_files import needs_shares

from localspec.drafters.saved import load_drafter
from localspec.machine import compiled
from localspec.models.drafter_cards import trained_drafters
from localspec.models.registry import resolve
from localspec.models.shape import Shape
from localspec.native.target import NativeTarget
from localspec.policy.candidates import drafter_bytes
from localspec.policy.prediction import CHUNK, drafter_numbers

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")


@pytest.mark.parametrize("packing", ["int8", "int4", "bf16", "fp32"])
def test_the_demo_s_drafters_hold_what_is_predicted(packing: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    card = resolve("demo")
    target = NativeTarget.open(card.path, quantize=packing)
    shape = Shape.of(target.config.content)
    assert shape is not None
    dtype, quantize = (packing, "none") if packing in ("bf16", "fp32") else ("bf16", packing)
    numbers = drafter_numbers(dtype, quantize, "native")
    found = trained_drafters(card)
    assert {one.kind for one in found} == {"eagle3", "medusa", "parallelspec", "s3d", "semi"}
    for one in found:
        held = load_drafter(one, target).nbytes
        read = CHUNK * one.inner * numbers[1]  # of the target's states, while a prompt is read
        names = 4 * (one.options["vocabulary"] if one.kind == "eagle3" else 0)  # which tokens its head stands for
        assert drafter_bytes(one, shape, dtype, numbers, 0) == held + read + names, one.kind


TOUCHES = """
import json, os, sys, time
from pathlib import Path
from localspec.native.packed_model import PackedModel
import numpy as np

model = PackedModel.open(Path(sys.argv[1]))
whole = np.frombuffer(model.content, np.uint8)
whole[::4096].sum()  # every page
print("read", flush=True)
sys.stdin.readline()
wanted = {"Pss:", "Rss:", "Shared_Clean:", "Private_Dirty:"}
found, ours = {}, False
for line in open("/proc/self/smaps"):
    first = line.split()[0]
    if "-" in first and not first.endswith(":"):
        ours = line.rstrip().endswith(".packed")
    elif ours and first in wanted:
        found[first] = found.get(first, 0) + int(line.split()[1]) * 1024
print(json.dumps(found))
"""


@pytest.mark.slow
@needs_shares
def test_two_processes_share_one_copy_of_a_packed_model(tmp_path: Path, monkeypatch) -> None:
    from localspec.events import Reporter
    from localspec.models.packed_files import packed_files
    from localspec.native.packed_cache import load
    from localspec.paths import Paths

    load(resolve("demo").path, "int8", "demo", 1, Reporter(), Paths(tmp_path))
    (file,) = (one.path for one in packed_files(Paths(tmp_path)))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", TOUCHES, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for one in both:
        assert one.stdout is not None and one.stdout.readline() == "read\n"
    told = []
    for one in both:  # the first still has it mapped, for it waits until its pipe is closed
        assert one.stdin is not None and one.stdout is not None
        one.stdin.write("\n")
        one.stdin.flush()
        told.append(json.loads(one.stdout.readline()))
        if one is both[0]:
            continue
    for one in both:
        one.communicate()
    size = file.stat().st_size
    assert told[0]["Rss:"] >= size and told[0]["Pss:"] <= 0.51 * told[0]["Rss:"], "half of it each"
    assert all(one["Private_Dirty:"] == 0 for one in told)
