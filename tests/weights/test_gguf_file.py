"""False headers of GGUF files: each ends in a sentence, and no memory is allocated for a size that only the file names."""

import os
import random
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from each import each
from gguf_files import ARRAY, TEXT, stored, text, value, written
from golden import matching, wording

from localspec.errors import LocalspecError
from localspec.weights import gguf_file
from localspec.weights.gguf_file import Texts, read
from localspec.weights.gguf_metadata import Metadata, is_utf8

METADATA = {"general.architecture": "llama", "llama.block_count": 3, "a.float": 0.5, "a.flag": True,
            "a.texts": ["one", "two"], "a.numbers": [1, 2, 3], "a.floats": [0.5, 1.5]}  # fmt: skip
WEIGHTS = np.linspace(-1, 1, 64 * 4, dtype=np.float32).reshape(4, 64)
TENSORS = {
    "one.weight": stored("F32", WEIGHTS),
    "two.weight": stored("Q8_0", WEIGHTS),
    "a.bias": stored("F32", WEIGHTS[0]),
}
SOUND = written(METADATA, TENSORS)
TABLE = SOUND.index(text("one.weight"))  # where the tensors' table begins


def refused(path: Path, content: bytes) -> str:
    """Return the sentence that a file ends in. Assert that almost no memory was allocated."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(LocalspecError) as error:
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20 + 20 * len(content)
    finally:
        tracemalloc.stop()
    sentence = str(error.value)
    assert "\n" not in sentence and sentence.endswith(".") and len(sentence) < 700
    return sentence


def test_a_sound_file_is_read_as_it_was_written(tmp_path):
    for version, alignment in ((2, 32), (3, 32), (3, 256)):
        metadata = METADATA if alignment == 32 else {**METADATA, "general.alignment": alignment}
        (tmp_path / "a.gguf").write_bytes(written(metadata, TENSORS, version, alignment))
        found = read(tmp_path / "a.gguf")
        said = {key: one.tolist() if hasattr(one, "tolist") else one for key, one in found.metadata.items()}
        assert said == metadata
        assert {name: (one.block.name, one.shape) for name, one in found.tensors.items()} == {
            name: (one.kind, one.shape) for name, one in TENSORS.items()
        }
        content = (tmp_path / "a.gguf").read_bytes()
        for name, place in found.tensors.items():
            assert place.start % alignment == 0
            assert content[place.start : place.start + place.bytes] == TENSORS[name].content


def test_every_beginning_of_a_file_is_refused(tmp_path):
    for length in (*range(0, TABLE + 120, 3), *range(TABLE + 120, len(SOUND), 97), len(SOUND) - 1):
        refused(tmp_path / "a.gguf", SOUND[:length])


def replaced(old: bytes, new: bytes) -> bytes:
    assert SOUND.count(old) == 1
    return SOUND.replace(old, new)


ENDLESS = struct.pack("<Q", 2**63 - 1)
HEAD = struct.pack("<4sI", b"GGUF", 3)
HOSTILE = {
    "another kind of gguf_file": b"PK\3\4" + SOUND[4:],
    "version 1": b"GGUF" + struct.pack("<I", 1) + SOUND[8:],
    "of the other byte order": b"GGUF" + struct.pack(">I", 3) + SOUND[8:],
    "2**63 tensors": HEAD + ENDLESS + SOUND[16:],
    "2**63 keys": HEAD + SOUND[8:16] + ENDLESS + SOUND[24:],
    "more tensors than there are": HEAD + struct.pack("<Q", 60000) + SOUND[16:],
    "more keys than there are": HEAD + SOUND[8:16] + struct.pack("<Q", 60000) + SOUND[24:],
    "a key of terabytes": replaced(text("a.float"), ENDLESS + b"a.float"),
    "a text of terabytes": replaced(text("llama"), ENDLESS + b"llama"),
    "an array of 2**61 texts": replaced(struct.pack("<IQ", TEXT, 2), struct.pack("<IQ", TEXT, 2**61)),
    "an array of 2**61 numbers": replaced(struct.pack("<IQ", 5, 3), struct.pack("<IQ", 5, 2**61)),
    "an array of arrays": replaced(struct.pack("<IQ", 5, 3), struct.pack("<IQ", ARRAY, 3)),
    "a value of no known type": replaced(text("a.flag") + value(True)[:4], text("a.flag") + struct.pack("<I", 99)),
    "a key twice": replaced(text("a.texts") + value(["one", "two"]), text("a.float") + value(["one", "two"])),
    "a tensor twice": replaced(text("two.weight"), text("one.weight")),
    "no dimensions": replaced(text("one.weight") + struct.pack("<I", 2), text("one.weight") + struct.pack("<I", 0)),
    "many dimensions": replaced(text("one.weight") + struct.pack("<I", 2), text("one.weight") + struct.pack("<I", 2**31)),
    "no rows": replaced(text("one.weight") + struct.pack("<IQQ", 2, 64, 4), text("one.weight") + struct.pack("<IQQ", 2, 64, 0)),
    "2**62 rows": replaced(text("one.weight") + struct.pack("<IQQ", 2, 64, 4), text("one.weight") + struct.pack("<IQQ", 2, 64, 2**62)),
    "rows whose product is 2**64": replaced(text("one.weight") + struct.pack("<IQQ", 2, 64, 4), text("one.weight") + struct.pack("<IQQ", 2, 2**32, 2**32)),
    "half a block": replaced(text("two.weight") + struct.pack("<IQQ", 2, 64, 4), text("two.weight") + struct.pack("<IQQ", 2, 48, 4)),
    "no type": replaced(text("two.weight") + struct.pack("<IQQI", 2, 64, 4, 8), text("two.weight") + struct.pack("<IQQI", 2, 64, 4, 77)),
    "an offset beyond": replaced(text("one.weight") + struct.pack("<IQQIQ", 2, 64, 4, 0, 0), text("one.weight") + struct.pack("<IQQIQ", 2, 64, 4, 0, 2**63)),
    "an offset between": replaced(text("one.weight") + struct.pack("<IQQIQ", 2, 64, 4, 0, 0), text("one.weight") + struct.pack("<IQQIQ", 2, 64, 4, 0, 8)),
    "tensors in one place": replaced(text("two.weight") + struct.pack("<IQQIQ", 2, 64, 4, 8, 1024), text("two.weight") + struct.pack("<IQQIQ", 2, 64, 4, 8, 992)),
    "an alignment of none": written({**METADATA, "general.alignment": 0}, TENSORS),
    "an alignment of 33": written({**METADATA, "general.alignment": 33}, TENSORS),
    "an alignment of 2**31": written({**METADATA, "general.alignment": 2**31}, TENSORS),
    "an alignment that is a text": written({**METADATA, "general.alignment": "32"}, TENSORS),
}  # fmt: skip


def test_texts_that_are_not_utf8_are_read_and_marked(tmp_path):
    latin = replaced(text("llama"), struct.pack("<Q", 5) + b"Andr\xe9")
    (tmp_path / "a.gguf").write_bytes(latin.replace(text("two"), struct.pack("<Q", 3) + b"t\xffo"))
    found = Metadata(read(tmp_path / "a.gguf").metadata)
    assert found.label("general.architecture") == "Andr\ufffd"
    with pytest.raises(ValueError, match="general.architecture"):
        found.text("general.architecture")
    assert [is_utf8(one) for one in found.texts("a.texts") or []] == [True, False]


@pytest.mark.slow
def test_an_array_of_texts_takes_little_more_memory_than_in_the_file(tmp_path):
    (tmp_path / "a.gguf").write_bytes(written({"a": [f"{n} {n + 1}" for n in range(100_000)]}, {}))
    tracemalloc.start()
    try:
        found = read(tmp_path / "a.gguf").metadata["a"]
        assert tracemalloc.get_traced_memory()[1] < 3 * (tmp_path / "a.gguf").stat().st_size
    finally:
        tracemalloc.stop()
    assert isinstance(found, Texts) and len(found) == 100_000 and found.tolist()[-1] == "99999 100000"


def test_texts_are_limited_in_all_arrays_together(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "_MOST_TEXTS", 1000)
    (tmp_path / "a.gguf").write_bytes(written({"a": ["x"] * 600, "b": ["y"] * 400}, {}))
    assert len(read(tmp_path / "a.gguf").metadata) == 2
    assert "an array of 401 texts" in refused(tmp_path / "a.gguf", written({"a": ["x"] * 600, "b": ["y"] * 401}, {}))


@each("name", HOSTILE)
def test_what_cannot_be_is_refused(tmp_path, name):
    refused(tmp_path / "a.gguf", HOSTILE[name])


def test_a_type_that_is_not_read_is_called_by_its_name(tmp_path):
    known = text("two.weight") + struct.pack("<IQQI", 2, 64, 4, 8)
    sentence = refused(tmp_path / "a.gguf", replaced(known, known[:-4] + struct.pack("<I", 15)))
    assert "Q8_K" in sentence and "Q4_K" in sentence


@pytest.mark.slow
def test_chance_in_a_header_is_a_sentence_or_a_file(tmp_path):
    chance, path, read_again = random.Random(19), tmp_path / "a.gguf", 0
    end = SOUND.index(TENSORS["one.weight"].content)
    for _ in range(1000):
        content = bytearray(SOUND)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(4, end)
            what = chance.random()
            if what < 0.7:
                content[at] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
            elif what < 0.85:
                del content[at : at + chance.randrange(1, 9)]
            else:
                content[at:at] = chance.randbytes(chance.randrange(1, 9))
        path.write_bytes(content)
        with suppress(LocalspecError):
            found = read(path)
            read_again += 1
            assert all(one.start > 0 and one.start + one.bytes <= len(content) for one in found.tensors.values())
    assert 10 < read_again < 990


def test_no_file_is_waited_for(tmp_path):
    with pytest.raises(LocalspecError, match=matching("not_a_file")):
        read(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(LocalspecError, match=matching("not_a_file")):
            read(tmp_path / "pipe.gguf")


@each("offset", [1025, 1056, 2**40, 992])
def test_a_wrong_offset_is_named(tmp_path, offset):
    """Even one that is aligned and within the file: weights from a wrong place might be NaN, or give nonsense."""
    old, new = (struct.pack("<IQQIQ", 2, 64, 4, 8, at) for at in (1024, offset))
    said = refused(tmp_path / "a.gguf", replaced(text("two.weight") + old, text("two.weight") + new) + bytes(4096))
    assert "'two.weight'" in said and wording("its_offset_is_wrong") in said
