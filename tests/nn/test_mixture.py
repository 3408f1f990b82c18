"""A mixture in torch, computed expert by expert, or row by row as for drafts, is a weighted sum of the chosen experts."""

import pytest
import torch
from each import each

from localspec.families.family import MixtureSizes as Sizes
from localspec.nn.experts import Experts, chosen_experts
from localspec.nn.linear import Linear
from localspec.nn.states import AT_ONCE

COUNT, USED, SIZE, HIDDEN = 5, 3, 16, 32


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.tanh(gate) * (up + 1)


@pytest.fixture
def numbers() -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    shapes = {
        "gates": (COUNT, SIZE, HIDDEN), "ups": (COUNT, SIZE, HIDDEN), "downs": (COUNT, HIDDEN, SIZE),
        "gate_biases": (COUNT, SIZE), "up_biases": (COUNT, SIZE), "down_biases": (COUNT, HIDDEN), "scale": (COUNT,),
    }  # fmt: skip
    return {name: torch.randn(shape, generator=chance, dtype=torch.float64) for name, shape in shapes.items()}


def mixture(numbers: dict[str, torch.Tensor], sizes: Sizes, biased: bool, exact: bool) -> Experts:
    gate_up = torch.cat([numbers["gates"], numbers["ups"]]).view(-1, HIDDEN).float()
    gate_up_bias = torch.cat([numbers["gate_biases"], numbers["up_biases"]]).view(-1).float() if biased else None
    down_bias = numbers["down_biases"].view(-1).float() if biased else None
    down = Linear(numbers["downs"].view(-1, SIZE).float(), down_bias)
    return Experts(sizes, Linear(gate_up, gate_up_bias), down, gated, exact)


@each("normalised", [True, False])
@each("biased", [True, False])
@each("scaled", [True, False])
def test_each_row_gets_the_weighted_sum_of_its_experts(numbers, normalised: bool, biased: bool, scaled: bool) -> None:
    rows, logits = torch.randn(9, HIDDEN), torch.randn(9, COUNT)
    weights = logits.double().softmax(-1)
    want = torch.zeros(9, HIDDEN, dtype=torch.float64)
    for row, of_row in enumerate(logits.tolist()):
        chosen = sorted(range(COUNT), key=lambda expert: -of_row[expert])[:USED]
        total = weights[row, chosen].sum() if normalised else 1
        for one in chosen:
            x, add = rows[row].double(), float(biased)
            gate = numbers["gates"][one] @ x + add * numbers["gate_biases"][one]
            up = numbers["ups"][one] @ x + add * numbers["up_biases"][one]
            output = numbers["downs"][one] @ gated(gate, up) + add * numbers["down_biases"][one]
            want[row] += output * weights[row, one] / total * (numbers["scale"][one] if scaled else 1)
    scale = numbers["scale"].float() if scaled else None
    for exact in (False, True):
        got = mixture(numbers, Sizes(COUNT, USED, SIZE, normalised), biased, exact)(rows[None], logits[None], scale)
        assert (got[0] - want).abs().max() < 1e-4 * want.abs().max(), exact


def test_with_exact_a_row_has_the_same_bits_whatever_rows_are_computed_with_it(numbers) -> None:
    exact = mixture(numbers, Sizes(COUNT, USED, SIZE), True, True)
    rows, logits = torch.randn(AT_ONCE, HIDDEN), torch.randn(AT_ONCE, COUNT)
    together = exact(rows, logits)
    for row in (0, 7, AT_ONCE - 1):
        assert torch.equal(exact(rows[row : row + 1], logits[row : row + 1])[0], together[row])


def test_of_equally_likely_experts_the_first_are_chosen() -> None:
    logits = torch.zeros(1, 64)
    logits[0, 40] = 1
    chosen, weights = chosen_experts(logits, Sizes(64, USED, SIZE))
    assert chosen.tolist() == [[40, 0, 1]] and weights[0, 1] == weights[0, 2] < weights[0, 0]
