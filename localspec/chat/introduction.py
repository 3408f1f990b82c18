"""The introduction of a model to its user: size, speed, expected quality, and prompts to start with."""

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
ELSEWHERE = "The model answers on a server: everything you write is sent there. Conversations are saved here."
TINY = 100e6  # parameters up to which a model can answer none of those prompts
# What models of up to this many parameters are usually good for.
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
    """The facts about a model that are displayed before the first prompt."""

    name: str
    parameters: int  # 0 for a model on another machine
    precision: str
    device: str
    pace: tuple[str, ...]  # the expected speed, in the words of the list of models
    toy: bool
    starters: tuple[str, ...]

    @property
    def facts(self) -> str:
        """The size, precision, device and speed of the model, in words."""
        if not self.parameters:
            return self.device
        return " · ".join((f"{parameters_words(self.parameters)} parameters", self.precision, self.device, *self.pace))

    @property
    def expectation(self) -> str:
        """A sentence on how well the model answers."""
        if not self.parameters:
            return ELSEWHERE
        return TOY if self.toy else next(words for limit, words in EXPECTATIONS if self.parameters <= limit)


def introduction(engine: "Answerer", card: TargetCard) -> Introduction:
    """Return the introduction of an engine's model."""
    choice, entry = engine.choice, card.entry
    return Introduction(
        name=card.name,
        parameters=engine.parameters,
        precision=precision_in_words(choice.dtype, choice.quantize, choice.bits),
        device=choice.device,
        pace=tuple(choice.pace),
        toy=entry is not None and entry.toy,
        starters=_starters_of(card) or _starters_for(engine.parameters),
    )


def expected_starters(card: TargetCard, elsewhere: bool) -> tuple[str, ...]:
    """Return suggested first prompts for a model that is not loaded yet, chosen by its number of parameters.

    `elsewhere` says that the model is on a server.
    """
    if elsewhere or _starters_of(card):
        return _starters_of(card) or STARTERS
    try:
        return _starters_for(inspect(card.path).parameters)
    except LocalspecError:  # loading it will report the error
        return ()


def _starters_for(parameters: int) -> tuple[str, ...]:
    return () if 0 < parameters <= TINY else STARTERS


def _starters_of(card: TargetCard) -> tuple[str, ...]:
    return card.entry.starters if card.entry else ()


UNSEEN = dict.fromkeys((0x200B, 0x2060, 0xFEFF))  # characters without width that join and shape nothing


def farewell(conversation: Conversation, title: str, unsent: str = "") -> str | None:
    """Return a line that says what is saved, how to continue, and what is lost; None if there is nothing to say.

    `unsent` is the reason why an unsent prompt is lost; empty if none is lost.
    """
    called = f"“{title.translate(UNSEEN)}”"  # it is printed to a shell, from where it may be copied
    typed = "your unsent prompt"
    if conversation.lasts:
        lost = " nor ".join(filter(None, (conversation.unsaved_words, typed if unsent else "")))
        saved = f"{called} is saved, but not {lost}" if lost else f"{called} is saved"
        return one_line(f"{saved}; continue with: localspec chat --conversation {conversation.id}")
    if conversation.unsaved:
        if unsent:
            return one_line(f"{called} and {typed} are not saved: {conversation.trouble}")
        return one_line(f"{called} is not saved: {conversation.trouble}")
    return one_line(f"Your unsent prompt is not saved: {unsent}") if unsent else None
