"""Thinking in a session: every drafter separates it from the answer, with the same tokens; stop strings end answers only."""

from collections.abc import Iterator

import pytest
from each import each
from scripted_drafters import OffChain, Oracle
from table_model import TableModel

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.events import Done, Text
from localspec.models.thinking import Marks, Thinking

SAID = "tkabcdeftzyaghij"  # tk and tz are the marks
MARKS = Marks("tk", "tz")


def ids(text: str) -> list[int]:
    return [ord(letter) - 97 for letter in text]


PROMPT = ids("xw")


@pytest.fixture
def model() -> TableModel:
    """Return a model that writes SAID after PROMPT."""
    table, text = TableModel(26, seed=0), [*PROMPT, *ids(SAID)]
    for before, last, following in zip(text, text[1:], text[2:], strict=False):
        table.logits[before, last, following] = 99
    return table


def drafters() -> Iterator[Drafter]:
    text = [*PROMPT, *ids(SAID)]
    yield Autoregressive()
    yield Oracle(text, vocabulary=26)
    yield OffChain(text, vocabulary=26)


def answered(session: Session, prompt: list[int], limits: Limits) -> tuple[str, str, int, Done]:
    """Return the thought, the answer, the number of tokens before the answer, and how it ended."""
    *events, done = session.generate(prompt, Sampling(), limits)
    assert isinstance(done, Done)
    texts = [event for event in events if isinstance(event, Text)]
    thought = sum(event.reasoning_tokens for event in texts)
    assert all(event.reasoning_tokens <= len(event.tokens) for event in texts)
    assert done.statistics.token_ids == tuple(token for event in texts for token in event.tokens)
    assert done.statistics.reasoning_tokens == thought
    return "".join(event.reasoning for event in texts), "".join(event.text for event in texts), thought, done


def session_of(model: TableModel, drafter: Drafter) -> Session:
    return Session(model, drafter, Budget(8), Thinking(MARKS, model.decode, model.decode, {}))


@each(
    "limits, thought, answer, before, reason",
    [
        (Limits(16), "abcdef", "yaghij", 10, "length"),
        (Limits(16, ["i"]), "abcdef", "yagh", 10, "stop"),
        (Limits(16, ["a"]), "abcdef", "y", 10, "stop"),  # which the thoughts contain, too
        (Limits(16, ["ef", "tz"]), "abcdef", "yaghij", 10, "length"),
        (Limits(5), "abc", "", 5, "length"),
        (Limits(9), "abcdeft", "", 9, "length"),  # the beginning of a mark that does not become one
        (Limits(10), "abcdef", "", 10, "length"),
        (Limits(11), "abcdef", "y", 10, "length"),
    ],
)
def test_thinking_and_answer_are_parted_whatever_drafts(model, limits, thought, answer, before, reason):
    for drafter in drafters():
        found = answered(session_of(model, drafter), PROMPT, limits)
        assert found[:3] == (thought, answer, before) and found[3].reason == reason
        statistics = found[3].statistics
        assert statistics.token_ids == tuple(ids(SAID)[: before + len(answer)])
        assert (statistics.reasoning_tokens == statistics.tokens) == (not answer)
        assert 0 < statistics.reasoning_seconds <= statistics.first_token_seconds + statistics.decode_seconds


def test_a_prompt_that_ends_in_the_mark_begins_within_the_thinking(model: TableModel) -> None:
    for drafter in drafters():
        found = answered(session_of(model, drafter), [*PROMPT, *ids("tk")], Limits(14))
        assert found[:3] == ("abcdef", "yaghij", 8)


def test_a_session_that_knows_no_marks_shows_all_as_it_is(model: TableModel) -> None:
    found = answered(Session(model, Autoregressive(), Budget(0)), PROMPT, Limits(16))
    assert found[:3] == ("", SAID, 0) and found[3].statistics.reasoning_tokens == 0
    assert found[3].statistics.reasoning_seconds == 0


def test_who_stops_within_the_thinking_has_the_tokens_that_were_shown(model: TableModel) -> None:
    session = session_of(model, Autoregressive())
    events = session.generate(PROMPT, Sampling(), Limits(16))
    shown = ""
    for event in events:
        if isinstance(event, Text):
            shown += event.reasoning
            if shown == "abc":
                break
    events.close()
    assert session.statistics is not None and session.statistics.reasoning_tokens == session.statistics.tokens
    assert session.tokens == [*PROMPT, *ids("tkabc")]
