"""Models with random weights and no tokenizer, to measure a device with."""

from pathlib import Path

import tokenizers
import torch

from localspec.families.architecture import TransformerConfig
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.models.tokenizer import Tokenizer
from localspec.nn.attention import fastest
from localspec.nn.packing import DTYPES, linear_class, lm_head_class
from localspec.nn.rotary import RotaryEmbedding
from localspec.nn.small_model import fresh_weights
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer


@torch.inference_mode()
def invented_target(config: ModelConfig, device: str, dtype: str, quantize: str) -> Target:
    """Make a model of this config. Raises RuntimeError where the device has no room, or not this precision."""
    shape, where = TransformerConfig.of(config), torch.device(device)
    context = config.max_position_embeddings
    weights = {name: tensor.to(DTYPES[dtype]) for name, tensor in fresh_weights(shape, where).items()}
    classes = linear_class(quantize, device), fastest, lm_head_class(quantize, device)
    transformer = Transformer(shape, RotaryEmbedding(Rope.of(config, context), where), weights, *classes)
    none = Tokenizer({"tokenizer.json": tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()}, Path())
    return Target(transformer, config, none, context, {})
