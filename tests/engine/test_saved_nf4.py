"""Weights are packed for a GPU only once: bitsandbytes' kernels for CPUs stand in for those of a GPU."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from command import called
from filelock import FileLock
from golden import wording
from tiny_models import FAMILIES, Tiny, prompt_ids

from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.decoding.tree import DraftTree
from localspec.engine.backends import open_target
from localspec.errors import UsageMistake
from localspec.events import Reporter
from localspec.models.registry import resolve
from localspec.nn import nf4_file, packing
from localspec.nn import target as target_module
from localspec.nn.linear import Linear
from localspec.nn.linear_bitsandbytes import NF4Linear
from localspec.nn.target import Target
from localspec.paths import Paths
from localspec.weights.packed_files import lock_of, packed_of

if find_spec("bitsandbytes") is None:
    pytest.skip("bitsandbytes is not installed", allow_module_level=True)
Make = Callable[[str], Tiny]
TIED, BIASES = FAMILIES[2], FAMILIES[0]


class Here:
    """A model that is loaded in NF4 several times, and the messages of each load."""

    def __init__(self, path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCALSPEC_HOME", str(home))
        monkeypatch.setitem(packing._CLASSES, ("nf4", "cpu"), NF4Linear)
        monkeypatch.setattr(target_module, "lm_head_class", lambda quantize, device, exact=False: Linear)  # as on CUDA
        demo = choose(resolve("demo"), Settings(drafter="none"))
        card = replace(demo.target, path=path, name=path.name)
        self.choice: Choice = replace(demo, target=card, engine="torch", quantize="nf4", dtype="bf16")
        self.path, self.home = path, home
        self.notices: list[str] = []
        self.packed = 0
        quantize = NF4Linear.__init__

        def counted(layer: NF4Linear, weight: Any, bias: Any = None) -> None:
            self.packed += isinstance(weight, torch.Tensor)
            quantize(layer, weight, bias)

        monkeypatch.setattr(NF4Linear, "__init__", counted)

    def load(self, **changed: Any) -> Target:
        self.packed = 0
        self.notices.clear()
        loaded = open_target(replace(self.choice, **changed), Reporter(self.notices.append))
        assert isinstance(loaded, Target)
        return loaded

    @property
    def files(self) -> list[Path]:
        return sorted(Paths(self.home).packed.glob("*.safetensors"))


@pytest.fixture
def here(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Here]:
    return lambda name: Here(tiny(name).path, tmp_path / "home", monkeypatch)


def left(directory: Path) -> list[str]:
    """Return the suffixes of all files but the list of digests, which is written for files that are not quite new."""
    return sorted(one.suffix for one in directory.glob("*") if one.suffix != ".json")


def logits(target: Target) -> torch.Tensor:
    output = target.forward(DraftTree.chain(prompt_ids(9)), target.cache(16))
    return torch.from_numpy(output.logits.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", [TIED, BIASES, FAMILIES[5], FAMILIES[11]])
def test_it_is_packed_once_and_is_the_same_to_the_bit(here: Callable[[str], Here], name: str) -> None:
    model = here(name)
    first = model.load()
    assert model.packed > 5 and model.notices == []
    again = model.load()
    assert model.packed == 0 and model.notices == []
    assert torch.equal(logits(first), logits(again)) and first.nbytes == again.nbytes
    (file,) = model.files
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_size < first.nbytes + 120_000, "nothing is there twice, a tied head least of all"
    assert file in packed_of(model.path, "", Paths(model.home)), "`rm` finds it"
    assert left(file.parent) == [".safetensors"]


@pytest.mark.slow
def test_it_is_listed_and_verified(here: Callable[[str], Here]) -> None:
    model = here(BIASES)
    model.load()
    model.load(dtype="fp32")
    (model.home / "config").mkdir()
    (model.home / "config" / "models.toml").write_text(f'[own]\npath = "{model.path}"\n')
    (listed,) = (one for one in json.loads(called(model.home, "list", "--json").stdout) if one["name"] == "own")
    sizes = {file.stat().st_size for file in model.files}
    assert set(listed["packed"]) == {"nf4-bf16", "nf4-fp32"} and set(listed["packed"].values()) == sizes
    result = called(model.home, "verify", "own")
    assert result.returncode == 0 and result.stdout.count(wording("every_weight_agrees_digest")) == 2
    file = model.files[0]
    whole = file.read_bytes()
    for harm, told in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), wording("weights_do_agree_their_digest")),
        (whole[:-1], "the file cannot be read (Error while deserializing header"),
        (whole.replace(b'"localspec":"2"', b'"localspec":"1"'), wording("another_version_wrote_it")),
    ):
        file.write_bytes(harm)
        result = called(model.home, "verify", "own")
        assert result.returncode == 1 and told in result.stdout, result.stdout
        assert wording("damaged_delete_made_again", file=file) in result.stderr
        assert result.stdout.count(wording("every_weight_agrees_digest")) == 1


@pytest.mark.slow
def test_each_precision_outside_the_matrices_has_its_file(here: Callable[[str], Here]) -> None:
    model = here(BIASES)
    model.load()
    model.load(dtype="fp32")
    assert model.packed > 0 and len(model.files) == 2
    assert model.load().dtype == torch.bfloat16 and model.load(dtype="fp32").dtype == torch.float32
    assert model.packed == 0


@pytest.mark.slow
def test_changed_weights_are_packed_again(
    here: Callable[[str], Here], tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tiny(TIED).path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    model = Here(copy, tmp_path / "home", monkeypatch)
    before = logits(model.load())
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 0x40
    weights.write_bytes(content)
    after = model.load()
    assert model.packed > 0 and not torch.equal(logits(after), before)
    assert len(model.files) == 1, "nothing else would ever name the other"
    model.load(dtype="fp32")
    assert len(model.files) == 2, "the same weights"


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["cut", "empty", "other", "lacks"])
def test_a_damaged_file_is_made_again_and_it_is_reported(here: Callable[[str], Here], harm: str) -> None:
    model = here(BIASES)
    right = logits(model.load())
    (file,) = model.files
    whole = file.read_bytes()
    if harm == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif harm == "empty":
        file.write_bytes(b"")
    elif harm == "other":
        file.write_bytes(whole.replace(b'"localspec":"2"', b'"localspec":"1"'))
    else:
        file.write_bytes(whole.replace(b"layers.1.qkv_proj.weight", b"layers.1.qkv_prof.weight"))
    assert torch.equal(logits(model.load()), right)
    assert model.packed > 0 and len(model.notices) == 1 and wording("it_is_made_again") in model.notices[0]
    assert model.files == [file] and file.stat().st_size == len(whole)
    model.load()
    assert model.packed == 0 and model.notices == []


@pytest.mark.slow
def test_where_nothing_can_be_kept_it_is_packed_each_time_and_said(
    here: Callable[[str], Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = here(BIASES)
    monkeypatch.setattr(nf4_file, "free_memory", lambda: 10_000)
    for _ in range(2):
        model.load()
        assert model.packed > 0 and wording("much_main_memory_while_written") in model.notices[0]
    assert model.files == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        (
            "localspec.nn.nf4_file.save_file",
            OSError(28, "No space left on device"),
            wording("packed_model_cannot_kept_space"),
        ),
        ("localspec.nn.nf4_file.save_file", MemoryError(), wording("packed_model_cannot_kept_there")),
        (
            "localspec.nn.nf4_file.save_file",
            torch.OutOfMemoryError(wording("cuda_out_of_memory")),
            wording("packed_model_cannot_kept_there"),
        ),
        (
            "localspec.nn.nf4_file.private_directory",
            PermissionError(13, "Permission denied"),
            wording("packed_model_cannot_kept"),
        ),
    ],
)
def test_where_it_cannot_be_written_that_costs_no_answer(
    here: Callable[[str], Here], monkeypatch: pytest.MonkeyPatch, place: str, error: Exception, said: str
) -> None:
    model = here(BIASES)

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(place, fails)
    assert logits(model.load()).isfinite().all()
    assert model.notices == [said] and left(Paths(model.home).packed) == []


@pytest.mark.slow
def test_who_comes_while_another_process_writes_continues_without(here: Callable[[str], Here]) -> None:
    model = here(BIASES)
    model.load()
    (file,) = model.files
    file.unlink()
    with FileLock(lock_of(file)):
        model.load()
        assert model.packed > 0 and model.notices == [] and not file.exists()
        assert lock_of(file).exists(), "it is the other's"
    model.load()
    assert file.exists()


def test_weights_that_change_while_they_are_packed_are_not_kept(
    here: Callable[[str], Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, looks = here(BIASES), iter(range(9))
    monkeypatch.setattr(nf4_file, "stamps", lambda files: next(looks))
    model.load()
    assert model.notices == [wording("packed_model_cannot_kept_weights")] and model.files == []


def test_other_mistakes_are_reported_as_such(here: Callable[[str], Here]) -> None:
    model = here(BIASES)
    model.load()
    with pytest.raises(UsageMistake, match="context"):
        model.load(context=10**7)
    assert model.notices == [] and len(model.files) == 1
