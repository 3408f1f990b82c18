"""Every kind of drafter on the device: the text of a plain loop in fp32, and bitwise the plain text where promised."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_models import (
    GREEDY,
    KNOWING,
    MAKERS,
    QUESTIONS,
    SAMPLED,
    Stock,
    mtp,
    prompt_of,
    recurrent_model,
    stock_of,
)
from session_replies import reply
from slow_cases import cases
from tiny_models import prompt_ids

from localspec.decoding.budget import Budget
from localspec.decoding.exactness import Exactness
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.models.drafter_kinds import kinds
from localspec.nn.target import Target

Demo = Callable[..., Target]
Found = Callable[[str, bool], Exactness]
NODES, LONG = 12, 40
LEAST = 12  # tokens of a reply that prove something
SLACK = 4.0  # times the largest difference that the self-test found in a few rows
FAST = ("phrases", "medusa")
every_kind = pytest.mark.parametrize("kind", cases(MAKERS, FAST))
FORMS = ("used", "eager")
REHEARSED = ("phrases", "lookahead", "medusa", "parallelspec")  # a tree, a window, heads, mask tokens among the rows


def test_no_kind_is_left_out() -> None:
    assert {*MAKERS, "mtp", "assistant"} == {*kinds()}


def spoken(
    target: Target, kind: str, question: str, sampling: Sampling = GREEDY, count: int = LONG
) -> tuple[list[int], Any]:
    """Return the ids of a reply with this drafter, and its figures."""
    plain = kind == "none"
    session = Session(target, Autoregressive() if plain else MAKERS[kind](target), Budget(0 if plain else NODES))
    return reply(session, prompt_of(target, question), count, sampling)


@cache
def stock_text(stock: Stock, target: Target, question: str, sampling: Sampling) -> list[int]:
    """Return the text of the plain loop, for all kinds."""
    return stock.reply(prompt_of(target, question), LONG, target.stop_tokens, sampling)


@cache
def plain_text(target: Target, question: str, sampling: Sampling) -> list[int]:
    """Return the text of our own plain decoding."""
    return spoken(target, "none", question, sampling)[0]


def questions(device: str, sampling: Sampling) -> tuple[str, ...]:
    """Return what is asked: every question on a GPU, and one where a CPU rehearses."""
    return QUESTIONS if device == "cuda" else QUESTIONS[1:2] if sampling.greedy else QUESTIONS[:1]


@pytest.mark.slow
@every_kind
def test_in_fp32_the_text_is_that_of_a_plain_loop_over_the_stock_model(
    demo: Demo, stock: Stock, device: str, kind: str
) -> None:
    """Every second kind is greedy in the form that is used and samples in the eager one. The others do the reverse."""
    forms = FORMS if [*MAKERS].index(kind) % 2 else FORMS[::-1]
    for sampling, form in zip((GREEDY, SAMPLED), forms, strict=True):
        target, proven, accepted = demo("fp32", False, form), 0, []
        for question in questions(device, sampling):
            text = stock_text(stock, demo(), question, sampling)
            if text:
                ids, statistics = spoken(target, kind, question, sampling, len(text))
                assert ids == text, (sampling, form)
                proven += len(text)
                accepted.append(statistics.acceptance_length)
        assert proven >= LEAST, "near-ties and stops left too little to prove anything by"
        if kind in KNOWING and sampling.greedy:
            # A drafter that was trained differently from its use would be lossless, but guess no better than chance.
            least = 1.5 if kind in kinds("weights") else 1.0
            assert max(accepted) > least, "none of this would mean much if nothing were ever accepted"


def test_a_target_with_recurrent_layers_and_its_own_layer_that_drafts(device: str, tmp_path: Path) -> None:
    path = recurrent_model(tmp_path / "recurrent")
    stock, target, prompt = stock_of(path, device), Target.load(path, device=device), prompt_ids(20, seed=5)
    text = stock.reply(prompt, 24, target.stop_tokens)
    assert len(text) >= LEAST
    for drafter in (Autoregressive(), mtp(target)):
        ids, _ = reply(Session(target, drafter, Budget(3, branches=target.branches)), prompt, len(text))
        assert ids == text


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kind"), [*(("bf16", kind) for kind in MAKERS), *(("fp16", kind) for kind in FAST)])
def test_in_16_bits_the_text_is_the_plain_one_to_the_bit_where_the_self_test_says_so_else_to_a_near_tie(
    demo: Demo, found_of: Found, device: str, record_property: Callable[[str, object], None], dtype: str, kind: str
) -> None:
    if (dtype, device) == ("fp16", "cpu"):
        pytest.skip("fp16 is not for CPUs")
    rehearsed(device, dtype, kind)
    target, found = demo(dtype), found_of(dtype, False)
    for sampling in (GREEDY, SAMPLED):
        for question in questions(device, sampling):
            plain = plain_text(target, question, sampling)
            ids, _ = spoken(target, kind, question, sampling)
            if found.bitwise:
                assert ids == plain
            elif ids != plain:
                record_property("another text", f"{dtype}, {question}, {'greedy' if sampling.greedy else 'sampled'}")
                if sampling.greedy:
                    near_tie(target, prompt_of(target, question), ids, plain, found.largest)


def rehearsed(device: str, dtype: str, kind: str) -> None:
    """Skip most cases on a CPU: rows are computed the same whoever drafts them. `make test-all` runs every case."""
    if device == "cpu" and (dtype != "bf16" or kind not in REHEARSED) and "WHOLE_MATRIX" not in os.environ:
        pytest.skip("it takes long; `make test-all` runs it")


def near_tie(target: Target, prompt: list[int], ids: list[int], plain: list[int], largest: float) -> None:
    """Return whether, where the texts differ, neither token was clearly likelier."""
    at = next((place for place, (ours, theirs) in enumerate(zip(ids, plain, strict=False)) if ours != theirs), None)
    assert at is not None, "one text ends where the other goes on"
    before = [*prompt, *plain[:at]]
    tokens = torch.tensor(before, device=target.device)
    causal = torch.ones(len(before), len(before), dtype=torch.bool, device=target.device).tril_()
    with torch.inference_mode():
        logits = target.forward_tensors(
            tokens, torch.arange(len(before), device=target.device), causal, last=True
        ).logits[-1]
    gap = float((logits[ids[at]] - logits[plain[at]]).abs() / logits.abs().max())
    assert gap <= SLACK * max(largest, torch.finfo(target.dtype).eps), f"{gap:.1e} is no near-tie"


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kind"), [*(("bf16", kind) for kind in MAKERS), *(("fp32", kind) for kind in FAST)])
def test_in_the_exact_form_the_text_is_the_plain_one_to_the_bit(
    demo: Demo, found_of: Found, device: str, record_property: Callable[[str, object], None], dtype: str, kind: str
) -> None:
    rehearsed(device, dtype, kind)
    target, found = demo(dtype, True), found_of(dtype, True)
    asked = [(question, sampling) for sampling in (GREEDY, SAMPLED) for question in questions(device, sampling)]
    plain = [plain_text(target, *one) for one in asked]
    drafted = [spoken(target, kind, *one)[0] for one in asked]
    same = sum(ours == theirs for ours, theirs in zip(drafted, plain, strict=True))
    record_property("replies that are the plain ones", f"{same} of {len(asked)}")
    if not found.bitwise:
        record_property("not bitwise", f"{dtype}: {found.largest:.1e}")
        pytest.skip(f"the exact form in {dtype} is not bitwise here")
    assert drafted == plain
