"""`localspec pool`: the phrases learned here, and how to be rid of them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from localspec.cli.console import counted, may_delete, moment, print_json
from localspec.cli.store_access import report_files_set_aside, store_if_any
from localspec.errors import NotHere
from localspec.store.phrases import Phrase, PoolInfo, unpack_key, unpack_tokens
from localspec.store.store import Store
from localspec.text import one_line, safe

app = typer.Typer(help="The phrases learned here: list, show, clear, export.", no_args_is_help=True)

WHAT = "phrases"

Model = Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The model whose phrases are meant; else all.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON value on standard output.")]

Decode = Callable[[Sequence[int]], str | None]


class Shown(NamedTuple):
    """One phrase as a person or a script sees it; `text` is None where the model's tokenizer is not here."""

    model: str
    before: tuple[int, ...]
    key: tuple[int, int]
    after: tuple[int, ...]
    text: str | None
    uses: int


@app.command("list")
def list_pools(as_json: AsJson = False) -> None:
    """The pools: one for each model and tokenizer."""
    with store_if_any(WHAT) as store:
        pools = store.phrases.pools() if store else []
    if as_json:
        print_json([pool._asdict() for pool in pools])
        return
    if not pools:
        typer.echo("No phrases are kept yet.")
    for pool in pools:
        size = f"{counted(pool.phrases, 'phrase')}, {pool.bytes / 1e6:.1f} MB"
        where = pool.path or "directory unknown"
        typer.echo(one_line(f"{pool.model}: {size}, last used {moment(pool.last_used)}, {where}"))


@app.command()
def show(
    model: Model = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many phrases of each pool.")] = 20,
    as_json: AsJson = False,
) -> None:
    """The phrases used most recently, as text where the model's tokenizer is here."""
    with store_if_any(WHAT) as store:
        found = [(pool, _decoder(pool.path)) for pool in _pools_of(store, model)]
        chosen = [(pool, decode, list(_phrases(store, pool, decode, limit))) for pool, decode in found]
    if as_json:
        print_json([shown._asdict() for _, _, phrases in chosen for shown in phrases])
        return
    if not chosen:
        typer.echo("No phrases are kept yet.")
    for pool, decode, phrases in chosen:
        typer.echo(one_line(f"{pool.model}: {counted(pool.phrases, 'phrase')}"))
        for shown in phrases:
            typer.echo(f"  {_phrase_line(shown, decode)}  ({shown.uses})")


@app.command()
def clear(
    model: Model = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Deletes phrases for good: their bytes are overwritten."""
    with store_if_any(WHAT) as store:
        pools = _pools_of(store, model)
        count = sum(pool.phrases for pool in pools)
        report_files_set_aside(WHAT)
        if store is None or count == 0:
            typer.echo("There are no phrases to delete.")
            return
        whose = model or "all models"
        if not may_delete(f"{counted(count, 'phrase')} of {whose}", yes):
            return
        removed = store.phrases.forget() if model is None else sum(store.phrases.forget(pool.pool) for pool in pools)
        typer.echo(one_line(f"Deleted {counted(removed, 'phrase')} of {whose}."))


@app.command()
def export(model: Model = None) -> None:
    """All phrases as JSON lines: model, before, key, after, text, uses."""
    with store_if_any(WHAT) as store:
        for pool in _pools_of(store, model):
            for shown in _phrases(store, pool, _decoder(pool.path), None):
                print_json(shown._asdict())


def _pools_of(store: Store | None, model: str | None) -> list[PoolInfo]:
    """The pools of this model, or all. Raises NotHere, naming the pools there are."""
    pools = store.phrases.pools() if store else []
    if model is None:
        return pools
    chosen = [pool for pool in pools if pool.model == model]
    if not chosen:
        names = ", ".join(sorted({pool.model for pool in pools})) or "none yet"
        raise NotHere(one_line(f"There are no phrases of {model!r} here; the models with phrases are: {names}."))
    return chosen


def _phrases(store: Store | None, pool: PoolInfo, decode: Decode, limit: int | None) -> Iterator[Shown]:
    if store is None:
        return
    for phrase in islice(store.phrases.export(pool.pool), limit):
        yield _shown(pool.model, phrase, decode)


def _shown(model: str, phrase: Phrase, decode: Decode) -> Shown:
    before, key, after = unpack_tokens(phrase.before), unpack_key(phrase.key), unpack_tokens(phrase.after)
    return Shown(model, before, key, after, decode((*before, *key, *after)), phrase.uses)


def _decoder(directory: str | None) -> Decode:
    """Token ids -> text by the tokenizer in the model's directory; -> None where there is none that can be read."""
    file = Path(directory) / "tokenizer.json" if directory else None
    if file is None or not file.is_file():
        return lambda tokens: None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001  # the library raises nothing more particular for a damaged file
        return lambda tokens: None

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=False))

    return decode


def _phrase_line(shown: Shown, decode: Decode) -> str:
    """Context → what followed, on one line."""
    context = (*shown.before, *shown.key)
    start = decode(context)
    if shown.text is None or start is None:
        return f"{' '.join(map(str, context))} → {' '.join(map(str, shown.after))}"
    # Decoded alone, what followed would lose its first space with some tokenizers.
    rest = shown.text[len(start) :] if shown.text.startswith(start) else decode(shown.after) or ""
    return safe(f"{start} → {rest}").replace("\n", "⏎").replace("\t", "⇥")
