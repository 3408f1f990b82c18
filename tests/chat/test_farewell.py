"""What is said when a chat has been left."""

import pytest
from scripted_conversation import Engine, talk

from localspec.chat.conversation import Conversation
from localspec.chat.farewell import farewell
from localspec.store.database import StoreTrouble
from localspec.store.store import Store


def test_how_to_go_on(tmp_path):
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        conversation = Conversation(store.history, "demo")
        assert farewell(conversation, conversation.title) is None
        talk(conversation, Engine("Yes."), "Sorting \x1b]0;x\x07in\nPython")
        said = farewell(conversation, conversation.title)
        assert said is not None and said.endswith("is kept; to go on: localspec chat --conversation 1")
        assert said.isprintable()
        conversation.rename("My own")
        assert (
            farewell(conversation, conversation.title) == "“My own” is kept; to go on: localspec chat --conversation 1"
        )
        conversation.rename("My\u200b o\ufeffwn\u2060")
        assert (
            farewell(conversation, conversation.title) == "“My own” is kept; to go on: localspec chat --conversation 1"
        )


def test_what_is_kept_in_memory_alone_is_not_kept(tmp_path):
    (tmp_path / "file").touch()
    with Store.open(tmp_path / "file" / "localspec.db", lambda _: None) as store:
        conversation = Conversation(store.history, "demo")
        assert farewell(conversation, conversation.title) is None
        talk(conversation, Engine("Yes."), "hello")
        assert conversation.id is not None and conversation.unkept == 1
        why = f"{tmp_path / 'file' / 'localspec.db'} cannot be used (File exists): make it and its directory writable"
        assert farewell(conversation, conversation.title) == f"“hello” is not kept: {why} to change it."
        with pytest.raises(StoreTrouble, match="cannot be used"):
            store.drafts.keep("half")
        store.drafts.keep("")


def test_nothing_where_nothing_is_kept():
    conversation = Conversation(None, "demo")
    talk(conversation, Engine("Yes."), "hello")
    assert farewell(conversation, conversation.title) is None


def no_room(*_, **__):
    raise StoreTrouble("The disk is full.")


def test_what_is_not_kept(tmp_path, monkeypatch):
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        conversation = Conversation(store.history, "demo")
        assert farewell(conversation, "", "It is full.") == "What was typed and not sent is not kept: It is full."
        talk(conversation, Engine("Yes."), "Sorting")
        how = "; to go on: localspec chat --conversation 1"
        typed = "what was typed and not sent"
        assert farewell(conversation, "Sorting", "It is full.") == f"“Sorting” is kept, but not {typed}{how}"
        monkeypatch.setattr(store.history, "say", no_room)
        talk(conversation, Engine("Yes."), "again")
        assert farewell(conversation, "Sorting") == f"“Sorting” is kept, but not its last turn{how}"
        talk(conversation, Engine("Yes."), "again")
        assert farewell(conversation, "Sorting", "It is full.") == (
            f"“Sorting” is kept, but not its last 2 turns nor {typed}{how}"
        )
        told: list[str] = []
        new = Conversation(store.history, "demo", notice=told.append)
        talk(new, Engine("Yes."), "Rivers")
        assert farewell(new, "Rivers") == "“Rivers” is not kept: The disk is full."
        assert farewell(new, "Rivers", "It is full.") == f"“Rivers” is not kept, nor is {typed}: The disk is full."
        new.start_new()
        assert told[1:] == ["“Rivers” is left without its last turn, which could not be kept: The disk is full."]
        monkeypatch.undo()
        new.start_new()
        conversation.start_new()
        assert told[2:] == ["All that was said is kept now."]
        assert farewell(new, "Rivers") == "“Rivers” is kept; to go on: localspec chat --conversation 2"
