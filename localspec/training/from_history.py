"""The user's own conversations as training text. It is private: it stays on this machine."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.bench.prompts import BenchPrompt
from localspec.models.messages import Message
from localspec.store.conversations import Saved, Turn
from localspec.store.history import History
from localspec.training.examples import Question

HELD_OUT = 0.125  # of the conversations, by digests of their beginnings: the same ones after others were added
BENCHED = 12  # of those, at most
WHOLE = ("stop", "length")  # reasons for the end of an uninterrupted reply


@dataclass(frozen=True)
class PastConversation:
    """A saved conversation in which every reply is the model's own."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Past:
    """A user's conversations, the newest first: those to learn from directly, those whose prompts the model answers
    again, and held-out prompts, which are not in either."""

    own: Sequence[PastConversation]
    questions: Sequence[Question]
    held_out: Sequence[BenchPrompt]


def read_past(history: History, model: str) -> Past:
    """Return the saved conversations. Replies count as those of `model` if the conversation used it last.

    Raises StoreTrouble.
    """
    saved = [found for info in history.conversations() if (found := history.read(info.id)) is not None]
    apart = {one.turns[0].prompt for one in saved if _is_held_out(one.turns[0].prompt)}
    own: list[PastConversation] = []
    questions: list[Question] = []
    for one in saved:
        turns = [turn for turn in one.turns if turn.prompt.strip()]
        if not turns or apart & {turn.prompt for turn in turns}:
            continue
        name = _name(one.info.id, turns)
        if one.info.model == model and (messages := _as_held(one, turns)):
            own.append(PastConversation(name, messages))
        else:
            first, *following = [turn.prompt for turn in turns]
            questions.append(Question(name, (*_system(one), {"role": "user", "content": first}), tuple(following)))
    benched = sorted(apart, key=_digest)[:BENCHED]
    return Past(
        own, questions, [BenchPrompt(f"yours-{number}", "yours", text) for number, text in enumerate(benched, start=1)]
    )


def _is_held_out(prompt: str) -> bool:
    return bool(prompt.strip()) and int.from_bytes(_digest(prompt)[:4], "big") < HELD_OUT * 2**32


def _name(conversation: int, turns: Sequence[Turn]) -> str:
    """Return a name for a conversation. It changes with each further turn, because the text has changed."""
    said = hashlib.sha256("\0".join(text for turn in turns for text in (turn.prompt, turn.reply)).encode())
    return f"history-{conversation}-{said.hexdigest()[:8]}"


def _digest(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode()).digest()


def _as_held(one: Saved, turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Return the turns before the first reply that was interrupted or is missing."""
    messages: list[Message] = []
    for turn in turns:
        if turn.reason not in WHOLE or not turn.reply.strip():
            break
        messages += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": turn.reply}]
    return (*_system(one), *messages) if messages else ()


def _system(one: Saved) -> tuple[Message, ...]:
    return ({"role": "system", "content": one.system},) if one.system else ()
