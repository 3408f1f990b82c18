"""Tries a tokenizer and its chat template in a child process before they are used here for the first time.

Some files end the process that reads them, or never let it go.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.environment import home
from localspec.errors import LocalspecError, first_line
from localspec.outside_files import parse_json
from localspec.paths import Paths, private_directory

if TYPE_CHECKING:
    from localspec.models.tokenizer import Tokenizer

TOO_LONG = "it takes too long"
_SECONDS = 60.0  # of computing; the largest tokenizers take one
_TEMPLATE_SECONDS = 10.0  # of computing; rendering ends itself after 5 where Python can be interrupted
_PATIENCE = 180.0  # seconds, by the clock, where the system cannot count a process's own
_MEMORY = 4 * 2**30  # bytes of address space; a large tokenizer takes a quarter
_OWN = Path(__file__).parents[1]  # what comes with localspec is known
_ONE = re.compile(r"\[[^][\\]+\]")  # an expression for one character of some
_START = "import sys; sys.path[:] = sys.argv[1:]; from localspec.models.tokenizer_trial import child; child()"
_LONGEST_ERROR = 2000  # characters
_RUN, _MOST_RUNS = 200, 100  # characters of a text that repeats a word, and how many such texts are tried
_SAMPLES = (
    "The quick brown fox, 12345 times: jumps!\n\n\tover  the\r\nlazy dog's #hash @home https://a.b/c?d=e&f=%20",
    "Ünïcödé ß ﬁ Ǆ İ ı é Å ½ Ⅳ ½", "中文字符 日本語テキスト 한국어 ไทย हिन्दी עברית العربية",
    "🙂👩‍👩‍👧 🇪🇺 \u200b\u200d\ufeff\u2028\u0301 \x00\x01\x7f\x80\u00ad\ud7ff\ue000\uffff\U0010ffff", "", " ", "\n", "a",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa " * 20,
)  # fmt: skip
_TURNS = [{"role": role, "content": _SAMPLES[0]} for role in ("system", "user", "assistant", "user")]
_tried: dict[str, str] = {}


def try_out(files: Mapping[str, str], path: Path) -> str:
    """Return why the chat template among these texts of a model's files must not be rendered; "" where it may be.

    Files that prove harmless are remembered by their digest, and are not tried again. Raises LocalspecError where the
    tokenizer fails, takes too long, or ends the child process.
    """
    if _OWN in path.parents:
        return ""
    mark = _mark({name: text.encode("utf-8", "surrogatepass") for name, text in files.items()})
    known = Paths(home()).tokenizers / mark
    if mark in _tried or known.is_file():
        return _tried.get(mark, "")
    if not _decodes_in_bounds(files.get("tokenizer.json", "")):
        raise LocalspecError(
            f"The tokenizer in {path} makes text of ids by an expression, or makes it longer, which may never end and "
            "which no known model needs; choose another one."
        )
    tokenizer, *template = _answers({"files": dict(files), "path": str(path)})
    if "error" in tokenizer:
        why = first_line(tokenizer["error"])
        whole = tokenizer.get("sentence")
        raise LocalspecError(why if whole else f"The tokenizer in {path} cannot be used ({why[:200]}); fetch it again.")
    _tried[mark] = template[0].get("error", "")
    if not _tried[mark]:
        with suppress(OSError):  # then it is tried again the next time
            private_directory(known.parent)
            known.touch(0o600)
    return _tried[mark]


def forget(files: Mapping[str, bytes]) -> None:
    """Delete what is remembered of these texts of a model's files, which is tried again where it is still needed."""
    with suppress(OSError):
        (Paths(home()).tokenizers / _mark(files)).unlink()


def _mark(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(b"with its template")  # earlier versions did not try the template
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _decodes_in_bounds(text: str) -> bool:
    """Whether the steps from ids to text make none of it longer, and none looks for more than a word or a character.

    Text is made of each token on the thread that decodes, where nothing could interrupt it.
    """
    try:
        waiting = [parse_json(text).get("decoder")]
    except (AttributeError, ValueError):
        return True  # which is no tokenizer, as its trial will say
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        waiting += step["decoders"] if isinstance(step.get("decoders"), list) else []
        if step.get("type") == "Replace":
            pattern = step.get("pattern")
            found = pattern if isinstance(pattern, dict) else {}
            length = len(str(found["String"])) if "String" in found else 1
            if "String" not in found and not _ONE.fullmatch(str(found.get("Regex"))):
                return False
            if len(str(step.get("content"))) > length:
                return False
    return True


def _answers(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the child's answers about the tokenizer and the template; an error for one that it did not survive."""
    command = [sys.executable, "-S", "-c", _START, *filter(None, sys.path), str(_OWN.parent)]
    sent, nowhere = json.dumps(request).encode(), subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, input=sent, stdout=subprocess.PIPE, stderr=nowhere, timeout=_PATIENCE, check=False
        )
        output, why = done.stdout, f"it ended the process that it ran in, with {done.returncode}"
        if done.returncode in (-24, -27):  # SIGXCPU, SIGPROF
            why = TOO_LONG
    except subprocess.TimeoutExpired as late:
        output, why = late.stdout or b"", TOO_LONG
    except OSError as error:
        raise LocalspecError(
            f"No process can be started for what models bring along ({error.strerror}); close other programs, and make "
            f"sure that you may run {sys.executable}."
        ) from error
    return [*(json.loads(line) for line in output.split(b"\n")[:-1]), {"error": why}]


# -- the child ---------------------------------------------------------------------------------------------------------


def child() -> None:
    """Try the files in the request on standard input; write an answer a line about tokenizer and template."""
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "wb") as nowhere:  # nothing else may write among the answers
        os.dup2(nowhere.fileno(), 1)
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    _limit_memory()
    from localspec.models.tokenizer import Tokenizer

    request = json.load(sys.stdin.buffer)
    tokenizer = None
    for seconds in (_SECONDS, _TEMPLATE_SECONDS):
        _limit_computing(seconds)
        answer: dict[str, Any] = {}
        try:
            if tokenizer is None:
                tokenizer = Tokenizer(request["files"], Path(request["path"]), tried=True)
                _try_tokenizer(tokenizer, request["files"]["tokenizer.json"])
            else:
                _try_template(tokenizer)
        except LocalspecError as error:
            answer = {"error": str(error), "sentence": True}
        except TimeoutError:
            answer = {"error": TOO_LONG}
        except BaseException as error:  # noqa: BLE001  # the panic of a library in Rust is no Exception
            panic = "" if isinstance(error, Exception) else f"{type(error).__name__}: "
            answer = {"error": f"{panic}{error}" or type(error).__name__}
        _limit_computing(0.0)
        answer = {**answer, **({"error": answer["error"][:_LONGEST_ERROR]} if answer else {})}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
        if answer:
            break


def _try_tokenizer(tokenizer: "Tokenizer", content: str) -> None:
    """Make ids of some texts, and texts of the ids. A tokenizer that cannot be used panics, or ends the process."""
    special = "".join(token.content for token in list(tokenizer.added_tokens.values())[:100])
    for text in (*_SAMPLES, special, *_runs(parse_json(content))):
        for marks in (True, False):
            with suppress(Exception):  # a text may be one that it has no tokens for; its panics are no Exception
                ids = tokenizer.backend.encode(text, add_special_tokens=marks).ids
                tokenizer.backend.decode(ids, skip_special_tokens=marks)


def _try_template(tokenizer: "Tokenizer") -> None:
    """Render some conversations. Raises TimeoutError and MemoryError; other errors are those of the conversation."""
    if not tokenizer.chat_template:
        return
    from localspec.models.chat_template import render_template

    for messages, waits in ((_TURNS[1:2], True), (_TURNS, True), (_TURNS[1:3], False)):
        for switches in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            try:
                render_template(tokenizer.chat_template, messages, waits, tokenizer.special_tokens, switches)
            except Exception as error:
                if isinstance(error, (TimeoutError, MemoryError)):
                    raise  # others are said where the template is used


def _runs(content: dict[str, Any]) -> list[str]:
    """Return the words in its regular expressions, each many times in a row: some expressions then search on and on."""
    words: dict[str, None] = {}
    left = [content.get(step) for step in ("normalizer", "pre_tokenizer")]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
            if isinstance(expression := value.get("Regex"), str):
                words.update(dict.fromkeys(re.findall(r"\w+", expression)))
        elif isinstance(value, list):
            left += value
    return [(word[:_RUN] * _RUN)[:_RUN] for word in list(words)[:_MOST_RUNS]]


def _limit_computing(seconds: float) -> None:
    """The system ends this process after so many seconds of computing; 0 is no limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has none
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ValueError, OSError):  # a smaller limit is set already
        pass
