"""How many times as fast as plain decoding a reply comes, by those of its own steps that had no draft."""

from collections import deque
from statistics import median

from localspec.choosing.cost import ForwardCostModel

REMEMBERED = 9  # steps, whose median says what a step takes when nothing interrupts it
ENOUGH = 3  # steps without a draft are believed
WARM = 3  # steps of an engine, after which all that it computes with is where it is computed with
INTERRUPTED = 4  # times as long as steps lately: the machine did something else meanwhile
SOON, OFTEN = 4, 64  # steps after which one without a draft is wanted: of a new reply, twice as many each time, at most


class PlainTime:
    """Takes the steps of one reply after another, and knows what plain decoding would have taken for the latest.

    A step without a draft is one of plain decoding, whatever the machine did meanwhile, but for the time in which a
    draft was looked for and learned from. Steps with a draft are compared with the mean of those, not with a median:
    on a busy machine few steps take much longer than most, and they would be on one side only. A step costs as many
    times more after a longer text as `costs` say. Without costs no step without a draft is asked for, and one costs the
    same after every text.
    """

    def __init__(self, costs: ForwardCostModel | None) -> None:
        self._costs = costs
        self._warming = WARM
        self.begin()

    def begin(self) -> None:
        """Begins a new reply: the machine may be busier than in the one before, or less."""
        self._steps = self._last = 0  # of this reply, and the last of them without a draft
        self._wait = SOON
        self._lately: deque[float] = deque(maxlen=REMEMBERED)  # seconds of the last steps, whole
        self._spent = 0.0  # seconds of all steps
        self._plain, self._plain_seconds, self._plain_cost = 0, 0.0, 0.0  # steps without a draft, and what they cost
        self._drafted_cost = 0.0  # of the tokens of all others, had each been a step without a draft

    @property
    def wanted(self) -> bool:
        """Whether the next step should be one without a draft: a percent or so of them, and only while none comes."""
        return self._costs is not None and self._steps - self._last >= self._wait

    def observe(self, rows: int, context: int, tokens: int, seconds: float, drafting: float) -> None:
        """A step of so many rows after `context` tokens brought `tokens`.

        `seconds` are all from the end of the step before to the end of this one, `drafting` those of them in which
        plain decoding would have had nothing to do.
        """
        self._steps += 1
        if rows == 1:
            self._last, self._wait = self._steps, min(2 * self._wait, OFTEN)
        if self._warming:
            self._warming -= 1
            return
        self._lately.append(seconds)
        steady = min(seconds, INTERRUPTED * median(self._lately))  # an interruption would stand on one side, too
        cost = 1.0 if self._costs is None else self._costs.at(1, context)
        self._spent += steady
        if rows == 1:
            self._plain += 1
            self._plain_seconds += min(steady, max(seconds - drafting, 0.0))
            self._plain_cost += cost
        else:
            self._drafted_cost += tokens * cost

    @property
    def speedup(self) -> float | None:
        """How many times as fast as plain decoding; None while too few steps without a draft were seen."""
        if self._plain < ENOUGH or self._spent <= 0:
            return None
        return self._plain_seconds * (1 + self._drafted_cost / self._plain_cost) / self._spent
