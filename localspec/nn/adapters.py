"""LoRA adapters of a transformer's linear layers: made, merged, and exchanged with peft under its own names."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from localspec.errors import LocalspecError
from localspec.models.architecture import TransformerConfig, weight_map
from localspec.nn.linear import Linear, LoraAdapter
from localspec.nn.stored_names import STORED_NAMES
from localspec.nn.transformer import Transformer

LINEARS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
WHICH = {  # the projections that may be adapted, by the last part of their Hugging Face names
    "all": {"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj"},
    "vko": {"k_proj", "v_proj", "qkv_proj", "o_proj"},  # S3D, appendix B
}
MOST_RANK = 1024  # a higher one is not low rank any more
_PREFIX, _LORA_A, _LORA_B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


class Adapters(nn.Module, Mapping[int, Mapping[str, LoraAdapter]]):
    """Adapters of some layers, by layer and by linear layer, as `Transformer.forward` takes them."""

    def __init__(
        self, transformer: Transformer, layers: Sequence[int], rank: int, alpha: float, which: str = "all"
    ) -> None:
        super().__init__()
        self.rank, self.alpha, self.which, self._config = rank, alpha, which, transformer.config
        self._adapters: dict[int, dict[str, LoraAdapter]] = {}
        for index in layers:
            for name in LINEARS:
                if blocks := [(start, end) for _, start, end in _blocks(self._config, index, name, which)]:
                    outputs, inputs = getattr(transformer.layers[index], name).shape
                    with transformer.embed_tokens.device:
                        adapter = LoraAdapter(inputs, outputs, blocks, rank, alpha)
                    self._adapters.setdefault(index, {})[name] = adapter
                    self.add_module(f"{index}_{STORED_NAMES[name]}", adapter)

    def __getitem__(self, layer: int) -> Mapping[str, LoraAdapter]:
        return self._adapters[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(self._adapters)

    def __len__(self) -> int:
        return len(self._adapters)

    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def nbytes(self) -> int:
        return sum(adapter.nbytes for layer in self._adapters.values() for adapter in layer.values())

    @torch.no_grad()
    def merge(self, transformer: Transformer) -> None:
        """Adds the adapters to the weights, which then are another model's. The layers must be dense."""
        for index, layer in self._adapters.items():
            for name, adapter in layer.items():
                linear = getattr(transformer.layers[index], name)
                assert isinstance(linear, Linear)
                linear.weight.add_(adapter.product().to(linear.weight.dtype))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns a pair of tensors for each projection of the Hugging Face layout, under peft's names."""
        found = {}
        for layer, name, block, (part, start, end), adapter in self._pairs():
            rows = slice(block * self.rank, (block + 1) * self.rank)
            first, size = self._place(layer, name, part)
            lora_b = adapter.lora_B.new_zeros(size, self.rank)
            lora_b[start - first : end - first] = adapter.lora_B.detach()[start:end, rows]
            found[_PREFIX + part + _LORA_A] = adapter.lora_A.detach()[rows].contiguous()
            found[_PREFIX + part + _LORA_B] = lora_b
        return found

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads what `tensors` gave. Raises LocalspecError for a tensor that is missing or has another shape."""
        for layer, name, block, (part, start, end), adapter in self._pairs():
            rows = slice(block * self.rank, (block + 1) * self.rank)
            first, size = self._place(layer, name, part)
            lora_a, lora_b = tensors.get(_PREFIX + part + _LORA_A), tensors.get(_PREFIX + part + _LORA_B)
            if lora_a is None or lora_b is None:
                raise LocalspecError(f"The adapters lack {part!r}; train them again.")
            if lora_a.shape != (self.rank, adapter.lora_A.shape[1]) or lora_b.shape != (size, self.rank):
                raise LocalspecError(
                    f"The adapter of {part!r} has the shapes {list(lora_a.shape)} and {list(lora_b.shape)} where "
                    f"{[self.rank, adapter.lora_A.shape[1]]} and {[size, self.rank]} belong; train it again."
                )
            adapter.lora_A[rows] = lora_a.to(adapter.lora_A)
            adapter.lora_B[start:end, rows] = lora_b[start - first : end - first].to(adapter.lora_B)

    def peft_config(self, base: str) -> dict[str, object]:
        """Returns what adapter_config.json must say for peft to read the same adapters."""
        parts = {part.rpartition(".")[2] for *_, (part, _, _), _ in self._pairs()}
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": sorted(parts),
            "layers_to_transform": list(self._adapters),
            "layers_pattern": "layers",
            "bias": "none",
            "lora_dropout": 0.0,
            "inference_mode": True,
        }

    def _pairs(self) -> Iterator[tuple[int, str, int, tuple[str, int, int], LoraAdapter]]:
        for index, layer in self._adapters.items():
            for name, adapter in layer.items():
                for block, rows in enumerate(_blocks(self._config, index, name, self.which)):
                    yield index, name, block, rows, adapter

    def _place(self, layer: int, name: str, part: str) -> tuple[int, int]:
        """Returns the first row of this projection in our layer, and how many rows it has."""
        first = 0
        for weight, rows in weight_map(self._config)[f"layers.{layer}.{name}.weight"]:
            if weight == part + ".weight":
                return first, rows
            first += rows
        raise AssertionError(part)


def _blocks(config: TransformerConfig, layer: int, name: str, which: str) -> list[tuple[str, int, int]]:
    """Lists what is adapted in one of our linear layers: (Hugging Face name, first row, row after the last)."""
    found: list[tuple[str, int, int]] = []
    first = 0
    for weight, rows in weight_map(config)[f"layers.{layer}.{name}.weight"]:
        part = weight.removesuffix(".weight")
        if part.rpartition(".")[2] in WHICH[which]:
            # Keys and values of Phi-3's fused projection are one block.
            skipped = config.num_heads * config.head_dim if which == "vko" and part.endswith("qkv_proj") else 0
            found.append((part, first + skipped, first + rows))
        first += rows
    return found
