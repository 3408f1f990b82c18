"""Fits a conversation into the context of the model and into memory, by leaving out the oldest turns."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from localspec.decoding.limits import Limits
from localspec.engine.backends import Target
from localspec.errors import DoesNotFit, UsageMistake
from localspec.models.encoding import Unwanted, stopping_unless
from localspec.models.messages import Message, turns_left_out

LONGEST_TOKEN = 256  # characters; a text longer than a context of such tokens is refused before it is tokenized
LIKELY = 8  # characters per token; a conversation longer than a room of such tokens is not tokenized as a whole
FRAME = 8  # tokens that a chat template adds to a message, about
STEPS = 8  # the room for a conversation is rounded down to eighths of the context


class Overlong(UsageMistake):
    """An error: the conversation does not fit, and none of its turns may be left out."""


def fit_conversation(
    target: Target,
    messages: Sequence[Message],
    limits: Limits,
    room: int,
    think: bool | None = None,
    *,
    whole: bool = False,
    wanted: Callable[[], bool] = lambda: True,
) -> tuple[list[int], int, Limits]:
    """Return the token ids of a conversation, the number of oldest turns that were left out, and the reply's limits.

    `room` is the number of tokens that fit in memory, at most the context. With `whole`, no turn is left out. `wanted`
    says whether the reply is still wanted. It is called again and again, because tokenizing may take long.

    Raises UsageMistake if the prompt does not fit in the context, DoesNotFit if it does not fit in memory, Overlong if
    the conversation does not fit with `whole`, and Unwanted once `wanted` returns False.
    """
    longest = LONGEST_TOKEN * target.context
    first = 1 if len(messages) > 1 and messages[0]["role"] == "system" else 0
    if (length := _characters([*messages[:first], messages[-1]])) > longest:
        raise UsageMistake(
            f"A prompt of {length} characters is too long for a context of {target.context} tokens; shorten it."
        )
    turns = max(0, (len(messages) - first - 1) // 2)  # turns that can be left out
    # Round the room, so that a small change of free memory leaves out the same turns.
    step = max(1, target.context // STEPS)
    steady = room - room % step if room >= step else room
    # Reserve room for the reply: its limit, but at most a quarter of the room.
    reply = min(limits.max_tokens or steady, steady // 4)

    def read(dropped: int) -> list[int]:
        if not wanted():
            raise Unwanted
        with stopping_unless(wanted):
            return target.encode([*messages[:first], *messages[first + 2 * dropped :]], think)

    def count(message: Message) -> int:
        """Return the approximate number of tokens of a message in a prompt.

        A message that cannot fit is not tokenized.
        """
        if not wanted():
            raise Unwanted
        with stopping_unless(wanted):
            return FRAME + (room if len(message["content"]) > longest else target.chat.count(message["content"]))

    dropped, length = 0, _characters(messages)
    prompt = read(0) if not turns or length <= (longest if whole else LIKELY * room) else None
    if turns and (prompt is None or len(prompt) + reply > room):
        if whole:
            raise Overlong(
                f"The conversation is longer than the model's context of {target.context} tokens; send less of it."
            )
        head, sizes = sum(map(count, messages[:first])), [*map(count, messages[first:])]
        for share in range(STEPS, -1, -1):  # a smaller share if the template adds more than FRAME
            dropped = turns_left_out(head, sizes, turns, (steady - reply) * share // STEPS)
            prompt = read(dropped)
            if len(prompt) + reply <= room or dropped == turns:
                break
    assert prompt is not None
    return prompt, dropped, _within(target, prompt, limits, room)


def fit_text(target: Target, text: str, limits: Limits, room: int) -> tuple[list[int], Limits]:
    """Return the token ids of a text without a chat template, and the limits of its continuation.

    Raises UsageMistake if the text does not fit in the context, DoesNotFit if it does not fit in memory.
    """
    if len(text) > LONGEST_TOKEN * target.context:
        raise UsageMistake(
            f"A prompt of {len(text)} characters is too long for a context of {target.context} tokens; shorten it."
        )
    prompt = target.chat.tokenizer.encode(text)
    return prompt, _within(target, prompt, limits, room)


def _within(target: Target, prompt: Sequence[int], limits: Limits, room: int) -> Limits:
    """Return the limits, lowered to the room in memory. The session applies the limit of the context."""
    if room == target.context or len(prompt) + (limits.max_tokens or target.context) <= room:
        return limits
    if len(prompt) >= target.context:
        return limits
    if len(prompt) >= room:
        raise DoesNotFit(
            f"The prompt is {len(prompt):,} tokens long, but the memory of {target.device} now holds {room:,}; shorten "
            "it, or close other programs."
        )
    return replace(limits, max_tokens=min(limits.max_tokens or room, room - len(prompt)))


def _characters(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)
