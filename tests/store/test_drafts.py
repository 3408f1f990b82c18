"""Drafts: a typed prompt that was not sent outlives its process, but no other one."""

import os
import subprocess
import sys

import psutil
import pytest

from localspec.store.drafts import Drafts
from localspec.store.store import Store


def keep_elsewhere(path, text):
    """Save a draft in another process, which is then killed."""
    code = (
        "import os, signal, sys; from pathlib import Path; from localspec.store.store import Store\n"
        "Store.open(Path(sys.argv[1]), print).drafts.keep(sys.argv[2]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path), text], check=False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_process_leaves_its_draft_to_the_next_one_once(path):
    keep_elsewhere(path, "half a thought")
    with Store.open(path, pytest.fail) as store:
        assert store.drafts.take_orphaned() == ["half a thought"]
        assert store.drafts.take_orphaned() == []


def test_the_draft_of_a_process_that_lives_is_its_own(path):
    with Store.open(path, pytest.fail) as store:
        store.drafts.keep("one")
        store.drafts.keep("two")
        assert store.drafts.take_orphaned() == []


def test_the_number_of_a_process_may_mean_another_one_by_now(path, monkeypatch):
    with Store.open(path, pytest.fail) as store:
        store.drafts._owner = (os.getpid(), psutil.Process().create_time() - 1000)
        store.drafts.keep("of an earlier process")
        assert store.drafts.take_orphaned() == ["of an earlier process"]


def test_a_draft_for_one_server_is_shown_to_no_other_and_never_lost(path):
    with Store.open(path, pytest.fail) as store:
        typed = {None: "here", "http://one:8000/v1": "for one", "http://two:8000/v1": "for two"}
        for process, (server, text) in enumerate(typed.items()):
            store.drafts._owner = (os.getpid(), float(process))
            store.drafts.keep(text, server)
        for server, text in typed.items():
            assert store.drafts.take_orphaned(server) == [text]
        assert store.drafts.orphaned() == 0


def test_all_that_is_left_is_removed_whomever_it_was_for(path):
    with Store.open(path, pytest.fail) as store:
        for process, server in enumerate((None, "http://one:8000/v1")):
            store.drafts._owner = (os.getpid(), float(process))
            store.drafts.keep("typed", server)
        assert store.drafts.remove_orphaned() == 2 and store.drafts.orphaned() == 0


def test_an_empty_draft_is_not_saved_and_a_sent_one_is_overwritten(path):
    with Store.open(path, pytest.fail) as store:
        store.drafts.keep("zanzibar")
        store.drafts.keep("")
        assert store._database.read(lambda connection: connection.execute("SELECT * FROM draft").fetchall()) == []
    assert b"zanzibar" not in path.read_bytes()


def test_text_that_cannot_be_stored_is_kept_as_far_as_it_can(path):
    with Store.open(path, pytest.fail) as store:
        drafts = Drafts(store._database)
        drafts._owner = (os.getpid(), 0.0)
        drafts.keep("a\0b\ud800c")
        assert store.drafts.take_orphaned() == ["a␀b?c"]
