"""Sentences about thinking and about replies without text, and how `/think` is read."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.quantities import counted
from localspec.store.conversations import Turn

if TYPE_CHECKING:
    from localspec.chat.answerer import Chosen

WORDS = ("on", "off", "auto")
SHOW = "show"


class Thinker(Protocol):
    """A loaded model."""

    @property
    def choice(self) -> "Chosen":
        """In which form it answers."""
        ...

    def thinking(self, settings: Settings, system: str | None = None, /) -> bool | None:
        """Whether it is told to think. Raises UsageMistake where it would not heed it."""
        ...

    def thinks_by_itself(self, system: str | None = None, /) -> bool | None:
        """Whether it does where nobody says so; None where its chat template has no switch."""
        ...


def why_empty(turn: Turn, settings: Settings, model: Thinker, system: str | None) -> str | None:
    """Return the sentence for a reply that ended without text; None for any other reply."""
    if turn.reply or turn.reason not in ("stop", "length", "repetition"):
        return None
    if not (turn.reasoning or turn.figures.get("reasoning_tokens")):  # a mark of thinking counts as thought
        tokens = turn.figures.get("completion_tokens") or 0
        why = f"wrote {counted(tokens, 'token')} and no text" if tokens else "ended it at once"
        return f"The reply is empty: the model {why}."
    otherwise = ", or let it answer without thinking" if model.thinks_by_itself(system) is not None else ""
    if turn.reason == "repetition":
        return f"The thinking repeated itself, so there is no answer; ask again{otherwise}."
    if turn.reason == "stop":
        return f"The model thought and ended there, so there is no answer; ask again{otherwise}."
    if filled_context(turn, settings):
        longer = "begin a new conversation, or give a longer --context where the model allows one"
        return f"The thinking filled the context, so there is no answer; {longer}{otherwise}."
    tokens = turn.figures["completion_tokens"] or settings.max_tokens or 0
    return (
        f"The thinking took the whole limit of {counted(tokens, 'token')}, so there is no answer; allow it more "
        f"tokens{otherwise}."
    )


def filled_context(turn: Turn, settings: Settings) -> bool:
    """Whether a reply that ended at a limit did so where the context was full."""
    return settings.max_tokens is None or 0 < turn.figures["completion_tokens"] < settings.max_tokens  # 0: nobody told


def asked(rest: str) -> str:
    """What stands behind `/think`: on, off, auto, show or nothing. Raises UsageMistake."""
    word = rest.strip().lower()
    if word and word not in (*WORDS, SHOW):
        raise UsageMistake(f"/think takes on, off, auto or show, and {rest.strip()!r} was given; give one of these.")
    return word


class State(NamedTuple):
    """Whether a model thinks before it answers, and what `/think` takes for the other way."""

    sentence: str
    other: str


def state(settings: Settings, model: Thinker, system: str | None) -> State:
    """How it is now. Raises UsageMistake where what was asked for has no effect."""
    told, by_itself = model.thinking(settings, system), model.thinks_by_itself(system)
    if by_itself is None and model.choice.engine == "server":
        now = "auto" if told is None else "on" if told else "off"
        return State(f"The server is told so, and may heed it: /think {now}.", "off" if told else "on")
    if by_itself is None:
        return State("The chat template of this model has no switch for thinking.", "on")  # which is then refused
    thinks = by_itself if told is None else told
    now = "auto" if told is None else "on" if told else "off"
    others = " and ".join(f"/think {word}" for word in WORDS if word != now)
    does = "thinks before it answers" if thinks else "answers without thinking"
    return State(f"The model {does} (/think {now}); there are {others}.", "off" if thinks else "on")
