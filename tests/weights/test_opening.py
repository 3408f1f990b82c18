"""Models are packed as their files say, whole or in pieces, once for all processes, and without taking their memory."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoints import change_config
from clocks import PATIENCE
from command import ROOT
from each import each
from golden import matching, wording
from kernel_files import needs_peaks
from native.engine import isas, using
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, SHARDED

from localspec.errors import DoesNotFit, LocalspecError
from localspec.events import Reporter
from localspec.families.architecture import TransformerConfig, weight_map
from localspec.machine import compiled
from localspec.machine.library import FORMATS, library
from localspec.paths import Paths
from localspec.weights import opened, opening, packed_file
from localspec.weights import packed_files as packed_files_module
from localspec.weights.checkpoint import revision
from localspec.weights.file_fingerprint import file_fingerprint
from localspec.weights.fingerprint import weights_fingerprint
from localspec.weights.matrices import BlockStack, PackedMatrix
from localspec.weights.opened import PackedModel
from localspec.weights.opening import load, with_files
from localspec.weights.packed_file import Origin, Tensor
from localspec.weights.packed_files import in_all_formats, packed_files, partial_of
from localspec.weights.source import PackingSource

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")
TIED = "llama-one-key-head-tied-linear"


def quiet(sentences=None):
    return Reporter(notice=(sentences if sentences is not None else []).append)


def origin_of(path, paths):
    return with_files(Origin("", revision(path)), path, paths)


def copied(path, to, change=lambda tensors: tensors):
    tensors = {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}
    to.mkdir()
    for file in path.iterdir():
        if file.suffix != ".safetensors" and not file.name.endswith("index.json"):
            (to / file.name).write_bytes(file.read_bytes())
    save_file(change(tensors), to / "model.safetensors", metadata={"format": "pt"})
    return to


def stacked(path, sizes):
    """Return our parameters by name, read from the files in fp32."""
    files = {name: tensor.float() for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}
    files.setdefault("lm_head.weight", files["model.embed_tokens.weight"])
    return {name: torch.cat([files[part] for part, _ in parts]).numpy() for name, parts in weight_map(sizes).items()}


@each("layout", ["fp32", "bf16", "int8"])
def test_a_tensors_bytes_are_those_that_the_library_packs_it_to(layout):
    for out in (1, 31, 32, 33, 320):
        for inputs in (1, 16, 31, 32, 48, 64, 100, 128, 129):
            for group in (32, 64, 128) if layout.startswith("int") else (0,):
                bytes_ = library().ls_packed_bytes(out, inputs, FORMATS[layout], group)
                assert Tensor("panels", layout, out, inputs, group).bytes == bytes_


@pytest.mark.slow
@each("name", [*FAMILIES, TIED])
@each("packing", ["fp32", "bf16", "int8", "int4"])
def test_every_weight_is_there_in_its_format(tiny, tmp_path, name, packing):
    path = tiny(name).path
    model = load(path, packing, "tiny", 2, quiet(), Paths(tmp_path))
    right = stacked(path, model.sizes)
    assert model.tensors.keys() == right.keys()
    assert (model.tensors["embed_tokens"] is model.tensors["lm_head.weight"]) == TransformerConfig.of(model.config).tied
    for parameter, found in model.tensors.items():
        if isinstance(found, BlockStack):
            assert packing == "int4" and all(part.data.ctypes.data % 64 == 0 for part in found.parts)
            types = {part.type for part in found.parts}
            assert types <= ({"Q6_K", "Q8_0"} if "lm_head" in parameter else {"Q4_K", "Q5_0", "Q6_K", "Q8_0"})
            apart, first = found.rows(range(found.out)) - right[parameter], 0
            for part in found.parts:
                largest = np.abs(right[parameter][first : first + part.out]).max()
                steps = {"Q4_K": 1 / 10, "Q5_0": 1 / 14, "Q6_K": 1 / 30, "Q8_0": 1 / 200}[part.type]
                assert np.abs(apart[first : first + part.out]).max() <= steps * largest, parameter
                first += part.out
            continue
        if not isinstance(found, PackedMatrix):
            numbers = (found.astype(np.uint32) << 16).view(np.float32) if found.dtype == np.uint16 else found
            assert found.shape == right[parameter].shape
            exact = torch.from_numpy(right[parameter]).bfloat16().float().numpy()
            np.testing.assert_array_equal(numbers, exact if found.dtype == np.uint16 else right[parameter])
            continue
        assert found.data.ctypes.data % 64 == 0
        if parameter == "embed_tokens":
            continue  # which is the head
        interleave = parameter.endswith("gate_up_proj.weight")
        at_once = PackedMatrix.pack(right[parameter], found.format, found.group, interleave)
        np.testing.assert_array_equal(found.data, at_once.data), parameter
        assert packing != "int4" or found.inputs % 32
        wanted = "int8" if packing == "int4" else packing
        assert (found.format, found.group) == (
            wanted,
            (64 if found.inputs % 64 == 0 else 32) if wanted == "int8" else 0,
        )
        steps = {"fp32": 0, "bf16": 2**-8, "int8": 1 / 200}[wanted]
        apart = np.abs(found.unpack(interleave) - right[parameter]).max()
        assert apart <= steps * np.abs(right[parameter]).max(), parameter


@pytest.mark.slow
@each("piece, stored", [(1, torch.bfloat16), (5000, torch.float16), (5000, torch.float64)])
def test_pieces_make_the_same_file_as_the_whole(tiny, tmp_path, monkeypatch, piece, stored):
    def change(tensors):
        return {name: tensor.to(stored if "v_proj" not in name else torch.float32) for name, tensor in tensors.items()}

    path = copied(tiny(SHARDED).path, tmp_path / "model", change)
    whole = load(path, "int8", "tiny", 1, quiet(), Paths(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(packed_file, "PIECE", piece)
        pieces = load(path, "int8", "tiny", 3, quiet(), Paths(tmp_path / "pieces"))
    assert any(len(section.pieces) > 1 for section in pieces.header.tensors.values())
    for name in whole.header.sections:
        assert bytes(whole.view(name)) == bytes(pieces.view(name)), name


@each("stored", [torch.bfloat16, torch.float16])
def test_in_four_bits_weights_are_the_same_from_every_type_of_number_and_in_pieces(tiny, tmp_path, monkeypatch, stored):
    source = tiny("gemma3-grouped-mixed-window-linear").path
    given = copied(source, tmp_path / "given", lambda t: {name: part.to(stored) for name, part in t.items()})
    wide = copied(source, tmp_path / "wide", lambda t: {name: part.to(stored).float() for name, part in t.items()})
    whole = load(given, "int4", "tiny", 1, quiet(), Paths(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(packed_file, "PIECE", 1000)
        pieces = load(wide, "int4", "tiny", 3, quiet(), Paths(tmp_path / "pieces"))
    blocks = [name for name, one in whole.header.tensors.items() if one.tensor.layout == "blocks"]
    assert blocks and any(len(pieces.header.tensors[name].pieces) > 1 for name in blocks)
    for name in blocks:
        assert bytes(whole.view(name)) == bytes(pieces.view(name)), name


def test_it_can_run_without_its_directory_and_has_all_its_texts(tiny, tmp_path):
    path = copied(tiny(FAMILIES[0]).path, tmp_path / "model")
    (path / "generation_config.json").write_text('{"temperature": 0.5}')
    model = load(path, "int8", "tiny", 1, quiet(), Paths(tmp_path))
    texts = dict(model.texts)
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= texts.keys()
    assert all((path / name).read_bytes() == text for name, text in texts.items())
    weights = (path / "model.safetensors").read_bytes()
    mark = file_fingerprint(path / "model.safetensors")
    assert model.header.origin.files == {"model.safetensors": (len(weights), mark)}
    assert model.header.origin.weights == weights_fingerprint(path)
    file = in_all_formats(model.header.origin, "int8", Paths(tmp_path))[0]
    shutil.rmtree(path)
    again = load(file, "int8", "tiny", 1, quiet(), Paths(tmp_path))
    assert again.config.content == json.loads(texts["config.json"]) and again.sizes.family == "llama"


def test_a_digest_that_the_common_cache_knows_is_kept(tiny, tmp_path):
    path = copied(tiny(FAMILIES[0]).path, tmp_path / "model")
    weights, blob = path / "model.safetensors", tmp_path / ("ab" * 32)
    weights.rename(blob)
    weights.symlink_to(blob)
    model = load(path, "int8", "tiny", 1, quiet(), Paths(tmp_path))
    assert model.header.origin.files["model.safetensors"] == (blob.stat().st_size, "ab" * 32)


# -- kept, made again --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_is_made_once_and_again_when_the_model_changes(tiny, tmp_path, monkeypatch):
    path = copied(tiny(FAMILIES[0]).path, tmp_path / "model")
    paths = Paths(tmp_path)
    first = load(path, "int8", "tiny", 1, quiet(), paths)
    monkeypatch.setattr(opening, "write", None)
    assert load(path, "int8", "tiny", 1, quiet(), paths).header == first.header
    monkeypatch.undo()
    changed = copied(path, tmp_path / "changed", lambda tensors: {name: tensor * 2 for name, tensor in tensors.items()})
    assert load(changed, "int8", "tiny", 1, quiet(), paths).header.origin.revision != first.header.origin.revision
    load(path, "int4", "tiny", 1, quiet(), paths)
    assert sorted(one.header.packing for one in packed_files(paths)) == ["int4", "int8", "int8"]


@pytest.mark.slow
def test_a_damaged_one_is_made_again_with_a_sentence(tiny, tmp_path):
    path, paths, said = tiny(FAMILIES[0]).path, Paths(tmp_path), []
    header = load(path, "int8", "tiny", 1, quiet(), paths).header
    file = in_all_formats(header.origin, "int8", paths)[0]
    for damage in (file.read_bytes()[:-1], b"", file.read_bytes()[:60] + b"#" + file.read_bytes()[61:]):
        file.write_bytes(damage)
        assert load(path, "int8", "tiny", 1, quiet(said), paths).header == header
        assert "is damaged" in said[-1] and said[-1].endswith(wording("made_again")) and len(said) == 1
        said.clear()
    assert packed_file.read(file).verify() == []


def test_one_with_a_damaged_text_is_made_again_with_a_sentence(tiny, tmp_path):
    paths, said = Paths(tmp_path), []
    load(tiny(TIED).path, "int8", "", 1, quiet(), paths)
    (found,) = packed_files(paths)
    section = found.header.texts["tokenizer.json"]
    content = bytearray(found.path.read_bytes())
    content[found.start + section.offset + 7] ^= 1
    found.path.write_bytes(content)
    model = load(tiny(TIED).path, "int8", "", 1, quiet(said), paths)
    assert model.texts["tokenizer.json"] == (tiny(TIED).path / "tokenizer.json").read_bytes()
    assert len(said) == 1 and "tokenizer.json" in said[0] and wording("damaged_made_again") in said[0]
    assert packed_files(paths)[0].verify() == [] and load(tiny(TIED).path, "int8", "", 1, Reporter(pytest.fail), paths)


def test_what_an_earlier_version_wrote_serves_and_is_not_made_again(tiny, tmp_path, monkeypatch):
    """There is only one format so far, so the test invents the next one."""
    path, paths = tiny(TIED).path, Paths(tmp_path)
    load(path, "int8", "", 1, quiet(), paths)
    (old,) = packed_files(paths)
    for module in (packed_file, packed_files_module):
        monkeypatch.setattr(module, "FORMAT", packed_file.FORMAT + 1)
    monkeypatch.setattr(opening, "write_with_room", lambda *given: pytest.fail("it is made again"))
    assert in_all_formats(old.header.origin, "int8", paths)[0] != old.path
    assert load(path, "int8", "", 1, Reporter(pytest.fail), paths).header == old.header
    assert load(old.path, "int8", "", 1, Reporter(pytest.fail), paths).header == old.header
    assert packed_file.forms(old.path) == {"int8": old.path}
    assert packed_files_module.packed_of(path, "", paths) == [old.path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_its_place_gives_way(tiny, tmp_path):
    path, paths, said = tiny(TIED).path, Paths(tmp_path), []
    file = in_all_formats(origin_of(path, paths), "int8", paths)[0]
    file.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(file)
    assert load(path, "int8", "", 1, quiet(said), paths).sizes and packed_file.read(file).verify() == []
    assert len(said) == 1 and wording("cannot_read_file") in said[0]


def test_a_directory_in_its_place_is_reported_and_the_model_runs(tiny, tmp_path):
    path, paths, said = tiny(TIED).path, Paths(tmp_path), []
    in_all_formats(origin_of(path, paths), "int8", paths)[0].mkdir(parents=True)
    assert load(path, "int8", "", 1, quiet(said), paths).sizes
    assert len(said) == 2 and wording("packed_anew_each_time") in said[1] and not list(tmp_path.rglob("*.partial"))


def test_one_that_cannot_be_read_back_is_reported_and_the_model_runs(tiny, tmp_path, monkeypatch):
    path, paths, said = tiny(TIED).path, Paths(tmp_path), []

    def locked(file):
        raise packed_file.CannotRead(f"{file} cannot be read (Permission denied).")

    monkeypatch.setattr(opened, "read", locked)
    assert load(path, "int8", "", 1, quiet(said), paths).sizes and not packed_files(paths)
    assert len(said) == 1 and wording("cannot_read_permission_denied") in said[0]
    assert not list(tmp_path.rglob("*.partial"))


def test_what_a_killed_process_left_counts_as_free_room(tiny, tmp_path, monkeypatch):
    path, paths = tiny(TIED).path, Paths(tmp_path)
    file = in_all_formats(origin_of(path, paths), "int8", paths)[0]
    file.parent.mkdir(parents=True, exist_ok=True)
    partial_of(file).write_bytes(bytes(10**6))

    def free(place):
        return SimpleNamespace(free=1000 if partial_of(file).exists() else 10**6)

    monkeypatch.setattr(shutil, "disk_usage", free)
    assert load(path, "int8", "", 1, Reporter(pytest.fail), paths).content and file.exists()
    assert not partial_of(file).exists()


def test_a_model_runs_even_if_no_file_can_be_written(tiny, tmp_path, monkeypatch):
    path, said = tiny(FAMILIES[0]).path, []
    kept = load(path, "int8", "tiny", 1, quiet(), Paths(tmp_path / "kept"))
    (tmp_path / "file").write_text("no directory")
    held = load(path, "int8", "tiny", 1, quiet(said), Paths(tmp_path / "file"))
    assert bytes(held.view("lm_head.weight")) == bytes(kept.view("lm_head.weight"))
    assert wording("cannot_be_written") in said[0] and wording("packed_anew_each_time") in said[0]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    held = load(path, "int8", "tiny", 1, quiet(said), Paths(tmp_path / "full"))
    assert bytes(held.view("lm_head.weight")) == bytes(kept.view("lm_head.weight"))
    assert wording("n1_000_bytes_free_disk") in said[1]
    assert not list((tmp_path / "full").rglob("*.packed*"))


def test_a_full_disk_is_reported_before_anything_is_written(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    monkeypatch.setattr(opening, "write", None)
    with pytest.raises(DoesNotFit, match=r"takes [\d.]+ KiB, and 1,000 bytes are free"):
        opening.make(tiny(FAMILIES[0]).path, "int8", packed_file.Origin("tiny", "a" * 40), 1, quiet(), Paths(tmp_path))


@each(
    "number, said",
    [
        (errno.ENOSPC, matching("is_full")),
        (errno.EFBIG, f"{matching('may_not_be_written_raise_the')} .*{matching('ulimit_f_unlimited')}"),
    ],
)
def test_a_disk_that_fills_up_meanwhile_leaves_nothing(tiny, tmp_path, monkeypatch, number, said):
    def full(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DoesNotFit, match=said):
        opening.make(tiny(FAMILIES[0]).path, "int8", Origin("tiny", "a" * 40), 1, quiet(), Paths(tmp_path))
    assert not list(tmp_path.rglob("*.packed*"))


def test_dense_forms_take_no_disk(tiny, tmp_path):
    load(tiny(FAMILIES[0]).path, "bf16", "tiny", 1, quiet(), Paths(tmp_path))
    assert list(tmp_path.iterdir()) == []


PACKS = """
import sys
from pathlib import Path
from localspec.events import Reporter
from localspec.weights import opening
from localspec.weights.packed_file import Origin
from localspec.paths import Paths

write = opening.write
def slowly(*given):
    print("packs", flush=True)
    import time; time.sleep(0.2)
    write(*given)
opening.write = slowly
print("ready", flush=True); sys.stdin.readline()
print(opening.make(Path(sys.argv[1]), "int8", Origin("tiny", "a" * 40), 1, Reporter(print), Paths(Path(sys.argv[2]))))
"""


@pytest.mark.slow
def test_two_processes_at_once_pack_it_once(tiny, tmp_path):
    command = [sys.executable, "-c", PACKS, str(tiny(FAMILIES[0]).path), str(tmp_path)]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=PATIENCE)[0].splitlines() for process in both]
    origin = with_files(Origin("", "a" * 40), tiny(FAMILIES[0]).path, Paths(tmp_path))
    file = str(in_all_formats(origin, "int8", Paths(tmp_path))[0])
    assert sorted(said, key=len) == [[file], ["packs", file]]
    assert packed_file.read(Path(file)).verify() == []


# -- refused -----------------------------------------------------------------------------------------------------------


@each(
    "content, said",
    [
        (b"{", r"cannot be used \("),
        (b'{"model_type": "gemma"}', "gemma"),
        (None, r"has no .*, although its config.json declares it"),
    ],
)
def test_a_packed_file_whose_config_describes_another_model_is_refused(tiny, tmp_path, content, said):
    source = PackingSource.open(tiny(FAMILIES[0]).path)
    config = {**source.config.content, "intermediate_size": 41}
    texts = {**source.texts, "config.json": content or json.dumps(config).encode()}
    source = PackingSource(source.checkpoint, source.config, source.sizes, source.made_of, texts)
    header = source.header(packed_file.Origin("tiny", "a" * 40), opening.Recipe("int8"))
    model = PackedModel.in_memory(header, source.filler({}), 1, lambda done, total: None)
    with pytest.raises(LocalspecError, match=said):
        assert model.sizes


def test_a_type_that_cannot_be_packed_is_named(tiny, tmp_path):
    path = copied(
        tiny(FAMILIES[0]).path, tmp_path / "m", lambda t: {n: p.to(torch.float8_e4m3fn) for n, p in t.items()}
    )
    with pytest.raises(LocalspecError, match="F8_E4M3"):
        load(path, "int8", "tiny", 1, quiet(), Paths(tmp_path))


@pytest.mark.slow
@each("value", [np.nan, np.inf, -np.inf])
@each("stored", [torch.float32, torch.bfloat16])
@each(
    "theirs, ours",
    [
        ("model.norm.weight", "norm"),
        ("model.embed_tokens.weight", "embed_tokens"),
        ("model.layers.1.self_attn.v_proj.weight", "layers.1.qkv_proj.weight"),
        ("model.layers.1.mlp.up_proj.weight", "layers.1.gate_up_proj.weight"),
    ],
)
def test_values_that_no_text_can_come_from_are_not_packed(tiny, tmp_path, value, stored, theirs, ours):
    def change(tensors):
        changed = {name: tensor.to(stored).clone() for name, tensor in tensors.items()}
        changed[theirs].view(-1)[-1] = value
        return changed

    path = copied(tiny(FAMILIES[0]).path, tmp_path / "model", change)
    for packing in ("int8", "int4"):
        with pytest.raises(LocalspecError, match=f"{ours} of .*model has NaN or inf"):
            load(path, packing, "tiny", 1, quiet(), Paths(tmp_path / "home"))
    assert not list((tmp_path / "home").rglob("*.packed*"))


# -- memory and speed --------------------------------------------------------------------------------------------------

PEAK = """
import sys
from pathlib import Path
from localspec.weights import packed_file
from localspec.events import Reporter
from localspec.weights.opening import make
from localspec.weights.packed_file import Origin
from localspec.paths import Paths

status = lambda name: next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith(name))
make(Path(sys.argv[3]), "int8", Origin("tiny", "b" * 40), 1, Reporter(), Paths(Path(sys.argv[2])))
packed_file.PIECE = int(sys.argv[4])
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
make(Path(sys.argv[1]), "int8", Origin("tiny", "a" * 40), 2, Reporter(), Paths(Path(sys.argv[2])))
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@needs_peaks
def test_packing_takes_a_few_pieces_of_memory_however_large_a_tensor_is(tiny, tmp_path):
    rows = 2**19

    def change(tensors):
        return {
            name: torch.zeros(rows, tensor.shape[1], dtype=torch.bfloat16) if tensor.shape[0] == 320 else tensor
            for name, tensor in tensors.items()
        }

    path = copied(tiny(FAMILIES[0]).path, tmp_path / "large", change)
    change_config(path, vocab_size=rows)
    assert (path / "model.safetensors").stat().st_size > 90 * 2**20
    command = [sys.executable, "-c", PEAK, str(path), str(tmp_path), str(tiny(FAMILIES[0]).path), str(2**22)]
    peak = int(
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=2 * PATIENCE, cwd=ROOT).stdout
    )
    assert peak < 2 * 5 * 2**22, "for each thread its piece, and what that is made of"


# -- the same bits everywhere ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_instruction_set_packs_to_the_same_bytes():
    weights = np.random.default_rng(0).standard_normal((70, 300)).astype(np.float32) ** 3
    weights[3, 5:40], weights[7, 200] = 0, 1e5
    weights[40, 100], weights[41, 7], weights[42, 9:13] = np.nan, np.inf, 1e-30
    found = {}
    with np.errstate(all="ignore"):
        sources = weights, weights.astype(np.float16), (weights.view(np.uint32) >> 16).astype(np.uint16)
    for isa in isas():
        digest = hashlib.sha256()
        with using(isa):
            for source in sources:
                for layout, group in (("int8", 64), ("int8", 128), ("bf16", 0), ("fp32", 0)):
                    digest.update(PackedMatrix.pack(source, layout, group, True).data)
        found[isa] = digest.hexdigest()
    assert len(found) > 1 and len(set(found.values())) == 1, found


@each("group", [32, 64, 128])
def test_eight_bits_are_the_nearest_steps_of_the_largest_weight(group):
    weights = np.random.default_rng(4).standard_normal((33, 256)).astype(np.float32)
    grouped = weights.reshape(33, -1, group)
    scales = (np.abs(grouped).max(-1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    steps = np.clip(np.rint(grouped / scales), -127, 127)
    np.testing.assert_array_equal(PackedMatrix.pack(weights, "int8", group).unpack(), (steps * scales).reshape(33, 256))
