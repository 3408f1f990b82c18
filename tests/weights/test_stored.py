"""Tensors are found in their files, and a head is distinguished from an embedding."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from each import each
from safetensors.torch import load_file
from tiny_models import Tiny, copied

from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig
from localspec.weights import stored
from localspec.weights.checkpoint import inspect
from localspec.weights.stored import read_config, stored_sizes, stored_tensors

Make = Callable[[str], Tiny]
NAME = "qwen2-grouped-yarn"


@pytest.mark.slow
@each("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_numbers_of_every_type_are_read_from_anywhere(tiny: Make, tmp_path: Path, dtype: str) -> None:
    path = copied(
        tiny(NAME), tmp_path / "m", lambda t: {n: (p * 20).abs().to(getattr(torch, dtype)) for n, p in t.items()}
    )
    checkpoint, right = inspect(path), load_file(path / "model.safetensors")
    for name, tensor in stored_tensors(checkpoint, TransformerConfig.of(read_config(checkpoint))).items():
        numbers = right[name].float().flatten().numpy()
        np.testing.assert_array_equal(tensor.floats(0, len(numbers)), numbers)
        np.testing.assert_array_equal(tensor.floats(5, 3), numbers[5:8])


@each("dtype", ["float8_e4m3fn", "int8", "int16", "int32", "int64", "uint8"])
def test_a_type_that_weights_never_are_is_named(tiny: Make, tmp_path: Path, dtype: str) -> None:
    one = "model.norm.weight"
    path = copied(tiny(NAME), tmp_path / "m", lambda t: t | {one: t[one].to(getattr(torch, dtype))})
    with pytest.raises(LocalspecError, match=rf"'{one}' .* is of the type [FIU]\d+"):
        stored_tensors(inspect(path), TransformerConfig.of(read_config(inspect(path))))


HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def says_tied(path: Path) -> bool:
    """Return whether head and embedding are the same tensor where config.json says so."""
    return stored_sizes(inspect(path), replace(read_config(inspect(path)), tie_word_embeddings=True)).tied


@each("piece", [stored._PIECE, 100])
@each(
    "head, own",
    [
        (lambda embedding: embedding.clone(), False),
        (lambda embedding: embedding.double(), False),
        (lambda embedding: torch.cat([embedding[:-1], embedding[-1:] + 1]), True),
        (lambda embedding: embedding[:-1].clone(), True),
        (lambda embedding: -embedding, True),
    ],
)
def test_a_head_is_its_own_where_a_number_differs(
    tiny: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    head: Callable[..., torch.Tensor],
    own: bool,
    piece: int,
) -> None:
    monkeypatch.setattr(stored, "_PIECE", piece)
    path = copied(tiny(NAME), tmp_path / "model", lambda t: {**t, HEAD: head(t[EMBEDDING]).contiguous()})
    assert says_tied(path) is not own


def test_without_a_head_the_embedding_serves(tiny: Make, tmp_path: Path) -> None:
    path = copied(tiny(NAME), tmp_path / "model", lambda t: {n: tensor for n, tensor in t.items() if n != HEAD})
    assert says_tied(path)
