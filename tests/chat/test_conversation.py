"""A conversation saves its messages as they come, and sends the model the right ones."""

from types import SimpleNamespace
from typing import Any

import pytest
from each import each
from golden import matching, wording
from scripted_conversation import SAMPLING, Engine, talk

from localspec.chat import conversation as module
from localspec.chat.conversation import Conversation, saved_conversation
from localspec.chat.figures import memory_begins
from localspec.decoding.limits import Limits
from localspec.errors import UsageMistake
from localspec.events import Done, Prefill, Text
from localspec.store.database import StoreTrouble
from localspec.store.store import Store


def no_room(*_: Any, **__: Any) -> Any:
    raise StoreTrouble("The disk is full.")


def last(store: Store) -> Any:
    return saved_conversation(store.history, "last").turns[-1]


def test_the_model_reads_the_system_prompt_and_every_turn_before(store):
    engine, conversation = Engine("yes", "."), Conversation(store.history, "demo", "Be brief.")
    talk(conversation, engine, "one?")
    talk(conversation, engine, "two?")
    assert [(message["role"], message["content"]) for message in engine.asked[1]] == [
        ("system", "Be brief."), ("user", "one?"), ("assistant", "yes."), ("user", "two?")
    ]  # fmt: skip
    kept = saved_conversation(store.history, "last")
    assert kept.system == "Be brief." and kept.info.model == "demo" and kept.info.id == conversation.id
    assert [(turn.prompt, turn.reply, turn.reason) for turn in kept.turns] == [
        ("one?", "yes.", "stop"),
        ("two?", "yes.", "stop"),
    ]
    assert kept.turns[0].figures["completion_tokens"] == 3 and kept.turns[0].figures["seed"] == 7


def test_where_the_models_memory_begins_is_reported_once_and_kept_with_the_turn(store):
    conversation = Conversation(store.history, "demo")
    said = []
    for prompt, dropped in (("one?", 0), ("two?", 0), ("three\x1b?", 1), ("four?", 1), ("five?", 3)):
        engine = Engine("yes")
        engine.dropped = dropped
        for event in conversation.ask(engine, prompt, SAMPLING):
            if isinstance(event, Prefill):
                said.append(conversation.memory_notice(event.dropped))
    assert [bool(one) for one in said] == [False, False, True, False, True]
    assert wording("the_context_is_full") in said[2] and "“two?”" in said[2] and "“four?”" in said[4]
    again = Conversation.resume(store.history, saved_conversation(store.history, "last"), "demo")
    assert [turn.figures.get("dropped_turns", 0) for turn in again.turns] == [0, 0, 1, 1, 3]
    assert memory_begins([bool(turn.reply) for turn in again.turns], 3) == 3
    assert again.memory_notice(3) is None and again.memory_notice(4) is not None


@each(
    "answered, dropped, begins",
    [("1111", 0, 0), ("1111", 2, 2), ("1011", 1, 2), ("1011", 2, 3), ("111", 3, 3), ("1101", 2, 3), ("", 2, 0)],
)
def test_turns_without_a_reply_are_not_counted_because_the_model_does_not_read_them(answered, dropped, begins):
    assert memory_begins([one == "1" for one in answered], dropped) == begins


def test_a_turn_is_saved_before_its_end_is_reported(store):
    """A process that is killed when it sees the end has saved the turn."""
    for event in Conversation(store.history, "demo").ask(Engine("all ", "of it"), "go", SAMPLING):
        if isinstance(event, Done):
            assert (last(store).reply, last(store).reason) == ("all of it", "stop")


def test_a_prompt_is_kept_as_soon_as_it_is_read_and_a_reply_every_second(store, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 0.0))
    seen = []
    for event in Conversation(store.history, "demo").ask(Engine("a", "b", "c", "d", "e"), "go", SAMPLING):
        assert last(store).prompt == "go"
        if isinstance(event, Text):
            seen.append(last(store).reply)
            clock.now += 0.4
    assert seen == ["", "", "", "abcd", "abcd"]  # at 1.2 seconds
    assert last(store).reply == "abcde"


@pytest.mark.parametrize("failure", [None, RuntimeError("out of order")])
def test_what_was_said_stays_when_a_reply_is_stopped_or_fails(store, failure):
    engine, conversation = Engine("half", " a reply", failure=failure), Conversation(store.history, "demo")
    if failure:
        with pytest.raises(RuntimeError):
            talk(conversation, engine, "go")
    else:
        events = conversation.ask(engine, "go", SAMPLING)
        while not isinstance(next(events), Text):
            pass
        events.close()
    assert engine.closed == 1
    said = "half a reply" if failure else "half"
    assert (last(store).reply, last(store).reason) == (said, "interrupted")
    assert last(store).figures["completion_tokens"] == 1  # as the engine counted it
    assert conversation.turns[-1].reply == said
    talk(conversation, engine := Engine("more"), "on")
    assert engine.asked[0][1] == {"role": "assistant", "content": said}


def test_a_refused_prompt_leaves_no_trace(store):
    conversation = Conversation(store.history, "demo")
    with pytest.raises(UsageMistake):
        talk(conversation, Engine(), "too long")
    assert conversation.turns == [] and store.history.latest() is None and conversation.id is None


def test_an_unanswered_prompt_gives_way_to_the_next(store):
    conversation = Conversation(store.history, "demo")
    talk(conversation, Engine("yes"), "one?")
    events = conversation.ask(Engine("never"), "lost", SAMPLING)
    next(events)
    events.close()
    assert conversation.unanswered == "lost" and last(store).prompt == "lost"
    again = Conversation.resume(store.history, saved_conversation(store.history, "last"), "demo")
    assert again.unanswered == "lost"
    talk(again, engine := Engine("here"), "two?")
    assert [message["content"] for message in engine.asked[0]] == ["one?", "yes", "two?"]
    assert (
        [turn.prompt for turn in saved_conversation(store.history, "last").turns]
        == ["one?", "two?"]
        == [turn.prompt for turn in again.turns]
    )


def test_without_a_history_nothing_is_kept(store):
    talk(Conversation(store.history, "demo"), Engine("kept"), "one?")
    conversation = Conversation.resume(None, saved_conversation(store.history, "last"), "demo")
    talk(conversation, engine := Engine("gone"), "two?")
    assert len(engine.asked[0]) == 3 and conversation.id is None
    assert [turn.reply for turn in saved_conversation(store.history, "last").turns] == ["kept"]
    talk(conversation.start_new(), Engine("gone"), "three?")
    assert len(store.history.conversations()) == 1


@pytest.mark.parametrize("broken", ["say", "write"])
def test_a_failing_store_costs_no_reply_is_reported_once_and_saves_everything_later(store, broken, monkeypatch):
    told: list[str] = []
    conversation = Conversation(store.history, "demo", notice=told.append)
    monkeypatch.setattr(store.history, broken, no_room)
    for prompt in ("one?", "two?"):
        assert isinstance(talk(conversation, Engine("yes"), prompt)[-1], Done)
    kept = {"say": "", "write": wording("what_saved_before_stays")}[broken]
    assert told == [wording("what_said_now_kept_disk_full", kept=kept)]
    assert (conversation.unsaved, conversation.trouble) == (2, wording("the_disk_is_full"))
    assert [info.id for info in store.history.conversations()] == ([1] if kept else [])
    assert [turn.reply for turn in conversation.turns] == ["yes", "yes"]
    monkeypatch.undo()
    asked = [turn.asked for turn in conversation.turns]
    talk(conversation, engine := Engine("yes"), "three?")
    assert [message["content"] for message in engine.asked[0]] == ["one?", "yes", "two?", "yes", "three?"]
    assert prompts_and_replies(store, 1) == [("one?", "yes"), ("two?", "yes"), ("three?", "yes")]
    assert conversation.unsaved == 0 and told[1:] == [wording("all_said_kept_now")]
    saved = saved_conversation(store.history, 1).turns
    assert saved == tuple(conversation.turns) and [turn.asked for turn in saved[1:2]] == asked[1:]
    talk(conversation, Engine("yes"), "four?")
    assert len(told) == 2 and len(saved_conversation(store.history, 1).turns) == 4


def test_what_could_not_be_kept_is_tried_again_when_it_is_left(store, monkeypatch):
    conversation = Conversation(store.history, "demo")
    talk(conversation, Engine("a"), "one?")
    with monkeypatch.context() as patch:
        patch.setattr(store.history, "say", no_room)
        talk(conversation, Engine("b"), "two?")
        conversation.keep_rest()
        assert conversation.unsaved == 1
    conversation.keep_rest()
    assert conversation.unsaved == 0 and prompts_and_replies(store, 1) == [("one?", "a"), ("two?", "b")]


def test_a_reply_whose_beginning_could_not_be_kept_is_kept_when_it_has_ended(store, monkeypatch):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    told: list[str] = []
    conversation = Conversation(store.history, "demo", notice=told.append)
    write = store.history.write
    monkeypatch.setattr(store.history, "write", lambda *row: write(*row) if row[2] else no_room())
    talk(conversation, Engine("y", "es"), "one?")
    assert prompts_and_replies(store, 1) == [("one?", "yes")] and conversation.unsaved == 0 and len(told) == 2


def test_where_several_cannot_be_kept_those_that_were_stay_kept(store, monkeypatch):
    """The disk has room for only some of them."""
    conversation = Conversation(store.history, "demo")
    with monkeypatch.context() as patch:
        patch.setattr(store.history, "say", no_room)
        for prompt in ("one?", "two?", "three?"):
            talk(conversation, Engine("yes"), prompt)
    say = store.history.say
    monkeypatch.setattr(
        store.history,
        "say",
        lambda *_, prompt, **how: no_room() if prompt == "three?" else say(*_, prompt=prompt, **how),
    )
    conversation.keep_rest()
    assert conversation.unsaved == 1 and [turn.prompt for turn in conversation.turns] == ["one?", "two?", "three?"]
    monkeypatch.undo()
    conversation.keep_rest()
    assert prompts_and_replies(store, 1) == [("one?", "yes"), ("two?", "yes"), ("three?", "yes")]


def test_an_unanswered_prompt_whose_successor_could_not_be_kept_is_taken_back_all_the_same(store, monkeypatch):
    told: list[str] = []
    conversation = Conversation(store.history, "demo", notice=told.append)
    talk(conversation, Engine("a"), "one?")
    conversation.ask(Engine(), "never answered?", SAMPLING).close()
    list(conversation.ask(Engine(), "never answered?", SAMPLING))
    with monkeypatch.context() as patch:
        patch.setattr(store.history, "say", no_room)
        talk(conversation, Engine("b"), "two?")
    conversation.keep_rest()
    assert prompts_and_replies(store, 1) == [("one?", "a"), ("two?", "b")]
    assert not any("another window" in sentence for sentence in told)


@pytest.mark.parametrize("first_kept", [True, False])
def test_another_way_from_what_could_not_be_kept_is_kept_whole(store, monkeypatch, first_kept):
    conversation = Conversation(store.history, "demo")
    with monkeypatch.context() as patch:
        if first_kept:
            talk(conversation, Engine("a"), "one?")
        patch.setattr(store.history, "say", no_room)
        if not first_kept:
            talk(conversation, Engine("a"), "one?")
        talk(conversation, Engine("b"), "two?")
        other = conversation.branch(1)
        talk(other, Engine("c"), "instead?")
    other.keep_rest()
    assert prompts_and_replies(store, other.id) == [("one?", "a"), ("instead?", "c")]


def test_what_is_kept_late_is_called_by_what_was_typed_and_not_by_a_file(store, monkeypatch):
    conversation = Conversation(store.history, "demo")
    about = {"files": ["notes.txt"], "typed_from": len("The notes.\n\n")}
    with monkeypatch.context() as patch:
        patch.setattr(store.history, "say", no_room)
        list(conversation.ask(Engine("a"), "The notes.\n\nWhat of the sea", SAMPLING, about=about))
    conversation.keep_rest()
    assert conversation.title == "What of the sea"
    assert last(store).files == ("notes.txt",)


def test_another_conversation_continues_under_its_own_id(store):
    first, second = Conversation(store.history, "demo"), Conversation(store.history, "demo")
    talk(first, Engine("a"), "one?")
    talk(second, Engine("b"), "two?")
    talk(second.resume_other(saved_conversation(store.history, first.id)), Engine("c"), "three?")
    assert [turn.reply for turn in saved_conversation(store.history, first.id).turns] == ["a", "c"]


def test_conversations_that_are_not_there_are_named(store):
    with pytest.raises(UsageMistake, match=matching("no_conversation_to_continue")):
        saved_conversation(store.history, "last")
    with pytest.raises(UsageMistake, match=f"{matching('no_conversation_12_here')}.*{matching('history_list')}"):
        saved_conversation(store.history, 12)
    with pytest.raises(UsageMistake):
        saved_conversation(None, "last")


def prompts_and_replies(store, conversation):
    return [(turn.prompt, turn.reply) for turn in saved_conversation(store.history, conversation).turns]


def test_two_windows_on_one_conversation_continue_separately_and_the_second_is_notified(store):
    told: list[str] = []
    talk(Conversation(store.history, "demo"), Engine("a"), "one?")
    saved = saved_conversation(store.history, "last")
    first = Conversation.resume(store.history, saved, "demo", pytest.fail)
    second = Conversation.resume(store.history, saved, "demo", told.append)
    events = first.ask(Engine("b"), "two?", SAMPLING)
    next(events)
    talk(second, engine := Engine("c"), "three?")
    list(events)
    talk(first, Engine("d"), "four?")
    talk(second, Engine("e"), "five?")
    assert [message["content"] for message in engine.asked[0]] == ["one?", "a", "three?"]
    assert prompts_and_replies(store, 1) == [("one?", "a"), ("two?", "b"), ("four?", "d")]
    assert prompts_and_replies(store, 2) == [("one?", "a"), ("three?", "c"), ("five?", "e")]
    assert [(info.id, info.branch_of) for info in store.history.conversations()] == [(2, 1), (1, None)]
    [sentence] = told
    assert wording("conversation_1_gone_another") in sentence and wording("kept_as_conversation_2") in sentence


def test_a_window_whose_unanswered_prompt_was_taken_back_by_another_branches_too(store):
    told: list[str] = []
    first = Conversation(store.history, "demo", notice=told.append)
    talk(first, Engine("a"), "one?")
    first.ask(Engine(), "never answered?", SAMPLING).close()
    list(first.ask(Engine(), "never answered?", SAMPLING))
    second = first.resume_other(saved_conversation(store.history, 1))
    talk(second, Engine("b"), "two?")
    talk(first, Engine("c"), "three?")
    assert prompts_and_replies(store, 1) == [("one?", "a"), ("two?", "b")]
    assert prompts_and_replies(store, 2) == [("one?", "a"), ("three?", "c")]
    assert len(told) == 1


def test_a_branch_is_kept_when_something_is_said_in_it_and_leaves_the_other_as_it_is(store):
    whole = Conversation(store.history, "demo", "Be kind.")
    for prompt, reply in (("one?", "a"), ("two?", "b")):
        talk(whole, Engine(reply), prompt)
    other = whole.branch(1)
    assert [turn.prompt for turn in other.turns] == ["one?"] and len(store.history.conversations()) == 1
    talk(other, engine := Engine("c"), "another?")
    assert [message["content"] for message in engine.asked[0]] == ["Be kind.", "one?", "a", "another?"]
    assert prompts_and_replies(store, other.id) == [("one?", "a"), ("another?", "c")]
    assert prompts_and_replies(store, 1) == [("one?", "a"), ("two?", "b")]
    talk(whole.branch(0), Engine("d"), "first?")
    assert prompts_and_replies(store, 3) == [("first?", "d")]
    assert store.history.read(3).info.branch_of == 1


def test_a_branch_of_what_was_deleted_meanwhile_does_not_bring_it_back(store):
    whole = Conversation(store.history, "demo")
    for prompt, reply in (("secret?", "a"), ("two?", "b")):
        talk(whole, Engine(reply), prompt)
    other = whole.branch(1)
    store.history.remove([1])
    talk(other, Engine("c"), "another?")
    assert prompts_and_replies(store, other.id) == [("another?", "c")]


def test_a_branch_without_a_history_is_not_kept(store):
    whole = Conversation(None, "demo")
    talk(whole, Engine("a"), "one?")
    talk(whole.branch(0), Engine("b"), "other?")
    assert store.history.conversations() == []


def test_a_conversation_that_is_deleted_meanwhile_is_reported(store):
    told: list[str] = []
    conversation = Conversation(store.history, "demo", notice=told.append)
    talk(conversation, Engine("a"), "one?")
    store.history.remove([1])
    talk(conversation, Engine("b"), "two?")
    assert told == [wording("conversation_1_deleted_meanwhile")]
    for event in conversation.ask(Engine("c"), "three?", SAMPLING):
        if isinstance(event, Prefill):
            store.history.remove([2])
    assert told[1:] == [wording("turn_deleted_while_said_kept")]
    assert [turn.reply for turn in conversation.turns] == ["a", "b", "c"]


def test_how_many_tokens_it_was_is_known_of_the_model_that_counted_them(store):
    conversation = Conversation(store.history, "demo")
    assert conversation.tokens == 0
    talk(conversation, Engine("yes", "."), "one?")
    known = conversation.tokens
    figures = last(store).figures
    assert known == figures["prompt_tokens"] + figures["completion_tokens"] > 0
    saved = saved_conversation(store.history, "last")
    assert Conversation.resume(store.history, saved, "demo").tokens == conversation.branch(1).tokens == known
    assert Conversation.resume(store.history, saved, "another").tokens == conversation.branch(0).tokens == 0
    store.history.write(saved.turns[0].id, "yes.", "stop", {"prompt_tokens": "many", "completion_tokens": True})
    assert Conversation.resume(store.history, saved_conversation(store.history, "last"), "demo").tokens == 0


@pytest.mark.parametrize(("most", "full"), [(None, True), (100, True), (3, None)])
def test_a_reply_that_ended_where_the_context_was_full_keeps_that(most, full, monkeypatch):
    monkeypatch.setattr("scripted_conversation.Done", lambda reason, told: Done("length", told))
    spoken = Conversation(None, "demo")
    for _ in spoken.ask(Engine("a", "b", "c"), "Hi", SAMPLING, Limits(most)):
        pass
    assert spoken.turns[-1].figures.get("context_full") is full
