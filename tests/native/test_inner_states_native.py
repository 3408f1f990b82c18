"""States of inner layers on the CPU engine, and wrong requests for them that the library refuses."""

import ctypes

import numpy as np
import pytest
from decoding.test_inner_states import (  # noqa: F401
    test_a_long_text_in_one_go,
    test_states_of_a_text_and_of_a_tree_are_those_of_the_stock_model,
    test_states_that_there_are_not,
    test_without_a_request_no_inner_states_are_returned_and_nothing_else_changes,
)
from each import each
from golden import matching
from tiny_models import FAMILIES

from localspec.errors import LocalspecError
from localspec.machine.library import Request, check, int32, library


@each(
    "change, said",
    [
        ({"num_inner": -1}, "at -1 places"),
        ({"num_inner": 1025}, "at 1025 places"),
        ({"inner_at": None}, "need their places"),
        ({"inner": None}, "need their places"),
        ({"hidden": None}, "room for those after the norm"),
        ({"layers": [0, 1], "num_layers": 2}, matching("leave_out_one_two")),
    ],
)
def test_what_the_library_refuses(tiny, change, said):
    model = tiny(FAMILIES[0]).target.model
    tokens, places, layers = int32([1, 2]), int32([0, 1]), int32([0, 1])
    room, cache = np.empty((2, 4 * model.sizes.hidden_size), np.float32), model.cache(2)
    request = Request(
        rows=2, tokens=tokens.ctypes.data, hidden=room.ctypes.data, inner_at=places.ctypes.data, num_inner=2,
        inner=room.ctypes.data,
    )  # fmt: skip
    for name, value in change.items():
        setattr(request, name, layers.ctypes.data if isinstance(value, list) else value)
    with pytest.raises(LocalspecError, match=said):
        check(library().ls_forward(model.handle, cache.handle, model.threads.handle, ctypes.byref(request)))
