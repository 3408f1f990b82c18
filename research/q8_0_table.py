"""What packing costs from Q8_0 instead of a publisher's own weights: python research/q8_0_table.py --out docs/figures/q8-0-table.md

`pull` fetches a Q8_0 file in place of weights in 16 bits where the CPU engine keeps int8 or int4. Here both are packed, from
the same model, and compared with transformers in fp32 with the weights as they were published.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf_table import BATCH, DEMO, Logits, cross_entropy, documents, models
from scipy.special import log_softmax

from localspec.families.rope import Rope
from localspec.machine.hardware import physical_cores
from localspec.models.tokenizer import Tokenizer
from localspec.native.cache import cache_format
from localspec.native.model import NativeModel
from localspec.native.threads import Threads
from localspec.weights.opened import PackedModel
from localspec.weights.packed_file import Origin
from localspec.weights.recipe import Recipe
from localspec.weights.source import Source
from localspec.weights.stored import StoredTensor

HEAD = (
    "| model | kept in | cross-entropy, exact | from its own weights | from Q8_0 | KL, own | KL, Q8_0 | argmax, own | "
    "argmax, Q8_0 |\n|---|---|--:|--:|--:|--:|--:|--:|--:|"
)
INTRODUCTION = (
    "# Packed from Q8_0, and from a publisher's own weights\n\n"
    "Made by `research/q8_0_table.py`: about {tokens} tokens of this repository's documents (a quarter of them for models of random "
    "weights). *Exact* is transformers in fp32 with the weights as they were published, in bf16. *Own* is what the CPU "
    "engine computes when it packs those; *Q8_0* when it packs what ggml's quantiser makes of all their matrices, the "
    "embedding among them. Cross-entropy and KL divergence from exact are means of a token in nats, the latter in "
    "thousandths with its standard error; argmax, how often the likeliest token is the exact one's."
)


@dataclass(frozen=True)
class Rounded(StoredTensor):
    """A matrix as its Q8_0 file has it; of no type that the packer reads as it is stored."""

    own: StoredTensor

    @classmethod
    def of(cls, own: StoredTensor) -> "Rounded":
        return cls(own.file, own.start, own.shape, "", own.bytes, own)

    def floats(self, first: int, count: int) -> np.ndarray:
        return q8_0(self.own.floats(first, count))


def q8_0(weights: np.ndarray) -> np.ndarray:
    """Return what ggml's quantize_row_q8_0_ref makes of weights, 32 at a time, unpacked again."""
    groups = weights.reshape(-1, 32).astype(np.float32)
    scale = abs(groups).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    steps = np.trunc(groups * inverse + np.copysign(np.float32(0.5), groups))  # C's roundf
    rounded: np.ndarray = (steps * scale.astype(np.float16).astype(np.float32)).reshape(weights.shape)
    return rounded


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4000, help="of text; a quarter of it for random models")
    options = parser.parse_args()
    lines = [INTRODUCTION.format(tokens=options.tokens), "", HEAD]
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models(Path(folder)):
            for row in rows(name, path, options.tokens if path == DEMO else options.tokens // 4):
                print(row, flush=True)
                lines.append(row)
    options.out.write_text("\n".join(lines) + "\n")


def rows(name: str, path: Path, tokens: int) -> Iterator[str]:
    """Yield a line of the table for each packing."""
    texts, own = documents(Tokenizer.open(path), tokens), Source.open(path)
    right = exact(path, texts)
    for packing in ("int8", "int4"):
        ways = [ours(own, Recipe(packing), texts)]
        ways.append(ours(from_q8_0(own), Recipe(packing, frozenset(own.made_of)), texts))
        cells = [f"{cross_entropy(one, texts):.4f}" for one in (right, *ways)]
        for way in ways:
            far = divergences(right, way)
            cells.append(f"{1000 * far.mean():.2f} ± {1000 * far.std() / len(far) ** 0.5:.2f}")
        cells += [f"{np.mean(np.concatenate(way).argmax(-1) == np.concatenate(right).argmax(-1)):.2%}" for way in ways]
        yield f"| {name} | {packing} | {' | '.join(cells)} |"


def from_q8_0(own: Source) -> Source:
    """Return the same model as its Q8_0 file has it; vectors are in fp32 there."""
    made_of = {
        name: [Rounded.of(part) if len(part.shape) > 1 else part for part in parts]
        for name, parts in own.made_of.items()
    }
    return replace(own, made_of=made_of)


def exact(path: Path, texts: list[list[int]]) -> Logits:
    """Return the logits of transformers in fp32, with the weights as they are in the file."""
    import torch
    import transformers

    stock = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [stock(torch.tensor([ids])).logits[0].numpy() for ids in texts]


def ours(source: Source, recipe: Recipe, texts: list[list[int]]) -> Logits:
    """Return the CPU engine, with the weights of a source packed by a recipe."""
    header = source.header(Origin("a model", "0" * 40), recipe.packing, recipe)
    held = PackedModel.in_memory(header, source.filler({}), physical_cores(), lambda done, total: None)
    engine = NativeModel(
        held.sizes, Rope.of(source.config, BATCH), held.tensors, Threads(physical_cores()), cache_format(recipe.packing)
    )
    return [engine.forward(ids, None, engine.cache(BATCH))[0].numpy().copy() for ids in texts]


def divergences(right: Logits, other: Logits) -> np.ndarray:
    """KL divergence of each token's distribution from the exact one."""
    p, q = (log_softmax(np.concatenate(one).astype(np.float64), -1) for one in (right, other))
    found: np.ndarray = (np.exp(p) * (p - q)).sum(-1)
    return found


if __name__ == "__main__":
    main()
