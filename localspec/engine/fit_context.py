"""How much of a conversation is read: what fits in the context of the model, and in memory."""

from collections.abc import Sequence
from dataclasses import replace

from localspec.decoding.limits import Limits
from localspec.engine.backends import Target
from localspec.errors import DoesNotFit, UsageMistake
from localspec.models.messages import Message

LONGEST_TOKEN = 256  # characters; a text longer than a context of such tokens is refused before it is tokenized


def fit_conversation(
    target: Target, messages: Sequence[Message], limits: Limits, room: int, think: bool | None = None
) -> tuple[list[int], int, Limits]:
    """Token ids of the conversation, how many of its oldest turns had to be left out, and the limits of the reply.

    `room` is how many tokens fit in memory: what is beyond it is treated like what is beyond the context.
    Raises UsageMistake for a prompt that the context has no room for, DoesNotFit for one that memory has none for.
    """
    messages, dropped = list(messages), 0
    longest = LONGEST_TOKEN * target.context
    first = 1 if len(messages) > 1 and messages[0]["role"] == "system" else 0
    if (length := _length([*messages[:first], messages[-1]])) > longest:
        raise UsageMistake(
            f"The prompt is {length} characters long, and the context holds {target.context} tokens; shorten it."
        )
    while _length(messages) > longest and len(messages) - first >= 3:
        del messages[first : first + 2]  # they cannot fit, which is known before they are tokenized
        dropped += 1
    while True:
        prompt = target.encode(messages, think)
        # What is left free for the reply: what was asked for, but never more than a quarter of the room.
        reply = min(limits.max_tokens or room, room // 4)
        if len(prompt) + reply <= room or len(messages) - first < 3:
            break
        del messages[first : first + 2]
        dropped += 1
    return prompt, dropped, _within(target, prompt, limits, room)


def fit_text(target: Target, text: str, limits: Limits, room: int) -> tuple[list[int], Limits]:
    """Token ids of a text that no chat template goes around, and the limits of what follows it.

    Raises UsageMistake for a text that the context has no room for, DoesNotFit for one that memory has none for.
    """
    if len(text) > LONGEST_TOKEN * target.context:
        raise UsageMistake(
            f"The prompt is {len(text)} characters long, and the context holds {target.context} tokens; shorten it."
        )
    prompt = target.chat.tokenizer.encode(text)
    return prompt, _within(target, prompt, limits, room)


def _within(target: Target, prompt: Sequence[int], limits: Limits, room: int) -> Limits:
    """The limits, lower where memory is; what the context has no room for is left to the session."""
    if room == target.context or len(prompt) + (limits.max_tokens or target.context) <= room:
        return limits
    if len(prompt) >= target.context:
        return limits
    if len(prompt) >= room:
        raise DoesNotFit(
            f"The prompt is {len(prompt)} tokens long, and the memory of {target.device} holds {room} now; shorten "
            "it, or close other programs."
        )
    return replace(limits, max_tokens=min(limits.max_tokens or room, room - len(prompt)))


def _length(messages: Sequence[Message]) -> int:
    """Characters of all the contents."""
    return sum(len(message["content"]) for message in messages)
