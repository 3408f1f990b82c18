"""The engine's thread: it ends whatever it is doing, also while others still listen."""

import asyncio
import gc
import threading
import weakref

import pytest
from clocks import PATIENCE
from tui.scripted_engine import ScriptedChat, ScriptedEngine, card, talked, until

from localspec.chat.attachments import ComposedPrompt
from localspec.errors import LocalspecError
from localspec_tui import messages


@pytest.fixture
def talk(chat) -> ScriptedChat:
    return chat()


def heard(kind):
    """Return a function for messages, those that came, and a semaphore that counts those of this kind."""
    seen, came = [], threading.Semaphore(0)

    def post(message):
        seen.append(message)
        if isinstance(message, kind):
            came.release()

    return post, seen, came


def test_closed_while_a_model_loads_it_ends_at_the_next_stage(talk):
    reached, gate, told, went_on = threading.Event(), threading.Event(), [], []

    def load(notice, progress):
        reached.set()
        assert gate.wait(PATIENCE)
        progress("the next stage")
        went_on.append(1)

    talk.models["scripted"] = [load, talk.engine]
    talk.thread.begin(told.append)
    assert reached.wait(PATIENCE)
    assert not talk.thread.close(0)  # it cannot be interrupted
    gate.set()
    assert talk.thread.close(PATIENCE)
    assert went_on == []
    assert not any(isinstance(message, messages.ThreadFailed) for message in told)


def test_what_opening_announces_is_shown_meanwhile_and_stays_in_the_conversation(talk):
    post, posted, loaded = heard(messages.ModelLoaded)
    talk.notices.append("A large store is rewritten.")
    talk.thread.begin(post)
    assert loaded.acquire(timeout=PATIENCE)
    stages = [message.stage for message in posted if isinstance(message, messages.StageReached)]
    kinds = [type(message) for message in posted]
    assert stages[0] == "A large store is rewritten"
    assert kinds.index(messages.StageReached) < kinds.index(messages.ChatOpened) < kinds.index(messages.Noticed)


def test_closed_before_it_was_begun_it_never_begins(talk):
    assert talk.thread.close(PATIENCE)
    talk.thread.begin(lambda _: pytest.fail("it works after its end"))
    assert talk.thread.ident is None


def test_a_model_that_goes_leaves_no_memory_behind_though_it_was_to_stay(talk):
    post, posted, loaded = heard(messages.ModelLoaded)
    talk.thread.begin(post)
    assert loaded.acquire(timeout=PATIENCE)
    posted.clear()
    gone, talk.engine.session.engine = weakref.ref(talk.engine), talk.engine  # they name each other
    gc.freeze()
    talk.models, talk.engine = {"other": ScriptedEngine()}, None
    talk.thread.do(talk.thread.conversation.switch_model, card("other"))
    assert loaded.acquire(timeout=PATIENCE)
    assert talk.thread.close(PATIENCE)
    assert gone() is None


def test_a_screen_that_is_gone_is_no_trouble(talk):
    loaded = threading.Event()

    def post(message):
        if isinstance(message, messages.ModelLoaded):
            loaded.set()
        raise RuntimeError("Event loop is closed")

    talk.thread.begin(post)
    assert loaded.wait(PATIENCE)
    assert talk.thread.close(PATIENCE)


def test_what_it_should_not_meet_ends_it_and_closes_the_store(talk):
    post, told, failed = heard(messages.ThreadFailed)
    talk.models["scripted"] = [ZeroDivisionError()]
    talk.thread.begin(post)
    assert failed.acquire(timeout=PATIENCE)
    assert isinstance(told[-1].error, ZeroDivisionError)
    assert talk.thread.close(PATIENCE)
    with pytest.raises(Exception, match="closed"):
        talk.thread.conversation.store.phrases.pools()


def test_jobs_behind_the_end_are_not_done(talk):
    gate, told = threading.Event(), []

    def load(notice, progress):
        assert gate.wait(PATIENCE)

    talk.models["scripted"] = [load, talk.engine]
    talk.thread.begin(told.append)
    talk.thread.ask(ComposedPrompt("never"))
    assert not talk.thread.close(0)
    gate.set()
    assert talk.thread.close(PATIENCE)
    assert talk.engine.asked == []


def test_a_prompt_without_a_model_is_given_back(talk):
    post, told, ended = heard(messages.ReplyEnded)
    talk.models["scripted"] = [LocalspecError("It does not load.")]
    talk.thread.begin(post)
    talk.thread.ask(ComposedPrompt("Anybody?"))
    assert ended.acquire(timeout=PATIENCE)
    got = next(message for message in told if isinstance(message, messages.ReplyEnded))
    assert (got.prompt, got.turn, got.trouble) == ("Anybody?", None, None)
    assert talk.thread.close(PATIENCE)


async def test_what_keys_ask_for_before_the_chat_is_open_waits_for_it(chat):
    talk = chat(["Well."])
    talk.thread.do(talk.thread.conversation.start_new)
    talk.app._chat.outbox.to_be_shown += 1
    async with talk.playing() as pilot:
        await talked(talk, pilot, "Hi")
        assert talk.replies() == ["Well."]


async def test_a_new_conversation_before_the_chat_is_open_begins_once_it_is(chat):
    talk = chat(["Well."])
    talk.may_open.clear()
    async with talk.playing(ready=False) as pilot:
        await pilot.press("ctrl+n")
        assert talk.app.failure is None
        talk.may_open.set()
        await talked(talk, pilot, "Hi")
        assert talk.replies() == ["Well."]


async def test_nothing_is_done_where_the_chat_cannot_be_opened(chat):
    talk = chat()
    talk.opening_error = LocalspecError("It is broken.")
    talk.thread.do(talk.thread.conversation.start_new)
    async with talk.playing(ready=False) as pilot:
        await until(pilot, lambda: talk.app.failure is not None)
    assert str(talk.app.failure) == "It is broken."


async def test_a_message_while_the_user_leaves_is_no_failure(chat):
    """There is no screen to show it any more."""
    talk = chat()
    async with talk.playing():
        talk.app.exit()
        talk.app._chat.post_message(messages.Noticed("Too late."))
        await asyncio.sleep(0.05)
    assert talk.app.failure is None
