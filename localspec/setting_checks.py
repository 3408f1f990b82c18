"""Checks of settings: the permitted values, and how text is parsed."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localspec.outside_files import parse_json, parse_toml

HOTTEST = 100  # the highest temperature; far below it, all tokens are already about equally likely
COLDEST = 1e-30  # lower temperatures count as this one: in fp32 every score would be infinite
_MOST = 2**63 - 1  # of whole numbers, as the history can store them
SERVER_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?(?P<path>/[\w./~%-]*)?",
    re.ASCII,
)


_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@dataclass(frozen=True)
class Check:
    """The check of one setting.

    `value` returns the checked setting, or raises ValueError with a clause about the possible values. `read` parses the
    text of a flag, a variable or `/set`; text that it cannot parse is returned unchanged. `metavar` is the name of the
    value in the help of a flag.
    """

    value: Callable[[object], Any]
    read: Callable[[str], object] = str
    metavar: str = "TEXT"


def _number(text: str) -> int | float | str:
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return text


def _word(text: str) -> bool | str:
    return _WORDS.get(text.lower(), text)


def _list(text: str) -> object:
    if not text.startswith("["):
        return [text]
    try:
        table = parse_toml(f"list = {text}".encode())
    except ValueError:
        return text
    return table["list"] if len(table) == 1 else text


def _object(text: str) -> object:
    try:
        return parse_json(text)
    except ValueError:
        return text


def _of(description: str, allowed: Callable[[Any], bool], read: Callable[[str], object] = str, **more: str) -> Check:
    """Return the check of a setting that accepts a value if `allowed` returns True."""

    def check(value: object) -> object:
        if allowed(value):
            return value
        raise ValueError(description)

    return Check(check, read, **more)


def _thinking(value: object) -> bool | None:
    # `auto` means the chat template's default, so that a flag or a variable can override a file.
    if value == "auto" or isinstance(value, bool):
        return None if value == "auto" else bool(value)
    raise ValueError("true, false or auto")


def integer(least: int) -> Check:
    """Return the check for a whole number of at least `least`."""

    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST:
            return value
        too_large = isinstance(value, int) and value > _MOST
        raise ValueError(f"a whole number from {least} to {_MOST}" if too_large else f"a whole number from {least} up")

    return Check(check, _number, "N")


def number(description: str, allowed: Callable[[float], bool]) -> Check:
    """Return the check for a number for which `allowed` returns True."""

    def check(value: object) -> float:
        # An integer beyond the range of floats would raise OverflowError.
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and allowed(value):
            return float(value)
        raise ValueError(description)

    return Check(check, _number, "N")


def one_of(*words: str) -> Check:
    """Return the check for a setting that is one of `words`."""
    return _of(
        f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words, metavar="|".join(words)
    )


def parts(*known: str) -> Check:
    """Return the check for the parts of the drafter `ouroboros`: a list of some of `known`, put in the same order."""

    def check(value: object) -> tuple[str, ...]:
        if isinstance(value, list | tuple) and all(part in known for part in value) and len({*value}) == len(value):
            if "beside" in value and "lengthening" not in value:
                raise ValueError(
                    "a list that also has `lengthening`, because `beside` works only together with `lengthening`"
                )
            return tuple(part for part in known if part in value)
        raise ValueError(f"a list of {', '.join(known)}, each at most once")

    return Check(check, _list)


def _draft_max(value: object) -> int | str:
    if value == "auto":
        return "auto"
    try:
        return int(integer(0).value(value))
    except ValueError as error:
        raise ValueError(f"auto or {error}") from None


def _keymap(value: object) -> dict[str, str]:
    # TOML reads `chat.new = "f6"` without quotation marks around the name as a nested table.
    flat: dict[str, str] = {}
    tables = [("", value)]
    for prefix, table in tables:
        if not isinstance(table, Mapping):
            raise ValueError('a table such as {"chat.new": "f6"}')
        for name, keys in table.items():
            if isinstance(keys, Mapping):
                tables.append((f"{prefix}{name}.", keys))
            elif isinstance(keys, str) and keys.strip():
                flat[f"{prefix}{name}"] = keys
            else:
                raise ValueError(
                    f'a table in which {prefix}{name} is a key such as "f6", or several separated by commas'
                )
    return flat


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(text, str) and text for text in value):
        return tuple(value)
    raise ValueError("a list of texts, none of them empty")


def _matches(pattern: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


text = _of("a text", lambda value: isinstance(value, str))
name = _of("a name", lambda value: isinstance(value, str) and bool(value.strip()))
boolean = _of("true or false", lambda value: isinstance(value, bool), _word)
device = _of("one of auto, cpu, cuda, cuda:0 (or another number), mps", _matches(r"auto|cpu|mps|cuda(:[0-9]{1,3})?"))
server = _of(
    "off, or an address such as http://localhost:8000/v1 (put a key into LOCALSPEC_SERVER_KEY)",
    _matches(f"off|{SERVER_URL.pattern}"),
    metavar="URL|off",
)
texts, thinking = Check(_texts, _list), Check(_thinking, _word)
draft_max, keymap = Check(_draft_max, _number, "N"), Check(_keymap, _object)
