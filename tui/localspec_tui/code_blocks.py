"""The code in a message, to be copied by itself."""

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from textual.app import App

if TYPE_CHECKING:
    from localspec_tui.app import ChatApp


class CodeBlock(NamedTuple):
    """What stands between two fences, or indented, without its last line break; `language` may be empty."""

    language: str
    text: str


def code_blocks(source: str) -> list[CodeBlock]:
    """All of a message, in their order."""
    from localspec_tui.markdown_parser import parser  # which takes a while to import

    found = (token for token in parser().parse(source) if token.type in ("fence", "code_block"))
    # A line break at the end would send the last line to a shell that it is pasted into.
    return [CodeBlock(token.info, token.content.removesuffix("\n")) for token in found]


class CodeCopies:
    """The last block of a message first; asked again for the same message, the one before it, round and round."""

    def __init__(self) -> None:
        self._source, self._back = "", 0

    def next(self, source: str) -> tuple[CodeBlock, str] | None:
        """A block, and which of them it is, in words; None where there is none."""
        blocks = code_blocks(source)
        if not blocks:
            return None
        self._back = self._back + 1 if source == self._source else 0
        self._source = source
        at = len(blocks) - 1 - self._back % len(blocks)
        which = blocks[at].language or "code"
        if len(blocks) > 1:
            which += f", block {at + 1} of {len(blocks)}; once more for the one before"
        return blocks[at], which

    def copy(self, app: App[Any], source: str) -> None:
        """The next one, to the clipboard."""
        if found := self.next(source):
            block, which = found
            cast("ChatApp", app).copy_to_clipboard(block.text, which)
        else:
            app.notify("There is no code to copy here.", markup=False)
