"""Where a GPU's memory is full, Windows moves weights to main memory without a word; slower steps show it."""

from localspec.choosing.cost import ForwardCostModel
from localspec.events import Reporter, Statistics

SPILL_FACTOR = 4  # a step that takes more than so many times what was measured: memory has spilt
LEAST_STEPS = 8  # in a reply that is judged


class SpillWatch:
    """Warns once when steps on a GPU take many times as long as its forwards did when they were measured."""

    def __init__(self, device: str, costs: ForwardCostModel | None, reporter: Reporter) -> None:
        self._device, self._reporter = device, reporter
        self._costs = costs if device.startswith("cuda") else None

    def look(self, statistics: Statistics, tokens: int) -> None:
        """Judges a reply, after which the cache holds so many tokens."""
        if self._costs is None or statistics.steps < LEAST_STEPS:
            return
        usual = self._costs.at(round(1 + statistics.drafted / statistics.steps), tokens)
        factor = statistics.verify_seconds / statistics.steps / usual
        if factor > SPILL_FACTOR:
            self._costs = None  # one warning is enough
            self._reporter.notice(
                f"a step takes {factor:.0f} times what it took when it was measured: the memory of {self._device} may "
                "be full, and part of it moved to main memory; close other programs, or give a smaller --context or "
                "--quantize nf4."
            )
