"""Which small model drafts for a target where none is named, and which are skipped with a message."""

import json
import os
from pathlib import Path

import pytest
from checkpoints import CONFIG, change_config, write_checkpoint
from each import each
from golden import matching, wording

from localspec.errors import LocalspecError, UsageMistake
from localspec.models import default_draft as module
from localspec.models.default_draft import compare_stored, default_draft, too_large_to_draft
from localspec.models.model import model_of
from localspec.models.registry import TargetCard, known, resolve
from localspec.paths import Paths
from localspec.weights.checkpoint import inspect

WORDS = {"a": 0, "b": 1, "c": 2}
TARGET = {"w": [400]}  # numbers of a target, and of small models
HALF, TENTH = {"w": [200]}, {"w": [40]}


def write(path: Path, shapes: dict, vocabulary: dict | list = WORDS, added: tuple = (), **config) -> Path:
    write_checkpoint(path, {**CONFIG, **config}, shapes)
    told = {"added_tokens": [{"id": index, "content": token} for token, index in added]}
    (path / "tokenizer.json").write_text(json.dumps({**told, "model": {"vocab": vocabulary}}))
    return path


@pytest.fixture
def target(tmp_path) -> Path:
    return write(tmp_path / "target", TARGET)


def register(home: Path, **paths: Path) -> Paths:
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "models.toml").write_text("".join(f'[{name}]\npath = "{at}"\n' for name, at in paths.items()))
    return Paths(home)


def found(card: TargetCard, home: Path) -> tuple[str, str] | None:
    own, passed_over = default_draft(card, known(Paths(home)))
    assert passed_over == ""
    return own and (own.card.name, own.origin)


def passed_over(target: Path, home: Path) -> str:
    own, said = default_draft(resolve(str(target), Paths(home)), known(Paths(home)))
    assert own is None
    return said


def test_most_models_have_no_draft_model(target, tmp_path):
    assert found(resolve(str(target)), tmp_path) is None
    (target / "draft").mkdir()
    assert found(resolve(str(target)), tmp_path) is None, "an empty directory is nobody's mistake"


def test_one_in_the_targets_directory_is_its_own(target, tmp_path):
    draft = write(target / "draft", TENTH)
    card = resolve(str(target))
    assert found(card, tmp_path) == (str(draft), wording("model_s_directory_draft"))
    model = model_of(card)
    assert model.small is not None and model.small.card == resolve(str(draft)), "as --drafter draft_model:DIR finds it"
    assert (model.small_here, model.small_named, model.small.small) == (True, False, None)


def test_of_those_installed_the_smallest_that_is_much_smaller(target, tmp_path):
    home, card = register(tmp_path, half=write(tmp_path / "half", HALF), own=target), resolve(str(target))
    assert found(card, tmp_path) == ("half", wording("installed_of_the_same_tokenizer"))
    register(tmp_path, half=tmp_path / "half", tenth=write(tmp_path / "tenth", TENTH), own=target)
    assert found(card, tmp_path) == ("tenth", wording("installed_of_the_same_tokenizer"))
    write(tmp_path / "half", {"w": [201]})
    write(tmp_path / "tenth", TENTH, {**WORDS, "d": 3})
    assert found(card, tmp_path) is None, "one is too large and the other has a word more"
    assert too_large_to_draft(card, known(home)) == wording("half_is_too_large_to_draft", target=card.name)
    write(tmp_path / "half", {"w": [399]})
    assert too_large_to_draft(card, known(home)) == "", "a model of the same size is not meant to draft"
    assert model_of(card).small is None and home.user_models_file.is_file()


@pytest.mark.slow
def test_what_is_named_comes_first_and_what_is_in_the_directory_second(target, tmp_path):
    write(tmp_path / "named", TENTH)
    write(tmp_path / "half", HALF)
    register(tmp_path, named=tmp_path / "named", half=tmp_path / "half")
    paths = Paths(tmp_path)
    toml = paths.user_models_file
    toml.write_text(toml.read_text() + f'[mine]\npath = "{target}"\ndraft = "named"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(tmp_path))
        assert found(resolve("mine"), tmp_path) == ("named", wording("named_in_models_toml"))
        write(target / "draft", TENTH)
        assert found(resolve("mine"), tmp_path) == ("named", wording("named_in_models_toml"))
        assert model_of(resolve("mine")).small_named
        (tmp_path / "named" / "model.safetensors").unlink()
        own, said = default_draft(resolve("mine"), known(paths))
        assert own is not None and own.card.path == target / "draft" and wording("named_in_models_toml") in said
    assert found(resolve(str(target)), tmp_path) == (str(target / "draft"), wording("model_s_directory_draft"))


def test_one_that_is_named_and_not_here_is_to_be_fetched_unless_another_is_here(target, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    paths = register(tmp_path, mine=target)
    paths.user_models_file.write_text(paths.user_models_file.read_text() + 'draft = "far"\n[far]\nrepo = "org/far"\n')
    own, _ = default_draft(resolve("mine"), known(paths))
    assert own is not None and own.named and not own.card.here
    assert not model_of(resolve("mine")).small_here
    write(target / "draft", TENTH)
    assert found(resolve("mine"), tmp_path) == (str(target / "draft"), wording("model_s_directory_draft"))


def test_another_file_with_the_same_tokens_will_do(target, tmp_path):
    draft = write(target / "draft", TENTH, {"c": 2, "b": 1, "a": 0}, (("d", 3),))
    assert (draft / "tokenizer.json").read_bytes() != (target / "tokenizer.json").read_bytes()
    assert found(resolve(str(target)), tmp_path) is not None
    write(target / "draft", TENTH, [["a", 0.0], ["b", -1.0], ["c", -2.0]])  # of a unigram model
    assert found(resolve(str(target)), tmp_path) is not None


def test_a_mark_that_both_list_and_the_small_one_has_no_row_for_is_no_trouble(target, tmp_path):
    """Like the mark for pictures in Gemma 3's tokenizers; a mark that text can contain would matter."""
    for path, rows in ((target, 4), (write(target / "draft", TENTH), 3)):
        told = json.loads((path / "tokenizer.json").read_text())
        told["added_tokens"] = [{"id": 3, "content": "<picture>", "special": path == target or None}]
        (path / "tokenizer.json").write_text(json.dumps(told))
        change_config(path, vocab_size=rows)
    assert found(resolve(str(target)), tmp_path) is not None
    told["added_tokens"] = []
    (target / "draft" / "tokenizer.json").write_text(json.dumps(told))
    assert wording("gives_ids_up_to_3") in passed_over(target, tmp_path)


@each(
    "draft, said",
    [
        ({"vocabulary": {"b": 0, "a": 1, "c": 2}}, "its token 0 is 'b', and the target's is 'a'"),
        ({"added": (("x", 1),)}, "its token 1 is 'x'"),
        ({"vocab_size": 2}, wording("knows_2_tokens_target_s_tokenizer")),
        ({"vocab_size": "many"}, "does not give the sizes of"),
        ({"num_hidden_layers": None}, "does not give the sizes of"),
        ({"architectures": ["Evil\x1b[2J"]}, "not supported"),
        ({"vocabulary": {}}, "lists no tokens"),
        ({"vocabulary": {"a": "0"}}, "lists no tokens"),
        ({"vocabulary": [["a"]]}, "lists no tokens"),
        ({"vocabulary": [7]}, "lists no tokens"),
    ],
)
def test_an_alien_is_passed_over_with_a_sentence(target, tmp_path, draft, said):
    write(target / "draft", TENTH, **draft)
    told = passed_over(target, tmp_path)
    assert told.startswith(wording("model_s_directory_draft_does", target=target / "draft", target_2=target))
    assert said in told and "\n" not in told


@pytest.mark.slow
@each(
    "name, content",
    [
        ("config.json", "[]"), ("config.json", "{" * 10**5), ("config.json", "\xff"),
        ("tokenizer.json", "[" * 10**5), ("tokenizer.json", '{"model": 5}'), ("tokenizer.json", '"'),
        ("tokenizer.json", None), ("model.safetensors", None), ("model.safetensors", "\xff" * 40),
    ],
)  # fmt: skip
def test_a_broken_one_is_passed_over_with_a_sentence(target, tmp_path, name, content):
    file = write(target / "draft", TENTH) / name
    file.unlink() if content is None else file.write_bytes(content.encode("latin-1"))
    assert str(target / "draft") in passed_over(target, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such pipes")
def test_nothing_is_waited_for_and_no_circle_is_gone_around(target, tmp_path):
    draft = write(target / "draft", TENTH)
    (draft / "tokenizer.json").unlink()
    os.mkfifo(draft / "tokenizer.json")
    assert wording("cannot_be_read") in passed_over(target, tmp_path)
    (draft / "tokenizer.json").unlink()
    (draft / "tokenizer.json").symlink_to(draft / "tokenizer.json")
    assert wording("cannot_be_read") in passed_over(target, tmp_path)
    for file in draft.iterdir():
        file.unlink()
    draft.rmdir()
    draft.symlink_to(target)  # a model that drafts for itself without end: the same tokens
    own, _ = default_draft(resolve(str(target)), known(Paths(tmp_path)))
    assert own is not None and model_of(resolve(str(target))).small.small is None  # type: ignore[union-attr]


def test_no_weight_is_read_to_look(target, tmp_path, monkeypatch):
    write(target / "draft", TENTH)
    monkeypatch.setattr("localspec.weights.checkpoint._samples", lambda file, start: pytest.fail(f"{file} was read"))
    register(tmp_path, tenth=write(tmp_path / "tenth", TENTH))
    assert found(resolve(str(target)), tmp_path) is not None


def test_installed_models_of_other_tokenizers_are_not_even_opened(target, tmp_path, monkeypatch):
    register(tmp_path, alien=write(tmp_path / "alien", TENTH, {**WORDS, "long": 3}))
    inspected = []
    monkeypatch.setattr(module, "inspect", lambda path: (inspected.append(path), inspect(path))[1])
    assert found(resolve(str(target)), tmp_path) is None
    assert {*inspected} == {target}


def test_a_target_without_a_tokenizer_has_no_draft_model(target, tmp_path):
    write(target / "draft", TENTH)
    (target / "tokenizer.json").unlink()
    assert "tokenizer.json" in passed_over(target, tmp_path)


def test_tokens_are_compared_by_files_as_they_are_by_tokenizers(target, tmp_path):
    same = write(tmp_path / "same", TENTH)
    compare_stored(same, 32, target, 32)
    compare_stored(same, 3, target, 32)
    with pytest.raises(UsageMistake, match="knows 2 tokens"):
        compare_stored(same, 2, target, 32)
    (same / "tokenizer.json").write_text("{}")
    with pytest.raises(
        LocalspecError,
        match=f"{matching('tokenizer_json_of_the_model_in')} .*{matching('same_cannot_be_read_it_lists')}",
    ):
        compare_stored(same, 32, target, 32)
