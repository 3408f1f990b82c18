"""Models of common shapes with random weights. Each matrix is made separately, so that 7 B weights never exist in fp32."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import tokenizers
import torch

from localspec.families.architecture import TransformerConfig, in_features, weight_map
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.models.shape import Shape
from localspec.models.tokenizer import Tokenizer
from localspec.nn.attention import fastest
from localspec.nn.packing import DTYPES, linear_class, lm_head_class
from localspec.nn.rotary import RotaryEmbedding
from localspec.nn.small_model import SPREAD
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer

PHI, LLAMA2, LLAMA3 = "Phi-3-mini", "Llama-2-7B", "Llama-3-8B"
HYBRID = "a 4B with 24 recurrent layers of 32"
SHAPES = {
    PHI: Shape(32, 3072, 8192, 32, 32, 96, 32064, 4096),
    LLAMA2: Shape(32, 4096, 11008, 32, 32, 128, 32000, 4096),
    LLAMA3: Shape(32, 4096, 14336, 32, 8, 128, 128256, 4096),
}
SMALL_SHAPES = {
    PHI: Shape(2, 96, 128, 2, 2, 48, 256, 512),
    LLAMA2: Shape(2, 128, 192, 2, 2, 64, 256, 512),
    LLAMA3: Shape(2, 128, 256, 4, 2, 32, 512, 512),
}
_HYBRID = {
    "model_type": "qwen3_5_text", "num_hidden_layers": 32, "hidden_size": 2560, "intermediate_size": 9216,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 151936,
    "max_position_embeddings": 4096, "tie_word_embeddings": True, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
_SMALL_HYBRID = {
    **_HYBRID, "num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 256, "max_position_embeddings": 1024,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
# For each precision, the number format and the packing.
PRECISIONS = {
    "bf16": ("bf16", "none"), "fp16": ("fp16", "none"), "fp32": ("fp32", "none"), "int8": ("bf16", "int8"),
    "nf4": ("bf16", "nf4"),
}  # fmt: skip


class RandomWeights(Mapping[str, torch.Tensor]):
    """A mapping with random weights under the names of `fresh_weights`. A tensor is made when it is read."""

    def __init__(self, config: TransformerConfig, device: str, dtype: torch.dtype) -> None:
        self._config, self._device, self._dtype = config, device, dtype
        self._rows = {name: sum(rows for _, rows in parts) for name, parts in weight_map(config).items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        rows, columns = self._rows[name], in_features(name, self._config)
        if self._config.delta is not None and name.endswith("delta.conv"):
            return torch.randn(rows, 1, self._config.delta.taps, device=self._device, dtype=self._dtype)
        if columns is None:
            value = 1.0 if name.endswith("norm") else 0.0
            return torch.full((rows,), value, device=self._device, dtype=self._dtype)
        return torch.randn(rows, columns, device=self._device, dtype=self._dtype).mul_(SPREAD)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@torch.no_grad()
def random_target(name: str, small: bool, device: str, precision: str) -> Target:
    """Return a random model in the shape `name`, or in a small shape. Raises its layers' errors, mostly out of memory."""
    dtype, quantize = PRECISIONS[precision]
    if name == HYBRID:
        config = ModelConfig.of(_SMALL_HYBRID if small else _HYBRID)
    else:
        config = ModelConfig.of({"model_type": "llama", **(SMALL_SHAPES if small else SHAPES)[name].config})
    sizes, context = TransformerConfig.of(config), config.max_position_embeddings
    torch.manual_seed(0)
    transformer = Transformer(
        sizes,
        RotaryEmbedding(Rope.of(config, context), torch.device(device)),
        RandomWeights(sizes, device, DTYPES[dtype]),
        linear_class(quantize, "cuda"),  # wherever it computes: bitsandbytes has slow kernels for a rehearsal
        fastest,
        lm_head_class(quantize, "cuda"),
    )
    nothing = Tokenizer({"tokenizer.json": tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()}, Path())
    return Target(transformer, config, nothing, context, {})
