"""scripts/train_demo_drafters.py: what it puts beside the demo model is what drafts there."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from golden import matching, wording
from safetensors.torch import load_file

from localspec.checkpoint import revision
from localspec.cli.main import main
from localspec.models.drafter_cards import read_drafter
from localspec.models.registry import resolve

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "train_demo_drafters.py"


def here(words: list[str], check: bool) -> None:
    """`localspec train`, in this process, which has imported torch already."""
    assert words[:3] == [sys.executable, "-m", "localspec"] and check
    main(words[3:])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("one_reply_of_each_kind")
def test_one_kind_for_a_step(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("train_demo_drafters", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{n} " + "The sun rises in the east. " * 60 for n in range(12)))
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    words = ["--data", str(text), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"), "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["train_demo_drafters.py", *words, "--batch", "512", "--only", "medusa"])
    monkeypatch.setattr(script.subprocess, "run", here)
    script.main()
    card = read_drafter(tmp_path / "out" / "medusa")
    assert (card.kind, card.target, card.revision) == ("medusa", "demo", revision(resolve("demo").path))
    whole = load_file(tmp_path / "work" / "medusa" / "drafter" / "drafter.safetensors")
    halved = load_file(tmp_path / "out" / "medusa" / "drafter.safetensors")
    assert all(torch.equal(halved[name], tensor.to(torch.bfloat16)) for name, tensor in whole.items())
    assert wording("localspec_train_medusa") in (tmp_path / "out" / "medusa" / "README.md").read_text()
    monkeypatch.setattr(script, "MOST", 1000)
    with pytest.raises(SystemExit, match=matching("more_than_0")):  # and what is trained is not trained again
        script.main()
