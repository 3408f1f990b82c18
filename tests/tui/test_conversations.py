"""The list of conversations: renamed, exported and deleted there; the list stays where it was."""

import os
import sys
import threading
import time

from golden import wording
from textual.widgets import Input, OptionList
from tui.scripted_engine import say, talked, until

from localspec.chat.export import as_markdown
from localspec.config import Settings
from localspec.paths import Paths
from localspec.store import cleaning
from localspec.store.database import StoreTrouble
from localspec.store.store import Store
from localspec_tui.screens import conversations
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.conversations import ConversationsScreen
from localspec_tui.screens.dialogs import AskingLine


def keep(talk, *titles, days=0.0, source="chat"):
    """Save earlier conversations; the last one is the newest."""
    with Store.open(talk.database, print) as store:
        for title in titles:
            number, turn = store.history.say(None, title, model="/models/scripted", system=None, source=source)
            store.history.write(turn, f"Said of {title}.", "stop", {})
            used = (time.time() - 86400 * days, number)
            store._database.save(
                lambda connection, used=used: connection.execute("UPDATE conversation SET used = ? WHERE id = ?", used)
            )


def titles(talk):
    with Store.open(talk.database, print) as store:
        return [info.title for info in store.history.conversations()]


def listed(talk):
    options = talk.app.screen.query_one(OptionList)
    return [str(options.get_option_at_index(at).prompt).split("\n")[0] for at in range(options.option_count)]


def marked(talk):
    options = talk.app.screen.query_one(OptionList)
    return listed(talk)[options.highlighted] if options.highlighted is not None else None


async def open_list(pilot, talk, *, first):
    await until(pilot, talk.idle)
    await pilot.press("ctrl+r")
    await until(pilot, lambda: isinstance(talk.app.screen, ConversationsScreen) and listed(talk)[:1] == [first])


def asked(talk, words):
    return lambda: talk.app.screen.query_one(AskingLine).asking and words in talk.screen_text()


def told(talk, words):
    return lambda: not talk.app.screen.query_one(AskingLine).asking and words in " ".join(talk.screen_text().split())


async def test_ctrl_d_deletes_after_asking_and_the_list_stays_where_it_was(chat):
    talk = chat()
    keep(talk, *(f"talk {n}" for n in range(40)))
    async with talk.playing() as pilot:
        await open_list(pilot, talk, first="talk 39")
        await pilot.press(*["down"] * 30)
        top = talk.app.screen.query_one(OptionList).scroll_y
        assert marked(talk) == "talk 9" and top > 0
        for answer in ("n", "escape", "enter", "x"):
            await pilot.press("ctrl+d")
            await until(pilot, asked(talk, "Delete “talk 9” for good?"))
            await pilot.press(answer)
        assert asked(talk, "Delete “talk 9” for good?")()  # neither Enter nor any letter confirms
        await pilot.press("y")
        await until(pilot, told(talk, "Deleted 1 conversation."))
        assert marked(talk) == "talk 8" and "talk 9" not in listed(talk) and len(listed(talk)) == 39
        assert abs(talk.app.screen.query_one(OptionList).scroll_y - top) <= 2
        await pilot.press("ctrl+d", "y")
        await until(pilot, lambda: len(listed(talk)) == 38)
        assert marked(talk) == "talk 7"
    assert len(titles(talk)) == 38 and not {"talk 9", "talk 8"} & {*titles(talk)}
    assert b"Said of talk 9." not in b"".join(file.read_bytes() for file in talk.database.parent.glob("localspec.db*"))


async def test_a_branch_that_is_given_a_title_is_listed_by_it(chat):
    talk = chat()
    keep(talk, "cats")
    with Store.open(talk.database, print) as store:
        number, _ = store.history.branch(1, [], model="/models/scripted", system=None)
        store.history.write(
            store.history.say(number, "cats", model="/models/scripted", system=None)[1], "Meow.", "stop"
        )

    async with talk.playing() as pilot:
        await open_list(pilot, talk, first="cats · answered “Meow.”")
        assert listed(talk)[1].strip() == "└ answered “Said of cats.”"
        await pilot.press("down", "f2", "end", "!", "enter")
        await until(pilot, told(talk, "The conversation is now called “cats!”."))
        assert listed(talk)[1].strip() == "└ cats! · answered “Said of cats.”" and marked(talk) == listed(talk)[1]


async def test_the_last_one_of_a_search_is_deleted(chat, monkeypatch):
    talk = chat()
    keep(talk, "cats", "dogs")
    with Store.open(talk.database, print) as store:
        store.history.rename(1, "Purring")
    monkeypatch.setattr(talk.thread.conversation, "has_phrases", lambda: True)
    monkeypatch.setattr(cleaning, "SMALL", 5)
    async with talk.playing() as pilot:
        await open_list(pilot, talk, first="dogs")
        await pilot.press(*"purr")
        await until(pilot, lambda: listed(talk) == ["Purring"])
        await pilot.press("ctrl+d", "y")
        await until(pilot, told(talk, wording("phrases_learned_from_replies_stay")))
        assert told(talk, wording("is_overwritten_at_the_next_start"))(), "it was in a large file"
        await until(pilot, lambda: listed(talk) == [])
        for key in ("ctrl+d", "f2", "ctrl+s"):  # nothing is selected
            talk.app.screen._tell("")
            await pilot.press(key)
            await until(pilot, told(talk, wording("no_conversation_is_chosen")))
        await pilot.press("enter")
        assert not talk.app.screen.query_one(AskingLine).asking
        assert talk.app.screen.query_one(Input).value == "purr"
        await pilot.press("ctrl+u")
        await until(pilot, lambda: listed(talk) == ["dogs"])
        await pilot.press("ctrl+d")
        await until(pilot, asked(talk, "Delete"))
        await pilot.press("ctrl+q")  # changes nothing
    assert titles(talk) == ["dogs"]
    assert b"Said of cats." not in b"".join(file.read_bytes() for file in talk.database.parent.glob("localspec.db*"))


async def test_what_was_copied_goes_with_a_conversation_that_is_deleted(chat, tmp_path):
    """The text may be from that conversation; a second name of the file has nothing left of it, either."""
    talk = chat()
    keep(talk, "cats", "dogs")
    copied = Paths(tmp_path).copied
    copied.parent.mkdir(exist_ok=True)
    copied.write_text("Said of cats.")
    os.link(copied, other := copied.with_name("other"))
    async with talk.playing() as pilot:
        await open_list(pilot, talk, first="dogs")
        await pilot.press("ctrl+d", "n")
        assert copied.exists()
        await pilot.press("ctrl+d", "y")
        await until(pilot, told(talk, "Deleted 1 conversation."))
    assert not copied.exists() and b"cats" not in other.read_bytes()


async def test_the_open_conversation_is_deleted_and_another_one_begins(chat):
    gate = threading.Event()
    talk = chat(["Half", gate, "never"], ["Again."])
    keep(talk, "before")
    async with talk.playing() as pilot:
        await until(pilot, talk.idle)
        await say(pilot, "secret zebra")
        await until(pilot, lambda: talk.replies() == ["Half"])
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(talk.app.screen, ConversationsScreen) and len(listed(talk)) == 2)
        assert listed(talk) == ["secret zebra (open)", "before"]
        await pilot.press("ctrl+d")
        await until(pilot, asked(talk, wording("open_another_one_begins")))
        await pilot.press("y")
        await until(pilot, told(talk, "Deleted 1 conversation."))
        assert not [one for one in talk.app._notifications if "stays" in one.message]
        gate.set()
        await pilot.press("escape")
        await until(pilot, lambda: talk.prompts() == [] and talk.idle())
        assert "secret" not in talk.screen_text()
        await say(pilot, "something else")
        await until(pilot, lambda: talk.replies() == ["Again."] and talk.idle())
    assert titles(talk) == ["something else", "before"]
    assert b"zebra" not in b"".join(file.read_bytes() for file in talk.database.parent.glob("localspec.db*"))


async def test_f2_renames_and_the_top_line_knows(chat):
    talk = chat(["One."])
    keep(talk, "before")
    async with talk.playing() as pilot:
        await until(pilot, talk.idle)
        await talked(talk, pilot, "please tell me about the sea")
        await open_list(pilot, talk, first="The sea (open)")
        await pilot.press("f2")
        await until(pilot, asked(talk, wording("what_shall_it_be_called")))
        await pilot.press("escape")
        assert listed(talk)[0] == "The sea (open)"
        await pilot.press("f2", *"[bold]Sea", "enter")  # the selected text is replaced
        await until(pilot, lambda: listed(talk)[0] == "[bold]Sea (open)")
        await pilot.press("escape")
        await until(pilot, lambda: "[bold]Sea" in talk.screen_text().splitlines()[0])
        await open_list(pilot, talk, first="[bold]Sea (open)")
        await pilot.press("down", "f2")
        await until(pilot, asked(talk, "New title"))
        await pilot.press(*"Earlier", "enter")
        await until(pilot, lambda: listed(talk) == ["[bold]Sea (open)", "Earlier"])
        assert marked(talk) == "Earlier"
        await pilot.press("up", "f2")
        await until(pilot, asked(talk, "New title"))
        await pilot.press("backspace", "enter")
        await until(pilot, lambda: listed(talk)[0] == "The sea (open)")
        await pilot.press("down", "enter")
        await until(pilot, lambda: talk.prompts() == ["before"] and isinstance(talk.app.screen, ChatScreen))
        assert "Earlier" in talk.screen_text().splitlines()[0]  # a conversation that is resumed has its own title
    assert titles(talk) == ["The sea", "Earlier"]


async def test_ctrl_s_exports_what_the_command_exports_and_overwrites_nothing(chat, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "cats-dogs.md").write_text("mine")
    talk = chat()
    keep(talk, "Cats & dogs")
    async with talk.playing(size=(140, 30)) as pilot:
        await open_list(pilot, talk, first="Cats & dogs")
        await pilot.press("ctrl+s")
        await until(pilot, asked(talk, "cats-dogs-2.md"))
        await pilot.press("home", "shift+end", *"cats-dogs.md", "enter")
        await until(pilot, asked(talk, "nothing is overwritten"))
        await pilot.press("escape")
        await pilot.press("ctrl+s")
        await until(pilot, asked(talk, "cats-dogs-2.md"))
        await pilot.press("enter")
        await until(pilot, told(talk, "The conversation is in"))
        assert "cats-dogs-2.md" in "".join(talk.screen_text().split())
    assert (here / "cats-dogs.md").read_text() == "mine"
    with Store.open(talk.database, print) as store:  # what `history export` prints
        assert (here / "cats-dogs-2.md").read_text("utf-8") == as_markdown(store.history.read(1)) + "\n"
    if sys.platform != "win32":
        assert (here / "cats-dogs-2.md").stat().st_mode & 0o777 == 0o600


async def test_f8_deletes_what_is_older_after_the_count_and_never_the_open_one(chat):
    talk = chat()
    keep(talk, "ancient", "old", days=40)
    keep(talk, "of late", days=3)
    talk.resumed = 2
    async with talk.playing() as pilot:
        await open_list(pilot, talk, first="of late")
        await pilot.press("f8")
        await until(pilot, asked(talk, "30d"))
        await pilot.press("home", "shift+end", *"soon", "enter")
        await until(pilot, asked(talk, "'soon' is not a duration"))
        await pilot.press("home", "shift+end", *"90d", "enter")
        await until(pilot, told(talk, wording("conversation_last_used_before")))
        await pilot.press("f8", "home", "shift+end", *"4w", "enter")
        await until(pilot, asked(talk, "Delete 1 conversation last used before"))
        await pilot.press("n")
        assert len(listed(talk)) == 3
        await pilot.press("f8", "enter")
        await until(pilot, asked(talk, "Delete 1 conversation last used before"))
        await pilot.press("y")
        await until(pilot, told(talk, "Deleted 1 conversation."))
        assert listed(talk) == ["of late", "old (open)"] and marked(talk) == "of late"
    assert titles(talk) == ["of late", "old"]


async def test_branches_say_of_what(chat):
    async with chat(["One."], ["Two."]).opened() as (talk, pilot):
        await until(pilot, talk.idle)
        await talked(talk, pilot, "first")
        await pilot.press("f5")
        await until(pilot, lambda: talk.replies() == ["Two."] and talk.idle())
        await open_list(pilot, talk, first="first · answered “Two.” (open)")
        assert "first · answered “Two.” (open)" in talk.screen_text()
        below = listed(talk)[1], " ".join(talk.screen_text().split())
        assert below[0] == "  └ answered “One.”" and "1 · just now · 1 turn · scripted" in below[1]
        await pilot.press("down", "ctrl+d")
        await until(pilot, asked(talk, "Delete “first” (answered “One.”) for good?"))
        await pilot.press("y")
        await until(pilot, lambda: listed(talk) == ["first (open)"])


async def test_impossible_requests_are_reported(chat, monkeypatch):
    talk = chat()
    keep(talk, "one", "two")
    async with talk.playing() as pilot:
        await open_list(pilot, talk, first="two")
        history = talk.app._chat.conversations.history

        def refuse(*_):
            raise StoreTrouble("The disk is [full].")

        with monkeypatch.context() as full:
            for name in ("remove", "rename", "unused_since", "read"):
                full.setattr(history, name, refuse)
            for keys in (("ctrl+d", "y"), ("f2", "x", "enter"), ("f8", "enter"), ("ctrl+s", "enter")):
                talk.app.screen._tell("")
                await pilot.press(keys[0])
                await until(pilot, lambda: talk.app.screen.query_one(AskingLine).asking)
                await pilot.press(*keys[1:])
                await until(pilot, told(talk, "The disk is [full]."))
        assert listed(talk) == ["two", "one"]
        history.remove([2])  # by another process
        await pilot.press("f2")
        await until(pilot, asked(talk, "New title"))
        await pilot.press(*"x", "enter")
        await until(pilot, told(talk, "There is no conversation 2 here"))


async def test_a_locked_database_is_reported_and_read_again(chat, monkeypatch):
    talk, held = chat(), threading.Event()
    keep(talk, "one", "two")

    def entries(history, words, real=conversations._entries):
        if not held.is_set():
            raise StoreTrouble("It was in use by another process.")
        return real(history, words)

    monkeypatch.setattr(conversations, "_entries", entries)
    monkeypatch.setattr(conversations, "RETRY", 0.05)
    async with talk.playing() as pilot:
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "It was in use by another process. Trying again …" in talk.screen_text())
        held.set()
        await until(pilot, lambda: listed(talk) == ["two", "one"] and "Trying" not in talk.screen_text())


async def test_what_could_not_be_opened_is_not_said_to_be_nothing(chat):
    talk = chat()
    talk.database.mkdir()
    async with talk.playing() as pilot:
        await pilot.press("ctrl+r")
        await until(pilot, lambda: wording("could_opened_when_chat_began") in talk.screen_text())


async def test_a_title_of_a_conversation_that_is_not_kept_is_resumed_too(chat):
    talk = chat(settings=Settings(log=False))
    keep(talk, "about fish")
    with Store.open(talk.database, print) as store:
        store.history.rename(1, "Fish")
    talk.resumed = 1
    async with talk.playing() as pilot:
        await until(pilot, lambda: talk.prompts() == ["about fish"])
        assert "Fish" in talk.screen_text().splitlines()[0]


async def test_where_there_are_more_than_are_listed_it_is_reported(chat, monkeypatch):
    monkeypatch.setattr(conversations, "LISTED", 3)
    talk = chat()
    keep(talk, "one", "two", "three", "four")
    async with talk.playing() as pilot:
        await open_list(pilot, talk, first="four")
        assert listed(talk) == ["four", "three", "two"] and wording("older_ones_found_searching") in talk.screen_text()
        await pilot.press(*"one")
        await until(pilot, lambda: listed(talk) == ["one"])
        assert "older conversations" not in talk.screen_text()


async def test_conversations_of_pipes_are_listed_after_a_search_only_and_marked(chat):
    talk = chat()
    keep(talk, "geography")
    keep(talk, "history", source="run")
    keep(talk, "fish", source="pipe")
    async with talk.playing() as pilot:
        await open_list(pilot, talk, first="history")
        assert listed(talk) == ["history", "geography"]
        await pilot.press(*"fish")
        await until(pilot, lambda: listed(talk) == ["fish (piped)"])
        await pilot.press("enter")  # continuing it makes it a chat
        await until(pilot, lambda: isinstance(talk.app.screen, ChatScreen))
        await talked(talk, pilot, "and I")
        await open_list(pilot, talk, first="fish (open)")
        assert listed(talk) == ["fish (open)", "history", "geography"]
