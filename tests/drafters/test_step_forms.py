"""Every drafter where steps have static shapes and are recorded, as on a GPU: the text is the stock model's."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from drafters.test_assistant import GEMMAS, allow_assistants
from drafters.test_assistant import made as assistant
from drafters.test_dflash import made as dflash
from drafters.test_dspark import made as dspark
from drafters.test_on_chains import FORMS
from drafting import drafting, perturbed, session_of, torch_form, watched
from gpu_models import mtp
from numpy.testing import assert_allclose
from recorded_operations import Graph, HostCalls
from session_replies import reply
from tiny_models import FAMILIES, RECURRENT, VOCABULARY, Tiny, prompt_ids, stock_reply

from localspec.choosing.choice import StepForm
from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step
from localspec.decoding.drafter import Context, Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.nn.static_forward import StaticForward
from localspec.nn.target import Target
from localspec.training.trainable import TrainableDrafter, make_drafter

Make = Callable[[str], Tiny]
LLAMA, WINDOW, RECURRING = FAMILIES[0], FAMILIES[1], next(iter(RECURRENT))
WITH_WEIGHTS = {**FORMS, "s3d": ("s3d", {"depth": 3, "kept": "0,2"})}
FORMS_OF_STEPS: tuple[StepForm, ...] = ("eager", "captured")
SAMPLED = (Sampling(0.9, seed=7), Sampling(0.8, top_p=0.95, seed=3), Sampling(1.1, top_k=30, min_p=0.01, seed=5))


def target_of(tiny: Make, name: str, form: StepForm) -> Target:
    target = Target.load(tiny(name).path)
    target.use_step_form(form)
    return target


def drafter_for(target: Target, tiny: Make, kind: str) -> TrainableDrafter | Drafter:
    if kind == "draft model":  # the target itself, which is always right, with its own phrases
        small = Target.load(tiny(LLAMA).path)
        small.use_step_form(target.step_form)
        inner = WithPhrases(Autoregressive(), PhrasePool(small.special_tokens))
        return WithPhrases(DraftModel(small, VOCABULARY, inner, Budget(4)), PhrasePool(target.special_tokens))
    if kind == "mtp":
        return mtp(target)
    torch.manual_seed(0)
    name, options = WITH_WEIGHTS[kind]
    return perturbed(make_drafter(name, torch_form(target), options), 0.1)


CASES: list[Any] = [
    pytest.param(LLAMA, kind, marks=() if kind in ("s3d", "draft model", "medusa") else pytest.mark.slow)
    for kind in (*WITH_WEIGHTS, "draft model")
]
CASES += [pytest.param(WINDOW, kind, marks=pytest.mark.slow) for kind in ("s3d", "parallelspec")]
CASES += [pytest.param(RECURRING, kind, marks=pytest.mark.slow) for kind in ("eagle3", "mtp", "draft model")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_greedy_text_is_the_stock_models(tiny: Make, recorded: type[Graph], name: str, kind: str) -> None:
    prompt = prompt_ids(12, seed=23)
    target = target_of(tiny, name, "captured")
    session = session_of(target, drafter_for(target, tiny, kind), Budget(6))
    ids, statistics = reply(session, prompt, 24)
    assert ids == stock_reply(tiny(name).stock, prompt, 24)
    assert statistics.drafted > 10 and recorded.played > 2 * recorded.made > 0
    again = [*prompt, *ids[:6], *prompt_ids(5, seed=2)]
    assert reply(session, again, 8)[0] == stock_reply(tiny(name).stock, again, 8)
    assert target.step_trouble is target.draft_trouble is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((LLAMA, kind) for kind in ("draft model", "medusa", "semi, lstm", "eagle3")),
        *((WINDOW, "s3d"), (RECURRING, "mtp")),
    ],
)
def test_seeded_text_is_that_of_steps_one_by_one(tiny: Make, recorded: type[Graph], name: str, kind: str) -> None:
    prompt = prompt_ids(12, seed=23)
    eager = target_of(tiny, name, "eager")
    target = target_of(tiny, name, "captured")
    plain = session_of(eager, Autoregressive(), Budget(0))
    session = session_of(target, drafter_for(target, tiny, kind), Budget(6))
    for sampling in SAMPLED:
        assert reply(session, prompt, 20, sampling)[0] == reply(plain, prompt, 20, sampling)[0]
    assert recorded.played > recorded.made > 0


# Operations that a greedy step starts in addition to the recording, and its waits for the device (the target's, too).
HOST = {"none": (8, 1), "s3d": (32, 3), "medusa": (66, 2), "semi": (44, 5), "eagle3": (60, 5), "draft model": (80, 13)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOST)
def test_a_step_asks_little_of_the_host(tiny: Make, recorded: type[Graph], kind: str) -> None:
    """The number of operations does not depend on the layers of a model; a plain step waits once."""
    target = target_of(tiny, LLAMA, "captured")
    target.stop_tokens = frozenset()
    drafter = Autoregressive() if kind == "none" else drafter_for(target, tiny, kind)
    session = session_of(target, drafter, Budget(0 if kind == "none" else 6))
    list(session.generate(prompt_ids(12), Sampling(), Limits(30)))  # all shapes are recorded
    session.cache.reserve(len(session.tokens) + 40)
    (launches, waits), counted = HOST[kind], 0
    for _ in range(12):
        made, played, calls = recorded.made, recorded.played, HostCalls()
        with calls:
            step = decode_step(
                session.target, session.cache, session.drafter, session.tokens, session.budget, Sampling()
            )
        session.tokens += step.committed
        if recorded.made > made:  # of a shape that was not met before
            continue
        counted += 1
        assert calls.launches <= launches and calls.waits <= waits, (calls.launches, calls.waits)
        assert recorded.played > played and (kind != "none" or calls.waits == 1)
    assert counted > 5


@pytest.mark.parametrize("form", ["eager", "static"])
def test_models_of_drafters_have_the_form_of_the_target(tiny, monkeypatch, form):
    target, chain = target_of(tiny, LLAMA, form), StaticForward.chain
    read: list[Any] = []

    def seen(self: StaticForward, *given: Any) -> torch.Tensor:
        read.append(self._transformer)
        return chain(self, *given)

    monkeypatch.setattr(StaticForward, "chain", seen)
    reply(session_of(target, drafter_for(target, tiny, "parallelspec, model"), Budget(4)), prompt_ids(12), 5)
    assert bool(read) == (form == "static") and all(one is not target.transformer for one in read)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle3", "semi", "dflash", "dspark"])
def test_recorded_drafts_are_those_of_steps_one_by_one(tiny, recorded, tmp_path, kind):
    """At each place of a text, whatever was drafted before, and without any operation outside the recording."""
    text = prompt_ids(40, seed=23)
    drafts = []
    for form in FORMS_OF_STEPS:
        target = target_of(tiny, LLAMA, form)
        if kind == "dflash":
            drafter: Any = dflash(replace(tiny(LLAMA), target=target), tmp_path / form, block_size=6)[0]
        elif kind == "dspark":
            drafter = dspark(replace(tiny(LLAMA), target=target), tmp_path / form)[0]
        else:
            drafter = drafting(drafter_for(target, tiny, kind), target)
        drafts.append(watched(drafter))
        session = Session(target, drafter, Budget(6))
        rejecting = Sampling(0.9, seed=4, rule="rejection")
        for length, sampling in ((9, Sampling()), (30, SAMPLED[0]), (12, rejecting), (40, Sampling())):
            reply(session, text[:length], 12, sampling)
        assert target.draft_trouble is None and bool(recorded.made) is (form == "captured")
    assert recorded.played > 5 * recorded.made and len(drafts[0]) > 20
    assert sum(tree.size for _, tree in drafts[0]) > 3 * len(drafts[0])
    for (committed, tree), (same, other) in zip(*drafts, strict=True):
        assert (committed, [*tree.tokens], [*tree.parents]) == (same, [*other.tokens], [*other.parents])
        assert list(tree.chance or ()) == pytest.approx(list(other.chance or ()), rel=1e-3)
        assert (tree.draft_logits is None) is (other.draft_logits is None)
        if tree.draft_logits is not None and other.draft_logits is not None:
            assert_allclose(other.draft_logits.numpy(), tree.draft_logits.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_assistant_reads_the_keys_of_recorded_steps(tiny, recorded, tmp_path, monkeypatch):
    allow_assistants(monkeypatch)
    trees, text = [], prompt_ids(20, seed=23)
    for form in FORMS_OF_STEPS:
        target = target_of(tiny, GEMMAS[0], form)
        drafter = assistant(replace(tiny(GEMMAS[0]), target=target), tmp_path / form)[0]
        trees.append(watched(drafter))
        session = session_of(target, drafter, Budget(6))
        for length in (9, 20):
            assert reply(session, text[:length], 8)[0] == stock_reply(tiny(GEMMAS[0]).stock, text[:length], 8)
    for (committed, tree), (same, other) in zip(*trees, strict=True):
        assert (committed, [*tree.tokens], [*tree.parents]) == (same, [*other.tokens], [*other.parents])
    assert recorded.made and sum(tree.size for _, tree in trees[0]) > 2 * len(trees[0])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), [("eagle3", "captured"), ("dflash", "eager"), ("dflash", "captured")])
def test_a_text_that_there_was_no_memory_to_read_is_read_again(tiny, recorded, tmp_path, kind, form):
    target, trees = target_of(tiny, LLAMA, form), []
    model = replace(tiny(LLAMA), target=target)
    for fails in (True, False):
        if kind == "dflash":
            drafter: Any = dflash(model, tmp_path / str(fails), block_size=6)[0]
            attention = drafter._layers[1].attention
        else:
            drafter = drafting(drafter_for(target, tiny, kind), target)
            attention = drafter._layer.attention
        session = Session(target, drafter, Budget(0))
        reply(session, prompt_ids(30), 3)
        context = Context(session.tokens, session.cache, 6, Sampling())
        if fails:
            write, attention._write = attention._write, no_memory
            with pytest.raises(torch.OutOfMemoryError):
                drafter.draft(context)
            attention._write = write
        trees.append(drafter.draft(context))
    again, first = trees
    assert (list(again.tokens), list(again.parents)) == (list(first.tokens), list(first.parents)) and first.size > 2
    assert list(again.chance) == pytest.approx(list(first.chance), rel=1e-4)


def no_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
