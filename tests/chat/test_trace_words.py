"""The description of a trace in words."""

from tui.drafted_replies import drafted_reply
from tui.scripted_engine import ScriptedEngine

from localspec.chat.figures import source_name
from localspec.chat.trace import Trace, step_by_step, visible
from localspec.events import Draft, Text


def test_a_reply_step_by_step():
    engine = ScriptedEngine()
    trace = Trace("Say something", engine.decode)
    for event in drafted_reply(engine):
        trace.take(event)
    trace.ended = True
    first, *steps = step_by_step(trace)
    assert first.startswith("9 tokens in 4 steps, 2.0 tokens/step: the model 5 (56%), ")
    assert steps == [
        '0: "Snow" the model',
        '1: " falls" past replies, " on" this chat, " the" the model; refused drafts: " in town"  Medusa; " a roof"  past replies',
        '2: " hill" the model',
        '3: ":" Medusa and past replies, " é⏎" the model; refused drafts: "␛[2J"  Medusa',
        '4: "␛]0;evil␇" the model; refused drafts: " a"  this chat',
    ]


def test_steps_without_drafts_that_follow_each_other_are_one_line():
    engine = ScriptedEngine()
    trace = Trace("Say something", engine.decode)
    tokens = engine.ids("One", " after", " another", " and", " two")
    for step, token in enumerate(tokens[:3]):
        drafts = (Draft((tokens[step - 1],), (-1,), None, None, (0,)),) if step else ()
        trace.take(Text(engine.decode([token]), (token,), ("target",), 0.1, step, drafts))
    drafted = Draft((tokens[2], tokens[3]), (-1, 0), ("", "phrases"), None, (0, 1))
    trace.take(Text(" and two", tokens[3:], ("phrases", "target"), 0.1, 3, (drafted,)))
    trace.ended = True
    assert [*step_by_step(trace)][1:] == [
        '0 to 2: "One after another" the model',
        '3: " and" past replies, " two" the model',
    ]


def test_names_and_blanks():
    assert source_name("target") == "the model"
    assert source_name("phrases+prompt+s3d") == "past replies and this chat and own layers"
    assert visible(" a\n\tb\x1b") == '" a⏎⇥b␛"'
