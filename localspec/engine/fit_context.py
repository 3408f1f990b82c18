"""How much of a conversation is read: what fits in the context of the model, and in memory."""

from collections.abc import Sequence
from dataclasses import replace

from localspec.decoding.session import Limits
from localspec.errors import DoesNotFit, UsageMistake
from localspec.nn.target import Message, Target

LONGEST_TOKEN = 256  # characters; what is longer than a context of these need not be cut into tokens to be refused


def fitting(target: Target, messages: Sequence[Message], limits: Limits, holds: int) -> tuple[list[int], int, Limits]:
    """Token ids of the conversation, how many of its oldest turns had to be left out, and where the reply ends.

    `holds` is how many tokens memory holds: what is beyond is treated like what is beyond the context.
    Raises UsageMistake for a prompt that the model has no context for, DoesNotFit for one that there is no memory for.
    """
    messages, dropped = list(messages), 0
    if (length := len(messages[-1]["content"])) > LONGEST_TOKEN * target.context:
        raise UsageMistake(
            f"The prompt is {length} characters long, and the context holds {target.context} tokens; shorten it."
        )
    while True:
        prompt = target.encode(messages)
        first = 1 if messages[0]["role"] == "system" else 0
        # Room for an answer: what was asked for, but never more than a quarter of the context.
        room = min(limits.max_tokens or holds, holds // 4)
        if len(prompt) + room <= holds or len(messages) - first < 3:
            break
        del messages[first : first + 2]
        dropped += 1
    if holds == target.context or len(prompt) + (limits.max_tokens or target.context) <= holds:
        return prompt, dropped, limits
    if len(prompt) >= target.context:
        return prompt, dropped, limits  # which the session refuses
    if len(prompt) >= holds:
        raise DoesNotFit(
            f"The prompt is {len(prompt)} tokens long, and the memory of {target.device} holds {holds} now; shorten "
            "it, or close other programs."
        )
    return prompt, dropped, replace(limits, max_tokens=min(limits.max_tokens or holds, holds - len(prompt)))
