"""A tokenizer that passes its trial and panics on one text, for which its regular expression searches without end."""

import json
import shutil
from pathlib import Path

PANICS = "qw" * 60  # spelt in the expression by numbers, so that the trial cannot know of it
_ENDLESS = r"((?:\x71\x77|\x71|\x77)+)+#"


def panicking(model: Path, copy: Path) -> Path:
    """Return a copy of the model with such a tokenizer."""
    shutil.copytree(model, copy)
    file = copy / "tokenizer.json"
    content = json.loads(file.read_text())
    split = {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": _ENDLESS}}
    parts = [split, content["pre_tokenizer"]] if content["pre_tokenizer"] else [split]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
    file.write_text(json.dumps(content))
    return copy
