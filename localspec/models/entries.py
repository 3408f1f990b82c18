"""Reads a models.toml strictly: one entry per model, with its known drafters."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from localspec.config import nearest, read_toml
from localspec.errors import UsageMistake
from localspec.families.table import ARCHITECTURES, FAMILIES
from localspec.hub.sources import Source
from localspec.models.drafter_kinds import WEIGHTS, kinds
from localspec.models.shape import TABLE_KEYS, Shape, whole
from localspec.models.thinking import WhenItThinks

PACKAGE = Path(__file__).parent.parent
DEEPEST = 64  # tokens of a draft
LARGEST = 10**12  # number in an entry; a larger one is a mistake
UNLICENSED = "not stated"  # the license of weights whose publisher states none


@dataclass(frozen=True)
class PublishedLength:
    """A published acceptance length (tokens per forward of the target), the longest draft in tokens, and the source."""

    length: float
    depth: int
    source: str


@dataclass(frozen=True)
class PublishedDrafter:
    """A known drafter for a model. A drafter without a `source` is not published; `localspec train` makes it.

    `bytes` is the size of the download. It is None if the size is unknown, or is two bytes per parameter.
    """

    kind: str
    source: Source | None = None
    parameters: int | None = None
    accepted: PublishedLength | None = None
    license: str | None = None
    publisher: str = ""
    lossless: bool = True
    bytes: int | None = None

    @property
    def download(self) -> int | None:
        """The approximate size of the download in bytes; None if unknown."""
        return self.bytes or (2 * self.parameters if self.parameters else None)  # weights in 16 bits


@dataclass(frozen=True)
class Form:
    """A further form in which a model is published: GGUF files of one type, or a copy of the publisher's weights.

    `bytes` is the size of the download, if known.
    """

    source: Source
    publisher: str = ""
    license: str | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Entry:
    """A model's entry in models.toml. The model is in a directory (`path`) or in a repository (`source`).

    `quality` ranks models; the best has the highest number. `verified` says that a pull of the model is known to have
    worked. `source` is the publisher's own form of the model; `forms` are further forms. `sha256` are the digests of
    the model's GGUF files, including every part of a split file, and `fingerprints` the fingerprints of the same files.
    `bytes` is the size of the download if `source` is GGUF files.
    """

    name: str
    path: Path | None = None
    source: Source | None = None
    license: str | None = None
    description: str = ""
    draft: str = ""
    publisher: str = ""
    quality: int = 0
    gated: bool = False
    verified: bool = False
    architecture: str | None = None
    thinking: WhenItThinks | None = None
    shape: Shape | None = None
    starters: tuple[str, ...] = ()  # prompts that it answers well
    drafters: tuple[PublishedDrafter, ...] = ()
    forms: tuple[Form, ...] = ()
    sha256: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    bytes: int | None = None

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every repository from which the model can be fetched, the publisher's own first; empty for a directory."""
        return (self.source, *(form.source for form in self.forms)) if self.source else ()

    @property
    def toy(self) -> bool:
        """Whether the model is part of the package, as a demonstration only."""
        return self.path is not None and self.path.is_relative_to(PACKAGE)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _digests(digits: int) -> Callable[[object], bool]:
    """Return a function that checks whether a value is a list of hexadecimal digests with `digits` digits each."""

    def check(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(item, str) and pattern.fullmatch(item) for item in value)

    pattern = re.compile(f"[0-9a-f]{{{digits}}}")
    return check


def _one_of(*names: str) -> tuple[Callable[[object], bool], str]:
    return lambda value: isinstance(value, str) and value in names, f"one of {', '.join(names)}"


_Keys = Mapping[str, tuple[Callable[[object], bool], str]]
_TEXT, _SWITCH = (_text, "a text"), (lambda value: isinstance(value, bool), "true or false")
_COUNT = (lambda value: whole(value) and value <= LARGEST, "a whole number from 1 up")
_LENGTH = (lambda value: type(value) in (int, float) and 1 <= value <= 100, "a number from 1 to 100")
_TABLE = (lambda value: isinstance(value, dict), "a table")
_SHAPE: _Keys = {name: _SWITCH if name == "tied" else _COUNT for name in TABLE_KEYS} | {"config": _TABLE}
_DEPTH = (lambda value: whole(value) and value <= DEEPEST, f"a whole number from 1 to {DEEPEST}")
_ACCEPTED: _Keys = {"length": _LENGTH, "depth": _DEPTH, "source": _TEXT}
_DRAFTER: _Keys = {
    "kind": _TEXT, "repo": _TEXT, "revision": _TEXT, "license": _TEXT, "publisher": _TEXT, "parameters": _COUNT,
    "bytes": _COUNT, "accepted": _TABLE, "lossless": _SWITCH,
}  # fmt: skip
_TABLES = (lambda value: isinstance(value, list) and all(isinstance(table, dict) for table in value), "tables")
_FORM: _Keys = {
    "repo": _TEXT, "revision": _TEXT, "gguf": _TEXT, "license": _TEXT, "publisher": _TEXT, "bytes": _COUNT,
}  # fmt: skip
_ENTRY: _Keys = {
    "path": _TEXT, "repo": _TEXT, "revision": _TEXT, "gguf": _TEXT, "bytes": _COUNT,
    "license": _TEXT, "description": _TEXT, "draft": _TEXT,
    "publisher": _TEXT, "quality": _COUNT, "gated": _SWITCH, "verified": _SWITCH, "shape": _TABLE,
    "architecture": _one_of(*ARCHITECTURES), "thinking": _one_of(*get_args(WhenItThinks)),
    "starters": (
        lambda value: isinstance(value, list) and 0 < len(value) <= 3 and all(map(_text, value)), "one to three texts",
    ),
    "drafters": _TABLES, "forms": _TABLES,
    "sha256": (_digests(64), "a list of SHA-256 digests, each of 64 hexadecimal digits in lower case"),
    "fingerprints": (_digests(40), "a list of fingerprints, each of 40 hexadecimal digits in lower case"),
}  # fmt: skip
_AS_THEY_ARE = (
    "license", "description", "publisher", "quality", "gated", "verified", "architecture", "thinking", "bytes",
)  # fmt: skip


def read_entries(file: Path) -> Iterator[Entry]:
    """Yield every entry of a file, in order. Raises UsageMistake for impossible entries."""
    for name, entry in read_toml(file).items():
        if not isinstance(entry, dict):
            raise UsageMistake(f"{name!r} in {file} is not a table; write [{name}] and a path below it.")
        owner, subject = f"model {name!r} in {file}", f"Model {name!r} in {file}"
        _check(entry, _ENTRY, owner)
        if ("path" in entry) == ("repo" in entry):
            if "path" in entry:
                raise UsageMistake(f"{subject} has both a path and a repo; remove one of them.")
            raise UsageMistake(
                f'{subject} has no path; give it path = "the model\'s directory", or repo = "org/name" of the hub.'
            )
        if {"sha256", "fingerprints"} & entry.keys() and "repo" not in entry:
            raise UsageMistake(
                f"{subject} has a path, for which sha256 and fingerprints have no effect; remove them, or replace "
                "the path by a repo."
            )
        if ("gguf" in entry or "bytes" in entry) and not {"gguf", "bytes", "repo"} <= entry.keys():
            raise UsageMistake(
                f"{subject} describes GGUF files only if it has repo, gguf and bytes; give all three, or leave "
                "out gguf and bytes."
            )
        if "forms" in entry and "repo" not in entry:
            raise UsageMistake(f"{subject} has the key forms but no repo; add a repo, or remove the forms.")
        path, draft, shape = None, entry.get("draft", ""), entry.get("shape")
        if "path" in entry:
            path = file.parent / os.path.expanduser(entry["path"])
            if entry["path"].startswith("package:"):
                path = PACKAGE / entry["path"].removeprefix("package:")
        if re.match(r"[.~/\\]", draft):  # a path, relative to its models.toml
            draft = os.path.normpath(file.parent / os.path.expanduser(draft))
        yield Entry(
            name=name,
            path=path,
            source=_source(entry, owner),
            draft=draft,
            starters=tuple(entry.get("starters", ())),
            shape=None if shape is None else _shape(shape, entry.get("architecture"), f"the table shape of {owner}"),
            drafters=tuple(_published(drafter, f"a drafter of {owner}") for drafter in entry.get("drafters", ())),
            forms=tuple(_form(form, f"an entry of forms of {owner}") for form in entry.get("forms", ())),
            sha256=tuple(entry.get("sha256", ())),
            fingerprints=tuple(entry.get("fingerprints", ())),
            **{key: entry[key] for key in _AS_THEY_ARE if key in entry},
        )


def _check(table: Mapping[str, Any], keys: _Keys, owner: str) -> None:
    for key, value in table.items():
        if key not in keys:
            raise UsageMistake(f"Unknown key {key!r} of {owner}{nearest(key, keys)}; correct or remove it.")
        is_valid, requirement = keys[key]
        if not is_valid(value):
            raise UsageMistake(f"{key} = {value!r} of {owner} must be {requirement}; correct it.")


def _source(table: Mapping[str, Any], owner: str) -> Source | None:
    if "repo" not in table:
        if "revision" in table:
            raise UsageMistake(f"revision = {table['revision']!r} of {owner} has no effect without a repo; remove it.")
        return None
    gguf = f":{table['gguf']}" if "gguf" in table else ""
    try:
        return Source.parse(f"{table['repo']}@{table.get('revision', 'main')}{gguf}")
    except UsageMistake:
        if gguf and re.fullmatch(r"[\w.-]+/[\w.-]+", table["repo"]):
            raise UsageMistake(
                f"gguf = {table['gguf']!r} of {owner} names no type of GGUF files, such as Q8_0."
            ) from None
        raise UsageMistake(
            f'repo = {table["repo"]!r} of {owner} names no repository; write repo = "org/name", and revision = "…" '
            "if it is not main."
        ) from None


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def _shape(table: Mapping[str, Any], architecture: str | None, owner: str) -> Shape:
    _check(table, _SHAPE, owner)
    if missing := [name for name in TABLE_KEYS if name not in table and name != "tied"]:
        raise UsageMistake(f"{_capitalised(owner)} lacks {missing[0]}; add it.")
    uniform = Shape(**{TABLE_KEYS[name]: value for name, value in table.items() if name != "config"})
    if "config" not in table:
        return uniform
    family = next((family for family in FAMILIES.values() if architecture in family.classes), None)
    shape = family and Shape.of({**uniform.config, **table["config"], "model_type": family.model_type})
    if not shape or not (shape.delta or shape.layer_sizes or shape.experts):
        raise UsageMistake(
            f"The key config of {owner} gives neither the sizes of experts nor those of layers that differ, as "
            f"the config.json of {architecture} does; correct or remove it."
        )
    return shape


def _form(table: Mapping[str, Any], owner: str) -> Form:
    _check(table, _FORM, owner)
    source = _source(table, owner)
    if source is None:
        raise UsageMistake(f'{_capitalised(owner)} lacks the key repo; add repo = "org/name".')
    return Form(source, **{key: table[key] for key in ("publisher", "license", "bytes") if key in table})


def _published(table: Mapping[str, Any], owner: str) -> PublishedDrafter:
    _check(table, _DRAFTER, owner)
    kind, allowed = table.get("kind"), sorted(kinds(*WEIGHTS, "draft model"))
    if kind not in allowed:
        guess = nearest(str(kind), allowed)
        raise UsageMistake(
            f"kind = {kind!r} of {owner} is not a kind of drafter{guess}; use one of {', '.join(allowed)}."
        )
    accepted = table.get("accepted")
    if accepted is not None:
        _check(accepted, _ACCEPTED, f"the table 'accepted' of {owner}")
        if missing := [key for key in _ACCEPTED if key not in accepted]:
            raise UsageMistake(f"The table 'accepted' of {owner} lacks {missing[0]}; add it.")
    return PublishedDrafter(
        kind=kind,
        source=_source(table, owner),
        accepted=None
        if accepted is None
        else PublishedLength(float(accepted["length"]), accepted["depth"], accepted["source"]),
        **{key: table[key] for key in ("parameters", "bytes", "license", "publisher", "lossless") if key in table},
    )
