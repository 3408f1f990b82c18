"""Files from others: endless, deeply nested or senseless ones are refused with an error, without waiting."""

import errno
import json
import os
import struct
import tomllib
from pathlib import Path

import pytest
from each import each
from golden import matching, wording

from localspec.cli.texts import piped_text
from localspec.config import read_toml
from localspec.errors import LocalspecError, UsageMistake
from localspec.families import generation_config
from localspec.families.generation_config import read_generation_config
from localspec.models import default_draft, tokenizer
from localspec.models.tokenizer import Tokenizer
from localspec.outside_files import parse_json, parse_toml, read_bytes
from localspec.training.distill import saved_replies
from localspec.training.examples import read_examples
from localspec.weights.checkpoint import license_of, tensor_headers

fifos = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs mkfifo")
zeros = pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")


def test_a_file_up_to_its_limit(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bytes(file, 5) == b"12345"
    with pytest.raises(OSError, match=matching("longer_than")) as caught:
        read_bytes(file, 4)
    assert caught.value.filename == str(file)


@fifos
def test_pipes_only_where_one_may_be(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=matching("no_regular_file")):
        read_bytes(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    os.write(writer, b"piped")
    again = os.open(f"/dev/fd/{reader}", os.O_RDONLY | os.O_NONBLOCK) if os.path.exists("/dev/fd") else reader
    os.close(writer)
    assert os.read(again, 9) == b"piped"
    for descriptor in {reader, again}:
        os.close(descriptor)


@zeros
@each("pipe", [False, True])
def test_devices_have_no_end(pipe):
    with pytest.raises(OSError, match=matching("no_regular_file")):
        read_bytes(Path("/dev/zero"), pipe=pipe)


def test_directories(tmp_path):
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


@each("content", ['{"a":' * 100_000, "[" * 100_000, "9" * 101, "1" * 10_000, b"\xff", "{"])
def test_invalid_json(content):
    with pytest.raises(ValueError, match="."):
        parse_json(content)


def test_json():
    assert parse_json(b'\xef\xbb\xbf{"a": [12345678901234567890, -1, 1.5, "x"]}') == {
        "a": [12345678901234567890, -1, 1.5, "x"]
    }
    assert parse_json("9" * 100) == 10**100 - 1


@each(
    "source",
    [
        "a." * 100_000 + "b = 1",
        "[" + "a." * 100_000 + "b]",
        'x = {"a" . ' + "'b'. " * 100_000 + "c = 1}",
        "x = " + "[" * 100_000,
        "x = " + "9" * 10_000,
    ],
)
def test_toml_that_would_take_forever(tmp_path, source):
    """For such a key tomllib takes minutes, quadratic in its dots."""
    with pytest.raises(ValueError, match="dots|deeply|too many digits"):
        parse_toml(source.encode())
    file = tmp_path / "config.toml"
    file.write_text(source)
    with pytest.raises(UsageMistake, match=r"config\.toml"):
        read_toml(file)


def test_toml_with_many_dots_in_its_texts():
    source = f'a.b.c = "{"x. " * 900}"\nd = """\n{"... " * 1000}\n{"Well. " * 500}\n"""\n'
    assert parse_toml(source.encode()) == tomllib.loads(source)


@fifos
def test_a_settings_file_that_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "config.toml")
    with pytest.raises(UsageMistake, match=matching("no_regular_file")):
        read_toml(tmp_path / "config.toml")
    (tmp_path / "models.toml").symlink_to("/dev/zero")
    with pytest.raises(UsageMistake, match=matching("no_regular_file")):
        read_toml(tmp_path / "models.toml")


@fifos
def test_files_of_a_model_that_are_pipes(tmp_path):
    for name in ("README.md", "generation_config.json"):
        os.mkfifo(tmp_path / name)
    assert license_of(tmp_path) is None
    assert read_generation_config(tmp_path) == {}


@each(
    "number, said",
    [
        (errno.EACCES, wording("cannot_read_permission_denied_2")),
        (errno.EIO, "cannot be read (Input/output error); check the file and its permissions, then try again."),
        (errno.EMFILE, wording("more_files_can_opened_too_many_2")),
    ],
)
@each("name", ["generation_config.json", "tokenizer.json"])
def test_a_file_of_a_model_that_may_not_be_read_is_not_to_be_fetched_again(tmp_path, monkeypatch, name, number, said):
    def refuse(file, *_, **named):
        raise OSError(number, os.strerror(number), str(file))

    (tmp_path / name).write_text("{}")
    read = {"generation_config.json": [read_generation_config], "tokenizer.json": [Tokenizer.open, own_tokens]}
    for module in (generation_config, default_draft, tokenizer):
        monkeypatch.setattr(module, "read_bytes", refuse)
    for one in read[name]:
        with pytest.raises(LocalspecError) as caught:
            one(tmp_path)
        assert said in str(caught.value) and "fetch" not in str(caught.value)
        assert number == errno.EMFILE or str(tmp_path / name) in str(caught.value)


def own_tokens(path):
    return default_draft.same_file(path, path)


@each("content", ['{"a":' * 100_000, '{"temperature": ' + "9" * 10_000 + "}"])
def test_a_generation_config_without_end(tmp_path, content):
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(LocalspecError, match=matching("generation_config_json_cannot")) as caught:
        read_generation_config(tmp_path)
    assert len(str(caught.value)) < 1000


def test_a_tensor_of_very_many_dimensions(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1] * 100_000, "data_offsets": [0, 4]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + b"0000")
    with pytest.raises(LocalspecError, match=matching("header_is_damaged")) as caught:
        tensor_headers(file)
    assert len(str(caught.value)) < 1000


@zeros
def test_where_distill_cannot_continue_from():
    with pytest.raises(UsageMistake, match=matching("no_regular_file")):
        saved_replies(Path("/dev/full" if os.path.exists("/dev/full") else "/dev/zero"))


@zeros
def test_texts_without_end(tmp_path):
    with pytest.raises(UsageMistake, match=matching("no_regular_file")):
        read_examples([Path("/dev/zero")])


@zeros
def test_standard_input_without_end(monkeypatch):
    monkeypatch.setattr("localspec.cli.texts.LONGEST", 1000)
    with open("/dev/zero") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        with pytest.raises(UsageMistake, match=matching("standard_input_is_longer_than")):
            piped_text()
