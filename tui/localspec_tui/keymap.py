"""The user's keys: checks the `keymap` in the settings, and converts it for Textual."""

import string
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from textual.app import App
from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, KEY_TO_UNICODE_NAME, Keys

from localspec.config import Settings, nearest
from localspec.errors import UsageMistake

CHAT = ("localspec_tui.app", "localspec_tui.screens.chat", "localspec_tui.widgets.prompt")
MODIFIERS = ("alt", "ctrl", "hyper", "meta", "shift", "super")
SHORT = {"esc": "escape", "pgup": "pageup", "pgdn": "pagedown", "del": "delete", "ins": "insert", "return": "enter"}
SHOWN = {"escape": "esc", "pageup": "pgup", "pagedown": "pgdn"}
# Keys that terminals cannot distinguish from others.
SAME = {"ctrl+m": "enter", "ctrl+i": "tab", "ctrl+h": "backspace", "ctrl+left_square_bracket": "escape"}


KeysOf = dict[str, tuple[str, ...]]  # by the name of their action


class Bound(NamedTuple):
    """An action that has keys: its name in the keymap, where it works, its keys, and the module that defines it."""

    name: str | None
    action: str
    keys: tuple[str, ...]
    module: str


PALETTE = Bound(None, "palette", (App.COMMAND_PALETTE_BINDING,), CHAT[0])


def shown(app: App[Any], binding: Binding) -> str:
    """Return the keys of a binding in words: the user's keys if they differ from the defaults."""
    keys = keys_of(app, binding)
    return ", ".join("+".join(SHOWN.get(part, part) for part in key.split("+")) for key in keys)


def keys_of(app: App[Any], binding: Binding) -> list[str]:
    """Return the keys of a binding, named as in Textual: `ctrl+up`."""
    return _chosen(app).get(binding.id or "", binding.key).split(",")


def key(app: App[Any], name: str) -> str:
    """Return one key of the action with this name in the chat, for use in a sentence."""
    keys = _chosen(app).get(name) or _defaults()[name]
    return shown(app, Binding(keys.partition(",")[0], ""))


def _chosen(app: App[Any]) -> dict[str, str]:
    """Return the keys that the user has set, by action; empty in an application other than the chat."""
    return getattr(app, "chosen_keys", {})


@cache
def _defaults() -> dict[str, str]:
    return {action.name: ",".join(action.keys) for module in CHAT for action in _bound(module) if action.name}


def effective(settings: Settings) -> dict[str, str]:
    """Return the keymap for Textual. Raises UsageMistake for an unknown name or key, and for keys that collide."""
    changes = settings.keymap
    if not changes:
        return {}
    origin = settings.origins.get("keymap", "the keymap")
    bound = [PALETTE, *(action for module in CHAT for action in _bound(module))]
    if not changes.keys() <= {action.name for action in bound}:  # the dialogs above the chat take longer to import
        bound = [PALETTE, *(action for module in _module_names() for action in _bound(module))]
    defaults: KeysOf = {action.name: action.keys for action in bound if action.name}
    chosen: KeysOf = {}
    for name, keys in changes.items():
        if name not in defaults:
            raise UsageMistake(f"{origin}: there is no action {name!r}{nearest(name, defaults)}; correct or remove it.")
        printable = any(_is_printable(key) for key in defaults[name])
        chosen[name] = tuple(_checked(key, name, origin, printable) for key in keys.split(","))
    for name in chosen:
        _refuse_collision(name, chosen, bound, origin)
    return {name: ",".join(keys) for name, keys in {**_keys_to_restore(chosen, bound), **chosen}.items()}


def _keys_to_restore(chosen: KeysOf, bound: Iterable[Bound]) -> KeysOf:
    """Return the default keys of all actions that share a default key with an action that the user has changed.

    Textual would remove the shared key from all of them.
    """
    freed = {(action.module, key) for action in bound if action.name in chosen for key in action.keys}
    return {
        action.name: action.keys
        for action in bound
        if action.name and freed & {(action.module, key) for key in action.keys}
    }


def _refuse_collision(name: str, chosen: KeysOf, bound: Iterable[Bound], origin: str) -> None:
    changed = next(action for action in bound if action.name == name)
    for other in bound:
        if other.name == name or {*changed.keys} & {*other.keys} or not _meet(changed.module, other.module):
            continue
        keys = chosen.get(other.name or "", other.keys)
        if key := next((key for key in chosen[name] if key in keys), None):
            called = other.name or other.action
            raise UsageMistake(
                f"{origin}: {key} is assigned to {name} and to {called}; choose another key for one of them."
            )


def _meet(first: str, second: str) -> bool:
    """Return whether keys defined in these two modules can work on the same screen, and so could collide.

    While a dialog is open, the chat's keys do not work.
    """
    return (
        first == second
        or CHAT[0] in (first, second)
        or all(module in CHAT or ".widgets." in module for module in (first, second))
    )


def _checked(key: str, name: str, origin: str, printable: bool) -> str:
    """Return Textual's name for a key in the settings. Raises UsageMistake for an unknown key."""
    *modifiers, base = _parts(key.strip())
    base = SHORT.get(base.lower(), base.lower() if len(base) > 1 or modifiers else base)
    base = _textual_key_name(base) if len(base) == 1 else base
    modifiers = sorted({modifier.lower() for modifier in modifiers})
    if not {*modifiers} <= {*MODIFIERS} or not (len(base) == 1 or base in _key_names()):
        shown = key.strip()[:40]
        raise UsageMistake(
            f"{origin}: {name} = {shown!r} is not a key{nearest(base, _key_names())}; give one such as f12."
        )
    full = "+".join([*modifiers, base])
    full = SAME.get(full, full)
    if _is_printable(full) and not printable:
        raise UsageMistake(f"{origin}: {name} = {key.strip()!r} is for typing; give a key such as f12.")
    return full


def _parts(key: str) -> list[str]:
    """Return the modifiers of a key and its base: `ctrl++` gives "ctrl" and "+"."""
    return [*key[:-2].split("+"), "+"] if key.endswith("++") else ["+"] if key == "+" else key.split("+")


def _is_printable(key: str) -> bool:
    *modifiers, base = key.split("+")
    typed = len(base) == 1 or base == "space" or base in map(_textual_key_name, string.punctuation)
    return typed and not {*modifiers} - {"shift"}


def _textual_key_name(character: str) -> str:
    name = character if character.isalnum() else unicodedata.name(character, character).lower()
    name = name.replace("-", "_").replace(" ", "_") if len(name) > 1 else name
    return KEY_NAME_REPLACEMENTS.get(name, name)


@cache
def _key_names() -> frozenset[str]:
    names = {key.value.rpartition("+")[2] for key in Keys if not key.value.startswith("<") and "-" not in key.value}
    return frozenset({*names, *KEY_TO_UNICODE_NAME, *map(_textual_key_name, string.punctuation), "space", "tab"})


def _module_names() -> Iterator[str]:
    home = Path(__file__).parent
    for file in sorted(home.rglob("*.py")):
        if file.stem != "__init__":
            yield ".".join((home.name, *file.relative_to(home).with_suffix("").parts))


def _bound(module: str) -> Iterator[Bound]:
    """Yield the key bindings of the classes in a module, with inherited bindings."""
    for kind in vars(import_module(module)).values():
        if isinstance(kind, type) and kind.__module__ == module:
            overridden: set[str] = set()  # keys for which a class overrides inherited bindings
            for cls in kind.__mro__ if vars(kind).get("_inherit_bindings", True) else [kind]:
                bindings = [binding for binding in vars(cls).get("BINDINGS", ()) if isinstance(binding, Binding)]
                for binding in bindings:
                    if not overridden & {*binding.key.split(",")}:
                        yield Bound(binding.id, binding.action, tuple(binding.key.split(",")), module)
                overridden |= {key for binding in bindings for key in binding.key.split(",")}
