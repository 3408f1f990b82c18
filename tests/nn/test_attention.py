"""Attention: both forms give what torch does, and in the invariant one no row depends on another, on slots or on threads."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scripted_drafters import path_to, random_tree
from slow_cases import cases
from torch.utils._python_dispatch import TorchDispatchMode
from torch_products import needs_order

from localspec.decoding.tree import DraftTree
from localspec.nn.attention import (
    ACTIVATIONS,
    COLUMNS,
    LEAST_ROWS,
    LEAST_SLOTS,
    Attention,
    fastest,
    in_parts,
    invariant,
    page_size,
)
from localspec.nn.target import ancestor_mask

# key heads, queries that share one, width of a head
SHAPES = {
    "multi-head": (4, 1, 64),
    "many heads": (16, 1, 96),
    "pairs": (2, 2, 24),
    "groups of four": (8, 4, 128),
    "groups of five": (4, 5, 20),
    "groups of seven": (2, 7, 64),
    "one key head": (1, 4, 12),
}
every_shape = pytest.mark.parametrize("shape", SHAPES)


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))


def additive(seen: torch.Tensor, group: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[group * rows, slots] of who sees what, as the transformer makes it."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf")).repeat(group, 1)


def scattered(rows: int, slots: int, seed: int = 0) -> torch.Tensor:
    """Every row sees slots of its own, at least one."""
    seen = torch.rand(rows, slots, generator=torch.Generator().manual_seed(seed)) < 0.3
    seen[torch.arange(rows), torch.arange(rows) % slots] = True
    return seen


@every_shape
@pytest.mark.parametrize("form", [invariant, fastest])
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_both_forms_give_what_torch_gives(form: Attention, shape: str, rows: int) -> None:
    heads, group, width = SHAPES[shape]
    queries, keys, values = made(heads, group * rows, width), made(heads, 512, width, seed=1), made(heads, 512, width)
    mask = additive(scattered(rows, 512), group)
    ours, torchs = form(queries, keys, values, mask), F.scaled_dot_product_attention(queries, keys, values, mask)
    assert ours.shape == torchs.shape
    assert (ours - torchs).abs().max() < 1e-5 * torchs.abs().max()


@every_shape
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_cache_in_bf16_is_read_with_queries_in_fp32_or_bf16(shape: str, rows: int) -> None:
    heads, group, width = SHAPES[shape]
    keys, values = (made(heads, 512, width, seed=seed).bfloat16() for seed in (1, 2))
    queries, seen = made(heads, group * rows, width).bfloat16(), scattered(rows, 512)
    mask, full = additive(seen, group, torch.bfloat16), additive(seen, group)
    right = F.scaled_dot_product_attention(queries.float(), keys.float(), values.float(), full)
    in_fp32 = invariant(queries.float(), keys, values, mask)
    assert in_fp32.dtype == torch.float32
    assert (in_fp32 - right).abs().max() < 1e-5 * right.abs().max()
    assert torch.equal(invariant(queries, keys, values, mask), in_fp32.bfloat16()), "rounded once, at the end"
    for dtype in (torch.float32, torch.bfloat16):
        ours = fastest(queries.to(dtype), keys, values, mask)
        assert (ours.shape, ours.dtype) == (queries.shape, dtype)
        assert (ours.float() - right).abs().max() < 2e-2 * right.abs().max()


@pytest.mark.parametrize("rows", [1, 2, LEAST_ROWS, 7])
def test_a_row_that_sees_one_slot_gets_the_value_there(rows: int) -> None:
    """However little the others weigh: nothing is divided by nothing, also where rows are filled up."""
    keys, values = 100 * made(2, 512, 16, seed=1), made(2, 512, 16, seed=2)
    seen = torch.zeros(rows, 512, dtype=torch.bool)
    where = torch.arange(rows) * 70
    seen[torch.arange(rows), where] = True
    mixed = invariant(100 * made(2, rows, 16), keys, values, additive(seen, 1))
    assert torch.equal(mixed, values[:, :, where])


def test_scores_of_any_size_give_numbers() -> None:
    keys, values = made(2, 512, 16, seed=1), made(2, 512, 16, seed=2)
    mask = additive(scattered(5, 512), 1)
    for size in (0.0, 1e-20, 1e4, 1e15):
        mixed = invariant(size * made(2, 5, 16), size * keys, values, mask)
        assert mixed.isfinite().all()
        assert mixed.abs().max() <= values.abs().max() * 1.00001, "a mean of values"


# -- SiLU --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("channels", [40, 1000, 4864, 20_000])
def test_an_activation_gives_what_torch_gives_and_a_row_what_it_gives_alone(channels: int, name: str) -> None:
    activation = ACTIVATIONS[name]
    x = torch.randn(1, 40, 2 * channels, generator=torch.Generator().manual_seed(0))[..., :channels]
    x[0, 3, :4] = torch.tensor([-1e4, 1e4, 0.0, -0.0])
    torch.set_num_threads(1)
    alone = torch.cat([in_parts(activation, x[:, row : row + 1]) for row in range(40)], 1)
    assert (alone - activation(x)).abs().max() < 1e-5
    assert in_parts(activation, x.bfloat16()).dtype == torch.bfloat16
    for threads in (1, 2, 3, 4, 5, 7):
        torch.set_num_threads(threads)
        for rows in (1, 2, 5, 16, 17, 33, 40):
            assert torch.equal(in_parts(activation, x[:, :rows]), alone[:, :rows]), f"{rows} rows, {threads} threads"


# -- bits --------------------------------------------------------------------------------------------------------------


class Text:
    """Keys, values and queries of a committed text and of the nodes of a tree after it, for one shape of heads."""

    def __init__(self, shape: str, context: int, tree: DraftTree, dtype: torch.dtype = torch.float32) -> None:
        self.heads, self.group, self.width = SHAPES[shape]
        self.context, self.tree = context, tree
        size = context + tree.size
        self.keys, self.values = (made(self.heads, size, self.width, seed=seed).to(dtype) for seed in (1, 2))
        self.queries = made(self.heads, self.group, tree.size, self.width, seed=3).to(dtype)

    def slots(self, nodes: list[int], count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The committed text and then these nodes, in so many slots, followed by what an earlier text left there."""
        order = [*range(self.context), *(self.context + node for node in nodes)]
        left = made(2, self.heads, count, self.width, seed=4).to(self.keys.dtype)[0]
        left[:, :, : len(order)] = torch.stack([self.keys[0, :, order], self.values[0, :, order]])
        return left[:1], left[1:]

    def together(self, count: int) -> torch.Tensor:
        """[heads, group, nodes, width], the whole tree at once."""
        seen = torch.zeros(self.tree.size, count, dtype=torch.bool)
        seen[:, : self.context] = True
        seen[:, self.context : self.context + self.tree.size] = ancestor_mask(self.tree.parents)
        queries = self.queries.reshape(1, self.heads, -1, self.width)
        mixed = invariant(queries, *self.slots(list(range(self.tree.size)), count), additive(seen, self.group))
        return mixed.view(self.heads, self.group, self.tree.size, self.width)

    def alone(self, node: int, count: int) -> torch.Tensor:
        """[heads, group, width], as plain decoding comes to a node: its ancestors are committed."""
        path = path_to(self.tree, node)
        seen = torch.zeros(1, count, dtype=torch.bool)
        seen[:, : self.context + len(path)] = True
        keys, values = self.slots(path, count)
        return invariant(self.queries[:, :, :, node], keys, values, additive(seen, self.group))[0]


def least(slots: int) -> int:
    return max(LEAST_SLOTS, -(-slots // 256) * 256)


TREES: dict[str, Callable[[], DraftTree]] = {
    "chain": lambda: DraftTree.chain(range(9)),
    "branches": lambda: random_tree(0, 12, seed=3),
    "a chain behind three decoys": lambda: DraftTree(range(9), [-1, 0, 0, 0, 0, 4, 5, 6, 7]),
    "wide": lambda: random_tree(0, 30, seed=4, deep=0.8),
}


def assert_rows_are_alone(text: Text, threads: tuple[int, ...] = (1, 2)) -> None:
    alone = [text.alone(node, least(text.context + text.tree.depth[node] + 1)) for node in range(text.tree.size)]
    for slots in (least(text.context + text.tree.size), 768, 1280):
        for count in threads:
            torch.set_num_threads(count)
            together = text.together(slots)
            for node in range(text.tree.size):
                assert torch.equal(together[:, :, node], alone[node]), f"node {node}, {slots} slots, {count} threads"


@needs_order
@pytest.mark.parametrize("shape", cases(SHAPES, ["one key head"]))
def test_a_row_is_bit_for_bit_what_it_is_alone(shape: str) -> None:
    assert_rows_are_alone(Text(shape, 246, TREES["branches"]()))


@needs_order
@pytest.mark.slow
@every_shape
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("context", [0, 505])
def test_that_holds_in_any_tree_after_any_text(shape: str, tree: str, context: int) -> None:
    assert_rows_are_alone(Text(shape, context, TREES[tree]()), threads=(1, 3))


@needs_order
@pytest.mark.parametrize("shape", ["multi-head", "groups of seven"])
def test_that_holds_for_a_cache_in_bf16_too(shape: str) -> None:
    assert_rows_are_alone(Text(shape, 505, TREES["a chain behind three decoys"](), torch.bfloat16))


@every_shape
@pytest.mark.parametrize("rows", [1, 8])
def test_a_page_is_what_is_added_up_in_one_go_and_no_less(shape: str, rows: int) -> None:
    """Two ones are lost when each is added to 2²⁴, and not where they are summed first, in another page."""
    heads, group, width = SHAPES[shape]
    size = page_size(heads, width, group * rows, torch.device("cpu"))
    assert 1 <= size <= 4 * LEAST_SLOTS
    if not 1 < size < 4 * LEAST_SLOTS:
        pytest.skip("this processor adds up everything in one go, or in no regular way")

    def lost(*slots: int) -> bool:
        weights = torch.ones(1, heads, max(group * rows, LEAST_ROWS), 2 * size + LEAST_SLOTS)
        values = torch.zeros(1, heads, weights.shape[3], width)
        found = []
        for right in (values, torch.zeros(weights.shape[3], COLUMNS)):
            right[..., 0, :] = 2.0**24
            right[..., list(slots), :] = 1.0
            sums = weights @ right
            assert (sums == sums.flatten()[0]).all()
            found.append(float(sums.flatten()[0]) == 2.0**24)
        assert found[0] == found[1]
        return found[0]

    for start in (size, 2 * size):
        assert lost(start - 1, start)
        assert not lost(start, start + 1)
        assert not lost(start, start + size - 1)
    assert lost(1, size - 1)


class Ones:
    """Weights of one, whose products sum slots in pages of a chosen size, as the kernels of other CPUs do."""

    def __init__(self, pages: Callable[[int, bool], list[int]]) -> None:
        """`pages(row, values)`: where pages of a row begin, in the product with the values or in that with the ones."""
        self.pages = pages

    def __call__(self, *shape: int, device: torch.device) -> "Ones":
        self.shape = shape
        return self

    def __matmul__(self, right: torch.Tensor) -> torch.Tensor:
        _, heads, rows, slots = self.shape
        products = []
        for row in range(rows):
            begins = torch.zeros(slots, dtype=torch.long)
            begins[self.pages(row, right.ndim == 4)] = 1
            number = begins.cumsum(0)  # of the page of each slot; 2²⁴ is in the first one, and swallows the ones there
            in_page = (number == torch.arange(1, int(number.max()) + 1)[:, None]).float() @ (right == 1.0).float()
            products.append(2.0**24 + (in_page * (in_page > 1)).sum(-2))  # a page of a single one is lost, too
        return torch.stack(products, -2).expand(1, heads, rows, -1)


SLOTS = 4 * LEAST_SLOTS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pages", "size"),
    [
        (lambda row, values: range(192, SLOTS, 192), 192),
        (lambda row, values: range(112, SLOTS, 112), 112),
        (lambda row, values: [], SLOTS),
        (lambda row, values: range(192, SLOTS, 192) if row else [], 1),
        (lambda row, values: range(192, SLOTS, 192) if row != 4 else [], 1),
        (lambda row, values: range(192, SLOTS, 192) if values else [], 192),
        (lambda row, values: [] if values else range(192, SLOTS, 192), 192),
        (lambda row, values: range(192, SLOTS, 192) if values else range(256, SLOTS, 256), 1),
        (lambda row, values: range(192, SLOTS, 192) if values or row else [], 1),
        (lambda row, values: [100, *range(150, SLOTS, 100)], 1),
        (lambda row, values: [*range(192, SLOTS, 192), SLOTS - 60], 1),
    ],
    ids=[
        "192",
        "112",
        "one",
        "first row",
        "last row",
        "values",
        "ones",
        "others",
        "row of ones",
        "irregular",
        "at the end",
    ],
)
def test_pages_that_are_not_regular_or_not_the_same_everywhere_are_of_one_slot(
    pages: Callable[[int, bool], list[int]], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = Ones(lambda row, values: list(pages(row, values)))
    monkeypatch.setattr(torch, "ones", ones)
    assert page_size.__wrapped__(16, 64, 5, torch.device("cpu")) == size
    assert ones.shape == (1, 16, 5, SLOTS)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "packed"), [(1, LEAST_ROWS), (3, LEAST_ROWS), (6, 6)])
def test_pages_are_those_of_as_many_rows_as_are_computed(
    rows: int, packed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = Ones(lambda row, values: [])
    monkeypatch.setattr(torch, "ones", ones)
    page_size.__wrapped__(16, 64, rows, torch.device("cpu"))
    assert ones.shape[2] == packed


class Named(TorchDispatchMode):
    """Counts operations by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func).split(".")[1]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("device", "parts"), [("cpu", 16), ("meta", 1)])
def test_parts_are_for_cpus(device: str, parts: int) -> None:
    """A device without numbers stands for a GPU: sixteen rows of thirty-two heads would be some hundred launches a layer."""
    queries, keys = torch.zeros(1, 4, 32, 8, device=device), torch.zeros(1, 4, 2048, 8, device=device)
    with Named() as seen:
        invariant(queries, keys, keys, torch.zeros(32, 2048, device=device))
    assert seen.counts["exp_"] == parts
    with Named() as seen:
        in_parts(F.silu, torch.zeros(1, 32, 2 * 16384 // 4, device=device))
    assert seen.counts["silu"] == parts
