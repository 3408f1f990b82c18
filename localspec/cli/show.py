"""`localspec show NAME`: describes a model."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

import typer

from localspec import config
from localspec.chat.sampling import sampling_words
from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.choosing.plans import RunPlan
from localspec.choosing.survey import recommend
from localspec.cli.console import folded, width
from localspec.errors import LocalspecError
from localspec.hub.records import record
from localspec.machine.machine import this_machine
from localspec.models.default_draft import default_draft, too_large_to_draft
from localspec.models.drafter_cards import MTP, comes_with_mtp, damaged_drafters, trained_drafters
from localspec.models.drafter_kinds import kind_of, kinds
from localspec.models.entries import Entry, Form, PublishedDrafter
from localspec.models.model import default_sampling_of, draft_form, model_of
from localspec.models.names import full_name
from localspec.models.registry import TargetCard, named_card, source_here
from localspec.models.shape import Shape
from localspec.quantities import amount, counted, size
from localspec.store.store import user_store
from localspec.text import one_line
from localspec.weights.checkpoint import inspect, is_packed, revision
from localspec.weights.packed_file import read

app = typer.Typer()

Facts = dict[str, str | int | float | list[str] | None]
# Most models lack these.
_ONLY_KNOWN = ("weights", "shipped", "draft", "draft_form", "draft_origin", "passed_over", "auto", "idle")
_ONLY_JSON = ("rule", "M")  # people see them in the line `auto`


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A registered name, or a directory in the Hugging Face layout.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of lines.")] = False,
) -> None:
    """Show what is known about a model."""
    card = named_card(full_name(name))
    facts = _installed_facts(card) if card.here else _announced_facts(card)
    if card.entry is not None:
        facts |= _entry_facts(card.entry)
    if card.here and is_packed(card.path):
        facts |= _packed_facts(card, facts)
    facts |= _choice_facts(card)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    optional_keys = (*_ONLY_KNOWN, *(("commit",) if card.imported_as else ()))  # the user's file has no commit
    for key, value in facts.items():
        if key not in _ONLY_JSON and (value is not None or key not in optional_keys):
            line = f"{key:13} {one_line(_value_in_words(key, value)) or _missing(key, card)}"
            print("\n".join(folded(line, width(), indent=14)))


def _missing(key: str, card: TargetCard) -> str:
    """Return the text to print in place of a missing value."""
    if key in ("source", "commit") and card.entry and card.entry.toy:
        return "comes with localspec"
    return "not here" if key in ("path", "commit") and not card.here else "unknown"


def _installed_facts(card: TargetCard) -> Facts:
    checkpoint = inspect(card.path)
    shape = Shape.of(checkpoint.config)
    small, passed_over = default_draft(card)
    draft = small.card.name if small is not None and small.card.here else None
    why_no_draft = passed_over or ("" if small else too_large_to_draft(card))
    return {
        "name": card.name,
        "description": card.description,
        "installed": True,
        "path": str(card.path),
        "architecture": checkpoint.architecture,
        "parameters": checkpoint.parameters,
        "bytes": checkpoint.bytes,
        "weights": checkpoint.size_in_words if checkpoint.packing else None,
        "context": shape.context if shape else checkpoint.context,
        "license": card.license,
        "drafters": [
            *_free_kinds(shape),
            *(
                drafter.kind
                for drafter in trained_drafters(card)
                if shape is None or kind_of(drafter.kind).drafts_for(shape)
            ),
            *(f"{kind}:{draft}" for kind in kinds("draft model") if draft is not None),
        ],
        "shipped": _shipped(card),
        "draft": draft,
        "draft_form": draft_form(small.card) if small is not None and draft is not None else None,
        "draft_origin": small.origin if small is not None and draft is not None else None,
        "passed_over": " ".join(filter(None, [why_no_draft, *damaged_drafters(card)])) or None,
        "revision": revision(card.path),
        "sampling": sampling_words(default_sampling_of(card)),
    }


def _shipped(card: TargetCard) -> list[str] | None:
    """Return the drafters that come with localspec for a published model, with their measured figures and cards."""
    lines = []
    for drafter in trained_drafters(card):
        length, nodes = drafter.generated or (0.0, 0)
        measured = f", {length:.2f} tokens/step with {counted(nodes, 'node')}" if nodes else ""
        if drafter.shipped:
            lines.append(f"{drafter.kind}, {size(drafter.bytes)}{measured}, described in {drafter.path / 'README.md'}")
    return lines or None


def _free_kinds(shape: Shape | None) -> list[str]:
    """Return the kinds of drafters without weights that draft for a model of this shape."""
    if shape is None:
        return [*kinds("nothing", "probe")]
    possible = kinds("nothing", "probe") if shape.layers_alone else kinds("nothing")
    return [kind for kind in possible if kind_of(kind).drafts_for(shape)]


def _announced_facts(card: TargetCard) -> Facts:
    """Return facts about a model that is not here, from models.toml."""
    shape = card.entry.shape if card.entry else None
    architecture = card.entry.architecture if card.entry else None
    mtp = [MTP] if comes_with_mtp(architecture) else []
    return {
        "name": card.name,
        "description": card.description,
        "installed": False,
        "path": None,
        "architecture": architecture,
        "parameters": shape.parameters if shape else None,
        "bytes": 2 * shape.parameters if shape else None,  # published weights are bf16
        "context": shape.context if shape else None,
        "license": card.license,
        "drafters": [*_free_kinds(shape), *mtp, *(drafter.kind for drafter in trained_drafters(card))],
        "shipped": _shipped(card),
    }


def _choice_facts(card: TargetCard) -> Facts:
    """Return which drafter `auto` now chooses by the user's settings and earlier measurements, and why.

    If the model is not here, drafters that would be fetched with it are considered too.
    """
    settings = config.load()
    with user_store(lambda _: None, create=False) as store:
        measurements = Measurements(MeasurementCache(store), settings.exact, settings.context, quiet=True)
        try:
            if not card.here:
                machine = this_machine(measurements.recalled_bandwidth)
                pair = recommend(model_of(card), machine, measurements, here=False, rule=settings.drafter_rule)
                m = pair.plan.cost_effectiveness if pair.plan else None
                return {"auto": pair.reason, **_rule_and_m(pair.plan, m)}
            choice = choose(card, replace(settings, drafter="auto", draft_max="auto"), measurements=measurements)
        except LocalspecError as trouble:
            return {"auto": str(trouble), "rule": None, "M": None, "idle": None}
    return {"auto": choice.reason, **_rule_and_m(choice, choice.cost_effectiveness), "idle": choice.idle or None}


def _rule_and_m(plan: Choice | RunPlan | None, m: float | None) -> Facts:
    return {"rule": plan.rule if plan else None, "M": None if m is None else round(m, 3)}


def _entry_facts(entry: Entry) -> Facts:
    source = source_here(entry) or entry.source
    pulled = record(source) if source else None
    return {
        "publisher": entry.publisher or None,
        "quality": entry.quality or None,
        "source": str(source) if source else None,
        "commit": pulled.commit if pulled else None,
        "gated": entry.gated,
        "thinking": entry.thinking,
        "verified": entry.verified or pulled is not None or entry.source is None,
        "forms": [form_in_words(form) for form in entry.forms],
        "published": [_drafter_in_words(drafter) for drafter in entry.drafters],
    }


def _packed_facts(card: TargetCard, facts_so_far: Facts) -> Facts:
    """Return a packed file's source and commit, and whether its model thinks; `facts_so_far` has the other facts."""
    from localspec.models.chat_tokenizer import ChatTokenizer, tokenizer_of  # the tokenizers library

    origin = read(card.path).header.origin
    thinking = facts_so_far.get("thinking")
    with suppress(LocalspecError):  # the error is reported when the model is loaded
        thinking = thinking or ChatTokenizer(tokenizer_of(card.path)).thinks
    file = next(iter(origin.files), None) if card.imported_as else None
    facts: Facts = {
        "source": file or facts_so_far.get("source") or origin.repo or next(iter(origin.files), None),
        "commit": origin.commit or None,
        "thinking": thinking,
    }
    return facts | ({"verified": True} if origin.commit or file else {})


def form_in_words(form: Form) -> str:
    """Return in words where another form of a model is published, by whom, its license and its size."""
    length = f", {size(form.bytes)}" if form.bytes else ""
    publisher, terms = form.publisher or "unknown", form.license or "unknown"
    return f"{form.source}, by {publisher}, license {terms}{length}"


def _drafter_in_words(drafter: PublishedDrafter) -> str:
    """Return a published drafter in words: kind, origin, license, tokens per step, and "not lossless" if so."""
    where = (
        f"{drafter.source}, by {drafter.publisher or 'unknown'}" if drafter.source else "a small model of its family"
    )
    if drafter.source is None and drafter.kind in kinds("published"):
        where = "part of the model's files, if they include the layer that this drafter uses"
    if drafter.source is None and drafter.kind in kinds("weights"):
        where = f"not published; train it with `localspec train {drafter.kind}`"
    accepted = f", {drafter.accepted.length} tokens/step ({drafter.accepted.source})" if drafter.accepted else ""
    license_ = f", license {drafter.license}" if drafter.license else ""
    return f"{drafter.kind}: {where}{license_}{accepted}{'' if drafter.lossless else ', not lossless'}"


def _value_in_words(key: str, value: object) -> str:
    if width() and isinstance(value, int) and key in ("parameters", "bytes"):
        return f"{amount(value) if key == 'parameters' else size(value)} ({value:,})"
    if isinstance(value, list):
        if not value:
            return "none"
        return "; ".join(value) if any(", " in item for item in value) else ", ".join(value)
    if key == "verified":  # in JSON a word for programs; people would think of `localspec verify`
        return (
            "localspec is known to work with the files from this source"
            if value
            else "localspec was never tested with the files from this source"
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
