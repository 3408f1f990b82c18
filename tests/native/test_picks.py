"""Picks, candidates and probabilities against the plain form in numpy."""

from ctypes import byref, c_int32

import numpy as np
import pytest
from each import each
from native.engine import isas, using

from localspec.decoding.logits import NumpyLogits
from localspec.decoding.sampling import Sampling
from localspec.machine.library import Sampling as Settings
from localspec.machine.library import address, check, int32, library
from localspec.native.logits import NativeLogits

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers_in_every_order():
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


SETTINGS = [
    {},
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": 3000},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"top_p": 0.97},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.05},
    {"top_k": 2000, "top_p": 0.95},
]


def settings(sampling: Sampling) -> Settings:
    return Settings(sampling.temperature, sampling.top_p, sampling.min_p, sampling.seed & (1 << 64) - 1, sampling.top_k)


def pick(logits: np.ndarray, sampling: Sampling, position: int) -> int:
    found = c_int32(-7)
    check(library().ls_pick(address(logits), len(logits), settings(sampling), position, None, byref(found)))
    return found.value


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    p = np.full(len(logits), np.nan)
    check(library().ls_probabilities(address(logits), len(logits), settings(sampling), address(p)))
    return p


def logits_of(vocab: int, spread: float = 3.0) -> np.ndarray:
    return (RNG.standard_normal(vocab) * spread).astype(np.float32)


@each("given", SETTINGS)
def test_a_pick_is_that_of_the_plain_form(given):
    for vocab in (1, 2, 33, 5000):
        for seed in (0, 7, 2**63 + 11, 2**64 - 1, -3):
            sampling = Sampling(temperature=0.8, seed=seed, **given)
            for position in (0, 1, 4097):
                logits = logits_of(vocab)
                assert pick(logits, sampling, position) == NumpyLogits(logits[None]).picks([position], sampling)[0]


@pytest.mark.slow
def test_picks_come_as_often_as_their_probability():
    logits = logits_of(40, 1.0)
    for sampling in (Sampling(temperature=1.3), Sampling(temperature=0.7, top_p=0.8)):
        expected = probabilities(logits, sampling)
        counts = np.bincount([pick(logits, sampling, position) for position in range(20000)], minlength=40)
        likely = expected > 0
        assert not counts[~likely].any()
        chi_square = ((counts - 20000 * expected)[likely] ** 2 / (20000 * expected[likely])).sum()
        assert chi_square < likely.sum() + 5 * np.sqrt(2 * likely.sum())


@each("given", SETTINGS)
def test_probabilities_are_those_of_the_plain_form(given):
    for vocab in (1, 33, 5000):
        logits = logits_of(vocab)
        sampling = Sampling(temperature=0.8, **given)
        got, want = probabilities(logits, sampling), NumpyLogits(logits[None]).probabilities(0, sampling)
        assert ((got > 0) == (want > 0)).all() and np.allclose(got, want, rtol=1e-12)


def test_equals_are_kept_together_by_top_k_and_the_first_of_them_is_greedys():
    logits = np.array([1, 3, 2, 3, 2, 0], np.float32)
    assert pick(logits, Sampling(), 0) == 1
    kept = probabilities(logits, Sampling(temperature=1.0, top_k=3))
    assert (kept > 0).tolist() == [False, True, True, True, True, False]


def test_logits_without_a_number_pick_nothing():
    for bad in (np.nan,):
        logits = logits_of(100)
        logits[17] = bad
        assert pick(logits, Sampling(), 0) == pick(logits, Sampling(temperature=1.0, top_p=0.9), 0) == -1
    nothing = np.full(100, -np.inf, np.float32)
    assert pick(nothing, Sampling(), 0) == pick(nothing, Sampling(temperature=1.0), 0) == -1
    nothing[3] = 1.0
    for sampling in (Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=5, top_p=0.5, min_p=0.1)):
        assert pick(nothing, sampling, 0) == 3


def top(logits: np.ndarray, temperature: float, count: int) -> tuple[list[int], np.ndarray]:
    tokens, chances, found = np.full(count, -7, np.int32), np.full(count, np.nan, np.float32), c_int32(-7)
    check(
        library().ls_top(
            address(logits), len(logits), temperature, count, address(tokens), address(chances), byref(found)
        )
    )
    return tokens[: found.value].tolist(), chances[: found.value]


def test_the_likeliest_come_first_with_their_chances():
    for vocab in (1, 31, 5000):
        logits = np.round(logits_of(vocab), 1).astype(np.float32)  # with equals
        for temperature in (0.0, 0.5, 2.0):
            scores = logits.astype(np.float64) / (temperature or 1)
            chances = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            for count in (1, 5, vocab, vocab + 3):
                tokens, got = top(logits, temperature, count)
                want = np.argsort(-logits, kind="stable")[:count]
                assert tokens == want.tolist()
                assert np.allclose(got, chances[want], rtol=1e-5)
    for bad in (np.nan, np.inf):
        logits = logits_of(100)
        logits[17] = bad
        assert top(logits, 1.0, 4)[0] == []


def test_candidates_have_the_noise_of_the_pick():
    ids = RNG.permutation(100000)[:500].astype(np.int32)
    for given in (None, ids):
        for position in range(20):
            logits, sampling = logits_of(500), Sampling(temperature=0.9, seed=position)
            tokens, chances, found = np.empty(128, np.int32), np.empty(128, np.float32), c_int32()
            check(library().ls_candidates(
                address(logits), 500, settings(sampling), position, address(given), 128, 6, address(tokens), address(chances), byref(found)
            ))  # fmt: skip
            (want,) = NumpyLogits(logits[None]).candidates([position], 6, sampling, given)
            assert tokens[: found.value].tolist() == [token for token, _ in want]
            assert np.allclose(chances[: found.value], [chance for _, chance in want], rtol=1e-4)
            if given is None:
                assert pick(logits, sampling, position) == tokens[0]


def test_every_instruction_set_picks_the_same():
    logits = logits_of(5000)
    first = None
    for isa in isas():
        with using(isa):
            got = (
                [pick(logits, Sampling(temperature=0.7, top_p=0.9, seed=seed), 3) for seed in range(20)],
                top(logits, 0.7, 50)[1].tolist(),
                probabilities(logits, Sampling(temperature=1.1, min_p=0.01)).tolist(),
            )
        first = got if first is None else first
        assert got == first
    assert int32([1]).dtype == np.int32


def test_who_reaches_top_p_is_the_last_who_is_left_in():
    """Half of four equals are two of them: the probability before the third is not less than p."""
    logits = NativeLogits(np.array([[0, 0, 0, 0]], np.float32))
    assert logits.probabilities(0, Sampling(1.0, top_p=0.5)).tolist() == [0.5, 0.5, 0, 0]
    assert logits.probabilities(0, Sampling(1.0, top_p=0.75)).tolist() == [1 / 3, 1 / 3, 1 / 3, 0]


def test_rows_are_taken_sampled_and_proposed_as_in_the_plain_form():
    rows = RNG.standard_normal((4, 50)).astype(np.float32)
    ours, plain = NativeLogits(rows, rows.argmax(-1).tolist()), NumpyLogits(rows)
    for order in ([2, 0], [3, 3, 1]):
        assert ours.take(order).argmax() == plain.take(order).argmax()
    for row in (-1, -4, 2):
        chances = [logits.probabilities(row, Sampling(0.8, top_k=9)) for logits in (ours, plain)]
        np.testing.assert_allclose(*chances, rtol=1e-6)
    sampling, places = Sampling(1.0, seed=3), range(40)
    drawn = [[logits.sample(place % 4, place, 1, sampling) for place in places] for logits in (ours, plain)]
    assert drawn[0] == drawn[1] != [ours.picks([place] * 4, sampling)[place % 4] for place in places]
    ids = np.arange(57, 7, -1)
    found = [logits.candidates([5, 6, 7, 8], 3, Sampling(), ids) for logits in (ours, plain)]
    assert [[token for token, _ in row] for row in found[0]] == [[token for token, _ in row] for row in found[1]]
    assert all(8 <= token <= 57 for row in found[0] for token, _ in row)
