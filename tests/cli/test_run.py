"""`localspec run` from outside: what reaches standard output and standard error, and with which exit code it ends."""

import contextlib
import errno
import io
import itertools
import json
import os
import resource
import shutil
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command import environment, what_is_kept
from scripted import FRAME, Script, random_model, scripted_model

from localspec.chat.conversation import saved
from localspec.cli import run as run_module
from localspec.cli.main import main
from localspec.cli.texts import joined, read
from localspec.machine import hardware
from localspec.paths import Paths
from localspec.policy.forward_costs import ForwardCosts
from localspec.store.history import Saved
from localspec.store.store import Store, pack_tokens, unpack_key, unpack_tokens
from localspec.text import safe

LONG = [f"{word} ".encode() for word in ("one", "two", "three", "four", "five", "six") * 30]


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out.endswith("\n") and self.out.count("\n") == 1
        return json.loads(self.out)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def hello(models: Path) -> Script:
    """Two characters split over tokens, and no newline at the end."""
    return scripted_model(models / "hello", [b"Hel", b"lo", b" w", b"\xc3", b"\xb6rld \xe4\xb8", b"\x96", b"!"])


@pytest.fixture(scope="session")
def long(models: Path) -> Script:
    return scripted_model(models / "long", LONG)


@pytest.fixture(scope="session")
def endless(models: Path) -> Script:
    return scripted_model(models / "endless", [b"and ", b"so ", b"on "], again=0, context=10**9)


@pytest.fixture(scope="session")
def noise(models: Path) -> Path:
    return random_model(models / "noise")


@pytest.fixture
def home(
    lived_in: Callable[..., Path], fresh_home: Path, hello: Script, long: Script, endless: Script, noise: Path
) -> Path:
    return lived_in(fresh_home, hello.path, long.path, endless.path, noise)


@pytest.fixture
def first_start(home: Path) -> Path:
    """A home where there is nothing yet."""
    shutil.rmtree(home)
    return home


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`localspec run ARGUMENTS` in this process, so that torch is imported once; `piped` is standard input.

    Rows cost next to nothing: what a busy machine would make of them must not decide what these tests see.
    """
    cheap = ForwardCosts((1, 64), (256,), ((1.0, 1.1),))
    monkeypatch.setattr("localspec.engine.model_profile.forward_costs", lambda target: cheap)

    def call(*arguments: object, piped: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        capfd.readouterr()
        code = main(["run", *map(str, arguments)])
        return Result(code, *capfd.readouterr())

    return call


def process(home: Path, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", *(a if isinstance(a, bytes) else str(a) for a in arguments)],
        env=environment(home),
        **{**pipes, **options},
    )


def shell(home: Path, command: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """`command` with "$@" standing for `python -m localspec run ARGUMENTS`."""
    return subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-m", "localspec", "run", *map(str, arguments)],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )


def kept(home: Path) -> list[Saved]:
    """Every conversation in that home, the one used last first."""
    with Store.open(Paths(home).database, pytest.fail) as store:
        return [saved(store.history, info.id) for info in store.history.conversations()]


def said(conversation: Saved) -> list[tuple[str, str, str | None]]:
    return [(turn.prompt, turn.reply, turn.reason) for turn in conversation.turns]


def refused(result: Result, code: int, *said: str) -> None:
    """Nothing on standard output, one line on standard error that says what was wrong."""
    assert result.out == ""
    assert result.err.startswith("localspec: ") and result.err.endswith("\n"), result.err
    assert len(result.err.splitlines()) == 1 and "Traceback" not in result.err, result.err
    for word in said:
        assert word in result.err
    assert "Unexpected" not in result.err, result.err
    assert result.code == code


# -- standard output and standard error --------------------------------------------------------------------------------

# Runs the program where nothing can reach the network, and looks at what it imported.
OFFLINE = """
import sys
def watch(event, arguments):
    if event.startswith("socket."):
        raise SystemExit(f"network: {event} {arguments}")
sys.addaudithook(watch)
from localspec.cli.main import main
code = main(sys.argv[1:])
print(*(name for name in ("textual", "localspec_tui") if name in sys.modules), end="", file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.slow
def test_a_reply_and_nothing_else_without_network_or_interface(home, hello):
    result = subprocess.run(
        [sys.executable, "-c", OFFLINE, "run", "-m", hello.path, "hi"],
        env=environment(home, TERM="xterm"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, (hello.text + "\n").encode(), b"")
    assert hello.text == "Hello wörld 世!"


@pytest.mark.slow
def test_the_newline_at_the_end(run, models):
    assert run("-m", scripted_model(models / "newline", [b"a", b"\n"]).path, "hi").out == "a\n"
    silent = scripted_model(models / "silent", [b"x"], follows={258: 259})
    result = run("-m", silent.path, "hi")
    assert (result.code, result.out, result.err) == (0, "\n", "")
    assert run("-m", silent.path, "hi", "--json").json["token_ids"] == []


def test_stats_are_a_line_on_standard_error(run, hello):
    result = run("-m", hello.path, "hi", "--stats")
    assert result.out == hello.text + "\n"
    assert result.err.count("\n") == 1 and "tokens/s" in result.err and "target" in result.err
    assert "\r" not in result.err and "\x1b" not in result.err
    for form in ("--json", "--stream-json"):
        result = run("-m", hello.path, "hi", "--stats", form)
        assert result.err.count("\n") == 1 and "tokens/s" in result.err
        assert all(json.loads(line) for line in result.out.splitlines())


@pytest.mark.slow
def test_closed_streams(home, hello):
    """Nobody to notify, nothing to read: what would go there goes nowhere, least of all to standard output."""
    (home / "config").mkdir(parents=True)
    (home / "config" / "models.toml").write_text(f'[demo]\npath = "{hello.path}"\n')
    result = shell(home, '"$@" <&- 2>&-', "hi", "--stats")
    assert (result.returncode, result.stdout) == (0, (hello.text + "\n").encode())


@pytest.mark.slow
def test_no_standard_output(home, hello):
    result = shell(home, '"$@" >&-', "-m", hello.path, "hi")
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.startswith(b"localspec: Standard output is closed") and result.stderr.count(b"\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disks_behind_the_streams(home, hello):
    result = shell(home, '"$@" --stats 2>/dev/full', "-m", hello.path, "hi")
    assert (result.returncode, result.stdout) == (0, (hello.text + "\n").encode())
    result = shell(home, '"$@" >/dev/full', "-m", hello.path, "hi")
    assert result.returncode == 1
    assert result.stderr.startswith(b"localspec: Standard output") and result.stderr.count(b"\n") == 1


def test_notices(run, home, hello, monkeypatch):
    monkeypatch.setattr("localspec.models.entries.Entry.toy", True)  # as the demo model is, in whose place it stands
    (home / "config").mkdir(parents=True)
    (home / "config" / "models.toml").write_text(f'[demo]\npath = "{hello.path}"\n')
    result = run("hi")
    assert (result.code, result.out) == (0, hello.text + "\n")
    assert result.err == "localspec: no model named, so the small demo model answers; choose one with -m.\n"
    assert run("hi", "-m", "demo").err == ""


# -- the prompt --------------------------------------------------------------------------------------------------------


def tokens_of(prompt: str) -> int:
    return len(prompt.encode()) + FRAME


def test_where_the_prompt_comes_from(run, tmp_path, hello):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("first\r\n")
    two.write_text("\nsécond\n\n")

    def asked(*arguments: object, piped: bytes = b"") -> int:
        return run("-m", hello.path, "--json", "-n", 1, *arguments, piped=piped).json["prompt_tokens"]

    assert asked("hi") == tokens_of("hi")
    assert asked("hi", piped=b"some text\n") == tokens_of("some text\n\nhi")
    assert asked("-", piped=b"some text\n") == asked(piped=b"some text") == tokens_of("some text")
    assert asked("hi", piped=b" \n") == tokens_of("hi")
    assert asked("-f", one, "-f", two, "hi", piped=b"x") == tokens_of("first\n\nsécond\n\nx\n\nhi")
    assert asked("--file", one) == tokens_of("first")
    assert asked(piped=b"a\xffb") == tokens_of("a\ufffdb")
    assert asked("-s", "Be kind.", "hi") == tokens_of("hi") + len("Be kind.") + 2
    assert asked("--system", "a\udcff", "b\udce9") == tokens_of("b\ufffd") + len("a\ufffd".encode()) + 2
    assert asked("--", "--help") == tokens_of("--help")


def test_the_words_of_the_prompt(monkeypatch, tmp_path):
    file = tmp_path / "notes"
    file.write_text("  indented\n")

    def prompt(argument: str | None, piped: bytes | None, files: tuple[Path, ...] = ()) -> str:
        stdin = None if piped is None else io.TextIOWrapper(io.BytesIO(piped))
        monkeypatch.setattr(sys, "stdin", stdin)
        return run_module._prompt(argument, joined(*map(read, files)))

    assert prompt("hi", b"") == prompt("hi", None) == prompt(None, b"hi\n") == "hi"
    assert prompt("What is this?", b"\n  a table\n\n") == "  a table\n\nWhat is this?"
    assert prompt("hi", b"piped", (file, file)) == "  indented\n\n  indented\n\npiped\n\nhi"
    assert prompt("\udcff\ud800x", b"\xe2\x82") == "\ufffd\n\n\ufffd\ufffdx"


def test_no_prompt(run, tmp_path, hello, monkeypatch):
    empty = tmp_path / "empty"
    empty.write_text("\n \n")
    for arguments in ((), ("-",), ("",), ("  ",), ("-f", empty)):
        refused(run("-m", hello.path, *arguments), 2, "no prompt")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stdin, argument, said in ((None, None, "no prompt"), (None, "-", "'-'"), (Terminal(), "-", "'-'")):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(run_module.UsageMistake, match=said):
            run_module._prompt(argument, "")


def test_what_cannot_be_read(run, tmp_path, hello, monkeypatch):
    binary = tmp_path / "picture.png"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n")
    refused(run("-m", hello.path, "-f", binary, "hi"), 2, "picture.png", "UTF-8")
    refused(run("-m", hello.path, "-f", tmp_path / "gone.txt", "hi"), 2, "gone.txt", "No such file")
    refused(run("-m", hello.path, "-f", tmp_path, "hi"), 2, str(tmp_path), "directory")
    with open(tmp_path / "write-only", "wb") as stream:
        reader = io.TextIOWrapper(io.BufferedReader(io.FileIO(os.dup(stream.fileno()), "r")))
        monkeypatch.setattr(sys, "stdin", reader)
        with pytest.raises(run_module.UsageMistake, match="Standard input cannot be read"):
            run_module._prompt("hi", "")


@pytest.mark.slow
def test_bytes_that_are_no_text(home, hello):
    """Arguments as the system hands them over."""
    with process(home, "-m", hello.path, b"caf\xe9", b"-s", b"\xfe", "--json") as running:
        out, err = running.communicate()
    assert (running.returncode, err) == (0, b"")
    assert json.loads(out)["prompt_tokens"] == FRAME + len("caf\ufffd".encode()) + 2 + len("\ufffd".encode())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such a name cannot be given to a directory")
def test_a_directory_whose_name_is_no_text(run, hello, tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff")
    shutil.copytree(hello.path, name)
    refused(run("-m", name, "hi"), 1, "UTF-8", "rename")


# -- mistakes: exit code and sentence ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temp", "-1"], ["--temperature -1"]),
        (["--temp", "nan"], ["--temperature nan"]),
        (["--temp", "hot"], ["--temperature", "'hot'", "a number from 0 up"]),
        (["--top-p", "0"], ["--top-p 0"]),
        (["--top-p", "1.5"], ["--top-p 1.5"]),
        (["--top-k", "-1"], ["--top-k -1"]),
        (["--min-p", "2"], ["--min-p 2"]),
        (["--seed", "-3"], ["--seed -3"]),
        (["-n", "0"], ["--max-tokens 0"]),
        (["-n", "many"], ["--max-tokens", "'many'", "a whole number from 1 up"]),
        (["-n", "1.5"], ["--max-tokens 1.5"]),
        (["--context", "0"], ["--context 0"]),
        (["--context", "2000"], ["2000", "1000"]),
        (["--context", "4"], ["4", "tokens", "shorten"]),
        (["--stop", ""], ["--stop"]),
        (["--temprature", "1"], ["--temprature", "--temperature"]),
        (["--no-sepc"], ["--no-sepc", "--no-spec"]),
        (["--json", "--stream-json"], ["--json", "--stream-json"]),
        (["--no-spec", "--drafter", "phrases"], ["--no-spec", "--drafter phrases"]),
        (["--no-spec", "--draft-max", "4"], ["--draft-max 4"]),
        (["--no-spec", "--pool", "user"], ["--pool user"]),
        (["--draft-max", "0", "--pool", "readonly"], ["--pool readonly"]),
        (["--draft-max", "lots"], ["--draft-max", "lots"]),
        (["--draft-max", "-1"], ["--draft-max", "-1"]),
        (["--draft-max", "9" * 5000], ["--draft-max inf"]),
        (["--draft-max", "65"], ["--draft-max 65", "64"]),
        (["--drafter", "medusaa"], ["medusaa", "phrases"]),
        (["--drafter", ""], ["--drafter"]),
        (["--pool", "of"], ["--pool", "of"]),
        (["--top-p", "0.5", "--temp", "0"], ["--top-p", "temperature 0"]),
        (["--top-k", "5"], ["--top-k", "temperature 0"]),
        (["--dtype", "fp16"], ["fp16"]),
        (["--dtype", "fp8"], ["--dtype", "fp8"]),
        (["--device", "cuda:99"], ["cuda:99", "cpu"]),
        (["--device", "gpu"], ["--device", "gpu"]),
        (["--quantize", "nf4"], ["nf4"]),
        (["hi", "there"], ["there"]),
    ],
)
def test_usage_mistakes(run, models, arguments, said):
    if not (models / "short").exists():
        scripted_model(models / "short", [b"a"], context=1000)
    if "--dtype" in arguments:
        arguments = [*arguments, "--device", "cpu"]
    refused(run("-m", models / "short", "hi", *arguments), 2, *said)


def test_a_gpu_where_there_is_none(run, hello):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    refused(run("-m", hello.path, "hi", "--device", "cuda"), 2, "cuda", "cpu")


def test_settings_that_are_no_settings(run, home, hello, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_TEMPERATUR", "1")
    refused(run("-m", hello.path, "hi"), 2, "LOCALSPEC_TEMPERATUR", "'LOCALSPEC_TEMPERATURE'")
    monkeypatch.delenv("LOCALSPEC_TEMPERATUR")
    monkeypatch.setenv("LOCALSPEC_TOP_P", "0")
    refused(run("-m", hello.path, "hi"), 2, "LOCALSPEC_TOP_P=")
    monkeypatch.delenv("LOCALSPEC_TOP_P")
    (home / "config").mkdir(parents=True)
    (home / "config" / "config.toml").write_text("max_token = 5\n")
    refused(run("-m", hello.path, "hi"), 2, "max_token", "'max_tokens'", "config.toml")
    (home / "config" / "config.toml").write_text("max_tokens = 2\n")
    assert run("-m", hello.path, "hi").out == "Hello\n"
    assert run("-m", hello.path, "hi", "-n", "1").out == "Hel\n"


def test_a_prompt_longer_than_the_context(run, models):
    tight = scripted_model(models / "tight", [b"a", b"b", b"c"], context=20)
    refused(run("-m", tight.path, "x" * 100), 2, "103 tokens", "20")
    refused(run("-m", tight.path, "x" * 17), 2, "20 tokens")
    answer = run("-m", tight.path, "x" * 15, "--json").json
    assert answer["finish_reason"] == "length" and answer["text"] == "ab"  # the context is full


# A model's directory, and what is done to it -> exit code and words of the sentence.
def _config(**changes: object) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def _text(name: str, content: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text(content)


def _tensors(**changes: Callable[[Any], Any] | None) -> Callable[[Path], object]:
    """Other tensors in the file; None takes one away."""

    def change(path: Path) -> None:
        import numpy as np
        from safetensors.numpy import load_file, save_file

        tensors = load_file(path / "model.safetensors")
        for name, make in changes.items():
            tensor = tensors.pop(name)
            if make is not None:
                tensors[name] = np.array(make(tensor))
        save_file(tensors, path / "model.safetensors")

    return change


def _smaller_vocabulary(path: Path) -> None:
    """Fewer embeddings than the tokenizer has tokens."""
    cut = {EMBEDDING: lambda tensor: tensor[:200], "lm_head.weight": lambda tensor: tensor[:200]}
    _tensors(**cut)(path)
    _config(vocab_size=200, eos_token_id=1)(path)


def _cut(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


EMBEDDING, GATE, SIZE = "model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight", 256 + 4 + 7  # `hello`
DAMAGE: dict[str, tuple[Callable[[Path], object], int, list[str]]] = {
    "no directory": (shutil.rmtree, 3, ["There is no directory"]),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), 3, ["no weights"]),
    "no config": (lambda path: (path / "config.json").unlink(), 3, ["config.json"]),
    "pickle only": (lambda path: (path / "model.safetensors").rename(path / "model.bin"), 1, ["pickle", "model.bin"]),
    "architecture": (_config(architectures=["BertModel"]), 1, ["BertModel", "LlamaForCausalLM"]),
    "broken config": (_text("config.json", "{"), 1, ["config.json"]),
    "list as config": (_text("config.json", "[]"), 1, ["config.json"]),
    "no model type": (_config(model_type=None), 1, ["config.json"]),
    "words for numbers": (_config(hidden_size="big"), 1, ["config.json"]),
    "no heads": (_config(num_attention_heads=0), 1, ["config.json"]),
    "no layers": (_config(num_hidden_layers=-1), 1, ["config.json"]),
    "more layers": (_config(num_hidden_layers=2), 1, ["model.layers.1."]),
    "activation": (_config(hidden_act="gelu"), 1, ["gelu"]),
    "positions": (_config(rope_scaling={"rope_type": "spiral"}), 1, ["spiral"]),
    "no context": (_config(max_position_embeddings=0), 1, ["config.json"]),
    "cut": (_cut, 1, ["model.safetensors", "cut short"]),
    "garbage": (_text("model.safetensors", "garbage " * 100), 1, ["model.safetensors"]),
    "empty": (_text("model.safetensors", ""), 1, ["model.safetensors"]),
    "rows": (_config(vocab_size=SIZE + 1), 1, ["embed_tokens", str(SIZE)]),
    "columns": (_tensors(**{GATE: lambda gate: gate[:, :-1]}), 1, [GATE]),
    "wider": (_config(intermediate_size=3), 1, ["mlp."]),
    "flat": (_tensors(**{EMBEDDING: lambda embedding: embedding.reshape(-1)}), 1, [EMBEDDING]),
    "norm": (_tensors(**{"model.norm.weight": lambda norm: norm[None]}), 1, ["model.norm.weight"]),
    "scalar": (_tensors(**{"model.norm.weight": lambda norm: norm[0]}), 1, ["model.norm.weight"]),
    "missing tensor": (_tensors(**{"model.norm.weight": None}), 1, ["model.norm.weight"]),
    "smaller vocabulary": (_smaller_vocabulary, 1, ["vocab"]),
    "no tokenizer": (lambda path: (path / "tokenizer.json").unlink(), 1, ["tokenizer"]),
    "broken tokenizer": (_text("tokenizer.json", "{"), 1, ["tokenizer"]),
    "odd tokenizer": (_text("tokenizer_config.json", "[]"), 1, ["tokenizer"]),
    "broken template": (_text("chat_template.jinja", "{% for %}"), 1, ["template"]),
    "refusing template": (_text("chat_template.jinja", "{{ raise_exception('no\\nway') }}"), 1, ["template"]),
    "broken generation": (_text("generation_config.json", "{"), 1, ["generation_config.json"]),
    "odd temperature": (
        _text("generation_config.json", '{"do_sample": true, "temperature": "hot"}'), 1, ["generation_config.json"],
    ),
    "odd top-p": (_text("generation_config.json", '{"do_sample": true, "top_p": 7}'), 1, ["generation_config.json"]),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_models(run, tmp_path, hello, damage):
    change, code, said = DAMAGE[damage]
    path = tmp_path / "model"
    shutil.copytree(hello.path, path)
    change(path)
    refused(run("-m", path, "hi"), code, *said)


def test_no_such_model(run, tmp_path):
    refused(run("-m", "dmo", "hi"), 3, "'dmo'", "'demo'")
    refused(run("-m", "meta/llama", "hi"), 3, "'meta/llama'")
    refused(run("-m", "", "hi"), 2, "--model")
    (tmp_path / "empty").mkdir()
    refused(run("-m", tmp_path / "empty", "hi"), 3, "config.json")


def test_what_cannot_be_foreseen_is_one_line_too(run, hello, monkeypatch):
    monkeypatch.setattr("localspec.decoding.session.decode_step", lambda *_: 1 / 0)
    result = run("-m", hello.path, "hi", "--json")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("localspec: Unexpected ZeroDivisionError") and result.err.count("\n") == 1


# -- JSON --------------------------------------------------------------------------------------------------------------

NUMBER = (int, float)
SHAPE: dict[str, Any] = {
    "text": str, "token_ids": [int], "model": str, "revision": str, "drafter": str, "device": str, "dtype": str,
    "quantize": str, "exactness": str, "accept": str, "lossless": bool, "finish_reason": str, "seed": int,
    "prompt_tokens": int, "completion_tokens": int,
    "timings": dict.fromkeys(["load_s", "prefill_s", "first_token_s", "decode_s", "tokens_per_second"], NUMBER),
    "speculation": {
        "steps": int, "acceptance_length": NUMBER, "acceptance_by_depth": [NUMBER], "draft_n": int,
        "draft_n_accepted": int, "sources": dict, "speedup": None, "M": None, "off_reason": (str, type(None)),
    },
    "memory": dict.fromkeys(["target_bytes", "drafter_bytes", "cache_bytes", "peak_bytes"], int),
}  # fmt: skip


def assert_shape(value: Any, shape: Any, where: str = "reply") -> None:
    """Exactly the keys of the contract, of the right types."""
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


def decoded(path: Path, ids: list[int]) -> str:
    from tokenizers import Tokenizer

    return safe(Tokenizer.from_file(str(path / "tokenizer.json")).decode(ids))


def test_the_object(run, hello):
    result = run("-m", hello.path, "hi", "--json")
    reply = result.json
    assert (result.code, result.err) == (0, "")
    assert_shape(reply, SHAPE)
    assert_consistent(reply)
    assert reply["text"] == hello.text and reply["token_ids"] == hello.ids
    assert reply["finish_reason"] == "stop" and reply["prompt_tokens"] == tokens_of("hi")
    assert reply["model"] == str(hello.path) and len(reply["revision"]) == 40
    assert (reply["drafter"], reply["accept"], reply["lossless"]) == ("phrases", "exact", True)
    assert reply["exactness"] in ("bitwise", "numerical")
    plain = run("-m", hello.path, "hi", "--json", "--no-spec").json
    assert_consistent(plain)
    assert plain["drafter"] == "none" and plain["token_ids"] == hello.ids
    assert plain["speculation"]["sources"] == {"target": 7} and plain["speculation"]["acceptance_length"] == 1
    cut = run("-m", hello.path, "hi", "--json", "-n", "2").json
    assert (cut["finish_reason"], cut["text"], cut["token_ids"]) == ("length", "Hello", hello.ids[:2])
    stopped = run("-m", hello.path, "hi", "--json", "--stop", "never", "--stop", " w").json
    assert (stopped["finish_reason"], stopped["text"], stopped["token_ids"]) == ("stop", "Hello", hello.ids[:2])


@pytest.mark.slow
def test_seeds(run, noise):
    def said(*arguments: object) -> dict[str, Any]:
        reply = run("-m", noise, "hi", "--json", "--temp", "1", "-n", "40", *arguments).json
        assert_shape(reply, SHAPE)
        assert_consistent(reply)
        assert reply["text"] == decoded(noise, reply["token_ids"])
        return reply

    fresh, other = said(), said()
    assert fresh["seed"] != other["seed"] and fresh["token_ids"] != other["token_ids"]
    again = said("--seed", fresh["seed"])
    assert again["seed"] == fresh["seed"] and again["text"] == fresh["text"]
    assert said("--seed", fresh["seed"], "--no-spec")["token_ids"] == fresh["token_ids"]
    assert said("--seed", 1)["token_ids"] != said("--seed", 2)["token_ids"]


def test_the_models_own_sampling(run, models):
    own = random_model(models / "own", generation={"do_sample": True, "temperature": 1.0, "top_k": 3})
    one, two = (run("-m", own, "hi", "--json", "-n", "30", "--seed", seed).json for seed in (1, 2))
    assert one["token_ids"] != two["token_ids"]
    one, two = (run("-m", own, "hi", "--json", "-n", "30", "--seed", seed, "--temp", "0").json for seed in (1, 2))
    assert one["token_ids"] == two["token_ids"]


# -- exactness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [["--temp", "0"], ["--seed", "3", "--temp", "1"]])
def test_exact_text_is_the_same_with_and_without_speculation_and_says_so(run, noise, how):
    arguments = ["-m", noise, "hi", "-n", "40", "--exact", "--json", *how]
    fixed = ("--draft-max", "8")  # also where it does not pay
    first, known, plain = (run(*arguments, *more).json for more in (fixed, fixed, ("--no-spec",)))
    assert first["token_ids"] == known["token_ids"] == plain["token_ids"]
    assert known["speculation"]["draft_n_accepted"] > first["speculation"]["draft_n_accepted"]
    assert {reply["exactness"] for reply in (first, known, plain)} == {"bitwise"}


@pytest.fixture
def inexact(home: Path, lived_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose rows depend on each other, which nobody has measured yet."""
    from localspec.engine import model_profile
    from localspec.nn.exactness import Exactness

    lived_in(home)
    monkeypatch.setattr(model_profile, "measure", lambda *_: Exactness(False, 65, largest=0.00123))


def test_what_the_self_test_finds_is_what_is_said(run, hello, inexact):
    result = run("-m", hello.path, "hi", "--stream-json", "--stats")
    start, *_, end = (json.loads(line) for line in result.out.splitlines())
    assert start["exactness"] == end["exactness"] == "numerical" and "fp32, numerical ·" in result.err


def test_exact_where_it_cannot_be_had_is_refused(run, hello, inexact, monkeypatch):
    refused(run("-m", hello.path, "hi", "--exact"), 2, "--exact", "fp32", "1.2e-03")
    monkeypatch.setenv("LOCALSPEC_EXACT", "yes")
    refused(run("-m", hello.path, "hi"), 2, "--exact", str(hello.path))
    monkeypatch.setenv("LOCALSPEC_EXACT", "no")
    assert run("-m", hello.path, "hi").code == 0


@pytest.mark.slow
def test_the_figures_name_the_precision(run, hello):
    assert " · fp32, bitwise · " in run("-m", hello.path, "hi", "--stats", "--exact").err
    assert " · int8, " in run("-m", hello.path, "hi", "--stats", "--quantize", "int8").err


def test_what_is_measured_on_the_first_load_is_told_once(run, first_start, hello, monkeypatch):
    monkeypatch.setattr(hardware.IdleCores, "__call__", lambda self: hardware.physical_cores())  # a busy one keeps none
    shown: list[str] = []
    monkeypatch.setattr(run_module.Progress, "show", lambda self, what: shown.append(what))
    for measured in (2, 0):
        assert run("-m", hello.path, "hi").code == 0
        assert len([what for what in shown if "measuring" in what and "once" in what]) == measured, shown
        shown.clear()


@pytest.mark.parametrize("arguments", [[], ["--stop", "four five"], ["--no-spec"], ["-n", "50"]])
def test_the_stream(run, long, arguments):
    result = run("-m", long.path, "hi", "--stream-json", *arguments)
    assert (result.code, result.err) == (0, "")
    start, *steps, end = (json.loads(line) for line in result.out.splitlines())
    assert start.pop("event") == "start" and end.pop("event") == "end"
    assert {step.pop("event") for step in steps} == {"step"}
    assert_shape(end, SHAPE)
    assert_consistent(end)
    assert start.items() <= end.items()
    for step in steps:
        assert_shape(step, {"text": str, "token_ids": [int], "sources": [str]})
        assert len(step["token_ids"]) == len(step["sources"])
    assert "".join(step["text"] for step in steps) == end["text"] == decoded(long.path, end["token_ids"])
    assert [token for step in steps for token in step["token_ids"]] == end["token_ids"]
    sources = [source for step in steps for source in step["sources"]]
    assert {name: sources.count(name) for name in set(sources)} == {
        name: count for name, count in end["speculation"]["sources"].items() if count
    }
    assert len(steps) >= 3


# -- interrupted -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_interrupted_in_mid_reply(home, endless):
    with process(home, "-m", endless.path, "hi") as running:
        assert running.stdout is not None
        said = os.read(running.stdout.fileno(), 100)  # each step is flushed
        assert said.startswith(b"and ")
        running.send_signal(signal.SIGINT)
        rest, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, b"")
    said += rest
    assert said.endswith(b" \n") and said.count(b"\n") == 1
    assert ("and so on " * len(said)).encode().startswith(said[:-1])
    [turn] = kept(home)[0].turns
    assert (turn.prompt, turn.reply, turn.reason) == ("hi", said[:-1].decode(), "interrupted")


def interrupting(original: Callable[..., Any], call: int) -> Callable[..., Any]:
    """`original`, and Ctrl+C at the beginning of its call of that number."""
    calls = itertools.count(1)

    def wrapped(*arguments: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    return wrapped


@pytest.mark.parametrize("call", [3, 4])
@pytest.mark.parametrize("place", ["decode_step", "step_sources", "safe", "text"])
def test_an_interrupted_object_agrees_with_itself(run, endless, monkeypatch, place, call):
    """Whether the signal comes while a step is made or while it is told."""
    from localspec.decoding import session

    owner: Any = run_module._Output if place == "text" else session
    monkeypatch.setattr(owner, place, interrupting(getattr(owner, place), call))
    result = run("-m", endless.path, "hi", "--json")
    reply = result.json
    assert (result.code, result.err, reply["finish_reason"]) == (130, "", "interrupted")
    assert_shape(reply, SHAPE)
    assert_consistent(reply)
    assert reply["text"] == decoded(endless.path, reply["token_ids"]) != ""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_stream_ends_in_an_object(run, endless, monkeypatch):
    monkeypatch.setattr(run_module._Stream, "text", interrupting(run_module._Stream.text, 5))
    result = run("-m", endless.path, "hi", "--stream-json")
    start, *told, end = (json.loads(line) for line in result.out.splitlines())
    assert (result.code, start["event"], end["event"], len(told)) == (130, "start", "end", 5)
    assert end["finish_reason"] == "interrupted"
    assert "".join(step["text"] for step in told) == end["text"]
    assert [token for step in told for token in step["token_ids"]] == end["token_ids"]


def test_interrupted_while_the_prompt_is_read(run, endless, monkeypatch):
    """A long prompt may take minutes: there the work stops at once."""
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
@pytest.mark.parametrize("delay", [0.4, 0.8, 1.2, 1.6, 2.0, 2.4])
def test_interrupted_at_any_time_of_loading(home, endless, delay):
    with process(home, "-m", endless.path, "hi") as running:
        time.sleep(delay)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    # CPython dies of the signal where the interrupt hit code that it made of text; a shell calls that 130 too.
    assert running.returncode in (130, -signal.SIGINT)
    assert b"Traceback" not in err and err in (b"", b"localspec: Interrupted.\n"), err
    assert (out == b"") == (err != b"")


# -- the reader goes away ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_that_leaves(home, endless):
    command = '"$@" -n 100000000 2>"$LOCALSPEC_HOME/errors" | head -c 5; echo " ${PIPESTATUS[0]}"'
    began = time.monotonic()
    result = shell(home, command, "-m", endless.path, "hi")
    assert result.stdout == b"and s 141\n"
    assert (home / "errors").read_bytes() == b""
    [turn] = kept(home)[0].turns
    assert (turn.reply[:10], turn.reason) == ("and so on ", "interrupted")
    assert time.monotonic() - began < 120  # the reply would take days; importing torch takes long on a busy machine


@pytest.mark.parametrize("form", [[], ["--stream-json"]])
def test_work_stops_at_once_when_nobody_reads(run, endless, monkeypatch, form):
    from localspec.decoding import session

    steps, original = itertools.count(), session.decode_step

    def counted(*arguments: Any) -> Any:
        next(steps)
        return original(*arguments)

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(session, "decode_step", counted)
    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # what is behind 1 is still in use by this process
    assert run("-m", endless.path, "hi", "-n", "20", *form) == (141, "", "")
    assert next(steps) == 0


# -- phrases between sessions ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_second_time_is_faster(home, long):
    """Two processes, so that the phrases have been on disk between them."""

    def answer() -> dict[str, Any]:
        with process(home, "-m", long.path, "hi", "--json", "--draft-max", 8) as running:
            out, err = running.communicate(timeout=60)
        assert (running.returncode, err) == (0, b"")
        reply: dict[str, Any] = json.loads(out)
        assert reply["text"] == long.text
        return reply

    first, second = answer(), answer()
    assert first["speculation"]["acceptance_length"] == 1.0
    assert second["speculation"]["acceptance_length"] > 3
    assert second["speculation"]["sources"]["phrases"] > len(long.ids) / 2
    database = Paths(home).database
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700


@pytest.mark.slow
def test_what_learns_and_what_forgets(run, long):
    def length(*arguments: object) -> float:
        reply = run("-m", long.path, "hi", "--json", *arguments).json
        assert reply["text"] == long.text
        return float(reply["speculation"]["acceptance_length"])

    for arguments in (["--no-log"], ["--pool", "readonly"], ["--pool", "off"], ["--no-spec"]):
        assert length(*arguments) == length(*arguments) == 1.0
    assert length() == 1.0
    assert length() > 3
    assert length("--pool", "off") == 1.0
    assert length("--pool", "readonly") > 3 and length("--no-log") > 3
    assert main(["pool", "clear", "--yes"]) == 0
    assert length("--no-log") == length() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--pool", "off"], ["--no-spec"], ["--draft-max", "0"], ["--exact"]])
def test_where_nothing_may_be_kept_there_is_no_database(run, first_start, hello, arguments):
    assert run("-m", hello.path, "hi", "--no-log", *arguments) == (0, hello.text + "\n", "")
    assert not first_start.exists()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--pool", "off"], ["--no-spec"], ["--draft-max", "0"]])
def test_without_phrases_what_was_measured_is_kept_and_what_was_said(run, first_start, hello, monkeypatch, arguments):
    assert run("-m", hello.path, "hi", *arguments).code == 0
    with contextlib.closing(sqlite3.connect(Paths(first_start).database)) as connection:
        assert connection.execute("SELECT prompt FROM turn").fetchall() == [("hi",)]
        assert connection.execute("SELECT count(*) FROM measurement").fetchone()[0] > 0
        for table in ("pool", "phrase"):
            assert connection.execute(f"SELECT * FROM {table}").fetchall() == []
    monkeypatch.setattr("localspec.engine.model_profile.measure", lambda *_: pytest.fail("it was measured again"))
    assert run("-m", hello.path, "hi", *arguments, "--no-log").code == 0


def kept_tokens(database: Path) -> set[int]:
    """Every token id in the pools."""
    tokens: set[int] = set()
    with Store.open(database, pytest.fail) as store:
        for pool in store.pools():
            for phrase in store.export(pool.pool):
                tokens |= {*unpack_key(phrase.key), *unpack_tokens(phrase.before), *unpack_tokens(phrase.after)}
    return tokens


def test_phrases_hold_nothing_of_the_prompt(run, home, models):
    # It says the letters of the prompt's marker as a guess of its own would: what follows x is Q, then Z, then J.
    follows = {ord("Q"): ord("Z"), ord("Z"): ord("J"), ord("J"): ord("Q")}
    told = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]
    path = models / "discreet"
    script = scripted_model(path, told, follows={**follows, 260 + 3: ord("x"), ord("x"): 260 + 4})
    marker = "QZJQZJQZJ"
    reply = run("-m", path, "--json", f"x{marker} yx{marker}").json
    assert reply["text"] == "abcdxefgh"
    assert reply["speculation"]["draft_n"] > reply["speculation"]["draft_n_accepted"]  # the marker was drafted
    database = Paths(home).database
    with Store.open(database, pytest.fail) as store:  # a conversation does hold it
        store.history.remove([store.history.latest()])
    files = [database, *database.parent.glob("localspec.db-*")]
    packed = b"".join(struct.pack("<I", ord(letter)) for letter in marker[:2])
    assert not any(marker[:3].encode() in file.read_bytes() or packed in file.read_bytes() for file in files)
    assert kept_tokens(database) <= {*script.ids, ord("x")}


# -- conversations -----------------------------------------------------------------------------------------------------

Messages = list[list[tuple[str, str]]]


@pytest.mark.slow
def test_the_first_start_says_what_is_kept_and_no_other_does(run, first_start, hello):
    refused(run("-m", hello.path, "hi", "-n", "0"), 2, "--max-tokens 0")
    assert not first_start.exists()
    assert run("-m", hello.path, "hi", "--no-log").err == ""
    assert run("-m", hello.path, "hi") == (0, hello.text + "\n", what_is_kept(first_start))
    assert run("-m", hello.path, "hi", "--json").err == ""
    assert main(["history", "rm", "--all", "--yes"]) == 0
    assert run("-m", hello.path, "hi").err == ""


def test_a_reply_is_kept_with_how_it_was_made(run, home, hello, tmp_path):
    (tmp_path / "notes").write_text("some notes\n")
    began = time.time()
    reply = run(
        "-m", hello.path, "-s", "Be kind.", "-f", tmp_path / "notes", "--seed", 7, "--json", "hi", piped=b"so"
    ).json
    [conversation] = kept(home)
    assert said(conversation) == [("some notes\n\nso\n\nhi", hello.text, "stop")]
    assert (conversation.system, conversation.info.model) == ("Be kind.", str(hello.path))
    assert conversation.info.title == "some notes so hi" and began <= conversation.turns[0].asked <= time.time()
    figures = conversation.turns[0].figures
    assert (figures["seed"], figures["completion_tokens"]) == (7, len(hello.ids))
    assert figures["prompt_tokens"] == reply["prompt_tokens"]
    assert figures["sources"] == reply["speculation"]["sources"]
    assert figures["tokens_per_second"] == reply["timings"]["tokens_per_second"]
    run("-m", hello.path, "-n", "2", "cut")
    assert said(kept(home)[0]) == [("cut", "Hello", "length")]


def test_what_is_refused_is_not_kept(run, home, models):
    tight = scripted_model(models / "tighter", [b"a", b"b", b"c"], context=20)
    refused(run("-m", tight.path, "x" * 100), 2, "103 tokens")
    assert kept(home) == []


def test_going_on_with_the_last_one_and_with_another(run, home, hello, messages):
    for prompt in ("one", "two"):
        run("-m", hello.path, prompt)
    second, first = kept(home)
    last = run("-m", hello.path, "-c", "three", "--json").json
    said_so = ("assistant", hello.text)
    assert messages[-1] == [("user", "two"), said_so, ("user", "three")]
    assert last["prompt_tokens"] == 1 + sum(len(text.encode()) + 2 for _, text in messages[-1])
    assert run("--conversation", first.info.id, "four").out == hello.text + "\n"
    assert messages[-1] == [("user", "one"), said_so, ("user", "four")]
    run("--continue", "five")  # the one that was used last by now
    assert messages[-1] == [("user", "one"), said_so, ("user", "four"), said_so, ("user", "five")]
    assert [conversation.info.id for conversation in kept(home)] == [first.info.id, second.info.id]
    assert [[turn.prompt for turn in conversation.turns] for conversation in kept(home)] == [
        ["one", "four", "five"], ["two", "three"]
    ]  # fmt: skip
    assert all(turn.reply == hello.text for conversation in kept(home) for turn in conversation.turns)


def test_a_system_prompt_stays_until_another_is_given(run, home, hello, messages, monkeypatch):
    run("-m", hello.path, "-s", "Be kind.", "one")
    monkeypatch.setenv("LOCALSPEC_SYSTEM", "Be rude.")
    run("-c", "two")
    assert messages[-1][0] == ("system", "Be kind.") and kept(home)[0].system == "Be kind."
    run("-c", "-s", "Be brief.", "three")
    assert messages[-1][0] == ("system", "Be brief.") and len(messages[-1]) == 6
    run("-c", "four")
    assert messages[-1][0] == ("system", "Be brief.") and kept(home)[0].system == "Be brief."
    run("-c", "-s", "", "five")
    assert messages[-1][0] == ("user", "one")
    run("-c", "six")
    assert messages[-1][0] == ("user", "one")
    run("-m", hello.path, "seven")
    assert messages[-1] == [("system", "Be rude."), ("user", "seven")]


@pytest.mark.slow
def test_its_model_stays_until_another_is_named(run, home, hello, long, monkeypatch):
    run("-m", hello.path, "one")
    monkeypatch.setenv("LOCALSPEC_MODEL", str(long.path))
    assert run("-c", "two").out == hello.text + "\n"
    assert run("-c", "-m", long.path, "three").out == long.text + "\n"
    monkeypatch.setenv("LOCALSPEC_MODEL", str(hello.path))
    assert run("-c", "four").out == long.text + "\n"
    assert kept(home)[0].info.model == str(long.path) and kept(home)[0].info.turns == 4


def test_a_conversation_is_kept_by_the_model_s_place_from_anywhere(run, home, hello, monkeypatch, tmp_path):
    monkeypatch.chdir(hello.path.parent)
    run("-m", "./hello", "one")
    monkeypatch.chdir(tmp_path)
    assert run("-c", "two") == (0, hello.text + "\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["directory", "content"])
def test_a_conversation_whose_model_is_gone(run, home, hello, tmp_path, messages, gone):
    path = tmp_path / "model"
    shutil.copytree(hello.path, path)
    run("-m", path, "one")
    shutil.rmtree(path)
    if gone == "content":
        path.mkdir()
    (home / "config").mkdir()
    (home / "config" / "models.toml").write_text(f'[demo]\npath = "{hello.path}"\n')
    no_longer = f"localspec: the model of this conversation, {path}, is no longer here.\n"
    assert run("-c", "two", "-m", "demo", "--no-log") == (0, hello.text + "\n", "")
    (home / "config" / "config.toml").write_text('model = "demo"\n')
    assert run("-c", "two", "--no-log").err == no_longer
    (home / "config" / "config.toml").unlink()
    assert run("-c", "two") == (0, hello.text + "\n", no_longer), "the only model that is here"
    assert messages[-1] == [("user", "one"), ("assistant", hello.text), ("user", "two")]
    assert kept(home)[0].info.model == "demo"
    assert run("-c", "three").err == ""


@pytest.mark.slow
@pytest.mark.parametrize("which", [["-c"], ["--conversation", "1"]])
def test_nothing_to_go_on_with(run, first_start, home, hello, which):
    said = "no conversation to continue" if which == ["-c"] else "no conversation 1 here; `localspec history list`"
    refused(run("-m", hello.path, *which, "hi"), 2, said)
    assert not first_start.exists()
    run("-m", hello.path, "hi", "--no-log")
    refused(run("-m", hello.path, *which, "hi", "--no-log"), 2, said)


@pytest.mark.parametrize("number", [1, 0, -1, 10**30])
def test_a_conversation_that_is_not_there(run, home, hello, number):
    """Number 1 was, in a home that is lived in."""
    run("-m", hello.path, "hi")
    before = kept(home)
    refused(run("-m", hello.path, "--conversation", number, "hi"), 2, f"no conversation {number} here")
    assert kept(home) == before


def test_flags_that_cannot_be_meant_together(run, hello):
    refused(run("-m", hello.path, "-c", "--conversation", "3", "hi"), 2, "--continue", "--conversation 3")
    refused(run("-m", hello.path, "--conversation", "last", "hi"), 2, "'last' is no number", "history list")


def files_with(home: Path, *needles: bytes) -> list[Path]:
    """The files that hold one of these."""
    return [
        file for file in home.rglob("*") if file.is_file() and any(needle in file.read_bytes() for needle in needles)
    ]


@pytest.mark.slow
def test_no_log_keeps_nothing(run, home, long, monkeypatch):
    traces = (b"QZJX", long.text[:12].encode(), pack_tokens(long.ids[10:13]))
    for how in ("flag", "variable", "file"):
        if how == "variable":
            monkeypatch.setenv("LOCALSPEC_LOG", "no")
        elif how == "file":
            monkeypatch.delenv("LOCALSPEC_LOG")
            (home / "config").mkdir()
            (home / "config" / "config.toml").write_text("log = false\n")
        assert run("-m", long.path, "QZJX", *(["--no-log"] if how == "flag" else [])).out == long.text + "\n"
        assert kept(home) == [] and kept_tokens(Paths(home).database) == set()
        assert files_with(home, *traces) == []
    (home / "config" / "config.toml").unlink()
    run("-m", long.path, "QZJX")
    for trace in traces:  # these tests would notice
        assert files_with(home, trace) == [Paths(home).database]


@pytest.mark.slow
def test_no_log_reads_the_conversation_and_keeps_nothing_new(run, home, hello, long, messages):
    run("-m", hello.path, "-s", "Be kind.", "one")
    before = kept(home)
    result = run("-m", long.path, "-c", "--no-log", "-s", "QZJV", "QZJX")
    assert (result.code, result.out, result.err) == (0, long.text + "\n", "")
    assert messages[-1] == [("system", "QZJV"), ("user", "one"), ("assistant", hello.text), ("user", "QZJX")]
    assert run("--conversation", before[0].info.id, "--no-log", "QZJX").out == hello.text + "\n"
    assert kept(home) == before
    assert files_with(home, b"QZJX", b"QZJV", long.text[:12].encode(), pack_tokens(long.ids[10:13])) == []


@pytest.mark.parametrize("place", ["decode_step", "text"])
def test_an_interrupted_reply_is_kept_and_gone_on_with(run, home, endless, monkeypatch, messages, place):
    from localspec.decoding import session

    owner: Any = run_module._Output if place == "text" else session
    monkeypatch.setattr(owner, place, interrupting(getattr(owner, place), 5))
    reply = run("-m", endless.path, "hi", "--json").json
    [turn] = kept(home)[0].turns
    assert (turn.prompt, turn.reply, turn.reason) == ("hi", reply["text"], "interrupted")
    assert turn.figures["completion_tokens"] == reply["completion_tokens"] > 0
    assert run("-m", endless.path, "-c", "-n", "1", "on").code == 0
    assert messages[-1] == [("user", "hi"), ("assistant", reply["text"]), ("user", "on")]


def test_a_prompt_that_got_no_answer_gives_way_to_the_next(run, home, endless, monkeypatch, messages):
    from localspec.decoding import session

    original = session.prefill_step
    monkeypatch.setattr(session, "prefill_step", interrupting(original, 2))
    assert run("-m", endless.path, "x" * 2000, "--json").code == 130
    assert said(kept(home)[0]) == [("x" * 2000, "", "interrupted")]
    run("-m", endless.path, "-c", "-n", "1", "hi")
    assert messages[-1] == [("user", "hi")]
    assert said(kept(home)[0]) == [("hi", "and ", "length")]


def test_what_was_said_until_the_reader_left_is_kept(run, home, endless, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            if self.tell() > 30:
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # what is behind 1 is still in use by this process
    assert run("-m", endless.path, "hi") == (141, "", "")
    [turn] = kept(home)[0].turns
    assert ("and so on " * 10).startswith(turn.reply) and 30 < len(turn.reply) < 100
    assert turn.reason == "interrupted"


def test_what_was_said_before_a_failure_is_kept(run, home, endless, monkeypatch):
    from localspec.decoding import session

    steps = iter([session.decode_step] * 2)
    monkeypatch.setattr(session, "decode_step", lambda *arguments: next(steps)(*arguments))
    assert run("-m", endless.path, "hi", "--no-spec").code == 1
    assert said(kept(home)[0]) == [("hi", "and so on ", "interrupted")]


# -- a database that is not as it should be ----------------------------------------------------------------------------


def notified(result: Result, script: Script, *said: str, then: str = "") -> None:
    """A whole reply, success, and one sentence; behind it `then`."""
    assert (result.code, result.out) == (0, script.text + "\n"), result.err
    assert result.err.startswith("localspec: ") and result.err.endswith(then), result.err
    sentence = result.err.removesuffix(then)
    assert sentence.count("\n") == 1, result.err
    for word in said:
        assert word in sentence


def test_a_broken_database(run, home, hello):
    database = Paths(home).database
    database.write_bytes(b"this is no database " * 500)
    notified(run("-m", hello.path, "hi"), hello, "broken", "set aside", then=what_is_kept(home))
    assert run("-m", hello.path, "hi").err == ""
    assert any("broken" in file.name for file in database.parent.iterdir())


def test_a_newer_database(run, home, hello):
    run("-m", hello.path, "hi")
    database = Paths(home).database
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 99")
    notified(run("-m", hello.path, "hi"), hello, "99", "set aside", then=what_is_kept(home))


@pytest.mark.slow
def test_a_directory_in_the_place_of_the_database(run, first_start, hello):
    """Where nothing is kept, nobody is told that it is."""
    Paths(first_start).database.mkdir(parents=True)
    notified(run("-m", hello.path, "hi"), hello, "cannot be used")


def test_a_locked_database(run, home, hello, monkeypatch):
    run("-m", hello.path, "hi")
    connect, original = sqlite3.connect, run_module._Plain.end
    monkeypatch.setattr(sqlite3, "connect", lambda *place, **options: connect(*place, **{**options, "timeout": 0.1}))
    with contextlib.closing(connect(Paths(home).database, isolation_level=None)) as other:

        def lock_first(*arguments: Any) -> None:
            original(*arguments)
            other.execute("BEGIN IMMEDIATE")

        monkeypatch.setattr(run_module._Plain, "end", lock_first)
        notified(run("-m", hello.path, "hi"), hello, "in use by another process")


def test_a_database_that_is_locked_when_the_reply_begins(run, home, hello, monkeypatch):
    from localspec import Engine

    connect, load = sqlite3.connect, Engine.open
    monkeypatch.setattr(sqlite3, "connect", lambda *place, **options: connect(*place, **{**options, "timeout": 0.1}))
    with contextlib.closing(connect(Paths(home).database, isolation_level=None)) as other:

        def lock_first(*arguments: Any, **options: Any) -> Any:
            other.execute("BEGIN IMMEDIATE")
            return load(*arguments, **options)

        monkeypatch.setattr(Engine, "open", lock_first)
        result = run("-m", hello.path, "hi", "--pool", "off", "--no-spec")
    notified(result, hello, "From here on this conversation is not kept", "in use by another process")
    assert kept(home) == []


def test_a_broken_database_holds_nothing_to_go_on_with(run, home, hello):
    run("-m", hello.path, "hi")
    Paths(home).database.write_bytes(b"this is no database " * 500)
    result = run("-m", hello.path, "-c", "hi")
    aside, mistake = result.err.splitlines()
    assert (result.code, result.out) == (2, "") and "set aside" in aside and "no conversation to continue" in mistake


@pytest.mark.slow
def test_a_full_disk_while_saving(run, home, long, monkeypatch):
    run("-m", long.path, "hi", "-n", "2")
    before, original = resource.getrlimit(resource.RLIMIT_FSIZE), run_module._Plain.end

    def fill(*arguments: Any) -> None:
        original(*arguments)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))  # room for what is captured, not for phrases

    monkeypatch.setattr(run_module._Plain, "end", fill)
    try:
        result = run("-m", long.path, "hi")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    notified(result, long, "disk is full")


@pytest.fixture
def open_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home that every user may enter: the one pytest makes for root is closed to others."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    monkeypatch.setenv("LOCALSPEC_HOME", str(directory))
    yield directory
    for inner in directory.rglob("*"):
        inner.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.slow
def test_a_database_that_can_only_be_read(run, open_home, lived_in, messages, monkeypatch):
    script = scripted_model(open_home / "model", LONG[:60])
    lived_in(open_home, script.path)
    (script.path / "model.safetensors").chmod(0o644)
    assert run("-m", script.path, "hi").err == ""
    before = kept(open_home)
    data = Paths(open_home).data_dir
    for file in data.iterdir():
        file.chmod(0o444)
    data.chmod(0o555)
    open_home.chmod(0o555)
    if root := os.geteuid() == 0:  # permissions do not bind root
        os.seteuid(65534)
    try:
        notified(run("-m", script.path, "hi"), script, "can only be read")
        reply = run("-m", script.path, "hi", "--json")
        notified(run("-c", "more"), script, "can only be read")
    finally:
        if root:
            os.seteuid(0)
        open_home.chmod(0o755)
        for inner in data.iterdir():
            inner.chmod(0o644)
        data.chmod(0o755)
    assert kept(open_home) == before
    assert messages[-1] == [("user", "hi"), ("assistant", script.text), ("user", "more")]
    assert reply.code == 0 and reply.json["speculation"]["acceptance_length"] > 3  # what it knows is used
