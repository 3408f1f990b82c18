"""What is said when a chat has been left."""

import pytest
from scripted_conversation import Engine, talk

from localspec.chat.conversation import Conversation
from localspec.chat.farewell import farewell
from localspec.store.store import Store


def test_how_to_go_on(tmp_path):
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        conversation = Conversation(store.history, "demo")
        assert farewell(conversation) is None
        talk(conversation, Engine("Yes."), "Sorting \x1b]0;x\x07in\nPython")
        said = farewell(conversation)
        assert said is not None and said.endswith("is kept; to go on: localspec chat --conversation 1")
        assert said.isprintable()
        conversation.rename("My own")
        assert farewell(conversation) == "“My own” is kept; to go on: localspec chat --conversation 1"
        conversation.rename("My\u200b o\ufeffwn\u2060")
        assert farewell(conversation) == "“My own” is kept; to go on: localspec chat --conversation 1"


def test_nothing_where_it_is_kept_in_memory_alone(tmp_path):
    (tmp_path / "file").touch()
    with Store.open(tmp_path / "file" / "localspec.db", lambda _: None) as store:
        conversation = Conversation(store.history, "demo")
        talk(conversation, Engine("Yes."), "hello")
        assert conversation.id is not None and farewell(conversation) is None


def test_nothing_where_nothing_is_kept():
    conversation = Conversation(None, "demo")
    talk(conversation, Engine("Yes."), "hello")
    assert farewell(conversation) is None
