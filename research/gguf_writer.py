"""Write a model in the Hugging Face layout as a GGUF file: the same weights under other names.

The file has no tokenizer, because the compared programs exchange only token ids.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import checkout  # noqa: F401
import torch
from safetensors import safe_open

from localspec.errors import LocalspecError
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.weights.checkpoint import inspect

Kind = Literal["f16", "q8_0"]
NAMES = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3", "phi3": "PHI3"}
ROTATIONS = {"llama": ("default", "linear", "llama3"), "phi3": ("default", "linear", "longrope")}


def check(config: ModelConfig, room: int) -> None:
    """Raise LocalspecError if llama.cpp would compute a GGUF file of this model differently within `room` tokens."""
    family, window = config.model_type, config.sliding_window
    rotation = config.rope_parameters["rope_type"]
    if family not in NAMES:
        raise LocalspecError(f"llama.cpp is given no {family} model here.")
    if rotation not in ROTATIONS.get(family, ("default", "linear")):
        raise LocalspecError(f"llama.cpp is given no {family} model with '{rotation}' positions here.")
    if family != "llama" and window and window < room:
        raise LocalspecError(
            f"llama.cpp is given no window, and this model's is {window} tokens where {room} are needed; "
            "ask for shorter texts."
        )


def write(file: Path, model: Path, config: ModelConfig, kind: Kind) -> None:
    """Write the weights of the directory `model` to `file`: matrices in `kind`, vectors in fp32."""
    import gguf

    architecture = gguf.MODEL_ARCH[NAMES[config.model_type]]
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture], use_temp_file=True)
    heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if kind == "f16" else gguf.LlamaFileType.MOSTLY_Q8_0)
    _add_rotation(writer, config)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for source in inspect(model).weight_files:
        with safe_open(source, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if theirs is None:  # a buffer of old files, which nothing reads
                    continue
                tensor = tensors.get_tensor(name).float()
                if architecture == gguf.MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name):
                    tensor = _interleaved(tensor, heads if "q_proj" in name else num_kv_heads)
                _add_tensor(writer, theirs, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return query or key weights in llama.cpp's order: it rotates neighbouring channels, not two halves of a head."""
    return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _add_tensor(writer: Any, name: str, tensor: torch.Tensor, kind: Kind) -> None:
    import gguf

    if tensor.ndim == 1:
        writer.add_tensor(name, tensor.numpy())
    elif kind == "q8_0" and tensor.shape[1] % 32 == 0:  # one scale is for 32 weights
        q8_0 = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), q8_0), raw_dtype=q8_0)
    else:
        writer.add_tensor(name, tensor.half().numpy())


def _add_rotation(writer: Any, config: ModelConfig) -> None:
    import gguf

    rope = config.rope_parameters
    rotation = Rope.of(config, config.max_position_embeddings)
    writer.add_rope_dimension_count(rotation.rotary_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "llama3":
        plain = Rope.of(replace(config, rope_parameters={**rope, "rope_type": "default"}), 1)
        writer.add_tensor("rope_freqs.weight", plain.inv_freq / rotation.inv_freq)
    elif rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0)
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", torch.tensor(rope[f"{length}_factor"]).numpy())
