"""Measure the loss if blocks of one GGUF type stand in for blocks of another: figures for localspec/weights/recipe.py.

    python research/stand_in_table.py FILE.gguf --work DIR --texts TEXTS.jsonl.xz [--types IQ2_XS] [--layers 3,10,17,24]

llama.cpp's own quantiser converts the matrices of some layers to a type. The importance of inputs comes from one window
of the text. Then the matrices are converted to each stand-in. Both models read the same tokens in fp32, as transformers
computes them, so only the stand-in makes a difference. *Energy of the error* is relative to the energy of the weights.
The divergence of a few layers is scaled up to all layers, because their errors are independent. For a text that the
model itself might have written, the divergence is the increase of log perplexity.
"""

import argparse
import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import gguf_quality
import numpy as np
from real.reference import log_softmax

from localspec.machine.hardware import physical_cores
from localspec.weights.gguf_file import BLOCKS, floats
from localspec.weights.matrices import BlockMatrix
from localspec.weights.recipe import STAND_INS

BY_NAME = {block.name: (number, block) for number, block in BLOCKS.items()}
TYPES = ("IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "NVFP4")
ROWS = 32  # of logits that are widened to 64 bits at a time


class Quantiser:
    """A quantiser of matrices to GGUF types, from llama.cpp's library."""

    def __init__(self) -> None:
        folder = os.environ.get("LLAMA_CPP_LIB_PATH")
        if folder is None:
            import llama_cpp

            folder = str(Path(llama_cpp.__file__).parent / "lib")
        self._library = ctypes.CDLL(str(next(Path(folder).glob("*ggml-base*"))))
        chunk = self._library.ggml_quantize_chunk
        chunk.restype = ctypes.c_size_t
        chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def numbers(self, kind: str, weights: np.ndarray, importance: np.ndarray) -> np.ndarray:
        """Return the weights [outputs, inputs] as they are in a type. `importance` is the mean square of each input."""
        number, block = BY_NAME[kind]
        self._library.ggml_quantize_init(number)
        outputs, inputs = weights.shape
        data = np.empty((outputs, inputs // block.weights * block.bytes), np.uint8)

        def some(first: int) -> None:
            rows = min(64, outputs - first)
            self._library.ggml_quantize_chunk(
                number, weights[first:].ctypes.data, data[first:].ctypes.data, 0, rows, inputs, importance.ctypes.data
            )

        with ThreadPoolExecutor(physical_cores()) as pool:
            list(pool.map(some, range(0, outputs, 64)))
        return floats(block, data).reshape(weights.shape)


def stood_in(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Return the numbers as they are after conversion to blocks of the type `kind`."""
    out, inputs = numbers.shape
    matrix = BlockMatrix.empty(out, inputs, kind)
    matrix.fill_rounded(numbers)
    return matrix.numbers()


def importances(layers: dict[str, Any], read: Callable[[], object]) -> dict[str, np.ndarray]:
    """Return the mean square of each input of each linear layer, measured while `read` reads a text."""
    means: dict[str, np.ndarray] = {}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: Any, inputs: Any) -> None:
            means[name] = inputs[0].square().mean((0, 1)).numpy().astype(np.float32)

        return keep

    handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    read()
    for handle in handles:
        handle.remove()
    return means


def compared(
    exact: list[np.ndarray], approximate: list[np.ndarray], texts: list[list[int]]
) -> tuple[float, float, float]:
    """Return the mean KL divergence, and the increase of the mean surprise (−log p) with its standard error."""
    divergence, higher = list[np.ndarray](), list[np.ndarray]()
    for reference, other, ids in zip(exact, approximate, texts, strict=True):
        for at in range(0, len(ids) - 1, ROWS):
            left, right = log_softmax(reference[at : at + ROWS]), log_softmax(other[at : at + ROWS])
            divergence.append((np.exp(left) * (left - right)).sum(-1))
            after = ids[at + 1 : at + 1 + ROWS]
            higher.append((left - right)[np.arange(len(after)), after])
    every = np.concatenate(higher)
    return float(np.concatenate(divergence).mean()), float(every.mean()), float(every.std() / len(every) ** 0.5)


def main() -> None:
    """Print a table row for each type and each of its stand-ins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--work", type=Path, required=True, help="where its weights are kept in fp32")
    parser.add_argument("--texts", type=Path, required=True, help="JSONL with `text` or `messages`, also as .xz")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument("--stand-ins", nargs="+", default=[], help="default: the one in the table")
    parser.add_argument("--layers", default="all", help="numbers with commas (default: all)")
    options = parser.parse_args()
    import torch
    from real.reference import Exact

    work = options.work / options.model.stem
    model = Exact(gguf_quality.Unpacked(options.model, work / "fp32")).model
    every = len(model.model.layers)
    chosen: Sequence[int] = (
        range(every) if options.layers == "all" else [int(text) for text in options.layers.split(",")]
    )
    layers = {
        f"{number}.{name}": part
        for number in chosen
        for name, part in model.model.layers[number].named_modules()
        if isinstance(part, torch.nn.Linear)
    }
    first, *texts = gguf_quality.windows(options.model, options.texts, 1 + -(-options.tokens // gguf_quality.WINDOW))

    @torch.inference_mode()
    def logits(ids: list[int]) -> np.ndarray:
        return model(torch.tensor([ids])).logits[0, :-1].numpy()

    def read(weights: dict[str, np.ndarray]) -> list[np.ndarray]:
        for name, numbers in weights.items():
            layers[name].weight = torch.nn.Parameter(torch.from_numpy(numbers), requires_grad=False)
        return [logits(ids) for ids in texts]

    weights = {name: layer.weight.numpy(force=True) for name, layer in layers.items()}
    weight = importances(layers, lambda: logits(first))
    quantiser, times = Quantiser(), every / len(chosen)
    print(f"{options.model.name}, {sum(map(len, texts))} tokens, layers {options.layers}")
    print("| type | stand-in | energy of the error | divergence | change of perplexity |\n|---|---|--:|--:|--:|")
    for kind in options.types:
        numbers = {name: quantiser.numbers(kind, matrix, weight[name]) for name, matrix in weights.items()}
        right, energy = read(numbers), sum(float(np.square(matrix).sum()) for matrix in numbers.values())
        for other in options.stand_ins or [STAND_INS[kind]]:
            replaced = {name: stood_in(matrix, other) for name, matrix in numbers.items()}
            error = sum(float(np.square(replaced[name] - matrix).sum()) for name, matrix in numbers.items())
            divergence, higher, deviation = compared(right, read(replaced), texts)
            shown = f"{100 * times * higher:+.2f} ± {100 * times * deviation:.2f} %"
            print(
                f"| {kind} | {other} | {error / energy:.1e} | {100 * times * divergence:.3f} % | {shown} |", flush=True
            )


if __name__ == "__main__":
    main()
