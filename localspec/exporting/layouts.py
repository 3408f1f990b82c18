"""Writes Medusa heads, EAGLE-3 heads and small language models in the layouts that inference engines read.

heads   blocks.{head}.layers.{block}.{weight,bias}   lm_heads.{head}.weight, or one lm_head.weight for all heads
eagle3  midlayer.{…}   fc norm lm_head d2t t2d       SpecForge's names
model   the Hugging Face layout
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from localspec.drafters.eagle3 import Eagle3Options
from localspec.drafters.medusa import MedusaOptions
from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig, weight_map
from localspec.nn.weights import write_tensors

_OF_VOCABULARY = ("embed_tokens", "lm_head.weight")

Named = tuple[str, torch.Tensor]


def write_heads(drafter: Path, options: MedusaOptions, vocabulary: torch.Tensor, directory: Path) -> None:
    """Write the Medusa heads from a drafter's file. `vocabulary` [vocab_size, hidden_size] is the target's head matrix.

    The heads get the precision of that matrix. If they only have low-rank changes of it, whole changed matrices are
    written, because no engine reads changes. Rows outside a draft vocabulary are the target's.
    """
    vocab_size, hidden_size = vocabulary.shape
    shared = not options.private and not options.change_rank
    with safe_open(drafter, framework="pt") as opened:
        write_tensors(directory, _finite(_heads(opened, options, vocabulary, shared)))
    _write_config(
        directory,
        {
            "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": hidden_size,
            "vocab_size": vocab_size, "truncated_vocab_size": vocab_size, "num_heads": options.heads,
            "num_hidden_layers": options.layers, "medusa_fc_bias": True, "original_lm_head": shared,
            "dtype": str(vocabulary.dtype).removeprefix("torch."),
        },
    )  # fmt: skip


def _heads(opened: Any, options: MedusaOptions, vocabulary: torch.Tensor, shared: bool) -> Iterator[Named]:
    if shared:
        yield "lm_head.weight", vocabulary

    def of_head(name: str, head: int) -> torch.Tensor:
        tensor: torch.Tensor = opened.get_slice(name)[head : head + 1][0]
        return tensor.float()

    ids = opened.get_tensor("kept") if options.vocabulary else slice(None)
    for head in range(options.heads):
        for layer in range(options.layers):
            for part in ("weight", "bias"):
                values = of_head(f"blocks.{layer}.{part}", head)
                yield f"blocks.{head}.layers.{layer}.{part}", values.to(vocabulary.dtype)
        if options.private:
            matrix = vocabulary.clone()
            matrix[ids] = of_head("linears", head).to(vocabulary.dtype)
            yield f"lm_heads.{head}.weight", matrix
        elif options.change_rank:
            matrix = vocabulary.float().clone()
            matrix[ids] = torch.addmm(matrix[ids], of_head("own.up", head), of_head("own.down", head))
            yield f"lm_heads.{head}.weight", matrix.to(vocabulary.dtype)


_MIDLAYER = {
    "embedding_norm": "input_layernorm.weight", "feature_norm": "hidden_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight", "o.weight": "self_attn.o_proj.weight",
    **{f"{name}.weight": f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
}  # fmt: skip


def write_eagle3(
    drafter: Path, options: Eagle3Options, sizes: TransformerConfig, config: Mapping[str, Any], directory: Path
) -> None:
    """Write the EAGLE-3 head from a drafter's file, in the precision that `config` names.

    `sizes` are the target's. The head has no separate embedding.
    """
    dtype: torch.dtype = getattr(torch, config["dtype"])
    with safe_open(drafter, framework="pt") as opened:
        write_tensors(directory, _finite(_eagle3(opened, options, sizes, dtype)))
    draft = options.vocabulary or sizes.vocab_size
    _write_config(directory, {**config, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": draft})


def _eagle3(opened: Any, options: Eagle3Options, sizes: TransformerConfig, dtype: torch.dtype) -> Iterator[Named]:
    def get(name: str) -> torch.Tensor:
        tensor: torch.Tensor = opened.get_tensor(name)
        return tensor.to(dtype)

    for name, exported in _MIDLAYER.items():
        yield f"midlayer.{exported}", get(name)
    queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    for name, part in zip("qkv", torch.split(get("qkv.weight"), [queries, keys, keys]), strict=True):
        yield f"midlayer.self_attn.{name}_proj.weight", part
    yield from (("fc.weight", get("fc.weight")), ("norm.weight", get("norm")), ("lm_head.weight", get("head.weight")))
    if options.vocabulary:
        ids: torch.Tensor = opened.get_tensor("kept")
        yield "d2t", ids - torch.arange(len(ids))
        yield "t2d", torch.zeros(sizes.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)


def write_model(
    sizes: TransformerConfig,
    weights: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    vocab_size: int,
    directory: Path,
) -> None:
    """Write a language model. `weights` are by localspec's names, and keep their precision.

    `config` is its config.json. The model gets as many ids as its target has, because engines require that; missing or
    surplus ids are padding. Tokenizer files are not written.
    """
    write_tensors(directory, _finite(_model(sizes, weights, vocab_size)))
    _write_config(directory, {**config, "vocab_size": vocab_size, "tie_word_embeddings": sizes.tied})


def _model(sizes: TransformerConfig, weights: Mapping[str, torch.Tensor], vocab_size: int) -> Iterator[Named]:
    for name, made_of in weight_map(replace(sizes, vocab_size=vocab_size)).items():
        tensor = weights[name]
        if name in _OF_VOCABULARY and len(tensor) != vocab_size:
            fitted = tensor.new_zeros(vocab_size, tensor.shape[1])
            fitted[: len(tensor)] = tensor[:vocab_size]
            tensor = fitted
        yield from zip((part for part, _ in made_of), torch.split(tensor, [rows for _, rows in made_of]), strict=True)


def _finite(tensors: Iterator[Named]) -> Iterator[Named]:
    """Yield the tensors. Raises LocalspecError for NaN or inf, which would make a server fail later."""
    for name, tensor in tensors:
        if not tensor.isfinite().all():
            raise LocalspecError(
                f"The exported tensor '{name}' would hold NaN or inf; train or fetch the drafter again."
            )
        yield name, tensor


def _write_config(directory: Path, config: Mapping[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
