"""Qwen3.5: layers with a state that every token changes. Prompts, chains and rollbacks against the stock model."""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from drafting import drafting
from each import each
from golden import matching
from scripted_drafters import OffChain, Oracle, RandomBranches
from slow_cases import covering
from tiny_models import RECURRENT, RECURRENT_MIXTURES, VOCABULARY, Tiny, prompt_ids, stock_logits, stock_reply
from transformers import DynamicCache

from localspec.choosing.choice import StepForm
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters
from localspec.drafters.ouroboros import Pair, ouroboros
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.families.architecture import weight_map
from localspec.nn.exactness import measure
from localspec.nn.states import KEPT, STATES, State, StateCache
from localspec.nn.target import Target
from localspec.training.drafters.medusa import Trainable as Medusa
from localspec.training.trainable import make_drafter

# Sums in another order, over chunks or token by token: 2e-5 at most here, after hundreds of tokens. What is left out
# moves logits by a hundredth and more.
TOLERANCE = 1e-4
BIASES, SHARED = "qwen3_5-many-heads-biases-tied-half-rotated", "qwen3_5-grouped-shared-keys-interval"


def apart(ours: torch.Tensor, stock: torch.Tensor) -> float:
    """Return the largest difference, in parts of the largest number of the stock model."""
    return float((ours - stock).abs().max() / stock.abs().max())


def read(target: Target, cache: StateCache, tokens: Sequence[int], keep: int | None = None) -> torch.Tensor:
    """Read a chain and keep its first rows, by default all. Return the logits."""
    cache.reserve(cache.length + len(tokens) + target.row_multiple)
    logits = target.forward(DraftTree.chain(tokens), cache).logits.rows.clone()  # a recording is played over them
    cache.keep(range(len(tokens) if keep is None else keep))
    return logits


def states_of(target: Target, cache: StateCache) -> list[State]:
    """Return the state of each recurrent layer after the committed tokens, without changing it."""
    layers = {layer: target.transformer.layers[layer].delta for layer in cache._states}
    return [cache._states[layer].at(cache.length, delta.advance) for layer, delta in layers.items()]


def plain_states(target: Target, tokens: Sequence[int]) -> list[State]:
    """Return the states after reading the tokens one by one."""
    cache = target.cache(len(tokens))
    for token in tokens:
        read(target, cache, [token])
    return states_of(target, cache)


def in_form(model: Tiny, form: StepForm) -> Tiny:
    """Return the same model with a target that computes steps in this form."""
    if form == "eager":
        return model
    target = Target.load(model.path)
    target.use_step_form(form)
    return replace(model, target=target)


def cached(target: Target) -> StateCache:
    cache = target.cache(0)
    assert isinstance(cache, StateCache)
    return cache


# -- numbers -----------------------------------------------------------------------------------------------------------


@each("name", RECURRENT)
@each("count", [60, 150])
def test_logits_and_hidden_states_of_a_prompt_are_the_stock_models(tiny, name, count):
    model, tokens = tiny(name), prompt_ids(count)
    causal = torch.ones(count, count, dtype=torch.bool).tril()
    with torch.no_grad():
        output = model.target.forward_tensors(torch.tensor(tokens), torch.arange(count), causal)
        hidden = model.stock.model(torch.tensor([tokens])).last_hidden_state[0]
    assert apart(output.logits, stock_logits(model.stock, tokens)) < TOLERANCE
    assert apart(output.hidden, hidden) < TOLERANCE


@pytest.mark.slow
@each("name", [*RECURRENT, *RECURRENT_MIXTURES])
def test_a_prompt_in_chunks_gives_the_stock_models_logits_and_states(tiny, name):
    model, tokens, cache = tiny(name), prompt_ids(330, seed=1), cached(tiny(name).target)
    ends = (0, 7, 8, 30, 170, 171, 299, 330)  # above and below the limit of row by row
    rows = [read(model.target, cache, tokens[a:b]) for a, b in pairwise(ends)]
    assert cache.length == 330
    assert apart(torch.cat(rows), stock_logits(model.stock, tokens)) < TOLERANCE
    stock = DynamicCache(config=model.stock.config)
    with torch.no_grad():
        model.stock(torch.tensor([tokens]), past_key_values=stock, use_cache=True)
    taps = model.stock.config.linear_conv_kernel_dim
    kinds = model.stock.config.layer_types
    theirs = [layer for layer, kind in zip(stock.layers, kinds, strict=True) if kind == "linear_attention"]
    for ours, layer in zip(states_of(model.target, cache), theirs, strict=True):
        assert ours.length == 330
        assert apart(ours.matrices, layer.recurrent_states[0][0]) < TOLERANCE
        assert apart(ours.tail, layer.conv_states[0][0].T[1 - taps :]) < TOLERANCE


@pytest.mark.slow
@each("name", RECURRENT)
def test_gradients_and_a_batch_without_a_cache_are_the_stock_models(tiny, name):
    model = tiny(name)
    target, tokens = Target.load(model.path), torch.tensor([prompt_ids(70, seed=seed) for seed in (7, 8)])
    direction = torch.randn(2, 70, VOCABULARY, generator=torch.Generator().manual_seed(0))
    target.transformer.requires_grad_(True)
    logits = target.forward_tensors(tokens, torch.arange(70), torch.ones(70, 70, dtype=torch.bool).tril()).logits
    (logits * direction).sum().backward()
    model.stock.zero_grad()
    stock = model.stock(tokens, use_cache=False).logits
    (stock * direction).sum().backward()
    theirs = {part: parameter.grad for part, parameter in model.stock.named_parameters()}
    ours = dict(target.transformer.named_parameters())
    assert apart(logits.detach(), stock.detach()) < TOLERANCE
    for part, made_of in weight_map(target.transformer.config).items():
        expected = torch.cat([theirs[piece] for piece, _ in made_of])
        assert apart(ours[part].grad, expected) < 1e-4, part


@pytest.mark.slow
@each("name", RECURRENT)
def test_what_is_saved_is_read_by_the_stock_model_bit_for_bit(tiny, name, tmp_path):
    model = tiny(name)
    model.target.save(tmp_path / "again")
    before, after = model.stock.state_dict(), type(model.stock).from_pretrained(tmp_path / "again").state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[part], after[part]) for part in before)


@pytest.mark.slow
def test_in_bf16_the_state_stays_in_fp32_and_logits_are_close(tiny):
    target, tokens = Target.load(tiny(SHARED).path, dtype=torch.bfloat16), prompt_ids(50)
    cache = cached(target)
    logits = torch.cat([read(target, cache, tokens[:20]), *(read(target, cache, [token]) for token in tokens[20:])])
    assert all(state.matrices.dtype == torch.float32 for state in states_of(target, cache))
    stock, rounded = tiny(SHARED).stock, copy.deepcopy(tiny(SHARED).stock).bfloat16()
    want = stock_logits(stock, tokens)
    assert apart(logits.float(), want) < 2 * apart(stock_logits(rounded, tokens).float(), want) < 0.5


# -- rollbacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), covering(RECURRENT, ["eager", "static", "captured"]))
def test_rejected_drafts_leave_no_trace_in_logits_or_states(tiny, recorded, name, form):
    model, choose = in_form(tiny(name), form), random.Random(0)
    text, cache = prompt_ids(420, seed=3), cached(model.target)
    read(model.target, cache, text[:9])
    rows, at = [], 9
    while at < 400:
        right, wrong = choose.choice([1, 1, 2, 4, 9]), choose.choice([0, 3, 7])
        right = min(right, 400 - at)
        drafted = [
            *text[at : at + right],
            *((token + 1) % VOCABULARY for token in text[at + right : at + right + wrong]),
        ]
        rows.append(read(model.target, cache, drafted, keep=right)[:right])
        at += right
    want = stock_logits(model.stock, text[:400])
    assert apart(torch.cat(rows), want[9:]) < TOLERANCE
    for ours, plain in zip(states_of(model.target, cache), plain_states(model.target, text[:400]), strict=True):
        assert apart(ours.matrices, plain.matrices) < TOLERANCE
    held = [len(one._states) for one in cache._states.values()]
    assert max(held) <= STATES and len(held) > 0 and bool(recorded.played) is (form == "captured")
    assert all(len(one._rows) == 2 * KEPT for one in cache._states.values())


@pytest.mark.slow
@each("name, form", [(BIASES, "eager"), (SHARED, "static")])
def test_any_length_of_late_can_be_gone_back_to_and_any_before_about(tiny, name, form):
    model, choose = in_form(tiny(name), form), random.Random(1)
    text = prompt_ids(330, seed=4)
    want = stock_logits(model.stock, text)
    cache = cached(model.target)
    read(model.target, cache, text[:20])
    for token in text[20:320]:
        read(model.target, cache, [token])
    first = next(iter(cache._states.values()))._first
    assert 0 < first <= 320 - KEPT, "what was read long ago is not kept"
    for length in (320, 319, 310, 270, 320 - KEPT, first + 1):  # the last from the state that was made there
        cache.truncate(length)
        assert cache.length == length
        assert (
            apart(read(model.target, cache, text[length : length + 5], keep=0), want[length : length + 5]) < TOLERANCE
        )
    for _ in range(6):  # far back: to a state that is held, from which the text is read again
        length = choose.randrange(1, 120)
        cache.truncate(min(length, cache.length))
        reached = cache.length
        assert reached <= length
        assert apart(read(model.target, cache, text[reached:320]), want[reached:320]) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), [(SHARED, "static"), (BIASES, "captured")])
def test_what_was_read_otherwise_in_between_is_not_read_again(tiny, recorded, name, form):
    text, model, choose = prompt_ids(700, seed=5), in_form(tiny(name), form), random.Random(2)
    ours, plain = cached(model.target), cached(tiny(name).target)
    for turn in range(60):
        rows = choose.choice([1, 2, 3, 7, 16, 1, 40])
        kept = choose.randrange(1, rows + 1)
        new = [(token + turn) % VOCABULARY for token in text[ours.length : ours.length + rows]]
        found = [read(one, cache, new, kept) for one, cache in ((model.target, ours), (tiny(name).target, plain))]
        assert apart(*found) < TOLERANCE, turn
        if turn % 7 == 5:  # a part of a reply, or the last rows, are rolled back
            length = max(ours.length - choose.choice([1, 2, 30]), 0)
            for cache in (ours, plain):
                cache.truncate(length)
        assert ours.length == plain.length
    assert bool(recorded.played) is (form == "captured")
    for one, other in zip(states_of(model.target, ours), states_of(tiny(name).target, plain), strict=True):
        assert apart(one.matrices, other.matrices) < TOLERANCE and one.length == other.length


def test_rows_of_a_draft_before_are_not_those_of_a_longer_one(tiny):
    """One token of a draft is kept; then two of a longer draft, computed as one: as many as the first draft had."""
    text, model = prompt_ids(60, seed=5), in_form(tiny(SHARED), "static")
    cache = cached(model.target)
    read(model.target, cache, text[:9])
    read(model.target, cache, [text[9], 3, 4, 5, 6], keep=1)
    read(model.target, cache, [*text[10:12], *[7] * 30], keep=2)
    assert apart(read(model.target, cache, text[12:15]), stock_logits(model.stock, text[:15])[12:]) < TOLERANCE


@pytest.mark.slow
def test_old_states_become_sparser_and_the_first_stays(tiny):
    target, cache = tiny(SHARED).target, cached(tiny(SHARED).target)
    for token in prompt_ids(300):
        read(target, cache, [token])
    lengths = [state.length for state in cache._states[0]._states]
    assert lengths[0] == 0 and lengths[-1] == 300 and len(lengths) == STATES
    late = [length for length in lengths if length >= 300 - KEPT]
    assert late[-2:] == [299, 300] and len(late) >= 4, lengths
    full = cache.nbytes
    for token in prompt_ids(100):
        read(target, cache, [token])
    [slots] = cache._slots
    assert cache.nbytes - full == slots.nbytes - slots[:, :, :, :512].nbytes, "states take no more"


def test_a_forward_that_failed_leaves_the_text_as_it_was(tiny, monkeypatch):
    model, text = tiny(SHARED), prompt_ids(200)
    cache = cached(model.target)
    read(model.target, cache, text[:20])
    for rows in (150, 5):  # a prompt's chunk, and a draft
        with monkeypatch.context() as patch:
            patch.setattr(model.target.transformer.layers[3].delta, "forward", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                read(model.target, cache, [7] * rows)
        cache.truncate(20)
        assert cache.length == 20
        logits = read(model.target, cache, text[20:30], keep=0)
        assert apart(logits, stock_logits(model.stock, text[:30])[20:]) < TOLERANCE


def test_a_branch_is_no_text_that_it_can_read(tiny):
    target = tiny(SHARED).target
    tree = DraftTree([5, 6, 7, 8, 9], [-1, 0, 0, 1, 3], probe=[False, False, False, False, True])
    with pytest.raises(AssertionError, match=matching("chains_alone")):
        target.forward(tree, target.cache(20))
    assert not target.branches
    assert target.aligned(tree, 0).tokens == [5, 6, 8], "the chain of first children, without probes"
    fine = DraftTree.chain([5, 6, 7])
    assert target.aligned(fine, 0) is fine


# -- drafts ------------------------------------------------------------------------------------------------------------

Build = Callable[[Target, Target, list[int]], Drafter]


def pieced(target: Target, small: Target) -> Drafter:
    pool = PhrasePool(target.special_tokens, vocabulary=VOCABULARY)
    pair = Pair(target.special_tokens, VOCABULARY, small, pool)
    return ouroboros(pair, Hyperparameters(), None, True)


def untrained(target: Target) -> Drafter:
    torch.manual_seed(0)
    drafter = make_drafter("medusa", target, {"heads": 3})
    assert isinstance(drafter, Medusa)
    found: Drafter = drafting(drafter)
    return found


DRAFTERS: dict[str, Build] = {
    "none": lambda target, small, text: Autoregressive(),
    "phrases": lambda target, small, text: WithPhrases(Autoregressive(), PhrasePool(target.special_tokens)),
    "oracle": lambda target, small, text: Oracle(text),
    "off the chain": lambda target, small, text: OffChain(text),
    "random branches": lambda target, small, text: RandomBranches(text, seed=len(text)),
    "medusa": lambda target, small, text: untrained(target),
    "itself": lambda target, small, text: DraftModel(target, VOCABULARY, Autoregressive(), Budget(0), 5),
    "draft model": lambda target, small, text: DraftModel(small, VOCABULARY, Autoregressive(), Budget(0), 5),
    "ouroboros": lambda target, small, text: pieced(target, target),
}


def reply(session: Session, prompt: Sequence[int], sampling: Sampling, count: int) -> list[int]:
    *_, done = session.generate(prompt, sampling, Limits(count))
    assert session.cache.length == len(session.tokens) - 1, "the reply's end can be gone back to"
    return [*done.statistics.token_ids]


class Flat:
    def at(self, rows: int, context: int) -> float:
        return 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "drafter"), covering(RECURRENT, DRAFTERS, fast=2))
def test_greedy_ids_are_those_of_a_plain_loop_over_the_stock_model(tiny, name, drafter):
    model, prompt = tiny(name), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    assert len(text) == 40 and len(set(text)) > 12, "a text that circles would hide what goes wrong"
    small = tiny(next(one for one in RECURRENT if one != name)).target
    for costs in (None, Flat()):
        made = DRAFTERS[drafter](model.target, small, [*prompt, *text])
        session = Session(model.target, made, Budget(8, costs, model.target.branches))
        assert reply(session, prompt, Sampling(), 40) == text
        statistics = session.statistics
        assert statistics is not None
        if drafter in ("oracle", "itself") and costs is None:  # otherwise a busy machine may switch drafts off
            assert statistics.acceptance_length > 2, "right drafts are accepted"


def test_a_budget_takes_the_path_that_promises_most(tiny):
    """It reports so for trees that branch: a wrong first child must not hide the others."""
    parents, chance = [-1, 0, 0, 2, 3, 0], [1.0, 0.5, 0.4, 0.9, 0.9, 0.1]
    tree = DraftTree([1, 2, 3, 4, 5, 6], parents, ["a"] * 6, chance=chance)
    for costs in (None, Flat()):
        found = Budget(8, costs, branches=False).prune(tree, 10)
        assert (list(found.tokens), list(found.parents)) == ([1, 3, 4, 5], [-1, 0, 1, 2])
        assert Budget(8, costs).prune(tree, 10).size == 6, "what branches takes all of it"
    probes = DraftTree([1, 2, 3], [-1, 0, 1], probe=[False, True, True])
    assert Budget(8, None, branches=False).prune(probes, 10).size == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sampling"), covering(RECURRENT, [Sampling(), Sampling(0.9, seed=3)]))
def test_a_later_turn_that_changes_the_text_is_as_if_it_were_the_first(tiny, name, sampling):
    """Turns end inside a draft, shortly before, and so far back that only states are left."""
    target = tiny(name).target
    prompt = prompt_ids(160, seed=9)
    session = Session(target, RandomBranches(prompt), Budget(8, branches=False))
    said = [*prompt, *reply(session, prompt, sampling, 30)]
    for shared in (len(said), len(said) - 3, 150, 40):
        later = [*said[:shared], *prompt_ids(12, seed=shared)]
        *_, done = session.generate(later, sampling, Limits(20))
        fresh = Session(target, Autoregressive(), Budget(0))
        assert [*done.statistics.token_ids] == reply(fresh, later, sampling, 20), shared
        assert done.statistics.reused_tokens <= shared
        if shared > 150:
            assert done.statistics.reused_tokens >= shared - 1, "what was read late is not read again"
        session.generate(said, sampling, Limits(1))


# -- to the bit --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each("name", RECURRENT)
@each("threads", [1, 2])
def test_the_recurrent_part_gives_a_row_the_same_bits_however_rows_are_read(tiny, name, threads):
    """The state has the same bits when rows are rolled back, on any CPU, because it uses no matrix product."""
    target, before = Target.load(tiny(name).path, exact=True), torch.get_num_threads()
    layer = next(iter(cached(target)._states))
    sizes, advance = target.transformer.config.delta, target.transformer.layers[layer].delta.advance
    assert sizes is not None
    rows = torch.randn(60, sizes.read, generator=torch.Generator().manual_seed(0))
    one, other = cached(target)._states[layer], cached(target)._states[layer]
    with torch.inference_mode():
        want = torch.cat([one.read(at, rows[at : at + 1], advance) for at in range(60)])
        torch.set_num_threads(threads)
        try:
            at, choose = 0, random.Random(0)
            while at < 60:
                some = rows[at : at + choose.randrange(1, 20)].clone()
                right = choose.randrange(1, len(some) + 1)
                some[right:] += 1  # wrong drafts
                assert torch.equal(other.read(at, some, advance)[:right], want[at : at + right])
                at += right
            for length in (60, 31):
                ours, theirs = (states.at(length, advance) for states in (one, other))
                assert torch.equal(ours.matrices, theirs.matrices) and torch.equal(ours.tail, theirs.tail)
        finally:
            torch.set_num_threads(before)


@pytest.mark.slow
def test_the_self_test_detects_a_recurrence_whose_rows_are_not_independent(tiny, monkeypatch):
    target = Target.load(tiny(BIASES).path, exact=True)
    delta = target.transformer.layers[1].delta
    advance = delta.advance

    def together(state, rows, one_by_one):
        values, after = advance(state, rows, one_by_one)
        return values + 0.01 * values.sum() * (len(rows) > target.row_multiple), after

    monkeypatch.setattr(delta, "advance", together)
    assert not measure(target, 5, exact=True).bitwise


@pytest.mark.slow
@each("form", ["eager", "static"])
def test_exact_prompts_of_any_length_are_read(tiny, form):
    """Rows that fill up a long prompt would count as text, because none of them could be taken back."""
    target, stock = Target.load(tiny(SHARED).path, exact=True), tiny(SHARED).stock
    target.row_multiple = 4
    target.use_step_form(form)
    session = Session(target, Autoregressive(), Budget(0))
    for count in (126, 127, 128, 129, 130, 131, 132, 250):
        prompt = prompt_ids(count, seed=count)
        assert reply(session, prompt, Sampling(), 3) == stock_reply(stock, prompt, 3)
