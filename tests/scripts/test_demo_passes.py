"""What one pass over the mixture holds: cleaned shared data, the program's own words, and nothing that is held out."""

import json
import lzma
from pathlib import Path
from random import Random

import pytest
from demo_data import mixture, own, passes, shared
from demo_data.drawing import held_out
from demo_data.help_corpus import HelpEntry, load_help

CHAT = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "The cat sat on the mat."}]


@pytest.fixture
def data(tmp_path) -> Path:
    """400 different good chats of one source, texts of another, and of each one that is not fit."""
    with lzma.open(tmp_path / "chat.jsonl.xz", "wt") as file:
        for i in range(400):
            messages = [CHAT[0] | {"content": f"Question {i}"}, CHAT[1]]
            file.write(json.dumps({"source": "jokes", "messages": messages}) + "\n")
        bad = [CHAT[0], CHAT[1] | {"content": "He went home again. " * 3}]
        file.write(json.dumps({"source": "jokes", "messages": bad}) + "\n")
        file.write(json.dumps({"source": "nl2bash", "messages": CHAT}) + "\n")
        taken = [CHAT[0] | {"content": load_help()[0].questions[0].lower()}, CHAT[1]]
        file.write(json.dumps({"source": "jokes", "messages": taken}) + "\n")
    with lzma.open(tmp_path / "text.jsonl.xz", "wt") as file:
        for i in range(100):
            file.write(json.dumps({"source": "standardebooks", "text": f"Once there were {i} foxes."}) + "\n")
    return tmp_path


@pytest.fixture
def few(monkeypatch) -> None:
    """A twentieth of the help, and few of what is generated: a pass in a second."""
    some = load_help()[::20]
    monkeypatch.setattr(own, "load_help", lambda: some)
    monkeypatch.setattr(passes, "SET_ASIDE", 5)
    for name, share in mixture.MADE.items():
        monkeypatch.setitem(mixture.MADE, name, mixture.Share(300, 20, share.why))
    monkeypatch.setitem(mixture.SHARED, "jokes", mixture.Share(2, 1, "views"))
    monkeypatch.setitem(mixture.SHARED, "standardebooks", mixture.Share(0.5, 0, "views"))
    monkeypatch.setitem(mixture.OWN, "help", mixture.Share(1, 1, "views"))
    monkeypatch.setitem(mixture.OWN, "help-begun", mixture.Share(0, 0.1, "views", draft=0))


@pytest.mark.slow
def test_a_pass_holds_what_the_mixture_says_and_nothing_held_out(data, few):
    examples = passes.trained(data, "long", 0, [])
    # Of what the docs say, all is trained on.
    assert not any(held_out(example) for example in examples if example["source"] != "docs")
    by_source = {source: [e for e in examples if e["source"] == source] for source in {e["source"] for e in examples}}
    assert set(by_source) == {*mixture.MADE, "jokes", "standardebooks", "docs", "help"}
    assert 700 < len(by_source["jokes"]) <= 800 and len(by_source["jokes"]) % 2 == 0  # two views
    assert 25 < len(by_source["standardebooks"]) < 75  # half of them
    assert not any("again" in e["messages"][-1]["content"] for e in by_source["jokes"])
    last = passes.trained(data, "last", 0, [])
    assert {e["source"] for e in last} == {*mixture.MADE, "jokes", "help", "help-begun"}
    whole, begun = (sum(e["source"] == source for e in last) for source in ("help", "help-begun"))
    assert 0.08 < begun / whole < 0.12
    assert {e["source"] for e in passes.trained(data, "draft", 0, [])} == {*mixture.MADE, "jokes", "help"}


@pytest.mark.slow
def test_generated_examples_are_new_in_every_pass_and_the_same_for_everybody(data, few):
    first, again, second = (passes.trained(data, "long", number, []) for number in (0, 0, 1))
    assert first == again
    made = [{str(e) for e in examples if e["source"] == "made-stories"} for examples in (first, second)]
    assert len(made[0] & made[1]) < len(made[0]) / 10


def test_prompts_are_typed_carelessly_now_and_then_and_answers_never():
    asked = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "2 + 2 = 4."}]
    example = {"source": "made-sums", "keys": ["2 + 2"], "messages": asked}
    found = [passes.careless(Random(seed), example)["messages"] for seed in range(500)]
    assert all(answer == asked[1] for _, answer in found)
    prompts = {prompt["content"] for prompt, _ in found}
    assert {"What is 2 + 2?", "what is 2 + 2", "what is 2 + 2?", "What is 2 + 2"} <= prompts
    assert sum(prompt == asked[0] for prompt, _ in found) > 350
    exact = example | {"source": "made-rewriting"}
    assert all(passes.careless(Random(seed), exact) == exact for seed in range(100))


@pytest.mark.slow
def test_only_the_help_answers_what_the_help_answers(data, few):
    asked = own.answered()
    for example in passes.trained(data, "long", 0, []):
        if "messages" in example and example["source"] not in mixture.OWN:
            assert own.plain(example["messages"][-2]["content"]) not in asked


@pytest.mark.slow
def test_a_help_answer_that_is_only_begun_can_be_no_other():
    answers = {entry.answer for entry in load_help() if not entry.planned}
    shorter = 0
    for example, _ in zip(own.begun(Random(0)), range(3000), strict=False):
        start = example["messages"][-1]["content"]
        if example["open"]:
            assert [a for a in answers if f"{a} ".startswith(f"{start} ")] and start not in answers
            assert len({a for a in answers if f"{a} ".startswith(f"{start} ")}) == 1
            shorter += 1
        else:
            assert start in answers
    assert shorter > 2900


@pytest.mark.slow
def test_what_is_set_aside_is_held_out_and_of_every_kind(data, few):
    aside = passes.set_aside(data)
    assert all(map(held_out, aside))
    assert {*mixture.MADE, "help", "jokes"} <= {e["source"] for e in aside}
    trained = {json.dumps(e) for e in passes.trained(data, "long", 0, [])}
    assert not trained & {json.dumps(e) for e in aside}


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("The cat sat on the mat. It was warm there.", False),
        ("The cat sat on the mat. The dog came. The cat sat on the mat.", True),
        ("and then the fox and then the bear and then the owl", False),
        ("a dog is a dog is a dog is a dog is a dog", True),
        ("- apple\n- pear\n- plum", False),
        ("one line of four\nanother line\none line of four", True),
        ("Yes. Yes. Yes.", False),
    ],
)
def test_what_repeats_itself_is_seen(text, loops):
    assert shared.repeats(text) == loops


def test_what_is_not_clean_is_left_out():
    def says(*replies: str) -> bool:
        turns = [m for r in replies for m in (CHAT[0], {"role": "assistant", "content": r})]
        return shared.clean({"source": "x", "messages": turns})

    assert says("A good answer.")
    assert not says("See https://example.org for more.")
    assert not says("Write to me@example.org.")
    assert not says("x" * (shared.LONGEST + 1))
    assert not says("Sure.", "Sure.", "Sure.", "Sure.")
    assert says("Sure.", "Of course.", "Sure.")
    assert not says("Ответ на вопрос")


def test_every_source_says_why_it_is_there():
    shares = mixture.MADE | mixture.SHARED | mixture.OWN
    assert all(share.why and max(share.long, share.last) > 0 for share in shares.values())
    assert set(mixture.MADE) == set(mixture.GENERATORS)


# -- help -------------------------------------------------------------------------------------------------------------

ENTRIES = [
    HelpEntry(["How do I see the models?", "Which models are here?"], "Use `localspec list`.", ["list"]),
    HelpEntry(["What does localspec race do?"], "It races.", ["race"], planned=True),
]


def test_every_phrasing_is_asked_and_what_is_planned_is_not():
    drawings = list(own.helped(Random(0), ENTRIES))
    assert len(drawings) == 2
    assert all(d.turns[-1] == "Use `localspec list`." for d in drawings)


@pytest.mark.slow
def test_help_is_right_in_every_phrasing():
    answers = {q: e.answer for e in load_help() for q in e.questions}
    for drawing in own.helped(Random(1), load_help()):
        asked = drawing.keys[-1].removeprefix("help ")
        assert drawing.turns[-1] == answers[asked]
        assert len(drawing.turns) in (2, 4) and all(drawing.turns)


def test_rephrasing_keeps_what_is_asked_about():
    seen = set()
    for seed in range(200):
        question = own.rephrased(Random(seed), "How do I delete a `qwen3-1.7b` on my computer?")
        assert "`qwen3-1.7b`" in question
        seen.add(question)
    assert len(seen) > 60
    assert sum("delete" in question for question in seen) > len(seen) / 3


def test_what_is_named_keeps_its_spelling():
    """Flags, commands and paths are no words that others stand for."""
    for seed in range(300):
        question = own.rephrased(Random(seed), "Does --list-models or `localspec show` fetch /new files?")
        assert "--list-models" in question and "`localspec show`" in question and "/new" in question


def test_haste_leaves_the_words_that_carry_the_question():
    hurried = own._in_haste(Random(0), "How do I stop the reply in the chat?")
    assert {"stop", "reply", "chat"} <= set(hurried.split()) and len(hurried) < 25
    assert own._in_haste(Random(0), "What is it?") == "What is it?"  # where next to nothing would be left


def test_a_slip_changes_one_word_and_no_name():
    for seed in range(100):
        words = own._mistyped(Random(seed), "Where does `s3d` keep --verbose output?").split()
        assert words[2:3] + words[4:5] == ["`s3d`", "--verbose"] and len(words) == 6
    assert own._mistyped(Random(0), "Who is it?") == "Who is it?"


def test_documents_are_cut_at_paragraphs_and_lose_their_tables(tmp_path):
    file = tmp_path / "README.md"
    paragraphs = [f"Paragraph {i} " + "word " * 60 + "end." for i in range(12)]
    file.write_text("\n\n".join([*paragraphs, "| a | b |\n| - | - |"]))
    pieces = [e["text"] for e in own.texts([file])]
    assert len(pieces) > 2 and all(len(p) < own.PIECE + 400 for p in pieces)
    assert "\n\n".join(pieces) == "\n\n".join(paragraphs)
