"""Writes the result of a training: the drafter with its record, and the target if training changed it.

If adapters changed the target, it is written one tensor at a time: the original weight plus the adapter's product. So
the result has full precision even if the training used packed weights.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import torch

from localspec import __version__
from localspec.drafters.trained import CARD
from localspec.errors import LocalspecError
from localspec.families.architecture import weight_map
from localspec.models.drafter_cards import ACCEPTANCE
from localspec.nn.adapters import Adapters
from localspec.nn.target import Target
from localspec.nn.weights import TYPES, read_stored, write_tensors
from localspec.outside_files import parse_json, read_bytes
from localspec.training import curves
from localspec.training.checkpoint import errors_in_words
from localspec.training.trainable import TrainableDrafter, save_drafter
from localspec.weights.checkpoint import originals
from localspec.weights.fingerprint import Identity
from localspec.weights.stored import StoredTensor, read_config, stored_sizes, stored_tensors

REPORTED = ("measured_tokens", "steps", "tokens", "loss", "perplexity")  # of how a drafter was trained
NEW_TARGET = "target.new"
RESULT = ("The result", "give the same command again: it continues from its checkpoint")  # for errors of writing
FINE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # precise enough for a small change
COPIED = ("generation_config.json", "LICENSE*", "NOTICE*")  # to a changed target


def write_result(
    drafter: TrainableDrafter,
    origin: Path,
    made_for: Mapping[str, str],
    changes_target: bool,
    record: Mapping[str, Any],
    directory: Path,
) -> None:
    """Write drafter/ and losses.svg. If training changed the target, move it to target/. Remove incomplete files on
    failure.

    `origin` is the directory of the model that the drafter was trained for, and `made_for` has the model's name and
    revision. `record` is the content of drafter.json, except kind, options and target. Raises DoesNotFit if the disk is
    full, and LocalspecError for other failures.
    """
    with errors_in_words(directory, RESULT):
        name, target = made_for["name"], {**made_for, "weights": Identity(origin).weights}
        about: dict[str, Any] = {"target": target}
        if changes_target:
            shutil.rmtree(directory / "target", ignore_errors=True)
            (directory / NEW_TARGET).replace(directory / "target")
            new = Identity(directory / "target")
            changed = f"{name}, changed by {drafter.kind}"
            about["target"] = {"name": changed, "revision": new.revision, "weights": new.weights, "made_from": target}
        curves.draw(directory / "losses.jsonl", directory / "losses.svg", f"{drafter.kind} for {name}")
        about |= {
            "tokenizer": drafter.target.tokenizer.hash,
            "template": _template_digest(drafter.target),
            **record,
            "versions": {
                "localspec": __version__,
                "python": python_version(),
                "torch": torch.__version__,
                **{name: version(name) for name in ("transformers", "accelerate")},  # importing them would take long
            },
        }
        save_drafter(drafter, directory / "drafter", about)


def write_target(drafter: TrainableDrafter, origin: Path, directory: Path) -> Path:
    """Write the target that training has changed, and return its temporary path. `write_result` moves it later.

    `origin` is the directory of the original model. Raises the errors of `write_result`.
    """
    new = directory / NEW_TARGET
    shutil.rmtree(new, ignore_errors=True)
    with errors_in_words(directory, RESULT):
        if drafter.adapters is None:
            drafter.target.save(new)
        else:
            write_merged(origin, drafter.target, drafter.adapters, new)
        for pattern in COPIED:
            for file in origin.glob(pattern):
                shutil.copyfile(file, new / file.name)
    return new


def write_merged(origin: Path, target: Target, adapters: Adapters, path: Path) -> None:
    """Write the model in the directory `origin` to `path`, with the trained `adapters` merged into its weights.

    If the head was trained, it is written as a separate matrix, even if it was tied to the embedding. Raises NotHere
    for a packed file, LocalspecError for broken files, OSError and SafetensorError if nothing can be written.
    """
    path.mkdir(parents=True)
    write_tensors(path, _merged(origin, adapters))
    target.save_settings(path, {"tie_word_embeddings": False} if adapters.head is not None else {})


def _merged(origin: Path, adapters: Adapters) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the model's tensors by Hugging Face names, with adapters added; changed ones have at least bf16."""
    checkpoint = originals(origin)
    sizes = stored_sizes(checkpoint, read_config(checkpoint))
    stored, made_of = stored_tensors(checkpoint, sizes), weight_map(sizes)
    if adapters.head is not None and sizes.tied:
        stored["lm_head.weight"] = stored["model.embed_tokens.weight"]
        made_of["lm_head.weight"] = [("lm_head.weight", sizes.vocab_size)]
    for name, parts in made_of.items():
        change = adapters.change_of(name)
        changes = [None] * len(parts) if change is None else torch.split(change.cpu(), [rows for _, rows in parts])
        for (part, _), added in zip(parts, changes, strict=True):
            tensor = _read(stored[part])
            if added is not None:
                dtype = tensor.dtype if tensor.dtype in FINE else torch.bfloat16
                tensor = (tensor.float() + added).to(dtype)
            yield part, tensor


def _read(stored: StoredTensor) -> torch.Tensor:
    tensor = torch.empty(stored.shape, dtype=TYPES[stored.dtype])
    read_stored(stored, tensor)
    return tensor


def report_of(directory: Path) -> dict[str, Any]:
    """Return the output of `train --json` for the drafter in a directory. Raises LocalspecError if it is damaged."""
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
    """Return shares rounded to the digits that drafter.json shows."""
    return [round(share, 4) for share in shares]


def _template_digest(target: Target) -> str:
    return hashlib.sha256(json.dumps(target.tokenizer.chat_template).encode()).hexdigest()[:16]
