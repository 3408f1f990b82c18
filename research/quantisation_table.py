"""Measure the loss of few bits: python research/quantisation_table.py --model DIR --texts FILE.jsonl[.xz] [--calibrate]

For each packing, and for llama.cpp's where it is installed: bits a weight, cross-entropy, KL divergence to fp32
and how often the likeliest token is the same. Every second text is evaluated; calibration reads only the others.
"""

import argparse
import json
import lzma
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf_writer
import llama_cpp_model
import numpy as np
from scipy.special import log_softmax

from localspec.errors import LocalspecError
from localspec.families.rope import Rope
from localspec.machine.hardware import physical_cores
from localspec.native.cache import cache_format
from localspec.native.model import NativeModel
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.weights.opened import PackedModel
from localspec.weights.packed_file import Origin
from localspec.weights.recipe import Recipe
from localspec.weights.source import Source

Logits = Callable[[list[int]], np.ndarray]
BATCH = 512


def main() -> None:
    """Print one line a packing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).resolve().parent.parent / "localspec" / "demo")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--every", type=int, default=997, help="take one text of every N")
    parser.add_argument("--tokens", type=int, default=5000, help="to evaluate on")
    parser.add_argument("--calibrate", action="store_true", help="weigh errors by what the layers' inputs are like")
    options = parser.parse_args()
    target = NativeTarget.open(options.model, packing="fp32", context=BATCH)
    documents = list(taken(options.texts, options.every, target))
    evaluated, others = enough(documents[::2], options.tokens), enough(documents[1::2], options.tokens)
    source = Source.open(options.model)
    importance = calibrated(options.model, others) if options.calibrate else {}
    want = [ours(target)(ids) for ids in evaluated]
    show("fp32", 32.0, want, want, evaluated)
    for packing in ("int8", "int4"):
        for given in ({}, importance) if importance and packing == "int4" else ({},):
            model, bits = packed(source, Recipe(packing), given)
            way = ours(NativeTarget(model, target.config, target.tokenizer, BATCH, {}, packing))
            show(packing + (" calibrated" if given else ""), bits, [way(ids) for ids in evaluated], want, evaluated)
    if find_spec("llama_cpp") and find_spec("gguf"):
        for name, bits, way in theirs(options.model, target):
            show(name, bits, [way(ids) for ids in evaluated], want, evaluated)


def taken(file: Path, every: int, target: NativeTarget) -> Iterator[list[int]]:
    """Yield the token ids of some texts, at most a batch of each."""
    with lzma.open(file, "rt") if file.suffix == ".xz" else file.open() as lines:
        for number, line in enumerate(lines):
            if number % every:
                continue
            example = json.loads(line)
            text = target.chat.render(example["messages"], False) if "messages" in example else example.get("text", "")
            if len(ids := target.tokenizer.encode(text, "messages" not in example)[:BATCH]) >= 40:
                yield ids


def enough(documents: list[list[int]], tokens: int) -> list[list[int]]:
    """Return the first documents that have `tokens` tokens together."""
    found, total = [], 0
    for ids in documents:
        if total < tokens:
            found.append(ids)
            total += len(ids)
    return found


def ours(target: NativeTarget) -> Logits:
    def logits(ids: list[int]) -> np.ndarray:
        return target.model.forward(ids, None, target.cache(BATCH))[0].numpy().copy()

    return logits


def packed(source: Source, recipe: Recipe, importance: Mapping[str, np.ndarray]) -> tuple[NativeModel, float]:
    """Return a model packed in memory, and its bits a weight."""
    header = source.header(Origin("a model", ""), recipe.packing, recipe)
    held = PackedModel.in_memory(header, source.filler(importance), physical_cores(), lambda done, total: None)
    rope = Rope.of(source.config, BATCH)
    model = NativeModel(held.sizes, rope, held.tensors, Threads(physical_cores()), cache_format(recipe.packing))
    matrices = [section for section in header.tensors.values() if section.tensor and section.tensor.layout != "rows"]
    weights = sum(section.tensor.out * section.tensor.inputs for section in matrices if section.tensor)
    return model, 8 * sum(section.bytes for section in matrices) / weights


def calibrated(path: Path, documents: list[list[int]]) -> dict[str, np.ndarray]:
    """For each linear layer the mean square of each input channel, over these texts."""
    import torch

    from localspec.decoding.tree import DraftTree
    from localspec.nn.linear import Linear
    from localspec.nn.target import Target

    target, sums = Target.load(path, dtype=torch.float32), dict[str, Any]()
    layers = {name: layer for name, layer in target.transformer.named_modules() if isinstance(layer, Linear)}

    def watch(name: str) -> Callable[..., None]:
        def hook(_: Any, inputs: tuple[Any, ...]) -> None:
            squares = inputs[0].detach().reshape(-1, inputs[0].shape[-1]).double().pow(2).sum(0)
            sums[f"{name}.weight"] = sums.get(f"{name}.weight", 0) + squares

        return hook

    for name, layer in layers.items():
        layer.register_forward_pre_hook(watch(name))
    with torch.inference_mode():
        for ids in documents:
            target.forward(DraftTree.chain(ids), target.cache(len(ids)))
    tokens = sum(map(len, documents))
    return {name: (total / tokens).float().numpy() for name, total in sums.items()}


# -- llama.cpp ---------------------------------------------------------------------------------------------------------


def theirs(path: Path, target: NativeTarget) -> Iterator[tuple[str, float, Logits]]:
    """Yield llama.cpp's own quantisations of the model, one kind after another, with their bits a weight."""
    import gguf

    with tempfile.TemporaryDirectory() as folder:
        dense = Path(folder) / "f16.gguf"
        gguf_writer.write(dense, path, target.config, "f16")
        for kind in gguf_writer.QUANTISED:
            file = Path(folder) / f"{kind}.gguf"
            try:
                gguf_writer.quantise(dense, file, kind, physical_cores())
            except LocalspecError as error:
                print(error)
                continue
            matrices = [tensor for tensor in gguf.GGUFReader(file).tensors if len(tensor.shape) == 2]
            if any(tensor.name == "output.weight" for tensor in matrices):  # else the embedding is the head
                matrices = [tensor for tensor in matrices if tensor.name != "token_embd.weight"]
            bits = 8 * sum(int(t.n_bytes) for t in matrices) / sum(int(t.n_elements) for t in matrices)
            peer = llama_cpp_model.Gguf(file, target.vocab_size, BATCH)
            yield f"llama.cpp {kind.upper()}", bits, partial(logits_of, peer)
            peer.close()


def logits_of(peer: llama_cpp_model.Gguf, ids: list[int]) -> np.ndarray:
    return np.array(peer.logits(ids, 0))


def show(name: str, bits: float, found: list[Any], want: list[Any], documents: list[list[int]]) -> None:
    losses, divergences, same = [], [], []
    for ids, logits, right in zip(documents, found, want, strict=True):
        ours, exact = (log_softmax(rows.astype(np.float64), -1) for rows in (logits, right))
        losses.append(-ours[np.arange(len(ids) - 1), ids[1:]])
        divergences.append((np.exp(exact) * (exact - ours)).sum(-1))
        same.append(logits.argmax(-1) == right.argmax(-1))
    loss, divergence, equal = (float(np.concatenate(each).mean()) for each in (losses, divergences, same))
    print(f"{name:20} {bits:6.3f} bits  cross-entropy {loss:.4f}  KL {divergence:.5f}  argmax {equal:.2%}", flush=True)


if __name__ == "__main__":
    main()
