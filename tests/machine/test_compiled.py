"""A compiled library that is damaged, foreign or of another version counts as missing, and causes no crash."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from clocks import PATIENCE
from command import ROOT
from each import each
from golden import matching, wording

from localspec.errors import UsageMistake
from localspec.machine import compiled

LOADS = """
import sys
from pathlib import Path
from localspec.machine import compiled
for file in sys.argv[1:]:
    compiled.FILE = Path(file)
    compiled.library.cache_clear()
    print(compiled.library() is not None, compiled.missing(), flush=True)
"""
built = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")


def loads(*files: Path) -> list[str]:
    """Return what loading each file reports, in a separate process, which may crash."""
    command = [sys.executable, "-c", LOADS, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-300:])
    return done.stdout.splitlines()


@pytest.mark.slow
@built
@pytest.mark.skipif(sys.platform != "linux", reason="other systems look for themselves")
def test_one_whose_end_is_lost_is_not_used(tmp_path):
    whole, damaged = compiled.FILE.read_bytes(), []
    for number, length in enumerate(int(part * len(whole)) for part in (0, 0.0001, 0.01, 0.3, 0.9, 0.999)):
        for end in (b"", bytes(len(whole) - length)):
            damaged.append(tmp_path / f"{number}{'zeros' if end else ''}.so")
            damaged[-1].write_bytes(whole[:length] + end)
    (tmp_path / "whole.so").write_bytes(whole)
    *said, last = loads(*damaged, tmp_path / "whole.so")
    assert said == [wording("false_damaged_belongs_another", file=file) for file in damaged]
    assert last.strip() == "True"


@pytest.mark.slow
def test_another_library_is_not_used(tmp_path):
    foreign = next(file for file in Path(np.__file__).parent.rglob("_multiarray_umath*") if file.suffix != ".pyi")
    (tmp_path / "text.so").write_text("no library at all")
    of_numpy, of_text, of_nothing = loads(foreign, tmp_path / "text.so", tmp_path / "nothing.so")
    assert of_numpy.startswith(f"False {foreign} is damaged") and of_text.startswith("False ")
    assert of_nothing == wording("false_installation_compiled")


@built
def test_one_of_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr(compiled, "ABI", compiled.ABI + 1)
    assert compiled.library.__wrapped__() is None


@each("there", [True, False])
def test_instructions_that_there_are_not_are_refused_with_and_without_it(monkeypatch, tmp_path, there):
    if not there:
        monkeypatch.setattr(compiled, "FILE", tmp_path / "nothing.so")
    monkeypatch.setenv("LOCALSPEC_ISA", "nonsense")
    with pytest.raises(UsageMistake, match=matching("localspec_isa_nonsense_is_unknown")):
        compiled.library.__wrapped__()
