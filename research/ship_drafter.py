"""Write a trained drafter as it is shipped with localspec: with few heads, and its matrices in int8.

    python research/ship_drafter.py TRAINED localspec/trained/NAME [--heads 2]

Every 32 numbers of a row share a factor in fp16, as in the form that the CPU engine computes with; other tensors are in fp16. Prints the
bytes, and the largest difference of a matrix's numbers from those of the training, as a share of the largest.
"""

import argparse
import json
from pathlib import Path

import checkout  # noqa: F401
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from localspec.drafters.tensors import StoredTensors
from localspec.models.drafter_cards import FACTORS, GROUP, read_drafter

SMALL = 2**14  # numbers of a tensor that stays in fp16


def in_int8(numbers: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Return integers of the same shape, and a factor for every GROUP of the last axis."""
    *outer, inner = numbers.shape
    padded = np.zeros((*outer, -(-inner // GROUP) * GROUP), np.float32)
    padded[..., :inner] = numbers
    groups = padded.reshape(*outer, -1, GROUP)
    factors = (np.abs(groups).max(-1) / 127).astype(np.float16)
    steps = np.rint(groups / np.maximum(factors, np.finfo(np.float16).tiny)[..., None].astype(np.float32))
    return steps.clip(-127, 127).astype(np.int8).reshape(padded.shape)[..., :inner], factors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--heads", type=int, default=2, help="of medusa, from the first on")
    asked = parser.parse_args()
    card = read_drafter(asked.trained)
    about = json.loads((card.path / "drafter.json").read_text("utf-8"))
    stored, written = StoredTensors(card.path / "drafter.safetensors"), {}
    heads = min(asked.heads, about["options"]["heads"]) if card.kind == "medusa" else None
    for name in stored:
        numbers = np.ascontiguousarray(stored[name][:heads] if name != "kept" else stored[name])
        if numbers.dtype != np.float32:
            written[name] = numbers
        elif numbers.size < SMALL:
            written[name] = numbers.astype(np.float16)
        else:
            written[name], written[name + FACTORS] = in_int8(numbers)
    if heads is not None:
        about["options"]["heads"] = heads
        for name in ("accuracy_by_depth", "right_after_right"):
            about[name] = about.get(name, [])[:heads]
    asked.to.mkdir(parents=True, exist_ok=True)
    save_file(written, asked.to / "drafter.safetensors")
    (asked.to / "drafter.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    shipped = StoredTensors(asked.to / "drafter.safetensors")
    print(f"{(asked.to / 'drafter.safetensors').stat().st_size / 1e6:.2f} MB")
    for name in shipped:
        if name + FACTORS in written:
            before = stored[name][:heads]
            print(f"{name}: {np.abs(shipped[name] - before).max() / np.abs(before).max():.4f}")


if __name__ == "__main__":
    main()
