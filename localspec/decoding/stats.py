"""Counts the events of one reply, and turns the counts into figures."""

from collections import Counter
from collections.abc import Sequence

from localspec.decoding.drafter import Step
from localspec.events import Draft


class Tally:
    """Running counts over the decode steps of one reply."""

    def __init__(self) -> None:
        self.steps = 0
        self.drafted = 0
        self.accepted = 0
        self.committed = 0
        self.draft_seconds = self.verify_seconds = 0.0
        self.rows: Counter[int] = Counter()  # number of forwards by rows
        self.step_seconds = 0.0  # of both, and of everything else in a step
        self._reached: list[int] = []  # by depth: how often a parent was accepted and had a child
        self._accepted: list[int] = []  # and how often one of its children was accepted

    def add(self, step: Step, taken: int) -> None:
        """Count one decode step; the reply has the first `taken` of its committed tokens."""
        assert step.tree is not None
        self.steps += 1
        self.drafted += step.tree.size - 1
        self.rows[step.tree.size] += 1
        self.committed += taken
        self.draft_seconds += step.draft_seconds
        self.verify_seconds += step.verify_seconds
        self.accepted += min(taken, len(step.path) - 1)
        for depth, node in enumerate(step.path):
            if not step.tree.children[node]:
                break
            if depth == len(self._reached):
                self._reached.append(0)
                self._accepted.append(0)
            self._reached[depth] += 1
            self._accepted[depth] += depth + 1 < len(step.path)

    @property
    def acceptance_length(self) -> float:
        """τ, the tokens committed per target forward, bonus included; 0 before the first step."""
        return self.committed / self.steps if self.steps else 0.0

    @property
    def acceptance_by_depth(self) -> tuple[float, ...]:
        """The chance that a node at depth 1, 2, … is accepted, given its parent was."""
        return tuple(accepted / reached for accepted, reached in zip(self._accepted, self._reached, strict=True))


def step_sources(step: Step) -> list[str]:
    """Return the source of each committed token of a decode step. The bonus token comes from the target."""
    assert step.tree is not None
    named = step.tree.source or ["drafter"] * step.tree.size
    return [*(named[node] for node in step.path[1:]), "target"]


def draft_of(step: Step) -> Draft:
    """Return the draft of a decode step, without a copy."""
    tree = step.tree
    assert tree is not None
    return Draft(tree.tokens, tree.parents, tree.source, tree.probe, step.path)


def count_sources(sources: Sequence[str]) -> dict[str, int]:
    """Count the tokens of each source. The target is always listed."""
    return {"target": 0, **Counter(sources)}
