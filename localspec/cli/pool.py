"""`localspec pool`: the learned phrases, and how to delete them."""

import os
import sys
from itertools import islice
from typing import Annotated, Any

import typer

from localspec.chat.readable_phrases import ReadablePhrase, Stories, readable_phrases, reader
from localspec.cli.console import folded, may_delete, print_json, tell, width
from localspec.cli.options import whole_number
from localspec.cli.store_access import report_files_set_aside, store_if_any
from localspec.errors import NotHere
from localspec.models.registry import find, renamed
from localspec.quantities import counted, moment, size
from localspec.store.phrases import PoolInfo, unpack_key, unpack_tokens
from localspec.store.store import Store
from localspec.text import one_line

app = typer.Typer(help="List, show, clear or export learned phrases.", invoke_without_command=True)

CONTENTS = "phrases"

Model = Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Only this model's phrases; by default all.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON value on standard output.")]


@app.callback()
def _list_by_default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_pools()


@app.command("list")
def list_pools(as_json: AsJson = False) -> None:
    """List the pools: one for each model and tokenizer."""
    with store_if_any(CONTENTS) as store:
        pools = _pools_of(store, None)
    if as_json:
        print_json([pool._asdict() for pool in pools])
        return
    if not pools:
        typer.echo("No phrases are saved yet.")
    for pool in pools:
        contents = f"{counted(pool.phrases, 'phrase')}, {size(pool.bytes)}"
        location = pool.path or "directory unknown"
        line = one_line(f"{pool.model}: {contents}, last used {moment(pool.last_used)}, {location}")
        typer.echo("\n".join(folded(line, width(), indent=2)))


@app.command()
def show(
    model: Model = None,
    limit: Annotated[int, whole_number(help="Phrases to show of each pool.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the most useful phrases, as text if the model's tokenizer is here."""
    with store_if_any(CONTENTS) as store:
        chosen = []
        for pool in _pools_of(store, model):
            decode, why_ids = reader(pool)
            best = readable_phrases(pool, store.phrases.most_useful(pool.pool) if store else (), decode)
            chosen.append((pool, list(islice(best, min(limit, sys.maxsize))), why_ids))
        stories = Stories(store.history) if store else None
        titles = [[stories.of(readable.phrase) if stories else "" for readable in phrases] for _, phrases, _ in chosen]
    if as_json:
        print_json([_as_json(readable) for _, phrases, _ in chosen for readable in phrases])
        return
    if not chosen:
        typer.echo("No phrases are saved yet.")
    for (pool, phrases, why_ids), lines in zip(chosen, titles, strict=True):
        typer.echo(one_line(f"{pool.model}: {counted(pool.phrases, 'phrase')}, the most useful first. {why_ids}"))
        for readable, story in zip(phrases, lines, strict=True):
            typer.echo(f"  {readable.line}  ({one_line(story)})")


@app.command()
def clear(
    model: Model = None,
    conversation: Annotated[
        int | None, whole_number("--conversation", metavar="ID", help="Only phrases last used in this conversation.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete phrases and overwrite their bytes."""
    with store_if_any(CONTENTS) as store:
        pools = _pools_of(store, model)
        count = sum(store.phrases.count(pool.pool, conversation) for pool in pools) if store else 0
        report_files_set_aside(CONTENTS)
        if store is None or count == 0:
            typer.echo("There are no phrases to delete.")
            return
        owner = (pools[0].model if model else "all models") + (
            f", last used in conversation {conversation}" if conversation else ""
        )
        if not may_delete(f"{counted(count, 'phrase')} of {owner}", yes):
            return
        chosen = [None] if model is None else [pool.pool for pool in pools]
        removed = sum(store.phrases.delete(pool, conversation=conversation) for pool in chosen)
        typer.echo(one_line(f"Deleted {counted(removed, 'phrase')} of {owner}."))
        if store.unfinished:
            tell(f"localspec: {store.unfinished}")


@app.command()
def export(model: Model = None) -> None:
    """Print all phrases as JSON lines: model, before, key, after, text, uses, served, conversation.

    `uses` counts how often the phrase was used; 0 means that it comes from a refused draft.
    """
    with store_if_any(CONTENTS) as store:
        for pool in _pools_of(store, model):
            phrases = store.phrases.export(pool.pool) if store else ()
            for readable in readable_phrases(pool, phrases, reader(pool)[0]):
                print_json(_as_json(readable))


def _pools_of(store: Store | None, model: str | None) -> list[PoolInfo]:
    """Return a model's pools (None: all pools), with its name after renaming. Raises NotHere if the model has none."""
    names = renamed()
    pools = [
        pool._replace(model=names.get(pool.model, pool.model)) for pool in (store.phrases.pools() if store else [])
    ]
    if model is None:
        return pools
    spelt = {model, os.path.abspath(os.path.expanduser(model))}  # a directory is stored by its absolute path
    if card := find(model):
        spelt |= {card.name, str(card.path)}
    chosen = [pool for pool in pools if pool.model in spelt or pool.path in spelt]
    if not chosen:
        listed = ", ".join(sorted({pool.model for pool in pools})) or "none yet"
        raise NotHere(one_line(f"There are no phrases of {model!r} here; the models with phrases are: {listed}."))
    return chosen


def _as_json(readable: ReadablePhrase) -> dict[str, Any]:
    """Return a phrase as a JSON object of `export`; `text` is None if the model's tokenizer is not here."""
    phrase = readable.phrase
    return {
        "model": readable.pool.model,
        "before": unpack_tokens(phrase.before),
        "key": unpack_key(phrase.key),
        "after": unpack_tokens(phrase.after),
        "text": readable.text,
        "uses": phrase.uses,
        "served": phrase.served,
        "conversation": phrase.conversation,
    }
