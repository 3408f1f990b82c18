"""ParallelSpec: what a row sees and predicts, in training and in drafting; its cache; and no text changes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from distributions import assert_drawn_from
from drafting import batch_of, drafting, session_of, states, torch_form, train
from each import each
from golden import matching
from quantized_layers import packed_target
from safetensors.torch import load_file, save_file
from session_replies import reply
from six_words import PROMPT, drawn, joint_chances, six_words
from slow_cases import covering
from tiny_models import (
    CONFIGS,
    FAMILIES,
    SEEDS,
    VOCABULARY,
    Tiny,
    byte_tokenizer,
    prompt_ids,
    read,
    stock_logits,
    stock_reply,
    word_tokenizer,
    write,
)
from transformers import LlamaConfig

from localspec.decoding import session as sessions
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.parallelspec import Drafter
from localspec.drafters.trained import load_drafter
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Text
from localspec.models.drafter_cards import DrafterCard, read_drafter
from localspec.nn import packing as packings
from localspec.nn.linear import Linear
from localspec.nn.linear_bitsandbytes import LLMInt8Linear, NF4Linear
from localspec.nn.target import Target
from localspec.training.drafters.parallelspec import Group, Trainable
from localspec.training.trainable import Batch, make_drafter, save_drafter

Make = Callable[[str], Tiny]
Build = Callable[..., Trainable]

LLAMA = "llama-grouped-dynamic"
PHI = "phi3-grouped-window-partial-rotary"
FORMS = ["medusa", "eagle", "model"]
SOME = [FAMILIES[place] for place in (0, 10, 3, 4, 5, 7)]  # windows, scales or heads differ from the others'
MASK, GREEDY, NODES = 317, Sampling(), 8
every_form = pytest.mark.parametrize("form", FORMS)


def masked_config(kind: type = LlamaConfig, **unlike: Any) -> Any:
    config = kind(**{
        "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": VOCABULARY, "max_position_embeddings": 512, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": 0, **unlike,
    })  # fmt: skip
    config.pard_token = MASK
    return config


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small language model with a mask token."""
    path = tmp_path_factory.mktemp("model") / "small"
    return write(path, masked_config(tie_word_embeddings=True), byte_tokenizer(), seed=2)


@pytest.fixture
def build(small: Path) -> Build:
    """build(target, form): a drafter whose fresh weights are of a size at which nothing that is wrong stays small."""

    def build(target: Target, form: str, spread: float = 0.15, **options: Any) -> Trainable:
        torch.manual_seed(3)
        options = {"form": form, **({"model": str(small)} if form == "model" else {}), **options}
        made = make_drafter("parallelspec", torch_form(target), options)
        assert isinstance(made, Trainable)
        if form != "model":
            for parameter in made.model.layers.parameters():
                parameter.data += torch.randn(parameter.shape) * spread
            made.masks.data = torch.randn(made.masks.shape) * 0.3
            if made.options.rank:
                made.correction.out.weight.data = torch.randn(made.correction.out.weight.shape) * spread
        return made

    return build


def hidden_of(target: Target, tokens: Sequence[int]) -> torch.Tensor:
    """Return the target's states of a text."""
    return states(target, torch.tensor([list(tokens)]))[0]


def one_group(count: int, masks: int, anchor: int) -> Group:
    """Return a text of `count` tokens, and the group of masks of one anchor."""
    depths = torch.arange(1, masks + 1)
    real = torch.arange(count)
    return Group(torch.cat([real, torch.full_like(depths, anchor)]), torch.cat([torch.zeros_like(real), depths]))


@each("correction", [0, 8])
def test_only_the_draft_vocabulary_is_proposed_with_the_logits_of_its_tokens(
    tiny: Make, build: Build, correction: int
) -> None:
    target, text = tiny(PHI).target, prompt_ids(9)
    few = build(target, "medusa", correction=correction, vocabulary=40)
    few.begin_training(torch.arange(VOCABULARY) % 7)
    kept = [id_ for id_ in range(VOCABULARY) if id_ % 7 == 6][:40]
    assert few.kept is not None
    assert few.kept.tolist() == kept
    every = build(target, "medusa", correction=correction, vocabulary=0)
    states = torch.randn(3, target.transformer.config.hidden_size)
    torch.testing.assert_close(few._head(states), every._head(states)[:, kept])
    ours, all_ = drafting(few, target), drafting(every, target)
    if correction:
        near, far = torch.randn(2, states.shape[1]), torch.randn(2, correction)
        torch.testing.assert_close(ours._correction(near, far), all_._correction(near, far)[:, kept])
    for sampling in (GREEDY, Sampling(1.0, seed=1), Sampling(1.0, seed=1, rule="rejection")):
        tree = ours.draft(Context(text, target.cache(0), 12, sampling))
        assert tree.size > 1
        assert {*tree.tokens[1:]} <= {*kept}


# -- rows of training --------------------------------------------------------------------------------------------------


def test_a_mask_sees_the_text_up_to_its_anchor_and_the_masks_of_its_own_group_before_it() -> None:
    """Figure 3, for a text of three tokens, two masks after the first and one after the second."""
    group = Group(torch.tensor([0, 1, 2, 0, 1, 0]), torch.tensor([0, 0, 0, 1, 1, 2]))
    seen = ["a     ", "ab    ", "abc   ", "a  1  ", "ab  1 ", "a  1 2"]
    assert group.mask.tolist() == [[mark != " " for mark in row] for row in seen]
    assert group.positions.tolist() == [0, 1, 2, 1, 2, 2]


@each("form", FORMS)
def test_training_rows_are_drafting_rows(tiny: Make, build: Build, form: str) -> None:
    """Every anchor of a text at once, against a drafter without a cache that sees nothing after its anchor."""
    target, tokens = tiny(PHI).target, prompt_ids(14, seed=1)
    drafter, hidden = build(target, form), hidden_of(target, tokens)
    with torch.no_grad():
        group = drafter.group(torch.ones(14, dtype=torch.bool), torch.Generator())
        assert len(group.depth) == 14 + 12 + 11 + 10 + 9 - 0
        together = drafter.states(torch.tensor(tokens), hidden, group)
        for anchor in range(14):
            end = anchor + 1
            alone = drafter.states(torch.tensor(tokens[:end]), hidden[:end], one_group(end, 4, anchor))
            rows = (group.anchor == anchor).nonzero()[:, 0]
            torch.testing.assert_close(together[rows], alone[anchor:][group.depth[rows]], atol=2e-6, rtol=1e-5)


def test_groups_are_thinned_by_depth_and_by_room(tiny: Make, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    target, loss_mask = tiny(LLAMA).target, torch.ones(402, dtype=torch.bool)
    every = build(target, "medusa").group(loss_mask, torch.Generator())
    assert [int((every.depth == depth).sum()) for depth in range(5)] == [402, 400, 399, 398, 397]
    thinned = build(target, "medusa", drop=0.5).group(loss_mask, torch.Generator())
    kept = [int((thinned.depth == depth).sum()) for depth in range(5)]
    assert kept[0] == 402
    for found, wanted in zip(kept[1:], (200, 100, 80, 80), strict=True):  # never less than a fifth
        assert wanted - 4 <= found <= wanted
    anchors = [{*thinned.anchor[thinned.depth == depth].tolist()} for depth in range(5)]
    assert all(deep <= shallow for shallow, deep in pairwise(anchors))
    loss_mask[:] = False
    loss_mask[300:310] = True  # a short reply after a long prompt
    few = build(target, "medusa").group(loss_mask, torch.Generator())
    assert {*few.anchor[few.depth > 0].tolist()} == {*range(298, 308)}
    monkeypatch.setattr("localspec.training.drafters.parallelspec.ROWS", 500)
    assert len(build(target, "medusa").group(torch.ones(402, dtype=torch.bool), torch.Generator()).depth) <= 804
    different = [build(target, "medusa").group(torch.ones(402, dtype=torch.bool), random) for random in (
        torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    )]  # fmt: skip
    assert not torch.equal(different[0].anchor, different[1].anchor)


def corrected(drafter: Trainable, state: torch.Tensor, token: int) -> torch.Tensor:
    """s + B SiLU(N e / rms(e) + b + F s), written out."""
    e, own = drafter.target.embed(torch.tensor([token]))[0], drafter.correction
    x = own.near.weight @ (e / e.square().mean().add(torch.finfo(torch.float32).eps).sqrt()) + own.near.bias
    x = x + own.far.weight @ state
    return state + own.out.weight @ (x * x.sigmoid())


@pytest.mark.parametrize(
    ("form", "distill", "correction"),
    [("eagle", True, 5), ("medusa", False, 5), ("medusa", True, 0), ("model", False, 5), ("model", True, 0)],
)
def test_the_loss_is_that_of_the_paper(tiny: Make, build: Build, form: str, distill: bool, correction: int) -> None:
    """Equations 3 and 4, one anchor and one token at a time, for texts of which not every token counts.

    A mask's state is corrected by the token that the text has in its place.
    """
    target, k = tiny(LLAMA).target, 3
    drafter = build(target, form, masks=k, decay=0.7, correction=correction)
    texts = [prompt_ids(9, seed=1), prompt_ids(9, seed=2)]
    counts = torch.ones(2, 9, dtype=torch.bool)
    counts[0, :3] = counts[1, 7:] = False
    hidden = torch.stack([hidden_of(target, text) for text in texts])
    lesson = drafter.loss(Batch(torch.tensor(texts), counts, hidden, distill))
    wanted, losses = torch.zeros(()), [[] for _ in range(k + 1)]
    with torch.no_grad():
        for text, worth, seen in zip(texts, counts, hidden, strict=True):
            for anchor in range(9):
                row = torch.tensor(text[: anchor + 1])
                states = drafter.states(row, seen[: anchor + 1], one_group(anchor + 1, k, anchor))[anchor:]
                for depth in range(k + 1):
                    label = anchor + depth + 1
                    if label > 8 or not worth[label] or (depth and not worth[anchor + 2]):
                        continue
                    if depth and drafter.options.rank:
                        states[depth] = corrected(drafter, states[depth], text[label - 1])
                    logits = (
                        drafter._head(states[depth])[None]
                        if form != "model"
                        else drafter.model.lm_head(states[depth])[None]
                    )
                    teacher = target.head(seen[label - 1]).softmax(-1)
                    loss = F.cross_entropy(logits, teacher[None] if distill else torch.tensor([text[label]]))
                    if form == "eagle":
                        loss = 0.1 * loss + F.smooth_l1_loss(states[depth], seen[label - 1])
                    losses[depth].append(loss)
        for depth, found in enumerate(losses):
            wanted = wanted + 0.7**depth * torch.stack(found).mean()
    assert [found.count for found in lesson.depth_losses] == [len(found) for found in losses]
    torch.testing.assert_close(lesson.loss, wanted, rtol=1e-5, atol=1e-5)
    lesson.loss.backward()
    untouched = {name for name, weight in drafter.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert untouched <= {"model.embed_tokens", "model.lm_head.weight"} - (
        {"model.embed_tokens"} if form == "model" else set()
    )
    assert all(weight.grad is None for weight in target.transformer.parameters())


def test_a_batch_that_teaches_nothing_has_a_loss_of_nothing(tiny: Make, build: Build) -> None:
    target = tiny(LLAMA).target
    tokens = torch.tensor([prompt_ids(5)])
    lesson = build(target, "medusa").loss(
        Batch(tokens, torch.zeros(1, 5, dtype=torch.bool), torch.zeros(1, 5, 48), distill=False)
    )
    lesson.loss.backward()
    assert lesson.loss == 0
    assert [found.count for found in lesson.depth_losses] == [0] * 5


# -- drafting ----------------------------------------------------------------------------------------------------------


class Checked:
    """A drafter that compares each forward with its training form over the whole text, without a cache."""

    def __init__(self, weights: Trainable, drafter: Drafter) -> None:
        self.drafter, self.drafts, self.rows = drafter, 0, list[int]()
        original, run = drafter._predict, drafter._model.read_rows

        def predict(committed: Sequence[int], masks: int) -> torch.Tensor:
            self.rows.clear()
            states = original(committed, masks)
            count, target = len(committed), drafter.target
            group = one_group(count, masks, count - 1)
            with torch.no_grad():
                wanted = weights.states(torch.tensor(committed), hidden_of(target, committed), group)[count - 1 :]
            torch.testing.assert_close(torch.as_tensor(states), wanted, atol=3e-5, rtol=1e-4)
            assert drafter._cache.length == count, "real tokens, all of them, and nothing else"
            self.drafts += 1
            return states

        def read_rows(inputs: Any, *more: Any) -> Any:
            self.rows.append(len(inputs))
            return run(inputs, *more)

        drafter._predict, drafter._model.read_rows = predict, read_rows  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, SOME))
def test_every_draft_rests_on_the_right_rows_whatever_happened_before(tiny, build, monkeypatch, name, form):
    monkeypatch.setattr(sessions, "CHUNK", 7)
    monkeypatch.setattr("localspec.drafters.parallelspec.CHUNK", 9)
    model, prompt = tiny(name), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    weights = build(model.target, form)
    train(weights, batch_of(weights.target, [prompt + text]), steps=25, rate=3e-3)
    drafter = drafting(weights, model.target)
    checked = Checked(weights, drafter)
    session = session_of(model.target, drafter, Budget(NODES))
    ids, statistics = reply(session, prompt, 20)
    assert ids == text[:20]
    assert 1 < statistics.acceptance_length < 5, "some of the drafts are accepted in part"
    assert len(checked.rows) == 1, "one forward a draft"
    second = [*prompt, *ids[:11], *prompt_ids(9, seed=5)]  # into the middle of the reply
    stream = session.generate(second, GREEDY, Limits(max_tokens=20))
    said = 0
    for event in stream:  # abandoned after a few tokens, probably inside a path
        said += len(event.tokens) if isinstance(event, Text) else 0
        if said > 4:
            break
    stream.close()
    whole = list(session.tokens)
    assert drafter._features is None or len(drafter._features) <= len(whole)
    assert drafter._cache.length <= len(whole)
    assert reply(session, [*whole, *prompt_ids(4, seed=6)], 12)[1].reused_tokens == len(whole) - 1
    third, statistics = reply(session, prompt, 20)  # from the prompt again
    assert third == text[:20]
    assert statistics.reused_tokens == len(prompt) - 1
    assert reply(session, prompt_ids(6, seed=8), 12)[1].reused_tokens == 0
    assert checked.drafts > 15


@pytest.mark.slow
@every_form
def test_a_pause_is_made_up_for_and_a_budget_of_nothing_costs_nothing(tiny: Make, build: Build, form: str) -> None:
    target, prompt = tiny(LLAMA).target, prompt_ids(12, seed=3)
    weights = build(target, form)
    drafter = drafting(weights, target)
    checked = Checked(weights, drafter)
    session = session_of(target, drafter, Budget(0))
    plain, _ = reply(session, prompt, 10)
    assert (checked.drafts, drafter._cache.length) == (0, 0)
    session.budget = Budget(3)
    reply(session, [*prompt, *plain, 7, 8], 10)
    assert checked.drafts > 0
    assert max(checked.rows) <= 5 + 2, "the root, what was accepted, and no more masks than there are nodes for"


def test_without_a_state_there_is_only_the_root(tiny: Make, build: Build) -> None:
    target = tiny(LLAMA).target
    drafter = drafting(build(target, "eagle"), target)
    context = Context([5, 6, 7], target.cache(8), 4, GREEDY)
    assert drafter.draft(context).size == 1
    drafter.rewind(0)
    assert drafter.draft(replace(context, nodes=0)).size == 1


@pytest.mark.parametrize(
    ("form", "sampling"), [("medusa", GREEDY), ("eagle", Sampling(0.8, top_p=0.9, seed=3))], ids=str
)
def test_a_node_is_foreseen_by_the_token_above_it(tiny: Make, build: Build, form: str, sampling: Sampling) -> None:
    """The candidates after each path are those of the training form's state, corrected by the path's last token."""
    target, prompt = tiny(LLAMA).target, prompt_ids(12, seed=3)
    weights = build(target, form, spread=0.5)
    drafter = drafting(weights, target)
    session = session_of(target, drafter, Budget(NODES))
    reply(session, prompt, 6)
    committed = list(session.tokens)
    drafter.draft(Context(committed, session.cache, 16, sampling))
    found = drafter._trees._candidates
    assert len(found) > 3 and {len(path) for path in found} >= {0, 1, 2}, "several nodes have candidates"
    with torch.no_grad():
        group = one_group(len(committed), 4, len(committed) - 1)
        states = weights.states(torch.tensor(committed), hidden_of(target, committed), group)[len(committed) - 1 :]
        for path, candidates in found.items():
            state = corrected(weights, states[len(path)], path[-1]) if path else states[0]
            logits = drafter.compute.logits(drafter.compute.rows(torch_form(target).head(state)[None].numpy()))
            count = 8 if path else 16
            [wanted] = logits.candidates([len(committed) + len(path)], count, sampling)
            assert [token for token, _ in candidates] == [token for token, _ in wanted]
            assert [chance for _, chance in candidates] == pytest.approx([chance for _, chance in wanted], abs=1e-4)
    assert len({tuple(candidates) for path, candidates in found.items() if len(path) == 1}) > 1, "the token matters"


def test_a_layer_begins_as_one_of_the_targets(tiny: Make) -> None:
    """A copy of the target's last or first layer, or a new one; of a packed target the rounded weights."""
    target = tiny(LLAMA).target
    layers, name = target.transformer.layers, "gate_up_proj"
    for begin, layer in (("last", layers[-1]), ("first", layers[0])):
        made = make_drafter("parallelspec", target, {"begin": begin})
        assert torch.equal(made.model.layers[0].gate_up_proj.weight, getattr(layer, name).weight)
        assert torch.equal(made.model.layers[0].input_layernorm, layer.input_layernorm)
        made.model.layers[0].gate_up_proj.weight.data += 1
        assert not torch.equal(made.model.layers[0].gate_up_proj.weight, getattr(layer, name).weight)
    fresh = make_drafter("parallelspec", target, {"begin": "fresh"}).model.layers[0].gate_up_proj.weight
    assert fresh.std() < 0.03 and fresh.shape == layers[-1].gate_up_proj.shape
    several = make_drafter("parallelspec", target, {"layers": len(layers) + 1, "begin": "first"})
    assert torch.equal(several.model.layers[1].gate_up_proj.weight, layers[1].gate_up_proj.weight)
    packed = packed_target(tiny(LLAMA).path, "int4")
    made = make_drafter("parallelspec", packed, {})
    assert torch.equal(made.model.layers[0].gate_up_proj.weight, packed.transformer.layers[-1].gate_up_proj.weight)


def test_a_file_from_before_the_correction_is_read_without_one(tiny: Make, build: Build, tmp_path: Path) -> None:
    target = tiny(LLAMA).target
    save_drafter(build(target, "medusa", correction=0), tmp_path, {})
    old = card(tmp_path)
    before = {name: value for name, value in old.options.items() if name not in ("correction", "begin")}
    again = load_drafter(replace(old, options=before), target)
    assert again.options.correction == 0 and again.options.begin == "fresh"


# -- losslessness ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "name", "trained"),
    covering(FORMS, FAMILIES, [False, True], fast=3) + covering(FORMS, SOME[3:], [True, False], fast=0),
)
def test_greedy_ids_are_those_of_a_plain_loop_over_the_stock_model(tiny, build, name, form, trained):
    model, prompt = tiny(name), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    drafter = build(model.target, form)
    if trained:
        train(drafter, batch_of(drafter.target, [prompt + text]), steps=25, rate=3e-3)
    for nodes in (1, 5, 16):  # the same drafter, in another conversation each time
        ids, statistics = reply(session_of(model.target, drafter, Budget(nodes)), prompt, 40)
        assert ids == text
        assert not trained or statistics.acceptance_length > 1.2
        if statistics.accepted > 0:
            assert statistics.sources["parallelspec"] > 0


@pytest.mark.slow
@every_form
def test_a_seed_gives_the_same_ids_with_and_without_it(tiny: Make, build: Build, form: str) -> None:
    target, prompt = tiny(LLAMA).target, prompt_ids(10, seed=4)
    for seed in (0, 2**63 + 5):
        sampling = Sampling(0.8, top_k=50, top_p=0.95, seed=seed)
        plain, _ = reply(session_of(target, Autoregressive(), Budget(0)), prompt, 24, sampling)
        drafter = build(target, form)
        train(drafter, batch_of(drafter.target, [prompt + plain]), steps=25, rate=3e-3)
        ids, statistics = reply(session_of(target, drafter, Budget(NODES)), prompt, 24, sampling)
        assert ids == plain
        assert statistics.acceptance_length > 1.2


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Return a vocabulary of six, so that every continuation of three tokens can be counted."""
    return six_words(tmp_path_factory.mktemp("model"), read, layers=1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"temperature": 1.0}, {"temperature": 0.8, "top_k": 4}])
def test_by_rejection_three_tokens_have_the_stock_models_joint_distribution(letters, build, shape):
    """Algorithm 1 in whole sessions: the second and third token may come from the first step or from a later one."""
    sampling, draws = Sampling(**shape, rule="rejection"), 250
    drafter = build(letters.target, "medusa", spread=0.5)
    found = drawn(session_of(letters.target, drafter, Budget(5)), PROMPT, sampling, draws)
    assert_drawn_from(joint_chances(letters.stock, PROMPT, sampling), found.counts)
    assert found.steps < 2 * draws, "some drafts are accepted"


# -- that it learns what it should -------------------------------------------------------------------------------------


@pytest.mark.slow
@every_form
def test_a_memorised_text_is_accepted_almost_whole(tiny: Make, build: Build, form: str) -> None:
    model, prompt = tiny(FAMILIES[0]), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    drafter = build(model.target, form, spread=0.0)
    train(
        drafter,
        batch_of(drafter.target, [prompt + text]),
        steps={"medusa": 110, "eagle": 140, "model": 80}[form],
        rate=5e-3,
    )
    ids, statistics = reply(session_of(model.target, drafter, Budget(5)), prompt, 40)
    assert ids == text
    assert statistics.acceptance_length > 5, "five drafted tokens and the bonus token are the most"


# -- the form that is a small language model ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_mask_token_and_what_only_one_of_the_two_has_are_never_proposed(tiny: Make, tmp_path: Path) -> None:
    target, prompt = tiny(LLAMA).target, prompt_ids(8, seed=9)
    for vocabulary, token in ((352, 340), (304, 303), (VOCABULARY, 299)):
        config = masked_config(vocab_size=vocabulary)
        config.pard_token = token
        path = write(tmp_path / str(vocabulary), config, byte_tokenizer(), seed=vocabulary)
        drafter = Drafter.from_model(path, target)
        assert drafter.depth == 12
        logits = torch.as_tensor(drafter._logits(drafter._predict(prompt, 7)))
        assert logits.shape == (8, VOCABULARY)
        possible = logits.isfinite()
        assert possible[:, : min(300, token)].all()
        assert not possible[:, min(300, token) :].any(), "the tokenizer has 300 tokens"
        stock = stock_logits(read(path).stock, [*prompt, *[token] * 7])[7:]  # the masks are one token again and again
        torch.testing.assert_close(logits[:, : min(300, token)], stock[:, : min(300, token)], atol=1e-4, rtol=1e-4)
        ids, _ = reply(session_of(target, drafter, Budget(NODES)), prompt, 8)
        assert ids == reply(session_of(target, Autoregressive(), Budget(0)), prompt, 8)[0]


@pytest.mark.slow
def test_a_published_model_drafts_as_many_tokens_as_are_requested(tiny: Make, small: Path) -> None:
    target, prompt = tiny(LLAMA).target, prompt_ids(8, seed=9)
    for asked, depth in ((1, 2), (9, 9), (20, 20), (64, 33)):
        drafter = load_drafter(read_drafter(small), target, depth=asked)
        session = session_of(target, drafter, Budget(64))
        checked = reply(session, prompt, 6)[0]
        assert drafter.depth == depth and checked == stock_reply(tiny(LLAMA).stock, prompt, 6)
        tree = drafter.draft(Context(session.tokens, session.cache, 64, GREEDY))
        assert max(tree.depth) <= depth and len(drafter._candidates) == depth


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(1.0, seed=3), Sampling(0.9, top_p=0.9, seed=4, rule="rejection")]
)
def test_where_the_small_model_is_the_target_itself_its_first_token_is_always_right(tiny, tmp_path, sampling):
    """Drawn text meets the same noise at the same position, and a draw from p is never refused by p."""
    target, config = tiny(LLAMA).target, CONFIGS[LLAMA]()
    config.pard_token = MASK
    drafter = Drafter.from_model(write(tmp_path / "same", config, byte_tokenizer(), seed=SEEDS[LLAMA]), target)
    drafter._never = drafter.compute.rows(np.zeros((1, VOCABULARY), np.float32))  # nor is what the target may say
    _, statistics = reply(session_of(target, drafter, Budget(1)), prompt_ids(10, seed=4), 24, sampling)
    assert statistics.drafted == statistics.accepted > 4


@pytest.mark.slow
def test_a_model_that_cannot_draft_for_this_target_is_refused_with_the_reason(tiny: Make, tmp_path: Path) -> None:
    target = tiny(LLAMA).target
    with pytest.raises(LocalspecError, match=matching("names_mask_token_pard_token_none")) as refused:
        Drafter.from_model(tiny(LLAMA).path, target)
    assert refused.value.exit_code == 1
    for token in (VOCABULARY, -1, True, "317"):
        config = masked_config()
        config.pard_token = token
        path = write(tmp_path / f"token {token}", config, byte_tokenizer(), seed=0)
        with pytest.raises(LocalspecError, match=matching("names_no_mask_token")):
            Drafter.from_model(path, target)
    path = write(tmp_path / "others", masked_config(), word_tokenizer(["a", "b", "c"]), seed=0)
    with pytest.raises(UsageMistake, match="its token 0 is 'a', and the target's is '<|endoftext|>'"):
        Drafter.from_model(path, target)
    config = masked_config(vocab_size=290)
    config.pard_token = 280
    path = write(tmp_path / "short", config, byte_tokenizer(290), seed=0)
    with pytest.raises(UsageMistake, match=matching("knows_290_tokens_target_s")):
        Drafter.from_model(path, target)


# -- options and files -------------------------------------------------------------------------------------------------


@each(
    "changed, said",
    [
        ({"vocab_size": "x"}, "vocab_size = 'x'"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0"),
        ({"hidden_size": -64}, "hidden_size = -64"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"head_dim": 10**12}, "head_dim"),
        ({"num_key_value_heads": 3}, "cannot be used"),
        ({"head_dim": 5}, "cannot"),
        ({"rope_theta": "x"}, "cannot be used"),
        ({"max_position_embeddings": None}, "cannot be used"),
        ({"vocab_size": None}, "cannot be used"),
        ({"hidden_act": "gelu"}, "'gelu'"),
    ],
)
def test_an_impossible_small_model_is_reported(tiny: Make, changed: dict[str, Any], said: str) -> None:
    config = {
        "model_type": "llama", "pard_token": 1, "vocab_size": 320, "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2,
    }  # fmt: skip
    target = tiny(LLAMA).target
    assert make_drafter("parallelspec", target, {"form": "model", "config": json.dumps(config)}).depth == 5
    with pytest.raises(LocalspecError, match=said) as refused:
        make_drafter("parallelspec", target, {"form": "model", "config": json.dumps({**config, **changed})})
    assert str(refused.value).count("\n") == 0


def card(path: Path) -> DrafterCard:
    about = json.loads((path / "drafter.json").read_text())
    return DrafterCard(about["kind"], path, about["options"], "", "", 0, 0, about)


@pytest.mark.slow
@every_form
def test_a_saved_drafter_drafts_the_same(tiny: Make, build: Build, tmp_path: Path, form: str) -> None:
    target, prompt = tiny(LLAMA).target, prompt_ids(9, seed=1)
    drafter = build(target, form, masks=3)
    drafter.masks.data += 0.1
    save_drafter(drafter, tmp_path, {})
    again = load_drafter(card(tmp_path), target)
    assert isinstance(again, Drafter)
    assert again.options == drafter.options
    assert again.nbytes == drafting(drafter, target).nbytes
    names = load_file(tmp_path / "drafter.safetensors").keys()
    assert ("model.embedding" in names) == (form == "model"), "what is the target's is not saved"
    assert "model.head.weight" not in names
    trees = []
    for made in (drafting(drafter, target), again):
        session = session_of(target, made, Budget(NODES))
        reply(session, prompt, 6)
        trees.append(made.draft(Context(session.tokens, session.cache, NODES, GREEDY)))
    assert trees[0].size == NODES + 1
    assert (trees[0].tokens, trees[0].parents) == (trees[1].tokens, trees[1].parents)
    weights = load_file(tmp_path / "drafter.safetensors")
    del weights["masks"]
    save_file(weights, tmp_path / "drafter.safetensors")
    with pytest.raises(LocalspecError, match=matching("masks_is_missing")):
        load_drafter(card(tmp_path), target)


@pytest.mark.slow
@each("form", FORMS)
def test_loaded_weights_take_on_the_targets_precision_and_trained_ones_do_not(tiny, build, tmp_path, form):
    target, prompt = Target.load(tiny(LLAMA).path, dtype=torch.bfloat16), prompt_ids(9, seed=1)
    drafter = build(target, form)
    save_drafter(drafter, tmp_path, {})
    again = load_drafter(card(tmp_path), target)
    for made in (drafting(drafter), again):
        session = session_of(target, made, Budget(NODES))
        reply(session, prompt, 6)
        assert {weight.dtype for weight in made._model._transformer.parameters()} == {torch.bfloat16}
        assert made._masks.dtype == torch.bfloat16
    assert {weight.dtype for weight in drafter.parameters()} == {torch.float32}
    train(drafter, batch_of(drafter.target, [prompt]), steps=1)


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("bitsandbytes"), reason="no bitsandbytes")
@each("packing", ["int8", "nf4", "none"])
def test_a_published_small_model_of_a_packed_target_is_in_int8(tiny, small, monkeypatch, packing):
    """The reference kernels for CPUs stand in for an NVIDIA GPU; the text stays the target's."""
    monkeypatch.setattr(packings, "_CLASSES", {("int8", "cpu"): LLMInt8Linear, ("nf4", "cpu"): NF4Linear})
    target, prompt = Target.load(tiny(LLAMA).path, quantize=packing), prompt_ids(12, seed=4)
    drafter = Drafter.from_model(small, target)
    dense = Drafter.from_model(small, Target.load(tiny(LLAMA).path))
    layers = drafter._model._transformer.layers
    assert type(layers[0].qkv_proj) is (Linear if packing == "none" else LLMInt8Linear)
    assert (drafter.nbytes == dense.nbytes) == (packing == "none") and drafter.nbytes <= dense.nbytes
    plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 16)
    ids, statistics = reply(Session(target, drafter, Budget(6)), prompt, 16)
    assert ids == plain and statistics.drafted > 0
