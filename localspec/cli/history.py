"""`localspec history`: the saved conversations, and how to delete them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from localspec.chat.branches import by_present_name, by_present_names, rows
from localspec.chat.conversation import saved_conversation
from localspec.chat.export import as_markdown
from localspec.cli.console import may_delete, output_is_terminal, print_json, table, tell, width
from localspec.cli.options import whole_number
from localspec.cli.store_access import report_files_set_aside, store_if_any
from localspec.cli.texts import conversation_id
from localspec.environment import home
from localspec.errors import UsageMistake
from localspec.paths import Paths
from localspec.quantities import ago, counted, day, moment, seconds_of
from localspec.store.cleaning import remove_copied
from localspec.store.conversations import ConversationInfo, Saved
from localspec.store.history import History
from localspec.text import one_line

app = typer.Typer(help="List, search, show, export or delete saved conversations.", invoke_without_command=True)

CONTENTS = "conversations"
SHOWN = 1000  # by `list` without --limit

AsJson = Annotated[bool, typer.Option("--json", help="One JSON value on standard output.")]


def _number(text: str) -> int:
    return conversation_id(text, "`localspec history list`")


Ids = Annotated[
    list[int] | None,
    typer.Argument(parser=_number, metavar="[ID]...", help="The conversations' numbers, as `list` shows them."),
]


@app.callback()
def _list_by_default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_conversations(limit=None)


@app.command("list")
def list_conversations(
    limit: Annotated[int | None, whole_number(help=f"Only the N most recently used; by default {SHOWN}.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the conversations, the most recently used first."""
    with store_if_any(CONTENTS) as store:
        infos = by_present_names(store.history.conversations(limit or SHOWN + 1)) if store else []
        shown = rows(store.history, infos) if store and output_is_terminal() and not as_json else []
    if limit is None and len(infos) > SHOWN:
        infos.pop()
        tell(f"localspec: conversations before the newest {SHOWN:,} are left out; --limit N shows more of them.")
    if as_json:
        print_json([info._asdict() for info in infos])
        return
    if not infos:
        typer.echo("No conversations are saved.")
    elif output_is_terminal():
        now, lines = time.time(), [["ID", "USED", "TURNS", "MODEL", "TITLE"]]
        for info, title in ((row.info, row.indented + row.mark) for row in shown if row.info in infos):
            lines.append([str(info.id), ago(info.used, now), str(info.turns), info.model_name, title])
        typer.echo("\n".join(table(lines, right={0, 2}, width=width(), wraps={4})))
        return
    for info in infos:  # for programs
        typer.echo(_title_line(info))


@app.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="All words must be in one turn.")],
    limit: Annotated[int, whole_number(help="At most N conversations.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Find conversations with these words or parts of words."""
    if not "".join(words).strip():
        raise UsageMistake("There is nothing to search for; give a word.")
    with store_if_any(CONTENTS) as store:
        hits = store.history.search(" ".join(words), limit) if store else []
    infos = by_present_names(hit.info for hit in hits)
    results = [hit._replace(info=info) for hit, info in zip(hits, infos, strict=True)]
    if as_json:
        print_json([{**hit.info._asdict(), "turn": hit.turn, "excerpt": hit.excerpt} for hit in results])
        return
    if not results:
        typer.echo("Nothing was found.")
    for hit in results:
        typer.echo(f"{_title_line(hit.info)}\n    {hit.excerpt}")


@app.command()
def show(
    conversation: Annotated[int, typer.Argument(parser=_number, metavar="ID", help="The number that `list` shows.")],
    as_json: AsJson = False,
) -> None:
    """Show a conversation."""
    with store_if_any(CONTENTS) as store:
        saved = by_present_name(saved_conversation(store.history if store else None, conversation))
    if as_json:
        print_json(_as_json(saved))
        return
    typer.echo(f"{_title_line(saved.info)}\n\n{as_markdown(saved)}")


@app.command()
def export(conversations: Ids = None, as_json: AsJson = False) -> None:
    """Print conversations as Markdown, the oldest first: all, or those given."""
    with store_if_any(CONTENTS) as store:
        history = store.history if store else None
        saved = map(by_present_name, _saved(history, conversations) if conversations else _all_saved(history))
        if as_json:
            print_json([_as_json(conversation) for conversation in saved])
            return
        for number, conversation in enumerate(saved):
            typer.echo("\n" * bool(number) + as_markdown(conversation))


@app.command()
def rm(
    conversations: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All conversations, and unsent prompts.")] = False,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Conversations unused for this long: 12h, 30d, 4w or 1y.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete conversations and overwrite their bytes."""
    if [bool(conversations), everything, older_than is not None].count(True) != 1:
        raise UsageMistake("Name the conversations to delete: IDs from `list`, --older-than 30d, or --all.")
    cutoff = None if older_than is None else time.time() - seconds_of(older_than)
    copied = Paths(home()).copied
    with store_if_any(CONTENTS) as store:
        history = store.history if store else None
        if conversations:
            infos = [saved.info for saved in _saved(history, conversations)]
        elif history is None:
            infos = []
        else:
            infos = history.conversations() if cutoff is None else history.unused_since(cutoff)
        drafts = store.drafts.orphaned() if store and everything else 0
        report_files_set_aside(CONTENTS)
        if store is None or not (infos or drafts):
            if everything and copied.exists() and may_delete("the text that was copied last", yes):
                remove_copied(copied)
                sentence = "Deleted the text copied last."
            else:
                older = "" if cutoff is None else f" that were last used before {day(cutoff)}"
                sentence = f"There are no conversations to delete{older}."
            if store is not None:
                store.history.remove((), everything)  # an earlier deletion may be unfinished
            typer.echo(sentence)
            return
        target = _counts(len(infos), drafts) + ("" if cutoff is None else f" last used before {day(cutoff)}")
        if len(infos) == 1 and not drafts:
            target = f"conversation {infos[0].id}, {infos[0].title!r}"
        if not may_delete(target, yes):
            return
        removed = store.history.remove([info.id for info in infos], everything)
        drafts = store.drafts.remove_orphaned() if drafts else 0
        # The copied text may come from any conversation, so it is deleted as well.
        deleted = f"Deleted {_counts(removed, drafts)}"
        typer.echo(f"{deleted}, and the text that was copied last." if remove_copied(copied) else f"{deleted}.")
        if store.unfinished:
            tell(f"localspec: {store.unfinished}")
        if store.phrases.any_phrase():
            typer.echo("Phrases that were learned from replies stay until `localspec pool clear`.")


def _counts(conversations: int, drafts: int) -> str:
    counts = [counted(conversations, "conversation")] if conversations or not drafts else []
    counts += [counted(drafts, "unsent prompt")] if drafts else []
    return " and ".join(counts)


def _saved(history: History | None, conversations: Sequence[int]) -> list[Saved]:
    return [saved_conversation(history, number) for number in sorted(set(conversations))]


def _all_saved(history: History | None) -> Iterator[Saved]:
    if history is not None:
        for number in sorted(info.id for info in history.conversations()):
            conversation = history.read(number)
            if conversation is not None:  # another process may have deleted it meanwhile
                yield conversation


def _title_line(info: ConversationInfo) -> str:
    return one_line(f"{info.id}: {info.title} ({counted(info.turns, 'turn')}, {info.model}, {moment(info.used)})")


def _as_json(saved: Saved) -> dict[str, Any]:
    return {**saved.info._asdict(), "system": saved.system, "turns": [asdict(turn) for turn in saved.turns]}
