"""`localspec rm NAME`: deletes a model, after a question."""

import os
import shlex
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

import typer

from localspec.cli.console import at_a_terminal, may_delete
from localspec.cli.store_access import store_if_any
from localspec.environment import home
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.hub.cache import Removal, forget_deleted, removable, remove
from localspec.hub.cached_gguf import CachedGguf, cached_gguf, discard_gguf
from localspec.hub.sources import Source
from localspec.models.drafter_cards import SHIPPED, drafter_directories
from localspec.models.entries import Entry
from localspec.models.names import repository_of, sources_of
from localspec.models.present import is_here
from localspec.models.registry import NOWHERE, cards, is_import, is_path, reference, renamed, resolve, save_former_names
from localspec.paths import Paths
from localspec.pulling.heads import drafter_made_of
from localspec.quantities import counted, size
from localspec.store.phrases import PoolInfo
from localspec.text import one_line
from localspec.weights import packed_file
from localspec.weights.checkpoint import is_packed
from localspec.weights.fingerprint import forget
from localspec.weights.packed_file import Header, of_same_weights, peek
from localspec.weights.packed_files import (
    files_in_use,
    import_of,
    is_gguf,
    other_source,
    packed_of,
    remove_abandoned,
    unreadable,
)

app = typer.Typer()

_SHARED = "Other programs share this cache, and would have to fetch the files again."


@app.command()
def rm(
    name: Annotated[str, typer.Argument(help="A registered name, org/repo[@revision], a directory, or a packed file.")],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask. Learned phrases stay unless you add --phrases.")
    ] = False,
    phrases: Annotated[bool, typer.Option("--phrases", help="Also delete the phrases learned from the model.")] = False,
) -> None:
    """Delete a model from this machine; files that another revision uses stay."""
    paths = Paths(home())
    remove_abandoned(paths.packed, paths.imports)
    sources = [] if is_path(name) or is_import(name) else sources_of(name, here=True)
    file = Path(os.path.abspath(os.path.expanduser(name)))
    if not sources and is_packed(file) and file in unreadable(paths):
        freed = file.stat().st_size
        if may_delete(f"{file} ({size(freed)})", yes):
            file.unlink(missing_ok=True)
            typer.echo(f"Deleted; {size(freed)} freed.")
        return
    deletion = _of_sources(name, sources, paths) if sources else _of_packed(name, paths)
    for line in deletion.lines:
        typer.echo(one_line(line))
    derived = _DerivedData.of(deletion.names, deletion.packed)
    for line in derived.lines():
        typer.echo(one_line(line))
    freed = deletion.bytes
    if not may_delete(f"{deletion.target} ({size(freed)})", yes):
        return
    deletion.run(paths)
    typer.echo(f"Deleted; {size(freed)} freed.")
    derived.delete(yes, phrases)


@dataclass(frozen=True)
class _Deletion:
    """The files to delete for a model. `target` names them in the question, and `names` are names of the model.

    `lines` tell the user which files are deleted and which stay.
    """

    target: str
    names: set[str]
    lines: list[str]
    packed: list[Path]
    removals: list[Removal] = field(default_factory=list)
    gguf: list[CachedGguf] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Return the bytes that become free."""
        files = {path for cached in self.gguf for path in cached.places}.union(map(str, self.packed))
        return sum(removal.bytes for removal in self.removals) + sum(map(os.path.getsize, files))

    def run(self, paths: Paths) -> None:
        """Delete the files, the drafters made from them, and cached facts about them."""
        for path in [*(removal.path for removal in self.removals), *self.packed]:
            forget_tokenizer(path)
        for file in self.packed:
            if header := _registration(file):
                files = header.origin.files
                forget([Path(name) for name in files], (mark for _, mark in files.values()), paths)
            file.unlink(missing_ok=True)
        for removal in self.removals:
            if drafter := drafter_made_of(removal.source, removal.commit):
                shutil.rmtree(drafter)
            remove(removal)
        for cached in self.gguf:
            discard_gguf(cached)


def _of_sources(name: str, sources: list[Source], paths: Paths) -> _Deletion:
    """Return the deletion of files fetched from these repositories (`sources`), and of their packed forms.

    Raises NotHere if there are no such files, and LocalspecError if another model is read from them.
    """
    removals, missing = [], []
    for source in sources:
        try:
            removals.append(removable(source))
        except NotHere as error:
            forget_deleted(source)
            if source == repository_of(name) and not packed_of(NOWHERE, str(source), paths) and not cached_gguf(source):
                raise  # its drafters may belong to another model too
            missing.append(error)
    packed = _packed(removals, sources, paths)
    used = files_in_use(paths, packed)
    for file in (file for removal in removals for file in removal.path.rglob("*.gguf")):
        if other := used.get(os.path.realpath(file)):
            raise LocalspecError(
                f"{other} is read from {file}, which would be deleted too; delete {other} first with `localspec rm "
                f"{shlex.quote(other)}`."
            )
    candidates = [cached for source in sources if source.gguf or not removals for cached in cached_gguf(source)]
    gguf = [cached for cached in candidates if not cached.places & used.keys()]
    if not removals and not packed and not gguf:
        raise missing[0]
    lines = [line for removal in removals for line in _removal_lines(removal, name)]
    lines += map(_packed_line, packed)
    for cached in gguf:
        names = ", ".join(file.name for file in cached.files)
        lines.append(f"{cached.source} as GGUF, {size(cached.bytes)}, in {cached.path}: {names}")
    if gguf:
        lines.append(_SHARED)
    deleted = [*(removal.source for removal in removals), *(cached.source for cached in gguf)]
    target = " and ".join(map(str, deleted)) or f"{name}, packed"
    return _Deletion(target, {name, *map(str, sources)}, lines, packed, removals, gguf)


def _of_packed(name: str, paths: Paths) -> _Deletion:
    """Return the deletion of packed files: of the file `name`, or of the packed forms of the model `name`.

    The model itself was not fetched by localspec, so it stays. Raises NotHere for a GGUF file that was not imported,
    and UsageMistake for other files and models of the user.
    """
    file = Path(os.path.expanduser(name))
    if is_gguf(file) and import_of(file, paths) is None:
        raise NotHere(
            f"{name} is a GGUF file that is not imported, so localspec has nothing to delete; delete the file yourself."
        )
    card = resolve(name)
    path, target, notes = card.path, name, list[str]()
    if is_packed(path) and path.parent not in (paths.imports, paths.packed):
        raise UsageMistake(f"{path} is not in {paths.imports}, where localspec keeps its files; delete it yourself.")
    if is_packed(path) and is_packed(file):  # a named file, or an import
        packed, target = [path], str(path)
    elif is_packed(path):
        packed = _without_others(sorted({path, *of_same_weights(path)}), [])
    else:
        packed, target = _without_others(packed_of(path, "", paths), []), f"the packed form of {name}"
        if not packed:
            raise UsageMistake(f"{name} was not fetched by `localspec pull`, so `localspec rm` cannot delete it.")
        notes.append(f"{name} itself stays, because `localspec pull` did not fetch it.")
    headers = filter(None, map(_registration, packed))
    user_files = (file for header in headers for file in header.origin.files if Path(file).exists())
    notes += (f"{file} stays; it is your own file." for file in user_files)
    return _Deletion(target, {name, card.name, reference(card)}, [*map(_packed_line, packed), *notes], packed)


def _registration(file: Path) -> Header | None:
    """Return the header of a file that registers a GGUF file; None for any other file."""
    with suppress(LocalspecError):
        header = peek(file)[0].header
        return header if header.registered else None
    return None


def _packed(removals: list[Removal], sources: list[Source], paths: Paths) -> list[Path]:
    """Return the packed files made from the fetched files `removals`, and those of `sources` without fetched files."""
    files = {file for removal in removals for file in packed_of(removal.path, str(removal.source), paths)}
    files |= {file for source in sources for file in packed_of(NOWHERE, str(source), paths)}
    return _without_others(sorted(files), [str(source) for source in sources])


def _without_others(files: list[Path], sources: list[str]) -> list[Path]:
    """Return the packed files, except those of repositories that are not in `sources`. Print the exceptions."""
    others = {file: other for file in files if (other := other_source(file, sources))}
    for file, other in others.items():
        typer.echo(one_line(f"The packed form of {other} has the same weights, and is not deleted: {file}"))
    return [file for file in files if file not in others]


def _packed_line(file: Path) -> str:
    origin = other_source(file, [])
    if header := _registration(file):
        return f"The configuration and tokenizer of {header.origin.name}, {size(file.stat().st_size)}, in {file}"
    length = size(file.stat().st_size)
    return f"The packed model of {origin}, {length}, in {file}" if origin else f"The packed model, {length}, in {file}"


def _removal_lines(removal: Removal, name: str) -> list[str]:
    source = removal.source
    lines = [f"{source} ({removal.commit[:12]}), {size(removal.bytes)}, in {removal.path}"]
    if removal.also:
        lines.append(f"Other names of the same commit are deleted too: {', '.join(removal.also)}.")
    if removal.stay:
        lines.append(f"Other revisions of the repository are not deleted: {', '.join(removal.stay)}.")
    if drafter := drafter_made_of(removal.source, removal.commit):
        lines.append(f"The drafter made from these files is deleted too: {drafter}.")
    if users := _other_models_with(source, name):
        lines.append(f"Other models that use these files: {', '.join(users)}.")
    lines.append(_SHARED)
    return lines


def _other_models_with(source: Source, name: str) -> list[str]:
    entries = {card.name: card.entry for card in cards().values() if card.entry is not None}

    def needs(entry: Entry) -> bool:
        needed = {entry.source, *(drafter.source for drafter in entry.drafters)}
        if entry.draft in entries:
            needed.add(entries[entry.draft].source)
        else:
            with suppress(UsageMistake):
                needed.add(Source.parse(entry.draft))
        return source.repo in {other.repo for other in needed if other is not None}

    return [model for model, entry in entries.items() if model != name and needs(entry)]


@dataclass(frozen=True)
class _DerivedData:
    """The data that localspec derived from a model, such as phrases. `names` are all names of the model.

    `former` maps old names of the model to present ones. `drafters` are trained drafters outside its directory.
    """

    names: set[str]
    former: dict[str, str]
    drafters: set[Path]
    answers: list[Path]
    pools: list[PoolInfo]
    conversations: int

    @classmethod
    def of(cls, names: Collection[str], files: Collection[Path]) -> Self:
        """Return the data derived from the model of these names and files. An unreadable store counts as empty."""
        present_names, names = renamed(), set(names)
        for file in files:
            with suppress(LocalspecError):
                names.add(packed_file.read(file).header.origin.name)
        drafters = set[Path]()
        for name in names:
            with suppress(LocalspecError):
                card = resolve(name)
                trained = (path for path, _ in drafter_directories(card))
                drafters |= {path for path in trained if not path.is_relative_to(card.path)}
        pools, conversations, paths = list[PoolInfo](), 0, {str(file) for file in files}
        with suppress(LocalspecError), store_if_any("phrases", raise_damage=False) as store:
            if store is not None:
                pools, conversations = (
                    [pool for pool in store.phrases.pools() if pool.model in names or pool.path in paths],
                    sum(info.model in names | paths for info in store.history.conversations()),
                )
        answers = [folder for name in names for folder in Paths(home()).answers_of(name)]
        former = {name: present_names[name] for name in names & present_names.keys()}
        return cls(
            names, former, {path for path in drafters if SHIPPED not in path.parents}, answers, pools, conversations
        )

    def lines(self) -> Iterator[str]:
        """Yield a line for the saved answers, which are deleted too, and for each trained drafter, which stays."""
        if self.answers:
            total = size(sum(map(_bytes_below, self.answers)))
            yield (
                f"The answers that the model wrote for training drafters, {total}, are deleted too, unless another "
                "form of the model stays on this machine."
            )
        for drafter in sorted(self.drafters):
            yield f"A drafter that was trained for the model is not deleted: {drafter}."

    def delete(self, yes: bool, phrases: bool) -> None:
        """Delete the answers that the model wrote for trainings, and its phrases if the user agrees; print what stays.

        If the model is still here in another form, delete and print nothing. Raises StoreTrouble.
        """
        if any(is_here(name, Paths(home())) for name in self.names):
            return
        if self.pools or self.conversations:
            with suppress(OSError):  # only the former name is lost
                save_former_names(self.former, Paths(home()))
        for folder in self.answers:
            total = _bytes_below(folder)
            shutil.rmtree(folder)
            typer.echo(f"Deleted the answers that the model wrote for training drafters ({size(total)}).")
        self._delete_phrases(yes, phrases)
        if self.conversations:
            stay = "stays" if self.conversations == 1 else "stay"
            typer.echo(
                f"{counted(self.conversations, 'conversation')} with the model {stay} until you run `localspec history "
                "rm`."
            )

    def _delete_phrases(self, yes: bool, phrases: bool) -> None:
        pools = [pool for pool in self.pools if pool.phrases]
        if not pools:
            return
        count = sum(pool.phrases for pool in pools)
        if not phrases and not yes and at_a_terminal():
            phrases = typer.confirm(f"Also delete {counted(count, 'phrase')} learned from the model?")
        if phrases:
            with store_if_any("phrases") as store:
                removed = sum(store.phrases.delete(pool.pool) for pool in pools) if store else 0
            typer.echo(f"Deleted {counted(removed, 'phrase')}.")
        else:
            commands = (f"`localspec pool clear {self.former.get(pool.model, pool.model)}`" for pool in pools)
            clear, stay = " and ".join(dict.fromkeys(commands)), "stays" if count == 1 else "stay"
            typer.echo(one_line(f"{counted(count, 'phrase')} learned from the model {stay} until you run {clear}."))


def _bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def forget_tokenizer(path: Path) -> None:
    """Delete the cached result of the self-test of a tokenizer. `path` is the model's packed file or directory."""
    from localspec.models.tokenizer_trial import forget as forget_trial  # slow to import
    from localspec.weights.checkpoint import TOKENIZER_FILES

    texts = dict[str, bytes]()
    for name in (*TOKENIZER_FILES, "config.json"):
        with suppress(LocalspecError, OSError, KeyError):
            texts[name] = packed_file.read(path).text(name) if is_packed(path) else (path / name).read_bytes()
    forget_trial(texts)
