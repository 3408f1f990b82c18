"""Logits as each backend holds them: whatever is asked of them, all must give the same."""

from collections.abc import Callable

import pytest
import torch

from localspec.decoding.logits import Logits
from localspec.decoding.numpy_logits import NumpyLogits
from localspec.nn.logits import TorchLogits

Form = Callable[[torch.Tensor], Logits]  # of a tensor [rows, vocab_size]


def in_numpy(rows: torch.Tensor) -> NumpyLogits:
    return NumpyLogits(rows.float().numpy())


FORMS: dict[str, Form] = {"torch": TorchLogits, "numpy": in_numpy}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
