"""Held-out perplexity of the demo model in every precision: python scripts/perplexity.py --data DATA

DATA as in train_demo.py. The same examples in every precision, so the differences are those of arithmetic.
"""

import argparse
import math
from pathlib import Path
from types import SimpleNamespace

import torch
from demo_data.passes import set_aside
from demo_progress import held_out_losses
from demo_tokens import Corpus
from transformers import AutoTokenizer

from localspec.decoding.tree import DraftTree
from localspec.nn.linear import Int8Linear
from localspec.nn.target import Target

PRECISIONS = {
    "fp32": (torch.float32, "none", True),
    "bf16": (torch.bfloat16, "none", True),
    "int8": (torch.float32, "int8", True),
    "int8, bf16 cache and embedding": (torch.bfloat16, "int8", True),
    "int8 without outlier channels": (torch.float32, "int8", False),
}


def main() -> None:
    """Prints one line a precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path(__file__).resolve().parent.parent / "localspec" / "demo")
    options = parser.parse_args()
    corpus = Corpus.encode(set_aside(options.data), AutoTokenizer.from_pretrained(options.model))
    for name, (dtype, quantize, protect) in PRECISIONS.items():
        target = Target.load(options.model, dtype=dtype, quantize=quantize)
        layers = [layer for layer in target.transformer.modules() if isinstance(layer, Int8Linear)]
        if not protect:
            for layer in layers:
                layer.protect(torch.tensor([], dtype=torch.long))
        channels = sum(0 if layer.outliers is None else len(layer.outliers) for layer in layers)

        def model(ids: torch.Tensor, target: Target = target, **_: object) -> SimpleNamespace:
            rows = ids.shape[1]
            output = target.forward(DraftTree.chain(ids[0].tolist()), target.cache(rows))
            return SimpleNamespace(logits=output.logits.rows[None])

        losses = held_out_losses(model, corpus)
        tokens = sum(loss.tokens for loss in losses)
        mean = sum(loss.nats for loss in losses) / tokens
        print(
            f"{name:32} perplexity {math.exp(mean):.4f}   loss {mean:.5f}   {tokens:,} tokens"
            + (f"   {channels} outlier channels in {len(layers)} layers" if layers else ""),
            flush=True,
        )


if __name__ == "__main__":
    main()
