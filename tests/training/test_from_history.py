"""Training on the user's conversations: which texts are used as they are, answered again, or held out."""

import pytest

from localspec.store.store import Store
from localspec.training import examples
from localspec.training.examples import read_past


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        yield store


def talk(store: Store, model: str, *turns: tuple[str, str, str | None], system: str | None = None) -> int:
    conversation = None
    for prompt, reply, reason in turns:
        conversation, turn = store.history.say(conversation, prompt, model=model, system=system)
        store.history.write(turn, reply, reason)
    assert conversation is not None
    return conversation


@pytest.fixture
def none_held_out(monkeypatch):
    monkeypatch.setattr(examples, "HELD_OUT", 0.0)


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.usefixtures("none_held_out")
def test_replies_of_the_same_model_are_used_and_prompts_of_others_are_answered_again(store):
    mine = talk(store, "mine", ("a", "b", "stop"), ("c", "d", "length"), system="short")
    other = talk(store, "other", ("e", "f", "stop"), ("g", "h", "stop"), system="long")
    found = read_past(store.history, "mine")
    (own,), (asked,) = found.conversations, found.questions
    assert own.id.startswith(f"history-{mine}-") and asked.id.startswith(f"history-{other}-")
    assert own.messages == (
        said("system", "short"), said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d"),
    )  # fmt: skip
    assert (asked.messages, asked.following) == ((said("system", "long"), said("user", "e")), ("g",))
    assert found.held_out == []


@pytest.mark.usefixtures("none_held_out")
def test_a_conversation_that_has_continued_is_another_text(store):
    conversation = talk(store, "other", ("a", "b", "stop"))
    (before,) = read_past(store.history, "mine").questions
    assert read_past(store.history, "mine").questions == [before]
    _, turn = store.history.say(conversation, "c", model="other", system=None)
    store.history.write(turn, "d", "stop")
    (after,) = read_past(store.history, "mine").questions
    assert after.id != before.id and after.following == ("c",)


@pytest.mark.usefixtures("none_held_out")
def test_a_conversation_counts_up_to_a_reply_that_was_stopped(store):
    talk(store, "mine", ("a", "b", "stop"), ("c", "half", "interrupted"), ("e", "f", "stop"))
    talk(store, "mine", ("g", "half", "interrupted"))
    found = read_past(store.history, "mine")
    assert [one.messages for one in found.conversations] == [(said("user", "a"), said("assistant", "b"))]
    assert [one.messages for one in found.questions] == [(said("user", "g"),)], "the model may answer what it was asked"


def test_what_is_held_out_stays_so_when_others_have_come_and_is_in_nothing_else(store):
    for number in range(40):
        talk(store, "mine", (f"question {number}", "reply", "stop"))
    before = read_past(store.history, "mine")
    held_out = {prompt.text for prompt in before.held_out}
    assert 1 <= len(held_out) <= 12 and len(before.conversations) == 40 - len(held_out)
    again = min(held_out)
    talk(store, "mine", ("something else", "reply", "stop"), (again, "reply", "stop"))
    for number in range(40, 60):
        talk(store, "mine", (f"question {number}", "reply", "stop"))
    after = read_past(store.history, "mine")
    learnt = {message["content"] for one in after.conversations for message in one.messages}
    assert not learnt & held_out and "something else" not in learnt
