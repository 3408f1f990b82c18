"""Numbers of a drafter's file, read one tensor at a time."""

import errno
from pathlib import Path

import numpy as np
import pytest
from golden import matching
from safetensors.numpy import save_file

from localspec.drafters import tensors
from localspec.drafters.tensors import StoredTensors
from localspec.errors import LocalspecError


def test_only_a_file_that_is_damaged_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"one": np.arange(6, dtype=np.float32)}, file)
    stored = StoredTensors(file)
    np.testing.assert_array_equal(stored["one"], np.arange(6))

    def full(*given: object, **named: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(file))

    with monkeypatch.context() as patched:
        patched.setattr(tensors.np, "fromfile", full)
        with pytest.raises(LocalspecError, match=f"^{matching('no_more_files_can_be_opened')} "):
            stored["one"]
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(LocalspecError, match=f"{matching('model_safetensors_is_damaged')} .*; train"):
        stored["one"]
    file.unlink()
    with pytest.raises(
        LocalspecError, match=f"{matching('model_safetensors_cannot_be_read_no')} .*{matching('correct_that')}$"
    ):
        stored["one"]
