"""Asking a session, and holding it to what it says of itself; and what the stock model says to several prompts."""

from collections.abc import Sequence

from tiny_models import END, Tiny, prompt_ids, stock_reply

from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Limits, Session
from localspec.events import Done, Statistics, Text


def reply(
    session: Session, prompt: Sequence[int], count: int, sampling: Sampling | None = None
) -> tuple[list[int], Statistics]:
    """The ids of one reply, greedy by default; text, statistics, cache and tokens must agree on them."""
    *events, done = session.generate(prompt, sampling or Sampling(), Limits(max_tokens=count))
    assert isinstance(done, Done)
    ids = [token for event in events if isinstance(event, Text) for token in event.tokens]
    assert ids == list(done.statistics.token_ids)
    assert session.tokens == [*prompt, *ids] and session.cache.length == len(session.tokens) - 1
    return ids, done.statistics


def assert_two_turns(model: Tiny, session: Session, first: int = 14, second: int = 8) -> tuple[list[int], Statistics]:
    """Greedy replies of so many tokens are the stock model's; the second turn begins in the middle of the first reply.

    Returns the second prompt, and the statistics of the first reply.
    """
    prompt = prompt_ids(17, seed=23)
    text = stock_reply(model.stock, prompt, first)
    ids, statistics = reply(session, prompt, first)
    assert ids == text
    again = [*prompt, *text[:6], *prompt_ids(5, seed=2)]
    assert reply(session, again, second)[0] == stock_reply(model.stock, again, second)
    return again, statistics


SAID = 12  # tokens of each reply in a conversation


def conversation(model: Tiny) -> list[tuple[list[int], list[int]]]:
    """Three prompts, each with what the stock model says to it, the later ones holding the earlier."""
    turns, prompt = [], prompt_ids(15, seed=6)
    for turn in range(3):
        text = stock_reply(model.stock, prompt, SAID)
        turns.append((prompt, text))
        # What an application does: the reply, its end, the next question.
        prompt = [*prompt, *text, END, *prompt_ids(9, seed=turn)]
    return turns
