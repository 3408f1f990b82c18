import subprocess
import sys
from pathlib import Path

import pytest
from command import environment
from training.minimal_drafter import Linears

from localspec.errors import DoesNotFit
from localspec.models.registry import NOWHERE, TargetCard
from localspec.policy.selection import Choice
from localspec.training.estimate import Needs, fitting, needs

CHOICE = Choice(
    target=TargetCard("tiny", NOWHERE, None, ""), device="cpu", dtype="fp32", quantize="none", engine="torch", loaded_bytes=1000, bytes=1000,
    drafter="none", nodes=0, fixed=False, reason="",
)  # fmt: skip
PEAK = (
    "import re, resource, sys; from localspec.cli.main import main; code = main(sys.argv[1:]); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, file=sys.stderr); sys.exit(code)"
)


def test_a_forward_is_halved_until_it_fits_and_a_row_is_the_least(monkeypatch):
    monkeypatch.setattr("localspec.training.estimate.free_memory", lambda _: 1000)
    needed = Needs(fixed=400, token=1, files=0, trainable=0)
    assert [fitting(needed, CHOICE, at_once, 100) for at_once in (600, 601, 2000, 100)] == [600, 300, 500, 100]
    assert fitting(Needs(880, 1, 0, 0), CHOICE, 4096, 100) == 100
    with pytest.raises(DoesNotFit, match="100 tokens at once"):
        fitting(Needs(901, 1, 0, 0), CHOICE, 4096, 100)


def test_what_learns_is_counted(tiny):
    drafter = Linears(tiny("phi3-one-key-head-tied").target)
    found = needs(drafter, CHOICE, 64, changes_target=False)
    assert found.trainable == 2 * 48 * 48 + 48
    drafter.bias.requires_grad_(False)
    assert needs(drafter, CHOICE, 64, changes_target=False).trainable == 2 * 48 * 48
    changed = needs(drafter, CHOICE, 64, changes_target=True)
    assert changed.token > found.token and changed.files > found.files - 28 * 48


@pytest.mark.slow
@pytest.mark.parametrize("options", [["medusa"], ["medusa", "-O", "joint=true", "-O", "warmup=0.1"], ["parallelspec"]])
def test_the_estimate_is_about_what_a_training_takes(tmp_path, options):
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"{n} " + "The sun rises in the east and sets in the west. " * 60 for n in range(12)))
    kind, *rest = options
    words = [
        "train",
        kind,
        "-m",
        "demo",
        "--data",
        str(file),
        "--steps",
        "2",
        "--length",
        "512",
        "-o",
        str(tmp_path / "a"),
    ]
    result = subprocess.run(
        [sys.executable, "-c", PEAK, *words, *rest], env=environment(tmp_path), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    said, peak = float(result.stderr.split(" GiB")[0].split()[-1]), float(result.stderr.split()[-1])
    assert 0.8 * peak < said < 2.5 * peak, (said, peak)
    assert Path(tmp_path / "a" / "drafter").is_dir()
