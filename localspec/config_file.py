"""Writes one setting into config.toml, which is the user's own: every other byte of it stays as it was."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localspec.config import read_toml
from localspec.errors import UsageMistake
from localspec.outside_files import parse_toml
from localspec.paths import private_directory, write_anew

_TABLE = re.compile(r"\s*\[")


def keep_setting(file: Path, name: str, value: str) -> None:
    """Sets `name` to the text `value`, atomically and readable for its owner alone; where it is a link, what it names.

    Raises UsageMistake where the file is no TOML, is written in a way that this does not understand, or cannot be
    written.
    """
    before = read_toml(file)
    if before.get(name) == value:
        return
    wanted = {**before, name: value}
    try:
        text = file.read_bytes().decode("utf-8-sig") if file.exists() else ""
        found = next((new for new in _attempts(text, name, value) if _means(new, wanted)), None)
        if found is None:
            line = f"{name} = {json.dumps(value, ensure_ascii=False)}"
            raise UsageMistake(f"{file} is written in a way that is left to you: put {line} there.")
        _replace(Path(os.path.realpath(file)), found)
    except OSError as error:
        raise UsageMistake(f"{file} cannot be written ({error.strerror}); correct its permissions.") from None


def _attempts(text: str, name: str, value: str) -> Iterator[str]:
    """The text with the value in the place of another one, else with a line more before the first table.

    What looks like a line of its own may stand inside a text of several lines: whoever asks for attempts tries them.
    """
    line, end = f"{name} = {json.dumps(value, ensure_ascii=False)}", "\r\n" if "\r\n" in text else "\n"
    key = re.compile(
        rf"""(?m)^([ \t]*(?:{name}|"{name}"|'{name}')[ \t]*=[ \t]*)("[^"\r\n]*"|'[^'\r\n]*'|[^\s#"'\[{{]+)"""
    )
    for found in key.finditer(text):
        yield text[: found.start(2)] + json.dumps(value, ensure_ascii=False) + text[found.end(2) :]
    lines = text.splitlines(keepends=True)
    tables = [at for at, one in enumerate(lines) if _TABLE.match(one)]
    for table in (*tables, len(lines)):
        at = table
        while at and (not lines[at - 1].strip() or (table < len(lines) and lines[at - 1].lstrip().startswith("#"))):
            at -= 1  # a comment before a table belongs to it
        above = "".join(lines[:at])
        yield above + (end if above and not above.endswith("\n") else "") + line + end + "".join(lines[at:])


def _means(text: str, wanted: dict[str, object]) -> bool:
    with suppress(ValueError):
        return parse_toml(text.encode()) == wanted
    return False


def _replace(file: Path, text: str) -> None:
    private_directory(file.parent)
    write_anew(file, text.encode())
