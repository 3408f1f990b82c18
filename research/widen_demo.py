"""Widen the demo model, its draft model and its drafters without changing their texts, to time larger models.

    python research/widen_demo.py --factor 8 --out DIR [--context 32768]

Every width grows by the factor: 8 gives 0.4 B parameters, 16 gives 1.4 B. The added weights are zero. So texts and
drafts are those of the demo, but each step costs what a model of the larger size costs. `-m` and `--drafter` accept the
directory. A context longer than the demo's is only for timing, because the model was not trained on such texts.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from localspec.errors import LocalspecError, UsageMistake
from localspec.models.drafter_cards import DIGEST, file_digest
from localspec.weights.checkpoint import inspect, revision

DEMO = Path(__file__).resolve().parent.parent / "localspec" / "demo"
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")

# By the end of a tensor's name: what grows along each axis. "normed" marks tensors whose input has a lower mean square
# because of the added zeros.
TENSORS: dict[str, tuple[str, ...]] = {
    "embed_tokens.weight": ("", "hidden"),
    "input_layernorm.weight": ("normed hidden",),
    "post_attention_layernorm.weight": ("normed hidden",),
    "norm.weight": ("normed hidden",),
    "qkv_proj.weight": ("qkv", "hidden"),
    "o_proj.weight": ("hidden", "attended"),
    "gate_up_proj.weight": ("gate_up", "hidden"),
    "down_proj.weight": ("hidden", "inner"),
    # s3d
    "qkv_proj.lora_A.weight": ("", "hidden"),
    "qkv_proj.lora_B.weight": ("qkv", ""),
    "o_proj.lora_A.weight": ("", "attended"),
    "o_proj.lora_B.weight": ("hidden", ""),
    "gate_up_proj.lora_A.weight": ("", "hidden"),
    "gate_up_proj.lora_B.weight": ("gate_up", ""),
    "down_proj.lora_A.weight": ("", "inner"),
    "down_proj.lora_B.weight": ("hidden", ""),
    "mask": ("hidden",),
    # medusa
    "blocks.0.weight": ("", "hidden", "hidden"),
    "blocks.0.bias": ("", "hidden"),
    "own.down": ("", "", "hidden"),
    "own.up": ("", "", ""),
    # parallelspec
    "masks": ("", "hidden"),
    "joined.weight": ("hidden", "pair"),
    "joined.bias": ("hidden",),
    "attention_norm": ("normed hidden",),
    "inner_norm": ("normed hidden",),
    "model.norm": ("normed hidden",),
    "qkv.weight": ("qkv", "hidden"),
    "output.weight": ("hidden", "attended"),
    "gate_up.weight": ("gate_up", "hidden"),
    "down.weight": ("hidden", "inner"),
    "correction.near.weight": ("", "normed hidden"),
    "correction.near.bias": ("",),
    "correction.far.weight": ("", "hidden"),
    "correction.out.weight": ("hidden", ""),
    # semi: h_q and each half of σ(…) are half as wide as the model, and embeddings are normalised before `inner`, as before `near` above
    "far.weight": ("half", "hidden"),
    "far.bias": ("half",),
    "near.weight": ("half", "half"),
    "near.bias": ("half",),
    "mixed.weight": ("halves", "halves"),
    "mixed.bias": ("halves",),
    "out.weight": ("hidden", "halves"),
    "recent.free": ("",),
    "recent.inner.weight": ("half", "normed hidden"),
    "recent.inner.bias": ("half",),
    "recent.outer.weight": ("half", "half"),
    "recent.outer.bias": ("half",),
    "kept": ("",),
    # eagle3: only names whose tensors differ in shape from another kind's
    "fc.weight": ("hidden", "states"),
    "embedding_norm": ("normed hidden",),
    "feature_norm": ("normed hidden",),
    "mlp_norm": ("normed hidden",),
    "eagle3.norm": ("normed hidden",),
    "eagle3.qkv.weight": ("qkv", "pair"),
    "o.weight": ("hidden", "attended"),
    "gate.weight": ("inner", "hidden"),
    "up.weight": ("inner", "hidden"),
    "head.weight": ("", "hidden"),
}


class Widening:
    """A converter that widens the tensors of a model with this config.json, or of a drafter for it."""

    def __init__(self, config: Mapping[str, Any], factor: int) -> None:
        self._factor = factor
        hidden, inner, heads, kv_heads = (config[name] for name in WIDTHS)
        head = hidden // heads
        self._parts = {  # an axis consists of parts, each of which grows by itself
            "hidden": [hidden],
            "pair": [hidden, hidden],
            "states": [hidden, hidden, hidden],
            "half": [hidden // 2],
            "halves": [hidden // 2, hidden // 2],
            "inner": [inner],
            "gate_up": [inner, inner],
            "attended": [heads * head],
            "qkv": [heads * head, kv_heads * head, kv_heads * head],
        }

    def tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor of this name, widened; in fp32 if its numbers are scaled, because bf16 would round them."""
        ends = [end for end in TENSORS if f".{name}".endswith(f".{end}")]
        if not ends:
            raise LocalspecError(f"Nobody has said how '{name}' is widened; add it to TENSORS.")
        for axis, parts in enumerate(TENSORS[max(ends, key=len)]):
            if parts.startswith("normed "):
                tensor = tensor.float() * self._factor**-0.5
            if parts:
                tensor = self._grown(tensor, axis, self._parts[parts.removeprefix("normed ")])
        return tensor

    def _grown(self, tensor: torch.Tensor, axis: int, parts: Sequence[int]) -> torch.Tensor:
        """Return the tensor with zeros added after each of the `parts` of an axis."""
        pieces = []
        for part in tensor.split(list(parts), axis):
            shape = list(part.shape)
            shape[axis] *= self._factor - 1
            pieces += [part, part.new_zeros(shape)]
        return torch.cat(pieces, axis)

    def file(self, source: Path, out: Path, kind: str = "") -> None:
        """Widen all tensors of a model's file, or of a drafter's file of this kind, and write them to `out`."""
        prefix = f"{kind}." if kind else ""
        grown = {name: self.tensor(prefix + name, tensor).contiguous() for name, tensor in load_file(source).items()}
        save_file(grown, out, metadata={"format": "pt"})


def widen_model(source: Path, out: Path, factor: int, context: int | None) -> None:
    """Write a widened copy of a model to a new directory."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    out.mkdir()
    Widening(config, factor).file(source / "model.safetensors", out / "model.safetensors")
    config |= {name: config[name] * factor for name in WIDTHS}
    config["rms_norm_eps"] /= factor  # like the mean square
    if context is not None:
        config["max_position_embeddings"] = config["original_max_position_embeddings"] = context
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    for name in COPIED:
        shutil.copy(source / name, out / name)


def widen(out: Path, factor: int, context: int | None = None, source: Path = DEMO) -> None:
    """Write the widened demo to a new directory, which appears only when it is complete.

    Raises UsageMistake if `out` exists already, and for a factor or context that is too small.
    """
    if factor < 1:
        raise UsageMistake(f"--factor {factor} is too small; give 1 or more.")
    if context is not None and context < 1:
        raise UsageMistake(f"--context {context} is too small; give 1 or more.")
    if os.path.lexists(out):
        raise UsageMistake(f"{out} is there already, and nothing is overwritten; name another directory, or delete it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as folder:
        widened = Path(folder) / out.name
        widen_model(source, widened, factor, context)
        widen_model(source / "draft", widened / "draft", factor, context)
        (widened / "drafters").mkdir()
        for drafter in sorted((source / "drafters").iterdir()):
            directory = widened / "drafters" / drafter.name
            directory.mkdir()
            card = json.loads((drafter / "drafter.json").read_text("utf-8"))
            weights = "drafter.safetensors"
            Widening(config, factor).file(drafter / weights, directory / weights, card["kind"])
            card["target"] = {"name": out.name, "revision": revision(widened)}
            card[DIGEST] = file_digest(directory / weights)
            (directory / "drafter.json").write_text(json.dumps(card, indent=2) + "\n", "utf-8")
        shutil.copy(source / "NOTICES.txt", widened / "NOTICES.txt")
        (widened / "README.md").write_text(_card(source, factor, context), "utf-8")
        widened.rename(out)


def _card(source: Path, factor: int, context: int | None) -> str:
    """Return a model card: the header of the demo's card, with its licence, and a description of this model."""
    header = (source / "README.md").read_text("utf-8").split("---\n")[1]
    longer = (
        ""
        if context is None
        else f" Its configuration says {context:,} tokens of context, for which it was never trained."
    )
    return (
        f"---\n{header}---\n\n# localspec demo model, {factor} times as wide\n\nMade by `research/widen_demo.py` for timing: "
        f"it says what the demo model says, at the cost of a larger one.{longer} What the demo model's card says of data, "
        "licences and limits holds here too; keep `NOTICES.txt` with it.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=int, required=True, help="how many times as wide; 8: 0.4 B, 16: 1.4 B")
    parser.add_argument("--out", type=Path, required=True, help="a directory that is not there yet")
    parser.add_argument("--context", type=int, help="the context it claims, for timing only")
    options = parser.parse_args()
    try:
        widen(options.out, options.factor, options.context)
    except LocalspecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{options.out}: {inspect(options.out).parameters / 1e9:.2f} B parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
