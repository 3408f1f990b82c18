"""A conversation as a Markdown document, and a new file for it."""

import os
import re
from pathlib import Path

from localspec.chat.figures import ending
from localspec.errors import UsageMistake
from localspec.store.conversations import Saved
from localspec.text import one_line, safe

_UNANSWERED = "*(no reply)*"
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_LONGEST_NAME = 60


def as_markdown(saved: Saved) -> str:
    """Return the whole conversation as Markdown that is safe to print on a terminal."""
    parts = [f"# {saved.info.title}"]
    if saved.system:
        parts.append(f"## System\n\n{_with_closed_fence(saved.system)}")
    for turn in saved.turns:
        parts.append(f"## You\n\n{_with_closed_fence(turn.prompt)}")
        answer = [_quoted(turn.reasoning)] if turn.reasoning else []
        answer += [_with_closed_fence(turn.reply)] if turn.reply else []
        how = ending(turn.reason, turn.figures)
        reply = "\n\n".join([*answer, *([f"*({how})*"] if how else [])]) if answer else _UNANSWERED
        parts.append(f"## localspec ({one_line(saved.info.model)})\n\n{reply}")
    return "\n\n".join(parts)


def _quoted(reasoning: str) -> str:
    """Return a thought as a quotation, so that its markup has no effect on the text after the quotation."""
    return "\n".join(f"> {line}".rstrip() for line in ["*Thought:*", "", *safe(reasoning).split("\n")])


def _with_closed_fence(text: str) -> str:
    """Make `text` safe, and close a code block that is still open, so that the text after it is not code."""
    text, fence = safe(text), ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
        elif match and match[1].startswith(fence) and line.strip() == match[1]:
            fence = ""
    return f"{text}\n{fence}" if fence else text


def proposed_file(title: str, directory: Path) -> str:
    """Return a file name made from the title that does not exist in the directory yet."""
    words = re.sub(r"[^\w]+", "-", title.lower()).strip("-_")[:_LONGEST_NAME].rstrip("-_") or "conversation"
    names = (f"{words}{number}.md" for number in ("", *(f"-{index}" for index in range(2, 1000))))
    return next((name for name in names if not os.path.lexists(directory / name)), f"{words}.md")


def write_new(text: str, name: str) -> Path:
    """Write a text to a new file that only its owner can read. Return its path.

    Raises UsageMistake if that fails, for example if the file already exists.
    """
    if not name.strip() or "\0" in name:
        raise UsageMistake("A file needs a name; give one.")
    path = Path(os.path.expanduser(name.strip())).absolute()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageMistake(f"{path} already exists, and nothing is overwritten; give another name.") from None
    except OSError as error:
        raise UsageMistake(f"{path} cannot be written ({error.strerror}); give another name.") from None
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UsageMistake(f"{path} cannot be written ({error.strerror}); make room, or give another name.") from None
    return path
