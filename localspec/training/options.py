"""Reads the options of a trained drafter from the command line."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from localspec.drafters.saved import drafter_class
from localspec.errors import UsageMistake

SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def parse_options(kind: str, words: Sequence[str]) -> dict[str, Any]:
    """Return options of the form NAME=VALUE, each in its own type. Raises UsageMistake."""
    types = {option.name: type(option.default) for option in fields(drafter_class(kind).Options)}
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageMistake(f"--option {word!r} is not of the form NAME=VALUE; {kind} has {', '.join(types)}.")
        if name in found:
            raise UsageMistake(f"--option {name} is given twice; give it once.")
        found[name] = _value(types.get(name, str), value)
    return found


def _value(type_: type, text: str) -> Any:
    """Return a text converted to this type. If that fails, return it unchanged: `make_drafter` reports the error."""
    if type_ is bool:
        return SWITCHES.get(text.lower(), text)
    try:
        return type_(text) if type_ in (int, float) else text
    except ValueError:
        return text
