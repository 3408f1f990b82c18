"""The seconds that Python takes around forwards and products: much beside the steps of a tiny model, else nothing.

Measured with Python 3.11 on servers of 2022 and 2023. What replies took is counted as it was measured.
"""

from dataclasses import dataclass

from localspec.policy.forward_costs import ForwardCostModel

STEP = 8e-5  # of a step without a tree, beside draft and forward
TREE = 4e-5  # more, of one with a tree
DRAFT = 5e-5  # of a draft, beside what it multiplies
PHRASES = 1e-4  # of a draft of phrases, found or not, or of phrases at the ends of another draft


def step_seconds(drafting: float, forward: float, nodes: int) -> float:
    """Returns what a step takes whose draft has so many nodes, by what drafting and the target's forward take."""
    return drafting + forward + STEP + (TREE if nodes else 0.0)


@dataclass(frozen=True)
class StepCosts:
    """What a whole step takes whose forward has so many rows, as `ForwardCostModel` says it of forwards alone."""

    forwards: ForwardCostModel

    def at(self, rows: int, context: int) -> float:
        return self.forwards.at(rows, context) + STEP
