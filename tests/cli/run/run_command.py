"""Run `localspec run` in a separate process, and read its answer and the saved conversations."""

import errno
import io
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from clocks import PATIENCE
from command import environment
from scripted_models import FRAME

from localspec.chat.conversation import saved_conversation
from localspec.paths import Paths
from localspec.store.conversations import Saved
from localspec.store.phrases import unpack_key, unpack_tokens
from localspec.store.store import Store

LONG = [f"{word} ".encode() for word in ("one", "two", "three", "four", "five", "six") * 30]


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out.endswith("\n") and self.out.count("\n") == 1
        return json.loads(self.out)


def process(home: Path, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", *(a if isinstance(a, bytes) else str(a) for a in arguments)],
        env=environment(home),
        **{**pipes, **options},
    )


def shell(home: Path, command: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run `command` in a shell, in which "$@" stands for `python -m localspec run ARGUMENTS`."""
    return subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-m", "localspec", "run", *map(str, arguments)],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
    )


def refused(result: Result, code: int, *said: str) -> None:
    """Assert that standard output is empty and standard error has one line with the error."""
    assert result.out == ""
    assert result.err.startswith("localspec: ") and result.err.endswith("\n"), result.err
    assert len(result.err.splitlines()) == 1 and "Traceback" not in result.err, result.err
    for word in said:
        assert word in result.err
    assert "Unexpected" not in result.err, result.err
    assert result.code == code


def kept(home: Path) -> list[Saved]:
    """Return every conversation in that home, the one used last first."""
    with Store.open(Paths(home).database, pytest.fail) as store:
        return [saved_conversation(store.history, info.id) for info in store.history.conversations()]


def said(conversation: Saved) -> list[tuple[str, str, str | None]]:
    return [(turn.prompt, turn.reply, turn.reason) for turn in conversation.turns]


def kept_tokens(database: Path) -> set[int]:
    """Return every token id in the pools."""
    tokens: set[int] = set()
    with Store.open(database, pytest.fail) as store:
        for pool in store.phrases.pools():
            for phrase in store.phrases.export(pool.pool):
                tokens |= {*unpack_key(phrase.key), *unpack_tokens(phrase.before), *unpack_tokens(phrase.after)}
    return tokens


def tokens_of(prompt: str) -> int:
    return len(prompt.encode()) + FRAME


def decoded(path: Path, ids: list[int]) -> str:
    from tokenizers import Tokenizer

    text: str = Tokenizer.from_file(str(path / "tokenizer.json")).decode(ids)
    return text


NUMBER = (int, float)


SHAPE: dict[str, Any] = {
    "text": str, "reasoning": str, "token_ids": [int], "model": str, "revision": str, "drafter": str, "drafter_rule": (str, type(None)), "draft_model": (str, type(None)), "draft_form": (str, type(None)), "expected_M": (float, int, type(None)), "device": str, "engine": str, "dtype": str,
    "quantize": str, "bits_per_weight": (float, type(None)), "exactness": str, "accept": str, "lossless": bool, "finish_reason": str, "seed": int,
    "sampling": {"temperature": NUMBER, "top_p": NUMBER, "top_k": int, "min_p": NUMBER, "source": str},
    "prompt_tokens": int, "completion_tokens": int, "reasoning_tokens": int, "reused_tokens": int, "dropped_turns": int,
    "timings": dict.fromkeys(
        ["load_s", "prefill_s", "first_token_s", "decode_s", "reasoning_s", "tokens_per_second"], NUMBER
    ),
    "speculation": {
        "steps": int, "acceptance_length": NUMBER, "acceptance_by_depth": [NUMBER], "draft_n": int,
        "draft_n_accepted": int, "sources": dict, "speedup": None, "M": None, "off_reason": (str, type(None)),
    },
    "memory": dict.fromkeys(["target_bytes", "drafter_bytes", "cache_bytes", "peak_bytes", "parked_bytes"], int),
}  # fmt: skip


def assert_shape(value: Any, shape: Any, where: str = "reply") -> None:
    """Assert that a reply has exactly the keys of the contract, with the right types."""
    if isinstance(shape, dict):
        assert isinstance(value, dict) and value.keys() == shape.keys(), where
        for key in shape:
            assert_shape(value[key], shape[key], f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for part in value:
            assert_shape(part, shape[0], where)
    elif shape is None:
        assert value is None, where
    else:
        assert isinstance(value, shape) and (shape is bool or not isinstance(value, bool)), where


def assert_consistent(reply: dict[str, Any]) -> None:
    count, speculation = len(reply["token_ids"]), reply["speculation"]
    assert count == reply["completion_tokens"] == sum(speculation["sources"].values())
    assert speculation["draft_n_accepted"] <= speculation["draft_n"]
    assert all(0 <= chance <= 1 for chance in speculation["acceptance_by_depth"])
    if speculation["steps"]:
        accepted, steps = speculation["draft_n_accepted"], speculation["steps"]
        committed = round(speculation["acceptance_length"] * steps)
        assert speculation["acceptance_length"] == pytest.approx(committed / steps, abs=1e-4)
        # A bonus token a step; a limit may cut off the last one.
        assert accepted + steps - 1 <= committed <= accepted + steps
        if reply["finish_reason"] == "length":
            assert committed == count - 1, "all but the first token, which prefill gave"
    assert reply["memory"]["target_bytes"] > 0 and reply["memory"]["peak_bytes"] > reply["memory"]["target_bytes"]
    assert 0 <= reply["timings"]["prefill_s"] <= reply["timings"]["first_token_s"]


class Gone(io.StringIO):
    """A reader who leaves after 30 characters."""

    def write(self, text: str) -> int:
        if self.tell() > 30:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return super().write(text)


def interrupting(original: Callable[..., Any], call: int, times: int = 1) -> Callable[..., Any]:
    """Return `original` with a Ctrl+C at the beginning of its call of that number."""
    calls = itertools.count(1)

    def wrapped(*arguments: Any) -> Any:
        if next(calls) == call:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    return wrapped
