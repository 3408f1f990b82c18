"""What can go wrong that a person can do something about: one sentence and an exit code each."""


class LocalspecError(Exception):
    """A runtime failure. Its message is one sentence: what was wrong, with the value, and what to do."""

    exit_code = 1


class UsageMistake(LocalspecError):
    """A flag, a setting or an argument that cannot be meant."""

    exit_code = 2


class NotHere(LocalspecError):
    """A model or a drafter that is not on this machine."""

    exit_code = 3


class DoesNotFit(LocalspecError):
    """More memory or disk than there is."""

    exit_code = 4


class NotAllowed(LocalspecError):
    """Gated, or not authorised."""

    exit_code = 5


def first_line(error: Exception) -> str:
    """What another library's error says in its first line, or what it is."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
