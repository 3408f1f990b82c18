"""The errors that a person can do something about: one sentence and an exit code each."""

import re

_NUMBER = re.compile(r"\[(?:Errno|WinError) -?\d+\] ?")


class LocalspecError(Exception):
    """A runtime failure. Its message is one sentence: what was wrong, with the value, and what to do."""

    exit_code = 1


class UsageMistake(LocalspecError):
    """A flag, a setting or an argument has a value that it cannot have."""

    exit_code = 2


class NotHere(LocalspecError):
    """A model or a drafter is not on this machine."""

    exit_code = 3


class DoesNotFit(LocalspecError):
    """More memory or disk is needed than there is."""

    exit_code = 4


class NotAllowed(LocalspecError):
    """A repository is gated, or the account has no access to it."""

    exit_code = 5


def first_line(error: BaseException | str) -> str:
    """The first line of another library's message without the number of an error, or its type where it has none."""
    return (_NUMBER.sub("", str(error)).strip().splitlines() or [type(error).__name__])[0]
