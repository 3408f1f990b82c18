"""A check of the language model within a model that also reads pictures."""

from pathlib import Path
from typing import Any

import torch
from tiny_models import VOCABULARY, prompt_ids, stock_logits

from localspec.decoding.tree import DraftTree
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn.target import Target
from localspec.weights.checkpoint import Checkpoint, inspect


def assert_language_model_is_served(path: Path, stock_class: Any) -> tuple[Target, Checkpoint]:
    """Compare the logits of both engines with those of the stock model. Return the target and the card."""
    tokens = prompt_ids(40)
    whole = stock_class.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    want = stock_logits(whole.eval(), tokens)
    target, native = Target.load(path), NativeTarget.open(path, packing="fp32", threads=Threads(1))
    for engine, close in ((target, 2e-5), (native, 1e-4)):
        ours = torch.as_tensor(engine.forward(DraftTree.chain(tokens), engine.cache(64)).logits.numpy())
        assert (ours - want).abs().max() < close * want.abs().max()
    found = inspect(path)
    assert (found.architecture, found.embedding) == (stock_class.__name__, VOCABULARY * 48)
    return target, found
