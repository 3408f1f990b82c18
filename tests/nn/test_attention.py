"""Both forms of attention give torch's results."""

import torch
import torch.nn.functional as F
from each import each

from localspec.nn.attention import fastest, invariant

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
every_shape = each("shape", SHAPES)


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))


def additive(seen: torch.Tensor, group: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return an additive mask [group * rows, slots], as the transformer makes it."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf")).repeat(group, 1)


def scattered(rows: int, slots: int, seed: int = 0) -> torch.Tensor:
    """Return a mask in which each row sees its own random slots, at least one."""
    seen = torch.rand(rows, slots, generator=torch.Generator().manual_seed(seed)) < 0.3
    seen[torch.arange(rows), torch.arange(rows) % slots] = True
    return seen


@every_shape
@each("form", [invariant, fastest])
@each("rows", [1, 3, 4, 9])
def test_both_forms_give_what_torch_gives(form, shape, rows):
    heads, group, width = SHAPES[shape]
    queries, keys, values = made(heads, group * rows, width), made(heads, 512, width, seed=1), made(heads, 512, width)
    mask = additive(scattered(rows, 512), group)
    ours, torchs = form(queries, keys, values, mask), F.scaled_dot_product_attention(queries, keys, values, mask)
    assert ours.shape == torchs.shape
    assert (ours - torchs).abs().max() < 1e-5 * torchs.abs().max()


@every_shape
@each("rows", [1, 2, 5])
def test_a_cache_in_bf16_is_read_with_queries_in_fp32_or_bf16(shape, rows):
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


@each("rows", [1, 2, 4, 7])
def test_a_row_that_sees_one_slot_gets_the_value_there(rows):
    keys, values = 100 * made(2, 512, 16, seed=1), made(2, 512, 16, seed=2)
    seen = torch.zeros(rows, 512, dtype=torch.bool)
    where = torch.arange(rows) * 70
    seen[torch.arange(rows), where] = True
    mixed = invariant(100 * made(2, rows, 16), keys, values, additive(seen, 1))
    assert torch.equal(mixed, values[:, :, where])


def test_scores_of_any_size_give_numbers():
    keys, values = made(2, 512, 16, seed=1), made(2, 512, 16, seed=2)
    mask = additive(scattered(5, 512), 1)
    for size in (0.0, 1e-20, 1e4, 1e15):
        mixed = invariant(size * made(2, 5, 16), size * keys, values, mask)
        assert mixed.isfinite().all()
        assert mixed.abs().max() <= values.abs().max() * 1.00001, "a mean of values"
