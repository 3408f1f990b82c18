"""LoRA adapters of a transformer's linear layers and head, saved and loaded under the names that peft uses."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import torch
from torch import nn

from localspec.errors import LocalspecError
from localspec.models.stored_names import STORED_NAMES, AdaptedPart, adapted_parts
from localspec.nn.linear import LoraAdapter
from localspec.nn.transformer import Transformer


class Adapters(nn.Module, Mapping[int, Mapping[str, LoraAdapter]]):
    """A set of LoRA adapters by layer number and name of the linear layer, for `Transformer.forward`.

    `head` is the adapter of the head, or None. In training, a share `dropout` of the adapters' inputs is set to zero.
    """

    head: LoraAdapter | None

    def __init__(
        self,
        transformer: Transformer,
        layers: Sequence[int],
        rank: int,
        alpha: float,
        which: str = "all",
        *,
        head: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.rank, self.alpha, self.dropout, self.head = rank, alpha, dropout, None
        self._adapters: dict[int, dict[str, LoraAdapter]] = {}
        self._parts = list(adapted_parts(transformer.config, layers, which))
        for (index, name), parts in groupby(self._parts, lambda part: (part.layer, part.linear)):
            outputs, inputs = getattr(transformer.layers[index], name).shape
            with transformer.embed_tokens.device:
                adapter = LoraAdapter(inputs, outputs, [(part.start, part.end) for part in parts], rank, alpha)
            self._adapters.setdefault(index, {})[name] = adapter
            self.add_module(f"{index}_{STORED_NAMES[name]}", adapter)
        if head:
            outputs, inputs = transformer.lm_head.shape
            with transformer.embed_tokens.device:
                self.head = LoraAdapter(inputs, outputs, [(0, outputs)], rank, alpha)
        for child in self.children():
            assert isinstance(child, LoraAdapter)
            child.dropout = dropout

    def __getitem__(self, layer: int) -> Mapping[str, LoraAdapter]:
        return self._adapters[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(self._adapters)

    def __len__(self) -> int:
        return len(self._adapters)

    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @torch.no_grad()
    def change_of(self, name: str) -> torch.Tensor | None:
        """Return what the adapter adds to a weight [out, in], by its name in `weight_map`; None without an adapter."""
        adapter = self.head if name == "lm_head.weight" else None
        if name.startswith("layers.") and name.endswith(".weight"):
            _, index, linear, _ = name.split(".")
            adapter = self._adapters.get(int(index), {}).get(linear)
        return None if adapter is None else adapter.product()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return a pair of tensors for each projection of the Hugging Face layout, under peft's names."""
        tensors = {}
        for part, adapter, rows in self._pairs():
            lora_b = adapter.lora_B.new_zeros(part.size, self.rank)
            lora_b[part.start - part.first : part.end - part.first] = adapter.lora_B.detach()[
                part.start : part.end, rows
            ]
            tensors[part.lora_a] = adapter.lora_A.detach()[rows].contiguous()
            tensors[part.lora_b] = lora_b
        return tensors

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the adapters from a result of the method `tensors`. Raises LocalspecError for a tensor that is missing
        or has another shape."""
        for part, adapter, rows in self._pairs():
            lora_a, lora_b = tensors.get(part.lora_a), tensors.get(part.lora_b)
            if lora_a is None or lora_b is None:
                raise LocalspecError(f"The adapters have no {part.name!r}; train them again.")
            if lora_a.shape != (self.rank, part.inputs) or lora_b.shape != (part.size, self.rank):
                shapes = " and ".join(str(list(matrix.shape)) for matrix in (lora_a, lora_b))
                expected = " and ".join(map(str, ([self.rank, part.inputs], [part.size, self.rank])))
                raise LocalspecError(
                    f"The adapter of {part.name!r} has the shapes {shapes} instead of {expected}; train it again."
                )
            adapter.lora_A[rows] = lora_a.to(adapter.lora_A)
            adapted_rows = lora_b[part.start - part.first : part.end - part.first]
            adapter.lora_B[part.start : part.end, rows] = adapted_rows.to(adapter.lora_B)

    def _pairs(self) -> Iterator[tuple[AdaptedPart, LoraAdapter, slice]]:
        """Yield each adapted projection, its adapter, and the slice of its rows of A and of its columns of B."""
        for part in self._parts:
            rows = slice(part.block * self.rank, (part.block + 1) * self.rank)
            yield part, self._adapters[part.layer][part.linear], rows
