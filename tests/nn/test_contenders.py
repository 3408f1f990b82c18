"""Picks of all rows at once, on the device of the logits: those of a search over every id, or none."""

from typing import Any

import numpy as np
import pytest
import torch
from each import each

from localspec.decoding.sampling import Sampling
from localspec.nn import step_logits as module
from localspec.nn.logits import TorchLogits, survivors
from localspec.nn.step_logits import (
    NARROW,
    SHOWN,
    Contenders,
    StepLogits,
    StepNumbers,
    contenders,
    findable,
    keys_of,
    summary,
)
from localspec.nn.transfer import brought

SAMPLINGS = [
    Sampling(1.0, seed=1), Sampling(0.7, seed=-5), Sampling(100.0, seed=2), Sampling(0.05, seed=3),
    Sampling(1.0, min_p=0.05, seed=4), Sampling(1.0, min_p=1.0, seed=5), Sampling(1.0, top_k=1, seed=6),
    Sampling(2.0, top_k=40, seed=7), Sampling(1.0, top_p=0.9, seed=8), Sampling(3.0, top_p=0.2, seed=9),
    Sampling(1.0, top_k=50, top_p=0.8, min_p=0.02, seed=10), Sampling(1.0, top_k=NARROW - 1, seed=11),
]  # fmt: skip


def random_logits(rows: int, width: int, spread: float, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def found(logits: torch.Tensor, positions: list[int], sampling: Sampling) -> list[int | None]:
    some = contenders(logits, torch.tensor(keys_of(positions, sampling)), sampling)
    here = Contenders(*brought(some.ids, some.scores, some.before, some.noisy))
    return [here.pick(row, position, sampling) for row, position in enumerate(positions)]


def told(logits: torch.Tensor, positions: list[int], sampling: Sampling) -> list[int]:
    picks = TorchLogits(logits).picks(positions, sampling)
    return [picks[row] for row in range(len(logits))]


@pytest.mark.slow
@each("sampling", SAMPLINGS)
@each("width, spread", [(7, 1.0), (300, 0.0), (5000, 4.0), (70_000, 2.0)])
@each("dtype", [torch.float32, torch.bfloat16])
def test_contenders_have_the_pick(width, spread, sampling, dtype):
    """With equal logits, which are frequent in bf16, only the noise decides."""
    rows = 48 if width < 10_000 else 6
    logits = random_logits(rows, width, spread, seed=width, dtype=dtype)
    positions = [17 * row % 4000 for row in range(rows)]
    ours, theirs = found(logits, positions, sampling), told(logits, positions, sampling)
    certain = [(one, other) for one, other in zip(ours, theirs, strict=True) if one is not None]
    assert all(one == other for one, other in certain)
    # Chances close to top-p, and ties where top-k ends.
    unsure = sampling.top_p < 1 or (sampling.top_k and (spread == 0.0 or dtype == torch.bfloat16))
    assert len(certain) >= (0 if unsure else rows - 1)


@pytest.mark.slow
@each("top_p", [1.0, 0.999])
@each("min_p", [0.02, 0.3])
def test_min_p_ends_where_it_ends(min_p, top_p):
    """Ids a little more and a little less likely than it allows, at places where their noise would have them picked."""
    sampling = Sampling(1.0, min_p=min_p, top_p=top_p, seed=4)
    edge = float(np.log(np.float32(min_p)))
    for off in (-0.004, -0.0005, 0.0005, 0.004):
        logits = torch.tensor([[0.0, edge * (1 + off)]]).repeat(600, 1)
        positions = [*range(600)]
        ours, theirs = found(logits, positions, sampling), told(logits, positions, sampling)
        assert all(one in (None, other) for one, other in zip(ours, theirs, strict=True))
        assert (theirs.count(1) > 5) == (off < 0) and ours.count(None) < 20
        assert (ours.count(1) > 5) == (off < 0)


def test_the_noise_is_that_of_sampling():
    ids = np.arange(20_000)
    for seed, position in ((0, 0), (1, 5), (-7, 10**6), (2**63, 3)):
        sampling = Sampling(1.0, seed=seed)
        ours = module._noise(torch.tensor(keys_of([position], sampling)), torch.from_numpy(ids)[None])[0].numpy()
        theirs = sampling.noise(position, ids)
        assert np.abs(ours - theirs).max() < 3e-6


@each("bits", [0, 1, 2**52 - 1, 2**52, 2**53 - 2, 2**53 - 1])
def test_the_noise_of_the_least_and_the_greatest_hash(monkeypatch, bits):
    """Where the logarithm of a number close to one would lose all digits."""
    monkeypatch.setattr(
        module, "_mixed", lambda z: torch.full_like(z, bits << 11 if bits < 2**52 else (bits << 11) - 2**64)
    )
    below = np.log1p(-(2**53 - 1 - bits + 0.5) * 2.0**-53) if bits > 2**52 else np.log((bits + 0.5) * 2.0**-53)
    exact = -np.log(-below)
    assert float(module._noise(torch.tensor([1]), torch.tensor([[1]]))) == pytest.approx(exact, rel=1e-6, abs=1e-6)


def test_nan_and_inf_are_left_to_the_exact_search():
    logits = random_logits(3, 2000, 4.0, seed=0)
    logits[1, 5], logits[2, 7] = float("nan"), float("inf")
    for sampling in (Sampling(1.0), Sampling(1.0, top_k=20), Sampling(1.0, top_p=0.9)):
        picks = found(logits, [4, 4, 4], sampling)
        assert picks[0] is not None and picks[1:] == [None, None]


def test_more_than_they_are_looked_for_in_is_left_to_another_way():
    logits = random_logits(2, 4000, 0.0, seed=0)
    assert not findable(Sampling(1.0, top_k=NARROW)) and findable(Sampling(1.0, top_k=NARROW - 1))
    with pytest.raises(ValueError, match="top_k=1024"):
        contenders(logits, torch.tensor([1, 2]), Sampling(1.0, top_k=NARROW))
    assert found(logits, [4, 4], Sampling(1.0, top_p=0.9)) == [None, None], "0.9 of them are 3,600"
    assert found(logits, [4, 4], Sampling(1.0, top_k=5)) == [None, None], "of equal ones all are among the first five"


def row(**columns: list[float]) -> Any:
    filled = {name: columns[name] + [0.0] * (SHOWN - len(columns[name])) for name in ("ids", "scores", "before")}
    noisy = columns["noisy"] + [-np.inf] * (SHOWN - len(columns["noisy"]))
    numbers = {name: np.array([values], np.float32) for name, values in {**filled, "noisy": noisy}.items()}
    return Contenders(numbers["ids"].astype(np.int64), numbers["scores"], numbers["before"], numbers["noisy"])


def test_main_memory_has_the_last_word():
    """The device has them in the wrong order by a little, as its logarithms might."""
    sampling = Sampling(1.0)
    noise = sampling.noise(3, np.array([10, 11]))
    other = float(noise[0] - noise[1])  # with it both are equal, but for fp32
    scores = [0.0, np.nextafter(np.float32(other), np.float32(99)) + 1e-5]
    near = row(ids=[10, 11], scores=scores, before=[0, 0], noisy=[noise[0], noise[0] - 1e-6])
    assert near.pick(0, 3, sampling) == 11


def test_one_that_is_not_shown_might_win():
    sampling = Sampling(1.0)
    ids = [*range(SHOWN)]
    noise = sampling.noise(3, np.array(ids))
    scores = [float(-one) for one in noise]  # all have nearly 0 together
    near = row(ids=ids, scores=scores, before=[0] * SHOWN, noisy=[5e-4 - 1e-4 * one for one in ids])
    assert near.pick(0, 3, sampling) is None
    scores[2] += 1.0
    assert row(ids=ids, scores=scores, before=[0] * SHOWN, noisy=[1.0, *[0.0] * 7]).pick(0, 3, sampling) == 2


def test_chances_close_to_top_p_are_left_to_another_way():
    sampling = Sampling(1.0, top_p=0.5)
    for before, expected in ((0.4985, 4), (0.4995, None), (0.5005, None)):
        assert row(ids=[4], scores=[0.0], before=[before], noisy=[0.0]).pick(0, 3, sampling) == expected


def test_numbers_come_as_they_are():
    given = torch.tensor([[2**62, -(2**62)]]), torch.tensor([[0.1, float("-inf")]]), torch.tensor([True])
    ids, scores, flag = brought(*given)
    assert ids.tolist() == given[0].tolist() and flag.tolist() == [True]
    assert scores.dtype == np.float32 and scores.tobytes() == given[1].numpy().tobytes()


def step_logits(rows: torch.Tensor) -> StepLogits:
    return StepLogits(rows, StepNumbers(summary(rows, rows)))


@pytest.mark.slow
@each("sampling", SAMPLINGS)
@each("count", [1, 4, SHOWN])
def test_a_step_proposes_what_has_the_most_noise_of_what_truncation_leaves(sampling, count):
    rows, positions = random_logits(12, 300, 4.0, seed=3), list(range(5, 17))
    proposed, sure = step_logits(rows).candidates(positions, count, sampling), 0
    by_all = TorchLogits(rows).candidates(positions, count, sampling)
    for row, position in enumerate(positions):
        scores, ids = (part.numpy() for part in survivors(rows[row], sampling))
        noisy = scores.astype(np.float64) + sampling.noise(position, ids)
        best = np.argsort(-noisy)[:count]
        weights = np.exp(noisy[best] - noisy[best[0]])
        if [token for token, _ in proposed[row]] == ids[best].tolist():
            sure += 1
            assert [chance for _, chance in proposed[row]] == pytest.approx(weights / weights.sum(), rel=1e-3)
        elif proposed != by_all:  # which it is where one of the rows is not sure
            assert sampling.top_p < 1 and {*ids[best]} <= {token for token, _ in proposed[row]}, (
                "one at the edge of top-p"
            )
    assert sure == 12 or sampling.top_p < 1


def test_what_is_likely_is_proposed_greedily_and_beyond_what_is_shown():
    rows, positions = random_logits(3, 300, 4.0, seed=3), [5, 6, 7]
    for count, sampling in ((4, Sampling()), (SHOWN + 1, Sampling(1.0)), (4, Sampling(1.0, rule="typical"))):
        every = TorchLogits(rows).candidates(positions, count, sampling)
        assert step_logits(rows).candidates(positions, count, sampling) == every


def test_where_a_row_has_no_sure_contenders_all_are_inspected():
    rows, positions, sampling = random_logits(3, 300, 4.0, seed=3), [4, 5, 6], Sampling(1.0, seed=2)
    whole = step_logits(rows).candidates(positions, 3, sampling)
    rows[1] = float("nan")
    one, none, another = step_logits(rows).candidates(positions, 3, sampling)
    assert none == [] and len(one) == len(another) == 3, "NaN propose nothing"
    assert [[token for token, _ in row] for row in (one, another)] == [[token for token, _ in whole[n]] for n in (0, 2)]


def test_a_search_that_writes_over_the_one_before_it_does_no_harm():
    """As with results of a recording: a pick is used before the next search overwrites it."""
    place: list[torch.Tensor] = []

    def find(logits: torch.Tensor, keys: torch.Tensor, sampling: Sampling) -> Contenders:
        found = contenders(logits, keys, sampling)
        place[:] = place or [found.ids, found.scores, found.before, found.noisy]
        for there, new in zip(place, (found.ids, found.scores, found.before, found.noisy), strict=True):
            there.copy_(new)
        return Contenders(*place)

    rows, sampling = random_logits(1, 300, 1.0, seed=3), Sampling(1.0, seed=2)
    step = StepLogits(rows, StepNumbers(summary(rows, rows)), find=find)
    picks = [step.picks([position], sampling) for position in range(20)]
    assert [one[0] for one in picks] == [told(rows, [position], sampling)[0] for position in range(20)]


def test_ids_that_columns_stand_for_are_proposed():
    rows, ids = random_logits(2, 50, 4.0, seed=3), np.arange(50) * 3 + 1
    for sampling in (Sampling(), Sampling(1.0, seed=2)):
        proposed = step_logits(rows).candidates([4, 5], 3, sampling, ids)
        assert proposed == TorchLogits(rows).candidates([4, 5], 3, sampling, ids)


def test_what_picks_found_is_not_looked_for_again():
    looked: list[int] = []

    def find(logits: torch.Tensor, keys: torch.Tensor, sampling: Sampling) -> Contenders:
        looked.append(len(logits))
        return contenders(logits, keys, sampling)

    rows, sampling = random_logits(1, 300, 4.0, seed=3), Sampling(1.0, seed=2)
    step = StepLogits(rows, StepNumbers(summary(rows, rows)), find=find)
    picks = step.picks([9], sampling)
    assert step.candidates([9], 4, sampling)[0][0][0] == picks[0] and looked == [1]
    step.candidates([10], 4, sampling)
    step.candidates([9], 4, Sampling(1.0, seed=3))
    assert looked == [1, 1, 1], "of another place, or with other noise"
