"""Values of flags that are text, or that a function of ours reads, without Pydantic, whose import takes its time."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from typer import core
from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param


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
        return build_runtime_param(self.descriptor)._coerce_value(value, param=param, ctx=ctx)


def _plain_param(descriptor: TypeDescriptor) -> RuntimeParam:
    return _PlainParam(descriptor.parameter_info, descriptor.annotation, descriptor)


def install() -> None:
    """From here on typer reads values in this way."""
    core.build_runtime_param = _plain_param  # type: ignore[attr-defined]
