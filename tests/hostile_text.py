"""Text with terminal commands, and a search for them."""

import re

NAME = "evil\x1b]0;owned\x07\x9b31m\u202egnp\r\x08\x7fname"  # of a file; nothing but / and NUL is forbidden


def commands(shown: bytes) -> set[str]:
    """Return the characters that a terminal would obey, apart from newlines and tabs."""
    text = shown.decode("utf-8", "surrogateescape")
    forbidden = re.compile(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]"
    )
    return set(forbidden.findall(text))
