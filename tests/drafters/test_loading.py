"""A trained drafter's files may propose badly, or be refused, but never change a model's text or exhaust its memory."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drafting import drafting, torch_form
from each import each
from golden import wording
from safetensors.torch import load_file, save_file
from slow_cases import covering
from tiny_models import FAMILIES, Tiny, prompt_ids

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters import trained as saved
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.tensors import StoredTensors
from localspec.errors import LocalspecError
from localspec.events import Done
from localspec.models.drafter_cards import read_drafter
from localspec.models.drafter_kinds import kinds
from localspec.nn.target import Target
from localspec.training.trainable import make_drafter, save_drafter

Make = Callable[[str], Tiny]
LLAMA = FAMILIES[0]
SMALL = {
    "model_type": "llama", "pard_token": 1, "vocab_size": 320, "hidden_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip
FORMS: dict[str, tuple[str, dict[str, object]]] = {
    **{kind: (kind, {}) for kind in kinds("weights")},
    "private medusa": ("medusa", {"private": True}),
    "static medusa": ("medusa", {"tree": "static"}),
    "semi of few tokens": ("semi", {"shared": False, "vocabulary": 20}),
    "eagle": ("parallelspec", {"form": "eagle"}),
    "model": ("parallelspec", {"form": "model", "config": json.dumps(SMALL)}),
}


def write_drafter(path: Path, target: Target, form: str, number: float | None = None) -> Path:
    """Return a drafter whose weights are random, or all this number."""
    torch.manual_seed(0)
    kind, options = FORMS[form]
    drafter = make_drafter(kind, torch_form(target), options)
    for parameter in drafter.parameters():
        if number is None:
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
        else:
            parameter.data.fill_(number)
    save_drafter(drafter, path, {"target": {"name": "tiny", "revision": ""}})
    return path


def edited(path: Path, **options: Any) -> Path:
    content = json.loads((path / saved.CARD).read_text())
    content["options"] |= options
    (path / saved.CARD).write_text(json.dumps(content))
    return path


def loaded(path: Path, target: Target) -> Drafter:
    return saved.load_drafter(read_drafter(path), target)


def said(target: Target, drafter: Drafter, sampling: Sampling) -> tuple[list[int], int]:
    """Return a reply, and the number of tokens drafted for it."""
    *_, done = Session(target, drafter, Budget(6)).generate(prompt_ids(9), sampling, Limits(max_tokens=8))
    assert isinstance(done, Done)
    return list(done.statistics.token_ids), done.statistics.drafted


@pytest.mark.slow
@each("form", FORMS)
def test_what_was_saved_is_what_a_form_says_that_it_has(tmp_path: Path, tiny: Make, form: str) -> None:
    target = tiny(LLAMA).target
    drafter = loaded(write_drafter(tmp_path, target, form), target)
    assert said(target, drafter, Sampling())[1] > 0
    stored = load_file(tmp_path / saved.WEIGHTS)
    specs = type(drafter).tensor_specs(target, drafter.options)
    assert {name: (spec.shape, spec.dtype) for name, spec in specs.items()} == {
        name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in stored.items()
    }


@each("form", FORMS)
def test_a_drafter_that_disappears_after_it_was_found_is_reported(tmp_path: Path, tiny: Make, form: str) -> None:
    target = tiny(LLAMA).target
    card = read_drafter(write_drafter(tmp_path / "made", target, form))
    (tmp_path / "made").rename(tmp_path / "moved")
    with pytest.raises(LocalspecError, match=f"{tmp_path / 'made'}"):
        saved.load_drafter(card, target)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "number"), covering(FORMS, [3e38, float("nan")]))
def test_numbers_that_overflow_cost_drafts_and_not_the_text(tmp_path, tiny, form, number):
    target = tiny(LLAMA).target
    path = write_drafter(tmp_path, target, form, number)
    kind, options = FORMS[form]
    weights = make_drafter(kind, torch_form(target), options)
    weights.load_tensors(load_file(path / saved.WEIGHTS))  # a training that diverged drafts, too
    drafter = drafting(weights, target)
    for sampling in (Sampling(), Sampling(0.8, top_p=0.9, seed=3)):
        assert said(target, drafter, sampling)[0] == said(target, Autoregressive(), sampling)[0]
    for rule in ("rejection", "typical"):
        assert said(target, drafter, Sampling(0.8, top_p=0.9, seed=3, rule=rule))[0]


@each(
    "form, options, asked",
    [
        (
            "model",
            {"config": json.dumps({"model_type": "llama", "pard_token": 1})},
            "and 185 more; train",
        ),  # billions of numbers
        ("s3d", {"rank": 1024}, "shape"),
        ("s3d", {"rank": 4_000_000}, "rank = 4000000"),
        ("medusa", {"private": True}, "lacks 'linears'"),
        ("semi", {"paper_widths": True}, "shape"),
        ("medusa", {"heads": None}, "heads = None"),
        ("medusa", {"layers": 2}, "lacks 'blocks.1.bias' and 1 more; train"),
    ],
)
def test_nothing_is_made_for_options_that_the_weights_are_not_of(tmp_path, tiny, monkeypatch, form, options, asked):
    target = tiny(LLAMA).target
    path = edited(write_drafter(tmp_path, target, form), **options)
    monkeypatch.setattr(saved.drafter_class(FORMS[form][0]), "__init__", lambda *_: pytest.fail("it is made"))
    monkeypatch.setattr(StoredTensors, "__getitem__", lambda *_: pytest.fail("a tensor is read"))
    tracemalloc.start()
    try:
        with pytest.raises(LocalspecError, match=asked) as refused:
            loaded(path, target)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert str(refused.value).count("\n") == 0


@each("dtype", [torch.float8_e4m3fn, torch.int32, torch.complex64, torch.float64, torch.bool])
def test_weights_of_another_type_are_refused(tmp_path: Path, tiny: Make, dtype: torch.dtype) -> None:
    target = tiny(LLAMA).target
    path = write_drafter(tmp_path, target, "s3d")
    tensors = load_file(path / saved.WEIGHTS)
    save_file({**tensors, "mask": tensors["mask"].to(dtype)}, path / saved.WEIGHTS)
    with pytest.raises(LocalspecError, match=r"'mask' is of type \w+ instead of float32"):
        loaded(path, target)
    save_file({**tensors, "mask": tensors["mask"].half()}, path / saved.WEIGHTS)
    loaded(path, target)


@each(
    "kept, message",
    [
        (torch.zeros(0, dtype=torch.long), "has the shape"),
        (torch.arange(20.0), wording("type_float32_where_int64")),
        (torch.arange(20, dtype=torch.int32), wording("type_i32_where_int64")),
        (torch.arange(20) + 310, wording("tokens_model_does")),
    ],
)
def test_an_invalid_draft_vocabulary_is_refused(tmp_path: Path, tiny: Make, kept: torch.Tensor, message: str) -> None:
    target = tiny(LLAMA).target
    path = write_drafter(tmp_path, target, "semi of few tokens")
    save_file({**load_file(path / saved.WEIGHTS), "kept": kept}, path / saved.WEIGHTS)
    with pytest.raises(LocalspecError, match=f"'kept'.*{message}"):
        loaded(path, target)
