"""Numbers of a drafter's file, read one tensor at a time."""

import errno
from pathlib import Path

import numpy as np
import pytest
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
        with pytest.raises(LocalspecError, match=r"^No more files can be opened \(Too many open files\); "):
            stored["one"]
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(LocalspecError, match=r"model\.safetensors is damaged .*; train"):
        stored["one"]
    file.unlink()
    with pytest.raises(LocalspecError, match=r"model\.safetensors cannot be read \(No such file .*; correct that\.$"):
        stored["one"]
