"""States of inner layers, as a forward returns them on request: those of the stock model, and free otherwise."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from each import each
from golden import matching
from tiny_models import FAMILIES, LONGROPE, Tiny, prompt_ids

from localspec.decoding.tree import DraftTree
from localspec.errors import LocalspecError

Make = Callable[[str], Tiny]
NAMES = [name for name in FAMILIES if name != LONGROPE]


def stock_states(model: Tiny, tokens: list[int]) -> list[torch.Tensor]:
    """Return the stock model's hidden_states of a text, [tokens, hidden_size] each."""
    with torch.inference_mode():
        return [one[0] for one in model.stock(torch.tensor([tokens]), output_hidden_states=True).hidden_states]


def same(found: object, expected: list[torch.Tensor]) -> None:
    torch.testing.assert_close(torch.as_tensor(found), torch.cat(expected, -1), atol=2e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_states_of_a_text_and_of_a_tree_are_those_of_the_stock_model(tiny: Make, name: str) -> None:
    model, text = tiny(name), prompt_ids(23, seed=3)
    target, last = model.target, model.target.compute.target.sizes.num_layers
    places, cache, states = [last, 1, 0, last - 1, 1], model.target.cache(64), stock_states(model, text)
    for start, stop in ((0, 14), (14, 23)):
        output = target.forward(DraftTree.chain(text[start:stop]), cache, last=start == 0, inner=places)
        cache.keep(range(stop - start))
        same(output.inner.rows, [states[place][start:stop] for place in places])
        same(output.hidden.rows, [states[last][start:stop]])
    tree = DraftTree([5, 6, 7, 8, 9], [-1, 0, 0, 2, 1])
    found = target.forward(tree, cache, inner=places).inner
    for path in ([0, 1, 4], [0, 2, 3]):
        along = stock_states(model, [*text, *(tree.tokens[node] for node in path)])
        same(found.take(path).rows, [along[place][23:] for place in places])
    width = target.compute.target.sizes.hidden_size
    same(found.part(width, 2 * width).take([0]).rows, [stock_states(model, [*text, 5])[1][23:]])


@each("name", NAMES)
def test_without_a_request_no_inner_states_are_returned_and_nothing_else_changes(tiny: Make, name: str) -> None:
    target, tree = tiny(name).target, DraftTree(prompt_ids(6), [-1, 0, 0, 1, 2, 2])
    plain = target.forward(tree, target.cache(8))
    asked = target.forward(tree, target.cache(8), inner=[1])
    assert plain.inner is None and len(asked.inner) == tree.size
    assert np.array_equal(plain.logits.numpy(), asked.logits.numpy())
    assert np.array_equal(np.asarray(plain.hidden.rows), np.asarray(asked.hidden.rows))


def test_a_long_text_in_one_go(tiny: Make) -> None:
    """The text has more rows than pass a layer together on the CPU engine."""
    model, text = tiny(FAMILIES[0]), prompt_ids(300, seed=1)
    output = model.target.forward(DraftTree.chain(text), model.target.cache(300), last=True, inner=[2, 0])
    states = stock_states(model, text)
    same(output.inner.rows, [states[2], states[0]])


@each("place", [-1, 4, 10**6])
def test_states_that_there_are_not(tiny: Make, place: int) -> None:
    target = tiny(FAMILIES[0]).target
    with pytest.raises(LocalspecError, match=matching("states_give_0_3", place=place)):
        target.forward(DraftTree.chain([1, 2]), target.cache(4), inner=[1, place])
