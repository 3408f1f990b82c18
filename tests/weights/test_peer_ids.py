"""Token ids are llama.cpp's, for each pre-tokenizer and for pieces with scores.

`peer_ids.json` holds ids that llama.cpp gave: `RECORD_PEER_IDS=1 python -m pytest tests/weights/test_peer_ids.py`, where
llama-cpp-python is installed, writes it again. Where it is installed the ids are compared with llama.cpp itself, too.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import written
from weights.small_vocabularies import TEXTS, merging, pieces, texts_of_pieces, with_equal_scores
from weights.test_gguf_tokens import converted

from localspec.weights.gguf_splits import SPLITS

RECORD = Path(__file__).with_name("peer_ids.json")
# Names for which llama.cpp simplifies the expression of the models, and the numbers of the texts where its ids differ:
# it knows no case of letters (youtu, kimi-k2), or leaves blanks together with the digits after them (afmoe, tiny_aya).
SIMPLER: dict[str, set[int]] = {"youtu": {2}, "kimi-k2": {2}, "afmoe": {12}, "tiny_aya": {2, 12}, "cohere2moe": {2, 12}}


@cache
def cases() -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return a vocabulary and texts by name."""
    return {
        **{name: (merging(name, split.raw), TEXTS) for name, split in SPLITS.items()},
        "gemma4 by its kind": (merging("gemma4", True, "gemma4"), TEXTS),
        **{
            f"pieces {seed}{' after a space' if prefix else ''}": (pieces(seed, prefix), list(texts_of_pieces(seed)))
            for seed in range(4)
            for prefix in (False, True)
        },
        "pieces of one score": (with_equal_scores(1), ["zzz", "azzzb", *texts_of_pieces(1)]),
    }


def our_ids(name: str, path: Path) -> list[list[int]]:
    said, texts = cases()[name]
    arrays = {key: np.array(one) if key.endswith(("_type", "scores")) else one for key, one in said.items()}
    ours = converted(arrays, path)
    return [ours.encode(text, True) for text in texts]


def their_ids(name: str, file: Path) -> list[list[int]]:
    from llama_cpp_model import ids_of

    said, texts = cases()[name]
    shape = {"context_length": 64, "embedding_length": 64, "block_count": 1, "feed_forward_length": 64}
    shape |= {"attention.head_count": 4}
    numbers = {f"llama.{key}": one for key, one in shape.items()} | {"llama.attention.layer_norm_rms_epsilon": 1e-5}
    file.write_bytes(written({"general.architecture": "llama", **numbers, **said}, {}))
    return ids_of(file, texts)


def compare(name: str, ours: list[list[int]], theirs: list[list[int]]) -> None:
    differing = {at for at, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other}
    assert differing == SIMPLER.get(name, set()), [cases()[name][1][at] for at in sorted(differing)]


@pytest.mark.slow
def test_ids_are_those_that_were_recorded_of_llama_cpp(tmp_path):
    if "RECORD_PEER_IDS" in os.environ:
        found: dict[str, Any] = {}
        for name in cases():
            ids, key = their_ids(name, tmp_path / "a.gguf"), name
            same = next((known for known, one in found.items() if one == ids), None)
            found[key] = same or ids
        RECORD.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    recorded = json.loads(RECORD.read_text())
    assert recorded.keys() == cases().keys()
    for name, ids in recorded.items():
        compare(name, our_ids(name, tmp_path), recorded[ids] if isinstance(ids, str) else ids)
    assert sum(isinstance(ids, list) for ids in recorded.values()) > 30, "the texts do not tell pre-tokenizers apart"


def test_ids_are_those_of_llama_cpp_itself(tmp_path):
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    for name in cases():
        compare(name, our_ids(name, tmp_path), their_ids(name, tmp_path / "a.gguf"))
