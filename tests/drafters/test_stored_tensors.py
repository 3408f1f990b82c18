"""Numbers of a drafter's file, read one tensor at a time."""

import errno
from pathlib import Path

import numpy as np
import pytest
from each import each
from golden import matching
from safetensors.numpy import save_file

from localspec.drafters import tensors
from localspec.drafters.tensors import StoredTensors, TensorSpec
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


def test_a_tensor_in_int4_is_multiplied_by_the_factors_of_its_groups(tmp_path: Path) -> None:
    file, integers = tmp_path / "model.safetensors", np.arange(3 * 140).reshape(3, 140) * 7 % 16
    stored_bytes = (integers[:, 0::2] + 16 * integers[:, 1::2]).astype(np.uint8)
    factors = np.array([[1, 2, 4], [0.5, 0.25, 0], [3, 1, 1]], np.float16)
    save_file({"one": stored_bytes, "one.factors": factors, "two": np.ones(2, np.float16)}, file)
    stored = StoredTensors(file)
    assert {*stored} == {*stored.specs()} == {"one", "two"} and "one.factors" not in stored
    assert stored.specs()["one"] == TensorSpec((3, 140))
    expected = (integers - 8) * np.repeat(factors.astype(np.float32), 64, 1)[:, :140]
    np.testing.assert_array_equal(stored["one"], expected)
    assert stored["one"].dtype == np.float32


@each("factors", [None, np.ones((3, 2), np.float16), np.ones((3, 3), np.float32), np.ones((1, 3), np.float16)])
def test_int4_without_its_factors_is_damaged(tmp_path: Path, factors: np.ndarray | None) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"one": np.ones((3, 70), np.uint8)} | ({} if factors is None else {"one.factors": factors}), file)
    with pytest.raises(LocalspecError, match=matching("lacks_its_factors")):
        StoredTensors(file)


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_factors_that_are_no_numbers_are_refused(tmp_path: Path, factor: float) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"one": np.ones((1, 32), np.uint8), "one.factors": np.array([[factor]], np.float16)}, file)
    with pytest.raises(LocalspecError, match="NaN"):
        StoredTensors(file)["one"]
