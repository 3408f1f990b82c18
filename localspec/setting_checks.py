"""What a value of a setting may be: each check returns the setting, or raises ValueError with what it must be."""

import re
from collections.abc import Callable, Mapping

HOTTEST = 100  # of temperatures: long before, any token is about as likely as any other
COLDEST = 1e-30  # those below count as this one: fp32 would make an infinite score of every logit
_MOST = 2**63 - 1  # of whole numbers, as the history can keep them
SERVER_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?(?P<path>/[\w./~%-]*)?",
    re.ASCII,
)


def text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("a text")


def name(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("a name")


def texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(text, str) and text for text in value):
        return tuple(value)
    raise ValueError("a list of texts, none of them empty")


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


def thinking(value: object) -> bool | None:
    """`auto` is what the chat template does by itself; so a flag or a variable can take back what a file says."""
    if value == "auto" or isinstance(value, bool):
        return None if value == "auto" else bool(value)
    raise ValueError("true, false or auto")


def integer(least: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST:
            return value
        too_large = isinstance(value, int) and value > _MOST
        raise ValueError(f"a whole number from {least} to {_MOST}" if too_large else f"a whole number from {least} up")

    return check


def number(description: str, allowed: Callable[[float], bool]) -> Callable[[object], float]:
    def check(value: object) -> float:
        # an integer beyond the floats cannot be meant, and would raise OverflowError
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and allowed(value):
            return float(value)
        raise ValueError(description)

    return check


def server(value: object) -> str:
    if isinstance(value, str) and (value == "off" or SERVER_URL.fullmatch(value)):
        return value
    raise ValueError("off, or an address such as http://localhost:8000/v1 (a key belongs into LOCALSPEC_SERVER_KEY)")


def one_of(*words: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ValueError(f"one of {', '.join(words)}")

    return check


def draft_max(value: object) -> int | str:
    if value == "auto":
        return "auto"
    try:
        return integer(0)(value)
    except ValueError as error:
        raise ValueError(f"auto or {error}") from None


def parts(*known: str) -> Callable[[object], tuple[str, ...]]:
    """Those parts of the drafter `ouroboros` that a list names, in their own order."""

    def check(value: object) -> tuple[str, ...]:
        if isinstance(value, list | tuple) and all(part in known for part in value) and len({*value}) == len(value):
            if "beside" in value and "lengthening" not in value:
                raise ValueError("a list in which beside comes with lengthening only, which makes the trees")
            return tuple(part for part in known if part in value)
        raise ValueError(f"a list of {', '.join(known)}, each of them once at most")

    return check


def device(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", value):
        return value
    raise ValueError("one of auto, cpu, cuda, cuda:0 (or another number), mps")


def keymap(value: object) -> dict[str, str]:
    """Also `chat.new = "f6"` without quotation marks around the name, which TOML takes for a table in a table."""
    flat: dict[str, str] = {}
    tables = [("", value)]
    for prefix, table in tables:
        if not isinstance(table, Mapping):
            raise ValueError('a table such as {"chat.new": "f6"}')
        for name, keys in table.items():
            if isinstance(keys, Mapping):
                tables.append((f"{prefix}{name}.", keys))
            elif isinstance(keys, str) and keys.strip():
                flat[f"{prefix}{name}"] = keys
            else:
                raise ValueError(
                    f'a table in which {prefix}{name} is a key such as "f6", or several with commas between'
                )
    return flat
