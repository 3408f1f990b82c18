"""Conversations that branched from each other, in a list."""

from pathlib import Path

import pytest
from golden import wording

from localspec.chat.branches import rows
from localspec.store.history import History
from localspec.store.store import Store


@pytest.fixture
def history(tmp_path: Path):
    with Store.open(tmp_path / "kept.db", print) as store:
        yield store.history


def said(history: History, prompt: str, reply: str, number: int | None = None) -> int:
    number, turn = history.say(number, prompt, model="demo", system=None)
    history.write(turn, reply, "stop")
    return number


def branch(history: History, origin: int, turns: int, prompt: str, reply: str) -> int:
    found = history.read(origin)
    assert found is not None
    number, _ = history.branch(origin, found.turns[:turns], model="demo", system=None)
    return said(history, prompt, reply, number)


def listed(history: History) -> list[str]:
    return [f"{'  ' * row.below}{row.info.id} {row.indented}" for row in rows(history, history.conversations())]


def test_answers_to_one_prompt_are_distinguished_and_listed_together(history: History) -> None:
    first = number = said(history, "What is a tree?", "A tree is a plant.")
    other = said(history, "Something else", "Yes.")
    for reply in ("Trees grow.", "A tree is tall.", "Wood."):
        number = branch(history, number, 0, "What is a tree?", reply)
    title = history.conversations()[0].title
    assert listed(history) == [
        f"{number} {title} · answered “Wood.”",
        f"  {number - 1} └ answered “A tree is tall.”",
        f"  {number - 2} └ answered “Trees grow.”",
        f"  {first} └ answered “A tree is a plant.”",
        f"{other} Something else",
    ]


def test_what_was_asked_instead_is_reported_and_where_an_answer_begins_to_differ(history: History) -> None:
    first = said(history, "hello there", "Hi.")
    said(history, "Count.", "one two three four five six seven eight nine ten eleven twelve", first)
    asked = branch(history, first, 1, "Count down.", "ten")
    again = branch(history, first, 1, "Count.", "one two three four five six seven eight nine nine nine nine")
    found = history.read(first)
    assert found is not None
    short, _ = history.branch(first, found.turns[:1], model="demo", system=None)
    same, _ = history.branch(first, found.turns, model="demo", system=None)
    says = {row.info.id: row.says for row in rows(history, history.conversations())}
    assert (
        says[asked] == "asked “Count down.”"
        and says[short] == wording("ends_before_that")
        and says[same].startswith(f"the same as {first}: “one two three four")
    )
    assert says[again] == "answered “…seven eight nine nine nine nine”"


def test_prompts_with_the_same_beginning_are_distinguished_by_the_rest(history: History) -> None:
    begun = "Tell me a long story about a lighthouse keeper, a storm and a dog."
    first = said(history, "hello there", "Hi.")
    said(history, begun, "Once.", first)
    funny = branch(history, first, 1, f"{begun} Make it funny.", "Ha.")
    sad = branch(history, first, 1, f"{begun} Make it sad.", "Oh.")
    says = {row.info.id: row.says for row in rows(history, history.conversations())}
    assert says[funny].endswith("Make it funny.”") and says[sad].endswith("Make it sad.”")
    assert says[first].endswith("and a dog.”")


def test_the_title_of_a_branch_is_shown(history: History) -> None:
    first = said(history, "What is a tree?", "A plant.")
    history.rename(first, "Trees")
    branch(history, first, 0, "What is a tree?", "Wood.")
    asked = branch(history, first, 0, "What is it?", "Green.")
    assert listed(history) == [
        f"{asked} Trees · asked “What is it?”", f"  {first + 1} └ answered “Wood.”", f"  {first} └ asked “What is a tree?”"
    ]  # fmt: skip
    history.rename(first + 1, "Of wood")
    assert listed(history)[1] == f"  {first + 1} └ Of wood · answered “Wood.”"
    history.remove([asked])
    named = [row.named for row in rows(history, history.conversations())]
    assert named == [False, True], "a row that leads is called by its title anyway"


def test_a_family_whose_first_is_deleted_is_still_a_family(history: History) -> None:
    first = said(history, "What is a tree?", "A plant.")
    one = branch(history, first, 0, "What is a tree?", "Wood.")
    other = branch(history, first, 0, "What is a tree?", "Green.")
    history.remove([first])
    assert listed(history) == [f"{other} A tree · answered “Green.”", f"  {one} └ answered “Wood.”"]
    history.remove([other])
    assert listed(history) == [f"{one} A tree"]


def test_a_family_whose_middle_is_deleted_is_still_a_family(history: History) -> None:
    first = said(history, "What is a tree?", "A plant.")
    middle = branch(history, first, 0, "What is a tree?", "Wood.")
    last = branch(history, middle, 0, "What is a tree?", "Green.")
    history.remove([middle])
    assert listed(history) == [f"{last} A tree · answered “Green.”", f"  {first} └ answered “A plant.”"]


def test_a_branch_is_compared_with_an_origin_that_is_not_listed(history: History) -> None:
    first = said(history, "What is a tree?", "A plant.")
    branch(history, first, 0, "What is a tree?", "Wood.")
    [row] = rows(history, history.conversations(1))
    assert row.says == "answered “Wood.”"


def test_without_branches_nothing_else_is_read(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    said(history, "What is a tree?", "A plant.")
    monkeypatch.setattr(history, "partings", None)
    assert listed(history) == ["1 " + history.conversations()[0].title]
