"""Saves and finds the present model: the model that answers if the user names no other."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from localspec.config import Settings
from localspec.errors import LocalspecError, NotHere
from localspec.hub.cache import holds_tokenizer
from localspec.models import registry
from localspec.outside_files import parse_json, read_bytes
from localspec.paths import Paths, private_directory, write_anew
from localspec.text import one_line
from localspec.weights.checkpoint import inspect, is_packed

By = Literal["use", "chat", "machine"]
_ORIGINS: dict[str, str] = {
    "use": "chosen with `localspec use`",
    "chat": "chosen in a chat",
    "machine": "chosen as the best for this machine when a model was first needed",
}


class SavedChoice(NamedTuple):
    """A saved choice: the name or directory of a model, and the command that made it."""

    model: str
    by: By


class Present(NamedTuple):
    """The model that answers if the user names no other, and the reason (`origin`). None: the first prompt decides."""

    model: str | None
    origin: str


def saved_choice(paths: Paths) -> SavedChoice | None:
    """Return the saved choice of a model; None if no choice is saved, or if its file cannot be read."""
    with suppress(OSError, ValueError):
        choice = parse_json(read_bytes(paths.choice))
        if isinstance(choice, dict) and isinstance(choice.get("model"), str) and choice.get("by") in get_args(By):
            return SavedChoice(choice["model"], choice["by"])
    return None


def save_choice(model: str, by: By, paths: Paths) -> None:
    """Save the chosen model, and the command `by` that chose it, for later sessions. Raises OSError."""
    if saved_choice(paths) == (model, by):
        return
    private_directory(paths.choice.parent)
    write_anew(paths.choice, json.dumps({"model": model, "by": by}).encode() + b"\n")


def present_model(settings: Settings, paths: Paths) -> Present:
    """Return the present model without measuring or loading anything."""
    if settings.model is not None:
        name = registry.renamed(paths).get(settings.model, settings.model)
        return Present(name, one_line(settings.origins["model"]))
    if (choice := saved_choice(paths)) is not None:
        card = None
        try:
            card = registry.resolve(choice.model, paths)
            inspect(card.path)
        except NotHere:
            card = None
        except LocalspecError:  # the first prompt reports what is wrong with it
            card = registry.find(choice.model, paths)
        if card:
            return Present(card.name, _ORIGINS[choice.by])
    models = chat_models(paths)
    if len(models) > 1:
        return Present(None, f"one of the {len(models)} models here is chosen at the first prompt")
    if models:
        return Present(models[0].name, "the only model here")
    return Present("demo", "no other model is here")


def is_here(model: str, paths: Paths) -> bool:
    """Return whether a name or directory resolves to a model here."""
    try:
        registry.resolve(model, paths)
    except LocalspecError:
        return False
    return True


def chat_models(paths: Paths) -> list[registry.TargetCard]:
    """Return the models here that can chat, except the embedded demo. Further names for the same files are left out."""
    models: dict[Path, registry.TargetCard] = {}
    for card, result in registry.installed(paths):
        talks = is_packed(card.path) or holds_tokenizer(card.path)
        if talks and not isinstance(result, LocalspecError) and card.entry and not card.entry.toy:
            models.setdefault(card.path, card)
    return list(models.values())


def missing_models(paths: Paths) -> list[str]:
    """Return a sentence for each registered model whose GGUF files are missing or have changed."""
    models = registry.installed(paths)
    return [str(result) for card, result in models if isinstance(result, NotHere) and is_packed(card.path)]
