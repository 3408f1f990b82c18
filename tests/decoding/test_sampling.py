"""Sampling: transformers' distribution, noise without state, the walk along the picks."""

import math

import numpy as np
import pytest
import torch
from distributions import assert_drawn_from
from each import each
from golden import matching
from logits_forms import FORMS, Form, every_form, in_numpy
from slow_cases import covering
from tiny_models import stock_distribution

from localspec.decoding.acceptance import walk
from localspec.decoding.sampling import Sampling, gumbel
from localspec.decoding.tree import DraftTree, sampled_tree
from localspec.errors import LocalspecError, UsageMistake
from localspec.nn.logits import TorchLogits

UNEVEN = torch.randn(24, generator=torch.Generator().manual_seed(1)) * 1.2
TIED = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.5, 0.5, -1.0, -3.0])


def pick(row: torch.Tensor, position: int, sampling: Sampling, form: Form = in_numpy) -> int:
    """Return the pick from one row of logits."""
    return form(row[None]).picks([position], sampling)[0]


FREE = [{"temperature": 1.0}, {"temperature": 0.3}, {"temperature": 2.5}]
CUT = [{"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "top_k": 500}, {"temperature": 1.0, "min_p": 0.2}]
NUCLEUS = [
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.5, "top_k": 6, "top_p": 0.8},
    {"temperature": 1.5, "top_k": 12, "top_p": 0.95, "min_p": 0.1},
    {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.slow
def _named(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("shape", "form"), covering(FREE + CUT + NUCLEUS, FORMS.values()), ids=_named)
def test_a_pick_is_sampled_from_what_transformers_would_draw_from(shape: dict[str, float], form: Form) -> None:
    assert_picks(UNEVEN, shape, form)


# Which of equal tokens is at the edge of the nucleus is not defined, so those are not sampled with top-p here.
@pytest.mark.slow
@pytest.mark.parametrize(("shape", "form"), covering(FREE + CUT, FORMS.values()), ids=_named)
def test_a_pick_of_equal_logits_is_sampled_from_what_transformers_would_draw_from(shape, form):
    assert_picks(TIED, shape, form)


NO_NUMBERS = [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf], [3e38, -3e38]]


@every_form
@each("row", NO_NUMBERS)
@each("shape", [{}, {"temperature": 0.5}, {"temperature": 0.5, "rule": "typical"}])
def test_logits_that_are_nan_or_inf_propose_nothing(row: list[float], shape: dict[str, object], form: Form) -> None:
    logits, sampling = torch.tensor([[0.0, 1.0], row, [0.0, 1.0]]), Sampling(**shape)
    first, second, third = form(logits).candidates(range(3), 2, sampling)
    assert (len(first), len(third)) == (2, 2)
    fine = math.isfinite(row[0]) and (sampling.greedy or sampling.rule == "typical")  # not cooled beyond all numbers
    assert [token for token, _ in second] == ([0, 1] if fine else [])


@every_form
@each("row", NO_NUMBERS)
def test_nothing_is_sampled_after_logits_that_are_nan_or_inf(row: list[float], form: Form) -> None:
    sampling = Sampling(0.5, rule="rejection")
    fine = torch.zeros(2, 2)
    behind, before = (form(torch.cat(rows)) for rows in ([fine, torch.tensor([row])], [torch.tensor([row]), fine]))
    assert sampled_tree(7, behind, 6, sampling, 0, "x").depth == [0, 1, 2, 1, 2, 1, 2]
    assert sampled_tree(7, before, 6, sampling, 0, "x").tokens == (7,)


@every_form
def test_where_nothing_is_left_to_pick_a_sentence_says_so(form: Form) -> None:
    logits = form(torch.full((1, 4), math.nan))
    for sampling in (Sampling(0.5, top_k=2), Sampling(0.5, top_p=0.5), Sampling(0.5, min_p=0.5)):
        with pytest.raises(LocalspecError, match=matching("not_a_number")):
            logits.picks([3], sampling)[0]
        with pytest.raises(LocalspecError, match=matching("not_a_number")):
            logits.sample(0, 3, 1, sampling)


def assert_picks(logits: torch.Tensor, shape: dict[str, float], form: Form) -> None:
    counts = torch.zeros(len(logits))
    for seed in range(1500):
        counts[pick(logits, 17, Sampling(**shape, seed=seed), form)] += 1
    assert_drawn_from(stock_distribution(logits, Sampling(**shape)), counts)


@pytest.mark.slow
@every_form
@each("spread", [0.01, 1.0, 6.0])
@each("vocabulary", [1, 2, 1000, 1024, 1025, 5000])
def test_top_p_keeps_the_tokens_that_transformers_keeps_in_vocabularies_of_any_size(vocabulary, spread, form):
    for seed, top_p in enumerate((1e-6, 0.3, 0.9, 0.999)):
        logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * spread
        stock = set(stock_distribution(logits, Sampling(1.0, top_p=top_p)).nonzero().flatten().tolist())
        ours = set(form(logits[None]).probabilities(0, Sampling(1.0, top_p=top_p)).nonzero()[0].tolist())
        # Sums of thousands of fp32 numbers from the other end may tip one token at the edge.
        assert len(ours ^ stock) <= (1 if vocabulary < 1000 else 1 + vocabulary // 1000)
        assert ours >= set(logits.topk(max(1, len(stock) - 5)).indices.tolist())


@every_form
def test_a_cut_that_leaves_one_token_gives_that_token_and_so_does_temperature_0(form: Form) -> None:
    assert Sampling().greedy
    for shape in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 0.0}):
        found = {pick(UNEVEN, seed, Sampling(**{"temperature": 3.0, **shape}, seed=seed), form) for seed in range(50)}
        assert found == {int(UNEVEN.argmax())}


def test_truncation_never_changes_the_noise_of_what_survives() -> None:
    for seed in range(200):
        free = pick(UNEVEN, 5, Sampling(1.0, seed=seed))
        cut = pick(UNEVEN, 5, Sampling(1.0, top_k=6, seed=seed))
        if free in UNEVEN.topk(6).indices:
            assert cut == free


def test_half_precision_logits_are_sampled_from_in_full_precision() -> None:
    logits = UNEVEN.bfloat16()
    for seed in range(50):
        sampling = Sampling(1.0, seed=seed)
        assert pick(logits, 1, sampling, TorchLogits) == pick(logits.float(), 1, sampling)


def splitmix(seed: int, position: int, token: int) -> float:
    """Return the same hash in Python's integers, which never overflow."""
    word, step = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & word
        return z ^ z >> 31

    key = mix((mix(seed & word) + position * step) & word)
    bits = mix((token * step + key) & word)
    return -math.log(-math.log(((bits >> 11) + 0.5) * 2.0**-53))


@each("seed", [0, 1, 12345, 2**32, 2**63, 2**64 - 1, 2**80 + 1, -3])
@each("position", [0, 1, 4095, 10**6, 2**40])
def test_the_noise_is_one_fixed_function_of_seed_position_and_id(seed: int, position: int) -> None:
    """Large ids, positions and seeds must not overflow, and no version may give a seed another text."""
    ids = [0, 1, 2, 31999, 151_935, 262_143, 2**31 - 1, 2**31, 2**40]
    ours = gumbel(seed, position, np.array(ids)).tolist()
    assert ours == pytest.approx([splitmix(seed, position, token) for token in ids], rel=1e-12, abs=1e-12)


@each(
    "values, named",
    [
        ({"temperature": -0.1}, "The temperature must be .*, not -0\\.1\\."),
        ({"temperature": math.nan}, "The temperature must be .*, not nan\\."),
        ({"temperature": math.inf}, "The temperature must be .*, not inf\\."),
        ({"top_k": -1}, "The top-k must be .*, not -1\\."),
        ({"top_p": 0.0}, r"The top-p must be .*, not 0\.0\."),
        ({"top_p": 1.01}, r"The top-p must be .*, not 1\.01\."),
        ({"top_p": math.nan}, "The top-p must be .*, not nan\\."),
        ({"temperature": 9999.0}, matching("temperature_9999_0_possible_give")),
        ({"min_p": -0.5}, r"The min-p must be .*, not -0\.5\."),
        ({"min_p": 1.5}, r"The min-p must be .*, not 1\.5\."),
    ],
)
def test_values_that_mean_nothing_are_refused_with_the_value(values: dict[str, float], named: str) -> None:
    with pytest.raises(UsageMistake, match=named):
        Sampling(**values)


class Picks:
    """Scripted picks of the target at each node; the queried nodes are recorded."""

    def __init__(self, *tokens: int) -> None:
        self.tokens, self.asked = tokens, []

    def __getitem__(self, node: int) -> int:
        self.asked.append(node)
        return self.tokens[node]


#  10─11─12
#    └13─14
DRAWN = DraftTree([10, 11, 12, 13, 14], [-1, 0, 1, 0, 3])


@each(
    "picks, path, bonus",
    [
        ((11, 12, 50, 0, 0), [0, 1, 2], 50),  # all of the chain: the bonus comes from its last row
        ((11, 40, 50, 0, 0), [0, 1], 40),
        ((13, 12, 50, 14, 60), [0, 3, 4], 60),  # the other branch; picks in the first one do not count
        ((13, 0, 0, 12, 0), [0, 3], 12),  # 12 hangs on 11, not on 13
        ((12, 0, 0, 0, 0), [0], 12),
        ((10, 0, 0, 0, 0), [0], 10),
    ],
)
def test_the_walk_goes_down_while_a_child_carries_the_pick(picks: tuple[int, ...], path: list[int], bonus: int) -> None:
    target = Picks(*picks)
    assert walk(DRAWN, target) == (path, bonus)
    assert target.asked == path, "the target picks once at each node that is reached, and nowhere else"


def test_a_probe_is_never_accepted_even_where_it_is_right_and_of_equal_siblings_the_first_is_taken() -> None:
    assert walk(DraftTree((7,), (-1,)), Picks(9)) == ([0], 9)
    assert walk(DraftTree([1, 2, 2, 3], [-1, 0, 0, 2]), Picks(2, 3, 3, 4)) == ([0, 1], 3)
    tree = DraftTree([1, 2, 3], [-1, 0, 1], probe=[False, True, True])
    assert walk(tree, Picks(2, 3, 4)) == ([0], 2)
    beside = DraftTree([1, 2, 2, 3], [-1, 0, 0, 2], probe=[False, True, False, False])
    assert walk(beside, Picks(2, 0, 3, 4)) == ([0, 2, 3], 4)


@every_form
def test_greedy_candidates_are_the_likeliest_with_their_probabilities(form: Form) -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(3))
    for level, row in zip(form(logits).candidates(range(5, 8), 4, Sampling()), logits, strict=True):
        best = row.softmax(0).topk(4)
        assert [token for token, _ in level] == best.indices.tolist()
        assert [chance for _, chance in level] == pytest.approx(best.values.tolist())
    assert len(form(logits).candidates(range(5, 8), 50, Sampling())[0]) == 20


@every_form
@each("temperature", [0.3, 1.0, 2.0])
def test_a_drafter_that_knows_the_target_proposes_the_very_pick(temperature: float, form: Form) -> None:
    """Sampled text is accepted as well as greedy text, because both sides meet the same noise."""
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(4))
    for seed in range(50):
        sampling = Sampling(temperature=temperature, seed=seed)
        levels = form(logits).candidates(range(11, 14), 3, sampling)
        assert [level[0][0] for level in levels] == [pick(row, 11 + at, sampling) for at, row in enumerate(logits)]
        assert all(level == sorted(level, key=lambda candidate: -candidate[1]) for level in levels)
        assert all(0 < chance <= 1 for level in levels for _, chance in level)


@every_form
def test_top_k_candidates_stay_within_top_k(form: Form) -> None:
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(4))
    allowed = set(logits[0].topk(5).indices.tolist())
    for seed in range(20):
        (level,) = form(logits).candidates([0], 9, Sampling(temperature=3.0, top_k=5, seed=seed))
        assert {token for token, _ in level} <= allowed and len(level) == 5


@every_form
@each("shape", [{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}])
def test_probabilities_are_those_that_transformers_draws_from(shape: dict[str, float], form: Form) -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(5))
    sampling = Sampling(temperature=0.7, **shape)
    found = torch.stack([torch.from_numpy(form(logits).probabilities(row, sampling)) for row in range(4)])
    torch.testing.assert_close(found.float(), stock_distribution(logits, sampling))


@every_form
@each("nodes", [1, 2, 3, 4, 6, 7, 13])
def test_sampled_trees_are_chains_side_by_side_whatever_is_sampled(nodes: int, form: Form) -> None:
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(6))
    sampled = [Sampling(temperature=1.0, seed=seed) for seed in range(8)]
    trees = [sampled_tree(9, form(logits), nodes, sampling, 40, "semi") for sampling in sampled]
    assert {tuple(tree.parents) for tree in trees} == {tuple(trees[0].parents)}
    for tree in trees:
        assert tree.size == nodes + 1 and tree.source == ["semi"] * tree.size
        for node in range(1, tree.size):
            assert tree.draft_logits.numpy()[node].tolist() == logits[tree.depth[node] - 1].tolist()


@pytest.mark.slow
def test_equal_siblings_are_sampled_as_often_as_chance_has_it() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    counts = torch.zeros(9)
    for seed in range(4000):
        _, first, second = sampled_tree(0, in_numpy(logits), 2, Sampling(temperature=1.0, seed=seed), 7, "semi").tokens
        counts[3 * first + second] += 1
    chances = logits[0].softmax(0)
    assert_drawn_from(torch.outer(chances, chances).flatten(), counts)


@every_form
def test_ids_stand_for_the_columns_of_a_drafter_that_knows_only_some(form: Form) -> None:
    logits, ids = torch.tensor([[0.0, 3.0, 1.0]]), np.array([40, 70, 90])
    assert [token for token, _ in form(logits).candidates([5], 2, Sampling(), ids)[0]] == [70, 90]
    for seed in range(20):  # the noise is that of the ids, not of the columns
        sampling, whole = Sampling(1.0, seed=seed), torch.full((1, 100), -math.inf)
        whole[0, ids] = logits[0]
        assert form(logits).candidates([5], 1, sampling, ids)[0][0][0] == pick(whole[0], 5, sampling)


@every_form
def test_rows_are_taken_in_the_order_that_is_requested_and_read_as_numbers(form: Form) -> None:
    logits = form(torch.tensor([[0.0, 1.0], [2.0, -1.0], [4.0, math.inf]]))
    assert (len(logits), logits.argmax(), logits.finite(), logits.take([1, 0]).finite()) == (3, [1, 0, 1], False, True)
    taken = logits.take([1, 1, 0])
    assert taken.numpy().tolist() == [[2, -1], [2, -1], [0, 1]] and taken.numpy().dtype == np.float32
