"""The node budget: on a simulated clock with scripted texts, and against all other choices."""

import copy
import itertools
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from budget_simulation import (
    CARD,
    MOST,
    PROCESSOR,
    RIGHT,
    WRONG,
    Curve,
    Verified,
    best_fixed,
    chain,
    simulate,
    throughput,
)
from each import each
from golden import wording
from scripted_drafters import OffChain, Oracle, RandomBranches, random_tree
from slow_cases import covering
from tiny_models import Tiny, prompt_ids, stock_reply

from localspec.choosing.cost import ForwardCosts
from localspec.decoding.acceptance import walk
from localspec.decoding.budget import DECLINED, DOUBTED, ENOUGH, LATEST, LOSS, SOONEST, Budget
from localspec.decoding.drafter import Drafter, Step
from localspec.decoding.limits import Limits
from localspec.decoding.logits import NumpyHidden, PicksOnRequest
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.events import Done, Text
from localspec.nn.target import Target

Make = Callable[[str], Tiny]
WIDE_HEADS = "qwen3-grouped-mixed-window-wide-heads"

# In addition to the two machines that are drawn: every row costs time; the second row costs as much as eight; no draft
# can pay much; measured costs go up and down.
MACHINES = {
    "processor": PROCESSOR,
    "card": CARD,
    "dear rows": Curve({1: 1.0, 2: 1.36, 4: 2.1, 8: 3.5, 16: 6.0, 32: 10.7, 64: 20.0}),
    "dear second row": Curve({1: 1.0, 2: 1.25, 4: 1.25, 8: 1.3, 16: 1.8, 32: 3.0, 64: 5.0}),
    "hardly any gain": Curve({1: 1.0, 2: 1.9, 64: 60.0}),
    "up and down": Curve({1: 1.0, 2: 2.0, 4: 1.1, 8: 3.0, 16: 1.9, 64: 20.0}),
}


def bush(nodes: int, width: int = 3) -> DraftTree:
    """Three guesses below every node, the likelier ones first, level by level."""
    tokens, parents = [0], [-1]
    for parent in range(nodes):
        for rank in range(width):
            if len(tokens) <= nodes:
                tokens.append(rank)
                parents.append(parent)
    return DraftTree(tokens, parents, ["bush"] * len(tokens))


DRAFTS = {"chain": chain, "bush": bush}


def step(tree: DraftTree, *coming: int) -> Step:
    """Return the verification of a tree by a target that would continue like this."""
    path, bonus = walk(tree, PicksOnRequest(lambda node: [*coming, WRONG][tree.depth[node]]))
    return Step([*(tree.tokens[node] for node in path[1:]), bonus], NumpyHidden(np.empty((0, 0))), tree, path)


def feed(budget: Budget, draft: DraftTree, *coming: int, times: int = 1, seconds: float = 0.0) -> DraftTree:
    """Decode step after step with the same draft and the same outcome. Return the last verified tree.

    Each draft takes `seconds`, if one is made.
    """
    for _ in range(times):
        drafted = draft if budget.nodes else draft.subtree([0])
        tree = budget.prune(drafted, 100)
        budget.observe(replace(step(tree, *coming), draft_seconds=seconds if drafted.size > 1 else 0.0))
    return tree


def sizes_at(steps: Sequence[Verified], start: int, end: int) -> list[int]:
    return [step.nodes for step in steps if start <= step.position < end]


# -- scripted texts ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("most", [MOST, 63])
@each("draft", DRAFTS)
@each("machine", MACHINES)
def test_where_nothing_is_accepted_200_tokens_cost_three_per_cent_at_most(machine: str, draft: str, most: int) -> None:
    steps = simulate(Budget(most, MACHINES[machine]), [WRONG] * 200, MACHINES[machine], DRAFTS[draft])
    assert len(steps) == 200
    assert 200 <= steps[-1].clock <= 200 * 1.03
    assert machine == "hardly any gain" or steps[0].nodes > 0, "nothing ventured, nothing learned"


@pytest.mark.slow
@each("machine, most", covering(MACHINES, [MOST, 16]))
def test_where_everything_is_accepted_the_best_size_is_reached_within_20_steps(machine: str, most: int) -> None:
    costs, text = MACHINES[machine], [RIGHT] * 1200
    steps = simulate(Budget(most, costs), text, costs)
    begin = steps[20]
    reached = (len(text) - steps[21].position) / (steps[-1].clock - begin.clock)
    assert reached >= 0.9 * best_fixed(text, costs, most=most)[0]


@each("machine, within", [(PROCESSOR, 64), (CARD, 12)])
def test_a_sudden_change_is_found_both_ways(machine: Curve, within: int) -> None:
    text = [WRONG] * 140 + [RIGHT] * 160 + [WRONG] * 200
    steps = simulate(Budget(MOST, machine), text, machine)
    assert set(sizes_at(steps, 60, 140)) == {0 if machine is PROCESSOR else 1}
    assert set(sizes_at(steps, 140 + within, 290)) == {MOST}
    late = sizes_at(steps, 340, 500)
    assert sum(size > (0 if machine is PROCESSOR else 1) for size in late) <= 4, "a trial now and then"


@pytest.mark.slow
@each("machine, chance", covering(MACHINES, [0.1, 0.3, 0.6, 0.9]))
def test_where_guesses_are_right_by_chance_it_is_nearly_as_good_as_the_best_fixed_size(machine, chance):
    choose = random.Random(3)
    text = [RIGHT if choose.random() < chance else WRONG for _ in range(1000)]
    costs = MACHINES[machine]
    assert throughput(simulate(Budget(MOST, costs), text, costs), text) >= 0.95 * best_fixed(text, costs)[0]


# -- switching off and on ----------------------------------------------------------------------------------------------


def test_off_after_drafts_that_lose_time_and_on_again_at_growing_intervals() -> None:
    budget, on = Budget(MOST, PROCESSOR), []
    for _ in range(2500):
        on.append(budget.nodes == MOST)
        assert budget.nodes in (0, MOST)
        feed(budget, chain(MOST), WRONG, seconds=0.5)
    runs = [(value, len(list(run))) for value, run in itertools.groupby(on)]
    off = [length for value, length in runs if not value]
    assert off[:7] == [16, 32, 64, 128, 256, 512, 512]
    assert (SOONEST, LATEST) == (16, 512)
    assert runs[0][1] * 0.5 >= LOSS > (runs[0][1] - 3) * 0.5, "half a plain step each, and a few rows"
    assert {length for value, length in runs[1:-1] if value} == {4}, "each trial is short"


def test_drafts_that_take_no_time_are_never_switched_off() -> None:
    """Phrases are looked up in every step. They cost nothing until they match."""
    budget = Budget(MOST, PROCESSOR)
    feed(budget, chain(MOST), WRONG, times=400)
    assert budget.nodes == MOST and budget.off_reason is None
    sizes = [feed(budget, chain(MOST), *[RIGHT] * MOST).size for _ in range(8)]
    assert sizes[0] == 1 and sizes[-1] == MOST + 1, "judged by the token that comes anyway"


def test_a_draft_that_pays_is_forgiven_all_and_the_intervals_begin_again() -> None:
    budget = Budget(MOST, PROCESSOR)
    while budget.nodes:
        feed(budget, chain(MOST), WRONG, seconds=0.5)
    feed(budget, chain(MOST), WRONG, times=SOONEST)
    assert budget.nodes == MOST and budget.off_reason, "not before a draft pays"
    while budget.off_reason:
        feed(budget, chain(MOST), *[RIGHT] * MOST, seconds=0.1)
    steps = 0
    while budget.nodes:
        feed(budget, chain(MOST), WRONG, seconds=0.5)
        steps += 1
    assert steps > 2, "the first allowance, not that of a trial"
    feed(budget, chain(MOST), WRONG, times=SOONEST - 1)
    assert budget.nodes == 0
    feed(budget, chain(MOST), WRONG)
    assert budget.nodes == MOST


def test_drafts_that_did_not_pay_in_earlier_replies_are_tried_for_a_shorter_time_until_they_pay() -> None:
    def tried(budget: Budget) -> int:
        steps = 0
        while budget.nodes:
            feed(budget, chain(MOST), WRONG, seconds=0.5)
            steps += 1
        return steps

    budget = Budget(MOST, PROCESSOR, doubted=True)
    assert 3 * (soon := tried(budget)) <= tried(Budget(MOST, PROCESSOR))
    feed(budget, chain(MOST), WRONG, times=DOUBTED - 1)
    assert budget.nodes == 0
    budget.begin()
    assert budget.nodes == MOST, "each reply tries them"
    while budget._allowed < LOSS:
        feed(budget, chain(MOST), *[RIGHT] * MOST, seconds=0.1)
    budget.begin()
    assert tried(budget) > soon, "the usual allowance"


def test_bad_luck_does_not_switch_off_what_pays_on_the_whole() -> None:
    """Half of all drafts of three tokens fail, each for 0.4 of a step and a few rows: 2.5 tokens for 1.5 steps."""
    choose = random.Random(1)
    budget = Budget(3, Curve({1: 1.0, 4: 1.1, 64: 30.0}))
    off = 0
    for _ in range(600):
        off += budget.nodes == 0
        right = choose.random() < 0.5
        feed(budget, chain(3), *[RIGHT if right else WRONG] * 3, seconds=0.4)
    assert off < 60


def test_speculation_is_tried_at_once_when_the_machine_has_become_quiet() -> None:
    """Speculation stays off only as long as the reason holds."""

    def wait(slowness: float) -> int:
        budget, tree = Budget(MOST, PROCESSOR), chain(MOST)

        def once(slow: float) -> None:
            drafted = tree if budget.nodes else tree.subtree([0])
            cut = budget.prune(drafted, 100)
            seconds = slow * PROCESSOR.at(cut.size, 100)
            budget.observe(replace(step(cut, WRONG), draft_seconds=slow * (drafted.size > 1), verify_seconds=seconds))

        for _ in range(2):
            while budget.nodes:
                once(3.0)
            once(3.0)
        waited = 0
        while not budget.nodes:
            once(slowness)
            waited += 1
        return waited

    assert wait(3.0) == SOONEST - 2
    assert wait(1.0) <= 6


@each(
    "tokens, seconds, reason", [(0, 1.0, "drafts_hardly_ever_right_text"), (1, 20.0, "drafts_save_almost_no_time_here")]
)
def test_the_reason_is_a_sentence(tokens, seconds, reason) -> None:
    budget = Budget(1, CARD)
    assert budget.off_reason is None
    feed(budget, chain(1), *[RIGHT] * 3)
    while budget.nodes:
        assert budget.off_reason is None
        feed(budget, chain(1), *[RIGHT] * tokens, WRONG, seconds=seconds)
    assert budget.off_reason == wording(reason)


def test_the_reason_has_the_figures_of_this_machine() -> None:
    budget = Budget(1, CARD)
    feed(budget, chain(1), RIGHT, times=20)
    while budget.nodes:
        feed(budget, chain(1), RIGHT, seconds=2.5)
    figures = re.fullmatch(r"drafts took (\d+\.\d+)× the time that they saved", budget.off_reason or "")
    assert figures and float(figures[1]) == pytest.approx(2.5, abs=0.1)


def test_where_even_a_right_guess_would_not_pay_nothing_is_verified() -> None:
    slow = Curve({1: 1.0, 64: 130.0})
    assert {step.nodes for step in simulate(Budget(MOST, slow), [RIGHT] * 300, slow)} == {0}


def test_empty_drafts_neither_count_against_speculation_nor_for_it() -> None:
    budget = Budget(MOST, CARD)
    feed(budget, chain(MOST), WRONG, times=3)
    while budget._lost + 0.6 < LOSS:
        feed(budget, chain(MOST), WRONG, seconds=0.5)
    feed(budget, chain(0), WRONG, times=50)
    assert budget.nodes == MOST
    feed(budget, chain(MOST), WRONG, times=2, seconds=0.5)
    assert budget.nodes == 0


def test_a_source_that_pays_keeps_speculation_on_and_is_not_cut_with_another_that_does_not() -> None:
    budget = Budget(MOST, PROCESSOR)
    bad, good = DraftTree.chain([0] * 9, "bad"), DraftTree.chain([0] * 9, "good")
    for _ in range(40):
        feed(budget, bad, WRONG, times=3)
        feed(budget, good, *[0] * 8)
    assert budget.nodes == MOST
    assert feed(budget, bad, WRONG).size == 1
    assert feed(budget, good, *[0] * 8).size == 9


# -- a fixed experiment ------------------------------------------------------------------------------------------------


@each("cut", [Budget.prune, Budget.take_whole])
@each("most", [0, 1, 8])
def test_without_costs_nothing_is_pruned_learned_or_switched_off(most, cut):
    budget = Budget(most)
    for seed in range(100):
        tree = random_tree(0, most, seed)
        assert cut(budget, tree, 100) is tree
        budget.observe(step(tree, WRONG))
        assert (budget.nodes, budget.most, budget.off_reason, budget._hits) == (most, most, None, {})


# -- what is kept ------------------------------------------------------------------------------------------------------


class ForwardCostModel:
    """A model of forward costs with any figures, by rows."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds

    def at(self, rows: int, context: int) -> float:
        assert context == 100
        return self.seconds[rows - 1]


def tried(costs: ForwardCostModel, choose: random.Random) -> Budget:
    """Return a budget that has seen some drafts from two sources."""
    budget = Budget(7, costs)
    for _ in range(choose.randrange(30)):
        tree = random_tree(0, choose.randint(1, 7), choose.randrange(10**6), vocabulary=8)
        budget.prune(named(tree, choose), 100)
        budget.observe(step(tree, *(choose.randrange(5, 8) for _ in range(8))))
    return budget


def named(tree: DraftTree, choose: random.Random) -> DraftTree:
    return DraftTree(tree.tokens, tree.parents, [choose.choice("ab") for _ in tree.tokens])


@each("seed", range(60))
def test_no_part_of_a_tree_that_holds_its_root_is_worth_more_beyond_its_rows(seed: int) -> None:
    choose = random.Random(seed)
    costs = ForwardCostModel(*(choose.uniform(1, 1 + 0.15 * rows) for rows in range(8)))  # noisy, and not even rising
    budget = tried(costs, choose)
    tree = named(random_tree(0, choose.randint(1, 7), seed, vocabulary=8, deep=choose.random()), choose)
    chances = budget._chances(tree)

    token = budget.token_seconds(100)
    assert token is not None

    def worth(nodes: Sequence[int]) -> float:
        return sum(chances.get(node, 0.0) for node in nodes) * token - costs.at(len(nodes), 100)

    best = max(
        worth((0, *part))
        for size in range(tree.size)
        for part in itertools.combinations(range(1, tree.size), size)
        if all(node in chances and tree.parents[node] in (0, *part) for node in part)
    )
    pruned, kept = budget.prune(tree, 100), []
    for node in range(pruned.size):  # which nodes of the whole tree these are
        parent = kept[pruned.parents[node]] if node else -1
        kept.append(
            next(
                other
                for other in range(kept[-1] + 1 if kept else 0, tree.size)
                if (tree.tokens[other], tree.parents[other]) == (pruned.tokens[node], parent)
            )
        )
    assert kept[0] == 0, "the root stays"
    assert worth(kept) == pytest.approx(best)
    assert list(pruned.source or ()) == [(tree.source or ())[node] for node in kept]


def test_of_sizes_that_promise_the_same_the_smallest_is_kept() -> None:
    budget = Budget(2, ForwardCostModel(1.0, 1.5, 1.875))
    assert budget._chances(chain(2)) == {0: 1.0, 1: 0.5, 2: 0.375}
    assert feed(budget, chain(2), RIGHT, RIGHT).size == 1
    assert feed(Budget(2, ForwardCostModel(1.0, 1.25, 1.625)), chain(2), RIGHT, RIGHT).size == 2


def test_rows_have_the_price_of_their_place_in_the_text() -> None:
    class Growing:
        def at(self, rows: int, context: int) -> float:
            return 1 + (rows - 1) * context / 1000

    budget = Budget(8, Growing())
    sizes = [budget.prune(chain(8), context).size - 1 for context in (1, 120, 180, 250, 600)]
    assert sizes[0] == 8
    assert sizes[-1] == 0
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 2


PROBED = DraftTree([0, 5, 6, 7, 8, 9], [-1, 0, 1, 0, 3, 1], probe=[False, False, False, True, True, True])


def test_probes_stay_with_the_node_they_hang_on() -> None:
    budget = Budget(5, ForwardCostModel(1.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    assert budget.prune(PROBED, 100) is PROBED
    for _ in range(30):  # 5 is right, 6 below it is never right
        budget.observe(step(budget.prune(PROBED, 100), 5, WRONG))
    dear = Budget(5, ForwardCostModel(1.0, 1.0, 1.0, 1.0, 1.0, 9.0))
    dear._hits = budget._hits
    kept = dear.prune(PROBED, 100)
    assert list(kept.tokens) == [0, 5, 7, 8, 9]
    assert list(kept.probe or ()) == [False, False, True, True, True]


def test_probes_have_their_price_and_go_where_nothing_pays() -> None:
    free_without_probes = ForwardCostModel(1.0, 1.0, 1.0, 9.0, 9.0, 9.0)
    assert Budget(5, free_without_probes).prune(PROBED, 100).size == 1
    assert Budget(5, free_without_probes).prune(PROBED.subtree([0, 1, 2]), 100).size == 3


def test_a_tree_of_nothing_but_probes_is_handed_on_and_given_up_where_its_rows_win_nothing() -> None:
    tree = DraftTree([0, 5, 6], [-1, 0, 1], probe=[False, True, True])
    budget, steps = Budget(5, ForwardCostModel(1.0, 1.05, 1.05)), 0
    while budget.nodes:
        assert budget.prune(tree, 100) is tree
        budget.observe(step(tree, WRONG))
        steps += 1
    assert steps == pytest.approx(LOSS / 0.05, abs=1.5)
    assert budget.off_reason and budget.off_reason.startswith(wording("drafts_are_hardly_ever_right"))


@each("seconds, steps", [(0.5, 11), (4.0, 3), (20.0, 2)])
def test_what_is_dear_to_draft_is_given_up_sooner(seconds: float, steps: int) -> None:
    """The first draft reads the text before it, and is not counted."""
    budget, taken = Budget(4, ForwardCostModel(1.0, 1.5, 2.0, 2.5, 3.0)), 0
    while budget.nodes:
        feed(budget, chain(4), WRONG, seconds=seconds)
        taken += 1
    assert taken == pytest.approx(steps, abs=2 if seconds < 1 else 0)


@each("taken", [(50.0, 0.1), (0.1, 50.0, 0.1)])
def test_the_first_long_draft_of_a_reply_is_not_the_price_of_the_next(taken: Sequence[float]) -> None:
    """It also reads the prompt, unlike later ones. A draft that catches up after a pause does not count either."""
    budget, tree = Budget(4, ForwardCostModel(1.0, 1.5, 2.0, 2.5, 3.0)), chain(4)
    for _ in range(3):
        budget.begin()
        for seconds in taken:
            budget.observe(replace(step(budget.prune(tree, 100), *tree.tokens[1:]), draft_seconds=seconds))
    assert budget.nodes and budget.off_reason is None
    worth = budget.token_seconds(100)
    assert worth is not None and worth < 1, "a token is not worth what reading the prompt took"


def test_where_a_drafter_declines_for_a_while_its_reason_is_shown_until_it_drafts() -> None:
    budget, declined = Budget(4, PROCESSOR), DraftTree((0,), (-1,), declined="it costs more")
    feed(budget, declined, WRONG, times=DECLINED - 1)
    assert budget.off_reason is None
    feed(budget, declined, WRONG)
    assert budget.off_reason == "it costs more" and budget.nodes
    feed(budget, chain(4), 1)
    assert budget.off_reason is None
    feed(budget, declined, WRONG, times=DECLINED)
    budget.begin()
    assert budget.off_reason is None, "another reply"


def test_the_reason_of_a_choice_without_drafts_holds_for_every_reply() -> None:
    budget = Budget(0, off_reason="phrases would be 9% slower")
    for _ in range(2):
        assert budget.off_reason == wording("phrases_would_be_9_slower")
        budget.begin()
    budget.stop("memory ran out")
    assert budget.off_reason == wording("phrases_would_be_9_slower")


def test_the_rest_of_a_step_counts_in_its_price() -> None:
    def kept(beside_trees: float, beside_plain: float) -> int:
        budget = Budget(4, Curve({1: 1.0, 5: 1.5}))
        tree = chain(4)
        for turn in range(20):
            right = budget.prune(tree if turn else chain(0), 0)
            path = list(range(right.size))[:2]  # one token of the draft is right
            picks = [right.tokens[node] for node in path[1:]]
            step = Step([*picks, 9], NumpyHidden(np.empty((0, 0))), right, path)
            budget.observe(step, beside_trees if right.size > 1 else beside_plain)
        return budget.prune(tree, 0).size

    assert kept(0.0, 0.0) > 1 and kept(0.2, 0.2) > 1
    assert kept(1.2, 0.6) > 1, "two tokens for 2.3, and one for 1.6"
    assert kept(1.2, 0.0) == 1, "two tokens for 2.3, and one for 1.0"


def test_what_can_never_be_accepted_is_not_verified() -> None:
    tree = DraftTree([0, 5, 5, 6], [-1, 0, 0, 2])
    assert list(Budget(5, ForwardCostModel(1.0, 1.0, 1.0, 1.0)).prune(tree, 100).parents) == [-1, 0]


# -- what is learned ---------------------------------------------------------------------------------------------------


def test_before_anything_is_seen_a_first_guess_is_even_and_deeper_ones_are_likelier() -> None:
    budget = Budget(9, PROCESSOR)
    tree = DraftTree([0, 1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 0, 1, 4, 5, 1], ["x"] * 8)
    chances = budget._chances(tree)
    assert chances == pytest.approx(
        {0: 1, 1: 0.5, 2: 0.25, 3: 0.125, 4: 0.5 * 0.75, 7: 0.5 * 0.125, 5: 0.375 * 0.875, 6: 0.375 * 0.875 * 0.9}
    )


def test_hits_and_tries_decay_and_a_depth_is_judged_only_where_it_was_reached() -> None:
    budget = Budget(3, ForwardCostModel(1.0, 1.0, 1.0, 1.0))
    draft = DraftTree.chain([0, 1, 2, 3], "x")
    feed(budget, draft, 1, 2, WRONG)
    feed(budget, draft, WRONG)
    feed(budget, draft, 1, WRONG)
    assert budget._hits["x", 1, 0] == pytest.approx((0.85**2 + 1, 0.85**2 + 0.85 + 1))
    assert budget._hits["x", 2, 0] == pytest.approx((0.85, 1.85))
    assert budget._hits["x", 3, 0] == (0, 1)
    assert {key[0] for key in budget._hits} == {None, "x"}


def test_siblings_of_a_node_on_the_path_are_judged_and_children_of_others_are_not() -> None:
    budget = Budget(9, ForwardCostModel(*[1.0] * 9))
    #  0─1─3    the target says 2, 5, 9
    #   └2─4
    #     └5─6
    feed(budget, DraftTree([0, 1, 3, 2, 4, 5, 6], [-1, 0, 1, 0, 3, 3, 5], ["x"] * 7), 2, 5, 9)
    ours = {key[1:]: value for key, value in budget._hits.items() if key[0] == "x"}
    assert ours == {(1, 0): (0, 1), (1, 1): (1, 1), (2, 0): (0, 1), (2, 1): (1, 1), (3, 0): (0, 1)}


def test_the_target_s_own_token_judges_one_level_more_than_was_verified() -> None:
    budget = Budget(3, ForwardCostModel(1.0, 1.0, 9.0, 9.0))
    draft = DraftTree.chain([0, 1, 2, 3], "x")
    assert feed(budget, draft, 1, 2, 3).size == 2
    assert budget._hits["x", 2, 0] == (1, 1)
    assert ("x", 3, 0) not in budget._hits


def test_an_unseen_source_is_estimated_from_all() -> None:
    budget = Budget(3, ForwardCostModel(1.0, 1.0, 1.0, 1.0))
    feed(budget, DraftTree.chain([0, 1], "x"), 1, times=20)
    feed(budget, DraftTree.chain([0, 1], "y"), WRONG, times=3)
    x, y, unseen = (budget._chances(DraftTree.chain([0, 1], name))[1] for name in ("x", "y", "z"))
    assert y < 0.15 < unseen < 0.7 < 0.95 < x
    assert budget._chances(DraftTree.chain([0, 1]))[1] == unseen, "a tree that names nobody is one source more"


# -- the text ----------------------------------------------------------------------------------------------------------


class Whim(Budget):
    """A budget that keeps a random part of each tree, and proposes any number of nodes."""

    def __init__(self, most: int, seed: int) -> None:
        super().__init__(most)
        self.random, self.cut, self.next = random.Random(seed), 0, most

    @property
    def nodes(self) -> int:
        return self.next

    def prune(self, tree: DraftTree, context: int) -> DraftTree:
        self.next = self.random.choice([0, self.most, self.most])
        kept = [0]
        for node in range(1, tree.size):
            if tree.parents[node] in kept and self.random.random() < 0.8:
                kept.append(node)
        self.cut += tree.size - len(kept)
        return tree.subtree(kept)


def endless(model: Tiny) -> Target:
    """Return the same target, which nothing stops."""
    target = copy.copy(model.target)
    target.stop_tokens = frozenset()
    return target


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sampling"),
    [(WIDE_HEADS, Sampling()), ("llama-one-key-head-tied-linear", Sampling(1.1, top_k=50, seed=4))],
    ids=str,
)
def test_the_text_does_not_depend_on_the_budget(tiny: Make, name: str, sampling: Sampling) -> None:
    model, prompt = tiny(name), prompt_ids(12, seed=2)
    target = endless(model)

    def reply(drafter: Drafter, budget: Budget) -> list[int]:
        session = Session(target, drafter, budget)
        *events, done = session.generate(prompt, sampling, Limits(max_tokens=40))
        assert isinstance(done, Done)
        assert done.statistics.off_reason == budget.off_reason
        return [token for event in events if isinstance(event, Text) for token in event.tokens]

    text = reply(Autoregressive(), Budget(0))
    assert len(text) == 40
    if sampling.greedy:
        assert text == stock_reply(model.stock, prompt, 40, stops=())
    cut = 0
    for seed in range(2):
        pool = PhrasePool(target.special_tokens)
        for drafter in (
            Oracle(prompt + text),
            OffChain(prompt + text),
            WithPhrases(RandomBranches(prompt + text, seed=seed), pool),
        ):
            whim = Whim(10, seed)
            assert reply(drafter, whim) == text
            cut += whim.cut
            drafter.rewind(0)
            assert reply(drafter, Budget(10, PROCESSOR)) == text
    assert cut > 40


@pytest.mark.slow
def test_a_reply_says_why_speculation_was_off_at_its_end(tiny: Make) -> None:
    class Wrong(Oracle):
        def coming(self, context: object) -> list[int]:
            time.sleep(0.02)  # many times what a step of this model takes
            return [1, 1, 1]

    model, prompt = tiny("llama-one-key-head-tied-linear"), prompt_ids(12, seed=2)
    budget = Budget(3, Curve({1: 1.0, 64: 30.0}))
    session = Session(endless(model), Wrong(), budget)
    *_, done = session.generate(prompt, Sampling(), Limits(max_tokens=60))
    assert isinstance(done, Done)
    assert done.statistics.steps == 59
    assert done.statistics.off_reason is not None
    assert done.statistics.off_reason == budget.off_reason
    *_, done = session.generate(prompt_ids(12, seed=3), Sampling(), Limits(max_tokens=2))
    assert isinstance(done, Done)
    assert (done.statistics.off_reason, budget.nodes) == (None, 3), "a new prompt is another text"


@pytest.mark.slow
@pytest.mark.parametrize("most", [3, 0])
def test_a_reply_knows_what_plain_decoding_would_have_taken(tiny: Make, most: int) -> None:
    """Each draft is right, and a few steps have no draft so that plain steps are timed; the text stays the same."""
    model, prompt = tiny("llama-one-key-head-tied-linear"), prompt_ids(12, seed=2)
    text = stock_reply(model.stock, prompt, 120, stops=())
    session = Session(endless(model), Oracle(prompt + text), Budget(most, Curve({1: 1.0, 64: 1.1})))
    stream = session.generate(prompt, Sampling(), Limits(max_tokens=120))
    known = [session.so_far.plain_seconds is not None for _ in stream if session.so_far is not None]
    assert session.statistics is not None
    assert list(session.statistics.token_ids) == text
    if most:
        assert session.statistics.rows[1] >= ENOUGH
        assert not known[0] and known[-1] and known == sorted(known)
        plain, took = session.statistics.plain_seconds, session.statistics.decode_seconds
        assert plain is not None and plain / took == pytest.approx(session.budget.plain.speedup)
    else:
        assert not any(known) and session.statistics.speedup is None, "what is plain is no times as fast"


@each("slowness", [3.0, 0.5])
def test_a_token_is_worth_as_much_on_a_busy_machine(slowness: float) -> None:
    """A draft model asks how much a token saves, and knows the times of its forwards on a quiet machine."""

    def worth(times: float) -> float:
        budget = Budget(8, PROCESSOR)
        for _ in range(120):
            tree = budget.prune(chain(4), 100)
            taken = step(tree, *[RIGHT] * 4)
            seconds = times * PROCESSOR.at(tree.size, 100)
            budget.observe(replace(taken, draft_seconds=times * 0.2, verify_seconds=seconds), overhead=times * 0.1)
        found = budget.token_seconds(100)
        assert found is not None
        return found

    assert worth(slowness) == pytest.approx(worth(1.0), rel=0.02), "looks at plain steps come at other times"


def test_where_a_plain_step_is_wanted_nothing_is_drafted_for_it() -> None:
    """A discarded draft costs as much as a verified one."""
    budget = Budget(8, PROCESSOR)
    for _ in range(4):
        assert budget.nodes == 8
        budget.plain.observe(5, 100, 3, 0.1, 0.02)
    assert budget.nodes == 0
    budget.plain.observe(1, 100, 1, 0.1, 0.0)
    assert budget.nodes == 8


PRICED = ForwardCosts((1, 64), (0, 4096), ((1e-3, 2e-3), (5e-3, 1e-2)))  # five times as long late in a text


@each("cut", [Budget.prune, Budget.take_whole])
def test_a_step_is_judged_by_the_price_of_its_place_in_the_text(cut):
    budget, drafted = Budget(16, PRICED), DraftTree.chain([1, 2, 3, 4], "phrases")
    for _ in range(20):
        tree = cut(budget, drafted, 4096)
        picks = [2, 3, 4, 9][: tree.size]
        budget.observe(replace(step(tree, *picks), verify_seconds=PRICED.at(tree.size, 4096)))
    assert budget.token_seconds(4096) == pytest.approx(PRICED.at(tree.size, 4096) / tree.size, rel=0.1)


def test_what_may_not_be_cut_is_judged_as_itself_and_not_as_the_last_reply_s_draft() -> None:
    """The rule `rejection` cuts nothing. Its steps were once compared with the last draft of the previous reply."""
    budget, right = Budget(16, PRICED), DraftTree.chain([1, 2, 3, 4], "phrases")
    for _ in range(8):
        tree = budget.prune(right, 10)
        budget.observe(replace(step(tree, 2, 3, 4, 9), verify_seconds=PRICED.at(tree.size, 10)))
    size = budget.prune(right, 10).size
    budget.begin()
    for _ in range(30):
        tree = budget.take_whole(DraftTree((7, 8), (-1, 0)), 4096)
        budget.observe(replace(step(tree, 8, 51), verify_seconds=PRICED.at(2, 4096)))
    budget.begin()
    assert budget.prune(right, 10).size == size == 4


def test_a_new_reply_judges_no_draft_of_the_last_one() -> None:
    budget, drafted = Budget(16, PRICED), DraftTree.chain([1, 2, 3, 4], "phrases")
    budget.prune(drafted, 10)
    budget.begin()
    before = copy.deepcopy(budget._hits)
    budget.observe(replace(step(DraftTree((7,), (-1,)), 50), verify_seconds=1e-3))
    assert budget._hits == before
