"""The widgets of prompts and notices. The widgets of replies are in reply_view.py, which takes longer to import."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from localspec.chat.attachments import ComposedPrompt
from localspec.text import safe
from localspec_tui.block_view import PlainText
from localspec_tui.laid_block import LaidOutOnce


class MessageView(LaidOutOnce, Vertical, can_focus=True):
    """The view of a prompt or a reply. alt+up, alt+down and clicks move the focus between these views.

    Text that is typed while a view has the focus still goes to the prompt field.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source  # as it was written


class PromptView(MessageView):
    """A prompt as it was typed. Files before it have one line each."""

    def __init__(self, prompt: ComposedPrompt) -> None:
        super().__init__(prompt.typed)
        self._files = prompt.files

    def compose(self) -> ComposeResult:
        if self._files:
            names = (name.rpartition("/")[2] for name in self._files)  # their directories are in the prompt itself
            yield Static("\n".join(f"+ {safe(name)}" for name in names), markup=False, classes="files")
        yield PlainText(self.source)


class NoticeView(Static):
    """A notice of localspec between the messages."""

    def __init__(self, sentence: str, *, trouble: bool = False) -> None:
        self.sentence = sentence
        mark = "✗" if trouble else "·"
        super().__init__(f"{mark} {safe(sentence)}", markup=False, classes="trouble" if trouble else "")
