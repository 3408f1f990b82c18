"""The text that is printed after a chat."""

import pytest
from golden import matching, wording
from scripted_conversation import Engine, talk

from localspec.chat.conversation import Conversation
from localspec.chat.introduction import farewell
from localspec.store.database import StoreTrouble
from localspec.store.store import Store


def test_how_to_continue(tmp_path):
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        conversation = Conversation(store.history, "demo")
        assert farewell(conversation, conversation.title) is None
        talk(conversation, Engine("Yes."), "Sorting \x1b]0;x\x07in\nPython")
        said = farewell(conversation, conversation.title)
        assert said is not None and said.endswith(wording("kept_go_localspec_chat"))
        assert said.isprintable()
        conversation.rename("My own")
        assert farewell(conversation, conversation.title) == wording("my_own_kept_go_localspec_chat")
        conversation.rename("My\u200b o\ufeffwn\u2060")
        assert farewell(conversation, conversation.title) == wording("my_own_kept_go_localspec_chat")


def test_a_conversation_only_in_memory_is_not_saved(tmp_path):
    (tmp_path / "file").touch()
    with Store.open(tmp_path / "file" / "localspec.db", lambda _: None) as store:
        conversation = Conversation(store.history, "demo")
        assert farewell(conversation, conversation.title) is None
        talk(conversation, Engine("Yes."), "hello")
        assert conversation.id is not None and conversation.unsaved == 1
        file = tmp_path / "file" / "localspec.db"
        why = f"{file} cannot be used (File exists): make the file and its directory writable"
        assert farewell(conversation, conversation.title) == wording("hello_kept_change", why=why)
        with pytest.raises(StoreTrouble, match=matching("cannot_be_used")):
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
        assert farewell(conversation, "", "It is full.") == wording("what_typed_sent_kept_full")
        talk(conversation, Engine("Yes."), "Sorting")
        how = wording("go_localspec_chat_conversation_1")
        typed = wording("what_typed_sent")
        assert farewell(conversation, "Sorting", "It is full.") == f"“Sorting” is saved, but not {typed}{how}"
        monkeypatch.setattr(store.history, "say", no_room)
        talk(conversation, Engine("Yes."), "again")
        assert farewell(conversation, "Sorting") == f"“Sorting” is saved, but not the last turn{how}"
        talk(conversation, Engine("Yes."), "again")
        assert farewell(conversation, "Sorting", "It is full.") == (
            f"“Sorting” is saved, but not the last 2 turns nor {typed}{how}"
        )
        told: list[str] = []
        new = Conversation(store.history, "demo", notice=told.append)
        talk(new, Engine("Yes."), "Rivers")
        assert farewell(new, "Rivers") == wording("rivers_kept_disk_full")
        assert farewell(new, "Rivers", "It is full.") == wording("rivers_kept_nor_disk_full", typed=typed)
        new.start_new()
        assert told[1:] == [wording("rivers_left_without_last_turn")]
        monkeypatch.undo()
        new.start_new()
        conversation.start_new()
        assert told[2:] == [wording("all_said_kept_now")]
        assert farewell(new, "Rivers") == wording("rivers_kept_go_localspec_chat")
