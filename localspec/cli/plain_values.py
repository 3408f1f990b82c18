"""Values of flags that are text, or that a function of ours reads, without Pydantic, whose import takes its time."""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from typer import BadParameter, core
from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param

_WORDS = {
    r"valid integer": "a whole number",
    r"valid number": "a number",
    r"greater than or equal to (\S+)": "{0} or more",
    r"less than or equal to (\S+)": "{0} or less",
}


@dataclass(frozen=True)
class _PlainParam(RuntimeParam):
    """What typer does, where that is little; it does the rest itself, and says what is wrong."""

    descriptor: TypeDescriptor

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        info = self.parameter_info
        if info.parser is not None:
            if isinstance(value, str):
                with suppress(ValueError):
                    return info.parser(value)
        elif self.annotation == list[str] and isinstance(value, list | tuple):
            return list(value)
        elif type(value) is self.annotation and isinstance(value, str | int | float) and info.min is info.max is None:
            return value
        try:
            return build_runtime_param(self.descriptor)._coerce_value(value, param=param, ctx=ctx)
        except BadParameter as wrong:
            raise BadParameter(_in_words(wrong.message, value), ctx=ctx, param=param) from None


def _in_words(message: str, value: Any) -> str:
    """Pydantic's sentence as one of ours, with the value."""
    for pattern, words in _WORDS.items():
        if found := re.search(pattern, message):
            shown = ascii(value) if isinstance(value, str) else value
            return f"{shown} must be {words.format(*found.groups())}; give another value."
    return message


def _plain_param(descriptor: TypeDescriptor) -> RuntimeParam:
    return _PlainParam(descriptor.parameter_info, descriptor.annotation, descriptor)


def install() -> None:
    """From here on typer reads values in this way."""
    core.build_runtime_param = _plain_param  # type: ignore[attr-defined]
