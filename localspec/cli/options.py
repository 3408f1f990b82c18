"""Options that several commands have."""

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from localspec import config
from localspec.chat.attachments import joined
from localspec.cli.texts import conversation_id, file_named, read_file, valid_text
from localspec.config import Settings
from localspec.errors import UsageMistake


def number(*names: str, help: str) -> Any:  # noqa: A002
    """An option whose value the settings check: their sentence names it, which typer's own does not."""

    def read(text: str) -> int | float | str:
        for number_type in (int, float):
            with suppress(ValueError):
                return number_type(text)
        return text

    return typer.Option(*names, parser=read, metavar="N", help=help)


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


Model = Annotated[
    str | None, typer.Option("--model", "-m", help="A name, a directory in the Hugging Face layout, or a GGUF file.")
]
Context = Annotated[int | None, number("--context", help="Tokens of prompt and reply together.")]
Drafter = Annotated[
    str | None, typer.Option("--drafter", help="auto, none, phrases, KIND[+KIND][+phrases], or a directory.")
]
DraftMax = Annotated[str | None, number("--draft-max", help="Nodes of a draft tree, or auto.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="auto, fp32, fp16, bf16.")]
Quantize = Annotated[str | None, typer.Option("--quantize", help="auto, none, int8, int4, nf4.")]
Threads = Annotated[int | None, number("--threads", help="Cores to compute with, at most; on CPUs.")]
Accept = Annotated[
    str | None, typer.Option("--accept", help="exact, rejection (a seed's text changes), typical (not lossless).")
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Text with and without speculation the same bit for bit; may cost speed.")
]
Pool = Annotated[str | None, typer.Option("--pool", help="Phrases kept on disk: user (learn and use), readonly, off.")]


Server = Annotated[
    str | None, typer.Option("--server", metavar="URL|off", help="Let that OpenAI-compatible server answer; off: none.")
]
# What a server has decided already.
_OF_THIS_PROCESS = (
    "context", "drafter", "draft_max", "accept", "exact", "pool", "device", "dtype", "quantize", "threads",
)  # fmt: skip


@dataclass(frozen=True)
class SharedFlags:
    """What the flags say that `run` and `chat` share."""

    settings: Settings
    files: str  # their texts
    resume: int | Literal["last"] | None  # which conversation to go on with

    def with_model(self, name: str) -> "SharedFlags":
        """Return the same flags with `-m NAME`."""
        origins = {**self.settings.origins, "model": "--model"}
        return replace(self, settings=replace(self.settings, model=name, origins=origins))


def load_settings(flags: Mapping[str, Any]) -> Settings:
    """The settings with these flags, for a command that computes in this process: it has no more threads than they say.

    Raises what `config.load` does, and UsageMistake for more threads than there are cores.
    """
    settings = config.load(flags=flags)
    if settings.threads is not None:
        from localspec.machine.hardware import limit_cores

        limit_cores(settings.threads)
    return settings


def takes_shared_flags(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command the flags that `run` and `chat` share, after its own; it gets them as its argument `flags`."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    shared = inspect.signature(_shared_flags, eval_str=True).parameters.values()
    parameters = [*(parameter for parameter in own if parameter.name != "flags"), *shared]

    def with_shared(**values: Any) -> int:
        given = {parameter.name: values.pop(parameter.name) for parameter in shared}
        return command(flags=_shared_flags(**given), **values)

    wrapped: Any = wraps(command)(with_shared)
    del wrapped.__wrapped__  # typer would look through it
    wrapped.__signature__ = inspect.Signature(parameters)
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return cast(Callable[..., int], wrapped)


def _shared_flags(
    model: Model = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="System prompt.")] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", parser=file_named, metavar="FILE", help="Text put before the prompt; repeatable."),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Continue the last conversation; `run` its own.")
    ] = False,
    conversation: Annotated[
        int | None,
        typer.Option(
            "--conversation",
            parser=lambda text: conversation_id(text, "`localspec history list`"),
            metavar="ID",
            help="Go on with this one; see localspec history.",
        ),
    ] = None,
    max_tokens: Annotated[int | None, number("--max-tokens", "-n", help="The longest reply, in tokens.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Text that ends the reply; repeatable.")
    ] = None,
    context: Context = None,
    temperature: Annotated[float | None, number("--temperature", "--temp", help="0 is greedy, 100 the most.")] = None,
    top_p: Annotated[
        float | None, number("--top-p", help="Only the likeliest tokens that reach this together.")
    ] = None,
    top_k: Annotated[int | None, number("--top-k", help="Only so many of the likeliest tokens.")] = None,
    min_p: Annotated[
        float | None, number("--min-p", help="Only tokens this likely, relative to the likeliest.")
    ] = None,
    seed: Annotated[
        int | None, number("--seed", help="The same seed gives the same text (bit for bit with --exact).")
    ] = None,
    think: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="Think before answering, or not, where the model can be told."),
    ] = None,
    drafter: Drafter = None,
    no_spec: Annotated[bool, typer.Option("--no-spec", help="Plain decoding: --drafter none.")] = False,
    draft_max: DraftMax = None,
    accept: Accept = None,
    exact: Exact = False,
    pool: Pool = None,
    device: Device = None,
    dtype: Dtype = None,
    quantize: Quantize = None,
    threads: Threads = None,
    server: Server = None,
    no_log: Annotated[bool, typer.Option("--no-log", help="Keep neither conversation nor phrases.")] = False,
) -> SharedFlags:
    if no_spec and drafter not in (None, "none"):
        raise UsageMistake(f"--no-spec and --drafter {drafter} contradict each other; give one of them.")
    if go_on and conversation is not None:
        raise UsageMistake(f"--continue and --conversation {conversation} exclude each other; give one of them.")
    settings = load_settings(
        {
            "model": model, "system": system, "max_tokens": max_tokens, "stop": stop, "context": context,
            "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed,
            "think": think, "drafter": "none" if no_spec else drafter,
            "draft_max": draft_max, "accept": accept, "exact": exact or None, "pool": pool,
            "device": device, "dtype": dtype, "quantize": quantize, "threads": threads, "server": server,
            "log": False if no_log else None,
        }
    )  # fmt: skip
    if settings.elsewhere is not None:
        _refuse_without_effect(settings, "--no-spec" if no_spec else "--drafter")
    if pool in ("user", "readonly") and settings.plain:
        raise UsageMistake(f"--pool {pool} has no effect without a drafter; leave it out.")
    if settings.system is not None:
        settings = replace(settings, system=valid_text(settings.system))
    return SharedFlags(settings, joined(*map(read_file, file or [])), "last" if go_on else conversation)


def _refuse_without_effect(settings: Settings, drafter: str) -> None:
    """Raises UsageMistake for a flag that means nothing where a server answers; `drafter` is how that one was given.

    What a file or a variable says of them is meant for models of this process, and waits for one.
    """
    for name in _OF_THIS_PROCESS:
        if settings.origins[name].startswith("--"):
            raise no_effect(drafter if name == "drafter" else settings.origins[name], settings)


def no_effect(flag: str, settings: Settings) -> UsageMistake:
    """What is wrong with a flag where the server of these settings answers."""
    return UsageMistake(
        f"{flag} has no effect where a server answers ({settings.shown('server')}), which decides that itself; "
        "leave it out, or give --server off."
    )
