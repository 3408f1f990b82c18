"""Large matrices of trained drafters are packed once: a drafter drafts the same with them, and nothing is read twice."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from each import each
from golden import matching, wording
from safetensors.numpy import save_file

from localspec import Engine, Limits, Sampling
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.drafters.tensors import StoredTensors
from localspec.drafters.trained import load_drafter
from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.machine import compiled
from localspec.models.drafter_cards import find_drafter, read_drafter
from localspec.models.registry import resolve
from localspec.native import packed_drafter
from localspec.native.compute import NativeLinear
from localspec.native.target import NativeTarget
from localspec.paths import Paths
from localspec.weights.checkpoint import revision
from localspec.weights.packed_file import Header, read
from localspec.weights.packed_files import packed_files, packed_of

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")
KINDS = ("medusa", "semi")  # S3D's adapters stay as they are


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_drafter, "MATTERS", 0)
    monkeypatch.setattr(packed_drafter, "LARGE", 32 * 32)


def replied(kind: str) -> tuple[list[int], int, int]:
    card = resolve("demo")
    engine = Engine(choose(card, Settings(drafter=kind, draft_max=8)))
    for _ in engine.chat([{"role": "user", "content": "Tell me a story."}], Sampling(), Limits(48)):
        pass
    found = engine.session.statistics
    assert found is not None
    return list(found.token_ids), found.steps, found.drafted


def drafter_files(home: Path) -> list[Path]:
    return [one.path for one in packed_files(Paths(home)) if one.header.origin.name.startswith("a drafter")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_drafts_the_same_and_belongs_to_its_model(kind, home, monkeypatch):
    expected = replied(kind)
    assert drafter_files(home) == [], "to pack what is so small takes no time"
    monkeypatch.setattr(packed_drafter, "MATTERS", 0)
    monkeypatch.setattr(packed_drafter, "LARGE", 32 * 32)
    assert replied(kind) == expected
    (file,) = drafter_files(home)
    assert file in packed_of(resolve("demo").path, "", Paths(home)), "rm and verify find it by its model"
    before = file.stat().st_mtime_ns
    read, plain = [], StoredTensors.__getitem__
    monkeypatch.setattr(StoredTensors, "__getitem__", lambda self, name: read.append(name) or plain(self, name))
    assert replied(kind) == expected and file.stat().st_mtime_ns == before
    large = {name.rpartition(" ")[0] for one in packed_files(Paths(home)) for name in one.header.tensors if " " in name}
    assert large and not large & set(read), "what is packed is not even read"


@pytest.fixture
def target(home: Path) -> NativeTarget:
    return NativeTarget.open(resolve("demo").path, packing="int8")


@pytest.mark.slow
def test_what_is_put_together_of_several_is_read_as_it_is(small_ones_too, home, target, tmp_path):
    file, random = tmp_path / "x.safetensors", np.random.default_rng(0)
    stored = {name: random.normal(size=(64, 96)).astype(np.float32) for name in ("a", "b")}
    stored["three"] = random.normal(size=(3, 64, 96)).astype(np.float32)
    stored["gate_up"] = random.normal(size=(128, 96)).astype(np.float32)
    save_file(stored, file)
    tensors = target.compute.stored(file, StoredTensors(file), "0" * 40)
    assert set(tensors) == set(stored) and len(tensors) == 4 and "a" in tensors and "c" not in tensors
    assert np.array_equal(
        np.concatenate([tensors["a"], tensors["b"]], 1), np.concatenate([stored["a"], stored["b"]], 1)
    )
    assert np.array_equal(tensors["a"] * 2, stored["a"] * 2) and np.array_equal(tensors["a"].T, stored["a"].T)
    assert (
        np.array_equal(tensors["a"][3:5], stored["a"][3:5]) and len(tensors["a"]) == 64 and len(tensors["three"]) == 3
    )
    assert np.array_equal(np.asarray(tensors["three"][1]), stored["three"][1])
    x = random.normal(size=(2, 96)).astype(np.float32)

    def same(ours: NativeLinear, plain: NativeLinear) -> bool:
        return np.array_equal(ours(x), plain(x))

    compute = target.compute
    assert same(compute.linear(tensors["a"]), compute.linear(stored["a"]))
    assert all(
        same(compute.linear(one), compute.linear(two))
        for one, two in zip(tensors["three"], stored["three"], strict=True)
    )
    plain = compute.linear(stored["gate_up"])
    assert same(compute.linear(tensors["gate_up"]), plain), "packed for another use, it is packed again"


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_refused_and_leave_no_file(small_ones_too, home, target, tmp_path):
    own = find_drafter("medusa", resolve("demo"))
    broken = tmp_path / "broken"
    shutil.copytree(own.path, broken)
    content = bytearray((broken / "drafter.safetensors").read_bytes())
    header = int.from_bytes(content[:8], "little")
    entry = json.loads(content[8 : 8 + header])["blocks.0.weight"]
    at = 8 + header + entry["data_offsets"][0] + 1000
    content[at : at + 4] = b"\xff" * 4  # NaN in every format
    (broken / "drafter.safetensors").write_bytes(content)
    with pytest.raises(LocalspecError, match=matching("blocks_0_weight_holds_nan_inf")):
        load_drafter(read_drafter(broken), target)
    assert drafter_files(home) == []


@pytest.mark.slow
def test_a_damaged_one_is_made_again_and_another_drafter_has_its_own(small_ones_too, home, target):
    card = resolve("demo")
    load_drafter(find_drafter("medusa", card), target)
    (file,) = drafter_files(home)
    assert file.name.startswith(revision(card.path) + "-")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    said: list[str] = []
    load_drafter(find_drafter("medusa", card), target, reporter=Reporter(said.append))
    assert file.read_bytes() == whole
    assert len(said) == 1 and wording("is_damaged_it_has") in said[0] and "makes the file again" in said[0]
    load_drafter(find_drafter("semi", card), target)
    assert len(drafter_files(home)) == 2


@pytest.mark.slow
@each("how", ["wider", "taller", "in bf16", "gone", "another's"])
def test_one_that_holds_anything_else_is_not_believed_and_made_again(small_ones_too, home, target, tmp_path, how):
    """Its header is valid, so the library would read as many bytes as the header says."""
    card = resolve("demo")
    drafter = find_drafter("medusa", card)
    for file in drafter_files(home):
        file.unlink()
    load_drafter(drafter, target)
    (file,) = drafter_files(home)
    whole, header = file.read_bytes(), read(file).header
    name, section = next(iter(header.tensors.items()))
    assert section.tensor is not None
    planned = {one: part.tensor for one, part in header.tensors.items()}
    changed = {
        "wider": planned | {name: replace(section.tensor, inputs=64 * section.tensor.inputs)},
        "taller": planned | {name: replace(section.tensor, out=2 * section.tensor.out)},
        "in bf16": planned | {name: replace(section.tensor, format="bf16", group=0)},
        "gone": {one: tensor for one, tensor in planned.items() if one != name},
        "another's": {"other 0": section.tensor},
    }[how]
    hostile = Header.plan(header.origin, "int8", header.parameters, changed, {})
    file.write_bytes(hostile.encoded().ljust(len(hostile.encoded()) + hostile.section_bytes, b"\1"))
    assert read(file).header.tensors.keys() == changed.keys(), "as a packed file it is whole"
    said: list[str] = []
    load_drafter(drafter, target, reporter=Reporter(said.append))
    assert file.read_bytes() == whole
    assert said == [wording("packed_file_holds_other_tensors", path=drafter.path / "drafter.safetensors")]


@pytest.mark.slow
def test_without_leave_to_write_it_drafts_all_the_same(small_ones_too, home, target):
    for file in Paths(home).packed.iterdir():
        file.unlink()
    Paths(home).packed.rmdir()
    Paths(home).packed.write_text("no directory")
    said: list[str] = []
    assert load_drafter(find_drafter("medusa", resolve("demo")), target, reporter=Reporter(said.append)).nbytes
    assert len(said) == 1 and said[0].endswith(wording("drafter_packed_anew_each_time"))


def test_with_dense_weights_no_file_is_written(small_ones_too, home):
    dense = NativeTarget.open(resolve("demo").path, packing="fp32")
    load_drafter(find_drafter("medusa", resolve("demo")), dense)
    assert drafter_files(home) == []
