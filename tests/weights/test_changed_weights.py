"""Weights that change in place: those that are sampled are noticed at the next load, all others by `verify`."""

import hashlib
import json
import os

import pytest
from each import each
from golden import matching
from weights.test_opening import copied, quiet

from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.paths import Paths
from localspec.weights import file_fingerprint as file_fingerprints
from localspec.weights import fingerprint as module
from localspec.weights import opening
from localspec.weights.checkpoint import revision, tensor_start
from localspec.weights.file_fingerprint import file_fingerprint
from localspec.weights.fingerprint import (
    fingerprints,
    forget,
    known_digests,
    reread,
    weight_digests,
    weights_fingerprint,
)
from localspec.weights.opening import load
from localspec.weights.packed_file import Origin, forms
from localspec.weights.packed_files import packed_files


@pytest.fixture
def model(tiny, tmp_path):
    return copied(tiny("llama-grouped-dynamic").path, tmp_path / "model")


@pytest.fixture
def paths(tmp_path):
    return Paths(tmp_path / "home")


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    monkeypatch.setattr(file_fingerprints, "SETTLED", 0)


def change(path, times="kept"):
    """Negate weights in place, where a fingerprint looks but no revision does."""
    file = path / "model.safetensors"
    before = file_fingerprint(file)
    return _change(path, lambda: (revision(path), file_fingerprint(file) != before), times, (revision(path), True))


def change_unseen(path, monkeypatch, times="kept"):
    """Negate weights in place, where neither a revision nor a fingerprint looks; small models are sampled less."""
    monkeypatch.setattr(file_fingerprints, "SAMPLES", 16)
    file = path / "model.safetensors"

    def seen():
        return revision(path), file_fingerprint(file), weights_fingerprint(path)

    return _change(path, seen, times, seen())


def _change(path, seen, times, wanted):
    file = path / "model.safetensors"
    content, start, told = bytearray(file.read_bytes()), tensor_start(file), file.stat()
    for at in range(start, len(content) - 4, 4 * 101):
        content[at + 3] ^= 0x80
        with file.open("r+b") as stream:
            stream.seek(at)
            stream.write(content[at : at + 4])
        if seen() == wanted and content[at : at + 3] != b"\0\0\0":
            break
        content[at + 3] ^= 0x80
        file.write_bytes(content)
    if times == "kept":
        os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))
    assert seen() == wanted and file.stat().st_size == told.st_size
    return file


def bytes_of(packed):
    return {name: bytes(packed.view(name)) for name in packed.header.tensors}


@pytest.mark.slow
@pytest.mark.parametrize("times", ["kept", "new"])
def test_weights_that_were_changed_in_place_are_packed_again(model, paths, tmp_path, times):
    before = bytes_of(load(model, "int8", "tiny", 1, quiet(), paths))
    change(model, times)
    now = bytes_of(load(model, "int8", "tiny", 1, Reporter(pytest.fail), paths))
    assert now == bytes_of(load(model, "int8", "tiny", 1, quiet(), Paths(tmp_path / "other"))) != before
    assert bytes_of(load(model, "int8", "tiny", 1, quiet(), paths)) == now


def test_another_file_in_its_place_is_noticed_though_it_is_as_large_and_as_old(model, paths):
    before = bytes_of(load(model, "int8", "tiny", 1, quiet(), paths))
    other = copied(model, model.parent / "other")
    file, told = change(other), (model / "model.safetensors").stat()
    os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))
    os.replace(file, model / "model.safetensors")
    assert bytes_of(load(model, "int8", "tiny", 1, quiet(), paths)) != before


def test_files_that_were_touched_or_copied_are_read_once_and_not_packed_again(model, paths, monkeypatch):
    load(model, "int8", "tiny", 1, quiet(), paths)
    monkeypatch.setattr(opening, "write_with_room", lambda *_: pytest.fail("packed again"))
    os.utime(model / "model.safetensors")
    assert load(model, "int8", "tiny", 1, quiet(), paths)
    assert load(copied(model, model.parent / "copy"), "int8", "tiny", 1, quiet(), paths)


def test_no_file_is_read_whole_before_a_model_is_loaded(model, paths, monkeypatch):
    monkeypatch.setattr(module, "_read", lambda files, *_: pytest.fail("read") if files else {})
    load(model, "int8", "tiny", 1, quiet(), paths)
    load(model, "int8", "tiny", 1, quiet(), paths)


def test_a_file_that_changed_just_now_is_not_known_by_its_times(model, paths, monkeypatch):
    monkeypatch.setattr(file_fingerprints, "SETTLED", 3600 * 10**9)
    file = model / "model.safetensors"
    before, told = weight_digests([file], paths), module.stamps
    reread([file], {file.name: "a" * 40}, paths)
    same = module.stamps([file])
    monkeypatch.setattr(module, "stamps", lambda files: same if files else told(files))  # as a coarse clock would say
    change(model)
    assert known_digests([file], paths) == {} and weight_digests([file], paths) != before


def test_what_was_packed_before_a_digest_was_known_serves_after_it(model, paths, monkeypatch):
    load(model, "int8", "tiny", 1, quiet(), paths)
    file = model / "model.safetensors"
    reread([file], {name: mark for name, (_, mark) in fingerprints([file]).items()}, paths)
    assert known_digests([file], paths)
    monkeypatch.setattr(opening, "write_with_room", lambda *_: pytest.fail("packed again"))
    load(model, "int8", "tiny", 1, quiet(), paths)


def test_what_an_earlier_version_packed_by_its_digest_serves_after_one_reading(model, paths, monkeypatch):
    file = model / "model.safetensors"
    digest = weight_digests([file], paths)
    load(model, "int8", "tiny", 1, quiet(), paths)
    (packed,) = packed_files(paths)
    assert packed.header.origin.files == {file.name: (file.stat().st_size, digest[file.name])}
    (paths.packed / "digests.json").unlink()
    monkeypatch.setattr(opening, "write_with_room", lambda *_: pytest.fail("packed again"))
    load(model, "int8", "tiny", 1, quiet(), paths)
    monkeypatch.setattr(module, "_read", lambda files, *_: pytest.fail("read") if files else {})
    load(model, "int8", "tiny", 1, quiet(), paths)


def test_a_change_while_it_is_packed_is_reported_and_nothing_is_kept(model, paths, monkeypatch):
    make = opening.write_with_room

    def meanwhile(*given):
        make(*given)
        change(model)

    monkeypatch.setattr(opening, "write_with_room", meanwhile)
    with pytest.raises(LocalspecError, match=matching("changed_while_they_packed_try")):
        load(model, "int8", "tiny", 1, quiet(), paths)
    assert packed_files(paths) == []


def test_what_the_common_cache_names_is_not_read_until_it_changes(model, paths, monkeypatch):
    file = model / "model.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    blob = file.rename(model.parent / digest)
    file.symlink_to(blob)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_read", lambda files, *_: pytest.fail("read") if files else {})
        before = load(model, "int8", "tiny", 1, quiet(), paths)
        load(model, "int8", "tiny", 1, quiet(), paths)
    assert before.header.origin.files["model.safetensors"][1] == digest
    change(model)
    assert bytes_of(load(model, "int8", "tiny", 1, quiet(), paths)) != bytes_of(before)


@pytest.mark.parametrize("times", ["kept", "new"])
def test_only_reading_all_of_it_sees_bytes_that_changed_between_the_samples(model, paths, monkeypatch, times):
    monkeypatch.setattr(file_fingerprints, "SAMPLES", 16)
    file = model / "model.safetensors"

    def looked():
        (found,) = reread([file], {name: mark for name, (_, mark) in fingerprints([file]).items()}, paths).values()
        return found

    first = looked()
    assert not first.before and not first.hidden_change
    assert looked() == module.FileReading(first.digest, first.digest, False)
    change_unseen(model, monkeypatch, times)
    now = looked()
    assert (
        now.hidden_change and now.before == first.digest != now.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    )
    assert looked().hidden_change, "it is damage until it is forgotten"
    forget([file], [file_fingerprint(file)], paths)
    assert not looked().before
    file.write_bytes(file.read_bytes()[:-64] + bytes(64))
    assert not looked().hidden_change and looked().digest != now.digest, "its fingerprint says it"


@pytest.mark.parametrize("forgotten", ["moved", "read by another command"])
def test_a_change_is_unseen_wherever_the_file_was_when_it_was_read(model, paths, monkeypatch, forgotten):
    monkeypatch.setattr(file_fingerprints, "SAMPLES", 16)

    def looked():
        return reread([file], {name: mark for name, (_, mark) in fingerprints([file]).items()}, paths)[file.name]

    file = model / "model.safetensors"
    first = looked()
    change_unseen(model, monkeypatch, "new")
    if forgotten == "moved":
        file = file.rename(model.parent / "moved.safetensors")
    else:
        weight_digests([file], paths)  # record the present SHA-256, without a fingerprint
    for _ in range(2):
        assert looked().hidden_change and looked().before == first.digest


def test_a_digest_of_an_earlier_version_is_compared_by_the_times_of_its_file(model, paths):
    file = model / "model.safetensors"
    weight_digests([file], paths)
    known = json.loads((paths.packed / "digests.json").read_text())
    place = os.path.realpath(file)
    change(model)
    known[place] = [module.stamps([file])[file.name], known[place][1]]  # two values, as they were written then
    (paths.packed / "digests.json").write_text(json.dumps(known))
    assert reread([file], {file.name: "a" * 40}, paths)[file.name].hidden_change


@each("content", [b"", b"[]", b'{"a": 1}', b'{"a": [1, 2, 3]}', b"\xff", b"[" * 100_000])
def test_what_is_remembered_may_be_damaged(model, paths, content):
    wanted = weight_digests([model / "model.safetensors"], paths)
    (paths.packed / "digests.json").write_bytes(content)
    assert weight_digests([model / "model.safetensors"], paths) == wanted
    assert (paths.packed / "digests.json").stat().st_mode & 0o777 == 0o600 or os.name != "posix"


def test_what_is_gone_is_forgotten(model, paths):
    other = copied(model, model.parent / "other") / "model.safetensors"
    weight_digests([other], paths)
    other.unlink()
    weight_digests([model / "model.safetensors"], paths)
    assert list(json.loads((paths.packed / "digests.json").read_text())) == [
        os.path.realpath(model / "model.safetensors")
    ]


@pytest.mark.slow
def test_other_weights_of_the_same_revision_take_nothing_from_a_model_that_is_only_packed(model, paths):
    kept = opening.make(model, "int8", Origin("org/name", revision(model), repo="org/name"), 1, quiet(), paths)
    content = kept.read_bytes()
    change(model)
    load(model, "int8", "tiny", 1, quiet(), paths)
    load(model, "int4", "tiny", 1, quiet(), paths)
    assert kept.read_bytes() == content and forms(kept) == {"int8": kept}
