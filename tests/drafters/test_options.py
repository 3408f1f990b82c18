"""Options of trained drafters: the guide names every one, and values that mean nothing are refused."""

import json
import math
import re
from dataclasses import fields

import pytest
from command import ROOT
from drafters.test_eagle3 import OWN, QWEN3
from drafting import torch_form
from each import each
from golden import matching
from tiny_models import DYNAMIC

from localspec.drafters.trained import drafter_class
from localspec.errors import UsageMistake
from localspec.models.drafter_kinds import kinds
from localspec.training.trainable import make_drafter


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


@each(
    "kind, options, named",
    [
        ("semi", {"recent": "gru"}, "'gru'"),
        ("semi", {"depth": 0}, "depth = 0"),
        ("semi", {"layers": 3}, "layers = 3"),
        ("semi", {"vocabulary": -2, "shared": False}, "vocabulary = -2"),
        ("semi", {"vocabulary": 321, "shared": False}, "320 tokens"),
        ("semi", {"share": 0.0}, r"share = 0\.0"),
        ("semi", {"joint": True, "rank": 0}, "rank = 0"),
        ("semi", {"joint": True, "balance": 1.0}, r"balance = 1\.0"),
        ("semi", {"balance": 0.5}, "without joint"),
        ("semi", {"heads": 3}, "no option 'heads'"),
        ("medusa", {"heads": 0}, "heads = 0"),
        ("medusa", {"layers": 0}, "layers = 0"),
        ("medusa", {"tree": "tall"}, "'tall'.*confident, static, dense, chain"),
        ("medusa", {"decay": 0.0}, "decay"),
        ("medusa", {"decay": math.nan}, "decay"),
        ("medusa", {"joint": True, "warmup": 1.0}, "warmup"),
        ("medusa", {"joint": True, "rank": 0}, "rank"),
        ("medusa", {"rank": 8}, matching("no_effect_without_joint")),
        ("medusa", {"head": 3}, "no option 'head'"),
        ("medusa", {"heads": None}, matching("must_be_of_type_int")),
        ("medusa", {"joint": True, "rank": 10**18}, "1 to 1024"),
        ("medusa", {"joint": True, "balance": 10**400}, matching("must_be_of_type_float")),
        ("eagle3", {"depth": 0}, "depth = 0"),
        ("eagle3", {"decay": 0.0}, r"decay = 0\.0"),
        ("eagle3", {"vocabulary": 321}, "320 tokens"),
        ("eagle3", {"states": "1,x"}, "states = '1,x'"),
        ("eagle3", {"states": "0,3"}, "from 0 to 2"),
        ("eagle3", {"norms": "all"}, "'all'"),
        ("eagle3", {"config": "{}"}, matching("config_drafter_s_layer")),
        ("eagle3", {"config": json.dumps({**json.loads(QWEN3), "num_hidden_layers": 2})}, "has 2 layers"),
        ("eagle3", {"config": OWN}, matching("n32_channels_wide_model_48")),
        ("eagle3", {"heads": 3}, "no option 'heads'"),
        ("s3d", {"depth": 0}, "depth"),
        ("s3d", {"rank": 0}, "rank"),
        ("s3d", {"alpha": 0.0}, "alpha"),
        ("s3d", {"alpha": float("inf")}, "alpha"),
        ("s3d", {"adapters": "q"}, "adapters"),
        ("s3d", {"skip": "2"}, "skip"),
        ("s3d", {"skip": "2-1"}, "skip"),
        ("s3d", {"skip": "a-b"}, "skip"),
        ("s3d", {"kept": "2,1"}, "kept"),
        ("s3d", {"kept": "1,x"}, "kept"),
        ("s3d", {"kept": "0", "skip": "1-2"}, "kept"),
        ("s3d", {"full": True, "adapters": "all"}, "full"),
        ("s3d", {"kept": "0,3"}, "kept"),
        ("s3d", {"skip": "0-2"}, "skip"),
        ("s3d", {"skip": "2-3"}, "skip"),
        ("s3d", {"kept": "²"}, "kept"),
        ("s3d", {"depth": "4"}, "depth"),
        ("s3d", {"layers": 3}, "layers"),
        ("s3d", {"rank": 10**30}, "rank"),
        ("s3d", {"depth": 10**18}, "depth"),
        ("s3d", {"alpha": 10**400}, "alpha"),
        ("s3d", {"alpha": None}, "alpha"),
        ("s3d", {"kept": "9" * 5000}, "kept"),
        ("parallelspec", {"masks": 0}, "masks = 0"),
        ("parallelspec", {"form": "hydra"}, "'hydra'.*medusa, eagle, model"),
        ("parallelspec", {"layers": 0}, "layers = 0"),
        ("parallelspec", {"decay": 0.0}, r"decay = 0\.0"),
        ("parallelspec", {"drop": 1.0}, r"drop = 1\.0"),
        ("parallelspec", {"form": "model"}, "give model = DIRECTORY"),
        ("parallelspec", {"model": "somewhere"}, "no effect with form = medusa"),
        ("parallelspec", {"form": "model", "model": "somewhere", "layers": 2}, "layers = 2 has no effect"),
        ("parallelspec", {"form": "model", "config": "{"}, "Expecting property name"),
        ("parallelspec", {"form": "model", "config": "{}"}, "model_type = None"),
        ("parallelspec", {"heads": 3}, "no option 'heads'"),
        ("parallelspec", {"form": "model", "config": "[" * 100_000}, "nested too deeply"),
    ],
)
def test_options_that_mean_nothing_are_refused_in_one_sentence(tiny, kind, options, named):
    with pytest.raises(UsageMistake, match=named) as refused:
        make_drafter(kind, torch_form(tiny(DYNAMIC).target), options)
    sentence = str(refused.value)
    assert "\n" not in sentence and len(sentence) < 400, "a number of a thousand digits is no sentence"
