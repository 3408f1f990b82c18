"""Logits, perplexity and greedy text, compared with stock transformers in fp32 over the weights that `gguf` dequantises.

Bounds are only for the comparison with other programs. What localspec compares with itself is the same bit for bit.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from filelock import FileLock
from real.reference import BytePairs, Exact, File, divergence, rendered, surprise
from real.texts import ASKED, DOCUMENT, PROMPTS, long_document
from real.whole_matrix import WHOLE_MATRIX

from localspec.decoding.tree import DraftTree
from localspec.families.rope import Rope
from localspec.native.cache import cache_format
from localspec.native.model import NativeModel
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.weights.gguf_model import GgufModel
from localspec.weights.gguf_weights import gguf_recipe, gguf_source
from localspec.weights.opened import PackedModel
from localspec.weights.packed_file import Origin

# greedy tokens, and tokens of the document
SAID, LENGTH = (32, 512) if "WHOLE_MATRIX" in os.environ else (16, 192)


class Measured(NamedTuple):
    """The reference's results for a model."""

    prompts: list[list[int]]
    logits: list[np.ndarray]  # by prompt
    document: list[int]
    surprise: np.ndarray  # by token of the document
    asked: list[list[int]]
    replies: list[list[int]]


@pytest.fixture(scope="session")
def exact(
    shared: Path, gguf_file: Callable[[str], File], byte_pairs: Callable[[str], BytePairs]
) -> Callable[..., Measured]:
    """exact(name, length): compute the reference's results over `length` tokens of a document, in one process."""

    def measure(name: str, length: int) -> dict[str, Any]:
        model, pairs = Exact(gguf_file(name)), byte_pairs(name)
        document = pairs.encode(DOCUMENT + (long_document(5 * length) if length > LENGTH else ""))[:length]
        prompts = [pairs.encode(text) for text in PROMPTS]
        asked = [pairs.encode(rendered(gguf_file(name), [{"role": "user", "content": text}])) for text in ASKED]
        found: dict[str, Any] = {"document": document, "surprise": surprise(model.logits(document), document)}
        found |= {f"prompt {n}": ids for n, ids in enumerate(prompts)}
        found |= {f"logits {n}": model.logits(ids) for n, ids in enumerate(prompts)}
        found |= {f"asked {n}": ids for n, ids in enumerate(asked)}
        return found | {f"reply {n}": model.greedy(ids, SAID) for n, ids in enumerate(asked)}

    def read(name: str, length: int) -> Measured:
        file = shared / f"exact-{name}-{length}.npz"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                np.savez(shared / f"part-{file.name}", **measure(name, length))
                (shared / f"part-{file.name}").rename(file)
        with np.load(file) as stored:
            several = {
                key: [stored[f"{key} {n}"] for n in range(len(texts))]
                for key, texts in (("prompt", PROMPTS), ("logits", PROMPTS), ("asked", ASKED), ("reply", ASKED))
            }
            plain = {key: [one.tolist() for one in several[key]] for key in ("prompt", "asked", "reply")}
            return Measured(
                plain["prompt"], several["logits"], stored["document"].tolist(), stored["surprise"], plain["asked"], plain["reply"]
            )  # fmt: skip

    return read


def in_fp32(file: Path) -> NativeModel:
    """Return the model in fp32, which is not offered for GGUF files."""
    source = gguf_source(GgufModel.open(file))
    header = source.header(Origin("a", "0" * 40), gguf_recipe(source, "fp32"))
    held = PackedModel.in_memory(header, source.filler({}), 1, lambda done, total: None)
    return NativeModel(held.sizes, Rope.of(source.config, 1024), held.tensors, Threads(1), cache_format("fp32"))


def logits_of(model: NativeModel, tokens: Sequence[int]) -> np.ndarray:
    return model.forward(tokens, None, model.cache(len(tokens)))[0].numpy()


@pytest.mark.parametrize("name", ["smollm2", pytest.param("qwen-0.5b", marks=WHOLE_MATRIX)])
def test_in_fp32_logits_and_greedy_text_are_those_of_transformers(
    name: str, published: Callable[[str], Path], exact: Callable[..., Measured]
) -> None:
    theirs, ours = exact(name, LENGTH), in_fp32(published(name))
    apart = [abs(logits_of(ours, ids) - rows).max() for ids, rows in zip(theirs.prompts, theirs.logits, strict=True)]
    assert max(apart) < 1e-3
    rows = logits_of(ours, theirs.document)
    assert abs(surprise(rows, theirs.document) - theirs.surprise).max() < 1e-3
    for prompt, reply in zip(theirs.asked, theirs.replies, strict=True):
        said = logits_of(ours, [*prompt, *reply])[len(prompt) - 1 : -1].argmax(-1)
        assert said.tolist() == reply


# Mean KL in nats and share of the same first choices over the prompts, and how far perplexity is off over the document.
# In brackets what was measured on 30 November 2026, perplexity the worst of 192, 512 and 4,000 tokens. The bounds are
# at most three times as far off: room for other roundings, not for errors.
BOUNDS = {
    ("smollm2", "int8"): (0.04, 0.85, 0.018),  # [0.0259, 90.9 %, 0.6 %]
    ("smollm2", "int4"): (0.019, 0.82, 0.012),  # [0.0062, 93.9 %, 0.4 %]
    ("qwen-0.5b", "int8"): (0.01, 0.93, 0.005),  # [0.0032, 96.6 %, 0.1 %]
    ("qwen-0.5b", "int4"): (0.013, 0.92, 0.012),  # [0.0044, 97.4 %, 0.4 %]
}


@pytest.mark.parametrize(
    ("name", "packing", "length"),
    [
        ("smollm2", "int8", LENGTH),
        ("smollm2", "int4", LENGTH),
        pytest.param("qwen-0.5b", "int8", LENGTH, marks=WHOLE_MATRIX),
        pytest.param("qwen-0.5b", "int4", LENGTH, marks=WHOLE_MATRIX),
        pytest.param("smollm2", "int8", 4000, marks=WHOLE_MATRIX),
        pytest.param("smollm2", "int4", 4000, marks=WHOLE_MATRIX),
    ],
)
def test_packed_models_say_nearly_what_transformers_does(
    name: str,
    packing: str,
    length: int,
    imported: Callable[[str, str], Path],
    exact: Callable[..., Measured],
) -> None:
    theirs = exact(name, length)
    target = NativeTarget.open(imported(name, packing), packing=packing, threads=Threads(1))

    def logits(tokens: Sequence[int]) -> np.ndarray:
        return target.forward(DraftTree.chain(tokens), target.cache(len(tokens))).logits.numpy()

    ours = [logits(ids) for ids in theirs.prompts]
    # Position 0 has massive activations, and nothing is picked there.
    pairs = [(rows[1:], found[1:]) for rows, found in zip(theirs.logits, ours, strict=True)]
    apart = np.concatenate([divergence(rows, found) for rows, found in pairs])
    same = np.concatenate([rows.argmax(-1) == found.argmax(-1) for rows, found in pairs])
    more = surprise(logits(theirs.document), theirs.document).mean() - theirs.surprise.mean()
    kl, agreeing, worse = BOUNDS[name, packing]
    print(
        f"{name} {packing} {length}: KL {apart.mean():.4f}, same {same.mean():.1%}, perplexity {np.exp(more) - 1:+.1%}"
    )
    assert apart.mean() < kl
    assert same.mean() > agreeing
    assert abs(np.exp(more) - 1) < worse
