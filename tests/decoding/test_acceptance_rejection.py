"""The rule `rejection`: whatever distribution a draft is sampled from, the text is sampled from the target's."""

import numpy as np
import pytest
import torch
from distributions import assert_drawn_from
from each import each
from logits_forms import Form, every_form, in_numpy
from tiny_models import stock_distribution

from localspec.decoding.acceptance import walk_by_rejection
from localspec.decoding.logits import Logits, NumpyLogits
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree, sampled_tree

LETTERS, PLACE = 4, 17
NODES = 7  # three chains of two, and a third or fourth draw for the first place: branching 3 and more
SHAPES = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.6},
    "top-k": {"temperature": 1.2, "top_k": 3},
    "top-p": {"temperature": 1.0, "top_p": 0.75},
    "all": {"temperature": 0.8, "top_k": 3, "top_p": 0.9, "min_p": 0.05},
}


class Model:
    """A target of three tokens whose logits depend on the prefix, and a drafter whose logits depend on the depth only."""

    def __init__(self, seed: int, form: Form = in_numpy) -> None:
        self.form = form
        random = torch.Generator().manual_seed(seed)
        self.first = torch.randn(LETTERS, generator=random)
        self.second = torch.randn(LETTERS, LETTERS, generator=random)
        self.third = torch.randn(LETTERS, LETTERS, LETTERS, generator=random)
        self.draft = torch.randn(2, LETTERS, generator=random)

    def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
        return (self.first, self.second, self.third)[len(prefix)][prefix]

    def joint(self, sampling: Sampling) -> torch.Tensor:
        """Return the chance of each three tokens, through transformers' own processors."""
        one, two, three = (
            stock_distribution(logits.double(), sampling).double() for logits in (self.first, self.second, self.third)
        )
        return one[:, None, None] * two[:, :, None] * three

    def say(self, tree: DraftTree, sampling: Sampling, rule=walk_by_rejection) -> list[int]:
        """Return the tokens that one step commits of a tree: the accepted tokens and the bonus token."""
        said: list[tuple[int, ...]] = [()]
        for node in range(1, tree.size):
            said.append((*said[tree.parents[node]], tree.tokens[node]))
        path, bonus = rule(tree, self.form(torch.stack([self.logits(prefix) for prefix in said])), sampling, PLACE)
        return [*said[path[-1]], bonus]


def counts(model: Model, shape: dict[str, float], draws: int, rule=walk_by_rejection) -> torch.Tensor:
    """Return how often each three tokens occur over consecutive seeds; torch samples the tokens that a step leaves open."""
    found, random = torch.zeros(LETTERS, LETTERS, LETTERS), torch.Generator().manual_seed(5)
    for seed in range(draws):
        sampling = Sampling(**shape, seed=seed, rule="rejection")
        tree = sampled_tree(0, model.form(model.draft), NODES, sampling, PLACE + 1, "draft")
        tokens = model.say(tree, sampling, rule)
        while len(tokens) < 3:
            chances = stock_distribution(model.logits(tuple(tokens)), sampling)
            tokens.append(int(torch.multinomial(chances, 1, generator=random)))
        found[tuple(tokens[:3])] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_three_tokens_have_the_targets_joint_distribution(shape: str) -> None:
    model = Model(seed=1)
    draws = 600 if "top_p" in SHAPES[shape] else 1000
    assert_drawn_from(model.joint(Sampling(**SHAPES[shape])), counts(model, SHAPES[shape], draws))


@pytest.mark.slow
@every_form
def test_a_few_hundred_draws_are_the_targets(form: Form) -> None:
    model = Model(2, form)
    assert_drawn_from(model.joint(Sampling(1.0)), counts(model, SHAPES["plain"], draws=250))


@pytest.mark.slow
@each("case", ["drafter without some tokens", "target without some tokens", "nothing in common"])
def test_tokens_that_one_side_never_says_do_not_change_the_distribution(case: str) -> None:
    model, never = Model(seed=3), float("-inf")
    if case == "drafter without some tokens":
        model.draft[:, :2] = never
    elif case == "target without some tokens":
        for table in (model.first, model.second, model.third):
            table[..., 1:3] = never
    else:
        model.draft[:, 2:] = never
        for table in (model.first, model.second, model.third):
            table[..., :2] = never
    assert_drawn_from(model.joint(Sampling(1.0)), counts(model, SHAPES["plain"], draws=600))


@pytest.mark.slow
def test_a_drafter_that_is_the_target_is_always_right_and_sampled_like_it() -> None:
    model = Model(seed=4)
    model.second[:], model.draft[0] = model.second[:1].clone(), model.first
    model.draft[1] = model.second[0]
    for seed in range(60):
        sampling = Sampling(1.0, seed=seed, rule="rejection")
        assert (
            len(model.say(sampled_tree(0, in_numpy(model.draft), NODES, sampling, PLACE + 1, "draft"), sampling)) == 3
        )
    assert_drawn_from(model.joint(Sampling(1.0)), counts(model, SHAPES["plain"], draws=600))


def mutated(subtract: bool, duplicates: bool):
    """Return the rule, implemented again, without one necessary part."""

    def rule(tree: DraftTree, logits: Logits, sampling: Sampling, position: int):
        path = [0]
        while True:
            left, place = logits.probabilities(path[-1], sampling), position + tree.depth[path[-1]] + 1
            children = tree.siblings[path[-1]] if duplicates else list(tree.children[path[-1]].values())
            for rank, child in enumerate(children):
                draft, token = tree.draft_logits.probabilities(child, sampling), tree.tokens[child]
                if sampling.uniform(place, rank) < left[token] / draft[token]:
                    path.append(child)
                    break
                if subtract:
                    left = (left - draft).clip(min=0)
                    left = left / left.sum()
            else:
                with np.errstate(divide="ignore"):
                    left = np.log(left) * sampling.temperature
                return path, NumpyLogits(left[None]).sample(0, place, 99, sampling)

    return rule


@pytest.mark.slow
@each("forgotten", ["nothing", "to subtract", "duplicates", "as it is"])
def test_one_token_after_three_draws_and_the_chi_square_sees_what_the_rule_must_not_forget(forgotten: str) -> None:
    target = torch.tensor([0.23, 0.15, 0.4, 0.22])
    draft, found = torch.tensor([[0.14, 0.79, 0.02, 0.05]]).log(), torch.zeros(4)
    rule = mutated(forgotten != "to subtract", forgotten != "duplicates") if forgotten != "as it is" else None
    for seed in range(800):
        sampling = Sampling(1.0, seed=seed, rule="rejection")
        tree = sampled_tree(0, in_numpy(draft), 3, sampling, PLACE + 1, "draft")
        assert tree.parents == [-1, 0, 0, 0]
        path, bonus = (rule or walk_by_rejection)(tree, in_numpy(target.log().expand(4, -1)), sampling, PLACE)
        found[tree.tokens[path[1]] if len(path) > 1 else bonus] += 1
    if forgotten in ("nothing", "as it is"):
        assert_drawn_from(target, found)
    else:
        with pytest.raises(AssertionError):
            assert_drawn_from(target, found)


def test_each_sibling_has_a_number_of_its_own_at_its_place_and_what_cannot_come_is_never_accepted():
    """Node 1 has no chance, though the smallest number is drawn for it; node 2 is certain; node 3 is refused."""
    asked: list[tuple[int, int]] = []

    def uniform(place: int, rank: int) -> float:
        asked.append((place, rank))
        return 0.0 if place == PLACE + 1 else 1.0

    sampling = Sampling(1.0, rule="rejection", seed=1)
    object.__setattr__(sampling, "uniform", uniform)  # it is frozen
    never, alike = np.array([-np.inf, 0.0, 0.0, 0.0], np.float32), np.zeros(LETTERS, np.float32)
    sampled = NumpyLogits(np.stack([alike, alike, alike, np.array([0.0, -9, -9, -9], np.float32)]))
    tree = DraftTree([3, 0, 1, 0], [-1, 0, 0, 2], draft_logits=sampled)
    path, bonus = walk_by_rejection(tree, NumpyLogits(np.stack([never, alike, alike, alike])), sampling, PLACE)
    assert path == [0, 2] and asked == [(PLACE + 1, 0), (PLACE + 1, 1), (PLACE + 2, 0)] and bonus != 0
