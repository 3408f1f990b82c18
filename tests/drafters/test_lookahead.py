"""Lookahead: the window behind the text, the phrases that it collects, and the same text as plain decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, cast

import numpy as np
import pytest
from each import each
from scripted_drafters import Witness
from session_replies import reply
from tiny_models import FAMILIES, Tiny, prompt_ids, stock_logits, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Context, Step
from localspec.decoding.logits import NumpyHidden
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.lookahead import SOURCE, Lookahead
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.nn.cache import KVCache
from localspec.nn.target import Target

Make = Callable[[str], Tiny]

GREEDY, NODES = Sampling(), 16
LONG = "mistral-many-heads-no-window"  # its greedy text does not circle
CIRCLES = "llama-one-key-head-tied-linear"


class Recording(PhrasePool):
    """A pool that holds only what a window collects, and records it."""

    def __init__(self, special: Sequence[int] = ()) -> None:
        super().__init__(special, text=False, verification=False)
        self.taken: list[tuple[int, ...]] = []

    def take(self, phrase: Sequence[int]) -> None:
        self.taken.append(tuple(phrase))
        super().take(phrase)

    def holds(self) -> set[tuple[int, ...]]:
        return {(token, *found.tokens) for token in range(2000) for found in self.continuations([token], 99)}


def context(tokens: Sequence[int], nodes: int) -> Context:
    return Context(tokens, cast("KVCache", None), nodes, GREEDY)  # a window never looks at the cache


def answered(tree: DraftTree, picks: Sequence[int], committed: Sequence[int]) -> Step:
    """Return a decode step that committed these, and in which the target picked `picks` at the probes."""
    return Step(committed, NumpyHidden(np.empty((1, 0))), tree, [0], [committed[0], *picks])


def levels(tree: DraftTree, columns: int) -> list[list[int]]:
    """Return the tokens of the window, level by level."""
    assert (tree.size - 1) % columns == 0
    return [list(tree.tokens[start : start + columns]) for start in range(1, tree.size, columns)]


def step_by_step(window: Lookahead, text: list[int], nodes: int, steps: Sequence[Sequence[int]]) -> list[DraftTree]:
    """Its trees where the target picks 1000, 1001, … at the probes, each number once; `text` grows by the steps."""
    trees, pick = [], 1000
    for committed in steps:
        trees.append(tree := window.draft(context(text, nodes)))
        window.observe(answered(tree, range(pick, pick + tree.size - 1), committed))
        pick += tree.size - 1
        text += committed
    return trees


# -- the shape ---------------------------------------------------------------------------------------------------------


def test_a_window_is_a_chain_with_levels_hanging_below_it_and_all_of_it_are_probes() -> None:
    """Three columns, phrases of four: filled up one level a forward, then it stays as large.

    root ─ a ─ b ─ c
           d   e   f
           g   h   i
    """
    window = Lookahead(Recording(), (), columns=3, phrase=4)
    trees = step_by_step(window, [7, 8, 9], 9, [[1], [1], [1], [1], [1]])
    assert [tree.size for tree in trees] == [4, 7, 10, 10, 10]
    assert list(trees[-1].parents) == [-1, 0, 1, 2, 1, 2, 3, 4, 5, 6]
    for tree in trees:
        assert list(tree.parents) == list(trees[-1].parents)[: tree.size]
        assert tree.depth == [0, 1, 2, 3, 2, 3, 4, 3, 4, 5][: tree.size]
        assert tree.probe is not None and list(tree.probe) == [False] + [True] * (tree.size - 1)
        assert tree.source is not None and set(tree.source[1:]) == {SOURCE}
        assert not any(tree.children), "nothing of it can be accepted"
    assert [tree.tokens[0] for tree in trees] == [9, 1, 1, 1, 1]


@each("nodes", range(14))
def test_probes_are_nodes_and_count_as_such(nodes: int) -> None:
    """From the first forward on there are as many columns as all three levels have room for."""
    window = Lookahead(Recording(), (), columns=3, phrase=4)
    columns = min(nodes // 3, 3)
    trees = step_by_step(window, [7, 8, 9], nodes, [[1]] * 5)
    assert [tree.size for tree in trees] == [1 + columns * level for level in (1, 2, 3, 3, 3)]
    if not columns:
        assert list(trees[0].tokens) == [9] and not trees[0].probe, "only the root"


def test_a_window_that_had_no_room_for_a_while_continues() -> None:
    pool = Recording()
    window = Lookahead(pool, (), columns=2, phrase=3)
    text = [7, 8, 9]
    step_by_step(window, text, 4, [[1], [1], [1]])
    assert len(pool.taken) == 4
    assert [tree.size for tree in step_by_step(window, text, 1, [[1], [1]])] == [1, 1]
    assert len(pool.taken) == 4
    assert [tree.size for tree in step_by_step(window, text, 4, [[1]])] == [5]
    assert len(pool.taken) == 6
    assert [tree.size for tree in step_by_step(window, text, 3, [[1], [1]])] == [3, 3], "of one column"
    assert len(pool.taken) == 8


def test_what_is_not_known_is_filled_with_words_of_the_text() -> None:
    text = [70, 80, 90]
    tree = Lookahead(Recording(), (), columns=12, phrase=2).draft(context(text, 12))
    assert set(tree.tokens[1:]) == {70, 80, 90}
    again = Lookahead(Recording(), (), columns=12, phrase=2).draft(context(text, 12))
    assert again.tokens == tree.tokens, "what is drafted does not depend on the day"


# -- the window moves on with the text ---------------------------------------------------------------------------------


@each("accepted", [1, 2, 3, 4, 9])
def test_the_window_moves_as_far_as_the_text(accepted: int) -> None:
    """A guess keeps its place in the text. Four columns, two levels, root at place 0; picks are numbered in order.

    place      1  2  3  4  5  6          behind one token, root at 1      behind three, root at 3
    level 0    a  b  c  d                 level 0  e  f  g  h  at 2 …      level 0  g  h  ·  ·  at 4 …
    level 1       e  f  g  h              level 1  w  x  y  z  at 3 …      level 1  y  z  ·  ·  at 5 …
    picks            w  x  y  z
    """
    pool = Recording()
    window, text = Lookahead(pool, (), columns=4, phrase=3), [7, 8, 9]
    first, second = step_by_step(window, text, 8, [[1], list(range(1, accepted + 1))])
    assert levels(second, 4)[1] == [1001, 1002, 1003, second.tokens[8]], "while it fills up, level 0 moves too"
    assert levels(second, 4)[0][:3] == levels(first, 4)[0][1:]
    assert pool.taken == [
        (second.tokens[1 + column], second.tokens[5 + column], 1004 + 4 + column) for column in range(4)
    ]
    third = levels(window.draft(context(text, 8)), 4)
    shifted = accepted - 1
    known = max(4 - shifted, 0)
    assert third[0][:known] == levels(second, 4)[1][shifted:]
    assert third[1][:known] == [1008, 1009, 1010, 1011][shifted:]
    assert set(third[0][known:] + third[1][known:]) <= set(text), "refilled"


def test_the_prompt_moves_nothing_and_a_rewind_keeps_the_guesses() -> None:
    pool = Recording()
    window, text = Lookahead(pool, (), columns=2, phrase=3), [7, 8, 9]
    step_by_step(window, text, 4, [[1], [1], [1]])
    window.rewind(2)
    window.observe(Step([5, 6], NumpyHidden(np.empty((2, 0)))))
    tree = window.draft(context([7, 8, 5, 6], 4))
    assert window.draft(context([7, 8, 5, 6], 4)) == tree, "asked twice, it says the same"
    assert levels(tree, 2) == [[1004, 1005], [1008, 1009]], "the picks of the two steps before"


@each("missing", [1, 2, 3, 4])
@each("accepted", [1, 2])
def test_where_probes_were_cut_off_nothing_is_won_and_the_window_stays_in_step(missing: int, accepted: int) -> None:
    """In a pruned tree the rest of the window has another shape, and its picks have another meaning."""
    pool = Recording()
    window, text = Lookahead(pool, (), columns=2, phrase=3), [7, 8, 9]
    step_by_step(window, text, 4, [[1], [1], [1]])
    pool.taken.clear()
    tree = window.draft(context(text, 4))
    part = tree.subtree(range(tree.size - missing))
    window.observe(answered(part, range(2000, 2000 + part.size - 1), [1, 2][:accepted]))
    assert pool.taken == []
    text += [1, 2][:accepted]
    after = window.draft(context(text, 4))
    assert after.size == 5 and not set(range(2000, 2010)) & set(after.tokens)
    for then, now in zip(levels(tree, 2), levels(after, 2), strict=True):
        assert now[: 2 - accepted] == then[accepted:], "each guess at the place where it was"
    window.observe(answered(after, range(3000, 3004), [1]))
    assert [phrase[-1] for phrase in pool.taken] == [3002, 3003], "and it goes on"


# -- special tokens ----------------------------------------------------------------------------------------------------


def test_special_tokens_that_the_target_picks_are_in_no_window_and_no_phrase() -> None:
    special = (1001, 1004, 1009, 1012)  # picks at the last level, which become guesses
    pool = Recording(special)
    window, text = Lookahead(pool, special, columns=2, phrase=3), [7, 8, 9]
    trees = step_by_step(window, text, 4, [[1]] * 6)
    assert all(not set(special) & set(tree.tokens) for tree in trees)
    held = pool.holds()
    assert held and all(not set(special) & set(phrase) for phrase in held)
    assert any(set(special) & set(phrase) for phrase in pool.taken), "there was something to refuse"


def test_special_tokens_of_the_text_are_no_guesses() -> None:
    """Chat marks are in every prompt, and no model writes them inside a reply."""
    window = Lookahead(Recording([1, 2]), (1, 2), columns=12, phrase=2)
    tree = window.draft(context([1, 50, 2, 1, 60, 2, 1], 12))
    assert not {1, 2} & set(tree.tokens[1:])


def test_a_text_of_special_tokens_only_breaks_nothing() -> None:
    window = Lookahead(Recording([1, 2]), (1, 2), columns=3, phrase=3)
    for text in ([1], [1, 2, 1]):
        assert window.draft(context(text, 6)).tokens[0] == 1


# -- against a Jacobi loop over the stock model ------------------------------------------------------------------------


@dataclass
class Jacobi:
    """The window in the plainest form: guesses by level and place in the text, the stock model for everything else.

    `load_tensors` are the guesses that were drawn by lot. `step` returns what its columns came to.
    """

    stock: Any
    columns: int
    phrase: int
    guesses: list[dict[int, int]] = field(default_factory=lambda: [{}])

    def step(self, text: Sequence[int], fill: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        root, picks, grams = len(text) - 1, {}, []
        for level, drawn in enumerate(fill):
            for column, token in enumerate(drawn):
                known = self.guesses[level].setdefault(root + 1 + level + column, token)
                assert known == token, "a guess that was made is another one now"
        assert len(fill) == len(self.guesses)
        for column in range(self.columns):
            chain = [self.guesses[0][root + 1 + place] for place in range(column + 1)]
            below = [guesses[root + 1 + level + column] for level, guesses in enumerate(self.guesses) if level]
            logits = stock_logits(self.stock, [*text, *chain, *below])[-1]
            first, second = logits.topk(2).values.tolist()
            assert first - second > 2e-5 * logits.abs().max(), "a near-tie proves nothing; take another seed"
            picks[root + 1 + len(self.guesses) + column] = int(logits.argmax())
            grams.append((chain[-1], *below, int(logits.argmax())))
        self.guesses.append(picks)
        if len(self.guesses) < self.phrase:
            return []
        del self.guesses[0]
        return grams


class Helped(Witness):
    """A window, and next to it some right tokens of a known text, as many as the script says, then a wrong one."""

    def __init__(self, window: Lookahead, text: Sequence[int], right: Sequence[int]) -> None:
        super().__init__()
        self.window, self.text, self.right, self.drafted = window, list(text), list(right), DraftTree((0,), (-1,))

    def observe(self, step: Step) -> None:
        super().observe(step)
        self.window.observe(step)

    def tree(self, context: Context) -> DraftTree:
        self.drafted = tree = self.window.draft(context)
        self.right.append(count := self.right.pop(0))
        here = len(context.committed)
        chain = self.text[here : here + count]
        size, probe = len(chain), tree.probe or [False] * tree.size
        return DraftTree(
            [tree.tokens[0], *chain, *tree.tokens[1:]],
            [-1, *range(size), *(parent + size if parent else 0 for parent in tree.parents[1:])],
            probe=[False] * (1 + size) + list(probe[1:]),
        )


# Columns, tokens of a phrase, and how many of the tokens drafted next to the window are right, in turn.
WINDOWS: dict[str, tuple[int, int, list[int]]] = {
    "window only": (3, 4, [0]),
    "accepted too": (4, 3, [0, 1, 2, 0]),
    "more than there are columns": (2, 2, [1, 0, 3, 0, 5]),
    "one column": (1, 3, [0, 0, 1]),
    "wide": (5, 4, [2, 0, 0, 0, 1, 7]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "window"), [*product([LONG], WINDOWS), *product(FAMILIES[3:5], ["wide"])])
def test_its_phrases_are_those_of_a_plain_jacobi_loop_over_the_stock_model(tiny: Make, name: str, window: str) -> None:
    columns, phrase, right = WINDOWS[window]
    model, prompt, most = tiny(name), prompt_ids(9, seed=5), 40
    text = prompt + stock_reply(model.stock, prompt, 30)
    pool = Recording()
    helped = Helped(Lookahead(pool, (), columns, phrase), text, right)
    reference = Jacobi(model.stock, columns, phrase)
    cache = model.target.cache(128)
    tokens = [*prompt, *prefill_step(model.target, cache, helped, prompt, GREEDY, last=True).committed[-1:]]
    steps, won = 0, 0
    while len(tokens) < 34 and steps < 12:
        before = list(tokens)
        tokens += decode_step(model.target, cache, helped, tokens, Budget(most), GREEDY).committed
        expected = reference.step(before, levels(helped.drafted, columns))
        assert pool.taken == expected
        pool.taken.clear()
        won, steps = won + len(expected), steps + 1
    assert tokens == text[: len(tokens)]
    assert won >= columns * 3
    if any(right):
        assert len(tokens) > len(prompt) + 1 + steps, "some were accepted"


# -- losslessness ------------------------------------------------------------------------------------------------------


def lookahead(target: Target, columns: int = 3, phrase: int = 4, *, text: bool = True) -> WithPhrases:
    """Return the drafter `lookahead`: a window and its phrases, with or without those of the conversation."""
    pool = PhrasePool(target.special_tokens, text=text, verification=text)
    return WithPhrases(Lookahead(pool, target.special_tokens, columns, phrase), pool)


class Dear:
    """Costs with expensive rows, so that the budget cuts trees, and probes with them."""

    def at(self, rows: int, context: int) -> float:
        return 1.0 + 0.02 * rows


@pytest.mark.slow
@each("name", [FAMILIES[0], FAMILIES[4], FAMILIES[5]])
def test_turns_with_a_reused_prefix_and_a_budget_that_prunes_are_those_of_the_stock_model(tiny, name):
    model, prompt = tiny(name), prompt_ids(15, seed=6)
    session = Session(model.target, lookahead(model.target), Budget(NODES, Dear()))
    for turn in range(3):
        text = stock_reply(model.stock, prompt, 20)
        assert reply(session, prompt, 20)[0] == text
        prompt = [*prompt, *text, *prompt_ids(7, seed=turn)]


# -- what it is good for -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_phrases_that_a_window_won_are_accepted_where_the_text_goes_in_circles(tiny: Make) -> None:
    """Nothing is looked up in the text, nothing learned from verification: all that is proposed comes from the window."""
    model, prompt = tiny(CIRCLES), prompt_ids(8, seed=1)
    text = stock_reply(model.stock, prompt, 80, stops=())
    assert len(set(pairwise(text))) < 60
    session = Session(model.target, lookahead(model.target, text=False), Budget(NODES))
    ids, statistics = reply(session, prompt, 80)
    assert ids == text
    assert statistics.sources["phrases"] > 10
    assert statistics.acceptance_length > 1.25
    alone = PhrasePool(model.target.special_tokens, text=False, verification=False)
    _, without = reply(Session(model.target, WithPhrases(Autoregressive(), alone), Budget(NODES)), prompt, 80)
    assert without.acceptance_length == 1, "without the window there are none"


@each("nodes", range(1, 13))
def test_where_phrases_are_lacking_too_a_guess_is_a_probe_and_nothing_else(nodes: int) -> None:
    """A model wrote it after other guesses, so as a draft it would not be worth a row."""
    pool = Recording()
    drafter, text = WithPhrases(Lookahead(pool, (), columns=4, phrase=4), pool), [7, 8, 9]
    for _ in range(4):
        tree = drafter.draft(context(text, nodes))
        assert tree.size <= nodes + 1
        source, probe = tree.source or [""] * tree.size, tree.probe or [False] * tree.size
        assert all(probe[node] == (source[node] == SOURCE) for node in range(1, tree.size))
        drafter.observe(answered(tree, range(1000, 999 + tree.size), [1]))
        text = [*text, 1]
