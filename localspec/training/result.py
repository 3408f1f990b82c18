"""Writes the result of a training: the drafter with its record, and its target where that was changed."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import torch
from safetensors import SafetensorError

from localspec import __version__
from localspec.drafters.saved import CARD
from localspec.errors import DoesNotFit, LocalspecError
from localspec.models.drafter_cards import ACCEPTANCE
from localspec.nn.target import Target
from localspec.outside_files import parse_json, read_bytes
from localspec.training import checkpoint, curves
from localspec.training.merging import write_merged
from localspec.training.trainable import TrainableDrafter, save_drafter
from localspec.weights.fingerprint import Identity

REPORTED = ("measured_tokens", "steps", "tokens", "loss", "perplexity")  # of how a drafter was trained
NEW_TARGET = "target.new"
COPIED = ("generation_config.json", "LICENSE*", "NOTICE*")  # to a changed target


@dataclass(frozen=True)
class Origin:
    """The model that a drafter was trained for: its name, its directory, and what identifies it."""

    name: str
    path: Path
    revision: str


@dataclass(frozen=True)
class Result:
    """The result of a training. `record` is what drafter.json says beside kind, options and target."""

    drafter: TrainableDrafter
    origin: Origin
    changes_target: bool
    record: Mapping[str, Any]

    def write(self, directory: Path) -> None:
        """Write drafter/ and losses.svg, keeps as target/ what `write_target` wrote; remove what it wrote in part.

        Raises DoesNotFit where the disk is full, and LocalspecError for other failures.
        """
        with _told(directory):
            self._write(directory)

    def _write(self, directory: Path) -> None:
        origin, target = self.origin, self.drafter.target
        weights = Identity(origin.path).weights
        made_for: dict[str, Any] = {"name": origin.name, "revision": origin.revision, "weights": weights}
        if self.changes_target:
            self._keep_target(directory)
            own = Identity(directory / "target")
            made_for = {
                "name": f"{origin.name}, changed by {self.drafter.kind}",
                "revision": own.revision,
                "weights": own.weights,
                "made_from": made_for,
            }
        curves.draw(directory / "losses.jsonl", directory / "losses.svg", f"{self.drafter.kind} for {origin.name}")
        about = {
            "target": made_for,
            "tokenizer": target.tokenizer.hash,
            "template": _hash(target),
            **self.record,
            "versions": {
                "localspec": __version__,
                "python": python_version(),
                "torch": torch.__version__,
                **{name: version(name) for name in ("transformers", "accelerate")},  # to import transformers takes long
            },
        }
        save_drafter(self.drafter, directory / "drafter", about)

    @staticmethod
    def _keep_target(directory: Path) -> None:
        """Put what `write_target` wrote in its place."""
        old = directory / "target"
        if old.exists():
            shutil.rmtree(old)
        (directory / NEW_TARGET).replace(old)


def write_target(drafter: TrainableDrafter, origin: Path, directory: Path) -> Path:
    """Write a target that training has changed, and return where it is until `Result.write` keeps it.

    `origin` is the model's directory. Raises what `Result.write` raises.
    """
    new = directory / NEW_TARGET
    shutil.rmtree(new, ignore_errors=True)
    with _told(directory):
        if drafter.adapters is None:
            drafter.target.save(new)
        else:
            write_merged(origin, drafter.target, drafter.adapters, new)
        for pattern in COPIED:
            for file in origin.glob(pattern):
                shutil.copyfile(file, new / file.name)
    return new


@contextmanager
def _told(directory: Path) -> Iterator[None]:
    """Says in a sentence why something cannot be written, and removes what was written in part."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        for left in directory.glob("**/*.new"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        kind, remedy = (DoesNotFit, "make room") if checkpoint.full(error) else (LocalspecError, "correct that")
        raise kind(
            f"The result cannot be written to {directory} ({error}); {remedy}, and give the same command again: it "
            "continues from its checkpoint."
        ) from error


def report_of(directory: Path) -> dict[str, Any]:
    """Return what `train --json` prints of the drafter in a directory. Raises LocalspecError where it is damaged."""
    file = directory / "drafter" / CARD
    try:
        card = parse_json(read_bytes(file))
        trained, target = card["trained"], card["target"]
        return {
            "kind": card["kind"],
            "model": target.get("made_from", target)["name"],
            "directory": str(directory),
            "changes_target": "made_from" in target,
            "seconds": round(3600 * trained["hours"], 2),
            "accuracy_by_depth": card["accuracy_by_depth"],
            **{name: card[name] for name in ACCEPTANCE if name in card},
            **{name: trained[name] for name in REPORTED if name in trained},
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LocalspecError(f"{file} cannot be read ({error}); give --force to start over.") from None


def rounded(shares: Sequence[float]) -> list[float]:
    """Return figures as a card shows them."""
    return [round(share, 4) for share in shares]


def _hash(target: Target) -> str:
    """Return a digest of the chat template: targets with the same one render conversations alike."""
    return hashlib.sha256(json.dumps(target.tokenizer.chat_template).encode()).hexdigest()[:16]
