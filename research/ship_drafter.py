"""Write a trained drafter in the form that ships with localspec: int4 matrices, and for medusa only the first heads.

    python research/ship_drafter.py TRAINED localspec/trained/NAME [--heads 2]

Every 64 numbers of a row share an fp16 factor, the one of 17 with the least squared error. Small tensors are in fp16.
The script prints the size and the relative error (Frobenius norm) of each matrix. Then it measures the acceptance
length, which `auto` reads, on the prompts that come with localspec. For that the model must be on this machine.
"""

import argparse
import json
from pathlib import Path

import checkout  # noqa: F401
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.drafters.tensors import StoredTensors
from localspec.drafters.trained import load_drafter
from localspec.engine.loading import load_target
from localspec.events import Reporter
from localspec.models import registry
from localspec.models.drafter_cards import ACCEPTANCE, DIGEST, FACTORS, GROUP, file_digest, read_drafter
from localspec.training.examples import held_out_prompts
from localspec.training.verdict import ELSEWHERE, measure_generated

SECONDS = 600.0  # seconds after which no reply begins
SMALL = 2**14  # tensors with fewer numbers are stored in fp16


def in_int4(numbers: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Return the numbers in int4, two in each byte, and an fp16 factor for each GROUP of numbers on the last axis."""
    *outer, inner = numbers.shape
    padded = np.zeros((*outer, -(-inner // GROUP) * GROUP), np.float32)
    padded[..., :inner] = numbers
    groups = padded.reshape(*outer, -1, GROUP)
    most = np.abs(groups).max(-1, keepdims=True)
    factors, least = np.ones(most.shape, np.float16), np.full(most.shape, np.inf, np.float32)
    for share in np.linspace(0.6, 1.0, 17):  # smaller factors clip the largest numbers, and round the others less
        tried = np.maximum(most * share / 7, np.finfo(np.float16).tiny).astype(np.float16)
        error = ((_integers(groups, tried) * tried.astype(np.float32) - groups) ** 2).sum(-1, keepdims=True)
        factors, least = np.where(error < least, tried, factors), np.minimum(error, least)
    integers = (_integers(groups, factors) + 8).astype(np.uint8).reshape(padded.shape)[..., :inner]
    return (integers[..., 0::2] | integers[..., 1::2] << 4).astype(np.uint8), factors[..., 0].astype(np.float16)


def _integers(groups: npt.NDArray[np.float32], factors: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    return np.rint(groups / factors.astype(np.float32)).clip(-8, 7)


def write(trained: Path, to: Path, most: int) -> Path:
    """Write the drafter (of medusa at most `most` heads), and print its size and errors. Return its drafter.json."""
    card = read_drafter(trained)
    about = json.loads((card.path / "drafter.json").read_text("utf-8"))
    stored, tensors = StoredTensors(card.path / "drafter.safetensors"), {}
    heads = min(most, about["options"]["heads"]) if card.kind == "medusa" else None  # None: no tensor is cut
    for name in stored:
        numbers = np.ascontiguousarray(stored[name][:heads] if heads and name != "kept" else stored[name])
        if numbers.dtype != np.float32:
            tensors[name] = numbers
        elif numbers.size < SMALL:
            tensors[name] = numbers.astype(np.float16)
        else:
            tensors[name], tensors[name + FACTORS] = in_int4(numbers)
    for name in ("kept", "bench", *ACCEPTANCE):  # measured before the drafter was cut and packed, so no longer valid
        about.pop(name, None)
    if heads is not None and heads < about["options"]["heads"]:
        about["options"]["heads"] = heads
        for name in ("accuracy_by_depth", "right_after_right"):
            about[name] = about.get(name, [])[:heads]
    to.mkdir(parents=True, exist_ok=True)
    file, description = to / "drafter.safetensors", to / "drafter.json"
    save_file(tensors, file)
    file.chmod(0o644)
    about[DIGEST] = file_digest(file)
    description.write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    shipped = StoredTensors(file)
    print(f"{file.stat().st_size / 1e6:.2f} MB")
    for name in shipped:
        if name + FACTORS in tensors:
            original = stored[name][:heads]
            print(f"{name}: {np.linalg.norm(shipped[name] - original) / np.linalg.norm(original):.4f}")
    return description


def measure(description: Path) -> None:
    """Measure the acceptance length of a written drafter, and write it into its drafter.json."""
    card = read_drafter(description.parent)
    target = load_target(choose(registry.resolve(card.target), Settings(drafter="none")), Reporter())
    prompts = ([*target.encode([{"role": "user", "content": prompt.text}])] for prompt in held_out_prompts())
    measured = measure_generated(target, load_drafter(card, target), prompts, ELSEWHERE, SECONDS)
    assert measured, "every published model has room for these replies"
    about = json.loads(description.read_text("utf-8")) | {"acceptance_elsewhere": measured}
    description.write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    print(f"{measured['length']:.2f} tokens a step with {measured['nodes']} nodes, in {measured['replies']} replies")


def main() -> None:
    """Write the drafter and measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", type=Path, help="a directory that `localspec train` wrote")
    parser.add_argument("to", type=Path)
    parser.add_argument("--heads", type=int, default=2, help="how many of medusa's heads to write, from the first on")
    options = parser.parse_args()
    if options.heads < 1:
        parser.error("--heads must be at least 1.")
    measure(write(options.trained, options.to, options.heads))


if __name__ == "__main__":
    main()
