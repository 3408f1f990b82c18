"""The settings: defaults < config.toml < LOCALSPEC_* < flags. Nothing else reads settings from the environment."""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from localspec.errors import UsageMistake
from localspec.outside_files import MIB, parse_toml, read_bytes
from localspec.paths import Paths

PREFIX = "LOCALSPEC_"
HOME = "LOCALSPEC_HOME"
ISA = "LOCALSPEC_ISA"
HOTTEST = 1e30  # temperatures from here on are none that fp32 can divide by
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
    """0 is greedy."""
    top_p: float | None = None
    """Only the likeliest tokens that together reach this probability."""
    top_k: int | None = None
    """Only this many of the likeliest tokens; 0 is all."""
    min_p: float | None = None
    """Only tokens at least this likely, relative to the likeliest."""
    seed: int | None = None
    """The same seed gives the same text (in bf16 up to its rounding); without one, a new one is chosen each time."""
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
    int8_threshold: float = 0.0
    """Activations from here on are computed in full in int8 on NVIDIA, as in the S3D paper (6.0); 0 is none, faster."""
    prefer: Literal["speed", "memory", "quality"] | None = None
    """What a model is chosen by where none is named; without it, by quality at 8 tokens/s."""
    exact: bool = False
    """Whether every forward uses the form whose rows do not depend on each other, so that text with and without
    speculation is the same bit for bit."""
    log: bool = True
    """Whether conversations and phrases are kept at all."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each value came from: default, the path of config.toml, the name of a variable, or a flag."""

    def shown(self, name: str) -> str:
        """A setting as it was written, where it was written; as a flag where that is not known."""
        value, origin = getattr(self, name), self.origins.get(name, "default")
        if origin.startswith(PREFIX):
            return f"{origin}={_shown(value)}"
        if origin == "default" or origin.startswith("--"):
            return f"--{name.replace('_', '-')} {_shown(value)}"
        return f"{name} = {_shown(value)} in {origin}"


NAMES = tuple(f.name for f in fields(Settings) if f.name != "origins")


# -- what a value may be: returns the setting, or raises ValueError with what it must be -------------------------------


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("a text")


def _name(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("a name")


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(text, str) and text for text in value):
        return tuple(value)
    raise ValueError("a list of texts, none of them empty")


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


def _integer(least: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63:
            return value
        raise ValueError(f"a whole number from {least} up")

    return check


def _number(description: str, allowed: Callable[[float], bool]) -> Callable[[object], float]:
    def check(value: object) -> float:
        # an integer beyond the floats cannot be meant, and would raise OverflowError
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and allowed(value):
            return float(value)
        raise ValueError(description)

    return check


def _one_of(*words: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ValueError(f"one of {', '.join(words)}")

    return check


def _draft_max(value: object) -> int | str:
    if value == "auto":
        return "auto"
    try:
        return _integer(0)(value)
    except ValueError:
        raise ValueError("auto or a whole number from 0 up") from None


def _parts(value: object) -> tuple[str, ...]:
    known = Settings.ouroboros
    if isinstance(value, list | tuple) and all(part in known for part in value) and len({*value}) == len(value):
        if "beside" in value and "lengthening" not in value:
            raise ValueError("a list in which beside comes with lengthening only, which makes the trees")
        return tuple(part for part in known if part in value)
    raise ValueError(f"a list of {', '.join(known)}, each of them once at most")


def _device(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", value):
        return value
    raise ValueError("one of auto, cpu, cuda, cuda:0 (or another number), mps")


_CHECKS: Mapping[str, Callable[[object], Any]] = {
    "model": _name,
    "system": _text,
    "max_tokens": _integer(1),
    "stop": _texts,
    "context": _integer(1),
    "temperature": _number("a number from 0 up, less than 1e30", lambda n: 0 <= n < HOTTEST),
    "top_p": _number("a number above 0 and at most 1", lambda n: 0 < n <= 1),
    "top_k": _integer(0),
    "min_p": _number("a number from 0 to 1", lambda n: 0 <= n <= 1),
    "seed": _integer(0),
    "drafter": _name,
    "draft_max": _draft_max,
    "draft_device": _device,
    "ouroboros": _parts,
    "accept": _one_of("exact", "rejection", "typical"),
    "pool": _one_of("user", "readonly", "off"),
    "device": _device,
    "dtype": _one_of("auto", "fp32", "fp16", "bf16"),
    "quantize": _one_of("auto", "none", "int8", "int4", "nf4"),
    "int8_threshold": _number("a number from 0 up", lambda n: n >= 0),
    "prefer": _one_of("speed", "memory", "quality"),
    "exact": _boolean,
    "log": _boolean,
}

_NUMBERS = {"max_tokens", "context", "temperature", "top_p", "top_k", "min_p", "seed", "draft_max", "int8_threshold"}
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


# -- where values come from --------------------------------------------------------------------------------------------


def home(environ: Mapping[str, str] | None = None) -> Path | None:
    """The directory that LOCALSPEC_HOME names, absolute, or None."""
    named = (os.environ if environ is None else environ).get(HOME)
    return Path(os.path.expanduser(named)).absolute() if named else None


def instruction_set(environ: Mapping[str, str] | None = None) -> str | None:
    """The instructions that LOCALSPEC_ISA asks our compiled library to use, or None for the best of this CPU."""
    return (os.environ if environ is None else environ).get(ISA) or None


def dumb_terminal(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the terminal says that it cannot move its cursor."""
    return (os.environ if environ is None else environ).get("TERM") == "dumb"


def inside_tmux(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the terminal is a window of tmux, which has a buffer of its own to copy to."""
    return bool((os.environ if environ is None else environ).get("TMUX"))


def kernel_settings(environ: Mapping[str, str] | None = None) -> list[str]:
    """The variables, NAME=value, that make torch's libraries take other kernels, and so give other last bits."""
    environ = os.environ if environ is None else environ
    names = (
        "DNNL_MAX_CPU_ISA",
        "MKL_CBWR",
        "MKL_ENABLE_INSTRUCTIONS",
        "ONEDNN_MAX_CPU_ISA",
    )
    return [f"{name}={environ[name]}" for name in names if environ.get(name)]


@dataclass(frozen=True)
class HubPlaces:
    """Where the Hugging Face client looks, by the variables that all programs with this cache share."""

    cache: Path
    """The common cache of models."""
    endpoint: str
    """The server."""
    offline: bool
    """Whether the user forbids any request."""


def hub_places(environ: Mapping[str, str] | None = None) -> HubPlaces:
    """What the client makes of these variables; it reads them once, when it is imported."""
    environ = os.environ if environ is None else environ

    def place(*names: str, default: str) -> str:
        found = next((environ[name] for name in names if environ.get(name)), default)
        return os.path.expandvars(os.path.expanduser(found))

    home = place("HF_HOME", default=os.path.join(place("XDG_CACHE_HOME", default="~/.cache"), "huggingface"))
    cache = place("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", default=os.path.join(home, "hub"))
    offline = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return HubPlaces(
        Path(cache).absolute(),
        (environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
        offline.upper() in ("1", "ON", "YES", "TRUE"),
    )


def quiet_hub(environ: MutableMapping[str, str] | None = None) -> None:
    """Switches off the Hugging Face client's telemetry, look for updates and advice on links, before it is imported.

    Files come over HTTP, where a break is resumed and every byte passes our checks; HF_HUB_DISABLE_XET=0 allows Xet.
    """
    environ = os.environ if environ is None else environ
    for name in ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_UPDATE_CHECK", "HF_HUB_DISABLE_SYMLINKS_WARNING"):
        environ[name] = "1"
    environ.setdefault("HF_HUB_DISABLE_XET", "1")


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
        if not variable.startswith(PREFIX) or variable in (HOME, ISA):
            continue
        if variable not in known:
            guess = nearest(variable, [*known, HOME, ISA])
            raise UsageMistake(f"Unknown environment variable {variable}{guess}; correct or unset it.")
        if value:
            name = known[variable]
            take(name, _from_text(name, value), variable, f"{variable}={_shown(value)}", "correct or unset it")
    for name, value in (flags or {}).items():
        if value is not None and value != []:
            flag = "--no-log" if name == "log" else "--" + name.replace("_", "-")
            take(name, value, flag, f"{flag} {_shown(value)}", "give another value")
    return Settings(**values, origins=origins)


def _from_text(name: str, text: str) -> object:
    """A variable's value in the type of its setting; else the text itself, which is then refused."""
    if _CHECKS[name] in (_texts, _parts):
        if not text.startswith("["):
            return [text]
        try:
            found = parse_toml(f"list = {text}".encode())
        except ValueError:
            return text
        return found["list"] if len(found) == 1 else text
    if _CHECKS[name] is _boolean:
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
        line = source.count(b"\n", 0, error.start) + 1
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
    found = get_close_matches(name.lower().replace("-", "_"), spelled, n=1)
    return f" (did you mean {spelled[found[0]]!r}?)" if found else ""


def _shown(value: object) -> str:
    """A value as the user wrote it, cut short."""
    shown = str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    return shown if len(shown) <= 80 else shown[:79] + "…"
