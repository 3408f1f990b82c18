"""Options that several commands have."""

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import typer

from localspec import config
from localspec import setting_checks as checks
from localspec.chat.attachments import joined
from localspec.cli.texts import conversation_id, file_named, read_file, valid_text
from localspec.config import LOADED_BY, TABLE, Settings
from localspec.errors import UsageMistake

T = TypeVar("T")


def whole_number(*names: str, help: str, metavar: str = "N", least: int = 1, most: float = math.inf) -> Any:  # noqa: A002
    """Return an option whose value is a whole number in this range."""

    def read(value: str | int) -> int:
        limit = "a whole number"
        with suppress(ValueError):
            if least <= (number := int(value)) <= most:
                return number
            limit = f"{least} or more" if number < least else f"{most} or less"
        shown = ascii(value) if limit == "a whole number" else value
        raise typer.BadParameter(f"{shown} must be {limit}; give another value.")

    return typer.Option(*names, parser=read, metavar=metavar, help=help)


@dataclass(frozen=True)
class SharedFlags:
    """The flags that `run` and `chat` share."""

    settings: Settings
    files: str  # the text of files
    resume: int | Literal["last"] | None  # the conversation to continue

    def with_model(self, name: str) -> "SharedFlags":
        """Return the same flags with `-m NAME`."""
        origins = {**self.settings.origins, "model": "--model"}
        return replace(self, settings=replace(self.settings, model=name, origins=origins))


def load_settings(flags: Mapping[str, Any]) -> Settings:
    """Return the settings with these flags, for a command that computes on this machine. Limit this process to the
    threads in the settings.

    Raises the errors of `config.load`, and UsageMistake for more threads than there are cores.
    """
    settings = config.load(flags=flags)
    if settings.threads is not None:
        from localspec.machine.hardware import limit_cores

        limit_cores(settings.threads, settings.shown("threads"))
    return settings


def takes_settings(*names: str, **helps: str | tuple[str, str]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator that replaces a command's argument `settings` by a flag for each setting in `names`.

    `helps` has other help for some flags: a text, or a pair of the displayed values and a text. The command gets the
    result of `load_settings` for the flags.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        flags = [_flag(name, helps.get(name, TABLE[name].help)) for name in names]
        return _with_flags(command, "settings", flags, lambda **values: load_settings(values))

    return decorate


def takes_shared_flags(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the flags that `run` and `chat` share, in place of its argument `flags`."""
    shared = inspect.signature(_shared_flags).parameters.values()
    return _with_flags(command, "flags", list(shared), _shared_flags)


def _with_flags(
    command: Callable[..., T], name: str, flags: list[inspect.Parameter], build: Callable[..., object]
) -> Callable[..., T]:
    """Return a command that has flags in place of its argument `name`. `build` makes the argument from the flags."""
    originals = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [flag for parameter in originals for flag in (flags if parameter.name == name else [parameter])]

    def with_flags(**values: Any) -> T:
        flag_values = {flag.name: values.pop(flag.name) for flag in flags}
        return command(**{name: build(**flag_values)}, **values)

    wrapped: Any = wraps(command)(with_flags)
    del wrapped.__wrapped__  # typer would follow it
    keyword = inspect.Parameter.KEYWORD_ONLY  # keyword parameters may have any order
    wrapped.__signature__ = inspect.Signature([parameter.replace(kind=keyword) for parameter in parameters])
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return cast("Callable[..., T]", wrapped)


def _flag(name: str, help: str | tuple[str, str]) -> inspect.Parameter:  # noqa: A002
    """Return the flag of a setting. An omitted flag has the value None; `config.load` checks other values."""
    row, spelled = TABLE[name], f"--{name.replace('_', '-')}"
    values: Any = str | None
    shown, help = (row.check.metavar, help) if isinstance(help, str) else help  # noqa: A001
    extra: dict[str, Any] = {"metavar": shown}
    if row.check in (checks.boolean, checks.thinking):
        values, spelled, extra = bool | None, f"{spelled}/--no-{spelled[2:]}", {}
    elif row.check is checks.texts:
        values = list[str] | None
    elif row.check.metavar == "N":
        extra["parser"] = row.check.read
    option = typer.Option(spelled, *row.flags, help=help, show_default=False, **extra)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[values, option])


@takes_settings(
    "model", "system", "max_tokens", "stop", "context", "temperature", "top_p", "top_k", "min_p", "seed", "think",
    "drafter", "draft_max", "drafter_rule", "accept", "exact", "pool", "device", "dtype", "quantize", "threads",
    "server", "log",
)  # fmt: skip
def _shared_flags(
    *,
    settings: Settings,
    no_spec: Annotated[bool, typer.Option("--no-spec", help="Plain decoding: --drafter none.")] = False,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            "-f",
            parser=file_named,
            metavar="FILE",
            help="A file whose text goes before the prompt; repeatable.",
        ),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Continue the last chat; in `run`, the last `run`.")
    ] = False,
    conversation: Annotated[
        int | None,
        typer.Option(
            "--conversation",
            parser=lambda text: conversation_id(text, "`localspec history list`"),
            metavar="ID",
            help="Continue this conversation; see `localspec history list`.",
        ),
    ] = None,
) -> SharedFlags:
    if no_spec:
        if settings.by_flag("drafter") and settings.drafter != "none":
            raise UsageMistake(f"--no-spec and --drafter {settings.drafter} contradict each other; give one of them.")
        settings = replace(settings, drafter="none", origins={**settings.origins, "drafter": "--no-spec"})
    refuse_rule_without_effect(settings)
    if go_on and conversation is not None:
        raise UsageMistake(f"--continue and --conversation {conversation} exclude each other; give one of them.")
    # A value from a file or a variable is meant for models in this process.
    names = [name for name in LOADED_BY if settings.by_flag(name) and name != "log"]
    if settings.elsewhere is not None and names:
        raise no_effect(settings.origins[names[0]], settings)
    if settings.by_flag("pool") and settings.pool != "off" and settings.plain:
        raise UsageMistake(f"--pool {settings.pool} has no effect without a drafter; leave it out.")
    if settings.system is not None:
        settings = replace(settings, system=valid_text(settings.system))
    return SharedFlags(settings, joined(*map(read_file, file or [])), "last" if go_on else conversation)


def refuse_rule_without_effect(settings: Settings) -> None:
    """Raise UsageMistake if `--drafter-rule` has no effect because other settings name the drafter or forbid drafts."""
    name = "draft_max" if settings.draft_max == 0 else "drafter"
    if settings.by_flag("drafter_rule") and (settings.drafter != "auto" or settings.draft_max == 0):
        other = settings.shown(name)
        if settings.by_flag(name):
            flag = settings.origins[name]
            other = flag if flag == "--no-spec" else f"{flag} {getattr(settings, name)}"
        raise UsageMistake(
            f"--drafter-rule {settings.drafter_rule} has no effect with {other}, because it tells `auto` how to "
            "choose a drafter; leave one of them out."
        )


def no_effect(flag: str, settings: Settings) -> UsageMistake:
    """Return the error for a flag that has no effect because the server in these settings answers."""
    return UsageMistake(
        f"{flag} has no effect when a server answers ({settings.shown('server')}), because the server decides that; "
        "leave it out, or give --server off."
    )
