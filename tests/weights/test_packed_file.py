"""Packed files: they are read as they were written, and no damage goes unnoticed or crashes."""

import errno
import hashlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from clocks import PATIENCE
from command import ROOT
from each import each
from golden import matching

from localspec.errors import LocalspecError
from localspec.weights import packed_file
from localspec.weights.opened import PackedModel, write
from localspec.weights.packed_file import (
    PARTIAL,
    CannotRead,
    DamagedFile,
    Header,
    Origin,
    Tensor,
    UnreadableFormat,
    read,
)

ORIGIN = Origin("a model", "0" * 40, "MIT", "org/repo", "1" * 40, {"model.safetensors": (123, "")})
TENSORS = {
    "embed_tokens": Tensor("rows", "bf16", 5, 48),
    "layers.0.qkv_proj.weight": Tensor("panels", "int8", 70, 48, 32),
    "layers.0.input_layernorm": Tensor("rows", "fp32", 1, 48),
    "lm_head.weight": Tensor("panels", "int8", 33, 100, 32),
    "layers.0.o_proj.weight 0": Tensor("blocks", "Q5_0", 33, 96),
    "layers.0.o_proj.weight 1": Tensor("blocks", "Q4_K", 16, 256),
}
TEXTS = {"config.json": '{"a": "ä"}'.encode(), "chat_template.jinja": b"", "tokenizer.json": bytes(range(256)) * 3}


@pytest.fixture(params=[2**24, 1000], ids=["whole", "pieces"])
def written(request, tmp_path, monkeypatch):
    monkeypatch.setattr(packed_file, "PIECE", request.param)
    return write_one(tmp_path / "model.packed")


def planned():
    return Header.plan(ORIGIN, "int8", 12345, TENSORS, {name: len(text) for name, text in TEXTS.items()})


def content(name, section):
    return TEXTS[name] if section.tensor is None else random.Random(name).randbytes(section.bytes)


def fill(name, section, first, into):
    into[:] = content(name, section)[first : first + len(into)]


def write_one(file, fill=fill):
    write(file, planned(), fill, 2, lambda done, total: None)
    return file


def test_what_is_written_is_read_back(written):
    found, mapped = read(written), PackedModel.open(written)
    assert found.header.origin == ORIGIN and found.header.packing == "int8" and found.header.parameters == 12345
    for name, section in found.header.sections.items():
        assert (found.start + section.offset) % 4096 == 0
        assert bytes(mapped.view(name)) == content(name, section), name
    assert {name: section.tensor for name, section in found.header.tensors.items()} == TENSORS
    assert {name: found.text(name) for name in TEXTS} == mapped.texts == TEXTS
    assert found.verify() == []
    assert [file.name for file in written.parent.iterdir()] == ["model.packed"]
    if os.name == "posix":
        assert written.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.name != "posix", reason="modes as on POSIX")
def test_its_owner_can_read_it_whatever_the_umask(tmp_path):
    before = os.umask(0o477)
    try:
        write_one(tmp_path / "model.packed")
    finally:
        os.umask(before)
    assert (tmp_path / "model.packed").stat().st_mode & 0o777 == 0o600


def test_memory_holds_what_a_file_would():
    held = PackedModel.in_memory(planned(), fill, 2, lambda done, total: None)
    for name, section in planned().sections.items():
        assert bytes(held.view(name)) == content(name, section), name
    assert held.texts == TEXTS


def test_progress_ends_with_all_bytes(tmp_path):
    seen = []
    write(tmp_path / "model.packed", planned(), fill, 2, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1][0] == sum(section.bytes for section in planned().sections.values())


def test_a_file_that_another_process_replaced_is_named_without_its_path(tmp_path):
    found = read(write_one(tmp_path / "model.packed"))
    found.path.unlink()
    for act in (lambda: read(found.path), lambda: found.text("config.json")):
        with pytest.raises(CannotRead, match=r"^model\.packed cannot be read: another process .*; try again\.$"):
            act()


@pytest.mark.slow
def test_a_file_cut_short_or_longer_by_any_number_of_bytes_is_damaged(tmp_path):
    file = write_one(tmp_path / "model.packed")
    whole = file.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(
            DamagedFile, match=f"{matching('model_packed_is_damaged')}.*{matching('it_has_to_be_made_again')}"
        ):
            read(file)
    file.write_bytes(whole + b"\0")
    with pytest.raises(DamagedFile, match=f"{len(whole) + 1} bytes instead of {len(whole)}"):
        PackedModel.open(file)


@pytest.mark.slow
def test_every_flipped_byte_is_noticed(written):
    """Before the sections it is noticed at each load, in a text when that is read, in a weight by `verify`."""
    whole, found = bytearray(written.read_bytes()), read(written)
    belongs = {
        found.start + section.offset + at: name
        for name, section in found.header.sections.items() for at in range(section.bytes)
    }  # fmt: skip
    (length,) = struct.unpack("<Q", whole[8:16])
    for at in [*range(0, 48 + length, 3), *random.Random(0).sample(sorted(belongs), 60)]:
        whole[at] ^= 1 + at % 255
        written.write_bytes(whole)
        if at < 48 + length:
            with pytest.raises(DamagedFile):
                read(written)
        else:
            name = belongs[at]
            assert read(written).verify() == [f"{name} in model.packed is damaged"]
            if name in TEXTS:
                with pytest.raises(DamagedFile, match=name):
                    _ = PackedModel.open(written).texts
                with pytest.raises(DamagedFile, match=name):
                    read(written).text(name)
        whole[at] ^= 1 + at % 255


# -- invented headers --------------------------------------------------------------------------------------------------


def with_header(file, change):
    """Return the file with another header, whose digest is correct."""
    whole = file.read_bytes()
    (length,) = struct.unpack("<Q", whole[8:16])
    header = json.loads(whole[48 : 48 + length])
    header = change(header) or header
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = whole[:8] + struct.pack("<Q", len(text)) + hashlib.sha256(text).digest() + text
    file.write_bytes(start.ljust(-(-len(start) // 4096) * 4096, b"\0") + whole[-(-(48 + length) // 4096) * 4096 :])
    return file


def section(**values):
    return lambda header: header["tensors"]["lm_head.weight"].update(values)


def tensor(**values):
    return lambda header: header["tensors"]["lm_head.weight"]["tensor"].update(values)


def block(**values):
    return lambda header: header["tensors"]["layers.0.o_proj.weight 0"]["tensor"].update(values)


def top(**values):
    return lambda header: header.update(values)


HOSTILE = {
    "no JSON": lambda header: b"{",
    "no object": lambda header: b"[]",
    "not UTF-8": lambda header: b"\xff\xfe",
    "too deep": lambda header: b"[" * 100_000,
    "a number without end": lambda header: b'{"format": ' + b"9" * 10_000 + b"}",
    "nothing": lambda header: b"{}",
    "offset outside": section(offset=2**40),
    "offset below zero": section(offset=-4096),
    "offset in between": section(offset=5),
    "offset of a truth": section(offset=True),
    "offset that overlaps": section(offset=0),
    "offset with a fraction": section(offset=4096.0),
    "offset without end": section(offset=float("inf")),
    "more bytes": section(bytes=2**50),
    "bytes below zero": section(bytes=-1),
    "no piece": section(piece=0),
    "tiny pieces": lambda header: header["texts"]["tokenizer.json"].update(bytes=2**40, piece=1),
    "no digest": section(digest=""),
    "a malformed digest": section(digest="g" * 64),
    "digest a list": section(digest=["0" * 64]),
    "no tensor": section(tensor=None),
    "tensor a list": section(tensor=[]),
    "a tensor in a text": lambda header: header["texts"]["config.json"].update(tensor=header["tensors"]["embed_tokens"]["tensor"]),
    "huge sizes": tensor(out=2**62, inputs=2**62),
    "out below zero": tensor(out=-33),
    "no inputs": tensor(inputs=0),
    "out a text": tensor(out="33"),
    "another size": tensor(out=1000),
    "no such format": tensor(format="int2"),
    "format a list": tensor(format=["int4"]),
    "no such layout": tensor(layout="columns"),
    "packed rows": tensor(layout="rows"),
    "a group of seven": tensor(group=7),
    "no group": tensor(group=0),
    "a dense group": lambda header: header["tensors"]["embed_tokens"]["tensor"].update(group=32),
    "another key": tensor(more=1),
    "no such type of blocks": block(format="Q9_9"),
    "int8 in blocks": block(format="int8"),
    "blocks in panels": block(layout="panels"),
    "blocks in rows": block(layout="rows"),
    "blocks with a group": block(group=32),
    "blocks that do not fill a row": block(inputs=95),
    "large blocks that do not fill a row": block(format="Q4_K"),
    "blocks of another type": block(format="Q8_0"),
    "more rows of blocks": block(out=49),
    "blocks in a format that had none": top(format=1),
    "tensors a list": top(tensors=[]),
    "texts a list": top(texts=[[1]]),
    "packing a number": top(packing=8),
    "parameters a text": top(parameters="many"),
    "no origin": top(origin=None),
    "another origin": lambda header: header["origin"].update(more=1),
    "no name": lambda header: header["origin"].update(name=""),
    "a revision elsewhere": lambda header: header["origin"].update(revision="../../../etc/x"),
    "a revision of another length": lambda header: header["origin"].update(revision="0" * 39),
    "a name that is no text": lambda header: header["origin"].update(name="\ud800"),
    "a license that is no text": lambda header: header["origin"].update(license="\ud800"),
    "a tensor's name that is no text": lambda header: header["texts"].update({"\udfff": header["texts"].pop("config.json")}),
    "revision a number": lambda header: header["origin"].update(revision=7),
    "files a list": lambda header: header["origin"].update(files=[1]),
    "files of texts": lambda header: header["origin"].update(files={"a": "b"}),
    "license a list": lambda header: header["origin"].update(license=["MIT"]),
    "format below zero": top(format=-1),
    "format a text": top(format="1"),
    "format none": top(format=None),
    "a name twice": lambda header: header["texts"].update(embed_tokens=header["texts"]["config.json"]),
}  # fmt: skip


@pytest.mark.slow
@each("name", ["sound", *HOSTILE])
def test_a_header_that_makes_no_sense_is_a_sentence(tmp_path, name):
    if name == "sound":
        file = with_header(write_one(tmp_path / "model.packed"), top(packing="int4"))
        assert read(file).header.packing == "int4" and read(file).verify() == []
        return
    file = with_header(write_one(tmp_path / "model.packed"), HOSTILE[name])
    with pytest.raises((DamagedFile, UnreadableFormat), match=r"model\.packed"):
        read(file)


def test_a_text_larger_than_any_is_not_read(tmp_path):
    """A sparse file takes no room on the disk, but would take all memory."""
    file, size = tmp_path / "model.packed", packed_file.TEXT_LIMIT + 1
    header = Header.plan(ORIGIN, "int8", 12345, {}, {"chat_template.jinja": size})
    file.write_bytes(header.encoded())
    os.truncate(file, len(header.encoded()) + header.section_bytes)
    with pytest.raises(DamagedFile, match=matching("text_larger_than_any_model")):
        read(file)


@each(
    "tensor, change",
    [
        (Tensor("panels", "int8", 40, 64, 64), None),  # which is sound
        (Tensor("panels", "int8", 40, 64, 16), {}),
        (Tensor("panels", "fp32", 40, 64, 32), {}),
        (Tensor("rows", "int8", 40, 64, 32), {}),
        (Tensor("panels", "int8", 40, 64, 64), {"offset": 64}),
        (Tensor("panels", "int8", 32 * 2**9, 64, 64), {"piece": 1}),
    ],
)
def test_a_file_as_long_as_it_says_may_make_no_sense_all_the_same(tmp_path, tensor, change):
    header = Header.plan(ORIGIN, "int8", 12345, {"lm_head.weight": tensor}, {})
    section = replace(header.tensors["lm_head.weight"], **(change or {}))
    header, file = replace(header, tensors={"lm_head.weight": section}), tmp_path / "model.packed"
    file.write_bytes(header.encoded())
    os.truncate(file, len(header.encoded()) + header.section_bytes)
    if change is None:
        assert read(file).header == header
        return
    with pytest.raises(DamagedFile, match=matching("its_header_makes_no_sense")):
        read(file)


@each("key", ["format", "layout"])
def test_a_newer_file_is_distinguished_from_a_damaged_one(tmp_path, key):
    file = with_header(write_one(tmp_path / "model.packed"), top(**{key: 7}))
    with pytest.raises(UnreadableFormat, match=matching("n7_which_version_localspec_cannot", key=key)):
        PackedModel.open(file)


def test_int4_of_the_first_format_is_refused_and_stays(tmp_path):
    file = with_header(write_one(tmp_path / "model.packed"), top(packing="int4", format=1))
    before = file.read_bytes()
    with pytest.raises(UnreadableFormat, match=r"its format is 1, which this version of localspec does not know"):
        read(file)
    assert file.read_bytes() == before


@each("length", [0, 1, 2**26 + 1, 2**40, 2**64 - 1])
def test_a_length_of_a_header_that_cannot_be_is_damage(tmp_path, length):
    file = write_one(tmp_path / "model.packed")
    with file.open("r+b") as stream:
        stream.seek(8)
        stream.write(struct.pack("<Q", length))
    with pytest.raises(DamagedFile):
        read(file)


def test_what_is_no_file_is_a_sentence(tmp_path):
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.packed")  # opening it waits for a writer
    for path in (tmp_path, tmp_path / "none.packed", tmp_path / "pipe.packed"):
        with pytest.raises(LocalspecError, match=matching("cannot_be_read")):
            read(path)


# -- whole or not at all -----------------------------------------------------------------------------------------------


class Trouble(Exception):
    pass


@each("error", [Trouble, KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
@each("threads", [1, 3])
def test_what_goes_wrong_while_it_is_filled_leaves_nothing_behind(tmp_path, error, threads):
    def fails(name, section, first, into):
        if name == "lm_head.weight":
            raise error
        fill(name, section, first, into)

    with pytest.raises(error if isinstance(error, type) else type(error)):
        write(tmp_path / "model.packed", planned(), fails, threads, lambda done, total: None)
    assert list(tmp_path.iterdir()) == []


def test_the_former_file_stays_until_the_new_one_is_whole(tmp_path):
    file = write_one(tmp_path / "model.packed")
    before = file.read_bytes()

    def fails(name, section, first, into):
        raise Trouble

    with pytest.raises(Trouble):
        write_one(file, fails)
    assert file.read_bytes() == before


IN_A_PROCESS = """
import os, signal, sys
sys.path[:0] = [{tests!r}, {native!r}]
from pathlib import Path
from test_packed_file import fill, write_one

def dies(name, section, first, into):
    if name == {last!r}:
        {how}
    fill(name, section, first, into)

{before}
write_one(Path(sys.argv[1]), dies)
"""


def run(file, how="pass", before=""):
    code = IN_A_PROCESS.format(
        tests=str(ROOT / "tests"), native=str(Path(__file__).parent), last=[*TENSORS][-1], how=how, before=before
    )
    return subprocess.run(
        [sys.executable, "-c", code, file], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_process_that_is_killed_leaves_no_file_that_looks_finished(tmp_path):
    file = tmp_path / "model.packed"
    assert run(file, "os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL
    assert [left.name for left in tmp_path.iterdir()] == ["model.packed" + PARTIAL]
    with pytest.raises(DamagedFile):  # not even under its own name
        read(tmp_path / ("model.packed" + PARTIAL))
    assert run(file).returncode == 0
    assert read(file).verify() == [] and [left.name for left in tmp_path.iterdir()] == ["model.packed"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="limits")
def test_a_real_limit_of_the_system_ends_in_its_error_and_leaves_nothing(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    done = run(tmp_path / "model.packed", before=limit)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_digests_are_of_what_was_written_and_no_placeholders(tmp_path):
    header = read(write_one(tmp_path / "model.packed")).header
    assert len({one.digest for one in header.sections.values()}) == len(header.sections)
    assert replace(header, tensors={}, texts={}) == replace(planned(), tensors={}, texts={})
