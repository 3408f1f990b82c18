"""What is told of a trace in words."""

from tui.drafted_replies import drafted_reply
from tui.scripted_engine import ScriptedEngine

from localspec.chat.trace import Trace
from localspec.chat.trace_words import step_by_step, visible
from localspec.chat.wording import source_name


def test_a_reply_step_by_step():
    engine = ScriptedEngine()
    trace = Trace("Say something", engine.decode)
    for event in drafted_reply(engine):
        trace.take(event)
    trace.ended = True
    first, *steps = step_by_step(trace)
    assert first.startswith("9 tokens in 4 steps, 2.0 a step: the model 5 (56%), ")
    assert steps == [
        '0: "Snow" the model',
        '1: " falls" past replies, " on" this chat, " the" the model; refused: " in town"  Medusa; " a roof"  past replies',
        '2: " hill" the model',
        '3: ":" Medusa and past replies, " é⏎" the model; refused: "␛[2J"  Medusa',
        '4: "␛]0;evil␇" the model; refused: " a"  this chat',
    ]


def test_names_and_blanks():
    assert source_name("target") == "the model"
    assert source_name("phrases+prompt+s3d") == "past replies and this chat and own layers"
    assert visible(" a\n\tb\x1b") == '" a⏎⇥b␛"'
