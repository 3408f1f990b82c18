"""Rows of conversations and turns as they are read, whatever another program wrote into them."""

import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack, closing
from itertools import zip_longest
from typing import Any

from localspec.outside_files import parse_json
from localspec.store.conversations import REASONS, SOURCES, ConversationInfo, Turn
from localspec.store.titles import cut, title_of
from localspec.store.values import moment, text
from localspec.text import one_line

INFO = """SELECT id,
    (SELECT substr(prompt, 1, 1000) FROM turn WHERE conversation = owner.id ORDER BY id LIMIT 1),
    title, model, created, used, (SELECT count(*) FROM turn WHERE conversation = owner.id), branch_of, source
    FROM conversation AS owner WHERE id = ?"""
IN_ORDER = "SELECT id, prompt, reply, reason, figures, asked FROM turn WHERE conversation = ? ORDER BY id"


def info_of(connection: sqlite3.Connection, conversation: int) -> ConversationInfo | None:
    """Return the row of a list; None where there is no conversation of that id, or nothing was said in it."""
    row = connection.execute(INFO, (conversation,)).fetchone()
    return info_from(row) if row is not None and row[6] else None


def info_from(row: tuple[Any, ...]) -> ConversationInfo:
    """Return the row of a list, from the columns of INFO."""
    number, prompt, given, model, created, used, turns, origin, source = row
    title = title_of(text(prompt)) if given is None else cut(one_line(text(given)))
    branch_of = origin if isinstance(origin, int) else None
    known = next((one for one in SOURCES if one == source), None)
    return ConversationInfo(
        number, title, text(model), moment(created), moment(used), turns, branch_of, given is not None, known
    )


def parting_of(connection: sqlite3.Connection, *pair: int) -> tuple[Turn | None, Turn | None] | None:
    """Return the first turns of two conversations that are unlike, or their last ones where all are alike.

    None where one of these conversations is not there (any more).
    """
    if connection.execute("SELECT count(*) FROM conversation WHERE id IN (?, ?)", pair).fetchone()[0] < len({*pair}):
        return None
    with ExitStack() as opened:
        mine, theirs = (opened.enter_context(closing(connection.execute(IN_ORDER, (number,)))) for number in pair)
        one = other = None
        for one, other in zip_longest(map(turn_from, mine), map(turn_from, theirs)):
            if one is None or other is None or (one.prompt, one.reply) != (other.prompt, other.reply):
                break
    return one, other


def turn_from(row: tuple[Any, ...]) -> Turn:
    """Return a turn from its columns: id, prompt, reply, reason, figures, asked, and reasoning if it is there."""
    number, prompt, reply, reason, figures, asked, *reasoning = row
    return Turn(
        number, text(prompt), text(reply), _reason(reason), figures_from(figures), moment(asked), *map(text, reasoning)
    )


def _reason(value: object) -> str | None:
    return value if isinstance(value, str) and value in REASONS else None


def figures_from(stored: str) -> Mapping[str, Any]:
    """Return the figures saved with a turn; an empty mapping where they are not a JSON object."""
    try:
        figures = parse_json(stored)
    except (ValueError, TypeError):
        return {}
    return figures if isinstance(figures, dict) else {}
