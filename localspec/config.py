"""The settings: a flag overrides a LOCALSPEC_* variable, which overrides config.toml, which overrides the default.

No other file reads settings from the environment.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from localspec import setting_checks as checks
from localspec.environment import HOME, ISA, REAL_MODELS, SERVE_KEY, SERVER_KEY, home
from localspec.errors import UsageMistake
from localspec.outside_files import MIB, parse_toml, read_bytes
from localspec.paths import Paths, private_directory, write_anew
from localspec.setting_checks import HOTTEST, Check
from localspec.text import shortened

PREFIX = "LOCALSPEC_"
_NO_SETTINGS = (HOME, ISA, SERVE_KEY, SERVER_KEY, REAL_MODELS)  # variables with the prefix that are not settings
TYPED = "/set"  # the origin of values typed in a chat
SIMILAR = 0.7  # of 1, between a mistyped name and its correction; a lower value suggests `race` for `create`
LONGEST_SHOWN = 80  # characters of a value in a sentence about it
_LONGEST = 4 * MIB  # bytes of a file that is written by hand

Rule = Literal["exact", "rejection", "typical"]


@dataclass(frozen=True)
class SettingRow:
    """A row of the table of settings: all properties of one setting.

    `help` is displayed with the flag, and `flags` are its other spellings. `loads` says whether the setting affects how
    an engine is loaded; if so, a server with another value cannot answer. `per_reply` says whether `/set` changes it.
    """

    check: Check
    help: str
    flags: tuple[str, ...] = ()
    loads: bool = False
    per_reply: bool = False


def _row(default: Any, check: Check, help: str, *flags: str, **more: Any) -> Any:  # noqa: A002
    return field(default=default, metadata={"row": SettingRow(check, help, flags, **more)})


_PARTS = ("accelerating", "lengthening", "beside", "verification", "history")


@dataclass(frozen=True)
class Settings:
    """The settings of one command. `None` leaves a value to the model.

    Each field is a row of the table of settings, from which flags, variables, `/set` and their checks are made.
    """

    model: str | None = _row(None, checks.name, "A name, a directory in the Hugging Face layout, or a GGUF file.", "-m")
    system: str | None = _row(None, checks.text, "System prompt.", "-s")
    temperature: float | None = _row(
        None,
        checks.number(f"a number from 0 to {HOTTEST}, such as 0.7", lambda n: 0 <= n <= HOTTEST),
        "0 always picks the likeliest token; at most 100.",
        "--temp",
        per_reply=True,
    )
    top_p: float | None = _row(
        None,
        checks.number("a number above 0 and at most 1", lambda n: 0 < n <= 1),
        "Pick only from the likeliest tokens, as many as reach this sum of probabilities.",
        per_reply=True,
    )
    top_k: int | None = _row(
        None, checks.integer(0), "Pick only from this many of the likeliest tokens; 0 means from all.", per_reply=True
    )
    min_p: float | None = _row(
        None,
        checks.number("a number from 0 to 1", lambda n: 0 <= n <= 1),
        "Pick only tokens whose probability is at least this share of the likeliest token's.",
        per_reply=True,
    )
    max_tokens: int | None = _row(None, checks.integer(1), "The longest reply, in tokens.", "-n", per_reply=True)
    seed: int | None = _row(
        None, checks.integer(0), "The same seed gives the same text (bit for bit with --exact).", per_reply=True
    )
    think: bool | None = _row(
        None, checks.thinking, "Whether the model thinks before it answers, if this can be switched."
    )
    stop: tuple[str, ...] = _row((), checks.texts, "Text that ends the reply; repeatable.")
    context: int | None = _row(None, checks.integer(1), "Tokens of prompt and reply together.", loads=True)
    drafter: str = _row(
        "auto",
        checks.name,
        "What drafts: auto, none, a directory, or kinds joined by +: phrases, lookahead, layers, medusa, semi, "
        "parallelspec, s3d, eagle3, dflash, dspark, assistant, mtp, draft_model, ouroboros; `draft_model:MODEL` names "
        "the small model.",
        loads=True,
    )
    draft_max: int | Literal["auto"] = _row(
        "auto", checks.draft_max, "Drafted tokens per step (nodes of the draft tree), or auto.", loads=True
    )
    drafter_rule: Literal["auto", "memory", "speed"] = _row(
        "auto",
        checks.one_of("auto", "memory", "speed"),
        "How `auto` chooses a drafter. speed: the fastest; memory: the best M (speedup ÷ memory); auto: the best M if "
        "memory is short, otherwise the fastest.",
        loads=True,
    )
    draft_device: str = _row(
        "auto", checks.device, "Where a draft model runs; auto means on the model's device.", loads=True
    )
    ouroboros: tuple[str, ...] = _row(_PARTS, checks.parts(*_PARTS), "How `ouroboros` uses phrases.", loads=True)
    accept: Literal["exact", "rejection", "typical"] = _row(
        "exact",
        checks.one_of("exact", "rejection", "typical"),
        "How drafts are accepted; rejection keeps the probabilities but not a seed's text, typical changes the text.",
        loads=True,
    )
    pool: Literal["user", "readonly", "off"] = _row(
        "user",
        checks.one_of("user", "readonly", "off"),
        "Saved phrases: learn and use, only use, or neither.",
        loads=True,
    )
    device: str = _row("auto", checks.device, "Where to compute: auto, cpu, cuda, cuda:1, mps.", loads=True)
    dtype: Literal["auto", "fp32", "fp16", "bf16"] = _row(
        "auto", checks.one_of("auto", "fp32", "fp16", "bf16"), "Number format of the weights.", loads=True
    )
    quantize: Literal["auto", "none", "int8", "int4", "nf4"] = _row(
        "auto", checks.one_of("auto", "none", "int8", "int4", "nf4"), "How the weights are packed.", loads=True
    )
    threads: int | None = _row(None, checks.integer(1), "Use at most this many cores of the CPU.", loads=True)
    int8_threshold: float = _row(
        0.0,
        checks.number("a number from 0 up", lambda n: n >= 0),
        "In int8 on NVIDIA GPUs, activations of this size or more stay in full precision (6.0 in the S3D paper); with "
        "0 none do.",
        loads=True,
    )
    prefer: Literal["speed", "memory", "quality"] | None = _row(
        None,
        checks.one_of("speed", "memory", "quality"),
        "How to choose a model; by default quality among models of 20 tokens/s or more.",
    )
    exact: bool = _row(
        False,
        checks.boolean,
        "Write the same text with and without speculation, bit for bit. Replies may become slower.",
        loads=True,
    )
    server: str | None = _row(None, checks.server, "OpenAI-compatible server that answers; off for none.")
    log: bool = _row(True, checks.boolean, "Save conversations and phrases.", loads=True)
    theme: str = _row("auto", checks.name, "Colours of the chat; auto follows the terminal's background.")
    keymap: Mapping[str, str] = field(
        default_factory=dict, metadata={"row": SettingRow(checks.keymap, "Keys of the chat, by action.")}
    )
    origins: Mapping[str, str] = field(default_factory=dict)
    """The source of each value: default, the path of config.toml, the name of a variable, or a flag."""

    @property
    def elsewhere(self) -> str | None:
        """The address of the server that answers; None if a model in this process answers."""
        return None if self.server == "off" else self.server

    @property
    def plain(self) -> bool:
        """Whether plain decoding was requested."""
        return self.drafter == "none" or self.draft_max == 0

    def by_flag(self, name: str) -> bool:
        """Return whether a flag set this value."""
        return self.origins.get(name, "").startswith("--")

    def shown(self, name: str) -> str:
        """Return a setting as its origin writes it: `VARIABLE=value`, `name = value in FILE` or `--name value`."""
        value, origin = getattr(self, name), self.origins.get(name, "default")
        if origin.startswith(PREFIX):
            return f"{origin}={_shown(value)}"
        if origin == TYPED:
            setting = name.replace("_", "-")
            return f"{origin} {setting} {_shown(value)}"
        if origin == "default" or origin.startswith("--"):
            return f"--{name.replace('_', '-')} {_shown(value)}"
        return f"{name} = {_shown(value)} in {origin}"

    def is_set_outside(self, name: str) -> bool:
        """Return whether a setting comes from a variable or a file, so that the user may have forgotten it."""
        origin = self.origins.get(name, "default")
        return origin not in ("default", TYPED) and not origin.startswith("--")


TABLE: Mapping[str, SettingRow] = {f.name: f.metadata["row"] for f in fields(Settings) if f.name != "origins"}
NAMES = tuple(TABLE)
LOADED_BY = tuple(name for name, row in TABLE.items() if row.loads)
SAMPLING = tuple(name for name, row in TABLE.items() if row.per_reply)


# -- origins of values -------------------------------------------------------------------------------------------------


def load(
    paths: Paths | None = None, environ: Mapping[str, str] = os.environ, flags: Mapping[str, object] | None = None
) -> Settings:
    """Return the merged settings.

    A flag that is None (or an empty list) was not given; an empty variable counts as unset.

    Raises UsageMistake for an unknown name or an invalid value. The message names the source.
    """
    paths = paths or Paths(home(environ))
    values: dict[str, Any] = {}  # each of them checked
    origins = dict.fromkeys(NAMES, "default")

    def take(name: str, value: object, origin: str, shown: str, remedy: str) -> None:
        try:
            values[name] = TABLE[name].check.value(value)
        except ValueError as error:
            raise UsageMistake(f"{shown} must be {error}; {remedy}.") from None
        origins[name] = origin

    file = paths.config_file
    for name, value in read_toml(file).items():
        if name not in NAMES:
            raise UsageMistake(f"Unknown setting {name!r} in {file}{nearest(name, NAMES)}; correct or remove it.")
        take(name, value, str(file), f"{name} = {_shown(value)} in {file}", "correct or remove it")
    variables = {PREFIX + name.upper(): name for name in NAMES}
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _NO_SETTINGS:
            continue
        if variable not in variables:
            guess = nearest(variable, [*variables, *_NO_SETTINGS])
            raise UsageMistake(f"Unknown environment variable {variable}{guess}; correct or unset it.")
        if value:
            name = variables[variable]
            take(name, TABLE[name].check.read(value), variable, f"{variable}={_shown(value)}", "correct or unset it")
    for name, value in (flags or {}).items():
        if value is not None and value != []:
            flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            take(name, value, flag, f"{flag} {_shown(value)}", "give another value")
    return Settings(**values, origins=origins)


def changed(settings: Settings, name: str, text: str) -> Settings:
    """Return the settings with one value changed, as it was typed in a chat. Raises UsageMistake."""
    raw = TABLE[name].check.read(text)
    try:
        value = TABLE[name].check.value(raw)
    except ValueError as error:
        # 1e999 is read as infinity
        typed = shortened(text.strip(), LONGEST_SHOWN) if isinstance(raw, int | float) else _shown(raw)
        setting = name.replace("_", "-")
        raise UsageMistake(f"{TYPED} {setting} {typed} must be {error}; give another value.") from None
    return replace(settings, **{name: value}, origins={**settings.origins, name: TYPED})


def restored(values: Mapping[str, object], origins: Mapping[str, str]) -> Settings:
    """Return settings sent by another process of this version. Raises ValueError and KeyError for invalid settings."""
    checked: dict[str, Any] = {
        name: None if value is None else TABLE[name].check.value(value) for name, value in values.items()
    }
    return Settings(**checked, origins={name: str(origins[name]) for name in NAMES})


def narrowed(settings: Settings, device: str, dtype: str, quantize: str) -> Settings:
    """Return the settings with another device, dtype and packing (`quantize`). Raises ValueError for an invalid value.

    The packing "blocks" is GGUF's own format, and no value of a setting. Then `dtype` and `quantize` become `auto`,
    which keeps this format.
    """
    if quantize == "blocks":
        dtype = quantize = "auto"
    changes = {"device": device, "dtype": dtype, "quantize": quantize}
    return replace(settings, **{name: TABLE[name].check.value(value) for name, value in changes.items()})


def read_toml(file: Path) -> dict[str, object]:
    """Return the content of a user's TOML file; empty if there is none.

    Raises UsageMistake, which names the file and the line.
    """
    try:
        source = read_bytes(file, _LONGEST)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageMistake(f"{file} cannot be read ({error.strerror}); check its permissions, or remove it.") from None
    try:
        return parse_toml(source)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageMistake(f"{file}, line {line}: this is not UTF-8 text; save the file as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(r" \(at line (\d+), column \d+\)", message)
        line = int(place[1]) if place else source.count(b"\n") + 1  # "at end of document"
        problem = re.sub(r" \(at .*\)$", "", message)
        raise UsageMistake(f"{file}, line {line}: this is not TOML ({problem}); correct the line.") from None
    except ValueError as error:  # digits that Python does not convert, or nesting that is too deep
        raise UsageMistake(
            f"{file} cannot be read ({error}); remove the value that is too long or nested too deeply."
        ) from None


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ' (did you mean …?)' with the most similar of `names`, or an empty text."""
    spelled = {known.lower().replace("-", "_"): known for known in names}
    wanted = name.lower().replace("-", "_")
    # The same letters in another order, or one begins with the other.
    sure = [
        spelling
        for spelling in spelled
        if (min(len(wanted), len(spelling)) > 2 and (spelling.startswith(wanted) or wanted.startswith(spelling)))
        or (len(wanted) > 1 and sorted(wanted) == sorted(spelling))
    ]
    hits = get_close_matches(wanted, sure, n=1, cutoff=0.0) or get_close_matches(wanted, spelled, n=1, cutoff=SIMILAR)
    return f" (did you mean {spelled[hits[0]]!r}?)" if hits else ""


def _shown(value: object) -> str:
    """Return a value as the user wrote it, shortened. User info in an address is left out, because it may be a key."""
    if isinstance(value, str):
        value = re.sub(r"(?<=://)[^/]*@", "…@", value)
    shown = str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    return shortened(shown, LONGEST_SHOWN)


_TABLE = re.compile(r"\s*\[")


def keep_setting(file: Path, name: str, value: str) -> None:
    """Set `name` to the text `value` in a file, atomically. Only the owner can read the file. If the file is a link,
    the link's target is written.

    Raises UsageMistake if the file is invalid, cannot be edited safely, or cannot be written.
    """
    old = read_toml(file)
    if old.get(name) == value:
        return
    new = {**old, name: value}
    try:
        text = file.read_bytes().decode("utf-8-sig") if file.exists() else ""
        edited = None
        for attempt in _attempts(text, name, value):
            with suppress(ValueError):
                if parse_toml(attempt.encode()) == new:
                    edited = attempt
                    break
        if edited is None:
            line = f"{name} = {json.dumps(value, ensure_ascii=False)}"
            raise UsageMistake(f"{file} has a layout that localspec does not edit: add {line} yourself.")
        target = Path(os.path.realpath(file))
        private_directory(target.parent)
        write_anew(target, edited.encode())
    except OSError as error:
        raise UsageMistake(
            f"{file} cannot be written ({error.strerror}); check its permissions, then try again."
        ) from None


def _attempts(text: str, name: str, value: str) -> Iterator[str]:
    """Yield possible texts of the edited file: first with an existing value replaced, then with a new line added.

    A line that looks like the setting may be inside a multi-line string. So the caller parses each text, and takes the
    first that changes only the setting.
    """
    line, end = f"{name} = {json.dumps(value, ensure_ascii=False)}", "\r\n" if "\r\n" in text else "\n"
    key = re.compile(
        rf"""(?m)^([ \t]*(?:{name}|"{name}"|'{name}')[ \t]*=[ \t]*)("[^"\r\n]*"|'[^'\r\n]*'|[^\s#"'\[{{]+)"""
    )
    for match in key.finditer(text):
        yield text[: match.start(2)] + json.dumps(value, ensure_ascii=False) + text[match.end(2) :]
    lines = text.splitlines(keepends=True)
    tables = [at for at, row in enumerate(lines) if _TABLE.match(row)]
    for table in (*tables, len(lines)):
        at = table
        while at and (not lines[at - 1].strip() or (table < len(lines) and lines[at - 1].lstrip().startswith("#"))):
            at -= 1  # a comment before a table belongs to it
        above = "".join(lines[:at])
        yield above + (end if above and not above.endswith("\n") else "") + line + end + "".join(lines[at:])
