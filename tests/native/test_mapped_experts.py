"""Experts in a mapped file without room in memory are read in advance: those that a forward chooses, and no other bytes."""

import ctypes
import mmap
import os
import resource
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import each
from mappings import mappings
from native.engine import Model, Text
from native.test_expert_layer import COUNT, Layer, inputs

from localspec.weights.matrices import BlockStack, PackedMatrix

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what was read is asked of Linux")
PAGE = mmap.PAGESIZE


class Mapped:
    """The experts of a layer in a mapped file, of which nothing is in memory. They begin and end within pages."""

    def __init__(self, layer: Layer, file: Path) -> None:
        self.layer, stored, self.starts = layer, bytearray(PAGE + 5 * 64), {}
        for name, one in layer.given.items():
            for number, part in enumerate(parts(one)):
                self.starts[name, number] = len(stored)
                stored += part.data.tobytes() + bytes(PAGE + 3 * 64)
        file.write_bytes(stored + bytes(64 * PAGE))
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        self.content = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        os.close(handle)
        self.bytes = np.frombuffer(self.content, np.uint8)

    def model(self, on_disk: bool) -> Model:
        def there(name: str, one: Any) -> Any:
            every = [
                replace(part, data=self.bytes[start : start + part.data.nbytes])
                for number, part in enumerate(parts(one))
                for start in [self.starts[name, number]]
            ]
            return BlockStack(tuple(every)) if isinstance(one, BlockStack) else every[0]

        given = {name: there(name, one) for name, one in self.layer.given.items()}
        return Model(self.layer.stock, context=512, given=given, on_disk=on_disk)

    def pages_of(self, experts: Iterable[int]) -> set[int]:
        """Return the pages with bytes of these experts."""
        found: set[int] = set()
        for (name, number), start in self.starts.items():
            size = parts(self.layer.given[name])[number].data.nbytes // COUNT
            for one in experts:
                first = start + size * one
                found |= {*range(first // PAGE, -(-(first + size) // PAGE))}
        return found

    def in_memory(self) -> set[int]:
        """Return the pages that are in memory."""
        pages = -(-len(self.content) // PAGE)
        states = (ctypes.c_ubyte * pages)()
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(self.bytes.ctypes.data), ctypes.c_size_t(len(self.content)), states) == 0
        return {page for page in range(pages) if states[page] & 1}


def parts(matrix: BlockStack | PackedMatrix) -> list[Any]:
    return [*matrix.parts] if isinstance(matrix, BlockStack) else [matrix]


@pytest.fixture(scope="module", params=["Q4_K", "int8"])
def layer(request: pytest.FixtureRequest) -> Layer:
    return Layer("qwen3_moe", request.param)


@pytest.mark.slow
@each("rows", [1, 2, 5])
def test_chosen_experts_are_requested_before_they_are_computed_and_nothing_else_is_read(
    layer: Layer, rows: int, tmp_path: Path
) -> None:
    mapped = Mapped(layer, tmp_path / "experts")
    if mapped.in_memory():
        pytest.skip("this file system keeps files in memory")
    x = inputs(16)[-rows:]
    text, before = Text(mapped.model(on_disk=True)), resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    assert not mapped.in_memory()
    text.forward(None, inputs=x)
    waited = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before
    read = layer.norm(x.astype(float), layer.stock.model.layers[0].post_attention_layernorm)
    chosen = {expert for row in read for expert, _ in layer.routed(row)}
    wanted = mapped.pages_of(chosen)
    assert len(chosen) < COUNT and mapped.in_memory() == wanted
    assert waited < len(wanted) / 4, "one page after another was read when it was needed"
    usual = Text(layer.model)
    usual.forward(None, inputs=x)
    assert np.array_equal(text.hidden, usual.hidden)


@pytest.mark.slow
@each("on_disk", [False, True])
def test_only_matrices_of_experts_on_the_disk_are_expected_to_be_read_in_no_order(
    layer: Layer, on_disk: bool, tmp_path: Path
) -> None:
    mapped = Mapped(layer, tmp_path / "experts")
    model = mapped.model(on_disk)
    assert model.config.experts.on_disk == on_disk
    first = mapped.bytes.ctypes.data
    random = {
        page
        for one in mappings()
        if one.random
        for page in range((one.start - first) // PAGE, (one.end - first) // PAGE)
        if 0 <= page * PAGE < len(mapped.content)
    }
    assert random == (mapped.pages_of(range(COUNT)) if on_disk else set())
