"""What one pass over the mixture holds: cleaned shared data, generated examples, and nothing that is held out."""

import json
import lzma
from pathlib import Path
from random import Random

import pytest
from demo_data import mixture, passes, shared
from demo_data.drawing import held_out

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
    with lzma.open(tmp_path / "text.jsonl.xz", "wt") as file:
        for i in range(100):
            file.write(json.dumps({"source": "standardebooks", "text": f"Once there were {i} foxes."}) + "\n")
    return tmp_path


@pytest.fixture
def few(monkeypatch) -> None:
    """Few of what is generated: a pass in a second."""
    monkeypatch.setattr(passes, "SET_ASIDE", 5)
    for name, share in mixture.MADE.items():
        monkeypatch.setitem(mixture.MADE, name, mixture.Share(300, 20, share.why))
    monkeypatch.setitem(mixture.SHARED, "jokes", mixture.Share(2, 1, "views"))
    monkeypatch.setitem(mixture.SHARED, "standardebooks", mixture.Share(0.5, 0, "views"))


@pytest.mark.slow
def test_a_pass_holds_what_the_mixture_says_and_nothing_held_out(data, few):
    examples = passes.trained(data, "long", 0)
    assert not any(held_out(example) for example in examples)
    by_source = {source: [e for e in examples if e["source"] == source] for source in {e["source"] for e in examples}}
    assert set(by_source) == {*mixture.MADE, "jokes", "standardebooks"}
    assert 700 < len(by_source["jokes"]) <= 800 and len(by_source["jokes"]) % 2 == 0  # two views
    assert 25 < len(by_source["standardebooks"]) < 75  # half of them
    assert not any("again" in e["messages"][-1]["content"] for e in by_source["jokes"])
    last = passes.trained(data, "last", 0)
    assert {e["source"] for e in last} == {*mixture.MADE, "jokes"}
    assert {e["source"] for e in passes.trained(data, "draft", 0)} == {*mixture.MADE, "jokes"}


@pytest.mark.slow
def test_generated_examples_are_new_in_every_pass_and_the_same_for_everybody(data, few):
    first, again, second = (passes.trained(data, "long", number) for number in (0, 0, 1))
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
def test_what_is_set_aside_is_held_out_and_of_every_kind(data, few):
    aside = passes.set_aside(data)
    assert all(map(held_out, aside))
    assert {*mixture.MADE, "jokes"} <= {e["source"] for e in aside}
    trained = {json.dumps(e) for e in passes.trained(data, "long", 0)}
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
    shares = mixture.MADE | mixture.SHARED
    assert all(share.why and max(share.long, share.last) > 0 for share in shares.values())
    assert set(mixture.MADE) == set(mixture.GENERATORS)
