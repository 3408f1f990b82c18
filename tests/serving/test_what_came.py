"""A reply that comes twice, the first time not to its end, is one reply for whoever sees it."""

import pytest
from golden import matching

from localspec.chat.trace import Trace
from localspec.events import Done, Draft, Prefill, Text
from localspec.serving.over_socket import Gone
from localspec.serving.what_came import WhatCame

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]


def step(start, end, refused=()):
    """Tokens `start` to `end` at once, drafted in a chain, and something else beside it."""
    after = range(start, end)
    tokens, parents = [start - 1, *after[:-1], *refused], [*range(-1, len(after) - 1), *[0] * len(refused)]
    drafts = (Draft(tokens, parents, ["here"] * len(tokens), None, range(len(after))),) if start else ()
    said = "".join(WORDS[token] for token in after)
    return Text(said, tuple(after), ("here",) * len(after), 0.1 * end, start, drafts)


def held_back(first, second):
    """Both in one event, as where the first ended within a character."""
    tokens = (*first.tokens, *second.tokens)
    return Text(first.text + second.text, tokens, ("here",) * len(tokens), 0.2, 1, (*first.drafts, *second.drafts))


STEPS = [step(0, 1), step(1, 4, [9]), step(4, 5), step(5, 7, [8, 9])]
FORMS = [STEPS, [held_back(*STEPS[:2]), *STEPS[2:]], [*STEPS[:2], held_back(*STEPS[2:])]]


@pytest.mark.parametrize("here", FORMS)
@pytest.mark.parametrize("came", range(8))
def test_where_the_steps_were_others(came, here):
    known, trace = WhatCame(), Trace()
    seen = [Prefill(5, 5), *(step(token, token + 1) for token in range(came))]
    for event in seen:
        known.take(event)
    rest = [one for event in [Prefill(5, 5), *here] if (one := known.rest_of(event)) is not None]
    for event in [*seen, *rest]:
        trace.take(event)
    assert any(isinstance(one, Prefill) for one in rest) == (came == 0)
    assert "".join(one.text for one in [*seen, *rest] if isinstance(one, Text)) == "".join(WORDS)
    assert list(trace.tokens) == list(range(7)) and trace.place(6).after == 7
    # each step is as long as the tokens that it brought, and what it refused stands where it was drafted
    firsts = [trace.place(token).first for token in range(7)]
    assert firsts == [token if token < came else max(came, first) for token, first in enumerate((0, 1, 1, 1, 4, 5, 5))]
    refused = [[other.tokens for other in trace.place(token).refused] for token in range(7)]
    assert refused[1] == ([(9,)] if came <= 1 else []) and refused[5] == ([(8,), (9,)] if came <= 5 else [])


def test_another_reply_is_no_mixture():
    known = WhatCame()
    known.take(step(0, 2))
    with pytest.raises(Gone, match=matching("here_would_another_one_ask_again")):
        known.rest_of(Text("another", (7,), ("here",), 0.1, 0))


def test_thoughts_are_left_out_too_and_the_end_is_not():
    known, end = WhatCame(), Done("stop", None)
    known.take(Text("", (0, 1), ("a", "a"), 0.1, 0, (), "Hm, ", 2))
    rest = known.rest_of(Text("So", (0, 1, 2, 3), ("a",) * 4, 0.1, 0, (), "Hm, well.", 3))
    assert (rest.text, rest.tokens, rest.reasoning, rest.reasoning_tokens) == ("So", (2, 3), "well.", 1)
    assert known.rest_of(end) is end
