"""`localspec pool` prints the saved phrases as text, deletes only those named, and never writes when it reads."""

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
from golden import matching, wording
from typer.testing import CliRunner

from localspec.chat import readable_phrases
from localspec.chat.readable_phrases import pools_of
from localspec.cli import console
from localspec.cli import pool as pool_module
from localspec.errors import NotHere, UsageMistake
from localspec.models.chat_tokenizer import tokenizer_of
from localspec.models.registry import TargetCard
from localspec.store.phrases import pack_key, pack_tokens
from localspec.store.store import Store
from localspec.weights.packed_file import Header, Origin, joined

WORDS = ["the", " quick", " brown", " fox", " jumps", "\x1b[2J", "\n", " straße", "\u202e"]


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, "the"))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    directory = tmp_path / "model"
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def learn(database: Path, model: str, directory: Path | None, *phrases: tuple[int, bytes, bytes]) -> None:
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        pool = store.phrases.pool(model, "hash", directory)
        assert pool is not None
        store.phrases.learn(pool, phrases)


def phrase(before: list[int], key: tuple[int, int], after: list[int]) -> tuple[int, bytes, bytes]:
    return pack_key(*key), pack_tokens(before), pack_tokens(after)


def run(*arguments: str, answer: str | None = None) -> str:
    result = CliRunner().invoke(pool_module.app, list(arguments), input=answer, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def phrases_kept(database: Path) -> dict[str, int]:
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        return {info.model: info.phrases for info in store.phrases.pools()}


def test_looking_makes_nothing(database: Path) -> None:
    assert "No phrases" in run("list")
    assert json.loads(run("list", "--json")) == []
    assert "No phrases" in run("show")
    assert json.loads(run("show", "--json")) == []
    assert run("export") == ""
    assert wording("no_phrases_to_delete") in run("clear", "--yes")
    assert not database.parent.exists()


def test_list_shows_every_pool(database: Path, model_directory: Path) -> None:
    learn(database, "demo", model_directory, phrase([0], (1, 2), [3]))
    learn(database, "evil\x1b[2J\nname", None)
    listed = {entry["model"]: entry for entry in json.loads(run("list", "--json"))}
    assert listed["demo"]["phrases"] == 1 and listed["demo"]["bytes"] == 16
    assert listed["demo"]["path"] == str(model_directory)
    text = run("list")
    assert "demo: 1 phrase, " in text and "evil␛[2J name: 0 phrases" in text
    assert len(text.splitlines()) == 2 and "\x1b" not in text + run("list", "--json")


def test_list_says_it_in_words(database: Path, model_directory: Path) -> None:
    assert run("list") == wording("no_phrases_are_kept_yet")
    learn(database, "demo", model_directory, phrase([0], (1, 2), [3]), phrase([0], (4, 2), [3]))
    learn(database, "gone", None)
    lines = sorted(run("list").splitlines())
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    assert re.fullmatch(rf"demo: 2 phrases, 32 bytes, last used {day}, {re.escape(str(model_directory))}", lines[0])
    assert re.fullmatch(rf"gone: 0 phrases, 0 bytes, last used {day}, directory unknown", lines[1])


def test_list_breaks_its_lines_between_words(database, model_directory, monkeypatch):
    learn(database, "demo", model_directory, phrase([], (1, 2), [3]))
    whole = run("list")
    monkeypatch.setattr(console, "output_is_terminal", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 20)))
    shown = run("list").splitlines()
    assert " ".join(map(str.strip, shown)) == whole.strip() and len(shown) > 2
    assert shown[-1] == f"  {model_directory}", "a path stays whole"


def test_show_prints_safe_text(database: Path, model_directory: Path) -> None:
    learn(database, "demo", model_directory, phrase([0], (1, 2), [3, 4]), phrase([], (0, 6), [5, 8, 7]))
    assert run("show", "demo").splitlines() == [
        wording("demo_2_phrases_most_useful_first"),
        "  the⏎ → ␛[2J straße  (used once)",
        "  the quick brown →  fox jumps  (used once)",
    ]
    assert run("show", "--limit", "1").splitlines()[1:] == ["  the⏎ → ␛[2J straße  (used once)"]
    output = run("show", "demo", "--limit", "1", "--json")
    assert output.isascii()
    assert json.loads(output) == [
        {
            "model": "demo",
            "before": [],
            "key": [0, 6],
            "after": [5, 8, 7],
            "text": "the\n\x1b[2J\u202e straße",
            "uses": 1,
            "served": 0,
            "conversation": None,
        }
    ]


@pytest.fixture
def packed_model(tmp_path: Path, model_directory: Path) -> Path:
    """Return the packed file of an imported model, as far as its tokenizer goes."""
    name = "tokenizer.json"
    content = (model_directory / name).read_bytes()
    header = Header.plan(Origin("small", "0" * 40), "int8", 1, {}, {name: len(content)})
    section = header.texts[name]
    pieces = (hashlib.sha256(content[start:end]).digest() for start, end in section.pieces)
    header = header.with_digests({name: joined(pieces)})
    file = tmp_path / "small.packed"
    file.write_bytes(header.encoded() + content.ljust(header.section_bytes, b"\0"))
    (model_directory / name).unlink()
    return file


def test_the_phrases_of_an_imported_model_are_words(database: Path, packed_model: Path) -> None:
    learn(database, "small", packed_model, phrase([0], (1, 2), [3, 5]))
    assert run("show") == "small: 1 phrase, the most useful first.\n  the quick brown →  fox␛[2J  (used once)\n"
    assert json.loads(run("show", "--json"))[0]["text"] == "the quick brown fox\x1b[2J"


def test_a_model_that_lies_elsewhere_now_is_found_by_its_name(database, packed_model, monkeypatch):
    tokenizer = tokenizer_of(packed_model).hash
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        for model, its in (("small", f"{tokenizer}-rev"), ("other", "another-rev")):
            pool = store.phrases.pool(model, its, "/gone")
            assert pool is not None
            store.phrases.learn(pool, [phrase([0], (1, 2), [3])])
    monkeypatch.setattr(readable_phrases, "resolve", lambda name: TargetCard(name, packed_model, None, ""))
    assert "the quick brown →  fox" in run("show", "small")
    assert run("show", "other").splitlines() == [
        wording("other_1_phrase_most_useful_first"),
        "  0 1 2 → 3  (used once)",
    ], "ids mean something else to another tokenizer"


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["no directory", "no file", "no name", "damaged", "panics", "a pipe"])
def test_without_a_tokenizer_token_ids_are_shown(database, tmp_path, model_directory, tokenizer):
    panics = {"type": "Precompiled", "precompiled_charsmap": "BAAAAAEAAAA="}
    file = model_directory / "tokenizer.json"
    if tokenizer == "damaged":
        file.write_text("{")
    elif tokenizer == "panics":
        file.write_text(json.dumps({**json.loads(file.read_text()), "normalizer": panics}))
    elif tokenizer == "a pipe":
        file.unlink()
        getattr(os, "mkfifo", Path.touch)(file)
    absent = {"no directory": None, "no file": tmp_path / "gone", "no name": Path("9" * 400)}
    directory = absent.get(tokenizer, model_directory)
    learn(database, "demo", directory, phrase([10], (1, 2), [3, 4]))
    heading, line = run("show").splitlines()
    assert heading.startswith(wording("demo_1_phrase_most_useful_first"))
    assert line == "  10 1 2 → 3 4  (used once)"
    assert json.loads(run("show", "--json"))[0]["text"] is None


def test_export_is_one_line_a_phrase(database: Path, model_directory: Path) -> None:
    learn(database, "demo", model_directory, *(phrase([n], (0, 6), [3]) for n in range(5)))
    learn(database, "other", None, phrase([9], (1, 2), [3]))
    lines = [json.loads(line) for line in run("export").splitlines()]
    assert {tuple(line) for line in lines} == {
        ("model", "before", "key", "after", "text", "uses", "served", "conversation")
    }
    assert sorted((line["model"], line["before"][0]) for line in lines) == [
        *(("demo", n) for n in range(5)),
        ("other", 9),
    ]
    assert [json.loads(line)["text"] for line in run("export", "other").splitlines()] == [None]


def test_clear_of_one_model_leaves_the_others(database: Path) -> None:
    learn(database, "demo", None, phrase([1], (1, 2), [3]), phrase([2], (1, 2), [3]))
    learn(database, "other", None, phrase([1], (1, 2), [3]))
    assert run("clear", "demo", "--yes") == "Deleted 2 phrases of demo.\n"
    assert phrases_kept(database) == {"demo": 0, "other": 1}
    assert run("clear", "--yes") == "Deleted 1 phrase of all models.\n"
    assert phrases_kept(database) == {"demo": 0, "other": 0}


def test_numbers_that_no_database_takes(database: Path) -> None:
    learn(database, "demo", None, phrase([1], (1, 2), [3]))
    assert len(run("show", "--limit", "9" * 23).splitlines()) == 2
    assert wording("there_phrases_delete") in run("clear", "--conversation", "9" * 23, "--yes")
    assert phrases_kept(database) == {"demo": 1}


def test_the_story_of_a_phrase_and_the_end_of_what_a_chat_taught(database: Path, model_directory: Path) -> None:
    fox, street = phrase([0], (1, 2), [3, 4]), phrase([], (0, 6), [7])
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        pool = store.phrases.pool("demo", "hash", model_directory)
        assert pool is not None
        number, _ = store.history.say(None, "A [fox]?\x1b[2J", model="demo", system=None)
        store.phrases.learn(pool, [fox, street], conversation=number + 1)
        store.phrases.learn(pool, [fox], [street], conversation=number)
        store.phrases.learn(pool, [], [street])
        store.phrases.learn(pool, [fox])  # where nothing is saved
    assert run("show", "demo").splitlines()[1:] == [
        "  the quick brown →  fox jumps  (used 3 times, last in “A [fox]?␛[2J”)",
        wording("stra_e_said_once_last", number=number + 1),
    ]
    assert [(one["served"], one["conversation"]) for one in json.loads(run("show", "--json"))] == [
        (0, number), (2, number + 1)
    ]  # fmt: skip
    assert wording("there_phrases_delete") in run("clear", "--conversation", "99", "--yes")
    told = run("clear", "demo", "--conversation", str(number), "--yes")
    assert told == wording("deleted_1_phrase_demo_said_last", number=number)
    assert "fox" not in run("show") and "straße" in run("show")


def test_what_a_refused_draft_taught_is_not_called_said(database: Path, model_directory: Path) -> None:
    fox, street = phrase([], (1, 2), [3, 4]), phrase([], (0, 6), [7])
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        pool = store.phrases.pool("demo", "hash", model_directory)
        assert pool is not None
        number, _ = store.history.say(None, "A fox?", model="demo", system=None)
        store.phrases.learn(pool, [fox], conversation=number)
        store.phrases.learn(pool, [], [], [street, fox], conversation=number + 1)
    assert run("show", "demo").splitlines()[1:] == [
        "   quick brown →  fox jumps  (used once, last in “A fox?”)",
        wording("stra_e_never_said_learned_from", number=number + 1),
    ]
    assert [json.loads(line)["uses"] for line in run("export").splitlines()] == [1, 0]
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        store.phrases.learn(pool, [street], conversation=number)
    assert "the⏎ →  straße  (used once, last in “A fox?”)" in run("show", "demo")


def test_clear_asks_at_a_terminal(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "at_a_terminal", lambda: True)
    learn(database, "demo", None, phrase([1], (1, 2), [3]))
    output = run("clear", answer="n\n")
    assert "Delete 1 phrase of all models?" in output and wording("nothing_was_deleted") in output
    assert phrases_kept(database) == {"demo": 1}
    assert "Deleted 1 phrase of demo." in run("clear", "demo", answer="y\n")
    assert phrases_kept(database) == {"demo": 0}


def test_clear_without_a_terminal_names_yes(database: Path) -> None:
    learn(database, "demo", None, phrase([1], (1, 2), [3]))
    with pytest.raises(UsageMistake, match=f"{matching('deleting_1_phrase_of_demo_needs')}.*--yes"):
        run("clear", "demo")
    assert phrases_kept(database) == {"demo": 1}


@pytest.mark.parametrize("arguments", [("clear", "nosuch", "--yes"), ("show", "nosuch"), ("export", "nosuch")])
def test_an_unknown_model_names_those_there_are(database: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(NotHere, match="'nosuch' here; .* none yet"):
        run(*arguments)
    learn(database, "demo", None, phrase([1], (1, 2), [3]))
    with pytest.raises(NotHere, match="'nosuch' here; .* demo"):
        run(*arguments)
    assert phrases_kept(database) == {"demo": 1}


def test_a_broken_file_is_reported_on_standard_error(database: Path) -> None:
    database.parent.mkdir(parents=True)
    database.write_bytes(b"no database" * 100)
    result = CliRunner().invoke(pool_module.app, ["list", "--json"], catch_exceptions=False)
    assert json.loads(result.stdout) == [] and "set aside" in result.stderr


def test_a_directory_s_phrases_are_found_by_its_path_whatever_name_they_were_kept_by(
    database: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(database, "./model", model_directory, phrase([0], (1, 2), [3]))
    learn(database, "other", None, phrase([0], (1, 2), [3]))
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        (old,) = (pool.pool for pool in store.phrases.pools() if pool.model == "./model")
        assert store.phrases.pool(str(model_directory), "hash", model_directory) == old, "and learns there from now on"
        assert store.phrases.pool(str(model_directory), "another hash", model_directory) != old
        card = TargetCard(str(model_directory), model_directory, None, "")
        assert old in {pool.pool for pool in pools_of(store, card)}
    monkeypatch.setenv("HOME", str(model_directory.parent))
    monkeypatch.setenv("USERPROFILE", str(model_directory.parent))
    assert run("clear", f"~/{model_directory.name}", "--yes").startswith("Deleted 1 phrase of")
    assert phrases_kept(database)["./model"] == 0 and phrases_kept(database)["other"] == 1
