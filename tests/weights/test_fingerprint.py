"""Fingerprints: what changes them and what does not, how little they read, and files that cannot be read."""

import json
import os
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import each
from properties import given, st
from safetensors.numpy import save_file

from localspec.errors import LocalspecError
from localspec.paths import Paths
from localspec.weights import file_fingerprint as file_fingerprints
from localspec.weights import fingerprint
from localspec.weights.checkpoint import revision, tensor_start, weight_files
from localspec.weights.file_fingerprint import HEADER, file_fingerprint
from localspec.weights.fingerprint import (
    RUN,
    Identity,
    fingerprints,
    recognised,
    sampled_weights,
    weights_fingerprint,
)
from localspec.weights.fingerprint import weight_digests as sha256_of
from localspec.weights.packed_file import Header, Origin

LLAMA = "llama-grouped-dynamic"
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return {name: one for file in weight_files(path) for name, one in load_file(file).items()}


def directory(path: Path, like: Path, *files: Mapping[str, np.ndarray], **config: Any) -> Path:
    """Write a directory of these weights, with the texts of another one, in as many files as are given."""
    path.mkdir()
    for file in like.iterdir():
        if file.suffix in (".json", ".jinja") and not file.name.endswith("index.json"):
            (path / file.name).write_bytes(file.read_bytes())
    (path / "config.json").write_text(json.dumps({**json.loads((like / "config.json").read_text()), **config}))
    if len(files) == 1:
        save_file(dict(files[0]), path / "model.safetensors", metadata={"who": "somebody else"})
        return path
    names = {name: f"part-{number}.safetensors" for number, part in enumerate(files) for name in part}
    for number, part in enumerate(files):
        save_file(dict(part), path / f"part-{number}.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return path


def test_names_shards_and_texts_do_not_count(tiny: Any, tmp_path: Path) -> None:
    like = tiny(LLAMA).path
    weights, own = tensors_of(like), weights_fingerprint(like)
    names = sorted(weights)
    shards = [{name: weights[name] for name in part} for part in (names[::2], names[1::2])]
    other = directory(tmp_path / "other name", like, *shards, max_position_embeddings=77)
    (other / "chat_template.jinja").write_text("{{ messages }}")
    assert weights_fingerprint(other) == own and revision(other) != revision(like)
    inside = {"vision_tower.a.weight": np.ones((4, 4), np.float32)} | {
        f"language_model.{name}": one for name, one in weights.items()
    }
    assert weights_fingerprint(directory(tmp_path / "sees", like, inside)) == own
    assert Identity(other).owns(own, "x") and Identity(other).owns(None, revision(other))
    assert not Identity(other).owns(revision(like), "", None)


def test_every_tensor_counts(tiny: Any, tmp_path: Path) -> None:
    like = tiny(LLAMA).path
    weights, own = tensors_of(like), weights_fingerprint(like)
    for number, name in enumerate(weights):
        changed = {**weights, name: weights[name] * np.float32(1.001)}
        assert weights_fingerprint(directory(tmp_path / str(number), like, changed)) != own, name


@each("type_", [np.float32, np.float16, "BF16"])
def test_values_count_and_not_how_they_are_stored(tiny: Any, tmp_path: Path, type_: Any) -> None:
    import torch
    from safetensors.torch import save_file as save_torch

    weights = {name: one.astype(np.float16).astype(np.float32) for name, one in tensors_of(tiny(LLAMA).path).items()}
    coarse = {name: torch.from_numpy(one).bfloat16() for name, one in weights.items()}
    whole = {name: one.float() for name, one in coarse.items()}
    paths = []
    for name, found in (("a", coarse if type_ == "BF16" else None), ("b", whole if type_ == "BF16" else None)):
        if found is None:
            found = {
                key: torch.from_numpy(one.astype(type_ if name == "a" else np.float32)) for key, one in weights.items()
            }
        path = directory(tmp_path / name, tiny(LLAMA).path, weights)
        save_torch(found, path / "model.safetensors")
        paths.append(path)
    assert weights_fingerprint(paths[0]) == weights_fingerprint(paths[1])


def test_a_head_that_repeats_the_embedding_does_not_count() -> None:
    table = np.random.default_rng(0).normal(size=(600, 256)).astype("<f4")
    alone = of({TABLE: table})
    assert of({HEAD: table, TABLE: table}) == of({TABLE: table, HEAD: table}) == alone
    assert of({TABLE: table, HEAD: table * 2}) != alone
    assert of({TABLE: table, HEAD: table[:599]}) != alone


def of(tensors: Mapping[str, np.ndarray]) -> str:
    def values(name: str, firsts: Sequence[int], count: int) -> bytes:
        one = tensors[name].reshape(-1)
        return b"".join(one[at : at + count].astype("<f4").tobytes() for at in firsts)

    return sampled_weights({name: one.shape for name, one in tensors.items()}, values)


@pytest.mark.slow
@given(st.data())
def test_each_sample_counts_lies_in_one_row_and_nothing_else_is_requested(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 700), max_size=3)))
    runs: list[tuple[int, int]] = []

    def values(name: str, firsts: Sequence[int], count: int) -> bytes:
        runs.extend((at, count) for at in firsts)
        return bytes(content[at % 4096 : at % 4096 + count].tobytes() if count else b"" for at in ()) + b"".join(
            struct.pack("<f", float((at + step) in changed)) for at in firsts for step in range(count)
        )

    content, changed = np.zeros(4096, np.uint8), set[int]()
    before = sampled_weights({"a": shape}, values)
    columns = shape[-1] if shape else 1
    assert 1 <= len(runs) <= 4 and len({*runs}) == len(runs)
    for at, count in runs:
        assert count == min(RUN, columns) and at // columns == (at + count - 1) // columns
        assert 0 <= at <= prod(shape) - count and (columns % RUN or at % columns % RUN == 0)
    sampled = {at + step for at, count in runs for step in range(count)}
    changed.add(data.draw(st.sampled_from(sorted(sampled))))
    assert sampled_weights({"a": shape}, values) != before
    if others := sorted({*range(min(prod(shape), 5000))} - sampled):
        changed.clear()
        changed.add(data.draw(st.sampled_from(others)))
        assert sampled_weights({"a": shape}, values) == before


@given(st.permutations(["a", "b", TABLE, HEAD, "model.layers.10.x", "model.layers.9.x"]))
def test_the_order_of_tensors_does_not_count(names: list[str]) -> None:
    tensors = {name: np.arange(len(name) * 40, dtype="<f4").reshape(-1, 40) for name in sorted(names)}
    assert of({name: tensors[name] for name in names}) == of(tensors)
    swapped = {**tensors, "a": tensors["b"] + 1}
    assert of(swapped) != of(tensors)


def test_a_packed_file_has_the_fingerprint_of_what_it_was_made_of(tiny: Any, tmp_path: Path) -> None:
    from localspec.events import Reporter
    from localspec.weights.opening import load

    like, paths = tiny(LLAMA).path, Paths(tmp_path)
    packed = load(like, "int8", "tiny", 1, Reporter(), paths)
    (file,) = paths.packed.glob("*.packed")
    assert packed.header.origin.weights == weights_fingerprint(like) == weights_fingerprint(file)


def test_an_earlier_version_refuses_nothing_in_a_header() -> None:
    """An earlier version accepted an origin with these six keys, and anything next to it."""
    header = Header(Origin("a", "0" * 40, weights="1" * 40), "int8", 0, {}, {}).encoded()
    said = json.loads(header[48:].rstrip(b"\0"))
    assert said["origin"].keys() == {"name", "revision", "license", "repo", "commit", "files"}
    assert said["weights"] == "1" * 40


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a file that begins like a GGUF file and is longer than the part that is read completely."""
    content = np.random.default_rng(1).integers(0, 256, HEADER + 2**21, dtype=np.uint8).tobytes()
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + content[4:])
    return tmp_path / "a.gguf"


def flipped(file: Path, at: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))


@pytest.mark.slow
def test_a_file_is_known_by_size_header_and_samples(file: Path, tmp_path: Path) -> None:
    before = file_fingerprint(file)
    assert len(before) == 40 and file_fingerprint(file) == before
    renamed = file.rename(tmp_path / "b.gguf")
    link = tmp_path / "link.gguf"
    link.symlink_to(renamed)
    assert file_fingerprint(link) == file_fingerprint(renamed) == before
    size = renamed.stat().st_size
    spacing = (size - HEADER - 64) / 1023
    sampled = [HEADER + int(number * spacing) for number in (0, 1, 511, 1023)]
    for at in (0, 5, HEADER - 1, *sampled, size - 1):
        flipped(renamed, at)
        assert file_fingerprint(renamed) != before, at
        flipped(renamed, at)
    assert file_fingerprint(renamed) == before
    flipped(renamed, HEADER + 64 + 300)  # between two samples, which only `verify` sees
    assert file_fingerprint(renamed) == before
    flipped(renamed, HEADER + 64 + 300)
    with renamed.open("ab") as stream:
        stream.write(b"\0")
    assert file_fingerprint(renamed) != before


def test_the_size_counts_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros after zeros change no sample."""
    monkeypatch.setattr(file_fingerprints, "HEADER", 64)
    file, found = tmp_path / "a.gguf", set[str]()
    for size in (2**20, 2**20 + 1, 2**21):
        file.touch()
        os.truncate(file, size)
        found.add(file_fingerprint(file))
    assert len(found) == 3


def test_a_file_that_stays_as_it_is_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = [], file_fingerprints.read_at
    monkeypatch.setattr(file_fingerprints, "read_at", lambda *given: reads.append(given) or read(*given))
    before = file_fingerprint(file)
    assert file_fingerprint(file) == before and len(reads) == 2 * 1025, "it changed just now, and may change unseen"
    monkeypatch.setattr(file_fingerprints, "SETTLED", -1)
    assert [file_fingerprint(file) for _ in range(3)] == [before] * 3 and len(reads) == 3 * 1025
    flipped(file, 5)
    assert file_fingerprint(file) != before


def test_metadata_of_safetensors_are_the_files_and_not_the_weights(tiny: Any, tmp_path: Path) -> None:
    like = tiny(LLAMA).path
    one = directory(tmp_path / "one", like, tensors_of(like))
    before, file = file_fingerprint(one / "model.safetensors"), one / "model.safetensors"
    flipped(file, file.read_bytes().index(b"somebody else"))
    assert file_fingerprint(file) != before and weights_fingerprint(one) == weights_fingerprint(like)
    before = file_fingerprint(file)
    flipped(file, tensor_start(file))
    assert file_fingerprint(file) != before


@pytest.mark.slow
@each("count", [2**31, 2**37])
def test_little_is_read_of_a_file_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    file, reads = tmp_path / "large.gguf", []
    file.touch()
    os.truncate(file, count)  # a sparse file
    read = file_fingerprints.read_at
    monkeypatch.setattr(
        file_fingerprints, "read_at", lambda stream, at, n, path: reads.append((at, n)) or read(stream, at, n, path)
    )
    file_fingerprint(file)
    assert reads[0] == (0, HEADER) and len(reads) == 1025 and sum(n for _, n in reads) == HEADER + 1024 * 64
    pages = [at // 4096 for at, _ in reads[1:]]
    assert len(set(pages)) == len(pages), "each page is read once"


def test_little_is_read_of_weights(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads, read = tiny(LLAMA).path, [], fingerprint.read_at
    monkeypatch.setattr(
        fingerprint, "read_at", lambda stream, at, n, path: reads.append(n) or read(stream, at, n, path)
    )
    weights_fingerprint(path)
    assert len(reads) <= 4 * len(tensors_of(path)) and max(reads) <= RUN * 4


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path) -> str:
        with pytest.raises(LocalspecError) as found:
            file_fingerprint(file)
        assert str(file) in str(found.value) and str(found.value).count(".\n") == 0
        return str(found.value)

    (tmp_path / "empty").touch()
    assert "is empty" in refused(tmp_path / "empty")
    assert "cannot be read" in refused(tmp_path / "nothing")
    assert "cannot be read" in refused(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be read" in refused(tmp_path / "loop")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert "not a regular file" in refused(tmp_path / "pipe")
    locked = tmp_path / "locked"
    locked.write_bytes(b"GGUF")
    locked.chmod(0)
    if not os.access(locked, os.R_OK):
        assert "permissions" in refused(locked)


def test_a_file_that_is_cut_while_it_is_read_is_one_sentence(
    file: Path, tiny: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    read = fingerprint.read_at

    def cut(stream: Any, at: int, count: int, path: Path) -> bytes:
        os.truncate(path, at + count // 2)
        return read(stream, at, count, path)

    other = directory(tmp_path / "other", tiny(LLAMA).path, tensors_of(tiny(LLAMA).path))
    for module in (file_fingerprints, fingerprint):
        monkeypatch.setattr(module, "read_at", cut)
    with pytest.raises(LocalspecError, match="ends too early"):
        file_fingerprint(file)
    with pytest.raises(LocalspecError, match="ends too early"):
        weights_fingerprint(other)


def test_files_are_recognised_under_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, files = Paths(tmp_path / "home"), [tmp_path / "a-1", tmp_path / "a-2"]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 99)
    held = fingerprints(files)
    others = [file.rename(tmp_path / f"b{file.name}") for file in files]
    assert recognised(others, held, paths) and not recognised(others[:1], held, paths)
    assert not recognised([tmp_path / "a-1", others[1]], held, paths)
    by_digest = {name: (99, digest) for name, digest in sha256_of(others, paths).items()}
    assert recognised(others, by_digest, paths), "as earlier versions noted them"
    flipped(others[0], 5)
    assert not recognised(others, held, paths) and not recognised(others, by_digest, paths)
