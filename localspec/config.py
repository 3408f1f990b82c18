"""The settings: defaults < config.toml < LOCALSPEC_* < flags. Nothing else reads settings from the environment."""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from localspec import setting_checks
from localspec.environment import HOME, ISA, REAL_MODELS, SERVE_KEY, SERVER_KEY, home
from localspec.errors import UsageMistake
from localspec.outside_files import MIB, parse_json, parse_toml, read_bytes
from localspec.paths import Paths

PREFIX = "LOCALSPEC_"
_NO_SETTINGS = (HOME, ISA, SERVE_KEY, SERVER_KEY, REAL_MODELS)  # though they begin so
TYPED = "/set"  # the origin of what was typed in a chat
SIMILAR = 0.7  # of 1, between a mistyped name and what was meant; less suggests `race` for `create`
LONGEST_SHOWN = 80  # characters of a value in a sentence about it
_LONGEST = 4 * MIB  # bytes of a file that a person writes by hand

Rule = Literal["exact", "rejection", "typical"]


@dataclass(frozen=True)
class Settings:
    """What one command works with. `None` leaves the value to the model."""

    model: str | None = None
    """A registered name or a directory in the Hugging Face layout."""
    system: str | None = None
    """The system prompt."""
    max_tokens: int | None = None
    """The longest reply, in tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply; they are not part of it."""
    context: int | None = None
    """Tokens of prompt and reply together."""
    temperature: float | None = None
    """0 is greedy, 100 the most."""
    top_p: float | None = None
    """Only the likeliest tokens that together reach this probability."""
    top_k: int | None = None
    """Only this many of the likeliest tokens; 0 is all."""
    min_p: float | None = None
    """Only tokens at least this likely, relative to the likeliest."""
    seed: int | None = None
    """The same seed gives the same text (in bf16 up to its rounding); without one, a new one is chosen each time."""
    think: bool | None = None
    """Whether the model thinks before it answers, where its chat template has a switch for that."""
    drafter: str = "auto"
    """auto, none, or a kind of drafter."""
    draft_max: int | Literal["auto"] = "auto"
    """Nodes of a draft tree, the root not counted; auto is by measurement."""
    draft_device: str = "auto"
    """Where a draft model computes; auto is where the model does."""
    ouroboros: tuple[str, ...] = ("accelerating", "lengthening", "beside", "verification", "history")
    """What the drafter `ouroboros` makes of phrases; any of these may be left out."""
    accept: Rule = "exact"
    """How a draft is accepted: the target's own picks; by rejection, which keeps its distribution but not the text of a
    seed; or typical, which is not lossless."""
    pool: Literal["user", "readonly", "off"] = "user"
    """The phrases kept on disk: learn and use, only use, neither."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:0 and so on, or mps."""
    dtype: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    """The number format of the weights."""
    quantize: Literal["auto", "none", "int8", "int4", "nf4"] = "auto"
    """How the weights are packed."""
    threads: int | None = None
    """The most cores that models compute with on a CPU; without it, all that this process may use."""
    int8_threshold: float = 0.0
    """Activations from here on are computed in full in int8 on NVIDIA, as in the S3D paper (6.0); 0 is none, faster."""
    prefer: Literal["speed", "memory", "quality"] | None = None
    """What a model is chosen by where none is named; without it, by quality at 8 tokens/s."""
    exact: bool = False
    """Whether every forward uses the form whose rows do not depend on each other, so that text with and without
    speculation is the same bit for bit."""
    server: str | None = None
    """The address of a server that answers in place of a model in this process; off is none."""
    log: bool = True
    """Whether conversations and phrases are kept at all."""
    theme: str = "auto"
    """The colours of the chat, by name; auto is light or dark after the terminal's background."""
    keymap: Mapping[str, str] = field(default_factory=dict)
    """Other keys for what the chat does: by its name, one key or several with commas between."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each value came from: default, the path of config.toml, the name of a variable, or a flag."""

    @property
    def elsewhere(self) -> str | None:
        """The address of the server that answers; None where a model in this process does."""
        return None if self.server == "off" else self.server

    @property
    def plain(self) -> bool:
        """Whether plain decoding was asked for."""
        return self.drafter == "none" or self.draft_max == 0

    def shown(self, name: str) -> str:
        """A setting as it was written, where it was written; as a flag where that is not known."""
        value, origin = getattr(self, name), self.origins.get(name, "default")
        if origin.startswith(PREFIX):
            return f"{origin}={_shown(value)}"
        if origin == TYPED:
            return f"{origin} {name.replace('_', '-')} {_shown(value)}"
        if origin == "default" or origin.startswith("--"):
            return f"--{name.replace('_', '-')} {_shown(value)}"
        return f"{name} = {_shown(value)} in {origin}"


NAMES = tuple(f.name for f in fields(Settings) if f.name != "origins")
# What an engine is loaded by: where it differs from that of a server, a command loads one of its own.
LOADED_BY = (
    "context", "drafter", "draft_max", "draft_device", "ouroboros", "accept", "exact", "pool", "device", "dtype",
    "quantize", "threads", "int8_threshold", "log",
)  # fmt: skip
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed")  # what may change from reply to reply


_CHECKS: Mapping[str, Callable[[object], Any]] = {
    "model": setting_checks.name,
    "system": setting_checks.text,
    "max_tokens": setting_checks.integer(1),
    "stop": setting_checks.texts,
    "context": setting_checks.integer(1),
    "temperature": setting_checks.number(
        f"a number from 0 to {setting_checks.HOTTEST}, such as 0.7", lambda n: 0 <= n <= setting_checks.HOTTEST
    ),
    "top_p": setting_checks.number("a number above 0 and at most 1", lambda n: 0 < n <= 1),
    "top_k": setting_checks.integer(0),
    "min_p": setting_checks.number("a number from 0 to 1", lambda n: 0 <= n <= 1),
    "seed": setting_checks.integer(0),
    "think": setting_checks.thinking,
    "drafter": setting_checks.name,
    "draft_max": setting_checks.draft_max,
    "draft_device": setting_checks.device,
    "ouroboros": setting_checks.parts(*Settings.ouroboros),
    "accept": setting_checks.one_of("exact", "rejection", "typical"),
    "pool": setting_checks.one_of("user", "readonly", "off"),
    "device": setting_checks.device,
    "dtype": setting_checks.one_of("auto", "fp32", "fp16", "bf16"),
    "quantize": setting_checks.one_of("auto", "none", "int8", "int4", "nf4"),
    "threads": setting_checks.integer(1),
    "int8_threshold": setting_checks.number("a number from 0 up", lambda n: n >= 0),
    "prefer": setting_checks.one_of("speed", "memory", "quality"),
    "exact": setting_checks.boolean,
    "server": setting_checks.server,
    "log": setting_checks.boolean,
    "theme": setting_checks.name,
    "keymap": setting_checks.keymap,
}

_LISTS = {"stop", "ouroboros"}
_NUMBERS = {
    "max_tokens",
    "context",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "draft_max",
    "threads",
    "int8_threshold",
}
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


# -- where values come from --------------------------------------------------------------------------------------------


def load(
    paths: Paths | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> Settings:
    """The merged settings. A flag that is None (or an empty list) was not given; an empty variable counts as unset.

    Raises UsageMistake for an unknown name or a value that cannot be meant, saying where it came from.
    """
    environ = os.environ if environ is None else environ
    paths = paths or Paths(home(environ))
    values: dict[str, Any] = {}  # each of them checked
    origins = dict.fromkeys(NAMES, "default")

    def take(name: str, value: object, origin: str, shown: str, remedy: str) -> None:
        try:
            values[name] = _CHECKS[name](value)
        except ValueError as error:
            raise UsageMistake(f"{shown} must be {error}; {remedy}.") from None
        origins[name] = origin

    file = paths.config_file
    for name, value in read_toml(file).items():
        if name not in NAMES:
            raise UsageMistake(f"Unknown setting {name!r} in {file}{nearest(name, NAMES)}; correct or remove it.")
        take(name, value, str(file), f"{name} = {_shown(value)} in {file}", "correct or remove it")
    known = {PREFIX + name.upper(): name for name in NAMES}
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _NO_SETTINGS:
            continue
        if variable not in known:
            guess = nearest(variable, [*known, *_NO_SETTINGS])
            raise UsageMistake(f"Unknown environment variable {variable}{guess}; correct or unset it.")
        if value:
            name = known[variable]
            take(name, _from_text(name, value), variable, f"{variable}={_shown(value)}", "correct or unset it")
    for name, value in (flags or {}).items():
        if value is not None and value != []:
            flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            take(name, value, flag, f"{flag} {_shown(value)}", "give another value")
    return Settings(**values, origins=origins)


def changed(settings: Settings, name: str, text: str) -> Settings:
    """The settings with this value of one of them, as it was typed in a chat. Raises UsageMistake."""
    given = _from_text(name, text)
    try:
        value = _CHECKS[name](given)
    except ValueError as error:
        shown = f"{TYPED} {name.replace('_', '-')} {_as_typed(given, text)}"
        raise UsageMistake(f"{shown} must be {error}; give another value.") from None
    return replace(settings, **{name: value}, origins={**settings.origins, name: TYPED})


def restored(values: Mapping[str, object], origins: Mapping[str, str]) -> Settings:
    """Settings as another process of this version told them. Raises ValueError, KeyError for what cannot be meant."""
    found: dict[str, Any] = {name: None if value is None else _CHECKS[name](value) for name, value in values.items()}
    return Settings(**found, origins={name: str(origins[name]) for name in NAMES})


def _from_text(name: str, text: str) -> object:
    """A variable's value in the type of its setting; else the text itself, which is then refused."""
    if name in _LISTS:
        if not text.startswith("["):
            return [text]
        try:
            found = parse_toml(f"list = {text}".encode())
        except ValueError:
            return text
        return found["list"] if len(found) == 1 else text
    if name == "keymap":
        try:
            return parse_json(text)
        except ValueError:
            return text
    if _CHECKS[name] in (setting_checks.boolean, setting_checks.thinking):
        return _WORDS.get(text.lower(), text)
    if name in _NUMBERS:
        for number_type in (int, float):
            try:
                return number_type(text)
            except ValueError:
                continue
    return text


def narrowed(settings: Settings, device: str, dtype: str, quantize: str) -> Settings:
    """The settings with this device and this precision. Raises ValueError for a value that none of them can have."""
    found = {"device": device, "dtype": dtype, "quantize": quantize}
    return replace(settings, **{name: _CHECKS[name](value) for name, value in found.items()})


def read_toml(file: Path) -> dict[str, object]:
    """The content of a user's TOML file; empty if there is none. Raises UsageMistake naming the file and the line."""
    try:
        source = read_bytes(file, _LONGEST)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageMistake(f"{file} cannot be read ({error.strerror}); correct its permissions or remove it.") from None
    try:
        return parse_toml(source)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageMistake(f"{file}, line {line}: this is not UTF-8 text; save the file as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(r" \(at line (\d+), column \d+\)", message)
        line = int(place[1]) if place else source.count(b"\n") + 1  # "at end of document"
        what = re.sub(r" \(at .*\)$", "", message)
        raise UsageMistake(f"{file}, line {line}: this is not TOML ({what}); correct the line.") from None
    except ValueError as error:  # digits that Python does not convert, or more depth than it can follow
        raise UsageMistake(f"{file} cannot be read ({error}); make it simpler.") from None


def nearest(name: str, names: Iterable[str]) -> str:
    """' (did you mean …?)' with the most similar of `names`, or nothing."""
    spelled = {known.lower().replace("-", "_"): known for known in names}
    wanted = name.lower().replace("-", "_")
    sure = [one for one in spelled if _surely_meant(wanted, one)]
    found = get_close_matches(wanted, sure, n=1, cutoff=0.0) or get_close_matches(wanted, spelled, n=1, cutoff=SIMILAR)
    return f" (did you mean {spelled[found[0]]!r}?)" if found else ""


def _surely_meant(wanted: str, name: str) -> bool:
    """Return whether a name has the same letters in another order, or one of the two begins with the other."""
    begins = min(len(wanted), len(name)) > 2 and (name.startswith(wanted) or wanted.startswith(name))
    return begins or (len(wanted) > 1 and sorted(wanted) == sorted(name))


def _as_typed(value: object, text: str) -> str:
    """A value that was read from a text: a number as it stood there, for 1e999 is read as infinity."""
    return _cut_short(text.strip()) if isinstance(value, int | float) else _shown(value)


def _shown(value: object) -> str:
    """A value as the user wrote it, cut short, and without what stands before the host of an address: perhaps a key."""
    if isinstance(value, str):
        value = re.sub(r"(?<=://)[^/]*@", "…@", value)
    return _cut_short(
        str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    )


def _cut_short(shown: str) -> str:
    return shown if len(shown) <= LONGEST_SHOWN else shown[: LONGEST_SHOWN - 1] + "…"
