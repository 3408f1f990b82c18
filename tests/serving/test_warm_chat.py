"""A chat while the same user runs `localspec serve`: the server answers, and the chat is the same."""

import io
import json
import math
import os
import re
import signal
import socket
import sys
from collections import deque
from contextlib import ExitStack, closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from clocks import PATIENCE
from golden import matching, wording
from serving.conftest import start
from serving.test_warm import dying
from tui.scripted_engine import ScriptedEngine

from localspec import Limits
from localspec.chat.figures import LiveStats
from localspec.chat.introduction import introduction
from localspec.chat.sampling import ChatSettings
from localspec.chat.trace import Trace
from localspec.cli.main import main
from localspec.config import TYPED, Settings, changed
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Done, Reporter, Text
from localspec.models.registry import resolve
from localspec.serving import socket_requests
from localspec.serving.loaded import Loaded
from localspec.serving.room import EngineRoom, Ticket
from localspec.serving.socket_engine import SocketEngine, for_chat
from localspec.serving.socket_requests import THIS, EventLines, ReplyRequest
from localspec.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no sockets with a mode")
DRAFTING = Settings(drafter="phrases", draft_max=8, temperature=0.8, seed=7, max_tokens=80)
ASKED = [{"role": "user", "content": "Count from one to twenty, twice."}]


@pytest.fixture(scope="module")
def drafting(tmp_path_factory):
    """Start a server that loads models with the settings DRAFTING."""
    found = start(tmp_path_factory.mktemp("h"), "--drafter", "phrases", "--draft-max", "8")
    yield found
    assert found.stop() == 0
    assert found.process.stderr.read() == ""


@pytest.fixture
def warm(drafting, monkeypatch):
    """warm(): connect a chat's engine to that server; loading a model in this process fails unless `here` is given."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(drafting.home))

    def make(settings=DRAFTING, here=lambda: pytest.fail("an engine was loaded here"), reporter=None):
        return for_chat(settings, resolve("demo"), reporter or Reporter(), here)

    return make


def answered(engine, settings=DRAFTING, messages=ASKED):
    """Return the events of one reply, its trace, and the figures of all moments."""
    trace, live, events, figures = Trace("", engine.decode), LiveStats(engine), [], []
    sampling, limits = engine.sampling(settings), Limits(settings.max_tokens, settings.stop)
    for event in engine.chat(messages, sampling, limits, engine.thinking(settings, None)):
        live.take(event)
        trace.take(event)
        events.append(event)
        figures.append(live.figures())
    trace.ended = True
    return events, trace, figures


def places(trace):
    return [(trace.place(token), trace.corrected(token)) for token in range(len(trace.tokens))]


@pytest.mark.slow
def test_all_that_a_chat_shows_is_the_same(warm, tmp_path):
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        here, there = Engine.open(DRAFTING, resolve("demo"), store=store), warm()
        assert isinstance(there, SocketEngine)
        before = LiveStats(there).figures()
        assert before.memory.target == here.session.memory.target > 0 and before.drafts
        told, own = introduction(there, resolve("demo")), introduction(here, resolve("demo"))
        assert told.pace and replace(told, pace=own.pace) == own  # each has timed its own load
        for _ in range(2):  # the second is drafted from the first
            (events, trace, figures), (others, other, later) = answered(here), answered(there)
            assert [type(one) for one in events] == [type(one) for one in others]
            assert [(one.text, one.tokens, one.sources) for one in events if isinstance(one, Text)] == [
                (one.text, one.tokens, one.sources) for one in others if isinstance(one, Text)
            ]
            assert places(trace) == places(other) and trace.steps == other.steps
            assert trace.texts(0, trace.tokens) == other.texts(0, other.tokens)
            for name in (
                "tokens",
                "used",
                "context",
                "sources",
                "drafts",
                "exactness",
                "precision",
                "acceptance_by_depth",
            ):
                assert getattr(figures[-1], name) == getattr(later[-1], name), name
            assert events[-1].statistics.token_ids == others[-1].statistics.token_ids
            assert all(one.memory.cache > 0 for one in later if one.tokens)  # while it comes, too
        assert any(place.refused for place, _ in places(other)) and figures[-1].acceptance_by_depth
        # Timing decides for which reply the speedup is known: after one slow step, it would be higher than is possible.
        hot = (
            {**vars(DRAFTING), "temperature": 3.0, "seed": seed} for seed in range(20)
        )  # drafts predict little of them
        assert any(answered(there, Settings(**each))[2][-1].speedup for each in hot), "plain steps are timed there, too"


@pytest.mark.slow
def test_what_changes_while_one_chats_is_what_an_engine_here_says(warm):
    here, there = Engine.open(DRAFTING, resolve("demo")), warm()
    for key, value in (("temperature", "0"), ("top_p", "0.5"), ("seed", "3")):
        settings = changed(DRAFTING, key, value)
        assert there.sampling(settings) == here.sampling(settings)
    first = Settings(drafter="phrases", draft_max=8)
    assert ChatSettings(first).lines(there) == ChatSettings(first).lines(here)
    for engine in (here, there):
        with pytest.raises(UsageMistake, match=matching("top_p_0_5_effect", typed=TYPED)):
            engine.sampling(changed(changed(DRAFTING, "temperature", "0"), "top_p", "0.5"))
        with pytest.raises(UsageMistake, match=matching("think_on_has_no_effect")):
            engine.thinking(changed(DRAFTING, "think", "on"))
    assert there.thinks_by_itself() is here.thinks_by_itself() is None
    text = "Twenty-one words — naïve."
    assert there.count_tokens(text) == here.count_tokens(text)
    assert here.freed_memory == ("cpu", 0) and there.freed_memory == ("cpu", there.session.memory.parked)


def test_a_server_that_hangs_is_left_with_what_came(drafting, warm, monkeypatch):
    monkeypatch.setattr("localspec.serving.socket_engine.STOP_SECONDS", 0.0)
    there, long = warm(), replace(DRAFTING, temperature=1.5, max_tokens=None)
    events = there.chat(ASKED, there.sampling(long))
    seen = list(next(one for one in events if isinstance(one, Text)).tokens)
    try:
        os.kill(drafting.process.pid, signal.SIGSTOP)
        there.wanted = lambda: False  # Escape
        seen += (token for one in events if isinstance(one, Text) for token in one.tokens)
    finally:
        os.kill(drafting.process.pid, signal.SIGCONT)
    assert there.session.statistics.token_ids == tuple(seen)


def test_a_reply_that_is_stopped_is_counted_as_far_as_it_was_seen(warm):
    there, seen = warm(), []
    long = replace(DRAFTING, temperature=1.5, max_tokens=None)
    with closing(there.chat(ASKED, there.sampling(long), Limits(None, ()))) as events:
        for event in events:
            if isinstance(event, Text):
                seen += event.tokens
            if len(seen) > 5:
                break
    found = there.session.statistics
    assert found.token_ids == tuple(seen) and sum(found.sources.values()) == len(seen)
    assert isinstance(answered(there)[0][-1], Done)


@pytest.mark.parametrize(
    "other",
    [{"drafter": "none", "draft_max": "auto"}, {"quantize": "none"}, {"context": 256}, {"pool": "off"}, {"log": False},
     {"exact": True}, {"dtype": "fp32"}, {"accept": "typical"}, {"server": "off"}],
)  # fmt: skip
def test_settings_that_differ_are_obeyed_in_this_process(warm, other):
    here = object()
    assert warm(replace(DRAFTING, **other), lambda: here) is here


def test_waiting_is_reported(drafting, warm, monkeypatch):
    """While others are answered, the server waits a second before it reports each of them. That leaves time to show the
    last report and to remove it, even where the server gets far more CPU time than this process."""
    told = []
    waiting = warm(reporter=Reporter(progress=told.append))
    body = {
        "model": "demo", "path": str(resolve("demo").path), "messages": ASKED, "max_tokens": 1, "stop": [],
        "sampling": vars(waiting.sampling(replace(DRAFTING, temperature=1.5))), "think": None, "name": "x",
        "kept": True, "server": waiting._server,
    }  # fmt: skip
    content = json.dumps(body).encode()
    head = f"POST /localspec/reply HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    told.clear()  # of the time when it was opened
    monkeypatch.setattr(
        "localspec.serving.socket_engine.NOTICE_SECONDS", math.inf
    )  # otherwise a busy machine gives another reason
    waiting.wanted = lambda: not told  # Escape, as soon as the wait is shown
    with ExitStack() as others:
        for _ in range(60):
            other = others.enter_context(socket.socket(socket.AF_UNIX))
            other.connect(os.fspath(drafting.socket))
            other.sendall(head.encode() + content)
        with monkeypatch.context() as patch:  # no reply can be stopped yet, so nothing is waited for
            patch.setattr(waiting, "_send", pytest.fail)
            assert list(waiting.chat(ASKED, waiting.sampling(DRAFTING))) == []
    assert re.fullmatch(r"waiting while localspec serve answers \d+ other requests?", told[0])
    waiting.wanted = lambda: True
    assert isinstance(answered(waiting)[0][-1], Done)


@pytest.mark.slow
def test_a_server_that_goes_before_a_reply(drafting, tmp_path, monkeypatch):
    """One sentence, the same reply, and the next one from here, although a server is there again."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    (tmp_path / "state").mkdir()
    told, card = [], resolve("demo")
    alone = answered(Engine.open(DRAFTING, card))[0]
    with dying(tmp_path, drafting.socket, -6):
        there = for_chat(DRAFTING, card, Reporter(told.append), lambda: Engine.open(DRAFTING, card))
        assert isinstance(there, SocketEngine)
        events, trace, _ = answered(there)
        assert told == [wording("localspec_serve_gone_from_here")]
        assert tuple(trace.tokens) == events[-1].statistics.token_ids == alone[-1].statistics.token_ids
        assert there.choice.engine == "native" and there.session.memory.target > 0
        answered(there)
    assert len(told) == 1


@pytest.mark.slow
def test_a_server_that_goes_in_mid_reply(drafting, tmp_path, monkeypatch):
    """The reply is broken off, and the next one comes from this process."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    (tmp_path / "state").mkdir()
    told, card = [], resolve("demo")
    with dying(tmp_path, drafting.socket, 12):
        there = for_chat(DRAFTING, card, Reporter(told.append), lambda: Engine.open(DRAFTING, card))
        with pytest.raises(LocalspecError, match=matching("localspec_serve_ended_in_the_middle")):
            answered(there)
    assert told == []
    assert isinstance(answered(there)[0][-1], Done) and there.choice.engine == "native" and len(told) == 1


@pytest.mark.slow
def test_a_restarted_server_may_load_models_differently(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    first = start(tmp_path)
    told, settings, card = [], Settings(max_tokens=5), resolve("demo")
    there = for_chat(settings, card, Reporter(told.append), lambda: Engine.open(settings, card))
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(PATIENCE)
    again = start(tmp_path, "--pool", "off")
    try:
        answered(there, settings)
        assert len(told) == 1 and there.choice.engine == "native"
    finally:
        again.stop()


@pytest.mark.slow
def test_what_an_engine_says_meanwhile_travels_with_the_reply():
    heard = deque(["what was said when it was loaded"])

    class Speaking(ScriptedEngine):
        def chat(self, *asked, **how):
            heard.append("The disk is full.")
            try:
                yield from super().chat(*asked, **how)
            finally:
                heard.append("Now it is broken.")

    loaded = Loaded(Speaking(["One"]), 0.0, 0.0, (), heard)
    asked = ReplyRequest("demo", "", ASKED, {"temperature": 0.0}, None, (), None, "x", False, THIS, True)
    delivered = []
    ticket = Ticket(asked, "", 0, delivered.append)
    EngineRoom(Settings(), None)._reply_to_command(SimpleNamespace(exactly=lambda *_: (loaded, 0.0)), ticket, asked)
    assert [one["notice"] for one in delivered if "notice" in one] == [wording("the_disk_is_full"), "Now it is broken."]
    assert "kept" in delivered[-1] and not loaded.new_notices


@pytest.mark.slow
def test_line_by_line(drafting, monkeypatch, capfd):
    """The line-by-line chat prints the same words, and loads no engine."""
    typed = "Count to twenty.\n/xray\n/set temperature 0.5\n/think\n/again\n/model demo-draft\nWho are you?\n"

    def talked(*flags):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        drafts = ("--drafter", "phrases", "--draft-max", "8")
        assert main(["chat", "--plain", "-m", "demo", "-n", "40", "--seed", "3", *drafts, *flags]) == 0
        out, errors = capfd.readouterr()
        told = re.sub(r"\(.* context .*\)", "(figures)", errors)
        return out, re.sub(r"conversation \d+: /resume \d+", "conversation N", told)

    monkeypatch.setenv("LOCALSPEC_HOME", str(drafting.home))
    alone = talked("--server", "off")
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "open", lambda *_, **__: pytest.fail("an engine was loaded here"))
        out, errors = talked()
    assert out == alone[0] and out.count("\n") >= 3
    # which drafter proposed a token depends on earlier replies
    assert errors.splitlines()[-4:] == alone[1].splitlines()[-4:] and "tokens in" in errors


@pytest.mark.slow
def test_figures_are_computed_only_when_they_are_reported(monkeypatch):
    """They take as long as half a step of a small model."""
    now, worked_out = [5.0], []

    class Session:
        @property
        def so_far(self):
            worked_out.append(now[0])
            return None

    monkeypatch.setattr(socket_requests.time, "monotonic", lambda: now[0])
    telling = EventLines(SimpleNamespace(session=Session()), live=True)
    for _ in range(10):
        telling.of(Text("a", (1,), ("target",), 0.1, 1))
    now[0] += 2 * socket_requests.FIGURES_SECONDS
    telling.of(Text("a", (1,), ("target",), 0.1, 1))
    assert worked_out == [5.0, now[0]]
