import json
import os
import re
import struct

import pytest
from checkpoints import CONFIG, safetensors, write_checkpoint
from each import each
from golden import wording

from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.families.table import ARCHITECTURES
from localspec.models.registry import cards, installed, resolve
from localspec.paths import Paths
from localspec.weights.checkpoint import inspect, revision


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "config").mkdir()
    return Paths(tmp_path)


@pytest.fixture
def model(tmp_path):
    return write_checkpoint(tmp_path / "model")


def refused(kind, call, *arguments) -> str:
    with pytest.raises(LocalspecError) as caught:
        call(*arguments)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    return message


def test_the_demo_is_registered(paths):
    card = resolve("demo", paths)
    assert (card.name, card.path.parts[-2:], card.license) == ("demo", ("localspec", "demo"), "Apache-2.0")
    assert card.description


def test_the_users_own_models(paths, model):
    shipped = list(cards(paths))
    paths.user_models_file.write_text('[mine]\npath = "../model"\ndescription = "My own."\n[demo]\npath = "../model"\n')
    assert inspect(resolve("mine", paths).path).parameters == 44
    assert resolve("mine", paths).description == "My own."
    assert inspect(resolve("demo", paths).path).parameters == 44
    assert list(cards(paths)) == [*shipped, "mine"]


def test_a_draft_model_given_by_path_is_searched_only_next_to_the_file(paths, model, monkeypatch):
    paths.user_models_file.write_text(
        '[mine]\npath = "../model"\ndraft = "./small"\n[far]\npath = "x"\ndraft = "~/small"\n'
    )
    monkeypatch.chdir(model.parent)
    monkeypatch.setenv("HOME", str(model.parent))
    (model.parent / "small").mkdir()
    assert resolve("mine", paths).draft == str(paths.user_models_file.parent / "small")
    assert resolve("far", paths).draft == str(model.parent / "small")


def test_a_draft_model_is_named_or_is_next_to_the_file(paths, model):
    assert resolve("demo", paths).draft == "demo-draft"
    told = '[mine]\npath = "../model"\ndraft = "../model"\n[other]\npath = "../model"\ndraft = "mine"\n'
    paths.user_models_file.write_text(told)
    assert resolve(resolve("mine", paths).draft, paths).path.samefile(model)
    assert resolve("other", paths).draft == "mine"
    (paths.user_models_file.parent / "mine").mkdir()
    assert resolve("other", paths).draft == "mine", "a name is never read as a directory next to the file"
    assert resolve(str(model), paths).draft == ""


def test_a_directory_by_its_path(paths, model, monkeypatch):
    assert resolve(str(model), paths).path == model
    monkeypatch.chdir(model.parent)
    assert resolve("model", paths).path == model
    assert resolve("./model/", paths).path == model
    monkeypatch.setenv("HOME", str(model.parent))
    assert resolve("~/model", paths).path == model


@each(
    "name, said",
    [
        ("dmo", wording("did_you_mean_demo_2")),
        ("qwen", "demo"),
        ("", "demo"),
        ("./nowhere", "directory"),
        ("/nowhere/at/all", "directory"),
        ("~nobody-here/x", "directory"),
        ("Qwen/Qwen3-0.6B", "localspec pull Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen3-0.6B@main", "localspec pull Qwen/Qwen3-0.6B"),
        ("a\0b", "no model"),
        ("x" * 5000, "no model"),
    ],
)
def test_what_is_not_here(paths, name, said):
    assert said in refused(NotHere, resolve, name, paths)


def test_a_directory_of_train_means_the_target_that_it_changed(paths, model):
    trained = model.parent / "trained"
    trained.mkdir()
    model.rename(trained / "target")
    assert resolve(str(trained), paths).path == trained / "target"


def test_a_path_among_packed_files_is_followed_to_the_imports(paths, model):
    paths.imports.parent.mkdir(parents=True, exist_ok=True)
    paths.imports.mkdir(exist_ok=True)
    model.rename(paths.imports / "model")
    assert resolve(str(paths.packed / "model"), paths).path == paths.imports / "model"
    (paths.packed / "model").mkdir(parents=True)
    assert resolve(str(paths.packed / "model"), paths).path == paths.packed / "model"


def test_a_directory_whose_name_is_not_utf_8_is_refused(paths, model):
    other = model.rename(os.fsdecode(os.fsencode(model) + b"\xff"))
    assert "is not UTF-8" in refused(LocalspecError, resolve, str(other), paths)


def test_a_pipe_is_not_a_model(paths, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(UsageMistake, resolve, str(tmp_path / "pipe"), paths)


def test_a_file_is_not_a_model(paths, model):
    assert wording("not_a_directory") in refused(NotHere, resolve, str(model / "model.safetensors"), paths)


def test_installed_reports_broken_models(paths, model):
    paths.user_models_file.write_text(f'[demo]\npath = "{model}"\n[gone]\npath = "nowhere"\n')
    found = {card.name: what for card, what in installed(paths)}
    assert found["demo"].parameters == 44 and isinstance(found["gone"], NotHere)


@each(
    "readme, license_",
    [
        ("---\nlicense: mit\n---\n# Title", "mit"),
        ('---\r\nlanguage: en\r\nlicense: "apache-2.0"\r\n---\r\n', "apache-2.0"),
        ("---\nlicense: other\nlicense_name: own\n---\n", "own"),
        ("---\nlicense: other\n---\n", "other"),
        ("# Title\nlicense: mit\n", None),
        ("---\nlicense:\n- mit\n---\n", None),
    ],
)
def test_the_license_of_a_directory(paths, model, readme, license_):
    (model / "LICENSE.txt").unlink(missing_ok=True)
    (model / "README.md").unlink(missing_ok=True)
    assert resolve(str(model), paths).license is None
    (model / "README.md").write_bytes(readme.encode())
    assert resolve(str(model), paths).license == license_
    (model / "LICENSE.txt").write_text("Do what you want.")
    assert resolve(str(model), paths).license == (license_ or "see LICENSE.txt")


@each("architecture", ARCHITECTURES)
def test_inspect(tmp_path, architecture):
    config = {**CONFIG, "architectures": [architecture], "model_type": ARCHITECTURES[architecture]}
    path = write_checkpoint(tmp_path / "m", config, {"w": [3, 5], "scalar": [], "model.embed_tokens.weight": [4, 2]})
    found = inspect(path)
    assert (found.architecture, found.parameters, found.embedding, found.context) == (architecture, 24, 8, 512)
    assert found.bytes == (path / "model.safetensors").stat().st_size
    assert found.weight_files == (path / "model.safetensors",)
    assert found.config["vocab_size"] == 32


def sharded(path, table):
    (path / "model.safetensors").unlink(missing_ok=True)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


def test_inspect_shards(model):
    sharded(model, {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"})
    (model / "one.safetensors").write_bytes(safetensors({"a": [2], "c": [3]}))
    assert "two.safetensors" in refused(NotHere, inspect, model)
    (model / "two.safetensors").write_bytes(safetensors({"b": [5]}))
    assert (inspect(model).parameters, inspect(model).embedding) == (10, 0)
    assert [file.name for file in inspect(model).weight_files] == ["one.safetensors", "two.safetensors"]


@each("name", ["../model.safetensors", "/etc/passwd", "pytorch_model.bin", "..", "a/b.safetensors", "x" * 5000])
def test_an_index_names_only_files_in_its_own_directory(model, name):
    sharded(model, {"a": name})
    assert repr(name)[:99] in refused(LocalspecError, inspect, model)


@each("content", ["[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "{"])
def test_broken_index(model, content):
    sharded(model, {})
    (model / "model.safetensors.index.json").write_text(content)
    assert "index.json" in refused(LocalspecError, inspect, model)


def test_no_model_there(tmp_path, model):
    assert str(tmp_path / "nowhere") in refused(NotHere, inspect, tmp_path / "nowhere")
    (model / "model.safetensors").unlink()
    assert "weights" in refused(NotHere, inspect, model)
    (model / "config.json").unlink()
    assert "config.json" in refused(NotHere, inspect, model)


@each("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_is_refused(tmp_path, name):
    model = write_checkpoint(tmp_path / "model")
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(b"\x80\x04N.")
    assert name in refused(LocalspecError, inspect, model)


@each("content", [b"", b"{", b"[1]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"a": 1,}'])
def test_broken_config(model, content):
    (model / "config.json").write_bytes(content)
    for call in (inspect, revision):
        assert "config.json" in refused(LocalspecError, call, model)


@each("named", [["GPT2LMHeadModel"], [], None, "LlamaForCausalLM", [3], ["MixtralForCausalLM"]])
def test_other_architectures_are_refused_by_name(model, named):
    (model / "config.json").write_text(json.dumps({"architectures": named}))
    message = refused(LocalspecError, inspect, model)
    families = {re.sub("For(CausalLM|ConditionalGeneration)$", "", name) for name in ARCHITECTURES}
    assert all(re.search(rf"\b{name}\b", message) for name in families)
    if isinstance(named, list) and named and isinstance(named[0], str):
        assert named[0] in message


def test_a_model_type_that_contradicts_the_architecture_is_refused(tmp_path):
    path = write_checkpoint(tmp_path / "m", {**CONFIG, "model_type": "gemma"})
    with pytest.raises(LocalspecError, match="'gemma'.*LlamaForCausalLM.*'llama'"):
        inspect(path)


def header(content: object, tensors: int = 0) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + bytes(tensors)


WHOLE = safetensors({"a": [10]})


@each(
    "content",
    [
        b"",
        b"1234",
        WHOLE[:-1],
        WHOLE + b"\0",
        WHOLE[:20],
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 0),
        header(b"not"),
        header(b"[]"),
        header(b"[" * 100_000),
        header({"a": 3}),
        header({"a": {"dtype": "F32", "shape": [1]}}),
        header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, 4),
        header({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, 4),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, 4),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, 4),
        header({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, 4),
    ],
)
def test_damaged_weights(model, content):
    (model / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refused(LocalspecError, inspect, model)


def test_revision_follows_what_makes_a_model_another(model):
    seen = {revision(model)}
    assert all(len(digits) == 40 and int(digits, 16) >= 0 for digits in seen)
    (model / "README.md").write_text("other words")
    assert revision(model) in seen
    for name, content in (
        ("config.json", json.dumps({**CONFIG, "vocab_size": 33}).encode()),
        ("tokenizer.json", b'{"a": 1}'),
        ("model.safetensors", safetensors({"a": [4, 11]})),
        ("model.safetensors", safetensors({"renamed": [4, 11]})),
    ):
        (model / name).write_bytes(content)
        assert revision(model) not in seen
        seen.add(revision(model))
    (model / "tokenizer.json").unlink()
    assert revision(model) not in seen
