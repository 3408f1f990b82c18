"""Int4 of earlier versions, on a symmetric grid: it answers where nothing else is here, else it is packed again."""

from dataclasses import replace

import numpy as np
import pytest
from native import old_int4

from localspec.events import Reporter
from localspec.families.architecture import in_features
from localspec.native.target import NativeTarget
from localspec.paths import Paths
from localspec.weights.matrices import BlockStack, PackedMatrix
from localspec.weights.opened import PackedModel, write
from localspec.weights.opening import load, with_files
from localspec.weights.packed_file import SUFFIX, Header, Origin, Tensor
from localspec.weights.packed_files import in_all_formats, packed_files
from localspec.weights.recipe import Recipe
from localspec.weights.source import PackingSource


def former_file(path, paths, only_copy):
    """Write the packed file of an earlier version for a directory, and return it."""
    source = PackingSource.open(path)
    origin = with_files(Origin(str(path), revision(path)), path, paths)
    tensors, content = {}, {}
    for name, parts in source.made_of.items():
        whole = np.concatenate([part.floats(0, np.prod(part.shape)).reshape(part.shape) for part in parts])
        inputs = in_features(name, source.sizes)
        tensors[name] = Recipe("int8").tensor(name, len(whole), inputs)
        if tensors[name].layout == "panels":
            tensors[name] = Tensor("panels", "int4", len(whole), inputs, 32)
            content[name] = old_int4.packed(whole, 32, "gate_up_proj" in name).data.tobytes()
        elif tensors[name].format == "bf16":
            content[name] = (whole.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            content[name] = whole.tobytes()
    content |= source.texts
    texts = {name: len(text) for name, text in source.texts.items()}
    header = replace(Header.plan(origin, "int4", source.checkpoint.parameters, tensors, texts), format=1)

    def fill(name, section, first, into):
        into[:] = content[name][first : first + len(into)]

    file = in_all_formats(origin, "int4", paths, only_copy=only_copy)[1]
    assert file.name.endswith(f"-1{SUFFIX}")
    file.parent.mkdir(parents=True)
    write(file, header, fill, 1, lambda done, total: None)
    return file


def revision(path):
    from localspec.weights.checkpoint import revision

    return revision(path)


@pytest.fixture
def path(tiny):
    return tiny("gemma3-grouped-mixed-window-linear").path


def test_it_answers_where_the_weights_are_gone(path, tmp_path):
    file = former_file(path, Paths(tmp_path), only_copy=True)
    target = NativeTarget.open(file, packing="int4")
    assert all(not isinstance(one, BlockStack) for one in target.model.weights.values())
    assert any(isinstance(one, PackedMatrix) and one.format == "int4" for one in target.model.weights.values())
    logits = target.model.forward([1, 2, 3], None, target.cache(8))[0].numpy()
    assert np.isfinite(logits).all() and np.ptp(logits) > 0
    assert file.exists() and packed_files(Paths(tmp_path))[0].verify() == []


def test_where_the_weights_are_here_it_is_packed_again_and_then_deleted(path, tmp_path):
    file = former_file(path, Paths(tmp_path), only_copy=False)
    model = load(path, "int4", str(path), 1, Reporter(pytest.fail), Paths(tmp_path))
    assert isinstance(model, PackedModel) and model.header.format == 2
    assert not file.exists() and [one.header.format for one in packed_files(Paths(tmp_path))] == [2]


def test_a_copy_that_may_be_the_only_one_stays(path, tmp_path):
    file = former_file(path, Paths(tmp_path), only_copy=True)
    load(path, "int4", str(path), 1, Reporter(), Paths(tmp_path))
    assert file.exists()
    again = load(file, "int4", str(path), 1, Reporter(), Paths(tmp_path))
    assert isinstance(again, PackedModel) and again.header.packing == "int4"


def test_where_a_new_one_cannot_be_written_the_old_one_stays(path, tmp_path, monkeypatch):
    file = former_file(path, Paths(tmp_path), only_copy=False)
    said = []

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("localspec.weights.opening.write", full)
    assert load(path, "int4", str(path), 1, Reporter(notice=said.append), Paths(tmp_path)).sizes
    assert file.exists() and said
