"""`localspec run`: Ctrl+C at any moment ends in a whole reply, object or stream."""

import json
import os
import signal
import time
from typing import Any

import pytest
from cli.run.run_command import SHAPE, assert_consistent, assert_shape, decoded, interrupting, kept, process
from clocks import PATIENCE

from localspec.cli import run as run_module


@pytest.mark.slow
def test_interrupted_in_mid_reply(home, endless):
    with process(home, "-m", endless.path, "hi") as running:
        assert running.stdout is not None
        said = os.read(running.stdout.fileno(), 100)  # each step is flushed
        assert said.startswith(b"and ")
        running.send_signal(signal.SIGINT)
        rest, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, err) == (130, b"")
    said += rest
    assert said.endswith(b" \n") and said.count(b"\n") == 1
    assert ("and so on " * len(said)).encode().startswith(said[:-1])
    [turn] = kept(home)[0].turns
    assert (turn.prompt, turn.reply, turn.reason) == ("hi", said[:-1].decode(), "interrupted")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "call"), [("decode_step", 3), ("step_sources", 4), ("draft_of", 3), ("draft_of", 4), ("step", 4)]
)
def test_an_interrupted_object_agrees_with_itself(run, endless, monkeypatch, place, call):
    from localspec.decoding import session

    owner: Any = run_module._Output if place == "step" else session
    monkeypatch.setattr(owner, place, interrupting(getattr(owner, place), call))
    result = run("-m", endless.path, "hi", "--json")
    reply = result.json
    assert (result.code, result.err, reply["finish_reason"]) == (130, "", "interrupted")
    assert_shape(reply, SHAPE)
    assert_consistent(reply)
    assert reply["text"] == decoded(endless.path, reply["token_ids"]) != ""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_stream_ends_in_an_object(run, endless, monkeypatch):
    monkeypatch.setattr(run_module._Stream, "step", interrupting(run_module._Stream.step, 5))
    result = run("-m", endless.path, "hi", "--stream-json")
    start, *told, end = (json.loads(line) for line in result.out.splitlines())
    assert (result.code, start["event"], end["event"], len(told)) == (130, "start", "end", 5)
    assert end["finish_reason"] == "interrupted"
    assert "".join(step["text"] for step in told) == end["text"]
    assert [token for step in told for token in step["token_ids"]] == end["token_ids"]


@pytest.mark.slow
def test_interrupted_while_the_prompt_is_read(run, endless, monkeypatch):
    """A long prompt may take minutes, so reading it stops at once."""
    from localspec.decoding import session

    original = session.prefill_step
    for form in ("--json", "--stream-json"):
        monkeypatch.setattr(session, "prefill_step", interrupting(original, 2))
        result = run("-m", endless.path, "x" * 2000, form)
        end = json.loads(result.out.splitlines()[-1])
        assert result.code == 130 and end["finish_reason"] == "interrupted" and end["token_ids"] == []
        assert "event" not in end or json.loads(result.out.splitlines()[0])["event"] == "start"


def test_an_interrupt_in_the_last_step_comes_too_late(run, hello, monkeypatch):
    monkeypatch.setattr(run_module._Object, "end", interrupting(run_module._Object.end, 1))
    result = run("-m", hello.path, "hi", "--json")
    assert (result.code, result.json["text"], result.json["finish_reason"]) == (0, hello.text, "stop")


def test_a_second_interrupt_does_not_wait(run, endless, monkeypatch):
    from localspec.decoding import session

    original = session.decode_step

    def stuck(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the step went on")

    steps = iter([original, original, stuck])
    monkeypatch.setattr(session, "decode_step", lambda *arguments: next(steps)(*arguments))
    result = run("-m", endless.path, "hi", "--json", "--no-spec")
    assert (result.code, result.json["text"], result.err) == (130, "and so on ", "")


def test_interrupted_while_loading(run, hello, monkeypatch):
    monkeypatch.setattr("localspec.engine.engine.choices", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    for form in ((), ("--json",), ("--stream-json",)):
        result = run("-m", hello.path, "hi", *form)
        assert result == (130, "", "localspec: Interrupted.\n")


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.4, 1.2, 2.0])
def test_interrupted_at_any_time_of_loading(home, endless, delay):
    with process(home, "-m", endless.path, "hi") as running:
        time.sleep(delay)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE)
    # Before main() the process dies of the signal, without a word; a shell calls that 130 too.
    assert running.returncode in (130, -signal.SIGINT)
    assert b"Traceback" not in err and err in (b"", b"localspec: Interrupted.\n"), err
    assert running.returncode == -signal.SIGINT or (out == b"") == (err != b"")
