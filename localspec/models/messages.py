"""The messages of a conversation, and the rule that leaves the oldest turns out of a prompt."""

from collections.abc import Sequence

# {"role": "system" | "user" | "assistant", "content": text}. "reasoning_content" holds the thoughts before a reply.
Message = dict[str, str]


def turns_left_out(head: int, sizes: Sequence[int], turns: int, room: int) -> int:
    """Return how many of the oldest turns are left out of a conversation, so that it fits into `room` tokens.

    `sizes` are the tokens of each message after the system prompt, and `head` the tokens of the system prompt. `turns`
    is the number of turns before the last prompt; each has two messages.

    All prompts are tried again from the first one. When a prompt does not fit, the oldest turns are left out until half
    of the room is free. So the same turns are left out for many prompts, and the text before a prompt stays cached. The
    result follows from the sizes, so nothing has to be saved.

        room 10, sizes 2 2  2 2  2 2  2
        prompt 0, 1 and 2: 2, 6 and 10 fit
        prompt 3: 14 does not fit; turns 0, 1 and 2 are left out, until at most 5 are used
    """
    dropped, between = 0, 0  # `between` is the size of the turns from `dropped` up to the current prompt
    for turn in range(turns + 1):
        prompt = sizes[2 * turn] if turn < turns else sum(sizes[2 * turn :])
        if head + between + prompt > room:
            while dropped < turn and head + between + prompt > room // 2:
                between -= sizes[2 * dropped] + sizes[2 * dropped + 1]
                dropped += 1
        if turn < turns:
            between += prompt + sizes[2 * turn + 1]
    return dropped
