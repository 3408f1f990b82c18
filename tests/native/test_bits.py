"""The same bits on every processor: digests that were made once, of weights that are integers of a generator."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from native.engine import Model, Pool, Text, isas, using
from native.test_picks import pick
from slow_cases import cases
from tiny_models import CONFIGS

from localspec.decoding.sampling import Sampling
from localspec.models.architecture import TransformerConfig, weight_map
from localspec.models.model_config import ModelConfig

DIGESTS = {
    "fp32": "d868711db65749a1",
    "bf16": "fa2fc19b7ef32edc",
    "int8": "20fa2c5c2358a059",
    "int4": "53ed9c6839be3c46",
}


def invented(name: str) -> SimpleNamespace:
    """A model whose weights are multiples of 2^-14, so that no rounding of a library is in them."""
    config = CONFIGS[name]()
    sizes, rng = TransformerConfig.of(ModelConfig.of(config.to_dict())), np.random.default_rng(7)
    hidden, mixed = sizes.hidden_size, sizes.num_heads * sizes.head_dim
    state = {}
    for ours, parts in weight_map(sizes).items():
        columns = {"o_proj": mixed, "down_proj": sizes.intermediate_size}.get(
            ours.removesuffix(".weight").split(".")[-1], hidden
        )
        for part, rows in parts:
            shape = (rows,) if ours.endswith((".bias", "norm")) else (rows, columns)
            numbers = rng.integers(-5000, 5000, shape).astype(np.float32) / 2**14 + (1 if ours.endswith("norm") else 0)
            state[part] = torch.from_numpy(numbers)
    return SimpleNamespace(config=config, state_dict=lambda: state)


@pytest.mark.parametrize("form", cases(DIGESTS, ["int4"]))
def test_logits_and_picks_have_the_bits_that_they_always_had(form):
    model, rng = (
        Model(invented("qwen3-grouped-mixed-window-wide-heads"), form, "fp32" if form == "fp32" else "fp16"),
        np.random.default_rng(8),
    )
    tokens = rng.integers(0, 320, 300).tolist()
    found = set()
    for isa in isas():
        with using(isa):
            text = Text(model, Pool(2))
            logits = [text.read(tokens, 300), text.forward([1, 2, 3, 4], [-1, 0, 0, 2])]
            picks = [
                pick(row, Sampling(temperature=0.9, top_p=0.95, seed=3), position)
                for position, row in enumerate(logits[0])
            ]
        found.add(
            hashlib.sha256(b"".join(part.tobytes() for part in logits) + bytes(str(picks), "ascii")).hexdigest()[:16]
        )
    assert found == {DIGESTS.get(form)}
