"""The same bits on every CPU: recorded digests of results with generated integer weights."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from native.engine import Model, Pool, Text, isas, using
from native.test_picks import pick
from slow_cases import cases
from tiny_models import CONFIGS, RECURRENT

from localspec.decoding.sampling import Sampling
from localspec.families.architecture import TransformerConfig, in_features, weight_map
from localspec.families.model_config import ModelConfig

ATTENDING, RECURRING = "qwen3-grouped-mixed-window-wide-heads", "qwen3_5-grouped-shared-keys-interval"
DIGESTS = {
    ("fp32", ATTENDING): "d868711db65749a1",
    ("bf16", ATTENDING): "fa2fc19b7ef32edc",
    ("int8", ATTENDING): "20fa2c5c2358a059",
    ("fp32", RECURRING): "18ca538f1c5ea1ec",
    ("bf16", RECURRING): "fdff4217b74ad479",
    ("int8", RECURRING): "86d75aa6aa3bc4f9",
}


def invented(name: str) -> SimpleNamespace:
    """Return a model whose weights are multiples of 2^-14, so that no rounding of a library is in them."""
    config = {**CONFIGS, **RECURRENT}[name]()
    sizes, rng = TransformerConfig.of(ModelConfig.of(config.to_dict())), np.random.default_rng(7)
    state = {}
    for ours, parts in weight_map(sizes).items():
        columns = in_features(ours, sizes)
        for part, rows in parts:
            shape = (rows,) if columns is None else (rows, columns)
            numbers = rng.integers(-5000, 5000, shape).astype(np.float32) / 2**14 + (1 if ours.endswith("norm") else 0)
            state[part] = torch.from_numpy(numbers)
    return SimpleNamespace(config=config, state_dict=lambda: state)


@pytest.mark.parametrize("case", cases(DIGESTS, [case for case in DIGESTS if case[0] == "int8"]), ids="-".join)
def test_logits_and_picks_have_the_bits_that_they_always_had(case):
    form, name = case
    model, rng = Model(invented(name), form, "fp32" if form == "fp32" else "fp16"), np.random.default_rng(8)
    parents = [-1, 0, 0, 2] if name in CONFIGS else None
    tokens = rng.integers(0, 320, 300).tolist()
    found = set()
    for isa in isas():
        with using(isa):
            text = Text(model, Pool(2))
            logits = [text.read(tokens, 300), text.forward([1, 2, 3, 4], parents)]
            if name in RECURRENT:  # some rows are rolled back
                text.keep([0, 1])
                logits.append(text.forward([5, 6]))
            picks = [
                pick(row, Sampling(temperature=0.9, top_p=0.95, seed=3), position)
                for position, row in enumerate(logits[0])
            ]
        found.add(
            hashlib.sha256(b"".join(part.tobytes() for part in logits) + bytes(str(picks), "ascii")).hexdigest()[:16]
        )
    assert found == {DIGESTS[case]}
