"""What a conversation is made of."""

from collections.abc import Sequence

# {"role": "system" | "user" | "assistant", "content": text}; "reasoning_content" is what the assistant thought before
Message = dict[str, str]


def turns_left_out(head: int, sizes: Sequence[int], turns: int, room: int) -> int:
    """Return how many of the oldest turns are left out of a conversation, as the sizes of its messages say.

    They are left out where the conversation first outgrew the room, down to half of it, and again where the rest did.
    So the same turns are left out until it is full again. A program that starts again finds the same ones: nothing
    has to be remembered. `head` is what always stays.
    """
    dropped, between = 0, 0  # tokens of the turns that are not left out, up to the prompt
    for turn in range(turns + 1):
        prompt = sizes[2 * turn] if turn < turns else sum(sizes[2 * turn :])
        if head + between + prompt > room:
            while dropped < turn and head + between + prompt > room // 2:
                between -= sizes[2 * dropped] + sizes[2 * dropped + 1]
                dropped += 1
        if turn < turns:
            between += prompt + sizes[2 * turn + 1]
    return dropped
