"""The forms of logits in each backend: all methods must give the same results for each form."""

from collections.abc import Callable

import pytest
import torch

from localspec.decoding.logits import Logits, NumpyLogits
from localspec.machine import compiled
from localspec.native.logits import NativeLogits
from localspec.nn.logits import TorchLogits

Form = Callable[[torch.Tensor], Logits]  # of a tensor [rows, vocab_size]


def in_numpy(rows: torch.Tensor) -> NumpyLogits:
    return NumpyLogits(rows.float().numpy())


def in_library(rows: torch.Tensor) -> NativeLogits:
    whole = rows.float().contiguous()
    nan = whole.isnan().any(-1)
    return NativeLogits(whole.numpy(), whole.argmax(-1).masked_fill(nan, -1).tolist())


FORMS: dict[str, Form] = {"torch": TorchLogits, "numpy": in_numpy}
if compiled.library() is not None:
    FORMS["native"] = in_library
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
