"""GGUF files for tests, written byte by byte: from Hugging Face models or invented, sound or hostile."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

U32, I32, F32, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9
BLOCKS = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ2_XXS": (16, 256, 66),
    "IQ2_XS": (17, 256, 74),
    "IQ3_XXS": (18, 256, 98),
    "IQ1_S": (19, 256, 50),
    "IQ4_NL": (20, 32, 18),
    "IQ3_S": (21, 256, 110),
    "IQ2_S": (22, 256, 82),
    "IQ4_XS": (23, 256, 136),
    "IQ1_M": (29, 256, 56),
    "TQ1_0": (34, 256, 54),
    "TQ2_0": (35, 256, 66),
    "MXFP4": (39, 32, 17),
    "NVFP4": (40, 64, 36),
}  # fmt: skip -- number, weights of a block, its bytes
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ3_XXS": (0,),
    "IQ1_S": (0,),
    "IQ4_NL": (0,),
    "IQ3_S": (0,),
    "IQ2_S": (0,),
    "IQ4_XS": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}  # fmt: skip -- where fp16 numbers are
FULL = {
    "Q4_0": 8,
    "Q4_1": 15,
    "Q5_0": 16,
    "Q5_1": 31,
    "Q8_0": 127,
    "Q2_K": 45,
    "Q3_K": 128,
    "Q4_K": 945,
    "Q5_K": 1953,
    "Q6_K": 4064,
    "IQ2_XXS": 166,
    "IQ2_XS": 166,
    "IQ3_XXS": 480,
    "IQ1_S": 17,
    "IQ1_M": 17,
    "IQ4_NL": 127,
    "IQ3_S": 465,
    "IQ2_S": 166,
    "IQ4_XS": 4064,
    "TQ1_0": 1,
    "TQ2_0": 1,
    "MXFP4": 12,
}  # fmt: skip -- the largest number, in units of the scale


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: a type, its shape with rows first, its bytes."""

    kind: str
    shape: tuple[int, ...]
    content: bytes


def text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def value(one: Any) -> bytes:
    """Return a value with its type before it."""
    if isinstance(one, bool):
        return struct.pack("<IB", BOOL, one)
    if isinstance(one, int):
        return struct.pack("<II", U32, one)
    if isinstance(one, float):
        return struct.pack("<If", F32, one)
    if isinstance(one, str):
        return struct.pack("<I", TEXT) + text(one)
    kinds = {str: (TEXT, ""), float: (F32, "<f"), bool: (BOOL, "<?")}
    kind, form = kinds.get(type(one[0]), (I32, "<i"))
    each = (text(item) if kind == TEXT else struct.pack(form, item) for item in one)
    return struct.pack("<IIQ", ARRAY, kind, len(one)) + b"".join(each)


def written(metadata: Mapping[str, Any], tensors: Mapping[str, Stored], version: int = 3, alignment: int = 32) -> bytes:
    """Return a whole file."""
    metadata = {key: one for key, one in metadata.items() if one is not None and one != []}
    said = b"".join(text(key) + value(one) for key, one in metadata.items())
    table, data = b"", b""
    for name, one in tensors.items():
        data += bytes(-len(data) % alignment)
        sizes = struct.pack(f"<{len(one.shape)}Q", *reversed(one.shape))
        table += text(name) + struct.pack("<I", len(one.shape)) + sizes
        table += struct.pack("<IQ", BLOCKS[one.kind][0], len(data))
        data += one.content
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + said + table
    return header + bytes(-len(header) % alignment) + data


def stored(kind: str, weights: np.ndarray) -> Stored:
    """Return weights as a file has them: as they are, or for block types random blocks of about that size."""
    if kind == "F32":
        return Stored(kind, weights.shape, weights.astype("<f4").tobytes())
    if kind == "F16":
        return Stored(kind, weights.shape, weights.astype("<f2").tobytes())
    if kind == "BF16":
        return Stored(kind, weights.shape, (weights.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())
    _, per, size = BLOCKS[kind]
    random = np.random.default_rng(weights.size)
    blocks = random.integers(0, 256, (weights.size // per, size), dtype=np.uint8)
    largest = 3 * weights.std() * random.uniform(0.5, 1, len(blocks))
    for at in SCALES.get(kind, ()):
        blocks[:, at : at + 2] = (largest / FULL[kind]).astype("<f2").view(np.uint8).reshape(-1, 2)
    if kind == "IQ1_M":  # 4 bits of its scale are in the second byte of each pair
        scale = (largest / FULL[kind]).astype("<f2").view("<u2")
        for part in range(4):
            blocks[:, 49 + 2 * part] = blocks[:, 49 + 2 * part] & 15 | ((scale >> 4 * part & 15) << 4).astype(np.uint8)
    if kind == "MXFP4":  # an exponent
        blocks[:, 0] = (128 + np.log2(largest / FULL[kind])).astype(np.uint8)
    if kind == "NVFP4":  # four scales of 8 bits, of which the smallest are used
        blocks[:, :4] = random.integers(1, 9, (len(blocks), 4))
    if kind == "Q8_0":  # as ggml writes them: the largest is 127
        numbers = blocks[:, 2:].view(np.int8)
        numbers[numbers == -128] = 0
        numbers[:, 7] = 127
    return Stored(kind, weights.shape, blocks.tobytes())


def q8_0(weights: np.ndarray) -> Stored:
    """Return weights as llama.cpp's quantiser writes them in Q8_0: ggml's quantize_row_q8_0_ref, 32 at a time."""
    groups = weights.reshape(-1, 32).astype(np.float32)
    scale = abs(groups).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    steps = np.trunc(groups * inverse + np.copysign(np.float32(0.5), groups)).astype(np.int8)  # C's roundf
    blocks = np.concatenate([scale.astype("<f2").view(np.uint8), steps.view(np.uint8)], axis=1)
    return Stored("Q8_0", weights.shape, blocks.tobytes())


def pairs(weights: np.ndarray, heads: int) -> np.ndarray:
    """Return rows of queries or keys in the order of llama.cpp's llama, which rotates neighbouring channels."""
    return weights.reshape(heads, 2, -1, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def halves(weights: np.ndarray, heads: int) -> np.ndarray:
    """Return such rows in the order of the Hugging Face code."""
    return weights.reshape(heads, -1, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "shared_mlp.output_linear": "ffn_down",
    "model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm", "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}  # fmt: skip
GEMMA = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
OWN_NAMES = {
    "gemma3_text": GEMMA,
    "gemma4_text": GEMMA,
    "glm4": {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"},
    "qwen3_5_text": {"post_attention_layernorm": "post_attention_norm"},
}
WHOLE_NAMES = {
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "layer_scalar": "layer_output_scale.weight",
}


def name_of(theirs: str, family: str = "") -> str:
    """Return the name in GGUF of a tensor of the Hugging Face layout."""
    names = {**NAMES, **OWN_NAMES.get(family, {})}
    if theirs.startswith("model.layers."):
        _, _, layer, *rest = theirs.split(".")
        whole = WHOLE_NAMES.get(".".join(rest)) or f"{names['.'.join(rest[:-1])]}.{rest[-1]}"
        return f"blk.{layer}.{whole}"
    name, end = theirs.rsplit(".", 1)
    return f"{names[name]}.{end}"


AHEAD = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
}
PAIRED = ("llama", "mistral", "smollm3", "granite", "granitemoehybrid", "ministral3")  # as llama.cpp rotates them
PLUS_ONE = ("gemma3_text", "qwen3_5_text")  # to whose norms llama.cpp adds nothing


def tiled(weights: np.ndarray, config: Mapping[str, Any], first: int, rows: int) -> np.ndarray:
    """Return rows of value heads, from `first` on, as llama.cpp's qwen35 has them: the first of each key head first."""
    heads = config["linear_num_key_heads"]
    shared = config["linear_num_value_heads"] // heads
    last = weights[first:].reshape(heads, shared, rows, *weights.shape[1:]).swapaxes(0, 1)
    return np.concatenate([weights[:first], last.reshape(-1, *weights.shape[1:])])


def in_gguf(config: Mapping[str, Any], name: str, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return a tensor of the Hugging Face layout as the converter of llama.cpp writes it, by its name in GGUF."""
    family = config["model_type"]
    if name.startswith("mtp."):
        name = name.replace("mtp.layers.0.", f"model.layers.{config['num_hidden_layers']}.")
    if name.startswith("mtp."):
        stem = name.split(".")[1]
        return {f"blk.{config['num_hidden_layers']}.nextn.{AHEAD[stem]}.weight": weights + ("norm" in stem)}
    if name.endswith("shared_mlp.input_linear.weight"):
        layer = f"blk.{name.split('.')[2]}."
        return dict(zip((f"{layer}ffn_gate.weight", f"{layer}ffn_up.weight"), np.split(weights, 2), strict=True))
    if family in PAIRED and (".q_proj." in name or ".k_proj." in name):
        weights = pairs(weights, config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"])
    if family in PLUS_ONE and name.endswith("norm.weight") and "linear_attn" not in name:
        weights = weights + np.float32(1)
    if family == "qwen3_5_text" and "linear_attn" in name:
        width = config["linear_value_head_dim"]
        first = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        if "in_proj_qkv" in name or "conv1d" in name:
            weights = tiled(weights.reshape(len(weights), -1), config, first, width)
        elif "in_proj_z" in name:
            weights = tiled(weights, config, 0, width)
        elif "out_proj" in name:
            weights = np.ascontiguousarray(tiled(np.ascontiguousarray(weights.T), config, 0, width).T)
        elif not name.endswith("norm.weight"):
            weights = tiled(weights, config, 0, 1)
        weights = -np.exp(weights) if name.endswith("A_log") else weights
    return {name_of(name, family): weights}


def from_gguf(config: Mapping[str, Any], name: str, parts: list[np.ndarray]) -> np.ndarray:
    """Return a tensor in the Hugging Face layout, from the result of `in_gguf`; not for recurrent layers."""
    family, whole = config["model_type"], np.concatenate(parts)
    if family in PAIRED and (".q_proj." in name or ".k_proj." in name):
        whole = halves(whole, config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"])
    if family in PLUS_ONE and name.endswith("norm.weight"):
        whole = whole - np.float32(1)
    return np.ascontiguousarray(whole)


def weights_of(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a directory in the Hugging Face layout, in fp32."""
    import torch  # numpy has no bf16
    from safetensors.torch import load_file as load_torch

    found: dict[str, np.ndarray] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= {name: one.to(torch.float32).numpy() for name, one in load_torch(file).items()}
    return found


def tokenizer_of(path: Path, pre: str) -> dict[str, Any]:
    """Return the metadata of a byte-level tokenizer and its template."""
    content = json.loads((path / "tokenizer.json").read_text())
    config = json.loads((path / "tokenizer_config.json").read_text())
    by_id = {index: token for token, index in content["model"]["vocab"].items()}
    added = {one["id"]: one for one in content["added_tokens"]}
    by_id |= {index: one["content"] for index, one in added.items()}
    tokens = [by_id[index] for index in range(max(by_id) + 1)]
    size = json.loads((path / "config.json").read_text()).get("vocab_size", 0)
    kinds = [3 if added.get(index, {}).get("special") else 4 if index in added else 1 for index in range(len(tokens))]
    kinds += [5] * (size - len(tokens))  # what pads a vocabulary, as converters call it
    tokens += [f"[PAD{index}]" for index in range(len(tokens), size)]
    merges = [one if isinstance(one, str) else " ".join(one) for one in content["model"]["merges"]]
    template = path / "chat_template.jinja"
    roles = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token"}
    named = {ours: config.get(theirs) for ours, theirs in roles.items()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template.read_text() if template.exists() else config["chat_template"],
        **{f"tokenizer.ggml.{ours}_token_id": tokens.index(token) for ours, token in named.items() if token},
    }


ARCHITECTURES = {
    "mistral": "llama", "gemma3_text": "gemma3", "gemma4_text": "gemma4", "granitemoehybrid": "granite",
    "ministral3": "mistral3", "qwen3_5_text": "qwen35",
}  # fmt: skip


def _gemma3(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention.sliding_window": config["sliding_window"],
        "rope.freq_base_swa": float(config["rope_parameters"]["sliding_attention"]["rope_theta"]),
    }


def _full(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that only Gemma 4's layers without a window have."""
    return next(iter(config["per_layer_config"].values()))


def _gemma4(config: Mapping[str, Any]) -> dict[str, Any]:
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    shared, inner, full = config["num_kv_shared_layers"], config["intermediate_size"], _full(config)
    whole = full["head_dim"]
    own = len(slides) - shared
    wide = 2 * inner if config["use_double_wide_mlp"] else inner
    many = config["num_key_value_heads"]
    few = full.get("num_key_value_heads")
    return {
        **_gemma3(config),
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": shared,
        "attention.head_count_kv": many if few is None else [many if one else few for one in slides],
        "attention.key_length": whole, "attention.value_length": whole, "rope.dimension_count": whole,
        "attention.key_length_swa": config["head_dim"], "attention.value_length_swa": config["head_dim"],
        "feed_forward_length": [inner] * own + [wide] * shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"] or 0,
        "final_logit_softcapping": config["final_logit_softcapping"],
    }  # fmt: skip


def _granite(config: Mapping[str, Any]) -> dict[str, Any]:
    names = {"attention.scale": "attention", "embedding_scale": "embedding", "residual_scale": "residual"}
    said = {key: float(config[f"{theirs}_multiplier"]) for key, theirs in names.items()}
    return {**said, "logit_scale": float(config["logits_scaling"])}


def _granite4(config: Mapping[str, Any]) -> dict[str, Any]:
    rotated = {"rope.scaling.finetuned": config["position_embedding_type"] == "rope"}
    wide = {"feed_forward_length": config["shared_intermediate_size"], "ssm.conv_kernel": config["mamba_d_conv"]}
    return {**_granite(config), **rotated, **wide}


def _ministral3(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    log, scale = rope["mscale_all_dim"], rope["llama_4_scaling_beta"]
    return {"rope.scaling.yarn_log_multiplier": log, "attention.temperature_scale": scale}


def _qwen35(config: Mapping[str, Any]) -> dict[str, Any]:
    heads, ahead = config["linear_num_value_heads"], config.get("mtp_num_hidden_layers", 0)
    return {
        "block_count": config["num_hidden_layers"] + ahead, "nextn_predict_layers": ahead,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config["layer_types"]] + [False] * ahead,
        "rope.dimension_sections": [3, 3, 2, 0],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["linear_value_head_dim"],
    }  # fmt: skip


OWN_METADATA = {
    "gemma3_text": _gemma3, "gemma4_text": _gemma4, "granite": _granite, "granitemoehybrid": _granite4,
    "ministral3": _ministral3, "qwen3_5_text": _qwen35,
}  # fmt: skip


def metadata_of(path: Path, pre: str) -> dict[str, Any]:
    """Return the metadata in a file of this model."""
    config = json.loads((path / "config.json").read_text())
    family = ARCHITECTURES.get(config["model_type"], config["model_type"])
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    said = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope.get("rope_theta", 10000.0)),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
    }
    if rope.get("rope_type") in ("linear", "yarn"):
        said |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if "original_max_position_embeddings" in rope:
        said["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if rope.get("rope_type") == "longrope":
        scale = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
        growth = np.sqrt(1 + np.log(scale) / np.log(rope["original_max_position_embeddings"]))
        said["rope.scaling.attn_factor"] = float(growth)
    if config["model_type"] == "phi3" and config.get("sliding_window"):
        said["attention.sliding_window"] = config["sliding_window"]
    said |= OWN_METADATA.get(config["model_type"], lambda _: {})(config)
    return {
        "general.architecture": family,
        "general.name": path.name,
        "general.license": "apache-2.0",
        **{f"{family}.{key}": one for key, one in said.items()},
        **tokenizer_of(path, pre),
    }


def factors_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the divisors of frequencies, channel by channel, as llama.cpp's converter writes them."""
    rope = config.get("rope_parameters") or {}
    if (whole := rope.get("full_attention", rope)).get("rope_type") == "proportional":
        half, rotated = _full(config)["head_dim"] // 2, whole.get("partial_rotary_factor", 1.0)
        turned = int(rotated * half)
        return {"rope_freqs.weight": [whole.get("factor", 1.0)] * turned + [1e30] * (half - turned)}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{length}.weight": rope[f"{length}_factor"] for length in ("long", "short")}
    if rope.get("rope_type") != "llama3":
        return {}
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high, original = (
        rope[key] for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": 1 / ((1 - smooth) / rope["factor"] + smooth)}


def tensors_of(path: Path, kind: str, faithful: bool = False, named: str = "") -> dict[str, Stored]:
    """Return the weights of a directory in one type, or what has no blocks of that size in F16, and vectors in F32.

    `faithful` ones in Q8_0 are those of the directory, and not blocks of chance. `named`: a part of their names.
    """
    config = json.loads((path / "config.json").read_text())
    found = {name: stored("F32", np.array(one, np.float32)) for name, one in factors_of(config).items()}
    every = (in_gguf(config, name, weights) for name, weights in weights_of(path).items())
    for name, weights in (one for some in every for one in some.items() if named in one[0]):
        fits = weights.ndim > 1 and weights.shape[-1] % BLOCKS[kind][1] == 0
        faithfully = faithful and fits and weights.ndim > 1
        chosen = kind if fits else "F32" if weights.ndim == 1 or "conv1d" in name else "F16"
        found[name] = q8_0(weights) if faithfully else stored(chosen, weights)
    return found


def write_model(file: Path, path: Path, kind: str = "Q8_0", pre: str = "gpt-2", **unlike: Any) -> Path:
    """Write a directory in the Hugging Face layout as a GGUF file; `unlike` is other metadata, and None leaves a key out."""
    metadata = {**metadata_of(path, pre), **{key.replace("__", "."): one for key, one in unlike.items()}}
    file.write_bytes(written(metadata, tensors_of(path, kind)))
    return file
