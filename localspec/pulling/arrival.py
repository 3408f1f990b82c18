"""How a download goes, in words: how much is here, how fast it comes, and how long it will still take."""

from collections import deque

from localspec.quantities import duration, size

WINDOW = 10.0  # seconds over which the pace is taken


class Arrival:
    """The bytes of one download as they come."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # when, and how many bytes were here

    def parts(self, done: int, total: int, now: float) -> list[str]:
        """`done` of `total` bytes are here at `now`, in seconds: that, the pace, and the time left, as far as known."""
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        then, before = self._seen[0]
        said = [f"{size(done)} of {size(total)}"]
        if now > then and done > before:
            rate = (done - before) / (now - then)
            said += [f"{size(rate)}/s", f"{duration((total - done) / rate)} left"]
        return said
