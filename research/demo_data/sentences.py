"""Simple sentences in several forms: past, present, question and negative."""

from dataclasses import dataclass
from random import Random

from demo_data.words import COLORS, THINGS, a, capital, person, place

VERBS = {  # as it is, with s, past
    "find": ("finds", "found"), "buy": ("buys", "bought"), "lose": ("loses", "lost"), "paint": ("paints", "painted"),
    "carry": ("carries", "carried"), "see": ("sees", "saw"), "hide": ("hides", "hid"), "bring": ("brings", "brought"),
    "sell": ("sells", "sold"), "make": ("makes", "made"), "want": ("wants", "wanted"), "keep": ("keeps", "kept"),
    "drop": ("drops", "dropped"), "break": ("breaks", "broke"), "clean": ("cleans", "cleaned"), "hold": ("holds", "held"),
}  # fmt: skip


@dataclass(frozen=True)
class Sentence:
    """A simple sentence in several forms. `text` is in the past tense. All forms but the question end with a period."""

    name: str
    color: str
    thing: str
    text: str
    present: str
    question: str
    negative: str


def sentence(random: Random) -> Sentence:
    """Return a random sentence: somebody does something with a colored thing, often at a named place."""
    name, color, thing = person(random)[0], random.choice(COLORS), random.choice(THINGS)
    verb = random.choice(list(VERBS))
    now, then = VERBS[verb]
    where = random.choice(("", " " + place(random)[1], " " + place(random)[1]))
    rest = f"{a(color)} {thing}{where}"
    return Sentence(
        name, color, thing, f"{name} {then} {rest}.", f"{name} {now} {rest}.", f"Did {name} {verb} {rest}?",
        f"{capital(name)} did not {verb} {rest}.",
    )  # fmt: skip
