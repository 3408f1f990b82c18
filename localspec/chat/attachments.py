"""Puts texts before the typed prompt: files named by `@path` or `--file`, and piped text."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from localspec.errors import UsageMistake
from localspec.outside_files import MIB, decoded, read_bytes
from localspec.quantities import counted, size
from localspec.store.conversations import Turn
from localspec.text import one_line

GIVEN = "the files of --file"
LONGEST = 4 * MIB  # bytes of one file: more than any context
LINE, LINES, LONG = "\n", 8, 1000  # lines and characters beyond which part of a prompt is hidden
PIECE = 20_000  # characters counted at a time, so that other threads get the interpreter
# After a letter it is an e-mail address.
_MENTION = re.compile(r'(?<![\w@])(\\?)@(?:"([^"\n]+)"|([^\s"]+))')
_CLOSING = ".,;:!?)]}'"
# Text of this form is taken for a file name, even if there is no such file.
_PATH = re.compile(
    r"(?:~|\.\.?)?/.*|[\w./~-]+\."
    r"(?:c|cpp|css|csv|go|h|html|ini|java|js|json|log|md|py|rs|rst|sh|sql|tex|toml|ts|txt|xml|yaml|yml)"
)


def joined(*parts: str) -> str:
    """Join texts by blank lines, leaving empty texts out."""
    return "\n\n".join(text for part in parts if (text := part.strip("\r\n")).strip())


class ComposedPrompt(NamedTuple):
    """A prompt: the text of files (`before`, ended by a blank line), then the `typed` text. `files` has the names and
    sizes of the files."""

    typed: str
    before: str = ""
    files: tuple[str, ...] = ()

    @property
    def prompt(self) -> str:
        """The text that the model reads."""
        return self.before + self.typed

    @property
    def figures(self) -> dict[str, Any]:
        """The facts to save with this prompt, so that `saved_prompt` can separate files and typed text again."""
        return {"typed_from": len(self.before), "files": list(self.files)} if self.before else {}

    def after(self, text: str, *names: str) -> "ComposedPrompt":
        """Return this prompt, preceded by `text`, the content of the files `names`."""
        head = joined(text)
        return ComposedPrompt(self.typed, f"{head}\n\n{self.before}", (*names, *self.files)) if head else self


def saved_prompt(turn: Turn) -> ComposedPrompt:
    """Return the prompt of a saved turn."""
    return ComposedPrompt(turn.typed, turn.prompt[: turn.typed_from], turn.files)


def with_piped(instruction: str, piped: str, files: str = "") -> ComposedPrompt:
    """Return the prompt of `run`, composed of files, piped text and an instruction. Any of these may be empty.

    Piped text goes in a code fence before the instruction. Without an instruction, it stays unchanged.
    """
    # When the instruction was before the fence as well, a model of 0.5 B parameters copied the text.
    typed, piped_text = joined(instruction), joined(piped)
    if not typed:
        return ComposedPrompt(joined(files, piped))
    prompt = ComposedPrompt(typed).after(files, GIVEN)
    if piped_text:
        label = one_line(f"standard input ({size(len(piped.encode()))})")
        prompt = ComposedPrompt(typed).after(joined(files, _fenced(piped_text)), *prompt.files, label)
    return prompt


def _fenced(text: str) -> str:
    """Return a text as a Markdown code block. Its fence is longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


class _Mention(NamedTuple):
    start: int
    end: int
    escaped: bool
    name: str


def with_files(text: str) -> ComposedPrompt:
    r"""Return a typed text as a prompt, with the files that the text names: `@path` or `@"path with spaces"`.

    A name that is neither a file nor like a path is ordinary text, and so is `\@path`. Raises one UsageMistake for all
    files that are missing, unreadable, or not text.
    """
    mentions = list(_mentions(text))
    texts, troubles = dict[str, str](), []
    for name in dict.fromkeys(mention.name for mention in mentions if not mention.escaped):
        try:
            texts[name] = _read(name)
        except _Unread as trouble:
            troubles.append(str(trouble))
    if troubles:
        raise UsageMistake(_refusal(troubles))
    for mention in reversed(mentions):
        if mention.escaped:
            text = text[: mention.start] + text[mention.start + 1 :]
    names = tuple(_label(name, content) for name, content in texts.items())
    return ComposedPrompt(text).after(joined(*texts.values()), *names)


def measured(text: str, count: Callable[[str], int] | None, context: int, *, visible: bool = False) -> list[str]:
    """Return sentences about the length and the files of a typed prompt, to be displayed before it is sent.

    The length is given only if the prompt is long and not completely `visible`. Each named file is read, for its size,
    tokens and problems. `count` counts tokens; it is None before a model is loaded. `context` is the model's limit.
    """
    sentences, tokens = [], 0
    mentions = [mention for mention in _mentions(text) if not mention.escaped]
    if mentions and mentions[-1].end == len(text) and not _is_there(mentions[-1].name):
        mentions.pop()  # still being typed
    names = dict.fromkeys(mention.name for mention in mentions)
    for name in names:
        try:
            content = _read(name)
        except _Unread as trouble:
            sentences.append(_refusal([str(trouble)]))
            continue
        counted_in_file = None if count is None else counted_tokens(content, count)
        tokens += counted_in_file or 0
        sentences.append(_label(name, content, counted_in_file))
    long = not visible and is_long(text)
    typed = counted_tokens(text, count) if count is not None and (tokens or long) else None
    if long:
        lines = counted(text.count(LINE) + 1, "line")
        sentences.insert(0, lines if typed is None else f"{lines}, {typed:,} tokens")
    if typed is not None and (total := tokens + typed) > context:
        sentences.insert(0, f"too long: {total:,} tokens, but the model reads at most {context:,}")
    return sentences


def is_long(text: str) -> bool:
    """Return whether an input field of a few lines shows only part of a text."""
    return len(text) > LONG or text.count(LINE) >= LINES


def counted_tokens(text: str, count: Callable[[str], int]) -> int:
    """Count the tokens of a text. A long text is counted in pieces, so the number may be slightly too high."""
    return sum(count(text[start : start + PIECE]) for start in range(0, len(text), PIECE))


def _mentions(text: str) -> Iterator[_Mention]:
    for match in _MENTION.finditer(text):
        escaped, quoted, bare = match[1] == "\\", match[2], match[3]
        names = [quoted] if quoted else [bare, bare.rstrip(_CLOSING)]
        name = next((name for name in names if name and _is_there(name)), None)
        # In program code, an @ follows a quote or a bracket.
        if name is None and not text[: match.start()][-1:].strip() and (quoted or _PATH.fullmatch(names[-1])):
            name = names[-1]
        if name is not None:
            yield _Mention(match.start(), match.end(), escaped, name)


def _is_there(name: str) -> bool:
    path = os.path.expanduser(name)
    return os.path.exists(path) and not os.path.isdir(path)


class _Unread(Exception):
    """An error: a file has no readable text. The message is a clause with the reason."""


def _refusal(clauses: Sequence[str]) -> str:
    return f"{', and '.join(clauses)}; name files that can be read as text, or write \\@ for a plain @."


def _read(name: str) -> str:
    try:
        return decoded(read_bytes(Path(os.path.expanduser(name)), LONGEST))
    except OSError as error:
        raise _Unread(f"@{name} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise _Unread(f"@{name} {error}") from None


def _label(name: str, content: str, tokens: int | None = None) -> str:
    length = "" if tokens is None else f", {tokens:,} tokens"
    return one_line(f"{name} ({size(len(content.encode()))}{length})")
