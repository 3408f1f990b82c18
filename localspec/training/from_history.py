"""The user's own conversations as something to learn from. What is read here is private: it stays on this machine."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.bench.prompts import BenchPrompt
from localspec.models.messages import Message
from localspec.store.conversations import Saved, Turn
from localspec.store.history import History
from localspec.training.examples import Question

HELD_OUT = 0.125  # of the conversations, by the digests of how they began: the same ones when others have come
BENCHED = 12  # of those, at most
WHOLE = ("stop", "length")  # how a reply ended that nobody interrupted


@dataclass(frozen=True)
class PastConversation:
    """A conversation as it was held: every reply is the model's own."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Past:
    """Conversations of the user, the newest first: those to learn from as they are, those whose prompts the model is to
    answer itself, and prompts that are held out, which stand in neither."""

    own: Sequence[PastConversation]
    asked: Sequence[Question]
    held_out: Sequence[BenchPrompt]


def read_past(history: History, model: str) -> Past:
    """Return the saved conversations; the replies are `model`'s own where it is the one that was last used there.

    Raises StoreTrouble.
    """
    saved = [found for info in history.conversations() if (found := history.read(info.id)) is not None]
    apart = {one.turns[0].prompt for one in saved if _is_held_out(one.turns[0].prompt)}
    own: list[PastConversation] = []
    asked: list[Question] = []
    for one in saved:
        turns = [turn for turn in one.turns if turn.prompt.strip()]
        if not turns or apart & {turn.prompt for turn in turns}:
            continue
        name = _name(one.info.id, turns)
        if one.info.model == model and (messages := _as_held(one, turns)):
            own.append(PastConversation(name, messages))
        else:
            first, *following = [turn.prompt for turn in turns]
            asked.append(Question(name, (*_system(one), {"role": "user", "content": first}), tuple(following)))
    benched = sorted(apart, key=_digest)[:BENCHED]
    return Past(
        own, asked, [BenchPrompt(f"yours-{number}", "yours", text) for number, text in enumerate(benched, start=1)]
    )


def _is_held_out(prompt: str) -> bool:
    return bool(prompt.strip()) and int.from_bytes(_digest(prompt)[:4], "big") < HELD_OUT * 2**32


def _name(conversation: int, turns: Sequence[Turn]) -> str:
    """Return another one once the conversation has gone on: then it is another text."""
    said = hashlib.sha256("\0".join(text for turn in turns for text in (turn.prompt, turn.reply)).encode())
    return f"history-{conversation}-{said.hexdigest()[:8]}"


def _digest(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode()).digest()


def _as_held(one: Saved, turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Return the turns up to the first reply that was interrupted or never came."""
    messages: list[Message] = []
    for turn in turns:
        if turn.reason not in WHOLE or not turn.reply.strip():
            break
        messages += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": turn.reply}]
    return (*_system(one), *messages) if messages else ()


def _system(one: Saved) -> tuple[Message, ...]:
    return ({"role": "system", "content": one.system},) if one.system else ()
