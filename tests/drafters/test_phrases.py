"""Phrases: what is proposed and in which order, what is learned from a rejection, and what leaves the session."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from each import each
from scripted_drafters import Oracle, Witness
from session_replies import reply
from tiny_models import Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.logits import NumpyHidden
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.phrases import JointChances, WithPhrases
from localspec.drafters.pool import MATCH_LENGTH, MAX_KEYS, PHRASE_LENGTH, PHRASES_PER_TOKEN, PhrasePool
from localspec.nn.cache import KVCache
from localspec.store.phrases import Phrase, pack_key, pack_tokens, unpack_key, unpack_tokens
from localspec.store.store import Store

Make = Callable[[str], Tiny]
Stored = tuple[int, bytes, bytes]


def context(tokens: Sequence[int], nodes: int) -> Context:
    return Context(tokens, cast("KVCache", None), nodes, Sampling())  # drafting from phrases never looks at the cache


def observed(tokens: Sequence[int]) -> Step:
    return Step(tokens, NumpyHidden(np.empty((len(tokens), 0))))


def phrases(tokens: Sequence[int], special: Sequence[int] = (), inner: Drafter | None = None) -> WithPhrases:
    """Return the drafter after a prompt of these tokens."""
    drafter = WithPhrases(inner or Autoregressive(), PhrasePool(special))
    drafter.observe(observed(tokens))
    return drafter


def chains(tree: DraftTree) -> list[list[int]]:
    """Return the tokens from below the root to each leaf, in the order of the leaves."""
    leaves = [node for node in range(tree.size) if node not in set(tree.parents)]
    found = []
    for node in leaves:
        chain = []
        while node:
            chain.append(tree.tokens[node])
            node = tree.parents[node]
        found.append(chain[::-1])
    return found


def verified(tree: DraftTree, path: Sequence[int], best: Sequence[int]) -> Step:
    """Return a decode step: the accepted path and the target's picks."""
    committed = [*(tree.tokens[node] for node in path[1:]), best[path[-1]]]
    return Step(committed, NumpyHidden(np.empty((len(path), 0))), tree, path, best)


# -- drafting ----------------------------------------------------------------------------------------------------------


@each(
    "text, nodes, first",
    [
        ([1, 2, 3, 4, 5, 6, 9, 1, 2], 4, [3, 4, 5, 6]),
        ([1, 2, 3, 4], 8, []),
        ([1, 2, 3, 4, 9, 2], 2, [3, 4]),  # the last token has a match where the last two have none
        ([1, 2, 30, 9, 1, 2, 40, 8, 1, 2, 30, 7, 1, 2], 1, [30]),  # which came more often
        ([*[1, 2, 3, 4, 5, 6] * 3, 1, 2, 3, 77, 1, 2], 8, [3, 4, 5, 6, 1]),
    ],
)
def test_what_followed_the_last_tokens_before_is_proposed(text: list[int], nodes: int, first: list[int]) -> None:
    tree = phrases(text).draft(context(text, nodes))
    assert tree.tokens[0] == text[-1]
    assert list(tree.tokens[1 : len(first) + 1]) == first and list(tree.parents[: len(first) + 1])[1:] == [
        *range(len(first))
    ]
    assert set((tree.source or ())[1:]) <= {"prompt"} and (tree.size > 1) == bool(first)


@each("anywhere", [False, True])
@each("text", [[1, 2, 3, 4, 5, 6, 9, 1, 2], [1, 2, 3, 4]])
def test_what_may_follow_the_root_is_looked_up_once(anywhere: bool, text: list[int], monkeypatch: Any) -> None:
    drafter = WithPhrases(Autoregressive(), PhrasePool(()), anywhere=anywhere)
    drafter.pool.extend(text)
    asked: list[list[int]] = []
    look_up = drafter.pool.continuations
    monkeypatch.setattr(
        drafter.pool, "continuations", lambda tail, ahead: asked.append(list(tail)) or look_up(tail, ahead)
    )
    drafter.draft(context(text, 4))
    assert asked == [text[-MATCH_LENGTH:]]
    drafter.draft(context(text, 0))
    assert len(asked) == 1, "without nodes there is no work"


def test_the_longest_match_comes_first() -> None:
    """… 5 1 2 → 30, but 6 7 1 2 → 40 and 8 9 1 2 → 50: the longest match is the first chain."""
    seen = [5, 1, 2, 30, 31, 6, 7, 1, 2, 40, 41, 8, 9, 1, 2, 50, 51]
    for ending, first in (([5, 1, 2], 30), ([6, 7, 1, 2], 40), ([8, 9, 1, 2], 50)):
        text = [*seen, 99, *ending]
        tree = phrases(text).draft(context(text, 12))
        assert chains(tree)[0][0] == first
        assert sorted(chain[0] for chain in chains(tree)) == [30, 40, 50], "the others are in the same tree"


def test_continuations_with_the_same_beginning_share_their_nodes() -> None:
    text = [1, 2, 3, 4, 50, 51, 1, 2, 3, 4, 60, 61, 70, 1, 2]
    tree = phrases(text).draft(context(text, 8))
    assert sorted(chains(tree), key=lambda chain: chain[2]) == [[3, 4, 50, 51, 1], [3, 4, 60, 61, 70]] or (
        {tuple(chain[:3]) for chain in chains(tree)} == {(3, 4, 50), (3, 4, 60)}
    )
    assert tree.tokens.count(3) == tree.tokens.count(4) == 1


@each("nodes", [0, 1, 2, 5, 8, 30])
def test_trees_are_whole_within_their_budget_and_filled_where_there_is_something(nodes: int) -> None:
    choose = random.Random(nodes)
    text: list[int] = [choose.randrange(6) for _ in range(200)]
    drafter = phrases(text)
    for _ in range(60):
        tree = drafter.draft(context(text, nodes))  # DraftTree itself checks that parents come first
        assert tree.size == nodes + 1, "six tokens in a text of 200: there is always more to propose"
        for node in range(tree.size):
            siblings = [tree.tokens[other] for other in range(1, tree.size) if tree.parents[other] == node]
            assert len(siblings) == len(set(siblings)), "no node is spent twice on the same token"
        first = [node for node in range(1, tree.size) if tree.parents[node] == node - 1]
        assert not nodes or first[:1] == [1], "the likeliest chain stands first"
        text.append(choose.randrange(6))
        drafter.observe(observed(text[-1:]))


def test_special_tokens_are_in_no_draft() -> None:
    choose = random.Random(3)
    text = [choose.randrange(8) for _ in range(300)]
    drafter = phrases(text, special=(3, 5))
    for end in range(280, 300):
        drafter.rewind(end)
        tree = drafter.draft(context(text[:end], 12))
        assert not {3, 5}.intersection(tree.tokens[1:])


# -- rewind ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_a_rewind_the_pool_drafts_as_one_that_never_saw_the_rest() -> None:
    choose = random.Random(4)
    for _ in range(40):
        text = [choose.randrange(5) for _ in range(60)]
        length = choose.randrange(61)
        drafter, fresh = phrases(text), phrases(text[:length])
        drafter.rewind(length)
        assert drafter.pool.tokens == text[:length]
        other = text[:length]
        for _ in range(5):
            other.append(choose.randrange(5))
            for one in (drafter, fresh):
                one.observe(observed(other[-1:]))
            ours, theirs = drafter.draft(context(other, 9)), fresh.draft(context(other, 9))
            assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)


# -- phrases from verification -----------------------------------------------------------------------------------------


def won(pool: PhrasePool) -> set[tuple[tuple[int, int], tuple[int, ...]]]:
    """Hand the pool over, and return what verification has left in it."""
    found = pool.harvest(len(pool.tokens)).refused
    return {(unpack_key(key), unpack_tokens(after)) for key, _, after in found}


def test_phrases_from_verification_are_the_rejected_tokens_with_what_the_target_says_behind_them() -> None:
    """The draft a b c d below the root r; the target picks x where b was, then c, d and e: the draft was one place off.

          r ─ a ─ b ─ c ─ d         best   a  x  c  d  e
        accepted: r a, bonus x      won    (a b): c d e    (b c): d e

    After d the target's e agrees with no drafted token: no phrase (Ouroboros, 3.3).
    """
    r, a, b, c, d, e, x = range(10, 17)
    pool = PhrasePool()
    pool.learn(verified(DraftTree.chain([r, a, b, c, d]), path=[0, 1], best=[a, x, c, d, e]))
    assert won(pool) == {((a, b), (c, d, e)), ((b, c), (d, e))}


def test_in_a_rejected_branch_the_phrase_follows_the_child_that_agrees() -> None:
    r"""r─a─c      the target says s at the root: all is rejected.   best(a) = f, best(f) = g, best(c) = h
    │└f
    └b        best(b) = h: nothing hangs there."""
    r, a, b, c, f, g, h, s = range(20, 28)
    pool = PhrasePool()
    tree = DraftTree([r, a, c, f, b], [-1, 0, 1, 1, 0])
    pool.learn(verified(tree, path=[0], best=[s, f, h, g, h]))
    assert won(pool) == {((r, a), (f, g))}


def test_what_was_accepted_and_probes_and_special_tokens_leave_no_phrase() -> None:
    chain = DraftTree.chain([10, 11, 12, 13])
    pool = PhrasePool()
    pool.learn(verified(chain, path=[0, 1, 2, 3], best=[11, 12, 13, 14]))
    assert won(pool) == set()
    probes = DraftTree([10, 11, 12, 13], [-1, 0, 1, 2], probe=[False, True, True, True])
    pool.learn(verified(probes, path=[0], best=[9, 12, 13, 14]))
    assert won(pool) == set()
    for special in (10, 11, 12, 13):
        guarded = PhrasePool([special])
        guarded.learn(verified(DraftTree.chain([10, 11, 12]), path=[0], best=[9, 12, 13]))
        assert won(guarded) == set()
    open_pool = PhrasePool()
    open_pool.learn(verified(DraftTree.chain([10, 11, 12]), path=[0], best=[9, 12, 13]))
    assert won(open_pool) == {((10, 11), (12, 13))}


def test_a_phrase_from_verification_is_proposed_when_its_key_comes() -> None:
    drafter = phrases([10])
    step = verified(DraftTree.chain([10, 11, 12, 13]), path=[0], best=[9, 12, 13, 14])
    drafter.observe(step)
    drafter.observe(observed([10, 11]))
    tree = drafter.draft(context([10, 9, 10, 11], 3))
    assert [12, 13, 14] in chains(tree)
    assert tree.source is not None
    assert "phrases" in tree.source


def test_phrases_from_verification_are_bounded_the_oldest_go_first() -> None:
    pool = PhrasePool()
    for last in range(2 * PHRASES_PER_TOKEN):
        pool.learn(verified(DraftTree.chain([1, 2, 3]), path=[0], best=[9, 3, 100 + last]))
    assert won(pool) == {((1, 2), (3, 100 + last)) for last in range(PHRASES_PER_TOKEN, 2 * PHRASES_PER_TOKEN)}
    for last in (*range(PHRASES_PER_TOKEN), 0, PHRASES_PER_TOKEN):  # the first is seen again, then one more
        pool.learn(verified(DraftTree.chain([1, 2, 3]), path=[0], best=[9, 3, 100 + last]))
    assert won(pool) == {((1, 2), (3, 100 + last)) for last in (0, *range(2, PHRASES_PER_TOKEN + 1))}


def test_the_keys_of_phrases_from_verification_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_KEYS == 20_000
    monkeypatch.setattr("localspec.drafters.pool.MAX_KEYS", 10)
    pool = PhrasePool()
    for key in range(30):
        pool.learn(verified(DraftTree.chain([1, 100 + key, 3]), path=[0], best=[9, 3, 4]))
    assert {key for key, _ in won(pool)} == {(1, 100 + key) for key in range(20, 30)}


# -- what leaves the session -------------------------------------------------------------------------------------------


def words(stored: Stored) -> list[int]:
    key, before, after = stored
    return [*unpack_tokens(before), *unpack_key(key), *unpack_tokens(after)]


def test_a_harvest_holds_the_reply_and_nothing_of_the_prompt() -> None:
    pool, prompt, reply = PhrasePool(), list(range(100, 140)), list(range(200, 220))
    pool.extend(prompt + reply)
    found, used, refused = pool.harvest(len(prompt))
    assert used == refused == []
    assert found
    for phrase in found:
        assert set(words(phrase)) <= set(reply)
        start = words(phrase)[0] - 200
        assert words(phrase) == reply[start : start + len(words(phrase))], "a phrase is a stretch of the reply"
        assert len(unpack_tokens(phrase[2])) <= PHRASE_LENGTH
        assert len(unpack_tokens(phrase[1])) <= MATCH_LENGTH - 2
    assert {unpack_key(key) for key, _, _ in found} == {(200 + at, 201 + at) for at in range(18)}


def test_a_harvest_holds_no_special_token_and_no_phrase_across_one() -> None:
    pool, reply = PhrasePool([7]), [1, 2, 3, 4, 7, 5, 6, 8, 9, 10]
    pool.extend(reply)
    found = pool.harvest(0).phrases
    assert found
    for phrase in found:
        assert 7 not in words(phrase)
        assert set(words(phrase)) <= {1, 2, 3, 4} or set(words(phrase)) <= {5, 6, 8, 9, 10}


def test_what_was_drafted_from_the_prompt_and_rejected_does_not_leave_the_session() -> None:
    """The user's text is proposed and refused. The target's tokens after it quote it, so they are not saved."""
    secret = [500, 501, 502, 503, 504]
    prompt = [1, 2, *secret, 9, 1, 2]
    drafter = phrases(prompt)
    tree = drafter.draft(context(prompt, 5))
    assert list(tree.tokens) == [2, *secret]
    # The target picks 3 after the prompt, but knows the prompt: below each rejected token it continues with the secret.
    drafter.observe(verified(tree, path=[0], best=[3, *secret[1:], 8]))
    found = [phrase for part in drafter.pool.harvest(len(prompt)) for phrase in part]
    assert not set(secret).intersection(token for phrase in found for token in words(phrase))


def test_each_phrase_is_handed_over_once() -> None:
    pool = PhrasePool()
    pool.extend([1, 2, 3, 4, 5])
    pool.learn(verified(DraftTree.chain([5, 11, 12]), path=[0], best=[9, 12, 13]))
    said, _, refused = pool.harvest(0)
    assert [(unpack_key(key), unpack_tokens(after)) for key, _, after in refused] == [((5, 11), (12, 13))]
    assert said and not {11, 12, 13}.intersection(token for phrase in said for token in words(phrase))
    assert pool.harvest(5) == ([], [], [])


# -- the store ---------------------------------------------------------------------------------------------------------


class Shelf:
    """A reader over a fixed list that records its queries."""

    def __init__(self, *phrases: tuple[tuple[int, int], Sequence[int], Sequence[int]]) -> None:
        self.asked: list[list[int]] = []
        self.phrases = [
            Phrase(pack_key(*key), pack_tokens(before), pack_tokens(after), 1) for key, before, after in phrases
        ]

    def __call__(self, keys: Sequence[int]) -> list[Phrase]:
        self.asked.append(list(keys))
        return [phrase for phrase in self.phrases if phrase.key in keys]


def reading(shelf: Shelf) -> WithPhrases:
    """Return the drafter after the text 1 2, with a store."""
    drafter = WithPhrases(Autoregressive(), PhrasePool((), shelf))
    drafter.observe(observed([1, 2]))
    return drafter


def test_stored_phrases_are_proposed_the_one_that_agrees_furthest_back_first() -> None:
    shelf = Shelf(((1, 2), [9, 8], [30, 31]), ((1, 2), [6, 7], [40, 41]), ((5, 5), [], [50]))
    drafter = WithPhrases(Autoregressive(), PhrasePool((), shelf))
    text = [6, 7, 1, 2]
    drafter.observe(observed(text))
    tree = drafter.draft(context(text, 4))
    assert chains(tree) == [[40, 41], [30, 31]]
    assert tree.source is not None
    assert set(tree.source[1:]) == {"phrases"}


def test_a_key_is_looked_up_in_the_store_once_a_reply() -> None:
    shelf = Shelf(((1, 2), [], [3]))
    drafter = reading(shelf)
    for _ in range(3):
        drafter.draft(context([1, 2], 4))
    keys = [key for asked in shelf.asked for key in asked]
    assert pack_key(1, 2) in keys
    assert len(keys) == len(set(keys))
    drafter.pool.harvest(0)
    drafter.draft(context([1, 2], 4))
    assert [key for asked in shelf.asked for key in asked].count(pack_key(1, 2)) == 2, "the store has changed since"


def test_stored_phrases_that_were_accepted_are_reported_as_used_and_no_others() -> None:
    shelf = Shelf(((1, 2), [], [30, 31]), ((1, 2), [], [40, 41]))
    drafter = reading(shelf)
    tree = drafter.draft(context([1, 2], 4))
    node = list(tree.tokens).index(40)
    drafter.observe(verified(tree, path=[0, node], best=[40 if at == 0 else 99 for at in range(tree.size)]))
    used = drafter.pool.harvest(2).used
    assert used == [(pack_key(1, 2), b"", pack_tokens([40, 41]))]
    assert drafter.pool.harvest(5).used == []


def test_a_stored_phrase_is_known_again_in_what_is_left_of_the_draft() -> None:
    shelf = Shelf(((1, 2), [], [30, 31]), ((1, 2), [], [40, 41]))
    drafter = reading(shelf)
    tree = drafter.draft(context([1, 2], 4))
    first, second = tree.tokens[1], 70 - tree.tokens[1]
    left = tree.subtree([0, list(tree.tokens).index(second)])
    drafter.observe(verified(left, path=[0, 1], best=[second, 99]))
    assert drafter.pool.harvest(2).used == [(pack_key(1, 2), b"", pack_tokens([second, second + 1]))]
    tree = drafter.draft(context([1, 2], 4))
    drafter.observe(verified(tree.subtree([0]), path=[0], best=[first]))
    assert drafter.pool.harvest(3).used == [], "it was right, but the target found it without the phrase"


@each("second", [31, 41])
def test_stored_phrases_with_the_same_beginning_are_distinguished(second: int) -> None:
    shelf = Shelf(((1, 2), [], [30, 31]), ((1, 2), [], [30, 41]))
    drafter = reading(shelf)
    tree = drafter.draft(context([1, 2], 3))
    path = [0, 1, list(tree.tokens).index(second)]
    drafter.observe(verified(tree, path, best=[30, second, *[99] * (tree.size - 2)]))
    assert (pack_key(1, 2), b"", pack_tokens([30, second])) in drafter.pool.harvest(2).used


def test_nothing_is_looked_up_while_nothing_may_be_proposed() -> None:
    shelf = Shelf(((1, 2), [], [30, 31]))
    inner = Given([2], [-1])
    drafter = WithPhrases(inner, PhrasePool((), shelf))
    drafter.observe(observed([1, 2]))
    assert drafter.draft(context([1, 2], 0)) is inner.fixed
    assert shelf.asked == []
    assert inner.nodes == 0


@pytest.mark.slow
def test_what_one_session_learns_a_later_one_accepts(tiny: Make, tmp_path: Path) -> None:
    model, prompt, sampling = tiny("mistral-many-heads-no-window"), prompt_ids(12, seed=3), Sampling(1.0, seed=6)
    text, _ = reply(Session(model.target, Autoregressive(), Budget(0)), prompt, 40, sampling)
    assert len(set(text)) > 30, "a reply that hardly repeats itself: there is something to learn"
    steps, lengths = [], []
    for _ in range(2):
        with Store.open(tmp_path / "store" / "localspec.db", pytest.fail) as store:
            number = store.phrases.pool("tiny", "hash")
            assert number is not None
            pool = PhrasePool(model.target.special_tokens, partial(store.phrases.look_up, number))
            session = Session(model.target, WithPhrases(Autoregressive(), pool), Budget(8))
            ids, statistics = reply(session, prompt, 40, sampling)
            assert ids == text
            store.phrases.learn(number, *pool.harvest(len(prompt)))
            steps.append(statistics.steps)
            lengths.append(statistics.acceptance_length)
    assert steps[1] < steps[0]
    assert lengths[1] > lengths[0] + 0.5
    assert statistics.sources["phrases"] > 10


@pytest.mark.slow
@each("huge", [False, True])
def test_a_hostile_store_never_changes_the_text(tiny: Make, huge: bool) -> None:
    """Random phrases for every key: special ids, copies, empty ones, and ids that no vocabulary has (a damaged file)."""
    model, choose = tiny("qwen2-grouped-yarn"), random.Random(5)

    def garbage(keys: Sequence[int]) -> list[Phrase]:
        def ids(length: int) -> bytes:
            return pack_tokens(
                [choose.randrange(2**32 if huge and choose.random() < 0.3 else 320) for _ in range(length)]
            )

        return [
            Phrase(key, ids(choose.randrange(9)), ids(choose.randrange(9)), choose.randrange(5)) for key in keys
        ] * 3

    prompt = prompt_ids(12, seed=4)
    text = stock_reply(model.stock, prompt, 40)
    for inner in (Autoregressive(), Oracle(prompt + text)):
        pool = PhrasePool(model.target.special_tokens, garbage, vocabulary=320)
        ids, statistics = reply(Session(model.target, WithPhrases(inner, pool), Budget(10)), prompt, 40)
        assert ids == text
        assert statistics.drafted > len(text)


# -- over another drafter ----------------------------------------------------------------------------------------------


class Given(Witness):
    """A drafter that proposes one fixed tree below any root."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int], probe: Sequence[bool] | None = None) -> None:
        super().__init__()
        self.fixed, self.nodes = DraftTree(tokens, parents, ["given"] * len(tokens), probe), 0

    def draft(self, context: Context) -> DraftTree:
        self.nodes = context.nodes
        return self.fixed


def edges(tree: DraftTree) -> set[tuple[tuple[int, ...], bool]]:
    """Return each node by the tokens of its path, and whether it is a probe, independently of the order of nodes."""
    found = set()
    for node in range(tree.size):
        chain, at = [], node
        while at >= 0:
            chain.append(tree.tokens[at])
            at = tree.parents[at]
        found.add((tuple(chain[::-1]), bool(tree.probe and tree.probe[node])))
    return found


def test_the_inner_tree_is_kept_and_phrases_hang_below_its_leaves() -> None:
    text = [50, 51, 52, 53, 9, 60, 61, 62, 8, 3]
    inner = Given([3, 50, 51, 60, 61], [-1, 0, 1, 0, 3])
    drafter = phrases(text, inner=inner)
    tree = drafter.draft(context(text, 9))
    assert edges(inner.fixed) <= edges(tree)
    added = {path for path, _ in edges(tree) - edges(inner.fixed)}
    assert added
    assert all(path[:3] in {(3, 50, 51), (3, 60, 61)} for path in added), "only at the leaves"
    assert {(3, 50, 51, 52), (3, 60, 61, 62)} <= added
    assert tree.source is not None
    assert [tree.source[node] for node in range(1, tree.size)].count("given") == 4
    assert list(tree.tokens[:4]) == [3, 50, 51, 52], "the inner drafter's likeliest chain, lengthened, stands first"
    assert inner.nodes == 6, "a third of the nodes is left to phrases"


def test_probes_stay_probes_and_no_phrase_hangs_on_one() -> None:
    text = [50, 51, 52, 53, 9, 60, 61, 62, 8, 3]
    inner = Given([3, 50, 51, 60, 61], [-1, 0, 1, 0, 3], probe=[False, False, False, True, True])
    tree = phrases(text, inner=inner).draft(context(text, 9))
    assert edges(inner.fixed) <= edges(tree)
    added = {path for path, _ in edges(tree) - edges(inner.fixed)}
    assert added
    assert all(path[:3] == (3, 50, 51) for path in added)
    assert not any(probe for path, probe in edges(tree) if path in added)


def test_a_leaf_that_only_probes_hang_on_is_lengthened_even_by_what_they_probe() -> None:
    text = [50, 51, 9, 50, 51, 9, 3]
    inner = Given([3, 50, 51], [-1, 0, 1], probe=[False, False, True])
    tree = phrases(text, inner=inner).draft(context(text, 6))
    assert {((3, 50, 51), True), ((3, 50, 51), False)} <= edges(tree)
    assert tree.children[list(tree.tokens).index(50)] != {}


def test_the_inner_drafter_knows_by_depth_how_likely_phrases_hold_the_text() -> None:
    """A small model drafts only what phrases lack, so without these chances its drafts would be useless."""
    told: list[Sequence[float]] = []

    class Told(Autoregressive):
        def draft(self, context: Context) -> DraftTree:
            told.append(context.covered)
            return super().draft(context)

    seen, unseen = [5, 6, 7, 8, 5, 6], [5, 6, 7, 8]
    for text, anywhere in ((seen, True), (unseen, True), (seen, False)):
        drafter = WithPhrases(Told(), PhrasePool(()), anywhere=anywhere)
        drafter.observe(observed(text))
        tree = drafter.draft(context(text, 4))
        assert (tree.size > 1) == (text is seen)
    likely, unknown, below_leaves = told[0], told[1], told[-1]
    assert len(likely) == 4 and 0.2 < likely[0] <= 1.0 and sorted(likely, reverse=True) == likely
    assert not unknown and not below_leaves


def weighed(drafted: Sequence[float]) -> dict[int, float]:
    """Return the chances below the root where tokens 50, 51, ... are drafted with these, and the phrase is 60."""
    inner = Given([3, *(50 + number for number in range(len(drafted)))], [-1, *(0 for _ in drafted)])
    inner.fixed = replace(inner.fixed, chance=[1.0, *drafted])
    text = [1, 3, 60, 61, 1, 3]
    drafter = WithPhrases(inner, PhrasePool(()), anywhere=True)
    drafter.observe(observed(text))
    tree = drafter.draft(context(text, 9))
    assert tree.chance is not None
    return {token: tree.chance[node] or 0.0 for token, node in tree.children[0].items()}


def test_of_a_phrase_and_a_drafted_token_that_differ_each_is_less_likely() -> None:
    """Two tokens cannot both be likely in one place."""
    by_itself = weighed([])[60]
    assert by_itself == pytest.approx(0.5)
    for drafted in (0.1, 0.5, 0.9):
        chances = weighed([drafted])
        assert chances[60] < by_itself and chances[50] < drafted and sum(chances.values()) < 1
    assert weighed([0.9])[60] < weighed([0.5])[60] < weighed([0.1])[60]


def test_a_drafted_token_that_a_phrase_has_too_is_more_likely_even_where_no_node_is_added() -> None:
    inner = Given([3, 60, 61], [-1, 0, 1])
    inner.fixed = replace(inner.fixed, chance=[1.0, 0.3, 0.3])
    drafter = WithPhrases(inner, PhrasePool(()), anywhere=True)
    drafter.observe(observed([1, 3, 60, 61, 1, 3]))
    tree = drafter.draft(context([1, 3, 60, 61, 1, 3], 2))
    assert list(tree.tokens) == [3, 60, 61] and tree.chance is not None
    assert all(chance and chance > 0.5 for chance in tree.chance[1:])


def test_the_tree_keeps_the_nodes_that_are_likeliest_with_phrases() -> None:
    """Token 50 was the drafter's first; a long match says 60, and so does the drafter's second."""
    text = [1, 2, 3, 4, 60, 61, 1, 2, 3, 4]
    inner = Given([4, 50, 51, 60], [-1, 0, 1, 0])
    inner.fixed = replace(inner.fixed, chance=[1.0, 0.5, 0.9, 0.3])
    drafter = WithPhrases(inner, PhrasePool(()), anywhere=True)
    drafter.observe(observed(text))
    assert list(drafter.draft(context(text, 1)).tokens) == [4, 60]


def test_what_the_target_wrote_after_both_is_learned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[tuple[dict[int, float], set[int], int]] = []
    monkeypatch.setattr(
        JointChances, "learn", lambda self, drafted, phrases, token: learned.append((drafted, {*phrases}, token))
    )
    inner = Given([3, 50, 51, 60], [-1, 0, 1, 0])
    inner.fixed = replace(inner.fixed, chance=[1.0, 0.5, 0.8, 0.3])
    text = [1, 3, 60, 61, 1, 3]
    drafter = WithPhrases(inner, PhrasePool(()), anywhere=True)
    drafter.observe(observed(text))
    tree = drafter.draft(context(text, 9))
    drafter.observe(verified(tree, [0, tree.children[0][50]], [7] * tree.size))
    drafter.observe(observed([8, 9]))
    assert learned == [({50: 0.5, 60: 0.3}, {60}, 50)]


def test_phrases_below_drafted_tokens_whose_chance_falls_never_lose_their_parents() -> None:
    """Nodes are taken by their worth, so none may be worth more than its parent."""
    rng = random.Random(5)
    for _ in range(300):
        text = [rng.randrange(4) for _ in range(40)]
        inner, size = Given([text[-1]], [-1]), rng.randrange(2, 16)
        parents = [-1, *(rng.randrange(node) for node in range(1, size))]
        tokens = [text[-1], *(rng.randrange(4) for _ in parents[1:])]
        chance = [1.0, *(rng.random() for _ in parents[1:])]
        inner.fixed = DraftTree(tokens, parents, chance=chance)
        drafter = WithPhrases(inner, PhrasePool(()), anywhere=True)
        drafter.observe(observed(text))
        tree = drafter.draft(context(text, rng.randrange(1, 9)))
        assert tree.chance is not None and all(chance is not None and 0 <= chance <= 1 for chance in tree.chance)


def test_an_inner_tree_with_nothing_to_add_is_handed_on_as_it_is() -> None:
    inner = Given([3, 50, 51], [-1, 0, 1])
    drafter = phrases([1, 2, 3], inner=inner)
    assert drafter.draft(context([1, 2, 3], 9)) is inner.fixed
    assert drafter.draft(context([1, 2, 3], 2)) is inner.fixed
