"""The cache against a plain list of rows: keeping, moving and dropping rows, and copying them when it grows."""

import random

import pytest
import torch
from each import each
from golden import matching

from localspec.choosing.fit import BUCKET
from localspec.nn.cache import KVCache

LAYERS, HEADS, WIDTH = 2, 3, 4


def cache(slots: int = 0, least: int = 0) -> KVCache:
    return KVCache([(HEADS, WIDTH)] * LAYERS, slots, torch.float32, torch.device("cpu"), least)


def rows(numbers: list[int], layer: int, sign: int) -> torch.Tensor:
    """[heads, rows, width], different in every layer, head and channel, and for keys and values."""
    place = torch.arange(HEADS * WIDTH).view(HEADS, 1, WIDTH) / 100 + layer / 2
    return sign * (torch.tensor(numbers).view(1, -1, 1) + place)


def write(kept: KVCache, numbers: list[int]) -> None:
    for layer in range(LAYERS):
        kept.write(layer, rows(numbers, layer, 1), rows(numbers, layer, -1))


def assert_holds(kept: KVCache, numbers: list[int]) -> None:
    """Assert what attention sees: the rows that are returned when one more is written."""
    assert kept.length == len(numbers)
    kept.reserve(kept.length + 1)
    for layer in range(LAYERS):
        keys, values = kept.write(layer, rows([99], layer, 1), rows([99], layer, -1))
        assert torch.equal(keys[:, : len(numbers) + 1], rows([*numbers, 99], layer, 1))
        assert torch.equal(values[:, : len(numbers) + 1], rows([*numbers, 99], layer, -1))
    assert kept.length == len(numbers), "writing does not commit"


@each("length", [-1, 4])
def test_truncate_to_what_is_not_there_is_a_mistake(length):
    kept = cache(16)
    write(kept, [1, 2, 3])
    kept.keep(range(3))
    with pytest.raises(AssertionError):
        kept.truncate(length)


def test_growing_keeps_all_that_is_committed_and_grows_by_half_at_least():
    kept, numbers = cache(10), list(range(BUCKET))
    assert kept.capacity == BUCKET
    write(kept, numbers)
    kept.keep(range(BUCKET))
    kept.reserve(BUCKET)
    assert kept.capacity == BUCKET, "there was room"
    kept.reserve(BUCKET + 1)
    assert kept.capacity == 2 * BUCKET
    assert_holds(kept, numbers)
    kept.reserve(2 * BUCKET + 1)
    kept.reserve(3 * BUCKET + 1)
    assert kept.capacity == 5 * BUCKET, "half of three buckets more, rounded up"
    assert kept.nbytes == 5 * BUCKET * LAYERS * 2 * HEADS * WIDTH * 4
    assert_holds(kept, numbers)


def test_attention_looks_at_whole_buckets_and_never_beyond_the_end():
    kept = cache(BUCKET + 1)
    assert kept.visible(1) == BUCKET
    assert kept.visible(BUCKET) == BUCKET
    assert kept.visible(BUCKET + 1) == 2 * BUCKET
    write(kept, [1] * BUCKET)
    kept.keep(range(BUCKET))
    assert kept.visible(1) == 2 * BUCKET


def test_attention_never_looks_at_fewer_slots_than_the_least():
    kept, least = cache(1, least=2 * BUCKET - 1), 2 * BUCKET
    assert kept.capacity == least
    assert kept.visible(1) == kept.visible(least) == least
    kept.reserve(least + 1)
    assert kept.visible(1) == kept.visible(least) == least, "more room changes nothing"
    assert kept.visible(least + 1) == 3 * BUCKET
    for layer in range(LAYERS):
        keys, values = kept.write(layer, rows([7], layer, 1), rows([7], layer, -1))
        assert keys.shape == values.shape == (HEADS, least, WIDTH)
    assert cache(0, least=0).capacity == 0
    assert cache(3 * BUCKET, least=BUCKET).capacity == 3 * BUCKET


def test_rows_are_the_keys_and_values_after_what_is_committed_in_the_order_requested():
    kept = cache(16)
    write(kept, [1, 2, 3])
    kept.keep(range(3))
    write(kept, [10, 11, 12, 13])
    asked = kept.rows([0, 3, 1])
    assert asked.shape == (3, LAYERS * 2 * HEADS * WIDTH)
    asked = asked.view(3, LAYERS, 2, HEADS, WIDTH).movedim(0, 3)
    for layer in range(LAYERS):
        for which, sign in enumerate((1, -1)):
            assert torch.equal(asked[layer, which], rows([10, 13, 11], layer, sign))
    assert_holds(kept, [1, 2, 3])


def test_filling_puts_the_same_random_numbers_everywhere_for_the_same_seed():
    one, same, other = cache(BUCKET), cache(BUCKET), cache(BUCKET)
    for kept, seed in ((one, 1), (same, 1), (other, 2)):
        kept.fill(torch.Generator().manual_seed(seed))
        assert kept.length == 0
    numbers = one.rows(range(BUCKET))
    assert torch.equal(numbers, same.rows(range(BUCKET)))
    assert len(numbers.unique()) > 0.99 * numbers.numel(), "in keys and values of every layer, slot and channel"
    assert (numbers == other.rows(range(BUCKET))).float().mean() < 0.01


def test_slots_that_were_never_written_hold_numbers():
    """A masked slot has weight 0, but 0 times NaN is NaN."""
    kept = cache(BUCKET)
    for slots in (BUCKET, 3 * BUCKET):
        kept.reserve(slots)
        keys, values = kept.write(0, rows([1], 0, 1), rows([1], 0, -1))
        assert keys.isfinite().all()
        assert values.isfinite().all()


def test_more_rows_than_slots_are_a_mistake():
    kept = cache(1)
    with pytest.raises(AssertionError, match=f"the cache needs {BUCKET + 1} slots but has only {BUCKET}"):
        write(kept, [1] * (BUCKET + 1))


@pytest.mark.slow
def test_any_order_of_writing_keeping_forgetting_and_growing_is_that_of_a_list():
    choose, kept, numbers = random.Random(0), cache(), []
    for turn in range(300):
        tree = [1000 * turn + row for row in range(choose.randrange(1, 12))]
        kept.reserve(kept.length + len(tree) + 1)
        write(kept, tree)
        path = sorted(choose.sample(range(len(tree)), choose.randrange(len(tree) + 1)))
        kept.keep(path)
        numbers += [tree[row] for row in path]
        if choose.random() < 0.1:
            length = choose.randrange(max(0, len(numbers) - 15), len(numbers) + 1)
            kept.truncate(length)
            del numbers[length:]
        if turn % 10 == 0:
            assert_holds(kept, numbers)
    assert kept.capacity > BUCKET, "it grew on the way"
    assert_holds(kept, numbers)


def test_a_cache_of_layers_that_all_keep_nothing_counts_tokens_as_any_other():
    kept = KVCache([None, None], 1, torch.float32, torch.device("cpu"))
    kept.reserve(BUCKET + 1)
    kept.assume(BUCKET - 1)
    kept.keep([0, 2])
    assert (kept.length, kept.nbytes) == (BUCKET + 1, 0) and kept.capacity > BUCKET
    assert kept.rows([0, 1]).shape == (2, 0)
    with pytest.raises(AssertionError, match=matching("layer_1_keeps_nothing")):
        kept.write(1, torch.zeros(HEADS, 1, WIDTH), torch.zeros(HEADS, 1, WIDTH))
