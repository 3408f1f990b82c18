"""A tiny random model of every family: made by stock transformers, written as GGUF by the package `gguf`.

Nothing here imports localspec, so localspec's code did not write the files that it reads. Names of tensors come from the
package's own map. `FAMILIES` has everything else: the metadata, and how weights differ from the Hugging Face layout.
If llama.cpp is installed, it quantises the files and checks the conversion (tests/weights/test_gguf_families.py).
"""

import ctypes
import importlib.util
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 512
ROTATED = 64  # channels of a head
MOST = 512  # tokens of a text
ORIGINAL = 64  # tokens of a text before its positions are scaled: fewer than the texts of the tests have
F32 = "F32"
QUANTISED = (
    "Q8_0",
    "Q4_K_M",
)  # Q4_K_M is Q4_K with Q6_K for the embedding, and for some values and some rows of ffn_down
SEPARATE_LAYERS = ("mtp.",)  # which stock models do not have

# -- vocabularies ------------------------------------------------------------------------------------------------------

MARKS = ["<|endoftext|>", "<|begin|>", "<|im_end|>", "<|im_start|>", "<|tool|>", "<|system|>"]
PIECE_MARKS = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
TEXTS = [
    "The cat sat on the mat, and the dogs won't sit: they'll run! It's 1234567 o'clock, isn't it?",
    "def number(value: int) -> str:\n    return f'{value:,}'\n\n\nprint(number(20250))\n",
    "Über allen Gipfeln ist Ruh'; in allen Wipfeln spürest du kaum einen Hauch.",
    "  spaces   and\ttabs\n\n  then  lines \n", "HTTPServer v2.10 costs 3,50 € (or $4)...", "数字 123 と 文字。", "I'M HERE. We'Ve",
]  # fmt: skip
TEMPLATE = (
    "{%% for message in messages %%}%s{{ message.role }}\n{{ message.content }}%s\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}%sassistant\n{%% endif %%}"
)
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@cache
def _trained(pieces: bool) -> tuple[list[str], list[str]]:
    """Return the tokens of a byte-pair encoding of `TEXTS`, and its merges: of characters if `pieces`, else of bytes."""
    tokenizer = Tokenizer(models.BPE())
    alphabet: list[str] = []
    marks = [*PIECE_MARKS, *_BYTES] if pieces else MARKS
    if pieces:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 10, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    content = json.loads(tokenizer.to_str())["model"]
    merges = [one if isinstance(one, str) else " ".join(one) for one in content["merges"]]
    return sorted(content["vocab"], key=content["vocab"].get), merges


def vocabulary(kind: str, pre: str) -> dict[str, Any]:
    """Return a file's description of its tokenizer: of the kind "gpt2", "llama" (pieces with scores) or "gemma4"."""
    tokens, merges = _trained(kind != "gpt2")
    marks = MARKS if kind == "gpt2" else PIECE_MARKS
    types = [gguf.TokenType.CONTROL] * len(marks)
    if kind != "gpt2":
        types[PIECE_MARKS.index("<unk>")] = gguf.TokenType.UNKNOWN
        types += [gguf.TokenType.BYTE] * len(_BYTES)
    types += [gguf.TokenType.NORMAL] * (len(tokens) - len(types))
    padding = [f"[PAD{index}]" for index in range(len(tokens), VOCABULARY)]
    tokens, types = [*tokens, *padding], [*types, *[gguf.TokenType.UNUSED] * len(padding)]
    said: dict[str, Any] = {"model": kind, "tokens": tokens, "token_type": [int(one) for one in types]}
    begin, end = ("<|begin|>", "<|im_end|>") if kind == "gpt2" else ("<bos>", "<end_of_turn>")
    said |= {"bos_token_id": tokens.index(begin), "eos_token_id": tokens.index(end)}
    if kind == "llama":
        said["scores"] = [-float(index) for index in range(len(tokens))]
    else:
        said["merges"] = merges
    if kind == "gemma4":
        said["scores"] = [-1000.0] * len(tokens)
    if kind != "gpt2":
        said |= {"add_space_prefix": False, "add_bos_token": True, "unknown_token_id": tokens.index("<unk>")}
    if pre:
        said["pre"] = pre
    said = {f"tokenizer.ggml.{key}": value for key, value in said.items()}
    user, close = ("<|im_start|>", "<|im_end|>") if kind == "gpt2" else ("<start_of_turn>", "<end_of_turn>")
    return {**said, "tokenizer.chat_template": TEMPLATE % (user, close, user)}


# -- what differs between the Hugging Face layout and GGUF ---------------------------------------------------------------

Tensors = Iterable[tuple[str, torch.Tensor]]
Change = Callable[[Any, str, torch.Tensor], Tensors]


def as_they_are(config: Any, name: str, tensor: torch.Tensor) -> Tensors:
    """Return a tensor without a change."""
    return [(name, tensor)]


def neighbours(config: Any, name: str, tensor: torch.Tensor) -> Tensors:
    """Rotate neighbouring channels: transformers rotates the two halves of a head."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2], 0)
    if heads:
        halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
        tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
    return [(name, tensor)]


def one_more(config: Any, name: str, tensor: torch.Tensor) -> Tensors:
    """Add one to the weights of norms, because Gemma 3 adds it when it computes."""
    return [(name, tensor + 1 if name.endswith("norm.weight") else tensor)]


def with_suffixes(config: Any, name: str, tensor: torch.Tensor) -> Tensors:
    """Name a scalar of a layer like a weight, and scales of experts as the converter does."""
    layer = name.split(".router.")[0].replace("model.layers", "blk")
    if name.endswith(".router.scale"):
        return [(f"{layer}.ffn_gate_inp.scale", tensor)]
    if name.endswith(".router.per_expert_scale"):
        return [(f"{layer}.ffn_down_exps.scale", tensor)]
    if ".experts." in name:
        return [(f"{name}.weight", tensor)]
    return [(f"{name}.weight" if name.endswith("layer_scalar") else name, tensor)]


def split_projections(config: Any, name: str, tensor: torch.Tensor) -> Tensors:
    """Split the two projections that Granite 4 stores in one matrix, and rotate neighbouring channels."""
    if name.endswith("shared_mlp.input_linear.weight"):
        stem = name.removesuffix("shared_mlp.input_linear.weight")
        gate, up = tensor.chunk(2)
        return [(f"{stem}mlp.gate_proj.weight", gate), (f"{stem}mlp.up_proj.weight", up)]
    return neighbours(config, name.replace("shared_mlp.output_linear", "mlp.down_proj"), tensor)


def experts(config: Any, name: str, tensor: torch.Tensor) -> Tensors:
    """Split gates and ups of all experts, which are in one tensor."""
    if name.endswith(".shared_expert_gate.weight"):
        tensor = tensor.squeeze(0)
    if not name.endswith(".experts.gate_up_proj"):
        return [(f"{name}.weight" if name.endswith(".experts.down_proj") else name, tensor)]
    stem = name.removesuffix("gate_up_proj")
    return [(f"{stem}{part}_proj.weight", one) for part, one in zip(("gate", "up"), tensor.chunk(2, 1), strict=True)]


def in_turns(config: Any, name: str, tensor: torch.Tensor) -> Tensors:
    """Split gates and ups of gpt-oss, which alternate in transposed matrices, and name the rest like weights."""
    linear, bias = (name.removesuffix("_bias"), ".bias") if name.endswith("_bias") else (name, ".weight")
    if name.endswith(".sinks"):
        return [(f"{name}.weight", tensor)]
    if ".experts." not in name:
        return [(name, tensor)]
    rows = tensor.swapaxes(1, 2) if tensor.ndim == 3 else tensor
    if linear.endswith(".down_proj"):
        return [(linear + bias, rows)]
    stem = linear.removesuffix("gate_up_proj")
    return [(f"{stem}{part}_proj{bias}", rows[:, at::2]) for at, part in enumerate(("gate", "up"))]


def recurrent_with_experts(config: Any, name: str, tensor: torch.Tensor) -> Tensors:
    """Apply both `experts` and `recurrent`."""
    return [pair for one in experts(config, name, tensor) for pair in recurrent(config, *one)]


def recurrent(config: Any, name: str, tensor: torch.Tensor) -> Tensors:
    """Put value heads in the order in which ggml repeats keys, and change norms and decays as ggml computes them."""
    name = _beside_layers(config, name)
    keys, values, width = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim

    def reordered(part: torch.Tensor, size: int) -> torch.Tensor:
        """Go through all first value heads of keys, then through all second ones."""
        return part.reshape(keys, values // keys, size, *part.shape[1:]).swapaxes(0, 1).reshape(part.shape)

    first = 2 * keys * config.linear_key_head_dim  # rows of queries and keys
    if ".conv1d." in name:
        tensor = tensor.squeeze(1)
    if ".in_proj_qkv." in name or ".conv1d." in name:
        tensor = torch.cat([tensor[:first], reordered(tensor[first:], width)])
    elif ".in_proj_z." in name:
        tensor = reordered(tensor, width)
    elif ".out_proj." in name:
        tensor = reordered(tensor.T.contiguous(), width).T.contiguous()
    elif name.endswith((".in_proj_a.weight", ".in_proj_b.weight", ".A_log", ".dt_bias")):
        tensor = reordered(tensor, 1)
    if "norm" in name.split(".")[-2] and not name.endswith("linear_attn.norm.weight"):
        tensor = tensor + 1
    if name.endswith(".A_log"):
        tensor = -tensor.exp()
    return [(name.replace(".dt_bias", ".dt_proj.bias"), tensor)]


def _beside_layers(config: Any, name: str) -> str:
    """Return the name of a tensor of the additional layer that predicts a token further ahead."""
    name = name.replace("mtp.layers.0.", f"model.layers.{config.num_hidden_layers}.")
    return name.replace("mtp.", f"model.layers.{config.num_hidden_layers}.")


# What the map of the package lacks: the tensors of that layer. Names are those of its table of tensors.
_AHEAD = {
    "fc": gguf.MODEL_TENSOR.NEXTN_EH_PROJ, "norm": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
    "pre_fc_norm_embedding": gguf.MODEL_TENSOR.NEXTN_ENORM, "pre_fc_norm_hidden": gguf.MODEL_TENSOR.NEXTN_HNORM,
}  # fmt: skip


# -- metadata ----------------------------------------------------------------------------------------------------------

Said = dict[str, Any]


_LIKE_LLAMA = {gguf.MODEL_ARCH[name] for name in ("LLAMA", "GRANITE", "MISTRAL3", "SMOLLM3")}
_WHOLE_HEADS = {gguf.MODEL_ARCH[name] for name in ("QWEN2", "QWEN3", "QWEN3MOE", "GEMMA3")}


def usual(architecture: gguf.MODEL_ARCH, config: Any) -> Said:
    """Return the keys that llama.cpp's converter writes for most models."""
    said = {
        "context_length": config.max_position_embeddings, "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }  # fmt: skip
    head = getattr(config, "head_dim", None)
    if head is not None:
        said |= {"attention.key_length": head, "attention.value_length": head}
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    part = rope.get("partial_rotary_factor", 1.0)
    said["rope.freq_base"] = float(rope["rope_theta"])
    if architecture in _LIKE_LLAMA:
        said["vocab_size"] = config.vocab_size
    if architecture not in _WHOLE_HEADS:
        said["rope.dimension_count"] = int(_head_dim(config) * part)
    if rope["rope_type"] in ("linear", "yarn"):
        said |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        said["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return said


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def of_phi3(config: Any) -> Said:
    rope = config.rope_parameters
    original, window = rope.get("original_max_position_embeddings") or MOST, config.sliding_window or 0
    said = {"rope.scaling.original_context_length": original, "attention.sliding_window": window}
    if rope["rope_type"] == "longrope":
        growth = math.log(config.max_position_embeddings / original) / math.log(original)
        said["rope.scaling.attn_factor"] = math.sqrt(1 + growth)
    return said


def of_gemma3(config: Any) -> Said:
    return {
        "attention.sliding_window": config.sliding_window,
        "rope.freq_base_swa": float(config.rope_parameters["sliding_attention"]["rope_theta"]),
    }


def of_gemma4(config: Any) -> Said:
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    shared, wide = getattr(config, "num_kv_shared_layers", 0) or 0, getattr(config, "use_double_wide_mlp", False)
    width, count = config.intermediate_size, config.num_hidden_layers
    said: Said = {
        **of_gemma3(config), **(of_qwen3_moe(config) if getattr(config, "enable_moe_block", False) else {}),
        "attention.sliding_window_pattern": slides, "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": getattr(config, "hidden_size_per_layer_input", 0) or 0,
        "attention.key_length": config.global_head_dim, "attention.value_length": config.global_head_dim,
        "attention.key_length_swa": config.head_dim, "attention.value_length_swa": config.head_dim,
        "rope.dimension_count": config.global_head_dim, "rope.dimension_count_swa": config.head_dim,
    }  # fmt: skip
    if config.final_logit_softcapping:
        said["final_logit_softcapping"] = config.final_logit_softcapping
    if wide:
        said["feed_forward_length"] = [width] * (count - shared) + [2 * width] * shared
    if (fewer := getattr(config, "num_global_key_value_heads", None)) is not None:
        said["attention.head_count_kv"] = [config.num_key_value_heads if one else fewer for one in slides]
    return said


def of_granite(config: Any) -> Said:
    return {
        "attention.scale": config.attention_multiplier, "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier, "logit_scale": config.logits_scaling,
    }  # fmt: skip


def of_granite4(config: Any) -> Said:
    """Return the converter's keys for experts and for recurrent layers, although a dense model has neither."""
    return {
        **of_granite(config), "rope.scaling.finetuned": True, "expert_count": 0, "expert_used_count": 0,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
        "attention.head_count_kv": [config.num_key_value_heads] * config.num_hidden_layers,
        "ssm.conv_kernel": config.mamba_d_conv, "ssm.state_size": config.mamba_d_state,
        "ssm.group_count": config.mamba_n_groups, "ssm.time_step_rank": config.mamba_n_heads,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
    }  # fmt: skip


def of_ministral3(config: Any) -> Said:
    rope = config.rope_parameters
    return {
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
        "rope.scaling.yarn_beta_fast": rope["beta_fast"], "rope.scaling.yarn_beta_slow": rope["beta_slow"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }  # fmt: skip


def of_qwen3_moe(config: Any) -> Said:
    used = getattr(config, "num_experts_per_tok", None) or config.top_k_experts
    return {
        "expert_count": config.num_experts, "expert_used_count": used,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }  # fmt: skip


def of_gpt_oss(config: Any) -> Said:
    return {
        "attention.sliding_window": config.sliding_window, "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok, "expert_feed_forward_length": config.intermediate_size,
    }  # fmt: skip


def of_qwen35_moe(config: Any) -> Said:
    return {
        **of_qwen35(config), **of_qwen3_moe(config), "feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
    }  # fmt: skip


def of_qwen35(config: Any) -> Said:
    layers = config.num_hidden_layers
    recurrent_layers = [kind == "linear_attention" for kind in config.layer_types]
    sections = config.rope_parameters["mrope_section"]
    return {
        "block_count": layers + 1, "nextn_predict_layers": 1,
        "attention.recurrent_layers": [*recurrent_layers, False],
        "full_attention_interval": 4, "rope.dimension_sections": [*sections, 0],
        "ssm.conv_kernel": config.linear_conv_kernel_dim, "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads, "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
    }  # fmt: skip


def factors(config: Any) -> dict[str, list[float]]:
    """Return the divisors of the positions' frequencies, where a file has a tensor for them."""
    rope = config.rope_parameters
    if (whole := rope.get("full_attention")) and whole["rope_type"] == "proportional":  # the rest is not rotated
        count = config.global_head_dim // 2
        rotated = int(config.global_head_dim * whole["partial_rotary_factor"] / 2)
        return {"rope_freqs.weight": [1.0] * rotated + [1e30] * (count - rotated)}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{length}.weight": rope[f"{length}_factor"] for length in ("long", "short")}
    if rope.get("rope_type") != "llama3":
        return {}
    head, found = _head_dim(config), []
    for channel in range(0, head, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (channel / head)
        turns = rope["original_max_position_embeddings"] / length
        blend = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        blend = min(max(blend, 0.0), 1.0)
        found.append(1 / ((1 - blend) / rope["factor"] + blend))
    return {"rope_freqs.weight": found}


# -- the families ------------------------------------------------------------------------------------------------------

_SHAPE = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": MOST, "tie_word_embeddings": True,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1 + channel / 40 for channel in range(24)], "long_factor": [1.5 + channel for channel in range(24)],
    "partial_rotary_factor": 0.75,
}  # fmt: skip
_GROWING = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": ORIGINAL,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
_OSS = {
    "rope_type": "yarn",
    "rope_theta": 10765.0,
    "factor": 8.0,
    "original_max_position_embeddings": ORIGINAL,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}  # whose last channel between slow and fast ones is next to a whole number, to which llama.cpp rounds it up
_TWO_KINDS = {
    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
}
_PROPORTIONAL = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
}
_SLIDES, _SEES_ALL = "sliding_attention", "full_attention"
_GRANITE = {
    "embedding_multiplier": 3.0, "attention_multiplier": 0.1, "residual_multiplier": 0.5, "logits_scaling": 2.0,
}  # fmt: skip
_GEMMA4 = {
    "head_dim": ROTATED, "global_head_dim": 128, "sliding_window": 32, "rope_parameters": _PROPORTIONAL,
    "vocab_size_per_layer_input": VOCABULARY,
}  # fmt: skip
_SMALL = {
    **_GEMMA4, "num_hidden_layers": 4, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 2,
    "layer_types": [_SLIDES, _SEES_ALL, _SLIDES, _SEES_ALL], "final_logit_softcapping": 8.0,
}  # fmt: skip
_LARGE = {
    **_GEMMA4, "layer_types": [_SLIDES, _SLIDES, _SEES_ALL], "num_global_key_value_heads": 1,
    "attention_k_eq_v": True, "final_logit_softcapping": 8.0,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A family, its tiny model, and how that is written as GGUF.

    `off` is the difference allowed between llama.cpp and transformers in F32, relative to the largest logit.
    """

    architecture: gguf.MODEL_ARCH
    config: str  # of transformers
    sizes: Mapping[str, Any]
    pre: str = ""
    kind: str = "gpt2"
    change: Change = as_they_are
    metadata: Callable[[Any], Said] = lambda config: {}
    model: str = ""  # of transformers, where its config names none
    ahead: bool = False  # whether it has a layer that predicts a token further ahead
    off: float = 2e-5
    more: tuple[str, ...] = ()  # types of blocks besides QUANTISED


def _family(architecture: str, config: str, pre: str, **more: Any) -> Family:
    said = {
        name: more.pop(name) for name in ("kind", "change", "metadata", "model", "ahead", "off", "more") if name in more
    }
    return Family(gguf.MODEL_ARCH[architecture], config, {**_SHAPE, **more}, pre, **said)


FAMILIES: dict[str, Family] = {
    "llama": _family("LLAMA", "LlamaConfig", "llama-bpe", change=neighbours, rope_parameters=_LLAMA3),
    "mistral": _family(
        "LLAMA", "MistralConfig", "tekken", change=neighbours, head_dim=128, sliding_window=None,
        tie_word_embeddings=False, rope_parameters=_PLAIN,
    ),
    "qwen2": _family("QWEN2", "Qwen2Config", "qwen2", rope_parameters=_PLAIN),
    "qwen3": _family("QWEN3", "Qwen3Config", "qwen2", head_dim=128, tie_word_embeddings=False, rope_parameters=_PLAIN),
    "qwen3_moe": _family(
        "QWEN3MOE", "Qwen3MoeConfig", "qwen2", change=experts, metadata=of_qwen3_moe, head_dim=128, num_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=256, norm_topk_prob=True, tie_word_embeddings=False,
        rope_parameters=_PLAIN,
    ),
    "phi3": _family(
        "PHI3", "Phi3Config", "gpt-4o", metadata=of_phi3, sliding_window=None, rope_parameters=_LONGROPE,
        original_max_position_embeddings=ORIGINAL,
    ),
    "phi4": _family(
        "PHI3", "Phi3Config", "dbrx", metadata=of_phi3, sliding_window=None, rope_parameters=_PLAIN,
        tie_word_embeddings=False, original_max_position_embeddings=MOST,
    ),
    "gemma3": _family(
        "GEMMA3", "Gemma3TextConfig", "", kind="llama", change=one_more, metadata=of_gemma3, off=2e-3,
        num_hidden_layers=7, head_dim=ROTATED, query_pre_attn_scalar=ROTATED, sliding_window=32,
        layer_types=[_SLIDES] * 5 + [_SEES_ALL, _SLIDES], rope_parameters=_TWO_KINDS,
    ),
    "gemma4-e2b": _family(
        "GEMMA4", "Gemma4TextConfig", "", kind="gemma4", change=with_suffixes, metadata=of_gemma4, off=2e-3,
        use_double_wide_mlp=True, **_SMALL,
    ),
    "gemma4-e4b": _family(
        "GEMMA4", "Gemma4TextConfig", "", kind="gemma4", change=with_suffixes, metadata=of_gemma4, off=2e-3,
        use_double_wide_mlp=False, **_SMALL,
    ),
    "gemma4-31b": _family(
        "GEMMA4", "Gemma4TextConfig", "", kind="gemma4", change=with_suffixes, metadata=of_gemma4, off=2e-3,
        hidden_size_per_layer_input=0, **_LARGE,
    ),
    "gemma4-26b": _family(
        "GEMMA4", "Gemma4TextConfig", "", kind="gemma4", change=with_suffixes, metadata=of_gemma4, off=2e-3,
        hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=8, top_k_experts=2,
        moe_intermediate_size=256, **_LARGE,
    ),
    "gemma4_unified": _family(
        "GEMMA4", "Gemma4UnifiedTextConfig", "", kind="gemma4", change=with_suffixes, metadata=of_gemma4, off=2e-3,
        model="Gemma4UnifiedForCausalLM", **_LARGE,
    ),
    "smollm3": _family(
        "SMOLLM3", "SmolLM3Config", "smaug-bpe", change=neighbours, num_hidden_layers=5, rope_parameters=_PLAIN,
    ),
    "granite": _family(
        "GRANITE", "GraniteConfig", "refact", change=neighbours, metadata=of_granite, rope_parameters=_PLAIN, **_GRANITE
    ),
    "granite4": _family(
        "GRANITE", "GraniteMoeHybridConfig", "dbrx", change=split_projections, metadata=of_granite4,
        rope_parameters=_PLAIN, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=512, mamba_n_heads=8,
        layer_types=[_SEES_ALL] * 3, position_embedding_type="rope", **_GRANITE,
    ),
    "ministral3": _family(
        "MISTRAL3", "Ministral3Config", "tekken", change=neighbours, metadata=of_ministral3, head_dim=ROTATED,
        sliding_window=None, rope_parameters=_GROWING, tie_word_embeddings=False,
    ),
    "glm4": _family(
        "GLM4", "Glm4Config", "glm4", head_dim=ROTATED, attention_bias=True, tie_word_embeddings=False,
        rope_parameters={**_PLAIN, "partial_rotary_factor": 0.5},
    ),
    "gpt_oss": _family(
        "GPT_OSS", "GptOssConfig", "gpt-4o", change=in_turns, metadata=of_gpt_oss, intermediate_size=256,
        num_hidden_layers=4, head_dim=ROTATED, num_local_experts=8, num_experts_per_tok=2, sliding_window=32,
        tie_word_embeddings=False, rope_parameters=_OSS, more=("MXFP4_MOE",), off=1e-4,
    ),
    "qwen3_5_moe": _family(
        "QWEN35MOE", "Qwen3_5MoeTextConfig", "qwen35", change=recurrent_with_experts, metadata=of_qwen35_moe, ahead=True,
        num_hidden_layers=4, head_dim=ROTATED, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=64,
        linear_value_head_dim=64, rope_parameters={**_PLAIN, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]},
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256, shared_expert_intermediate_size=256,
    ),
    "qwen3_5": _family(
        "QWEN35", "Qwen3_5TextConfig", "qwen35", change=recurrent, metadata=of_qwen35, ahead=True,
        num_hidden_layers=4, head_dim=ROTATED, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=64,
        linear_value_head_dim=64, rope_parameters={**_PLAIN, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]},
    ),
}  # fmt: skip


# -- models and files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A stock model with random weights, and all tensors of its directory: those of layers that it lacks, too."""

    family: Family
    stock: Any
    tensors: Mapping[str, torch.Tensor]

    @cached_property
    def config(self) -> Any:
        """Return the content of its config.json; transformers spreads some of it over layers when it reads it."""
        return SimpleNamespace(**{**self.stock.config.to_dict(), **self.family.sizes})

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits after each token of a text."""
        found: np.ndarray = self.stock(torch.tensor([list(tokens)]), use_cache=False).logits[0].float().numpy()
        return found

    def with_weights(self, tensors: Mapping[str, torch.Tensor]) -> "Model":
        """Return the same model with other weights."""
        other = _stock(self.family)
        held = {name: one for name, one in tensors.items() if not name.startswith(SEPARATE_LAYERS)}
        missing, unknown = other.load_state_dict(held, strict=False)
        assert not unknown and set(missing) <= {"lm_head.weight"}
        return Model(self.family, other, tensors)


def _stock(family: Family) -> Any:
    config = getattr(transformers, family.config)(**deepcopy(dict(family.sizes)))
    config._attn_implementation = "eager"
    if family.model:
        return getattr(transformers, family.model)(config).eval()
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@cache
def model(name: str) -> Model:
    """Return the tiny model of a family. Its norms and biases are random too, so that leaving one out is noticed."""
    family = FAMILIES[name]
    stock, chance = _stock(family), torch.Generator().manual_seed(7)
    added = {"gemma3": 0.0, "qwen3_5": 0.0, "qwen3_5_moe": 0.0}  # the mean of norms to which one is added
    with torch.no_grad():
        for parameter, tensor in (*stock.named_parameters(), *stock.named_buffers()):
            _fill(parameter, tensor, added.get(name, 1.0), chance)
    stock.tie_weights()
    tied = family.sizes["tie_word_embeddings"]
    tensors = {
        parameter: one.detach().clone()
        for parameter, one in stock.state_dict().items()
        if not (tied and parameter == "lm_head.weight")
    }
    if family.ahead:
        tensors |= _layer_ahead(Model(family, stock, tensors).config, tensors, chance)
    return Model(family, stock, tensors)


def _fill(name: str, tensor: torch.Tensor, norms: float, chance: torch.Generator) -> None:
    if name.endswith(("inv_freq", "embed_scale")):
        return
    if tensor.ndim > 1:
        tensor.normal_(0, 0.3 if "conv1d" in name else 0.08, generator=chance)
    elif name.endswith("A_log"):
        tensor.normal_(-2, 0.3, generator=chance)  # states that forget slowly
    elif name.endswith("bias"):
        tensor.normal_(0, 0.3, generator=chance)
    else:
        mean = 1.0 if name.endswith(("layer_scalar", "linear_attn.norm.weight")) else norms
        tensor.normal_(mean, 0.2, generator=chance)


def _layer_ahead(config: Any, tensors: Mapping[str, torch.Tensor], chance: torch.Generator) -> dict[str, torch.Tensor]:
    """Return the layer of Qwen3.5's files that predicts one more token: one with attention, and its joined inputs."""
    layer = f"model.layers.{config.layer_types.index(_SEES_ALL)}."
    width = config.hidden_size
    shapes = {
        f"mtp.layers.0.{name.removeprefix(layer)}": one.shape for name, one in tensors.items() if name.startswith(layer)
    }
    shapes |= {"mtp.fc.weight": torch.Size((width, 2 * width))}
    shapes |= {f"mtp.{one}.weight": torch.Size((width,)) for one in _AHEAD if one != "fc"}
    made = {name: torch.empty(shape) for name, shape in shapes.items()}
    for name, tensor in made.items():
        _fill(name, tensor, 0.0, chance)
    return made


def converted(found: Model, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Return tensors of the Hugging Face layout as GGUF has them, by their names there."""
    family, config = found.family, found.config
    names = gguf.get_tensor_name_map(family.architecture, config.num_hidden_layers + 1)
    last = f"model.layers.{config.num_hidden_layers}."
    ahead = {
        f"{last}{theirs}.weight": f"{gguf.TENSOR_NAMES[ours].format(bid=config.num_hidden_layers)}.weight"
        for theirs, ours in _AHEAD.items()
    }
    for theirs, tensor in tensors.items():
        for name, one in family.change(config, theirs, tensor):
            ours = (
                ahead.get(name)
                or (name if name.startswith("blk.") else None)
                or names.get_name(name, try_suffixes=(".weight", ".bias"))
            )
            assert ours, f"no name in GGUF for {name}"
            yield ours, one


def write(file: Path, name: str, fused: bool = False, kind: str = F32) -> Path:
    """Write the tiny model of a family in F32 or Q8_0; with gates and ups of each expert in one tensor if `fused`.

    llama.cpp, too, keeps routers, biases and convolutions in F32.
    """
    found = model(name)
    family, config = found.family, found.config
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[family.architecture])
    writer.add_name(f"Tiny {[*FAMILIES].index(name)}")  # llama.cpp looks for marks of Phi 3 if it reads of it in a name
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for key, value in {**usual(family.architecture, config), **family.metadata(config)}.items():
        _add(writer, f"{writer.arch}.{key}", value)
    for key, value in vocabulary(family.kind, family.pre).items():
        _add(writer, key, value)
    for key, values in factors(config).items():
        writer.add_tensor(key, np.array(values, np.float32))
    tensors = dict(converted(found, found.tensors))
    for key in [key for key in tensors if fused and "ffn_gate_exps" in key]:
        gates, ups = tensors.pop(key), tensors.pop(key.replace("ffn_gate_exps", "ffn_up_exps"))
        tensors[key.replace("ffn_gate_exps", "ffn_gate_up_exps")] = torch.cat([gates, ups], 1)
    for key, tensor in tensors.items():
        type_ = gguf.GGMLQuantizationType[F32 if tensor.ndim < 2 or re.search(r"gate_inp|conv1d|bias$", key) else kind]
        writer.add_tensor(key, gguf.quantize(tensor.float().contiguous().numpy(), type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds.get(type(value), writer.add_array)(key, value)


def quantise(dense: Path, file: Path, kind: str) -> Path:
    """Write a file again in another type, with llama.cpp's own quantiser. Raise RuntimeError if it cannot."""
    from llama_cpp_model import library

    settings = library().llama_model_quantize_default_params()
    settings.ftype, settings.nthread = getattr(library(), f"LLAMA_FTYPE_MOSTLY_{kind}"), 1
    if library().llama_model_quantize(str(dense).encode(), str(file).encode(), ctypes.byref(settings)):
        raise RuntimeError(f"llama.cpp cannot make {kind} of {dense}.")
    return file


def has_llama_cpp() -> bool:
    """Return whether llama.cpp is installed here, by the package llama-cpp-python."""
    return importlib.util.find_spec("llama_cpp") is not None


def dequantised(name: str, file: Path) -> Model:
    """Return the stock model with the weights that a file stands for, unpacked by the package `gguf`.

    The place of each element of a matrix is found by converting indexes of elements instead of weights.
    Vectors are in F32 in every file, so those of the model are used.
    """
    found = model(name)
    stored = {one.name: one for one in gguf.GGUFReader(file).tensors}
    wide = {theirs: one for theirs, one in found.tensors.items() if one.ndim == 2 or ".experts." in theirs}
    starts = np.cumsum([0, *(one.numel() for one in wide.values())])
    numbered = {
        theirs: torch.arange(start, start + one.numel()).view(one.shape)
        for (theirs, one), start in zip(wide.items(), starts, strict=False)
    }
    values = np.full(starts[-1], np.nan, np.float32)
    for ours, numbers in converted(found, numbered):
        one = stored[ours]
        values[numbers.numpy().reshape(-1)] = gguf.dequantize(one.data, one.tensor_type).reshape(-1)
    assert not np.isnan(values).any()
    unpacked = {
        theirs: torch.from_numpy(values[start : start + one.numel()].reshape(one.shape).copy())
        for (theirs, one), start in zip(wide.items(), starts, strict=False)
    }
    return found.with_weights({**found.tensors, **unpacked})
