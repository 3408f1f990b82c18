"""The main screen of the chat: the conversation, a line about the progress of the reply, and the prompt field."""

from typing import TYPE_CHECKING

from textual import work
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.geometry import Offset
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from localspec.chat.commands import is_command, look_up, read
from localspec.errors import LocalspecError
from localspec_tui import keymap, messages, slash_commands
from localspec_tui.block_view import BlockView
from localspec_tui.clipboard import CodeCopies
from localspec_tui.editor import edit_prompt
from localspec_tui.engine_thread import EngineThread
from localspec_tui.screens.choices import ConversationChoice, ModelChoice, ReplySettings
from localspec_tui.screens.dialogs import StableLayout
from localspec_tui.turns import Outbox, Turns, UnsentText
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.download_line import DownloadLine
from localspec_tui.widgets.find_line import Finder, FindLine
from localspec_tui.widgets.first_screen import FirstScreen
from localspec_tui.widgets.keys_panel import KeysFooter, KeysPanel, of_the_chat
from localspec_tui.widgets.message_view import NoticeView
from localspec_tui.widgets.mounted_turns import import_replies
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.side_panel import LEAST_COLUMNS, SidePanel
from localspec_tui.widgets.status_line import AttachedLine, BelowLine, LiveLine, TopLine, UnsavedLine, WaitingLine
from localspec_tui.widgets.suggestions import Suggestions

if TYPE_CHECKING:
    from localspec_tui.screens.download import DownloadScreen

DRAFT_SECONDS = 1.0  # of typing that may be lost if the process is killed
KEYS: list[BindingType] = [
    # Keys for a narrow footer come first. Those with a tooltip are in the palette too.
    Binding("escape", "stop", "Stop", tooltip="Stop the reply; the text so far stays", id="chat.stop"),
    Binding("escape", "back", "Return to the prompt", id="chat.back", show=False),
    Binding("f1", "keys", "Keys", tooltip="Show or hide all keys and commands", id="chat.help"),
    Binding("ctrl+q", "app.quit", "Quit", tooltip="Leave the chat", id="app.quit"),
    Binding("ctrl+n", "new", "New", tooltip="Begin a new conversation", id="chat.new"),
    Binding("ctrl+r", "conversations", "Resume", tooltip="Continue an earlier conversation", id="chat.resume"),
    Binding("ctrl+o", "models", "Model", tooltip="Change the model", id="chat.models"),
    Binding("f4", "panel", "Figures", tooltip="Show or hide the panel of figures", id="chat.panel"),
    Binding("ctrl+s", "system", "System", tooltip="Set the system prompt", id="chat.system"),
    Binding("f5", "again", "Again", tooltip="Answer the last prompt again", id="chat.again"),
    Binding("f2", "edit", "Edit", tooltip="Edit the last prompt, or the one in focus", id="chat.edit"),
    Binding("ctrl+t", "xray", "X-ray", tooltip="Show which drafter proposed each token of a reply", id="chat.xray"),
    Binding("ctrl+l", "copy", "Copy", tooltip="Copy the last reply, or the message in focus", id="chat.copy"),
    Binding("ctrl+f", "find", "Find", tooltip="Find words in this conversation", id="chat.find"),
    Binding("f3", "sampling", "Sampling", tooltip="Change how replies are sampled", id="chat.sampling"),
    Binding("f9", "race", "Race", tooltip="Race the model against itself without drafts", id="chat.race", show=False),
    Binding("f8", "phrases", "Phrases", tooltip="Show the saved phrases", id="chat.phrases", show=False),
    Binding("alt+up", "walk(-1)", "Go to the message above", id="chat.above", show=False),
    Binding("alt+down", "walk(1)", "Go to the message below", id="chat.below", show=False),
    Binding("alt+c", "code", "Code", tooltip="Copy only the code of a reply", id="chat.code", show=False),
    Binding(
        "alt+t", "thoughts", "Thoughts", tooltip="Show or fold the model's thoughts", id="chat.thoughts", show=False
    ),
    Binding("ctrl+g", "editor", "Editor", tooltip="Write in your own editor", id="chat.editor", show=False),
    Binding("pageup", "page(-1)", "Scroll up", id="chat.page_up", show=False),
    Binding("end,ctrl+end", "end", "Go to the end of the conversation", id="chat.end", show=False),
    Binding("pagedown", "page(1)", "Scroll down", id="chat.page_down", show=False),
]


def _download_screen(model: str) -> "DownloadScreen":
    from localspec_tui.screens.download import DownloadScreen  # after the first paint

    return DownloadScreen(model)


class ChatScreen(StableLayout, Screen[None]):
    """A screen with the widgets of the chat, and with the objects that act on them.

    The screen passes messages and keys on to these objects.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-wide"), (LEAST_COLUMNS, "-panel")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (14, "-high"), (28, "-tall")]  # noqa: RUF012  # of 24 lines, the panel needs each
    BINDINGS = KEYS

    def __init__(self, engine: EngineThread, first: str | None, files: str, saved: bool) -> None:
        super().__init__()
        self.engine = engine
        self.top, self.live, self.panel = TopLine(saved), LiveLine(), SidePanel()
        self._below, self._find, self.first = BelowLine(), FindLine(), FirstScreen()
        self.view = ConversationView(self._below.show)
        self.waiting, self._unsaved = WaitingLine(), UnsavedLine()
        self._attached = AttachedLine(engine.model.files_in)
        self._suggestions = Suggestions(lambda need: look_up(need, self.conversations.history))
        self.prompt = Prompt(self._suggestions, self.first.starter)
        self._refused: NoticeView | None = None  # about the last line that was refused
        self._code_copies = CodeCopies()
        self.outbox = Outbox(first, files)
        self.download = DownloadLine(engine.settings, _download_screen)
        self.finder = Finder(self.view, self._find)
        self.turns: Turns = Turns(self)
        self.models = ModelChoice(self)
        self.settings = ReplySettings(self)
        self.draft = UnsentText(self)
        self.conversations: ConversationChoice = ConversationChoice(self)

    def compose(self) -> ComposeResult:
        yield self.top
        with Horizontal(id="middle"):
            with Vertical(id="talk"):
                yield self.first
                yield self.view
            yield self.panel
        yield from (self._find, self._below, self._unsaved, self.waiting, self.download)
        yield from (self.live, self._attached, self._suggestions)
        with Horizontal(id="input"):
            yield Static("❯", id="mark")
            yield self.prompt
        yield KeysFooter()

    def on_mount(self) -> None:
        self.prompt.focus()
        self.prompt.remember(self.outbox.typed)
        self.turns.show_waiting()
        self.call_after_refresh(self.engine.begin, self.post_message)  # the first paint does not wait for it

    async def on_resize(self) -> None:
        await self.finder.show_again()

    # -- typed text ---------------------------------------------------------------------------------------------------

    async def on_prompt_sent(self, sent: Prompt.Sent) -> None:
        await self.view.forget(self._refused)
        self._refused = None
        if not self.has_class("-panel"):  # without that panel, the keys cover the reply
            await self.query(KeysPanel).remove()
        try:
            line = read(sent.text)
            if line.command:
                if (doing := slash_commands.COMMANDS[line.command](self, line.rest)) is not None:
                    await doing
            else:
                prompt = await self.turns.read(line.rest)
        except LocalspecError as mistake:
            self.prompt.give_back(sent.text)
            if is_command(sent.text):
                self.prompt.select_all()  # to be changed, or replaced by typing
            self._refused = await self.view.tell(str(mistake), trouble=True)
            return
        if not line.command:
            await self.turns.send(prompt)

    def on_text_area_changed(self, changed: Prompt.Changed) -> None:
        self._attached.look(changed.text_area.text)

    def on_option_list_option_selected(self, clicked: Suggestions.OptionSelected) -> None:
        self.prompt.complete(self._suggestions.line_of(clicked.option_index))

    def on_first_screen_chosen(self, chosen: FirstScreen.Chosen) -> None:
        self.prompt.put(chosen.prompt)

    async def on_find_line_searched(self, request: FindLine.Searched) -> None:
        await self.finder.search(request)

    async def on_find_line_closed(self, left: FindLine.Closed) -> None:
        if (back := self.finder.leave()) is not None and left.back:
            self.type_here()
            await back()

    def type_here(self) -> None:
        """Move the focus to the prompt field at once, so that typed text goes there."""
        self.set_focus(self.prompt)

    @property
    def types_elsewhere(self) -> bool:
        """Return whether typed text goes to another field, and not to the prompt."""
        return isinstance(self.focused, Input)

    def is_for_prompt(self, key: str) -> bool:
        """Return whether a key has an effect in the prompt."""
        return key in self.prompt.own_keys

    async def _save_draft(self) -> None:
        await self.draft.save()
        self._unsaved.show_typed(self.draft.trouble)

    # -- messages of the engine's thread ------------------------------------------------------------------------------

    async def on_chat_opened(self, opened: messages.ChatOpened) -> None:
        self.conversations.history = opened.history
        self.prompt.remember(list(reversed(opened.prompts)))
        if opened.drafts is not None:
            self.draft.save_to(opened.drafts)
            self.set_interval(DRAFT_SECONDS, self._save_draft)

    async def on_conversation_shown(self, shown: messages.ConversationShown) -> None:
        self.settings.begin(shown.system)
        self.turns.edited = None
        self.outbox.to_be_shown -= 1
        if self.types_elsewhere:
            self.type_here()
        self.finder.leave()
        answered = shown.turns[:-1] if shown.unanswered is not None else shown.turns
        self.top.call(shown.title)
        self.first.show_file(self.engine.conversation.file)
        await self.view.show(answered, self.engine.traces)
        self.first.begin(shown.last, hidden=bool(shown.turns or self.outbox.waiting))
        if shown.unanswered is not None:
            self.prompt.give_back(shown.unanswered)
        if left := [*shown.left, *filter(None, [self.draft.take_aside(shown.number)])]:
            self.prompt.put("\n\n".join(filter(None, (*left, self.prompt.text))))
            self.first.offer_none()
            await self.view.tell("Restored your unsent prompt.")
        elif shown.waiting:
            where = f"“{shown.waiting}” ({self._key('chat.resume')})"
            await self.view.tell(f"Your unsent prompt waits in {where}.")
        if self.outbox.files and not self.outbox.waiting:
            await self.view.tell("The text of the files goes before the next prompt.")
        if self.outbox.model_loaded:
            self.turns.show_figures()
        await self.turns.send_waiting()

    def on_stage_reached(self, reached: messages.StageReached) -> None:
        self.live.show(f"{reached.stage} …")

    def on_measuring(self, measuring: messages.Measuring) -> None:
        self.waiting.show_activity(measuring.stage, f"{self._key('chat.stop')} skips" if measuring.stage else "")
        self.refresh_bindings()
        if not measuring.stage and self.outbox.under_way is None:
            self.turns.show_figures()

    def on_model_comes(self, comes: messages.ModelComes) -> None:
        self.first.expect(comes.name, comes.starters)

    async def on_model_loaded(self, loaded: messages.ModelLoaded) -> None:
        self.models.take(loaded)
        self.top.show_model(loaded.card.name, loaded.introduction.precision, loaded.introduction.device)
        self.settings.show()  # it may have contradicted the model
        self.first.introduce(loaded.introduction)
        self.turns.show_figures()
        await self.turns.send_waiting()
        self._prepare_replies()

    @work
    async def _prepare_replies(self) -> None:
        await import_replies()

    async def on_model_failed(self, failed: messages.ModelFailed) -> None:
        self.outbox.model_loaded = False
        self.first.leave()
        self.live.show(f"no model is loaded: {self._key('chat.models')} chooses another")
        self.top.show_model("no model")
        await self.view.tell(failed.sentence, trouble=True)

    async def on_reply_ended(self, ended: messages.ReplyEnded) -> None:
        await self.turns.end(ended)

    async def on_noticed(self, noticed: messages.Noticed) -> None:
        await self.view.tell(noticed.sentence, trouble=noticed.trouble)

    def on_unsaved_turns(self, unsaved: messages.UnsavedTurns) -> None:
        self._unsaved.show_turns(unsaved.turns)

    def on_titled(self, titled: messages.Titled) -> None:
        self.top.call(titled.title)

    def on_branched(self, branched: messages.Branched) -> None:
        self.conversations.notify_of_branch(branched)

    def _key(self, name: str) -> str:
        return keymap.key(self.app, name)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False for a key that would have no effect now, so that the footer does not show it."""
        return action != "stop" or not self.outbox.empty or self.waiting.busy

    def action_stop(self) -> None:
        """Stop the reply, the waiting prompts and measurements."""
        if self.waiting.busy:
            self.engine.model.measures = False
        self.turns.stop()

    def action_back(self) -> None:
        """Close the list of keys, cancel the editing of an earlier prompt, and move the focus to the prompt field."""
        self.query(KeysPanel).remove()
        self.turns.leave_edited()
        self.type_here()

    def action_new(self) -> None:
        self.conversations.start_new()

    def action_conversations(self) -> None:
        self.conversations.open()

    def action_models(self) -> None:
        self.models.open()

    def action_system(self) -> None:
        self.settings.open_system()

    def action_sampling(self) -> None:
        self.settings.open_sampling()

    def action_think(self) -> None:
        self.settings.toggle_thinking()

    def action_again(self) -> None:
        self.call_later(self.turns.again)  # after a prompt that was sent before this key and has not arrived yet

    def action_edit(self) -> None:
        self.call_later(self.turns.edit)  # likewise

    def action_editor(self) -> None:
        edit_prompt(self.app, self.prompt)
        self.type_here()

    def action_find(self, words: str = "") -> None:
        if not self.finder.open(words):
            self.notify("This conversation is empty.", markup=False)

    def action_walk(self, step: int) -> None:
        if not self.view.walk(step):
            self.type_here()

    def action_page(self, step: int) -> None:
        """Scroll by a page: the panel if it covers the conversation, otherwise the conversation."""
        keys = self.query(KeysPanel)
        if keys or self.panel.covers:
            panel = keys.first() if keys else self.panel
            panel.scroll_relative(y=step * max(panel.size.height - 1, 1), animate=False)
        else:
            self.view.page(step)

    async def action_end(self) -> None:
        await self.view.follow()

    def get_widget_and_offset_at(self, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """Return the widget at a cell of the terminal and, in a message, the position of the text nearest to the cell.

        Otherwise a selection that ends at a cell without text would extend to the beginning or end of the message.
        """
        widget, offset = super().get_widget_and_offset_at(x, y)
        if widget is None or self.view not in widget.ancestors_with_self:
            return widget, offset
        if widget.has_class("-textual-system") and not self._selecting:
            return widget, offset  # a press on the scrollbar selects nothing
        for view in self.view.query(BlockView):
            region = view.content_region
            if region.y <= y < region.bottom:
                return view, view.place_at(x - region.x, y - region.y)
        return widget, offset

    def action_copy_text(self) -> None:
        """Copy the selected text. If it is only a match of a search and a reply is running, stop the reply instead."""
        if self.view.match is not None and self.check_action("stop", ()):
            raise SkipAction
        super().action_copy_text()

    def action_copy(self) -> None:
        if source := self.view.chosen_source:
            self.app.copy_to_clipboard(source)
        else:
            self.notify("There is no reply to copy yet.", markup=False)

    def action_code(self) -> None:
        self._code_copies.copy(self.app, self.view.chosen_source)

    def action_thoughts(self) -> None:
        if not self.view.toggle_thoughts(self.view.chosen):
            self.notify("No reply has thoughts yet.", markup=False)

    async def action_keys(self) -> None:
        if shown := self.query(KeysPanel):
            await shown.remove()
        else:
            await self.query_one("#middle").mount(of_the_chat(self.app, self.BINDINGS))

    def action_panel(self) -> None:
        self.panel.toggle()

    def action_xray(self) -> None:
        from localspec_tui.screens.xray import XRayScreen

        chosen, replied = self.view.trace_of(self.view.chosen), self.view.last_reply
        self.app.push_screen(XRayScreen(self.engine.traces, chosen, chosen is None and replied is not None))

    def action_phrases(self, words: str = "") -> None:
        store, card = self.engine.conversation.store, self.models.card
        if store is None or card is None:
            self.notify("No phrases are saved here.", markup=False)
        else:
            from localspec_tui.screens.phrases import PhrasesScreen

            self.app.push_screen(PhrasesScreen(store, card, words))

    def action_race(self, prompt: str = "") -> None:
        """Start a race outside the conversation, if no reply is running."""
        if self.outbox.waiting or not self.outbox.ready:
            self.notify("A race can start once a model is loaded and no reply is being written.", markup=False)
        else:
            from localspec_tui.screens.race import RaceScreen

            turn = self.view.turn_of(None)
            self.app.push_screen(RaceScreen(self.engine, prompt, turn[1].typed if turn else ""))
