"""What belongs to a model that `rm` deletes, and is not deleted with it unless somebody says so."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from localspec import packed_file
from localspec.checkpoint import is_packed
from localspec.cli.console import at_a_terminal
from localspec.cli.store_access import store_if_any
from localspec.errors import LocalspecError
from localspec.models.drafter_cards import trained_drafters
from localspec.models.registry import resolve
from localspec.models.tokenizer_trial import forget
from localspec.quantities import counted
from localspec.store.phrases import PoolInfo
from localspec.text import one_line


@dataclass(frozen=True)
class Learned:
    """The phrases, conversations and drafters of a model, found while it is still here."""

    names: tuple[str, ...]
    pools: tuple[PoolInfo, ...] = ()
    conversations: int = 0
    drafters: tuple[Path, ...] = ()

    @classmethod
    def of(cls, names: Collection[str], files: Collection[Path]) -> "Learned":
        """Find them by the names of the model and by its packed files. A store that gives trouble has none."""
        names = {*names, *_names_in(files)}
        places = {str(file) for file in files}
        drafters = set[Path]()
        for name in names:
            with suppress(LocalspecError):
                card = resolve(name)
                drafters |= {one.path for one in trained_drafters(card) if not one.path.is_relative_to(card.path)}
        try:
            with store_if_any("phrases") as store:
                if store is None:
                    return cls((*names,), drafters=(*sorted(drafters),))
                pools = tuple(one for one in store.phrases.pools() if one.model in names or one.path in places)
                of_it = [info for info in store.history.conversations() if info.model in {*names, *places}]
        except LocalspecError:
            return cls((*names,), drafters=(*sorted(drafters),))
        return cls((*names,), pools, len(of_it), (*sorted(drafters),))

    def settle(self, yes: bool, phrases: bool) -> None:
        """Offer to delete the phrases, and say what stays; nothing of a model that is still here in another form.

        Raises StoreTrouble.
        """
        if any(map(_is_here, self.names)):
            return
        pools = [one for one in self.pools if one.phrases]
        count = sum(one.phrases for one in pools)
        if count and not phrases and not yes and at_a_terminal():
            phrases = typer.confirm(f"It also learned {counted(count, 'phrase')}; delete them?")
        if count and phrases:
            with store_if_any("phrases") as store:
                removed = sum(store.phrases.forget(one.pool) for one in pools) if store else 0
            typer.echo(f"Deleted {counted(removed, 'phrase')}.")
        elif count:
            clear = " and ".join(dict.fromkeys(f"`localspec pool clear {one.model}`" for one in pools))
            typer.echo(one_line(f"{counted(count, 'phrase')} that it learned stay until {clear}."))
        if self.conversations:
            typer.echo(f"{counted(self.conversations, 'conversation')} with it stay until `localspec history rm`.")
        for drafter in self.drafters:
            typer.echo(one_line(f"The drafter that was trained for it stays: {drafter}."))


def forget_tokenizer(path: Path) -> None:
    """Delete what the cache remembers of the tokenizer in a packed file, or in a directory."""
    from localspec.models.tokenizer import TOKENIZER_FILES  # a library that takes its time

    texts = dict[str, bytes]()
    for name in (*TOKENIZER_FILES, "config.json"):
        with suppress(LocalspecError, OSError, KeyError):
            texts[name] = packed_file.read(path).text(name) if is_packed(path) else (path / name).read_bytes()
    forget(texts)


def _names_in(files: Collection[Path]) -> set[str]:
    """Return the names of models that packed files have in their headers."""
    found = set[str]()
    for file in files:
        with suppress(LocalspecError):
            found.add(packed_file.read(file).header.origin.name)
    return found


def _is_here(name: str) -> bool:
    try:
        resolve(name)
    except LocalspecError:
        return False
    return True
