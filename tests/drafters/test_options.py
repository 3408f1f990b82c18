"""docs/train.md names every option of every kind."""

import re
from dataclasses import fields

from command import ROOT
from each import each

from localspec.drafters.saved import drafter_class
from localspec.models.drafter_kinds import kinds


@each("kind", kinds("weights"))
def test_every_option_stands_there_with_its_default(kind):
    section = (ROOT / "docs" / "train.md").read_text("utf-8").split(f"\n## {kind}\n")[1].split("\n## ")[0]
    told = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, defaults = line.strip("|").split("|")[:2]
            told |= dict(
                zip(re.findall(r"`(\w+)`", names), [word.strip() for word in defaults.split(",")], strict=False)
            )
    options = {option.name: option.default for option in fields(drafter_class(kind).Options)}
    assert set(told) == set(options)
    for name, default in options.items():
        if not isinstance(default, str):
            assert told[name] == (str(default).lower() if isinstance(default, bool) else f"{default:g}")
