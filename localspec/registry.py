"""Names of models -> TargetCard: models.toml, and the user's own."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec.checkpoint import Checkpoint, inspect
from localspec.config import home, nearest, read_toml
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.paths import Paths

_PACKAGE = Path(__file__).parent
_KEYS = ("path", "license", "description", "draft")


@dataclass(frozen=True)
class TargetCard:
    """A model by its name, and where it lies."""

    name: str
    path: Path
    license: str | None
    description: str
    draft: str = ""  # the name or directory of a small model with its tokenizer, if one is known


def cards(paths: Paths | None = None) -> dict[str, TargetCard]:
    """Every registered model by name; an entry of the user's own models.toml replaces one of the same name.

    Raises UsageMistake for an entry that cannot be meant.
    """
    shipped = _PACKAGE / "models.toml"
    if not shipped.exists():  # a source tree: the wheel is where it moves into the package
        shipped = _PACKAGE.parent / "models.toml"
    own = (paths or Paths(home())).user_models_file
    return {card.name: card for file in (shipped, own) for card in _entries(file)}


def _entries(file: Path) -> Iterator[TargetCard]:
    for name, entry in read_toml(file).items():
        if not isinstance(entry, dict):
            raise UsageMistake(f"{name!r} in {file} is not a table; write [{name}] and a path below it.")
        for key, value in entry.items():
            if key not in _KEYS:
                raise UsageMistake(
                    f"Unknown key {key!r} of model {name!r} in {file}{nearest(key, _KEYS)}; correct or remove it."
                )
            if not isinstance(value, str) or not value or "\0" in value:
                raise UsageMistake(f"{key} = {value!r} of model {name!r} in {file} must be a text; correct it.")
        if "path" not in entry:
            raise UsageMistake(f'Model {name!r} in {file} has no path; add path = "the model\'s directory".')
        place = str(entry["path"])
        if place.startswith("package:"):
            path = _PACKAGE / place.removeprefix("package:")
        else:
            path = file.parent / os.path.expanduser(place)
        draft = entry.get("draft", "")
        if re.match(r"[.~/\\]", draft):  # a path, relative to the file it stands in
            draft = os.path.normpath(file.parent / os.path.expanduser(draft))
        yield TargetCard(name, path, entry.get("license") or _license(path), entry.get("description", ""), draft)


def resolve(name: str, paths: Paths | None = None) -> TargetCard:
    """The model that `name` means: a registered one, else a local directory. Raises NotHere naming what there is."""
    known = cards(paths)
    if name in known:
        return known[name]
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if name and "\0" not in name and os.path.isdir(path):
        if not (path / "config.json").exists() and (path / "target" / "config.json").exists():
            path = path / "target"  # a directory of `train`, whose drafter changed its target
        if re.search("[\ud800-\udfff]", str(path)):
            raise LocalspecError(f"The name of {name!r} is not UTF-8, and weights cannot be read there; rename it.")
        return TargetCard(name, path, _license(path), "")
    if name and "\0" not in name and os.path.lexists(path):
        raise NotHere(
            f"{name!r} is not a directory; give the directory in the Hugging Face layout that holds config.json."
        )
    here = ", ".join(known)
    if name.startswith((".", "/", "~")) or "\\" in name:
        raise NotHere(f"There is no directory {name!r}; give one in the Hugging Face layout, or a name out of: {here}.")
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", name):
        raise NotHere(
            f"{name!r} is not here: this version loads local directories in the Hugging Face layout "
            f"and these names only: {here}."
        )
    raise NotHere(
        f"There is no model {name!r}{nearest(name, known)}; give a local directory, or a name out of: {here}."
    )


def reference(card: TargetCard, paths: Paths | None = None) -> str:
    """What `resolve` finds this model by from anywhere: its name, or the absolute path of its directory."""
    return card.name if cards(paths).get(card.name) == card else str(card.path)


def installed(paths: Paths | None = None) -> Iterator[tuple[TargetCard, Checkpoint | LocalspecError]]:
    """Every registered model with what lies in its directory, or with why it cannot be used."""
    for card in cards(paths).values():
        try:
            yield card, inspect(card.path)
        except LocalspecError as error:
            yield card, error


def _license(path: Path) -> str | None:
    """What the directory's README.md says in its front matter, else the name of a license file."""
    try:
        front = re.match(r"---\r?\n(.*?)\r?\n---", (path / "README.md").read_text("utf-8", "replace"), re.DOTALL)
    except OSError:
        front = None
    lines = re.findall(r"^(license|license_name):[ \t]*[\"']?([^\"'\r\n#]+)", front[1] if front else "", re.MULTILINE)
    said: dict[str, str] = dict(lines)
    chosen = said.get("license", "").strip()
    if chosen == "other":
        chosen = said.get("license_name", chosen).strip()
    if chosen:
        return chosen
    try:
        files = sorted(entry.name for entry in path.iterdir() if re.match(r"(?i)licen[cs]e|copying", entry.name))
    except OSError:
        return None
    return f"see {files[0]}" if files else None
