"""Ouroboros: phrases accelerate and lengthen drafts, phrases are learned from them, and a search tunes the numbers."""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from drafting import path_tokens
from each import each
from scripted_drafters import RandomBranches, Witness
from session_replies import assert_plain, assert_stops_leave_no_trace, reply
from slow_cases import covering
from tiny_models import END, SPECIAL, VOCABULARY, Tiny, byte_tokenizer, prompt_ids, read, stock_reply, write
from transformers import LlamaConfig

from localspec.decoding.acceptance import walk
from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.logits import NumpyHidden
from localspec.decoding.measuring import MeasuringProgress, finished
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import SOURCE, DraftModel
from localspec.drafters.ingredients import MOST, Hyperparameters
from localspec.drafters.lookahead import Lookahead
from localspec.drafters.ouroboros import Pair, draft_model, ouroboros
from localspec.drafters.ouroboros_tuning import (
    CHEAP,
    NEARLY_FREE,
    RANGES,
    ReplayTarget,
    Workload,
    replaying,
    searching,
    starting,
    variants,
)
from localspec.drafters.phrases import PHRASES, WithPhrases
from localspec.drafters.pool import PhrasePool, PhraseReader
from localspec.nn.cache import KVCache
from localspec.nn.target import Target
from localspec.store.phrases import Phrase, pack_key, pack_tokens, unpack_key

Make = Callable[[str], Tiny]

GREEDY, NODES = Sampling(), 12
LLAMA = "llama-many-heads-biases-llama3"
QWEN = "qwen3-grouped-mixed-window-wide-heads"
CIRCLES = "llama-one-key-head-tied-linear"  # its greedy text goes in circles
PAIRS = [
    (LLAMA, "qwen2-one-key-head"),
    (QWEN, CIRCLES),
    ("mistral-grouped-window-wide-heads", "phi3-one-key-head-tied"),
    ("phi3-grouped-window-partial-rotary", "qwen3-many-heads-tied-llama3"),
    ("qwen2-many-heads-mixed-window-tied", "qwen2-many-heads-mixed-window-tied"),  # drafts for itself
]
SMALL = Hyperparameters(draft=3, window=2, phrase=3, phrases=2)
# Which parts are switched on, how long drafts are, and where phrases come from.
FORMS: dict[str, dict[str, Any]] = {
    "both": {},
    "accelerating": {"lengthening": False},
    "lengthening": {"accelerating": False},
    "none": {"accelerating": False, "lengthening": False},
    "fixed": {"fixed": True},
    "fixed, accelerating": {"fixed": True, "lengthening": False},
    "no window": {"chosen": replace(SMALL, window=0)},
    "large": {"chosen": Hyperparameters(draft=6, window=5, phrase=5, phrases=4)},
    "the paper's recipe": {"chosen": Hyperparameters(draft=7, window=15, phrase=6, phrases=3)},
    "no verification": {"verification": False},
    "history": {"stored": True},
    "beside": {"beside": True},
    "beside, fixed": {"beside": True, "fixed": True, "stored": True},
}


def garbage(choose: random.Random, keys: Sequence[int]) -> list[Phrase]:
    """Return random phrases: copies, special ids, ids outside the vocabulary, and some earlier text."""
    return [
        Phrase(key, b"", pack_tokens([choose.randrange(VOCABULARY + 9) for _ in range(choose.randrange(6))]), 1)
        for key in keys
    ] * 2


def made(
    target: Target,
    small: Target,
    chosen: Hyperparameters = SMALL,
    *,
    verification: bool = True,
    stored: bool | PhraseReader = False,
    fixed: bool = False,
    accelerating: bool = True,
    lengthening: bool = True,
    beside: bool = False,
) -> tuple[Drafter, PhrasePool]:
    reader = partial(garbage, random.Random(3)) if stored is True else stored or None
    vocabulary = target.vocab_size
    known = min(vocabulary, small.vocab_size)
    pool = PhrasePool(target.special_tokens, reader, known, verification=verification)
    pair = Pair(target.special_tokens, vocabulary, small, pool)
    used = {"accelerating": accelerating, "lengthening": lengthening, "beside": beside}
    return ouroboros(pair, chosen, None, fixed, [part for part, kept in used.items() if kept]), pool


class StepReport:
    """A drafter that passes on another one's drafts, and records them."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.trees, self.steps = inner, list[DraftTree](), list[Step]()
        self.observe, self.rewind = inner.observe, inner.rewind
        self.nbytes, self.target_layers = inner.nbytes, inner.target_layers

    def draft(self, context: Context) -> DraftTree:
        self.trees.append(tree := self.inner.draft(context))
        assert tree.size <= context.nodes + 1
        return tree


def context(tokens: Sequence[int], nodes: int, sampling: Sampling = GREEDY) -> Context:
    return Context(tokens, cast("KVCache", None), nodes, sampling)  # the target's cache is not looked at


# -- losslessness ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("form", "pair"), covering(FORMS, PAIRS, fast=1))
def test_greedy_ids_are_those_of_the_stock_model(tiny: Make, pair: tuple[str, str], form: str) -> None:
    """In two turns: the second one finds the first one's phrases in the pool."""
    model, prompt = tiny(pair[0]), prompt_ids(23, seed=23)
    drafter, _ = made(model.target, tiny(pair[1]).target, **FORMS[form])
    session = Session(model.target, drafter, Budget(NODES))
    for turn in range(2):
        text = stock_reply(model.stock, prompt, 20)
        ids, statistics = reply(session, prompt, 20)
        assert ids == text
        assert statistics.drafted > 10
        prompt = [*prompt, *text, END, *prompt_ids(7, seed=turn)]


@pytest.mark.slow
def test_where_both_budgets_cut_trees_the_text_is_the_same(tiny: Make) -> None:
    for name, other in PAIRS[:2]:
        model, prompt = tiny(name), prompt_ids(23, seed=23)
        pool = PhrasePool(model.target.special_tokens)
        drafter = ouroboros(
            Pair(model.target.special_tokens, VOCABULARY, tiny(other).target, pool), SMALL, Flat(1.0, 0.03), False
        )
        text = stock_reply(model.stock, prompt, 40)
        assert reply(Session(model.target, drafter, Budget(NODES, Flat(1.0, 0.03))), prompt, 40)[0] == text


@pytest.mark.slow
def test_abandoned_streams_rewinds_and_stop_tokens(tiny: Make) -> None:
    model = tiny(LLAMA)
    drafter, pool = made(model.target, model.target)
    session = Session(model.target, drafter, Budget(NODES))
    assert_stops_leave_no_trace(model, session)
    session.rewind(9)
    assert session.tokens == pool.tokens and len(pool.tokens) == 9
    other = prompt_ids(20, seed=99)
    assert reply(session, other, 10)[0] == stock_reply(model.stock, other, 10), "a prompt that shares nothing"


@pytest.mark.slow
@each("vocabulary", [300, 700])
def test_a_small_model_may_be_filled_up_to_another_vocabulary(tiny: Make, tmp_path: Path, vocabulary: int) -> None:
    """Ids that only one of the two has come out of its window and its trees, and reach the other by the pool."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=vocabulary, max_position_embeddings=256, bos_token_id=None, eos_token_id=END, pad_token_id=0,
    )  # fmt: skip
    model, small = tiny(LLAMA), read(write(tmp_path / "small", config, byte_tokenizer(), seed=5))
    for form in ("large", "history"):
        drafter, _ = made(model.target, small.target, **FORMS[form])
        session = Session(model.target, drafter, Budget(NODES))
        assert_plain(model.target, session, prompt_ids(20), 16, Sampling(), Sampling(1.5))


# -- accelerating: phrases make the draft faster and leave it as it is --------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "name"),
    covering([SMALL, replace(SMALL, window=0), Hyperparameters(11, 3, 5, 4)], ["qwen2-one-key-head", CIRCLES, QWEN]),
)
def test_an_accelerated_draft_is_the_small_models_own_text_in_fewer_forwards(tiny, name, chosen):
    """Accept the draft's own tokens and other tokens, in strides of every length."""
    model, stride = tiny(name), random.Random(1)
    own = [*prompt_ids(8, seed=1), *stock_reply(model.stock, prompt_ids(8, seed=1), 60, stops=())]
    for text in (own, [*own[:30], *prompt_ids(20, seed=7), *own[:30]]):
        pool = PhrasePool(range(len(SPECIAL)))
        pair = Pair((), VOCABULARY, model.target, pool)
        drafter, plain = (draft_model(pair, chosen, accelerated, None, fixed=False) for accelerated in (True, False))
        at, known = 8, 0
        while at < 60:
            pool.extend(text[known:at])
            known = at
            tree = drafter.draft(context(text[:at], 16))
            tokens = stock_reply(model.stock, text[:at], tree.size - 1, stops=())
            assert list(tree.tokens[1:]) == tokens
            assert tree.size == 1 + chosen.draft or tokens[-1] in model.target.stop_tokens
            plain.draft(context(text[:at], 16))
            at += stride.randint(1, chosen.draft + 1)
        # At most W columns and K phrases, of β-1 tokens each, in addition to the root.
        rows = [count for count in drafter.forwards if count > 12]
        assert all(count <= 1 + (chosen.window + chosen.phrases) * (chosen.phrase - 1) for count in rows)
        if name == CIRCLES and text is own:
            assert sum(drafter.forwards.values()) < sum(plain.forwards.values())


@pytest.mark.slow
def test_each_part_can_be_left_out(tiny: Make) -> None:
    model, prompt = tiny(CIRCLES), prompt_ids(8, seed=1)
    for accelerating, lengthening in ((False, False), (False, True), (True, False), (True, True)):
        drafter, _ = made(model.target, model.target, accelerating=accelerating, lengthening=lengthening)
        seen, inner = StepReport(drafter), drafter.inner if isinstance(drafter, WithPhrases) else drafter
        reply(Session(model.target, seen, Budget(NODES)), prompt, 40)
        assert isinstance(inner, DraftModel)
        assert any(set(tree.source or ()) & set(PHRASES) for tree in seen.trees) == lengthening
        assert isinstance(inner.inner, WithPhrases) == accelerating


@pytest.mark.slow
def test_the_small_models_own_trees_have_room_for_the_papers_window_and_all_phrases(tiny: Make) -> None:
    """W 20 and β 6 are a hundred rows of the window, whatever else is proposed."""
    model, text = tiny(CIRCLES), prompt_ids(9, seed=1)
    for phrases in (1, 5):
        pair = Pair((), VOCABULARY, model.target, PhrasePool())
        drafter = draft_model(pair, Hyperparameters(14, 20, 6, phrases), True, None, fixed=True)
        drafter.draft(context(text, 30))
        assert 1 + 20 * 5 <= max(drafter.forwards) <= 1 + (20 + phrases) * 5


@pytest.mark.slow
@each("window, row, drafts", [(0, 0.1, True), (5, 0.1, False), (5, 0.0, True)])
def test_it_drafts_as_long_as_its_forwards_pay_with_the_rows_of_their_window(
    tiny: Make, window: int, row: float, drafts: bool
) -> None:
    """One row costs a fifth of a token's worth; all rows of the window together cost more than a token is worth."""
    model, text = tiny(LLAMA), prompt_ids(40, seed=1)
    inner = Lookahead(PhrasePool(), (), window, 4) if window else Autoregressive()
    drafter = DraftModel(model.target, VOCABULARY, inner, Budget(3 * window), costs=Flat(0.1, row))
    for at in range(9, 40):
        tree = drafter.draft(replace(context(text[:at], 16), token_seconds=1.0))
    assert (tree.size > 1) == drafts


@each("costs, limit", [(1e9, 1), (1e-9, 14)])
def test_a_named_pair_decides_in_each_step_how_far_it_drafts(tiny: Make, costs: float, limit: int) -> None:
    """Up to γ tokens where a draft costs no time, and none where it costs more than it saves."""
    model, text = tiny(LLAMA), prompt_ids(20, seed=1)
    pair = Pair((), VOCABULARY, model.target, PhrasePool())
    for parts in (("accelerating", "lengthening", "beside"), ("lengthening",)):
        drafter = ouroboros(pair, Hyperparameters(), Flat(costs), False, parts)
        seen = replace(context(text, 64), token_seconds=1.0)
        depth = max(drafter.draft(seen).depth)
        assert (depth == 0) if limit == 1 else (1 < depth <= limit)


@pytest.mark.slow
@each("chosen", [SMALL, Hyperparameters(4, 5, 5, 1), Hyperparameters(4, 1, 3, 1)])
def test_the_small_models_window_wins_phrases_for_the_pool_that_it_shares(tiny: Make, chosen: Hyperparameters) -> None:
    class Recording(PhrasePool):
        taken: list[tuple[int, ...]]

        def take(self, phrase: Sequence[int]) -> None:
            self.taken.append(tuple(phrase))
            super().take(phrase)

    model, text = tiny("qwen2-one-key-head"), prompt_ids(9, seed=2)
    pool = Recording(range(len(SPECIAL)), text=False, verification=False)
    pool.taken = []
    drafter = draft_model(Pair(range(len(SPECIAL)), VOCABULARY, model.target, pool), chosen, True, None, fixed=True)
    drafter.draft(context(text, 24))
    assert len(pool.taken) >= 4
    assert all(len(phrase) == chosen.phrase for phrase in pool.taken)


@pytest.mark.slow
def test_an_accelerated_draft_is_the_same_at_a_temperature(tiny: Make) -> None:
    model, text = tiny(QWEN), prompt_ids(60, seed=3)
    for seed in range(3):
        sampling = Sampling(0.5, top_k=3, seed=seed)
        pool = PhrasePool(range(len(SPECIAL)))
        pair = Pair((), VOCABULARY, model.target, pool)
        fast, plain = (draft_model(pair, SMALL, accelerated, None, fixed=True) for accelerated in (True, False))
        for at in range(10, 60, 3):
            pool.extend(text[len(pool.tokens) : at])
            ours, theirs = (drafter.draft(context(text[:at], 6, sampling)) for drafter in (fast, plain))
            assert list(ours.tokens) == list(theirs.tokens)


def test_a_pool_that_is_lent_is_read_and_not_written() -> None:
    """A draft is not text: tokens that the small model reads and rejects do not belong to the conversation."""

    class Locked(PhrasePool):
        def extend(self, tokens: Sequence[int]) -> None:
            raise AssertionError("text")

        def rewind(self, length: int) -> None:
            raise AssertionError("text")

        def learn(self, step: Step) -> None:
            raise AssertionError("verification")

        def correct(self, *_: Any) -> None:
            raise AssertionError("verification")

        def mark_used(self, *_: Any) -> None:
            raise AssertionError("use")

    pool = Locked(reader=lambda keys: [Phrase(key, b"", pack_tokens([50, 51]), 1) for key in keys])
    inner = Witness()
    drafter = WithPhrases(inner, pool, read_only=True)
    drafter.observe(Step([1, 2], NumpyHidden(np.empty((2, 0)))))
    tree = drafter.draft(Context([1, 2], cast("KVCache", Held(1)), 4, GREEDY))
    assert list(tree.tokens) == [2, 50, 51], "read it is"
    drafter.observe(Step([50, 9], NumpyHidden(np.empty((2, 0))), tree, [0, 1], [50, 9, 8]))
    assert inner.tokens == [1, 2, 50, 9]
    drafter.rewind(2)
    assert inner.tokens == [1, 2]
    assert drafter.nbytes == inner.nbytes, "and it is counted where it belongs"
    assert WithPhrases(inner, pool).nbytes > inner.nbytes


class Held:
    """A cache of a given length, as far as a witness reads it."""

    def __init__(self, length: int) -> None:
        self.length = length


# -- lengthening: phrases behind the draft ------------------------------------------------------------------------------


@pytest.mark.slow
@each("chosen", [SMALL, Hyperparameters(4, 0, 4, 3), Hyperparameters(1, 2, 7, 1)])
def test_phrases_hang_below_the_last_drafted_token_and_are_no_more_and_no_longer_than_asked(tiny, chosen):
    """root ─ d ─ d ─ d ─┬ p ─ p
    └ p ─ p       K phrases of β-1 tokens, behind γ tokens of the small model."""
    model, prompt = tiny(CIRCLES), prompt_ids(8, seed=1)
    for small in (CIRCLES, "qwen2-one-key-head"):
        drafter, _ = made(model.target, tiny(small).target, chosen)
        seen, lengths, widths = StepReport(drafter), set[int](), set[int]()
        reply(Session(model.target, seen, Budget(24)), prompt, 50)
        for tree in seen.trees:
            source = tree.source or []
            drafted = [node for node in range(1, tree.size) if source[node] == SOURCE]
            assert drafted == list(range(1, len(drafted) + 1)) == [*tree.parents[2 : len(drafted) + 1], *drafted[-1:]]
            assert len(drafted) == chosen.draft or tree.tokens[drafted[-1]] in model.target.stop_tokens
            phrases = [node for node in range(1, tree.size) if source[node] in PHRASES]
            assert len(phrases) == tree.size - 1 - len(drafted)
            depths = [tree.depth[node] - len(drafted) for node in phrases]
            leaves = [node for node in phrases if not tree.siblings[node]]
            assert all(
                path_tokens(tree, node)[: len(drafted)] == tuple(tree.tokens[1 : len(drafted) + 1]) for node in phrases
            )
            assert len(leaves) <= chosen.phrases and max(depths, default=0) <= chosen.phrase - 1
            lengths.add(max(depths, default=0))
            widths.add(len(leaves))
        assert max(lengths) == chosen.phrase - 1 and max(widths) == chosen.phrases, "as many, and as long, as may be"


@pytest.mark.slow
def test_behind_a_phrase_that_matched_to_its_end_comes_the_targets_own_token(tiny: Make) -> None:
    """A small model that is always right, and phrases that are: draft, phrase and bonus token, 2 + 3 + 1 a step."""
    model, prompt = tiny(QWEN), prompt_ids(23, seed=0)
    text = stock_reply(model.stock, prompt, 37)
    following = {pack_key(*text[place : place + 2]): text[place + 2 : place + 5] for place in range(34)}

    def reader(keys: Sequence[int]) -> list[Phrase]:
        return [Phrase(key, b"", pack_tokens(following[key]), 1) for key in keys if key in following]

    chosen = Hyperparameters(draft=2, window=0, phrase=4, phrases=3)
    drafter, pool = made(model.target, model.target, chosen, stored=reader, accelerating=False)
    ids, statistics = reply(Session(model.target, drafter, Budget(NODES)), prompt, 37)
    assert ids == text
    assert len({*following}) == 34, "each pair of tokens comes once"
    assert (statistics.steps, statistics.acceptance_length) == (6, 6.0)
    assert statistics.sources == {"target": 7, SOURCE: 12, "phrases": 18}
    used = pool.harvest(len(prompt)).used
    assert sorted(unpack_key(key) for key, _, _ in used) == sorted(
        tuple(text[place : place + 2]) for place in range(1, 36, 6)
    ), "what was of use will be kept"
    # If the draft is wrong, no phrase after it counts, even if it would be right there.
    wrong, _ = made(model.target, tiny("qwen2-one-key-head").target, chosen, stored=reader, accelerating=False)
    ids, statistics = reply(Session(model.target, wrong, Budget(NODES)), prompt, 37)
    assert ids == text and statistics.sources.get("phrases", 0) == 0


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 7, 20])
def test_fixed_trees_are_filled_up(tiny: Make, nodes: int) -> None:
    model, prompt = tiny(CIRCLES), prompt_ids(8, seed=1)
    for form in ("fixed", "fixed, accelerating"):
        for small in (CIRCLES, "qwen2-one-key-head"):
            drafter, _ = made(model.target, tiny(small).target, **FORMS[form])
            seen = StepReport(drafter)
            ids, _ = reply(Session(model.target, seen, Budget(nodes)), prompt, 30)
            assert ids == stock_reply(model.stock, prompt, 30)
            whole = [tree for tree in seen.trees if not model.target.stop_tokens & {*tree.tokens}]
            assert whole
            assert all(tree.size == nodes + 1 for tree in whole)
            if nodes > 6 and form == "fixed":
                assert any(source in PHRASES for tree in whole for source in tree.source or ()), "phrases have a share"


@pytest.mark.slow
def test_no_phrase_holds_a_special_token(tiny: Make) -> None:
    model = tiny(LLAMA)
    special, prompt = (
        model.target.special_tokens,
        [*prompt_ids(6), END, 2, 9, 10, END, 2, *prompt_ids(9), END, 3, 9, 10],
    )
    assert {END, 2, 3} <= special
    reader = partial(garbage, random.Random(1))
    for chosen in (SMALL, Hyperparameters(2, 3, 5, 4)):
        drafter, pool = made(model.target, model.target, chosen, stored=reader)
        seen = StepReport(drafter)
        session = Session(model.target, seen, Budget(24))
        for seed in range(4):
            reply(session, prompt, 30, Sampling(1.5, seed=seed))
        phrases = [
            token
            for tree in seen.trees
            for token, source in zip(tree.tokens, tree.source or (), strict=False)
            if source in PHRASES
        ]
        assert len(phrases) > 30 and not special & set(phrases)
        assert all(not special & {*found.tokens} for token in range(300) for found in pool.continuations([token], 9))


# -- phrases from verification -----------------------------------------------------------------------------------------


class Chain(Witness):
    """A drafter that proposes one chain."""

    def __init__(self, chain: Sequence[int]) -> None:
        super().__init__()
        self.chain = chain

    def draft(self, context: Context) -> DraftTree:
        return DraftTree.chain([context.root, *self.chain], SOURCE)


def behind(pool: PhrasePool, *tail: int) -> list[tuple[int, ...]]:
    return [tuple(found.tokens) for found in pool.continuations(tail, 9)]


TRIED = [4, 5]  # the draft after 1 2 3, followed by the phrase 6 7 8 that a window collected
# A draft, the target's pick at each node, and which phrases the pool then holds after which tokens.
VERIFIED = [
    # The draft was right: 20 21 22 replace 6 7 8, also where only the last token matches.
    (TRIED, [4, 5, 20, 21, 22, 23], [((4, 5), (20, 21, 22)), ((99, 5), (20, 21, 22))], [((4, 5), (20, 21, 22))]),
    # A phrase that was right at its beginning: the rest is replaced.
    (TRIED, [4, 5, 6, 20, 21, 22], [((5, 6), (20, 21)), ((4, 5), (6, 7, 8))], []),
    # After a wrong draft, a phrase is not judged.
    (TRIED, [4, 20, 6, 21, 22, 23], [((99, 5), (6, 7, 8))], []),
    # At the root it is known by the token before that.
    ([], [20, 21, 22, 23], [((99, 3), (20, 21, 22))], [((2, 3), (20, 21, 22))]),
    # Right to its end.
    (TRIED, [4, 5, 6, 7, 8, 9], [((4, 5), (6, 7, 8))], []),
]


def lengthened(chain: Sequence[int], picks: Sequence[int], *, verification: bool = True) -> PhrasePool:
    """Return the pool after a step that verified a draft followed by a phrase."""
    pool = PhrasePool(text=False, verification=verification)
    pool.take([chain[-1] if chain else 3, 6, 7, 8])
    drafter = WithPhrases(Chain(chain), pool)
    drafter.observe(Step([1, 2, 3], NumpyHidden(np.empty((3, 0)))))
    tree = drafter.draft(context([1, 2, 3], 9))
    assert list(tree.tokens) == [3, *chain, 6, 7, 8]
    path, bonus = walk(tree, picks)
    committed = [*(tree.tokens[node] for node in path[1:]), bonus]
    drafter.observe(Step(committed, NumpyHidden(np.empty((len(path), 0))), tree, path, picks))
    return pool


@each("chain, picks, held, learned", VERIFIED)
def test_what_the_target_says_of_a_phrase_replaces_it_where_it_was_wrong(chain, picks, held, learned):
    pool = lengthened(chain, picks)
    for tail, phrase in held:
        assert phrase in behind(pool, *tail) and (phrase == (6, 7, 8) or behind(pool, *tail) == [phrase])
    assert (20, 6) not in behind(pool, 3, 4)
    refused = pool.harvest(0).refused
    assert all((pack_key(*key), b"", pack_tokens(phrase)) in refused for key, phrase in learned)


def test_without_verification_nothing_is_learned_and_nothing_lost() -> None:
    for verification in (True, False):  # after the rejected 6 the target picks 7, as the draft did
        pool = lengthened(TRIED, [4, 5, 20, 7, 22, 23], verification=verification)
        refused = pool.harvest(6).refused
        assert ((pack_key(5, 6), b"", pack_tokens([7, 22])) in refused) == bool(refused) == verification
    assert behind(pool, 4, 5) == [(6, 7, 8)]


def test_a_pool_takes_and_corrects() -> None:
    pool = PhrasePool([7])
    pool.take([1, 2, 3])
    pool.take([1, 7, 3])
    assert behind(pool, 1) == [(2, 3)], "no special token"
    pool.correct(9, 1, [2, 3], [4, 5])
    assert behind(pool, 1) == behind(pool, 9, 1) == [(4, 5)]
    assert pool.harvest(0).refused == [(pack_key(9, 1), b"", pack_tokens([4, 5]))], (
        "the target picked it: worth keeping"
    )
    pool.take([1, 2, 3])
    assert pool.harvest(0) == ([], [], []), "a guess is not"


def test_of_a_longer_phrase_its_beginning_may_have_been_tried_and_all_of_it_goes() -> None:
    pool = PhrasePool()
    pool.take([1, 2, 3, 4, 5])
    pool.take([1, 2, 8, 4, 5])
    pool.correct(9, 1, [2, 3], [2, 7])
    assert behind(pool, 1) == [(2, 8, 4, 5), (2, 7)]


# -- hyper-parameters --------------------------------------------------------------------------------------------------


def test_hyperparameters_are_read_as_they_were_written() -> None:
    for chosen in (Hyperparameters(), SMALL, Hyperparameters(1, 0, 2, 1), Hyperparameters(MOST, MOST, MOST, MOST)):
        assert Hyperparameters.from_json(chosen.as_json()) == chosen


@each(
    "stored",
    [
        None,
        [],
        "draft",
        4,
        {},
        {"draft": 4},
        {**asdict(SMALL), "more": 1},
        *(
            {**asdict(SMALL), name: value}
            for name in asdict(SMALL)
            for value in (-1, MOST + 1, 2.0, "3", True, None, [2])
        ),
        {**asdict(SMALL), "draft": 0},
        {**asdict(SMALL), "phrase": 1},
        {**asdict(SMALL), "phrases": 0},
    ],
)
def test_invalid_hyperparameters_are_searched_again(stored: object) -> None:
    assert Hyperparameters.from_json(stored) is None


@each("seed", range(3))
def test_a_replay_gives_back_the_text_whatever_is_drafted(seed: int) -> None:
    text = prompt_ids(60, seed=seed)
    drafter, target = RandomBranches(text, seed=seed, right=0.8, vocabulary=300), ReplayTarget(text, 320)
    cache, tokens, steps = target.cache(80), text[:9], 0
    tokens += prefill_step(target, cache, drafter, text[:9], GREEDY, last=True).committed[-1:]
    while len(tokens) < len(text):
        cache.reserve(len(tokens) + 9)
        tokens += decode_step(target, cache, drafter, tokens, Budget(8), GREEDY).committed
        steps += 1
        assert cache.length == len(tokens) - 1
    assert tokens[: len(text)] == text
    assert steps < 40, "some of the drafts were right"


def test_a_replay_does_not_know_what_follows_tokens_that_are_not_in_the_text() -> None:
    """Otherwise a refused draft would teach phrases of the true text, which no target would have given."""
    text = list(range(10, 20))
    target, pool = ReplayTarget(text, VOCABULARY), PhrasePool((), None, VOCABULARY)
    cache = target.cache(0)
    cache.truncate(2)
    #                   root ─ 13 ─ 14 ─ 99 ─ 16     99 is wrong
    #                        ├ 13 (again) ─ 14
    #                        └ 50 ─ 14               50 is wrong
    tree = DraftTree([12, 13, 14, 99, 16, 13, 14, 50, 14], [-1, 0, 1, 2, 3, 0, 5, 0, 7])
    picks = target.forward(tree, cache).logits.argmax()
    unknown = target.unknown
    assert picks == [13, 14, 15, unknown, unknown, 14, 15, unknown, unknown]
    assert unknown >= target.vocab_size, "no pool takes it"
    path, bonus = walk(tree, picks)
    pool.learn(Step([13, 14, bonus], NumpyHidden(np.empty((3, 0))), tree, path, picks))
    assert (path, bonus) == ([0, 1, 2], 15)
    assert pool.continuations([13, 14, 99], 8) == []
    pool.learn(Step([13, 14, bonus], NumpyHidden(np.empty((3, 0))), tree, path, [13, 14, 15, 16, 17, 14, 15, 14, 15]))
    assert pool.continuations([13, 14, 99], 8) != [], "as it would learn from a target that finds back to the text"
    cache.truncate(8)
    ending = DraftTree.chain([18, 19, 19, 7])
    assert target.forward(ending, cache).logits.argmax() == [19, 19, 19, unknown], "its last token counts as repeated"
    assert target.forward(ending, cache, last=True).logits.argmax() == [unknown]


@dataclass
class Flat:
    """A clock on which a forward takes a fixed time, and a time for each of its rows."""

    seconds: float
    row: float = 0.0

    def at(self, rows: int, context: int) -> float:
        return self.seconds + self.row * rows


def said_by(model: Tiny, count: int = 30) -> list[tuple[list[int], list[int]]]:
    prompts = [prompt_ids(9, seed=seed) for seed in (1, 4)]
    return [(prompt, stock_reply(model.stock, prompt, count)) for prompt in prompts]


def builder(target: Target, small: Target, **form: Any) -> Callable[[Hyperparameters], tuple[Drafter, DraftModel]]:
    def build(tried: Hyperparameters) -> tuple[Drafter, DraftModel]:
        drafter, _ = made(target, small, tried, **form)
        inner = drafter.inner if isinstance(drafter, WithPhrases) else drafter
        assert isinstance(inner, DraftModel)
        return drafter, inner

    return build


@pytest.mark.slow
@each("small", [LLAMA, "qwen2-one-key-head"])
def test_predicted_seconds_are_those_of_a_real_session(tiny: Make, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the forwards take time on this clock, so the seconds are sums over steps, rows and forwards."""
    monkeypatch.setattr("localspec.decoding.decode.time.perf_counter", lambda: 0.0)  # or costs would follow the clock
    monkeypatch.setattr("localspec.decoding.budget.PlainTime.wanted", False)  # which no clock would satisfy
    model = tiny(LLAMA)
    said = [(prompt, text) for prompt, text in said_by(model) if len(text) == 30][:1]
    assert said
    build = builder(model.target, tiny(small).target, accelerating=False)
    for costs, own, row, forward in (
        (Flat(1e6), Flat(0), 0, 0),
        (Flat(1e6, 1.0), Flat(0), 1, 0),
        (Flat(1e6), Flat(1), 0, 1),
    ):
        for prompt, text in said:
            drafter, inner = build(SMALL)
            ids, statistics = reply(Session(model.target, drafter, Budget(NODES, costs)), prompt, 30)
            assert ids == text
            rows = statistics.drafted + statistics.steps
            forwards = sum(inner.forwards.values()) - 1  # the prompt is read before the clock starts
            seconds = 1e6 * statistics.steps + row * rows + forward * forwards
            again = finished(replaying(*build(SMALL), Workload([(prompt, text)], VOCABULARY, NODES, costs, own)))
            assert again.seconds == seconds and again.drafting == forward * forwards
            assert (again.tokens, again.steps, again.nodes) == (29, statistics.steps, statistics.drafted)


@pytest.mark.slow
def test_what_a_drafter_read_of_one_reply_does_not_disturb_the_next(tiny: Make) -> None:
    model, build = tiny(LLAMA), builder(tiny(LLAMA).target, tiny(LLAMA).target, accelerating=False, lengthening=False)
    said = said_by(model, 12)
    assert len(said) == 2
    drafter, small = build(SMALL)
    together = finished(replaying(drafter, small, Workload(said, VOCABULARY, 8, Flat(1.0), Flat(0.1)))).seconds
    apart = [
        finished(replaying(*build(SMALL), Workload([one], VOCABULARY, 8, Flat(1.0), Flat(0.1)))).seconds for one in said
    ]
    assert together == pytest.approx(sum(apart))


def test_the_start_has_the_widest_window_whose_rows_are_nearly_free() -> None:
    """The paper's 20 columns on a GPU, none on a CPU."""
    assert starting(Flat(1.0)) == Hyperparameters(14, 20, 7, 3)
    assert starting(Flat(1.0, 0.05)) == Hyperparameters() == Hyperparameters(14, 0, 7, 3)
    columns = [starting(Flat(1.0, (NEARLY_FREE - 1) / rows)).window for rows in (18, 36, 60, 61, 120)]
    assert columns == [3, 6, 10, 10, 20], "six rows a column"


def test_only_windows_whose_rows_are_cheap_are_tried() -> None:
    usual = Hyperparameters()
    assert [one.window for one in variants("window", usual, Flat(1.0, 0.1))] == []
    assert [one.window for one in variants("window", usual, Flat(1.0))] == [3, 6, 10, 15, 20]
    wide = replace(usual, window=20)
    row = (CHEAP - 1) / 100  # a hundred rows more are just cheap
    assert [one.phrase for one in variants("phrase", wide, Flat(1.0, row))] == [4, 5, 6]
    assert [one.phrase for one in variants("phrase", usual, Flat(1.0, row))] == [4, 5, 6, 8]


@pytest.mark.slow
@each("small, seconds, best", [(LLAMA, 1e-6, max), ("qwen2-one-key-head", 0.2, min)])
def test_the_search_finds_long_drafts_by_a_model_that_is_right_and_short_ones_by_one_that_is_wrong(
    tiny: Make, small: str, seconds: float, best: Callable[..., int]
) -> None:
    model = tiny(LLAMA)
    build = builder(model.target, tiny(small).target, accelerating=False, lengthening=False)
    workload = Workload(said_by(model)[:1], VOCABULARY, 16, Flat(1.0), Flat(seconds))
    assert finished(searching(build, workload, ["draft"])).draft == best(RANGES["draft"])


@pytest.mark.slow
def test_the_search_is_deterministic_and_counts_what_it_tries(tiny: Make) -> None:
    model = tiny(LLAMA)
    said, names = said_by(model, 10), ["draft", "window", "phrase", "phrases"]
    start = starting(Flat(0.2, 0.0015))
    assert start.window == 3
    for form, asked in (({}, names), ({"accelerating": False}, ["draft", "phrase", "phrases"])):
        tried: list[list[Hyperparameters]] = [[], []]
        found = []
        for times in range(2):
            build, shown = builder(model.target, model.target, **form), list[MeasuringProgress]()

            def recorded(chosen: Hyperparameters, build: Any = build, log: Any = tried[times]) -> Any:
                log.append(chosen)
                return build(chosen)

            workload = Workload(said, VOCABULARY, 12, Flat(1.0), Flat(0.2, 0.0015))
            found.append(finished(searching(recorded, workload, asked), shown.append))
        assert found[0] == found[1] and tried[0] == tried[1]
        assert tried[0][0] == start and len(set(tried[0])) == len(tried[0]), "it begins well, and tries nothing twice"
        assert found[0].draft != start.draft
        after_it = tried[0][len(RANGES["draft"]) :]
        assert all(one.draft == found[0].draft for one in after_it), "each with the best found before"
        untouched = set(names) - set(asked)
        assert all(getattr(one, name) == getattr(start, name) for one in tried[0] for name in untouched)
        assert Hyperparameters.from_json(found[0].as_json()) == found[0], "what is found can be kept"
        assert [number for number, one in enumerate(shown) if one.share < shown[number - 1].share] == [0]
        assert {one.done for one in shown} == {*range(len(tried[0]))} and shown[-1].total == len(tried[0])


@pytest.mark.slow
def test_a_search_stays_at_the_start_where_nothing_is_clearly_better(tiny: Make) -> None:
    """Where a draft costs no time, all lengths beyond the reply are equally good."""
    model = tiny(LLAMA)
    build = builder(model.target, model.target, accelerating=False)
    workload = Workload([(prompt_ids(9, seed=1), said_by(model)[0][1][:3])], VOCABULARY, 16, Flat(1.0), Flat(1e-6))
    assert finished(searching(build, workload, ["draft", "phrase", "phrases"])) == starting(Flat(1e-6))


def test_every_value_that_is_searched_can_be_kept() -> None:
    for name, tried in RANGES.items():
        assert getattr(Hyperparameters(), name) in tried
        for value in tried:
            chosen = replace(Hyperparameters(), **{name: value})
            assert Hyperparameters.from_json(chosen.as_json()) == chosen
