"""The file to which a mixture's weights are copied is announced, made once, whole or not at all, and deleted by `rm`."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf_families
import pytest
from clocks import PATIENCE
from command import ROOT, called, environment
from each import each
from golden import wording
from mappings import mappings

from localspec.choosing import measure
from localspec.choosing.choose import choices
from localspec.choosing.named import DrafterSpec
from localspec.config import Settings
from localspec.decoding.decode import prefill_step
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.engine import importing
from localspec.engine.backends import open_target
from localspec.engine.importing import import_gguf
from localspec.errors import DoesNotFit, LocalspecError, NotHere
from localspec.events import Reporter
from localspec.machine import compiled
from localspec.models.model import model_of
from localspec.models.only_copies import move_only_copies
from localspec.models.registry import resolve
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.paths import Paths
from localspec.quantities import size
from localspec.weights import opening, packed_files
from localspec.weights.checkpoint import inspect
from localspec.weights.opening import source_of
from localspec.weights.packed_file import BLOCKS, PackedFile, read
from localspec.weights.packed_files import packed_in

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")
TOKENS = [300, 310, 320]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_families.write(tmp_path_factory.mktemp("mixture") / "mixture.gguf", "qwen3_moe", kind="Q8_0")


def logits_of(registered: Path, said: list[str], packing: str = BLOCKS) -> list[float]:
    target = NativeTarget.open(
        registered, packing=packing, context=64, threads=Threads(1), reporter=Reporter(said.append)
    )
    found: list[float] = target.forward(DraftTree.chain(TOKENS), target.cache(0)).logits.numpy()[-1].tolist()
    return found


def registered(mixture: Path, said: list[str]) -> Path:
    return import_gguf(mixture, Settings(), Reporter(said.append)).path


def listed(home: Path, name: str) -> dict[str, Any]:
    """Return what `list` shows of a model."""
    every: list[dict[str, Any]] = json.loads(called(home, "list", "--json").stdout)
    return next(one for one in every if one["name"] == name)


def packed_forms(home: Path) -> dict[str, int]:
    """Return what `list` shows of the mixture: packings, and the bytes of their files."""
    found: dict[str, int] = listed(home, "mixture")["packed"]
    return found


@pytest.mark.slow
def test_it_is_announced_and_made_once_and_rm_deletes_it(mixture: Path, fresh_home: Path) -> None:
    paths, said = Paths(fresh_home), list[str]()
    path = registered(mixture, said)
    held = read(path).header.weight_bytes
    (announced,) = [one for one in said if "has experts" in one]
    assert size(held) in announced and str(paths.packed) in announced
    assert not [*paths.packed.glob("*")]
    assert packed_forms(fresh_home) == {}
    first, said = logits_of(path, said), []
    (made,) = packed_in(paths.packed)
    assert packed_forms(fresh_home) == {"blocks": made.path.stat().st_size}
    assert held <= made.path.stat().st_size < held + 2**20
    before = made.path.stat()
    assert logits_of(path, said) == first and said == []
    assert made.path.stat() == before
    removed = called(fresh_home, "rm", "mixture", "--yes")
    assert removed.returncode == 0 and str(made.path) in removed.stdout, removed.stderr
    assert not [*paths.packed.glob("*")] and not [*paths.imports.glob("*")] and mixture.exists()


def test_the_disk_of_the_copy_is_measured_by_its_gguf_file_only_where_it_will_be_on_the_same_disk(
    mixture: Path, fresh_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read_files = registered(mixture, []), list[Path]()
    monkeypatch.setattr(measure, "disk_bandwidth", lambda file: read_files.append(file) or 3e8)
    other = SimpleNamespace(stat=lambda: SimpleNamespace(st_dev=-1))

    def measured(**patches: object) -> float | None:
        with monkeypatch.context() as patched:
            for name, value in patches.items():
                patched.setattr(measure, name, value)
            return measure.Measurements(measure.MeasurementCache(None)).disk(resolve("mixture"))

    assert measured() == 3e8 and read_files == [mixture]
    assert measured(disk_of=lambda place: other) is None and read_files == [mixture]
    logits_of(path, [])
    (made,) = packed_in(Paths(fresh_home).packed)
    assert measured(disk_of=lambda place: other) == 3e8 and read_files == [mixture, made.path]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux describes mappings")
@each("on_disk", ["", "5.0 GiB of experts have no room in memory"])
def test_experts_are_read_in_advance_only_if_the_plan_leaves_some_of_them_on_the_disk(
    on_disk: str, mixture: Path, fresh_home: Path
) -> None:
    registered(mixture, [])
    chosen, *_ = choices(model_of(resolve("mixture")), DrafterSpec("none"), Settings(device="cpu"))
    assert chosen.on_disk == "", "it fits"
    target = open_target(replace(chosen, on_disk=on_disk), Reporter())
    random = [one.random for one in mappings() if one.file == str(copy_of(fresh_home))]
    assert target and any(random) is bool(on_disk) and not all(random)


@pytest.fixture
def own(mixture: Path, tmp_path: Path) -> Path:
    """Return a copy of the mixture, which a test may change."""
    return shutil.copy(mixture, tmp_path / "own.gguf")


def copies(home: Path) -> list[Path]:
    """Return the files with weights."""
    every = [*packed_in(Paths(home).packed), *packed_in(Paths(home).imports)]
    return [one.path for one in every if one.header.tensors]


def copy_of(home: Path) -> Path:
    (made,) = copies(home)
    return made


def overwritten(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-64])


@pytest.mark.slow
@pytest.mark.parametrize("change", [overwritten, cut])
@pytest.mark.parametrize("packing", [BLOCKS, "int8"])
def test_another_file_in_the_place_of_its_file_refuses_the_model_until_that_is_back(
    own: Path, fresh_home: Path, change: Callable[[Path], None], packing: str
) -> None:
    path, content = registered(own, []), own.read_bytes()
    first = logits_of(path, [], packing)
    before = copy_of(fresh_home).stat()
    change(own)
    for _ in range(2):
        move_only_copies(Paths(fresh_home), Reporter())
        for what in (logits_of, lambda path, *_: inspect(path), lambda path, *_: source_of(path)):
            with pytest.raises(
                NotHere, match=r"own\.gguf, which has changed since it was imported; restore the earlier file"
            ):
                what(path, [], packing)
    assert listed(fresh_home, "own")["missing"] == str(own)
    own.write_bytes(content)
    assert logits_of(path, said := [], packing) == first and said == []
    assert copy_of(fresh_home).stat() == before, "it is not written again"


@pytest.mark.slow
@pytest.mark.parametrize("change", [cut, Path.unlink])
def test_doctor_does_not_say_that_a_model_without_its_file_is_here(
    own: Path, fresh_home: Path, change: Callable[[Path], None]
) -> None:
    registered(own, [])
    lines = called(fresh_home, "doctor").stdout.splitlines()
    assert "  here  " in next(one for one in lines if one.startswith("own "))
    change(own)
    lines = called(fresh_home, "doctor").stdout.splitlines()
    assert "  unusable  own is read from" in next(one for one in lines if one.startswith("own "))
    assert not any("own, which is here" in one for one in lines)
    choices = json.loads(called(fresh_home, "doctor", "--json").stdout)["choices"]
    assert not any(one["installed"] for one in choices if one["model"] == "own")


@pytest.mark.slow
@pytest.mark.parametrize("packing", [BLOCKS, "int8"])
def test_without_its_file_what_was_written_from_it_answers(own: Path, fresh_home: Path, packing: str) -> None:
    path, away, said = registered(own, []), own.with_name("away.gguf"), list[str]()
    first = logits_of(path, [], packing)
    own.rename(away)
    for _ in range(2):
        assert logits_of(path, said, packing) == first
        assert "own.gguf, which is not there" in said.pop() and not said
        move_only_copies(Paths(fresh_home), Reporter())
        assert copy_of(fresh_home).parent == Paths(fresh_home).imports, "nothing else has these weights"
    before = copy_of(fresh_home).stat()
    away.rename(own)
    assert logits_of(path, said, packing) == first and not said and copy_of(fresh_home).stat() == before


@pytest.mark.slow
@pytest.mark.parametrize("gone_between", [False, True])
def test_the_import_of_another_file_in_its_place_deletes_the_second_file(
    own: Path, fresh_home: Path, gone_between: bool
) -> None:
    path, content, said = registered(own, []), own.read_bytes(), list[str]()
    first, held = logits_of(path, []), size(copy_of(fresh_home).stat().st_size)
    if gone_between:
        own.unlink()
        move_only_copies(Paths(fresh_home), Reporter())
        own.write_bytes(content)
    overwritten(own)
    other = registered(own, said)
    assert any(
        f"`localspec rm own` deletes the earlier registration; the copy of the earlier weights, {held}, is deleted now."
        in one
        for one in said
    )
    assert other != path and copies(fresh_home) == []
    with pytest.raises(NotHere, match="has changed since it was imported"):
        logits_of(path, [])
    assert logits_of(other, []) != []
    own.write_bytes(content)
    assert logits_of(path, []) == first
    with pytest.raises(NotHere, match="has changed since it was imported"):
        logits_of(other, [])


@pytest.mark.slow
@pytest.mark.parametrize(("packing", "kept"), [("fp32", False), ("bf16", False), ("int8", True)])
def test_only_what_is_kept_is_packed_once(
    mixture: Path, fresh_home: Path, monkeypatch: pytest.MonkeyPatch, packing: str, kept: bool
) -> None:
    path, said = registered(mixture, []), list[str]()
    monkeypatch.setattr(opening, "PAUSE", 0.0)
    NativeTarget.open(path, packing=packing, context=64, threads=Threads(1), reporter=Reporter(progress=said.append))
    assert said and any("(needed only once)" in one for one in said) is kept
    assert len(packed_in(Paths(fresh_home).packed)) == kept


@pytest.mark.slow
def test_an_import_says_that_the_disk_lacks_room_for_the_second_file(
    mixture: Path, fresh_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = read(registered(mixture, [])).header.weight_bytes
    shutil.rmtree(fresh_home)
    for free, lacking in ((held, False), (held - 1, True)):
        said: list[str] = []
        with monkeypatch.context() as patched:
            patched.setattr(importing, "free_disk", lambda place, free=free: free)
            registered(mixture, said)
        assert any(one.startswith("Only ") for one in said) is lacking
        if lacking:
            shown = re.findall(r"(?:to a file of|Only) (\d\S+)", " ".join(said))
            assert len({*shown}) == 2, "one byte less is seen"
        shutil.rmtree(fresh_home)


def test_without_room_on_the_disk_it_answers_from_memory_if_there_is_some(
    mixture: Path, fresh_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, path, said = Paths(fresh_home), registered(mixture, []), list[str]()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
        without = logits_of(path, said)
        assert len(said) == 1 and wording("n1_000_bytes_free_disk") in said[0]
        assert wording("packed_anew_each_time") in said[0]
        patched.setattr(opening, "free_memory", lambda: 1000)
        with pytest.raises(DoesNotFit, match="1,000 bytes are free on the disk"):
            logits_of(path, said)
    assert len(said) == 1, "the error says it"
    assert read(path).header.registered and not [*paths.packed.glob("*.packed*")]
    assert logits_of(path, said) == without and len(said) == 1


def filled(home: Path, byte: bytes) -> PackedFile:
    """Return the only packed file, after a matrix of its experts was overwritten with this byte."""
    (made,) = packed_in(Paths(home).packed)
    section = next(one for name, one in made.header.tensors.items() if "layers.0.experts.down_proj.weight" in name)
    with made.path.open("r+b") as file:
        file.seek(made.start + section.offset)
        file.write(byte * section.bytes)
    return made


def test_a_damaged_file_is_named_where_the_model_computes_nan(mixture: Path, fresh_home: Path) -> None:
    path = registered(mixture, [])
    first = logits_of(path, [])
    made = filled(fresh_home, b"\xff")
    target = NativeTarget.open(path, packing=BLOCKS, context=64, threads=Threads(1))
    with pytest.raises(LocalspecError) as trouble:
        prefill_step(target, target.cache(0), Autoregressive(), TOKENS, Sampling(), last=True)
    assert str(trouble.value).startswith("The model computes NaN in the blocks of its GGUF files; ")
    assert f"delete {made.path}, which localspec makes again" in str(trouble.value)
    made.path.unlink()
    assert logits_of(path, []) == first


@pytest.mark.slow
def test_verify_deletes_a_damaged_file_and_the_next_reply_makes_it_again(mixture: Path, fresh_home: Path) -> None:
    path = registered(mixture, [])
    first = logits_of(path, [])
    made = filled(fresh_home, b"\0")
    assert logits_of(path, []) != first
    result = called(fresh_home, "verify", "mixture")
    assert result.returncode == 1 and wording("was_damaged_and_is_deleted", file=made.path) in result.stderr
    assert not made.path.exists() and logits_of(path, []) == first
    assert called(fresh_home, "verify", "mixture").returncode == 0


def test_a_file_that_another_process_deletes_is_skipped(
    mixture: Path, fresh_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, path = Paths(fresh_home), registered(mixture, [])
    logits_of(path, [])
    (made,) = packed_in(paths.packed)
    every = [*packed_in(paths.packed), *packed_in(paths.imports)]
    monkeypatch.setattr(packed_files, "_imported", lambda paths: every)
    made.path.unlink()
    assert packed_files.imports(paths)["mixture"].path == path
    found = packed_files.import_of(mixture, paths)
    assert found is not None and found.path == path
    path.unlink()
    assert packed_files.imports(paths) == {} and packed_files.import_of(mixture, paths) is None


MAKES = """
import sys, time
from pathlib import Path
from localspec.events import Reporter
from localspec.weights import opened, opening
from localspec.weights.packed_file import BLOCKS

each_piece = opened._each_piece
def slowly(header, put, threads, progress):
    print("writes", flush=True)
    found = each_piece(header, put, threads, progress)
    time.sleep(float(sys.argv[2]))
    return found
opened._each_piece = slowly
print("ready", flush=True); sys.stdin.readline()
model = opening.load(Path(sys.argv[1]), BLOCKS, "", 1, Reporter(print))
print(len(model.content))
"""


def making(registered: Path, home: Path, seconds: float) -> "subprocess.Popen[str]":
    """Return a process that will make the file, with a pause before the file is whole."""
    command = [sys.executable, "-c", MAKES, str(registered), str(seconds)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment(home)
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def begin(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_nothing_that_counts(mixture: Path, fresh_home: Path) -> None:
    paths, path = Paths(fresh_home), registered(mixture, [])
    process = making(path, fresh_home, PATIENCE)
    begin(process)
    assert process.stdout is not None and process.stdout.readline() == "writes\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert [one.suffix for one in paths.packed.iterdir() if one.suffix != ".lock"] == [".partial"]
    assert packed_in(paths.packed) == [] and read(path).header.registered
    assert logits_of(path, said := []) and said == []
    assert [one.suffix for one in paths.packed.iterdir()] == [".packed"]


@pytest.mark.slow
def test_of_two_processes_at_once_one_makes_it_and_the_other_waits(mixture: Path, fresh_home: Path) -> None:
    path = registered(mixture, [])
    both = [making(path, fresh_home, 0.5) for _ in range(2)]
    for process in both:
        begin(process)
    said = [process.communicate(timeout=PATIENCE)[0].splitlines() for process in both]
    (made,) = packed_in(Paths(fresh_home).packed)
    held = str(made.path.stat().st_size)
    assert sorted(said, key=len) == [[held], ["writes", held]]
    assert made.verify() == []
