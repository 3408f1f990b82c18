"""Finds models by name, in models.toml and in the user's own file, and describes each by a `TargetCard`."""

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from localspec.config import nearest
from localspec.environment import home
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.hub.cache import find_snapshot, pulled_sources
from localspec.hub.records import folder, packed_sources
from localspec.hub.sources import Source
from localspec.models.entries import PACKAGE, Entry, read_entries
from localspec.outside_files import parse_json, read_bytes
from localspec.paths import Paths, private_directory, write_anew
from localspec.published_heads import kind_of_heads
from localspec.weights import packed_file
from localspec.weights.checkpoint import PICKLED_INDEX, Checkpoint, inspect, is_packed, license_of, read_config
from localspec.weights.fingerprint import digest_of, fingerprints, identified, reread
from localspec.weights.packed_file import PackedFile, Progress
from localspec.weights.packed_files import begins_as_gguf, damaged_of, import_of, imports, is_gguf

WEIGHTS = "model.safetensors"
NOWHERE = Path("not fetched")  # in place of the directory of a model that is not here


@dataclass(frozen=True)
class TargetCard:
    """A model: its name, and its place on this machine now or after a pull."""

    name: str
    path: Path
    license: str | None
    description: str
    draft: str = ""  # the name or directory of a small model with its tokenizer, if one is known
    entry: Entry | None = None  # its entry in models.toml; None for a directory
    imported_as: str = ""  # the name in its packed file, if this model was imported

    @property
    def here(self) -> bool:
        """Whether any of the model's files are on this machine; `inspect` says which are missing."""
        return self.entry is None or self.entry.source is None or self.path.exists()

    @property
    def names(self) -> str:
        """The model's repository, if known, and its name, as one text in which the family's name can be found."""
        source = self.entry.source if self.entry else None
        return f"{source.repo} {self.name}" if source else self.name


def cards(paths: Paths | None = None) -> dict[str, TargetCard]:
    """Return every registered model by name, fetched or not, and all imported models.

    The user's own entries replace entries of the same name. If an entry lists the GGUF files of an imported model, the
    entry uses these files. Any other imported model has the name in its packed file.

    Raises UsageMistake for an invalid entry.
    """
    paths = paths or Paths(home())
    packed, users = packed_sources(paths), {entry.name: entry for entry in read_entries(paths.user_models_file)}
    entries = {entry.name: entry for entry in _shipped_entries()} | users
    registered = {entry.name: _card(entry, paths, packed) for entry in entries.values()}
    imported = imports(paths)
    listed = _listed_imports(imported, registered, paths)
    for name, file in listed.items():
        if not (card := registered[name]).here:
            terms = card.license or license_of(file.path)
            registered[name] = replace(card, path=file.path, license=terms, imported_as=file.header.origin.name)
    others: dict[str, TargetCard] = {}
    for name, file in imported.items():
        if name not in users and file not in listed.values():
            entry = Entry(name, path=file.path)
            others[name] = TargetCard(name, file.path, license_of(file.path), "", entry=entry, imported_as=name)
    return {**others, **registered, **others}  # others come first, and replace shipped entries of the same name


def _listed_imports(
    imported: Mapping[str, PackedFile], registered: Mapping[str, TargetCard], paths: Paths
) -> dict[str, PackedFile]:
    """Return imported models by name: the name of the registered entry that lists their GGUF files.

    Of several imports for one entry, the import with the entry's name is preferred, and then the first one. Imports
    with other names are left out if files of the entry itself are here.
    """
    entries = {name: card.entry for name, card in registered.items() if card.entry}
    by_digest_only = any(len(entry.sha256) > len(entry.fingerprints) for entry in entries.values())
    digests = {digest: name for name, entry in entries.items() for digest in (*entry.sha256, *entry.fingerprints)}
    listed: dict[str, PackedFile] = {}
    for import_name, file in imported.items():
        marks = [digest for _, digest in file.header.origin.files.values()]
        names = {digests.get(mark, "") for mark in marks}
        if names == {""} and by_digest_only:
            names = {digests.get(digest_of(mark, paths), "") for mark in marks}
        name = names.pop() if len(names) == 1 else ""
        if name and (import_name == name or not (registered[name].here or name in imported)):
            listed.setdefault(name, file)
    return listed


def listed_as(digests: Collection[str], paths: Paths) -> str:
    """Return the name of the entry that lists the GGUF files with these digests; "" if no entry lists all of them.

    The result is also "" if the entry's model is here. `digests` is a result of `file_digests`.
    """
    for name, card in cards(paths).items():
        if card.entry and digests and set(digests) <= {*card.entry.sha256, *card.entry.fingerprints}:
            return "" if card.here else name
    return ""


def file_digests(files: Sequence[Path], paths: Paths, progress: Progress = lambda done, total: None) -> dict[str, str]:
    """Return the identifiers of GGUF files by their names: SHA-256 digests if known, else fingerprints.

    The files are read for their SHA-256 only if one of the user's own entries lists digests and no fingerprints for
    them. Raises LocalspecError for a file that cannot be read.
    """
    identifiers = {name: digest for name, (_, digest) in identified(files, paths).items()}
    entries = [card.entry for card in cards(paths).values() if card.entry]
    by_digest_only = [entry for entry in entries if len(entry.sha256) > len(entry.fingerprints)]
    if not by_digest_only or listed_as(identifiers.values(), paths):
        return identifiers
    marks = {name: mark for name, (_, mark) in fingerprints(files).items()}
    digests = {name: digest_of(mark, paths) for name, mark in marks.items()}
    if not all(digests.values()):
        digests = {name: reading.digest for name, reading in reread(files, marks, paths, progress).items()}
    return digests if listed_as(digests.values(), paths) else identifiers


def find(name: str, paths: Paths | None = None) -> TargetCard | None:
    """Return the model with this present or former name; None if there is none."""
    models = cards(paths)
    return models.get(name) or models.get(_renamed(models, paths).get(name, ""))


def renamed(paths: Paths | None = None) -> dict[str, str]:
    """Return the present names of models by their former names, which conversations and phrases may contain."""
    return _renamed(cards(paths), paths)


def _renamed(models: Mapping[str, TargetCard], paths: Paths | None) -> dict[str, str]:
    names = former_names(paths or Paths(home())) | {card.imported_as: card.name for card in models.values()}
    return {former: name for former, name in names.items() if former and former not in models and name in models}


@cache
def _shipped_entries() -> tuple[Entry, ...]:
    """Return the entries of models.toml, which is read only once, because reading takes most of `resolve`'s time."""
    file = PACKAGE / "models.toml"
    if not file.exists():  # a source tree: the wheel has it inside the package
        file = PACKAGE.parent / "models.toml"
    return tuple(read_entries(file))


def known(paths: Paths | None = None) -> dict[str, TargetCard]:
    """Return every registered model by name, and every other pulled model by the name of its repository."""
    paths = paths or Paths(home())
    registered = cards(paths)
    entries = [card.entry for card in registered.values() if card.entry]
    listed = {
        source for entry in entries for source in (*entry.sources, *(drafter.source for drafter in entry.drafters))
    }
    repos = {source.repo for source in listed if source and not source.gguf}
    packed = packed_sources(paths)
    pulled = [source for source in pulled_sources(paths) if _is_model(source, paths)]
    names = dict.fromkeys([*map(str, pulled), *packed])
    others = (
        source
        for source in map(Source.parse, names)
        if source not in listed and (source.gguf or source.repo not in repos)
    )
    return {**registered, **{str(source): _card(Entry(str(source), source=source), paths, packed) for source in others}}


def split_of(source: Source, paths: Paths | None = None) -> Path:
    """Return the directory of a target that `localspec pull` extracts from pickles with a target and Medusa heads."""
    return (paths or Paths(home())).drafters / folder(source) / "target"


def _is_model(source: Source, paths: Paths) -> bool:
    """Return whether a fetched repository has a model, and not only heads that draft for another model."""
    path = _unpickled(source, paths)
    if path is None or not any((path / name).is_file() for name in (WEIGHTS, f"{WEIGHTS}.index.json")):
        return False
    with suppress(LocalspecError):  # a damaged model is listed; naming it reports the error
        return kind_of_heads(read_config(path)) is None
    return True


def _unpickled(source: Source, paths: Paths) -> Path | None:
    """Return the directory of a fetched repository, or of the target extracted from its pickles; None if not here."""
    path = find_snapshot(source, paths)
    if path is None or not (path / PICKLED_INDEX).is_file():
        return path
    split = split_of(source, paths)
    return split if (split / "config.json").is_file() else path


def _card(entry: Entry, paths: Paths, packed: Mapping[str, PackedFile]) -> TargetCard:
    places = (_place(source, paths, packed) for source in entry.sources)
    path = entry.path or next(filter(None, places), NOWHERE / entry.name)
    return TargetCard(entry.name, path, entry.license or license_of(path), entry.description, entry.draft, entry)


def _place(source: Source, paths: Paths, packed: Mapping[str, PackedFile]) -> Path | None:
    """Return the directory of a fetched model, or its packed file if it has no directory; None if it is not here."""
    file = packed.get(str(source))
    return _unpickled(source, paths) or (file.path if file else None)


def source_here(entry: Entry) -> Source | None:
    """Return the repository from which a registered model was fetched, the publisher's own before others; None if no
    form of the model is here."""
    packed = packed_sources(paths := Paths(home()))
    return next((source for source in entry.sources if _place(source, paths, packed)), None)


def named_card(name: str, paths: Paths | None = None) -> TargetCard:
    """Return the model as `resolve` does, but accept a registered model that is not here."""
    return find(name, paths) or resolve(name, paths)


def resolve(name: str, paths: Paths | None = None) -> TargetCard:
    """Return the model that `name` means: a registered model, or a local directory. Raises NotHere if there is none."""
    paths = paths or Paths(home())
    if card := find(name, paths):
        if is_gguf(card.path):
            raise NotHere(
                f"{name} has the path {card.path}, but a GGUF file must be imported: `localspec import "
                f"{shlex.quote(str(card.path))}`; then it needs no entry."
            )
        if not card.here:
            refuse_damaged(name, paths)
            raise NotHere(f"{card.name} is not here; fetch it with `localspec pull {card.name}`.")
        return card
    if card := _at_path(name, paths):
        return card
    refuse_damaged(name, paths)
    if name.lower().endswith(".gguf"):
        raise NotHere(f"There is no file {name!r}; give a GGUF file that is on this machine, or org/repo:TYPE.")
    registered = cards(paths)
    names = [card.name for card in registered.values() if card.here]
    here, guess = ", ".join(names), nearest(name, names) or nearest(name, registered)
    if name.startswith((".", "/", "~")) or "\\" in name:
        raise NotHere(
            f"There is no directory {name!r}; give one in the Hugging Face layout, or the name of a model here: {here}."
        )
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?(:[\w.-]+)?", name):
        source = Source.parse(name)
        if path := _place(source, paths, packed_sources(paths)):
            return TargetCard(str(source), path, license_of(path), "", entry=Entry(str(source), source=source))
        raise NotHere(f"{name!r} is neither a directory nor fetched; fetch it with `localspec pull {name}`.")
    raise NotHere(
        f"There is no model {name!r}{guess}; give a local directory, or the name of a model here: "
        f"{here}. `localspec doctor` lists models that you can fetch."
    )


def _at_path(name: str, paths: Paths) -> TargetCard | None:
    """Return the model in a directory, a packed file or an imported GGUF file; None if nothing has this path.

    Raises NotHere or UsageMistake for any other file, and LocalspecError for a name that is not UTF-8.
    """
    if not name or "\0" in name:
        return None
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if path.parent == paths.packed and not path.exists():
        path = paths.imports / path.name  # a conversation may have saved the path of the file before it was moved
    if os.path.isdir(path):
        if not (path / "config.json").exists() and (path / "target" / "config.json").exists():
            path = path / "target"  # a directory of `train`, whose drafter changed its target
        if re.search("[\ud800-\udfff]", str(path)):
            raise LocalspecError(f"The name of {name!r} is not UTF-8, so weights there cannot be read; rename it.")
        return TargetCard(name, path, license_of(path), "")
    if is_packed(path):
        return TargetCard(packed_file.read(path).header.origin.name, path, license_of(path), "")
    if is_gguf(path):
        if (imported := import_of(path, paths)) is None:
            raise NotHere(
                f"{name} is a GGUF file that changed, or was never imported; import it with `localspec import "
                f"{shlex.quote(name)}`."
            )
        origin = imported.header.origin
        card = find(origin.name, paths)
        if card and card.path == imported.path:
            return card
        return TargetCard(origin.name, imported.path, origin.license, "")
    if not os.path.lexists(path):
        return None
    if begins_as_gguf(path):
        raise NotHere(
            f"{name} is a GGUF file, although its name does not say so; import it with `localspec import "
            f"{shlex.quote(name)}`."
        )
    if not path.is_file() and path.exists():
        raise not_regular(path)
    raise NotHere(f"{name!r} is not a directory; give the directory in the Hugging Face layout that holds config.json.")


def refuse_damaged(name: str, paths: Paths | None = None) -> None:
    """Raise LocalspecError if a damaged packed file may be the model of this name."""
    if name and (file := damaged_of(name, paths or Paths(home()))):
        raise LocalspecError(
            f"{name} is not on this machine, or is in the damaged file {file}. Delete that file with `localspec rm "
            f"{shlex.quote(str(file))}`, then import the model's GGUF file or pull the model again."
        )


def not_regular(file: Path) -> UsageMistake:
    """Return the error for a directory, a pipe or a device in place of a GGUF file."""
    path, kind = str(file), "a directory" if file.is_dir() else "not a regular file"
    return UsageMistake(f"{path!r} is {kind}; give a GGUF file.")


def is_import(name: str) -> bool:
    """Return whether a name belongs to a model that was imported from GGUF files and is not here in another form."""
    card = find(name)
    return card is not None and bool(card.imported_as)


def is_path(name: str) -> bool:
    """Return whether a name is the path of a directory, a packed file or a GGUF file, and not a registered name."""
    path = os.path.expanduser(name)
    file = "\0" not in name and (is_packed(Path(path)) or is_gguf(Path(path)))
    return name not in cards() and "\0" not in name and (file or os.path.isdir(path))


def could_be_here(name: str) -> bool:
    """Return whether `name`, a result of `reference`, is a path or registered. Other names are a server's models."""
    return os.path.isabs(name) or find(name) is not None


def reference(card: TargetCard) -> str:
    """Return the name by which `resolve` finds this model from any directory: its name, or its absolute path.

    Conversations and phrases are saved under this name. So for an imported model it is the name given at the import,
    even if an entry with another name lists the model's file now.
    """
    return str(card.path) if card.entry is None else card.imported_as or card.name


def installed(paths: Paths | None = None) -> Iterator[tuple[TargetCard, Checkpoint | LocalspecError]]:
    """Yield every named model on this machine with a description of its files, or the error that prevents its use."""
    for card in (card for card in known(paths).values() if card.here):
        try:
            yield card, inspect(card.path)
        except LocalspecError as error:
            yield card, error


def former_names(paths: Paths) -> dict[str, str]:
    """Return the saved present name for each former name of a model; {} if the file of these names cannot be read."""
    try:
        saved = parse_json(read_bytes(paths.former_names))
    except (OSError, ValueError):
        return {}
    pairs = saved.items() if isinstance(saved, dict) else ()
    return {former: name for former, name in pairs if isinstance(former, str) and isinstance(name, str)}


def save_former_names(names: Mapping[str, str], paths: Paths) -> None:
    """Save `names`, present names by former names, in addition to the saved pairs. Raises OSError."""
    if names.items() <= (saved := former_names(paths)).items():
        return
    private_directory(paths.former_names.parent)
    write_anew(paths.former_names, json.dumps({**saved, **names}).encode() + b"\n")
