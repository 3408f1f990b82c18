"""Damaged headers: each is a sentence, or a model that can be run, in little memory and time."""

import os
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
from chat_templates import PHI3, write_tokenizer
from gguf_alterations import Header
from gguf_files import metadata_of, tensors_of, written
from gguf_fuzz import mutated, opened, write
from weights.test_gguf_model import CONFIGS, SHAPE, packed
from weights.test_gguf_tokens import pieces

from localspec.families.rope import Rope
from localspec.native.cache import cache_format
from localspec.native.model import NativeModel
from localspec.native.threads import Threads
from localspec.weights.gguf_weights import gguf_recipe
from localspec.weights.source import PackingSource

COUNT = 100 if "WHOLE_MATRIX" in os.environ else 40  # of each file
FILES = ["llama-biases-llama3", "qwen2-tied-yarn", "phi3-longrope"]


def sound(tmp_path: Path, name: str) -> Header:
    """Return the header of a tiny model; that of Phi-3 has a vocabulary of pieces."""
    kind, unlike = CONFIGS[name]
    path = tmp_path / "model"
    tiny_models.write(path, kind(**{**SHAPE, **unlike}), tiny_models.byte_tokenizer(), 0)
    said: dict[str, Any] = metadata_of(path, "gpt-2")
    if name.startswith("phi3"):
        other = pieces(write_tokenizer(tmp_path, PHI3))
        said = {key: one for key, one in said.items() if not key.startswith("tokenizer.ggml")}
        said |= {key: one if isinstance(one, (str, int, list)) else one.tolist() for key, one in other.items()}
        kind_of_size = len(said["tokenizer.ggml.tokens"])
        config = kind(**{**SHAPE, **unlike, "vocab_size": kind_of_size})
        tiny_models.write(path, config, tiny_models.byte_tokenizer(), 0)
    (tmp_path / "sound.gguf").write_bytes(written(said, tensors_of(path, "Q8_0")))
    return Header(tmp_path / "sound.gguf")


def computed(source: PackingSource) -> None:
    """Pack a tiny model and read three tokens with it."""
    model = packed(source, "int8", gguf_recipe(source, "int8"))
    rope = Rope.of(source.config, source.config.contexts[0])
    ready = NativeModel(model.sizes, rope, model.tensors, Threads(1), cache_format("int8"))
    logits = ready.forward([1, 2, 3], None, ready.cache(3))[0].numpy()
    assert np.isfinite(logits).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_header_is_a_sentence_or_a_model(tmp_path, name):
    header, chance, found = sound(tmp_path, name), random.Random(f"{name} 46"), []
    data = header.path.read_bytes()[header.data :]
    write(tmp_path / "a.gguf", header.altered({}), data)
    assert opened(tmp_path / "a.gguf", computed) is None, "the file itself is a model"
    for number in range(COUNT):
        content = mutated(header, chance)
        write(tmp_path / "a.gguf", content, data)
        began = time.process_time()
        tracemalloc.start()
        try:
            found.append(opened(tmp_path / "a.gguf", computed))
            assert tracemalloc.get_traced_memory()[1] < 2**25 + 40 * len(content), number
        finally:
            tracemalloc.stop()
        assert time.process_time() - began < 10, number
    assert 0.2 * COUNT < len([one for one in found if one is None]) < 0.8 * COUNT, "both happen"
    assert len(set(found)) > 0.2 * COUNT
