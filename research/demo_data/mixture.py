"""The sources of the demo model's training data, and how much of each source is used in each stage.

The long stage teaches the language. The last one is short, and mostly chat. Drafters learn from the data of the last
one.
"""

from dataclasses import dataclass

from demo_data import calendar, conversations, limits, rewriting, smalltalk, stories, sums, things, writing
from demo_data.drawing import Draw


@dataclass(frozen=True)
class Share:
    """A source's share of a pass in each stage: how often each example occurs, or how many examples are generated."""

    long: float
    last: float
    why: str

    def of(self, stage: str) -> float:
        """Return the share in the stage "long", "last" or "draft". "draft" has the share of "last"."""
        return self.long if stage == "long" else self.last


GENERATORS: dict[str, Draw] = {
    "made-stories": stories.draw, "made-reading": stories.draw_reading, "made-sums": sums.draw,
    "made-rewriting": rewriting.draw, "made-calendar": calendar.draw, "made-things": things.draw,
    "made-smalltalk": smalltalk.draw, "made-limits": limits.draw, "made-writing": writing.draw,
    "made-conversations": conversations.draw,
}  # fmt: skip
MADE = {  # examples a pass
    "made-stories": Share(20_000, 2_000, "one subject over many sentences, cause and effect"),
    "made-reading": Share(12_000, 1_500, "answers that stand in the prompt"),
    "made-sums": Share(30_000, 4_000, "small sums need every pair of digits often"),
    "made-rewriting": Share(30_000, 4_000, "copying is what makes names and lists come out right"),
    "made-calendar": Share(12_000, 1_500, "days, dates and units, right by computing"),
    "made-things": Share(12_000, 2_000, "the little that everybody knows"),
    "made-smalltalk": Share(10_000, 2_000, "short friendly turns, and remembering within a chat"),
    "made-limits": Share(4_000, 1_500, "an honest no in place of an invention"),
    "made-writing": Share(10_000, 2_000, "sentences that stay with a given subject; notes and advice"),
    "made-conversations": Share(14_000, 2_000, "several turns, each answered for itself"),
}
SHARED = {  # views an example
    "african-storybook": Share(1, 0, "clean simple stories"),
    "pratham-books": Share(1, 0, "clean simple stories"),
    "stories": Share(1, 0.3, "the same on request"),
    "fairytaleqa-stories": Share(0.2, 0, "plain narrative, somewhat old"),
    "standardebooks": Share(0.05, 0, "a little real prose for the vocabulary of users"),
    "fairytaleqa": Share(0.1, 0.03, "questions on real text; most need more than this model has"),
    "wordnet-definitions": Share(0.15, 0.1, "short and regular; the words are many"),
    "identity": Share(3, 3, "who it is"),
    "botframework-chitchat": Share(1, 0.2, "short turns in many phrasings"),
    "jokes": Share(1, 1, "asked for at once by everybody"),
    "corpora-lists": Share(1, 0.5, "short lists"),
    "countries": Share(2, 1, "a closed table that can be known"),
    "rasbt-instruct": Share(1, 1, "clean short instructions"),
    "synthetic-persona-chat": Share(0.15, 0, "simple turns, but speaks as a person"),
    "generated-arithmetic": Share(0.2, 0.05, "other phrasings of sums"),
    "generated-copying": Share(0.5, 0.2, "other phrasings of copying, on real sentences"),
    "oasst-model-outputs": Share(0.05, 0, "the phrasings of real users; answers invent"),
}  # left out: what is web-like, invents, or is beyond the size (code, shell, textbooks, trivia, word problems, booking)
