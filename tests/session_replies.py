"""Ask a session, check its statistics, and compare with the stock model's replies to several prompts."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from tiny_models import END, Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.events import Done, Statistics, Text


def reply(
    session: Session, prompt: Sequence[int], count: int, sampling: Sampling | None = None
) -> tuple[list[int], Statistics]:
    """Return the ids of one reply, greedy by default; text, statistics, cache and tokens must agree on them."""
    *events, done = session.generate(prompt, sampling or Sampling(), Limits(max_tokens=count))
    assert isinstance(done, Done)
    ids = [token for event in events if isinstance(event, Text) for token in event.tokens]
    assert ids == list(done.statistics.token_ids)
    assert session.tokens == [*prompt, *ids] and session.cache.length == len(session.tokens) - 1
    return ids, done.statistics


def assert_two_turns(model: Tiny, session: Session, first: int = 14, second: int = 8) -> tuple[list[int], Statistics]:
    """Assert that greedy replies of these lengths are the stock model's; the second turn begins inside the first reply.

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
    """Return three prompts, each with the stock model's reply; later prompts contain the earlier ones."""
    turns, prompt = [], prompt_ids(15, seed=6)
    for turn in range(3):
        text = stock_reply(model.stock, prompt, SAID)
        turns.append((prompt, text))
        # What an application does: the reply, its end, the next question.
        prompt = [*prompt, *text, END, *prompt_ids(9, seed=turn)]
    return turns


def assert_plain(target: Any, session: Session, prompt: Sequence[int], count: int, *samplings: Sampling) -> Statistics:
    """Assert that replies with these samplings are those of plain decoding. Return the statistics of the last."""
    assert samplings
    for sampling in samplings:
        plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, count, sampling)
        ids, statistics = reply(session, prompt, count, sampling)
        assert ids == plain, sampling
    return statistics


def assert_conversation(model: Tiny, session: Session) -> None:
    """Assert that three turns are those of the stock model."""
    for prompt, text in conversation(model):
        assert reply(session, prompt, SAID)[0] == text


def assert_stops_leave_no_trace(model: Tiny, session: Session) -> None:
    """Assert that replies are the stock model's after one that was stopped, partly taken back, or cut by a stop token."""
    (prompt, text), (second, answer), *_ = conversation(model)
    for stop in (1, 2, 3):
        stream = session.generate(prompt, Sampling(), Limits(max_tokens=SAID))
        list(islice(stream, 2 + stop))
        stream.close()
        assert session.cache.length == len(session.tokens) - 1
        assert session.tokens == [*prompt, *text][: len(session.tokens)]
        further = [*session.tokens, *prompt_ids(5, seed=stop)]
        assert reply(session, further, 6)[0] == stock_reply(model.stock, further, 6)
        assert reply(session, prompt, SAID)[0] == text
        session.rewind(len(prompt) + stop)
        assert reply(session, prompt, SAID)[0] == text
    usual = session.target.stop_tokens
    for token in text[3::3]:
        session.target.stop_tokens = frozenset({token})
        try:
            assert reply(session, prompt, SAID)[0] == text[: text.index(token)]
        finally:
            session.target.stop_tokens = usual
    assert reply(session, second, SAID)[0] == answer
