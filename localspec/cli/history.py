"""`localspec history`: the conversations kept here, and how to be rid of them."""

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from localspec.chat.conversation import saved_conversation
from localspec.cli.console import ago, counted, may_delete, moment, print_json, seen, table
from localspec.cli.store_access import report_files_set_aside, store_if_any
from localspec.errors import UsageMistake
from localspec.store.history import ConversationInfo, History, Saved
from localspec.text import one_line, safe

app = typer.Typer(help="Saved conversations: list, search, show, export, rm.", no_args_is_help=True)

WHAT = "conversations"
ENDS = {"stop": "", "length": "\n\n*(cut off at the limit)*"}
INTERRUPTED, UNANSWERED = "\n\n*(stopped)*", "*(no reply)*"
FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON value on standard output.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Which, by the number that `list` shows.")]


@app.command("list")
def list_conversations(
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the N used most recently.")] = None,
    as_json: AsJson = False,
) -> None:
    """The conversations, the most recently used first."""
    with store_if_any(WHAT) as store:
        infos = store.history.conversations(limit) if store else []
    if as_json:
        print_json([info._asdict() for info in infos])
        return
    if not infos:
        typer.echo("No conversations are kept.")
    elif seen():
        typer.echo("\n".join(_table(infos, time.time(), shutil.get_terminal_size().columns)))
        return
    for info in infos:  # for programs, as ever
        typer.echo(_title_line(info))


@app.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="All of them must stand in one turn.")],
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most N conversations.")] = 50,
    as_json: AsJson = False,
) -> None:
    """The conversations where these words, or parts of words, were said."""
    if not "".join(words).strip():
        raise UsageMistake("There is nothing to search for; give a word.")
    with store_if_any(WHAT) as store:
        found = store.history.search(" ".join(words), limit) if store else []
    if as_json:
        print_json([{**hit.info._asdict(), "turn": hit.turn, "excerpt": hit.excerpt} for hit in found])
        return
    if not found:
        typer.echo("Nothing was found.")
    for hit in found:
        typer.echo(f"{_title_line(hit.info)}\n    {hit.excerpt}")


@app.command()
def show(
    conversation: Annotated[int, typer.Argument(metavar="ID", help="The number that `list` shows.")],
    as_json: AsJson = False,
) -> None:
    """One conversation."""
    with store_if_any(WHAT) as store:
        found = saved_conversation(store.history if store else None, conversation)
    if as_json:
        print_json(_as_json(found))
        return
    typer.echo(f"{_title_line(found.info)}\n\n{_markdown(found)}")


@app.command()
def export(conversations: Ids = None, as_json: AsJson = False) -> None:
    """Conversations as Markdown, all or the given ones, the oldest first."""
    with store_if_any(WHAT) as store:
        history = store.history if store else None
        found = _saved(history, conversations) if conversations else _all_saved(history)
        if as_json:
            print_json([_as_json(conversation) for conversation in found])
            return
        for number, conversation in enumerate(found):
            typer.echo("\n" * bool(number) + _markdown(conversation))


@app.command()
def rm(
    conversations: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Deletes conversations for good: their bytes are overwritten."""
    if everything == bool(conversations):
        raise UsageMistake("Say which conversations to delete: either their IDs, which `list` shows, or --all.")
    with store_if_any(WHAT) as store:
        history = store.history if store else None
        given = [found.info for found in _saved(history, conversations or ())]
        infos = given or (history.conversations() if history else [])
        report_files_set_aside(WHAT)
        if store is None or not infos:
            typer.echo("There are no conversations to delete.")
            return
        target = (
            f"conversation {infos[0].id}, {infos[0].title!r}"
            if len(infos) == 1
            else counted(len(infos), "conversation")
        )
        if not may_delete(target, yes):
            return
        removed = store.history.remove([info.id for info in infos])
        typer.echo(f"Deleted {counted(removed, 'conversation')}.")
        if any(pool.phrases for pool in store.phrases.pools()):
            typer.echo("Phrases that were learned from replies stay until `localspec pool clear`.")


def _saved(history: History | None, conversations: Sequence[int]) -> list[Saved]:
    return [saved_conversation(history, number) for number in sorted(set(conversations))]


def _all_saved(history: History | None) -> Iterator[Saved]:
    if history is not None:
        for number in sorted(info.id for info in history.conversations()):
            found = history.read(number)
            if found is not None:  # not deleted meanwhile by another process
                yield found


def _table(infos: Sequence[ConversationInfo], now: float, width: int) -> list[str]:
    rows = [[str(info.id), ago(info.used, now), str(info.turns), _short(info.model), info.title] for info in infos]
    return table([["ID", "USED", "TURNS", "MODEL", "TITLE"], *rows], right={0, 2}, width=width)


def _short(model: str) -> str:
    """The end of a directory's path; a table has no room for more."""
    return model.rstrip("/").rpartition("/")[2] or model


def _title_line(info: ConversationInfo) -> str:
    return one_line(f"{info.id}: {info.title} ({counted(info.turns, 'turn')}, {info.model}, {moment(info.used)})")


def _markdown(found: Saved) -> str:
    parts = [f"# {found.info.title}"]
    if found.system:
        parts.append(f"## System\n\n{_with_closed_fence(found.system)}")
    for turn in found.turns:
        parts.append(f"## You\n\n{_with_closed_fence(turn.prompt)}")
        reply = _with_closed_fence(turn.reply) + ENDS.get(turn.reason or "", INTERRUPTED) if turn.reply else UNANSWERED
        parts.append(f"## localspec ({one_line(found.info.model)})\n\n{reply}")
    return "\n\n".join(parts)


def _with_closed_fence(text: str) -> str:
    """`text` made safe; where it breaks off in a code block, that is ended, so that what follows is not code too."""
    text, fence = safe(text), ""
    for line in text.split("\n"):
        found = FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and line.strip() == found[1]:
            fence = ""
    return f"{text}\n{fence}" if fence else text


def _as_json(found: Saved) -> dict[str, Any]:
    return {**found.info._asdict(), "system": found.system, "turns": [asdict(turn) for turn in found.turns]}
