"""Asking a session, and holding it to what it says of itself."""

from collections.abc import Sequence

from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Limits, Session
from localspec.events import Done, Statistics, Text


def reply(
    session: Session, prompt: Sequence[int], count: int, sampling: Sampling | None = None
) -> tuple[list[int], Statistics]:
    """The ids of one reply, greedy by default; text, cache and tokens must end at the same place."""
    *events, done = session.generate(prompt, sampling or Sampling(), Limits(max_tokens=count))
    assert isinstance(done, Done)
    ids = [token for event in events if isinstance(event, Text) for token in event.tokens]
    assert session.tokens == [*prompt, *ids] and session.cache.length == len(session.tokens) - 1
    return ids, done.statistics
