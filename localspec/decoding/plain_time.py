"""What plain decoding would take now, by the steps without a draft that were timed in passing."""

from collections import deque
from statistics import median

from localspec.policy.forward_costs import ForwardCostModel

REMEMBERED = 9  # steps, whose median counts
ENOUGH = 3  # of them are believed
WARM = 3  # steps of an engine, after which all that it computes with is where it is computed with
LATELY = 512  # steps, after which the machine may be another one
INTERRUPTED = 4  # times as long as steps lately: the machine did something else meanwhile
SOON, OFTEN = 4, 64  # steps after which one without a draft is wanted: while too few were seen, and from then on


class PlainTime:
    """Takes the steps of one engine, and knows what one without a draft takes after a text of any length.

    Longer texts cost more: as many times more as `costs` say, which also stand for a machine on which nothing else
    runs. Without costs no step without a draft is asked for, and one costs the same after every text.
    """

    def __init__(self, costs: ForwardCostModel | None) -> None:
        self._costs = costs
        self._steps = 0
        self._lately: deque[float] = deque(maxlen=REMEMBERED)  # seconds of the last steps, whole
        self._plain: deque[tuple[int, float]] = deque(
            maxlen=REMEMBERED
        )  # (number of the step, by how much it deviated)
        self._deviation: float | None = None  # as it is believed

    @property
    def wanted(self) -> bool:
        """Whether the next step should be one without a draft: a percent or so of them, and only while none comes."""
        if self._costs is None:
            return False
        last = self._plain[-1][0] if self._plain else 0
        return self._steps - last >= (SOON if self._deviation is None else OFTEN)

    def steady(self, seconds: float) -> float:
        """What a step took that took so long, without a time in which it was interrupted.

        The median of plain steps knows nothing of interruptions, so what they are compared with must not, either.
        """
        self._lately.append(seconds)
        return min(seconds, INTERRUPTED * median(self._lately))

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """A step of so many rows; `seconds` are those of all that plain decoding does too."""
        self._steps += 1
        if rows == 1 and seconds > 0 and self._steps > WARM:
            self._plain.append((self._steps, seconds / self._cost(context)))
        elif self._deviation is None or self._plain[-1][0] >= self._steps - LATELY:
            return
        fresh = [deviation for number, deviation in self._plain if number > self._steps - LATELY]
        self._deviation = median(fresh) if len(fresh) >= ENOUGH else None

    def seconds(self, context: int) -> float | None:
        """Seconds of a plain step after so many tokens; None while too few were seen lately."""
        return None if self._deviation is None else self._deviation * self._cost(context)

    def _cost(self, context: int) -> float:
        return 1.0 if self._costs is None else self._costs.at(1, context)
