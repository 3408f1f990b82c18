"""localspec show NAME"""

import json
from typing import Annotated

import typer

from localspec.checkpoint import inspect, revision
from localspec.cli.console import amount, seen, size
from localspec.errors import LocalspecError
from localspec.hub.records import record
from localspec.models.drafter_cards import trained_drafters
from localspec.models.drafter_kinds import kinds
from localspec.models.entries import Entry, PublishedDrafter
from localspec.models.registry import TargetCard, named_card, resolve
from localspec.text import one_line

app = typer.Typer()

Facts = dict[str, str | int | list[str] | None]


def _is_here(draft: str) -> bool:
    try:
        return bool(draft) and bool(inspect(resolve(draft).path))
    except LocalspecError:
        return False


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A registered name, or a directory in the Hugging Face layout.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of lines.")] = False,
) -> None:
    """What is known about one model."""
    card = named_card(name)
    facts = _installed_facts(card) if card.here else _announced_facts(card)
    if card.entry is not None:
        facts |= _entry_facts(card.entry)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        print(f"{key:13} {one_line(_shown(key, value)) or 'unknown'}")


def _installed_facts(card: TargetCard) -> Facts:
    """What the files of a model that is here say."""
    checkpoint = inspect(card.path)
    return {
        "name": card.name,
        "description": card.description,
        "installed": True,
        "path": str(card.path),
        "architecture": checkpoint.architecture,
        "parameters": checkpoint.parameters,
        "bytes": checkpoint.bytes,
        "context": checkpoint.context,
        "license": card.license,
        "drafters": [
            *kinds("nothing", "probe"),
            *(drafter.kind for drafter in trained_drafters(card)),
            *(f"{kind}:{card.draft}" for kind in kinds("draft model") if _is_here(card.draft)),
        ],
        "revision": revision(card.path),
    }


def _announced_facts(card: TargetCard) -> Facts:
    """What models.toml says of a model that is not here."""
    shape = card.entry.shape if card.entry else None
    return {
        "name": card.name,
        "description": card.description,
        "installed": False,
        "path": None,
        "parameters": shape.parameters if shape else None,
        "bytes": 2 * shape.parameters if shape else None,  # published weights are bf16
        "context": shape.context if shape else None,
        "license": card.license,
        "drafters": list(kinds("nothing", "probe")),
    }


def _entry_facts(entry: Entry) -> Facts:
    """Where a model comes from, and which drafters are known for it."""
    pulled = record(entry.source) if entry.source else None
    return {
        "publisher": entry.publisher or None,
        "quality": entry.quality or None,
        "source": str(entry.source) if entry.source else None,
        "commit": pulled.commit if pulled else None,
        "gated": entry.gated,
        "verified": entry.verified or pulled is not None or entry.source is None,
        "published": [_in_words(one) for one in entry.drafters],
    }


def _in_words(one: PublishedDrafter) -> str:
    """A published drafter in words."""
    where = f"{one.source}, by {one.publisher or 'unknown'}" if one.source else "a small model of its family"
    if one.source is None and one.kind in kinds("weights"):
        where = f"nobody publishes one; `localspec train {one.kind}` makes it"
    accepted = f", {one.accepted.length} tokens/step ({one.accepted.source})" if one.accepted else ""
    license_ = f", license {one.license}" if one.license else ""
    return f"{one.kind}: {where}{license_}{accepted}{'' if one.lossless else ', not lossless'}"


def _shown(key: str, value: object) -> str:
    if seen() and isinstance(value, int) and key in ("parameters", "bytes"):
        return f"{amount(value) if key == 'parameters' else size(value)} ({value:,})"
    if isinstance(value, list):
        return "; ".join(value) if any(", " in one for one in value) else ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
