"""`localspec rm NAME`: deletes a model, after a question."""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from localspec.cli.console import at_a_terminal, may_delete
from localspec.cli.store_access import store_if_any
from localspec.environment import home
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.hub.cache import Removal, forget_deleted, removable, remove
from localspec.hub.cached_gguf import cached_gguf, discard_gguf
from localspec.hub.sources import Source
from localspec.models.drafter_cards import trained_drafters
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
        bool, typer.Option("--yes", "-y", help="Do not ask. Phrases stay unless --phrases is given.")
    ] = False,
    phrases: Annotated[bool, typer.Option("--phrases", help="Also delete the phrases learned from the model.")] = False,
) -> None:
    """Delete a model from this machine; files that another revision uses stay."""
    paths = Paths(home())
    remove_abandoned(paths.packed, paths.imports)
    sources = [] if is_path(name) or is_import(name) else sources_of(name, here=True)
    if not sources:
        _remove_packed(name, paths, yes, phrases)
        return
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
    for removal in removals:
        if read := [file for file in removal.path.rglob("*.gguf") if os.path.realpath(file) in used]:
            other = used[os.path.realpath(read[0])]
            raise LocalspecError(
                f"{other} is read from {read[0]}, which would be deleted too; delete {other} first with `localspec rm "
                f"{other}`."
            )
    found = [one for source in sources if source.gguf or not removals for one in cached_gguf(source)]
    left = [one for one in found if not one.places & used.keys()]
    if not removals and not packed and not left:
        raise missing[0]
    for removal in removals:
        for line in _removal_lines(removal, name):
            typer.echo(one_line(line))
    for file in packed:
        typer.echo(one_line(_packed_line(file)))
    for one in left:
        names = ", ".join(file.name for file in one.files)
        typer.echo(one_line(f"{one.source} as GGUF, {size(one.bytes)}, in {one.path}: {names}"))
    if left:
        typer.echo(_SHARED)
    contents = {place for one in left for place in one.places}
    freed = sum(removal.bytes for removal in removals) + sum(map(os.path.getsize, contents))
    freed += sum(file.stat().st_size for file in packed)
    gone = [*(removal.source for removal in removals), *(one.source for one in left)]
    what = " and ".join(map(str, gone)) or f"{name}, packed"
    if not may_delete(f"{what} ({size(freed)})", yes):
        return
    with _deleting_derived_data({name, *map(str, sources)}, packed, yes, phrases):
        for path in [*(removal.path for removal in removals), *packed]:
            forget_tokenizer(path)
        for file in packed:
            file.unlink(missing_ok=True)
        for removal in removals:
            if drafter := drafter_made_of(removal.source, removal.commit):
                shutil.rmtree(drafter)
            remove(removal)
        for one in left:
            discard_gguf(one)
        typer.echo(f"Deleted; {size(freed)} freed.")


def _remove_packed(name: str, paths: Paths, yes: bool, phrases: bool) -> None:
    """Delete a named packed file, or the packed forms of a model that was not fetched. The model itself stays."""
    if is_gguf(file := Path(os.path.expanduser(name))) and import_of(file, paths) is None:
        raise NotHere(
            f"{name} is a GGUF file that is not imported, so localspec has nothing to delete; delete the file yourself."
        )
    given = Path(os.path.abspath(os.path.expanduser(name)))
    if is_packed(given) and given in unreadable(paths):
        freed = given.stat().st_size
        if may_delete(f"{given} ({size(freed)})", yes):
            given.unlink(missing_ok=True)
            typer.echo(f"Deleted; {size(freed)} freed.")
        return
    card = resolve(name)
    path = card.path
    if is_packed(path):
        if path.parent not in (paths.imports, paths.packed):
            raise UsageMistake(
                f"{path} is not in {paths.imports}, where localspec keeps its files; delete it yourself."
            )
        whole = is_packed(Path(os.path.expanduser(name)))  # a named file, or an import
        every = [path] if whole else _without_others(sorted({path, *of_same_weights(path)}), [])
        mine, what = every, str(path) if whole else name
    else:
        mine, what = _without_others(packed_of(path, "", paths), []), f"the packed form of {name}"
        if not mine:
            raise UsageMistake(f"{name} was not fetched by `localspec pull`, so `localspec rm` cannot delete it.")
    for file in mine:
        typer.echo(one_line(_packed_line(file)))
    if not is_packed(path):
        typer.echo(one_line(f"{name} itself stays, because `localspec pull` did not fetch it."))
    for stays in (name for file in mine if (header := _registration(file)) for name in header.origin.files):
        if Path(stays).exists():
            typer.echo(one_line(f"{stays} stays; it is your own file."))
    freed = sum(file.stat().st_size for file in mine)
    if not may_delete(f"{what} ({size(freed)})", yes):
        return
    with _deleting_derived_data({name, card.name, reference(card)}, mine, yes, phrases):
        for file in mine:
            forget_tokenizer(file)
            if registered := _registration(file):
                originals = registered.origin.files
                forget([Path(name) for name in originals], (mark for _, mark in originals.values()), paths)
            file.unlink(missing_ok=True)
        typer.echo(f"Deleted; {size(freed)} freed.")


def _registration(file: Path) -> Header | None:
    """Return the header of a file that registers a GGUF file; None for any other file."""
    with suppress(LocalspecError):
        header = peek(file)[0].header
        return header if header.registered else None
    return None


def _packed(removals: list[Removal], sources: list[Source], paths: Paths) -> list[Path]:
    """Return the packed files of the removed models, and of repositories with only packed files here."""
    found = {file for removal in removals for file in packed_of(removal.path, str(removal.source), paths)}
    found |= {file for source in sources for file in packed_of(NOWHERE, str(source), paths)}
    return _without_others(sorted(found), [str(source) for source in sources])


def _without_others(files: list[Path], sources: list[str]) -> list[Path]:
    """Return the packed files, except files pulled from a repository that is not in `sources`; print the exceptions."""
    others = {file: other for file in files if (other := other_source(file, sources))}
    for file, other in others.items():
        typer.echo(one_line(f"{other}, packed, has the same weights and stays: {file}"))
    return [file for file in files if file not in others]


def _packed_line(file: Path) -> str:
    of = other_source(file, [])
    if header := _registration(file):
        return f"The registration of {header.origin.name}, {size(file.stat().st_size)}, in {file}"
    return f"Packed{f', of {of}' if of else ''}, {size(file.stat().st_size)}, in {file}"


def _removal_lines(removal: Removal, name: str) -> list[str]:
    source = removal.source
    lines = [f"{source} ({removal.commit[:12]}), {size(removal.bytes)}, in {removal.path}"]
    if removal.also:
        lines.append(f"Deleted too, because it is the same commit: {', '.join(removal.also)}.")
    if removal.stay:
        lines.append(f"{', '.join(removal.stay)} {'stays' if len(removal.stay) == 1 else 'stay'} as before.")
    if drafter := drafter_made_of(removal.source, removal.commit):
        lines.append(f"The drafter made from these files is deleted too: {drafter}.")
    if users := _other_models_with(source, name):
        lines.append(f"{', '.join(users)} {'uses' if len(users) == 1 else 'use'} these files too.")
    lines.append(_SHARED)
    return lines


def _other_models_with(source: Source, name: str) -> list[str]:
    entries = {card.name: card.entry for card in cards().values() if card.entry is not None}

    def needs(entry: Entry) -> bool:
        needed = {entry.source, *(one.source for one in entry.drafters)}
        if entry.draft in entries:
            needed.add(entries[entry.draft].source)
        else:
            with suppress(UsageMistake):
                needed.add(Source.parse(entry.draft))
        return source.repo in {one.repo for one in needed if one is not None}

    return [known for known, entry in entries.items() if known != name and needs(entry)]


@contextmanager
def _deleting_derived_data(names: Collection[str], files: Collection[Path], yes: bool, phrases: bool) -> Iterator[None]:
    """Delete what localspec derived from a model, after the body has deleted the model with these names and files.

    Delete the answers that the model wrote for trainings, and its phrases if the user agrees. Print what stays:
    phrases, conversations, drafters. If the model is still here in another form, delete and print nothing. A store that
    cannot be read counts as empty. Raises StoreTrouble.
    """
    now, names = renamed(), set(names)
    for file in files:
        with suppress(LocalspecError):
            names.add(packed_file.read(file).header.origin.name)
    former = {name: now[name] for name in names if name in now}  # present names by former names
    outside = set[Path]()  # trained drafters of the user that are not in their model's directory
    for name in names:
        with suppress(LocalspecError):
            card = resolve(name)
            own = (one.path for one in trained_drafters(card) if not one.shipped)
            outside |= {path for path in own if not path.is_relative_to(card.path)}
    answers = [one for name in names for one in Paths(home()).answers_of(name)]
    pools, conversations = list[PoolInfo](), 0
    with suppress(LocalspecError), store_if_any("phrases", raise_damage=False) as store:
        if store is not None:
            places = {str(file) for file in files}
            pools, conversations = (
                [pool for pool in store.phrases.pools() if pool.model in names or pool.path in places],
                sum(info.model in names | places for info in store.history.conversations()),
            )
    yield
    if any(is_here(name, Paths(home())) for name in names):
        return
    if pools or conversations:
        with suppress(OSError):  # only the former name is lost
            save_former_names(former, Paths(home()))
    for place in answers:
        held = sum(file.stat().st_size for file in place.rglob("*"))
        shutil.rmtree(place)
        typer.echo(f"Deleted the model's saved answers for trainings ({size(held)}).")
    pools = [pool for pool in pools if pool.phrases]
    count = sum(pool.phrases for pool in pools)
    if count and not phrases and not yes and at_a_terminal():
        phrases = typer.confirm(f"Also delete {counted(count, 'phrase')} learned from the model?")
    if count and phrases:
        with store_if_any("phrases") as store:
            removed = sum(store.phrases.delete(pool.pool) for pool in pools) if store else 0
        typer.echo(f"Deleted {counted(removed, 'phrase')}.")
    elif count:
        commands = (f"`localspec pool clear {former.get(pool.model, pool.model)}`" for pool in pools)
        clear = " and ".join(dict.fromkeys(commands))
        typer.echo(one_line(f"{counted(count, 'phrase')} learned from the model stay until you run {clear}."))
    if conversations:
        stay = "stays" if conversations == 1 else "stay"
        typer.echo(
            f"{counted(conversations, 'conversation')} with the model {stay} until you run `localspec history rm`."
        )
    for drafter in sorted(outside):
        typer.echo(one_line(f"A drafter trained for the model stays: {drafter}."))


def forget_tokenizer(path: Path) -> None:
    """Delete the cached self-test of the tokenizer in a packed file or a directory."""
    from localspec.models.tokenizer_trial import forget as forget_trial  # slow to import
    from localspec.weights.checkpoint import TOKENIZER_FILES

    texts = dict[str, bytes]()
    for name in (*TOKENIZER_FILES, "config.json"):
        with suppress(LocalspecError, OSError, KeyError):
            texts[name] = packed_file.read(path).text(name) if is_packed(path) else (path / name).read_bytes()
    forget_trial(texts)
