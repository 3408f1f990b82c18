"""A single reply of a server that has an unusual form, or no end."""

import json
import threading
from types import SimpleNamespace

import pytest
from clocks import PATIENCE
from golden import matching, wording
from serving.scripted_server import DONE, ended, said, scripted, stream
from serving.test_remote import events, kept, run

from localspec import Limits
from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.events import Done, Prefill, Reporter
from localspec.serving import server_engine
from localspec.serving.pieces import ServerPiece
from localspec.serving.server import Server
from localspec.serving.server_engine import ServerEngine
from localspec.serving.server_reply import ServerReply


def test_a_reply_in_parts_is_read_and_others_than_the_first_are_not(tmp_path):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo\x1b"}]
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]}
    both = {"choices": [*other["choices"], *said(".")["choices"]]}
    with scripted(stream(said(parts), other, both, ended(""), ended(), DONE)) as server:
        found = run(tmp_path, server)
    assert (found.returncode, "Hello" in found.stdout, "no" in found.stdout) == (0, True, False), found.stderr
    assert kept(tmp_path)[0][2] == "stop" and len(kept(tmp_path)[0][1]) == 7


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("content_filter", wording("stopped_filter_http")),
        ("abort\x1b", wording("reason_own_abort")),
        (7, "because of '7'"),
    ],
)
def test_an_unusual_reason_for_an_end_is_reported(tmp_path, reason, words):
    with scripted(stream(said("I would"), ended(reason), DONE)) as server:
        found = run(tmp_path, server)
        assert found.stdout == "I would\n" and words in found.stderr and "\x1b" not in found.stderr
        assert words not in run(tmp_path, server).stderr


@pytest.mark.parametrize(
    ("limit", "piece", "words"),
    [(3, "a ", wording("sends_after_3_tokens")), (None, "a " * 2**12, wording("more_than_1_mib_text_end"))],
)
def test_a_reply_without_end_is_not_read_without_end(limit, piece, words):
    endless = [json.dumps(said(piece)).join(("data: ", "\n\n")).encode()] * 300
    told = []
    with scripted(stream(*endless, threading.Event())) as server:
        engine = ServerEngine(Server.open(server.url), "there", Reporter(told.append))
        *_, end = engine.chat([{"role": "user", "content": "Hi"}], engine.sampling(Settings()), Limits(limit))
        assert isinstance(end, Done) and end.reason == "length" and words in told[-1]
        assert server.gone.wait(PATIENCE), "and it learns that nobody reads"


@pytest.mark.parametrize(("pieces", "text"), [([], ""), (["a", "<"], "a<"), (["<"], "<")])
def test_a_reply_has_one_prefill_before_its_text_even_if_it_is_empty(pieces, text):
    with scripted(stream(*map(said, pieces), ended(), DONE)) as server:
        first, *texts, last = events(server)[1]
    assert first == Prefill(0, 0, 0) and "".join(one.text for one in texts) == text and last.reason == "stop"


def test_pieces_with_nothing_in_them_are_silence(monkeypatch):
    monkeypatch.setattr(server_engine, "NEXT_SECONDS", 0.1)
    empty = json.dumps(said("")).join(("data: ", "\n\n")).encode()
    with scripted(stream(said("Well"), *[empty, 0.01] * 2000, threading.Event())) as server:
        _, reply = events(server)
        with pytest.raises(LocalspecError, match=matching("in_the_middle")):
            list(reply)
        assert server.gone.wait(PATIENCE)


def test_what_is_wrong_names_the_address_once(tmp_path):
    with scripted(stream(said("Well"), b"data: " + b"x" * (2**20 + 2**16))) as server:
        last = run(tmp_path, server).stderr.splitlines()[-1]
    assert last.count(server.url) == 1 and "reported an error" not in last


def test_turns_that_the_server_left_out_count_as_well_as_those_left_out_here():
    server = SimpleNamespace(is_localspec=True, address=SimpleNamespace(url="http://there"))
    engine = SimpleNamespace(server=server, reported={})
    reply = ServerReply(engine, dropped=4)
    for piece, dropped in (
        (ServerPiece(), 4),
        (ServerPiece(localspec_fields={"dropped_turns": 2}), 6),
        (ServerPiece(localspec_fields={"dropped_turns": 2}), 6),
    ):
        reply._take(piece)
        assert reply._dropped == dropped
