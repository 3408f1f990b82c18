"""A tokenizer that is slow on a text can be interrupted: by Ctrl+C, the chat's stop, or a limit."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import until
from command import environment
from golden import matching
from scripted_models import scripted_model

import localspec
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.engine.engine import Engine
from localspec.engine.fit_context import fit_conversation
from localspec.errors import LocalspecError
from localspec.models import encoding
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.encoding import Unwanted, is_abandoned, stopping_unless
from localspec.models.registry import TargetCard
from localspec.models.tokenizer import Tokenizer

DEMO = Path(localspec.__file__).parent / "demo"
LONG = "\u0e3f" * 8_000  # half a second with the expression below, which tries each place to the end of the text
QUADRATIC = "[\u0e3f]*[\u0e5b]"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return scripted_model(tmp_path / "model", [b"Hel", b"lo"]).path


class Held:
    """A library that finishes only when the test lets it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.backend, self.let_go, self.begun = tokenizer.backend, threading.Event(), threading.Event()
        tokenizer.backend = self  # type: ignore[assignment]

    def encode_batch(self, texts: list[str], **given: object) -> object:
        self.begun.set()
        self.let_go.wait()
        return self.backend.encode_batch(texts, **given)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self.backend, name)


@pytest.fixture
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.open(model)


@pytest.fixture
def held(tokenizer: Tokenizer) -> Iterator[Held]:
    held = Held(tokenizer)
    yield held
    held.let_go.set()
    until(lambda: not is_abandoned())


@pytest.mark.slow
def test_a_quadratic_expression_is_not_waited_for(model: Path) -> None:
    """This tests the library itself: if it held Python's interpreter, nothing could be checked meanwhile."""
    file = model / "tokenizer.json"
    split = {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": QUADRATIC}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": split}))
    tokenizer = Tokenizer.open(model)
    assert tokenizer.encode("Hello")
    with stopping_unless(lambda: False), pytest.raises(Unwanted):
        tokenizer.encode(LONG)
    assert is_abandoned()
    until(lambda: not is_abandoned())


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals as on POSIX")
def test_ctrl_c_is_heard_while_a_text_is_encoded(tokenizer: Tokenizer, held: Held) -> None:
    def interrupt() -> None:
        held.begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            tokenizer.encode("a text")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_chat_that_is_stopped_waits_no_longer(tokenizer: Tokenizer, held: Held) -> None:
    class Target:
        context = 99

        def encode(self, messages: list[dict[str, str]], think: bool | None) -> list[int]:
            return ChatTokenizer(tokenizer).encode(messages, 9999)

    asked = [{"role": "user", "content": "a text"}]
    with pytest.raises(Unwanted):
        fit_conversation(Target(), asked, Limits(), 99, wanted=lambda: not held.begun.is_set())  # type: ignore[arg-type]
    held.let_go.set()
    assert fit_conversation(Target(), asked, Limits(), 99)[0]  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_engine_says_nothing_that_is_not_wanted_any_more() -> None:
    engine = Engine(choose(TargetCard("demo", DEMO, None, ""), Settings(drafter="none")))
    held = Held(engine.target.chat.tokenizer)
    sampling = engine.sampling(Settings(temperature=0.0))
    engine.wanted = lambda: not held.begun.is_set()
    assert list(engine.chat([{"role": "user", "content": "a text"}], sampling)) == []
    held.begun.clear()
    assert list(engine.complete("a text", sampling)) == []
    held.let_go.set()
    engine.wanted = lambda: True
    assert list(engine.complete("a text", sampling, Limits(1)))
    until(lambda: not is_abandoned())


def test_a_text_without_end_is_a_sentence(
    tokenizer: Tokenizer, held: Held, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "PATIENCE", 0.0)
    with pytest.raises(LocalspecError, match=matching("tokenizer_read_text_6_characters", model=model)):
        tokenizer.encode("a text")
    assert encoding.patience(LONG) == len(LONG) / encoding.PACE


def test_each_thread_has_its_own_word(tokenizer: Tokenizer) -> None:
    with stopping_unless(lambda: False):
        ids: list[list[int]] = []
        other = threading.Thread(target=lambda: ids.append(tokenizer.encode("a text")))
        other.start()
        other.join()
    assert ids == [tokenizer.encode("a text")]
    assert tokenizer.encoding("a text", False).offsets[0][0] == 0


@pytest.mark.slow
def test_what_is_left_behind_ends_with_the_process(tmp_path: Path) -> None:
    code = """
import atexit, threading
from localspec import __main__ as program
from localspec.models.encoding import THREAD
begun = threading.Event()
def main():
    threading.Thread(target=lambda: (begun.set(), threading.Event().wait()), name=THREAD, daemon=True).start()
    begun.wait()
    return 130
program.main = main
atexit.register(print, "the interpreter was taken apart")
raise SystemExit(program.run())
"""
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
