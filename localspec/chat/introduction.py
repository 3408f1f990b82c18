"""Which model answers, how well it can be expected to, and what one may begin with."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.chat.conversation import Conversation
from localspec.errors import LocalspecError
from localspec.models.registry import TargetCard
from localspec.quantities import parameters_words, precision_in_words
from localspec.text import one_line
from localspec.weights.checkpoint import inspect

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer

STARTERS = (
    "Explain recursion with a small example in Python.",
    "Write one short paragraph three times, word for word.",
    "Make this more polite: send me the report today.",
)
ELSEWHERE = "It answers on a server: everything you write goes there. Conversations are saved here."
TINY = 100e6  # parameters, up to which a model answers none of those prompts
# What models of up to so many parameters are good for, as a rule.
EXPECTATIONS = (
    (TINY, "A tiny model: it writes sentences, and is wrong most of the time."),
    (1e9, "A very small model: fluent and often wrong; check what it says."),
    (4e9, "A small model: good at short texts and simple questions; check facts and figures."),
    (15e9, "A mid-sized model: good for most everyday tasks; check facts and figures."),
    (float("inf"), "A large model: good at most tasks; check facts and figures."),
)
TOY = "A toy for trying localspec without a network; do not rely on anything it says."


@dataclass(frozen=True)
class Introduction:
    """What a person should know of a model before the first prompt."""

    name: str
    parameters: int  # 0 of a model that is elsewhere
    precision: str
    device: str
    pace: tuple[str, ...]  # how fast it can be expected to answer, in the words of the list of models
    toy: bool
    starters: tuple[str, ...]

    @property
    def facts(self) -> str:
        """Size, precision, device, pace."""
        if not self.parameters:
            return self.device
        return " · ".join((f"{parameters_words(self.parameters)} parameters", self.precision, self.device, *self.pace))

    @property
    def expectation(self) -> str:
        """A sentence on how well it answers."""
        if not self.parameters:
            return ELSEWHERE
        return TOY if self.toy else next(words for most, words in EXPECTATIONS if self.parameters <= most)


def introduction(engine: "Answerer", card: TargetCard) -> Introduction:
    """Introduces the model of an engine."""
    choice, entry = engine.choice, card.entry
    return Introduction(
        name=card.name,
        parameters=engine.parameters,
        precision=precision_in_words(choice.dtype, choice.quantize, choice.bits),
        device=choice.device,
        pace=tuple(choice.pace),
        toy=entry is not None and entry.toy,
        starters=_own_starters(card) or _starters_for(engine.parameters),
    )


def expected_starters(card: TargetCard, elsewhere: bool) -> tuple[str, ...]:
    """Those of a model that is not loaded yet, as the head of its files tells its size. `elsewhere`: at a server."""
    if elsewhere or _own_starters(card):
        return _own_starters(card) or STARTERS
    try:
        return _starters_for(inspect(card.path).parameters)
    except LocalspecError:  # loading it will tell
        return ()


def _starters_for(parameters: int) -> tuple[str, ...]:
    return () if 0 < parameters <= TINY else STARTERS


def _own_starters(card: TargetCard) -> tuple[str, ...]:
    return card.entry.starters if card.entry else ()


UNSEEN = dict.fromkeys((0x200B, 0x2060, 0xFEFF))  # characters of no width that join and shape nothing


def farewell(conversation: Conversation, title: str, unsent: str = "") -> str | None:
    """Return one line that says what is saved, how to go on, and what is lost. None if there is nothing to say.

    `unsent` is the reason why a text that was typed and not sent is lost, if it is.
    """
    called = f"“{title.translate(UNSEEN)}”"  # it goes to a shell, from where it may be copied
    typed = "what was typed and not sent"
    if conversation.lasts:
        lost = [*filter(None, (conversation.unkept_words, typed if unsent else ""))]
        but = f", but not {' nor '.join(lost)}" if lost else ""
        return one_line(f"{called} is saved{but}; continue with: localspec chat --conversation {conversation.id}")
    if conversation.unkept:
        return one_line(f"{called} is not saved{f', nor is {typed}' if unsent else ''}: {conversation.trouble}")
    return one_line(f"Your unsent draft is not saved: {unsent}") if unsent else None
