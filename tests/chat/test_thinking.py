"""Messages about thinking, and how `/think` is read."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from each import each
from golden import matching, wording

from localspec.chat.export import as_markdown
from localspec.chat.figures import saved_thought, thought
from localspec.chat.sampling import parse_think, state, why_empty
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.store.conversations import ConversationInfo, Saved, Turn


class Model:
    """A loaded model that thinks by default, or does not, or has no switch for thinking."""

    def __init__(self, by_itself):
        self.by_itself = by_itself
        self.choice = SimpleNamespace(engine="native")

    def thinking(self, settings, system=None):
        return settings.think

    def thinks_by_itself(self, system=None):
        return self.by_itself


@each(
    "by_itself, chosen, sentence, other",
    [
        (
            True,
            None,
            "The model thinks before it answers (/think auto). Other choices: /think on and /think off.",
            "off",
        ),
        (
            True,
            False,
            "The model answers without thinking (/think off). Other choices: /think on and /think auto.",
            "on",
        ),
        (
            False,
            None,
            "The model answers without thinking (/think auto). Other choices: /think on and /think off.",
            "on",
        ),
        (
            False,
            True,
            "The model thinks before it answers (/think on). Other choices: /think off and /think auto.",
            "off",
        ),
        (None, None, wording("chat_template_model_switch"), "on"),
    ],
)
def test_how_it_is_now_and_the_other_way(by_itself, chosen, sentence, other):
    assert state(Settings(think=chosen), Model(by_itself), None) == (sentence, other)


def test_what_stands_behind_the_command():
    assert [parse_think(rest) for rest in ("", " on", "OFF ", "auto", "show")] == ["", "on", "off", "auto", "show"]
    with pytest.raises(UsageMistake, match=f"^{matching('think_takes_on_off_auto_or')}"):
        parse_think("of")


def turn(reply="", reasoning="", reason="stop", **figures):
    return Turn(1, "Why?", reply, reason, figures, reasoning=reasoning)


def test_a_reply_without_text_has_a_reason():
    def said(ended, limit=None, by_itself=True):
        return why_empty(ended, Settings(max_tokens=limit), Model(by_itself), None)

    other = wording("let_answer_without_thinking")
    cut, mark = (turn(reasoning=text, reason="length", completion_tokens=1, reasoning_tokens=1) for text in ("hm", ""))
    took = wording("thinking_took_whole_limit_1_token")
    assert said(cut, 1) == said(mark, 1) == f"{took}{other}." and said(cut, 1, None) == f"{took}."
    full = replace(cut, figures={**cut.figures, "context_full": True})
    for limit in (None, 2):
        assert said(full, limit).startswith(wording("thinking_filled_context_there"))
    assert said(turn(reasoning="hm")) == wording("model_thought_ended_there_there", other=other)
    assert said(turn(completion_tokens=12, reason="length"), 12) == wording("reply_is_empty_12_tokens")
    for whole in (turn("Yes."), turn("Yes.", "hm"), turn("Yes.", "hm", "length"), turn("", "hm", "interrupted")):
        assert said(whole) is None


def test_how_long_was_thought():
    assert thought(214, 3.14) == "thought for 3.1 s, 214 tokens"
    assert thought(1, 70, still=True) == "thinking for 70 s, 1 token"
    assert saved_thought({"reasoning_tokens": 3, "reasoning_s": 0.2}) == "thought for 0.2 s, 3 tokens"
    for broken in ({}, {"reasoning_tokens": 3}, {"reasoning_tokens": "x", "reasoning_s": 1}):
        assert saved_thought(broken) == "thought"


def test_an_export_quotes_what_was_thought_so_that_nothing_in_it_reaches_beyond():
    info = ConversationInfo(1, "Why?", "demo", 0.0, 0.0, 3)
    turns = (turn("Yes.", "one\n\n```\n\x1b[2J"), turn("", "half", "interrupted"), turn("No."))
    document = as_markdown(Saved(info, None, turns))
    assert "> *Thought:*\n>\n> one\n>\n> ```\n> \u241b[2J\n\nYes." in document
    assert "> *Thought:*\n>\n> half\n\n*(stopped)*" in document and document.endswith("\n\nNo.")
    assert document.count("Thought") == 2
