"""How one reads the conversation of the chat: from message to message, to its end, and what one takes along."""

from textual.screen import Screen

from localspec_tui.code_blocks import CodeCopies
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.keys_panel import KeysPanel
from localspec_tui.widgets.message_view import MessageView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.side_panel import SidePanel


class ReadingScreen(Screen[None]):
    """The part of the chat's screen that moves through messages and copies them. The chat sees to what stands here."""

    _conversation: ConversationView
    _code_copies: CodeCopies
    _panel: SidePanel
    _prompt: Prompt

    def type_here(self) -> None:
        """At once: what is typed next must not overtake."""
        self.set_focus(self._prompt)

    def is_for_prompt(self, key: str) -> bool:
        """Whether it does something where one types."""
        return key in self._prompt.own_keys

    def _chosen_source(self) -> str:
        """Of the message that was found, or has the focus, else of the last reply."""
        chosen = self._conversation.chosen
        return chosen.source if isinstance(chosen, MessageView) else self._conversation.last_reply or ""

    def action_copy(self) -> None:
        if source := self._chosen_source():
            self.app.copy_to_clipboard(source)
        else:
            self.notify("There is no reply to copy yet.", markup=False)

    def action_code(self) -> None:
        self._code_copies.copy(self.app, self._chosen_source())

    async def action_end(self) -> None:
        await self._conversation.follow()

    def action_walk(self, step: int) -> None:
        if self._conversation.found is not None:
            self.set_focus(self._conversation.found)
        elif not self._conversation.walk(step):
            self.type_here()

    def action_page(self, step: int) -> None:
        """Scroll by a page what covers the conversation, otherwise the conversation."""
        if shown := self.query(KeysPanel):
            shown.first().page(step)
        else:
            (self._panel if self._panel.covers else self._conversation).page(step)
