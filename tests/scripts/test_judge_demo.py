"""The rubric by which demo models are judged sees what it is for."""

import json

import judge_demo
import pytest
from demo_data.drawing import held_out
from judge_demo import Question, judge, right

STORY = Question("free", [{"role": "user", "content": "Tell me a story about a fox."}])


def verdict(reply: str, question: Question = STORY, stops: bool = True) -> judge_demo.Verdict:
    return judge(question, reply, stops)


def test_a_good_reply_passes():
    good = "A fox called Rusty lived by a lake. He had a friend, an owl. One day they found a boat. They were happy."
    assert verdict(good).coherent
    assert verdict("Lisbon.", Question("free", [{"role": "user", "content": "The capital of Portugal?"}])).coherent


@pytest.mark.parametrize(
    ("reply", "failed"),
    [
        ("", "says_something"),
        ("...", "says_something"),
        ("a fox lived here. He was old. He was glad.", "starts_whole"),
        ("A fox lived here. He was old and", "ends_whole"),
        ("The the fox lived here. He was old.", "is_clean"),
        ('He said, "I am a fox. He was old.', "is_clean"),
        ("A fox. <|user|> He was old.", "is_clean"),
        ("A fox is small and small and small.", "is_clean"),
        ("The difference is that a fox is a fox.", "is_clean"),
        ("1. Cow\n2. Cow", "is_clean"),
        ("A fox lived here.", "takes_up_the_prompt"),
        ("A fox lived here. Money buys bread. Trains run fast. Clouds bring rain. Bells ring.", "keeps_its_subject"),
        ("A wolf lived by a lake. He had a friend. They were happy.", "takes_up_the_prompt"),
    ],
)
def test_each_fault_is_seen(reply, failed):
    assert failed in verdict(reply).failed
    assert not verdict(reply).coherent


@pytest.mark.parametrize(
    "reply",
    [
        "The dog and the dog is making a dog and the dog is making a dog and the dog is making a dog and the dog.",
        "The fox ran home again. It was late. The fox ran home again.",
        "ha ha ha ha ha ha ha ha",
    ],
)
def test_loops_are_seen(reply):
    assert verdict(reply).loops and not verdict(reply).coherent


def test_what_does_not_stop_is_not_coherent():
    assert verdict("A fox lived here. He was old. He was glad.").coherent
    assert not verdict("A fox lived here. He was old. He was glad.", stops=False).coherent


def test_a_free_prompt_is_right_by_its_required_and_forbidden_strings():
    question = Question("free", STORY.messages, None, ["localspec list", ["models", "model"]], ["pull"])
    assert right(question, "Use `localspec  LIST`: it shows the models.")
    assert not right(question, "Use `localspec list`.")
    assert not right(question, "localspec list shows models; pull fetches them.")


def test_tasks_are_right_if_they_are_what_is_expected():
    question = Question("made-rewriting", STORY.messages, "apple, pear")
    assert right(question, "Apple, pear.") and not right(question, "pear, apple")
    figure = Question("made-sums", STORY.messages, "10 + 10 = 20, 3 + 4 = 7, 20 + 7 = 27.")
    assert right(figure, "The answer is 27.") and not right(figure, "27 + 1 = 28.") and not right(figure, "Many.")
    assert right(STORY, "anything") is None


@pytest.mark.slow
def test_there_are_140_prompts_and_none_is_trained_on():
    tasks = judge_demo.tasks()
    assert len(tasks) == 100 and len(judge_demo.questions(judge_demo.FREE, "free")) == 40
    assert [q.messages for q in tasks] == [q.messages for q in judge_demo.tasks()]
    for question in tasks:
        assert question.messages[-1]["role"] == "user"


@pytest.mark.slow
def test_tasks_are_held_out(monkeypatch):
    seen = []
    monkeypatch.setattr(judge_demo, "held_out", lambda example: seen.append(example) or held_out(example))
    chosen = judge_demo.tasks()
    kept = [e for e in seen if held_out(e)]
    assert len(chosen) <= len(kept)
    assert {str(q.messages) for q in chosen} <= {str(e["messages"][:-1]) for e in kept}


def test_a_line_of_questions_that_is_wrong_is_named(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"ask": "How?", "required": ["so"]}) + "\n")
    assert judge_demo.questions(file, "free")[0].required == ["so"]
    for wrong in ({"ask": ""}, {"ask": "How?", "required": ["so"], "forbiden": []}):
        file.write_text(json.dumps({"ask": "How?", "required": ["so"]}) + "\n" + json.dumps(wrong) + "\n")
        with pytest.raises(SystemExit, match="line 2"):
            judge_demo.questions(file, "free")


def test_the_summary_counts_what_applies():
    verdicts = [verdict("A fox lived here. He was old. He was glad."), verdict("", stops=False)]
    lines = judge_demo.summary(verdicts).splitlines()
    assert lines[-1].startswith("| all | - | 1 of 2 (50.0 %) | 0 of 2 (0.0 %) | 1 of 2 (50.0 %)")
