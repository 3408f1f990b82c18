"""GGUF files as a test needs them: written byte by byte, from Hugging Face models or from nothing, sound or hostile."""

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
    """A value with its type before it."""
    if isinstance(one, bool):
        return struct.pack("<IB", BOOL, one)
    if isinstance(one, int):
        return struct.pack("<II", U32, one)
    if isinstance(one, float):
        return struct.pack("<If", F32, one)
    if isinstance(one, str):
        return struct.pack("<I", TEXT) + text(one)
    kind, form = (TEXT, "") if isinstance(one[0], str) else (F32, "<f") if isinstance(one[0], float) else (I32, "<i")
    each = (text(item) if kind == TEXT else struct.pack(form, item) for item in one)
    return struct.pack("<IIQ", ARRAY, kind, len(one)) + b"".join(each)


def written(metadata: Mapping[str, Any], tensors: Mapping[str, Stored], version: int = 3, alignment: int = 32) -> bytes:
    """A whole file."""
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
    """Weights as a file has them: as they are, or for types of blocks as blocks of chance that are about as large."""
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
    """Weights as llama.cpp's quantiser writes them in Q8_0: ggml's quantize_row_q8_0_ref, 32 at a time."""
    groups = weights.reshape(-1, 32).astype(np.float32)
    scale = abs(groups).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    steps = np.trunc(groups * inverse + np.copysign(np.float32(0.5), groups)).astype(np.int8)  # C's roundf
    blocks = np.concatenate([scale.astype("<f2").view(np.uint8), steps.view(np.uint8)], axis=1)
    return Stored("Q8_0", weights.shape, blocks.tobytes())


def pairs(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as llama.cpp's llama has them, which rotates neighbouring channels."""
    return weights.reshape(heads, 2, -1, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def halves(weights: np.ndarray, heads: int) -> np.ndarray:
    """Such rows as the Hugging Face code has them."""
    return weights.reshape(heads, -1, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def name_of(theirs: str) -> str:
    """The name in GGUF of a tensor of the Hugging Face layout."""
    if theirs.startswith("model.layers."):
        _, _, layer, *rest = theirs.split(".")
        return f"blk.{layer}.{NAMES['.'.join(rest[:-1])]}.{rest[-1]}"
    name, end = theirs.rsplit(".", 1)
    return f"{NAMES[name]}.{end}"


def weights_of(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a directory in the Hugging Face layout, in fp32."""
    import torch  # numpy has no bf16
    from safetensors.torch import load_file as load_torch

    found: dict[str, np.ndarray] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= {name: one.to(torch.float32).numpy() for name, one in load_torch(file).items()}
    return found


def tokenizer_of(path: Path, pre: str) -> dict[str, Any]:
    """The metadata of a byte-level tokenizer and its template."""
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


def metadata_of(path: Path, pre: str) -> dict[str, Any]:
    """What a file of this model says of it."""
    config = json.loads((path / "config.json").read_text())
    family = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
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
    return {
        "general.architecture": family,
        "general.name": path.name,
        "general.license": "apache-2.0",
        **{f"{family}.{key}": one for key, one in said.items()},
        **tokenizer_of(path, pre),
    }


def factors_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What frequencies are divided by, channel by channel, as llama.cpp's converter writes it."""
    rope = config.get("rope_parameters") or {}
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


def tensors_of(path: Path, kind: str, faithful: bool = False) -> dict[str, Stored]:
    """The weights of a directory in one type, or what has no blocks of that size in F16, and vectors in F32.

    `faithful` ones in Q8_0 are those of the directory, and not blocks of chance.
    """
    config = json.loads((path / "config.json").read_text())
    found = {name: stored("F32", np.array(one, np.float32)) for name, one in factors_of(config).items()}
    for name, weights in weights_of(path).items():
        if config["model_type"] in ("llama", "mistral") and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            weights = pairs(weights, heads)
        fits = weights.ndim > 1 and weights.shape[-1] % BLOCKS[kind][1] == 0
        faithfully = faithful and fits and weights.ndim > 1
        chosen = kind if fits else "F32" if weights.ndim == 1 else "F16"
        found[name_of(name)] = q8_0(weights) if faithfully else stored(chosen, weights)
    return found


def write_model(file: Path, path: Path, kind: str = "Q8_0", pre: str = "gpt-2", **unlike: Any) -> Path:
    """A directory in the Hugging Face layout as a GGUF file; `unlike` are other metadata, None leaves a key out."""
    metadata = {**metadata_of(path, pre), **{key.replace("__", "."): one for key, one in unlike.items()}}
    file.write_bytes(written(metadata, tensors_of(path, kind)))
    return file
