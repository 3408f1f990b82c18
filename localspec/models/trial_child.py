"""The child process of `tokenizer_trial.py`, with limits on CPU time and memory."""

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError
from localspec.models.chat_template import TOO_SLOW, render_template
from localspec.models.tokenizer import Tokenizer
from localspec.models.tokenizer_trial import TOO_LONG

_SECONDS = 60.0  # of CPU time; the largest tokenizers take one
_TEMPLATE_SECONDS = 10.0  # of CPU time; rendering stops itself after 5 if Python can be interrupted
_MEMORY = 4 * 2**30  # bytes of address space; a large tokenizer takes a quarter
_LONGEST_ERROR = 2000  # characters
_ONE = re.compile(r"\[[^][\\]+\]")  # an expression for one of several characters
_RUN, _MOST_RUNS = 200, 100  # characters of a text that repeats a word, and the number of such texts
_SAMPLES = (
    "The quick brown fox, 12345 times: jumps!\n\n\tover  the\r\nlazy dog's #hash @home https://a.b/c?d=e&f=%20",
    "Ünïcödé ß ﬁ Ǆ İ ı é Å ½ Ⅳ ½", "中文字符 日本語テキスト 한국어 ไทย हिन्दी עברית العربية",
    "🙂👩‍👩‍👧 🇪🇺 \u200b\u200d\ufeff\u2028\u0301 \x00\x01\x7f\x80\u00ad\ud7ff\ue000\uffff\U0010ffff", "", " ", "\n", "a",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa " * 20,
)  # fmt: skip
_TURNS = [{"role": role, "content": _SAMPLES[0]} for role in ("system", "user", "assistant", "user")]


def child() -> None:
    """Try a model's files from standard input. Write one line about the tokenizer and one about the chat template."""
    results = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "wb") as nowhere:  # nothing else may write among the results
        os.dup2(nowhere.fileno(), 1)
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    _limit_memory()
    if not (line := sys.stdin.buffer.readline()):  # the request: names and lengths of texts, then these texts
        sys.exit()
    request, read = json.loads(line), sys.stdin.buffer.read
    files = {name: read(length).decode("utf-8", "surrogatepass") for name, length in request["files"].items()}
    path, tokenizer = Path(request["path"]), None
    for seconds in (_SECONDS, _TEMPLATE_SECONDS):
        _limit_computing(seconds)
        result: dict[str, Any] = {}
        try:
            if tokenizer is None:
                tokenizer = _tried_tokenizer(files, path)
            else:
                _try_template(tokenizer)
        except LocalspecError as error:
            result = {"error": str(error), "sentence": True}
        except TimeoutError:
            result = {"error": TOO_LONG if tokenizer is None else TOO_SLOW}
        except MemoryError as error:
            result = {"error": f"{error}" or f"the trial takes more than {_MEMORY // 2**30} GiB of memory"}
        except BaseException as error:  # noqa: BLE001  # the panic of a library in Rust is no Exception
            panic = "" if isinstance(error, Exception) else f"{type(error).__name__}: "
            result = {"error": f"{panic}{error}" or type(error).__name__}
        _limit_computing(0.0)
        result = {**result, **({"error": result["error"][:_LONGEST_ERROR]} if result else {})}
        results.write(json.dumps(result).encode() + b"\n")
        results.flush()
        if result:
            break


def _tried_tokenizer(files: dict[str, str], path: Path) -> Tokenizer:
    """Return the tokenizer after it has encoded and decoded some texts. An unusable one panics, or ends the process.

    Raises the tokenizer's errors, and LocalspecError for steps that might never end and could not be interrupted.
    """
    tokenizer = Tokenizer(files, path, tried=True)
    steps = {name: getattr(tokenizer.backend, name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    steps = {name: None if step is None else json.loads(step.__getstate__()) for name, step in steps.items()}
    if not _decodes_in_bounds(steps["decoder"]):
        raise LocalspecError(
            f"The tokenizer in {path} is refused, because its decoder could run forever: it has a step that no known "
            "model needs, a regular expression or one that lengthens text; choose another model."
        )
    special = "".join(token.content for token in list(tokenizer.added_tokens.values())[:100])
    for text in (*_SAMPLES, special, *_runs(steps)):
        for marks in (True, False):
            with suppress(Exception):  # it may have no tokens for a text; its panics are not an Exception
                ids = tokenizer.backend.encode(text, add_special_tokens=marks).ids
                tokenizer.backend.decode(ids, skip_special_tokens=marks)
    return tokenizer


def _decodes_in_bounds(decoder: Any) -> bool:
    """Return whether decoding is bounded: its steps lengthen no text, and search only for a word or a character.

    Text is decoded token by token on a thread that nothing could interrupt.
    """
    waiting = [decoder]
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        waiting += step["decoders"] if isinstance(step.get("decoders"), list) else []
        if step.get("type") == "Replace":
            pattern = step.get("pattern")
            fields = pattern if isinstance(pattern, dict) else {}
            length = len(str(fields["String"])) if "String" in fields else 1
            if "String" not in fields and not _ONE.fullmatch(str(fields.get("Regex"))):
                return False
            if len(str(step.get("content"))) > length:
                return False
    return True


def _try_template(tokenizer: Tokenizer) -> None:
    """Render some conversations with the tokenizer's chat template.

    Raises TimeoutError and MemoryError. Other errors belong to the conversation and are ignored.
    """
    if not tokenizer.chat_template:
        return
    for messages, waits in ((_TURNS[1:2], True), (_TURNS, True), (_TURNS[1:3], False)):
        for switches in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            try:
                render_template(tokenizer.chat_template, messages, waits, tokenizer.special_tokens, switches)
            except Exception as error:
                if isinstance(error, (TimeoutError, MemoryError)):
                    raise  # others are reported when the template is used


def _runs(steps: dict[str, Any]) -> list[str]:
    """Return long texts that repeat a word of the tokenizer's regular expressions. Some of these never end on them."""
    words: dict[str, None] = {}
    left = [steps["normalizer"], steps["pre_tokenizer"]]
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
    """Let the system end this process after `seconds` seconds of CPU time; 0 means no limit."""
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
    except (ValueError, OSError):  # a lower limit is already set
        pass
