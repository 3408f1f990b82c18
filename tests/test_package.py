import subprocess
import sys
import zipfile

import pytest
from command import ROOT

from localspec.models.drafter_kinds import kinds


@pytest.mark.slow
def test_the_wheel_holds_what_the_program_needs(tmp_path):
    pytest.importorskip("hatchling", reason="part of the dev extra")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
        assert content.read("localspec/models.toml") == (ROOT / "models.toml").read_bytes()
        metadata = next(name for name in names if name.endswith("METADATA"))
        assert b"\nLicense-Expression: Apache-2.0\n" in content.read(metadata)
    demo = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert {f"localspec/demo/{place}{name}" for place in ("", "draft/") for name in demo} <= names
    drafters = {f"localspec/demo/drafters/{kind}/drafter" for kind in kinds("weights")}
    assert {f"{name}{end}" for name in drafters for end in (".json", ".safetensors")} <= names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "localspec").rglob("*.py")}
    assert sources <= names
    assert not any(name.startswith(("tests/", "scripts/")) for name in names)
