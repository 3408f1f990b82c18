"""Held-out perplexity of the demo model in every precision of the CPU engine: python research/perplexity.py --data DATA

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
from localspec.native.target import NativeTarget

PRECISIONS = ("fp32", "bf16", "int8", "int4")


def main() -> None:
    """Print one line a precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path(__file__).resolve().parent.parent / "localspec" / "demo")
    options = parser.parse_args()
    corpus = Corpus.encode(set_aside(options.data), AutoTokenizer.from_pretrained(options.model))
    for precision in PRECISIONS:
        target = NativeTarget.open(options.model, packing=precision)

        def model(ids: torch.Tensor, target: NativeTarget = target, **_: object) -> SimpleNamespace:
            output = target.forward(DraftTree.chain(ids[0].tolist()), target.cache(ids.shape[1]))
            return SimpleNamespace(logits=torch.tensor(output.logits.numpy())[None])

        losses = held_out_losses(model, corpus)
        tokens = sum(loss.tokens for loss in losses)
        mean = sum(loss.nats for loss in losses) / tokens
        print(f"{precision:5} perplexity {math.exp(mean):.4f}   loss {mean:.5f}   {tokens:,} tokens", flush=True)


if __name__ == "__main__":
    main()
