"""Models of the compiled library, made of Hugging Face models: tests call the C functions with arrays."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from tiny_models import by_expert

from localspec.families.architecture import TransformerConfig, weight_map
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.machine.library import ACTIVATIONS, Adapter, Layer, Request, address, check, int32, library, valid_handle
from localspec.machine.library import ModelConfig as NativeConfig
from localspec.native import model as native_model
from localspec.native.threads import Threads
from localspec.weights.matrices import BlockStack, PackedMatrix

ISAS = ("c", "neon", "avx2", "avx_vnni", "avx512_vnni")


def isas() -> list[int]:
    """Return the instruction sets of this machine, the plain one first."""
    return [isa for isa in range(len(ISAS)) if library().ls_isa_supported(isa)]


@contextmanager
def using(isa: int) -> Iterator[None]:
    before = library().ls_isa_in_use()
    check(library().ls_isa_use(isa))
    try:
        yield
    finally:
        check(library().ls_isa_use(before))


class Pool:
    def __init__(self, threads: int) -> None:
        self.handle = valid_handle(library().ls_pool_new(threads))

    def __del__(self) -> None:
        library().ls_pool_free(self.handle)


POOL = Pool(1)


def linear(
    weight: PackedMatrix | BlockStack,
    x: np.ndarray,
    bias: np.ndarray | None = None,
    activation: str = "",
    pool: Pool = POOL,
) -> np.ndarray:
    x = np.ascontiguousarray(x, np.float32)
    y = np.full((len(x), weight.out), np.nan, np.float32)
    check(
        library().ls_linear(
            pool.handle, weight.struct(bias), len(x), address(x), address(y), ACTIVATIONS.get(activation, 0)
        )
    )
    return y


class Model:
    """A model in `form` ("fp32", "bf16", "int8"), made of a stock one; quantised ones in groups of 32.

    Weights in `given` replace those that would be packed here.
    """

    def __init__(
        self,
        stock: Any,
        form: str = "fp32",
        cache: str = "fp32",
        context: int = 512,
        given: Mapping[str, Any] | None = None,
        on_disk: bool = False,
    ) -> None:
        config = ModelConfig.of(stock.config.to_dict())
        sizes = self.sizes = TransformerConfig.of(config)
        state = by_expert({name: tensor.detach().float().numpy() for name, tensor in stock.state_dict().items()})
        weights: dict[str, Any] = {
            ours: np.concatenate([state[part] for part, _ in parts]) for ours, parts in weight_map(sizes).items()
        }
        weights |= {name: one.reshape(-1) for name, one in weights.items() if name.endswith(".shared_gate")}
        weights.setdefault("lm_head.weight", weights["embed_tokens"])
        group = 0 if form in ("fp32", "bf16") else 32
        given = given or {}
        weights.update(given)
        for name in [name for name in weights if name.endswith(".weight") and name not in given]:
            dense = ("fp32", 0) if name.endswith("router.weight") else (form, group)
            weights[name] = PackedMatrix.pack(weights[name], *dense, "gate_up_proj" in name)
        told: list[NativeConfig] = []
        with patch.object(native_model, "ModelConfig", lambda *given: told.append(NativeConfig(*given)) or told[-1]):
            self.native = native_model.NativeModel(
                sizes, Rope.of(config, context), weights, Threads(1), cache, None, on_disk
            )
        self.handle, (self.config,) = self.native.handle, told
        self.kept: list[Any] = []  # arrays of adapters, which the library reads

    def layers(self) -> ctypes.Array[Layer]:
        """Return the descriptions of the layers that the library received."""
        return (Layer * self.sizes.num_layers)(*map(self.native._layer, range(self.sizes.num_layers)))


class Text:
    """A model's cache, and forwards that extend it."""

    def __init__(self, model: Model, pool: Pool = POOL, slots: int = 512) -> None:
        self.model, self.pool = model, pool
        self.cache = valid_handle(library().ls_cache_new(model.handle, slots))
        self.hidden = np.empty(0, np.float32)

    def __del__(self) -> None:
        library().ls_cache_free(self.cache)

    @property
    def length(self) -> int:
        return library().ls_cache_length(self.cache)

    def forward(
        self,
        tokens: Sequence[int] | None,
        parents: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        inputs: np.ndarray | None = None,
        layers: Sequence[int] | None = None,
        adapters: Any = None,
        logits_from: int = 0,
    ) -> np.ndarray:
        """Return logits [rows - logits_from, vocab_size]. Store the states in `hidden` and the picks in `argmax`."""
        rows, sizes = len(inputs if tokens is None else tokens), self.model.sizes
        self.hidden = np.full((rows, sizes.hidden_size), np.nan, np.float32)
        logits = np.full((rows - logits_from, sizes.vocab_size), np.nan, np.float32)
        self.argmax = np.full(rows - logits_from, -7, np.int32)
        given = [None if values is None else int32(values) for values in (tokens, parents, positions, layers)]
        inputs = None if inputs is None else np.ascontiguousarray(inputs, np.float32)
        request = Request(
            rows, address(given[0]), address(inputs), address(given[1]), address(given[2]), address(given[3]), len(layers or ()),
            None if adapters is None else ctypes.cast(adapters, ctypes.c_void_p), address(self.hidden), address(logits),
            address(self.argmax), logits_from,
        )  # fmt: skip
        check(library().ls_forward(self.model.handle, self.cache, self.pool.handle, request))
        return logits

    def keep(self, path: Sequence[int]) -> None:
        numbers = int32(path)
        check(library().ls_cache_keep(self.cache, address(numbers), len(numbers)))

    def truncate(self, length: int) -> None:
        check(library().ls_cache_truncate(self.cache, length))

    def read(self, tokens: Sequence[int], chunk: int) -> np.ndarray:
        parts = []
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            parts.append(self.forward(part))
            self.keep(range(len(part)))
        return np.concatenate(parts)


def adapters(model: Model, given: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, float]]) -> Any:
    """Return adapters as the library takes them, from (layer, 0 to 3) -> A [rank, in], B [out, rank], scale."""
    made_of = (Adapter * (4 * model.sizes.num_layers))()
    for (layer, which), (a, b, scale) in given.items():
        a, b = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b.T, np.float32)
        model.kept += [a, b]
        made_of[4 * layer + which] = Adapter(address(a), address(b), len(a), scale)
    return made_of


@torch.no_grad()
def stock_logits(stock: Any, tokens: Sequence[int]) -> np.ndarray:
    return stock(torch.tensor([list(tokens)]), use_cache=False).logits[0].numpy()
