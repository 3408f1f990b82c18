"""The phrases, conversations and trained drafters of a model that `rm` deletes. They stay unless the user agrees."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import typer

from localspec.cli.console import at_a_terminal
from localspec.cli.store_access import store_if_any
from localspec.environment import home
from localspec.errors import LocalspecError
from localspec.models.drafter_cards import trained_drafters
from localspec.models.former_names import save_former_names
from localspec.models.present import is_here
from localspec.models.registry import renamed, resolve
from localspec.models.tokenizer_trial import forget
from localspec.paths import Paths
from localspec.quantities import counted
from localspec.store.phrases import PoolInfo
from localspec.text import one_line
from localspec.weights import packed_file
from localspec.weights.checkpoint import is_packed


@dataclass(frozen=True)
class Learned:
    """The phrases, conversations and drafters of a model. Collect them before the model is deleted."""

    names: tuple[str, ...]
    pools: tuple[PoolInfo, ...] = ()
    conversations: int = 0
    drafters: tuple[Path, ...] = ()
    former: Mapping[str, str] = field(default_factory=dict)  # present names by names that are shown no more

    @classmethod
    def of(cls, names: Collection[str], files: Collection[Path]) -> "Learned":
        """Find them by the names of a model and by its packed files. A store that cannot be read counts as empty."""
        now, names = renamed(), {*names, *_names_in(files)}
        former = {name: now[name] for name in names if name in now}
        drafters = _drafters_outside(names)
        with suppress(LocalspecError), store_if_any("phrases", raise_damage=False) as store:
            if store is not None:
                places = {str(file) for file in files}
                pools = tuple(pool for pool in store.phrases.pools() if pool.model in names or pool.path in places)
                infos = [info for info in store.history.conversations() if info.model in {*names, *places}]
                return cls((*names,), pools, len(infos), drafters, former)
        return cls((*names,), drafters=drafters, former=former)

    def settle(self, yes: bool, phrases: bool) -> None:
        """Delete the phrases if the user wants that, and list what stays.

        Nothing happens while the model is still here in another form. Raises StoreTrouble.
        """
        if any(is_here(name, Paths(home())) for name in self.names):
            return
        if self.pools or self.conversations:
            with suppress(OSError):  # only the former name is lost
                save_former_names(self.former, Paths(home()))
        pools = [pool for pool in self.pools if pool.phrases]
        count = sum(pool.phrases for pool in pools)
        if count and not phrases and not yes and at_a_terminal():
            phrases = typer.confirm(f"It also learned {counted(count, 'phrase')}; delete them?")
        if count and phrases:
            with store_if_any("phrases") as store:
                removed = sum(store.phrases.forget(pool.pool) for pool in pools) if store else 0
            typer.echo(f"Deleted {counted(removed, 'phrase')}.")
        elif count:
            clear = " and ".join(
                dict.fromkeys(f"`localspec pool clear {self.former.get(pool.model, pool.model)}`" for pool in pools)
            )
            typer.echo(one_line(f"{counted(count, 'phrase')} that it learned stay until {clear}."))
        if self.conversations:
            stay = "stays" if self.conversations == 1 else "stay"
            typer.echo(f"{counted(self.conversations, 'conversation')} with it {stay} until `localspec history rm`.")
        for drafter in self.drafters:
            typer.echo(one_line(f"The drafter that was trained for it stays: {drafter}."))


def forget_tokenizer(path: Path) -> None:
    """Delete the cached self-test of the tokenizer in a packed file or a directory."""
    from localspec.weights.checkpoint import TOKENIZER_FILES  # slow to import

    texts = dict[str, bytes]()
    for name in (*TOKENIZER_FILES, "config.json"):
        with suppress(LocalspecError, OSError, KeyError):
            texts[name] = packed_file.read(path).text(name) if is_packed(path) else (path / name).read_bytes()
    forget(texts)


def _drafters_outside(names: Collection[str]) -> tuple[Path, ...]:
    """Return the trained drafters that are not in the directory of their model, and so outlive it."""
    found = set[Path]()
    for name in names:
        with suppress(LocalspecError):
            card = resolve(name)
            found |= {one.path for one in trained_drafters(card) if not one.path.is_relative_to(card.path)}
    return (*sorted(found),)


def _names_in(files: Collection[Path]) -> set[str]:
    """Return the names of models in the headers of packed files."""
    found = set[str]()
    for file in files:
        with suppress(LocalspecError):
            found.add(packed_file.read(file).header.origin.name)
    return found
