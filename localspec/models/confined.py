"""What runs in the process of `confinement.py`: one answer a line, within limits of computing and memory."""

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError
from localspec.outside_files import parse_json

_MEMORY = 4 * 2**30  # bytes of address space; a large tokenizer takes a quarter
_LONGEST_ERROR = 2000  # characters; a template chooses the words that it refuses with
_RUN, _MOST_RUNS = 200, 100  # characters of a text that repeats a word, and how many such texts are tried
_SAMPLES = (
    "The quick brown fox, 12345 times: jumps!\n\n\tover  the\r\nlazy dog's #hash @home https://a.b/c?d=e&f=%20",
    "Ünïcödé ß ﬁ Ǆ İ ı é Å ½ Ⅳ ½", "中文字符 日本語テキスト 한국어 ไทย हिन्दी עברית العربية",
    "🙂👩‍👩‍👧 🇪🇺 \u200b\u200d\ufeff\u2028\u0301 \x00\x01\x7f\x80\u00ad\ud7ff\ue000\uffff\U0010ffff", "", " ", "\n", "a",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa " * 20,
)  # fmt: skip


def serve() -> None:
    """Answers requests from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "wb") as nowhere:  # nothing else may write among the answers
        os.dup2(nowhere.fileno(), 1)
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    _limit_memory()
    from localspec.models import chat_template  # noqa: F401  # while nobody waits yet

    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit_computing(float(request["seconds"]))
        try:
            answer = _tried(request) if "tokenizer" in request else _rendered(request)
        except LocalspecError as error:
            answer = {"error": str(error), "sentence": True}
        except Exception as error:  # noqa: BLE001  # it is told to whoever asked
            answer = {"error": f"{error}" or type(error).__name__}
        except BaseException as error:  # noqa: BLE001  # the panic of a library in Rust is no Exception
            answer = {"error": f"{type(error).__name__}: {error}"}
        _limit_computing(0.0)
        if "error" in answer:
            answer["error"] = answer["error"][:_LONGEST_ERROR]
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _rendered(request: dict[str, Any]) -> dict[str, Any]:
    """The text of a conversation, or why there is none; `refused` where the template itself says so."""
    from jinja2 import TemplateError

    from localspec.models.chat_template import render_template

    try:
        text = render_template(
            request["template"], request["messages"], request["waits"], request["tokens"], request["switches"]
        )
    except TemplateError as error:
        return {"error": f"{error}" or type(error).__name__, "refused": True}
    if len(text) > request["most"]:
        return {"error": f"it makes a text of {len(text)} characters"}
    if _halves(text) - _halves("".join("".join(message.values()) for message in request["messages"])):
        return {"error": "it makes halves of characters, which are no text"}
    return {"text": text}


def _halves(text: str) -> set[str]:
    """Return the halves of surrogate pairs in a text; those that messages hold are stand-ins, see spelled_marks.py."""
    return set(re.findall("[\ud800-\udfff]", text))


def _tried(request: dict[str, Any]) -> dict[str, Any]:
    """Whether a tokenizer survives its files and some texts."""
    from localspec.models.tokenizer import Tokenizer

    tokenizer = Tokenizer(request["tokenizer"], Path(request["path"]), tried=True)
    special = "".join(token.content for token in list(tokenizer.added_tokens.values())[:100])
    for text in (*_SAMPLES, special, *_runs(parse_json(request["tokenizer"]["tokenizer.json"]))):
        for marks in (True, False):
            with suppress(Exception):  # a text may be one that it has no tokens for; its panics are no Exception
                ids = tokenizer.backend.encode(text, add_special_tokens=marks).ids
                tokenizer.backend.decode(ids, skip_special_tokens=marks)
    return {}


def _runs(content: dict[str, Any]) -> list[str]:
    """What its regular expressions spell out, many times in a row: where one searches without end, and panics."""
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
