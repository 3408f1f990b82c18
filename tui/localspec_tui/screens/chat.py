"""The one screen that is always there: the conversation, the live line, the prompt."""

import asyncio
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from localspec.chat.commands import COMMANDS, read
from localspec.errors import LocalspecError, UsageMistake
from localspec_tui import messages
from localspec_tui.draft import Draft
from localspec_tui.engine_thread import EngineThread
from localspec_tui.pace import Pace
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.keys_footer import KeysFooter
from localspec_tui.widgets.keys_panel import KeysPanel, Line, lines_of
from localspec_tui.widgets.message_view import MessageView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.status_line import LiveLine, TopLine, WaitingLine

if TYPE_CHECKING:
    from localspec.models.registry import TargetCard
    from localspec.store.history import History


DRAFT_SECONDS = 1.0  # of typing are lost at most, should the process be killed


class _Asked(NamedTuple):
    """A prompt that is being answered: what was typed, and the text of files before it."""

    typed: str
    files: str


class ChatScreen(Screen[None]):
    """It owns what is under way: at most one reply, and the prompts that wait for their turn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # What fits into a narrow footer comes first. What has a tooltip is in the palette too.
        Binding("escape", "stop", "Stop", tooltip="Stop the reply; what was said stays", id="chat.stop"),
        Binding("escape", "back", "Back to where one types", id="chat.back", show=False),
        Binding("f1", "keys", "Keys", tooltip="Show or hide all keys and commands", id="chat.help"),
        Binding("ctrl+q", "app.quit", "Quit", tooltip="Leave; what was said stays kept", id="chat.quit"),
        Binding("ctrl+n", "new", "New", tooltip="Begin a new conversation", id="chat.new"),
        Binding("ctrl+r", "conversations", "Resume", tooltip="Go on with an earlier conversation", id="chat.resume"),
        Binding("ctrl+o", "models", "Model", tooltip="Let another model answer", id="chat.models"),
        Binding("ctrl+s", "system", "System", tooltip="Set the system prompt", id="chat.system"),
        Binding("f5", "again", "Again", tooltip="Another answer to the last prompt", id="chat.again"),
        Binding("f2", "edit", "Edit", tooltip="Change the last prompt, or the one in focus", id="chat.edit"),
        Binding("ctrl+l", "copy", "Copy", tooltip="Copy the last reply, or the message in focus", id="chat.copy"),
        Binding("alt+up", "walk(-1)", "To the message above", id="chat.above", show=False),
        Binding("alt+down", "walk(1)", "To the message below", id="chat.below", show=False),
        Binding("pageup", "page(-1)", "Scroll up", id="chat.page_up", show=False),
        Binding("pagedown", "page(1)", "Scroll down", id="chat.page_down", show=False),
    ]

    def __init__(self, engine: EngineThread, first: str | None, files: str, kept: bool) -> None:
        super().__init__()
        self._engine = engine
        self._top, self._conversation, self._live = TopLine(kept), ConversationView(), LiveLine()
        self._line, self._prompt = WaitingLine(), Prompt()
        self._files = files  # they go before the next prompt
        self._waiting = [first] if first else []
        self._asked: _Asked | None = None
        self._edited: int | None = None  # the turn whose prompt is being changed
        self._stopping = False
        self._to_be_shown = 1  # conversations that were asked for; what is sent before the last is shown waits for it
        self._model = ""  # whose turn it is to answer; empty while none is loaded
        self._card: TargetCard | None = None  # of the model that answered last
        self._system: str | None = None
        self._history: History | None = None
        self._draft = Draft(self._unsent)
        self._left = ""  # what an earlier chat did not come to send
        self._pace = Pace()
        self._follower: Timer | None = None

    def compose(self) -> ComposeResult:
        yield self._top
        yield self._conversation
        yield self._line
        yield self._live
        with Horizontal(id="input"):
            yield Static("❯", id="mark")
            yield self._prompt
        yield KeysFooter()

    def on_mount(self) -> None:
        self._prompt.focus()
        self._prompt.remember(self._waiting)
        self._show_waiting()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """What the first paint need not wait for."""
        self._engine.begin(self.post_message)
        self.run_worker(partial(import_module, "localspec_tui.widgets.reply_view"), thread=True)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def on_prompt_sent(self, sent: Prompt.Sent) -> None:
        try:
            said = read(sent.text)
        except UsageMistake as mistake:
            self._give_back(sent.text)
            await self._conversation.tell(str(mistake), trouble=True)
            return
        if said.command:
            await self._obey(*said)
            return
        turn, self._edited = self._edited, None
        if turn is not None:
            await self._go_on_from(turn)
        self._waiting.append(said.rest)
        await self._ask_waiting()

    async def _obey(self, command: str, rest: str) -> None:
        """A slash command."""
        match command, rest:
            case "new", _:
                self.action_new()
            case "resume", "":
                self.action_conversations()
            case "resume", number if number.isdecimal():
                self._resume(int(number))
            case "model", "":
                self.action_models()
            case "model", name:
                await self._switch_to(name)
            case "system", "":
                self.action_system()
            case "system", text:
                self._set_system(text)
            case "again", _:
                await self.action_again()
            case "edit", "":
                self.action_edit()
            case "edit", text:
                if (turn := self._conversation.turn_of(None)) and self._may_go_back():
                    await self._go_on_from(turn[0])
                    self._waiting.append(text)
                    await self._ask_waiting()
            case "title", title:
                self._engine.rename(title)
                self._top.begin(title or (turn[1] if (turn := self._conversation.turn_of(None)) else ""), anew=True)
            case "help", _:
                await self.action_keys()
            case "quit", _:
                self.app.exit()
            case _:
                await self._conversation.tell(
                    f"/{command} {rest} means nothing; /help lists the commands.", trouble=True
                )

    async def _switch_to(self, name: str) -> None:
        from localspec.models import registry

        try:
            self._switch(await asyncio.to_thread(registry.resolve, name))
        except LocalspecError as error:
            await self._conversation.tell(str(error), trouble=True)

    def _may_go_back(self) -> bool:
        """Whether the conversation can go on from an earlier turn now; says why not."""
        if self._asked is not None or self._waiting or self._to_be_shown or not self._model:
            self.notify("A reply is under way; esc stops it.", markup=False)
        elif self._conversation.turn_of(None) is None:
            self.notify("Nothing was said yet.", markup=False)
        else:
            return True
        return False

    async def _go_on_from(self, turn: int) -> None:
        """What is asked next takes the place of this turn; the way so far stays as a conversation of its own."""
        self._engine.branch(turn)
        await self._conversation.cut(turn)

    async def _ask_waiting(self) -> None:
        """Asks what has waited longest, if it can be answered now."""
        if self._waiting and self._model and self._asked is None and not self._to_be_shown:
            self._asked, self._files = _Asked(self._waiting.pop(0), self._files), ""
            typed, files = self._asked
            prompt = f"{files}\n\n{typed}" if files else typed
            self._engine.ask(prompt)
            self._live.show("reading the prompt")
            self._top.begin(prompt)
            self._pace.begin()
            self._follow_again(self._pace.period)
            await self._conversation.add_prompt(prompt)
        self._show_waiting()

    def _show_waiting(self) -> None:
        self._line.show(*self._waiting)
        self.refresh_bindings()  # whether there is something to stop

    def _unsent(self) -> str:
        """What would be lost with this process: what waits, and what is being typed."""
        begun = self._asked is None or self._engine.buffer.begun  # from then on it is in the history
        asked = [] if begun or self._asked is None else [self._asked.typed]
        return "\n\n".join(text for text in (*asked, *self._waiting, self._prompt.text) if text.strip())

    def keep_unsent(self) -> None:
        """At once, for the application ends."""
        self._draft.save_now()

    # -- replies ------------------------------------------------------------------------------------------------------

    def _follow_again(self, seconds: float) -> None:
        if self._follower is not None:
            self._follower.stop()
        self._follower = self.set_timer(seconds, self._follow)

    async def _follow(self) -> None:
        """Shows what was said since the last look, and looks again in a while."""
        if self._asked is None:
            return
        if text := self._engine.buffer.take():
            await self._conversation.grow(text)
        if self._engine.buffer.figures and not self._stopping:
            self._live.show(*self._engine.buffer.figures)
        self._follow_again(self._pace.next())

    async def on_reply_ended(self, ended: messages.ReplyEnded) -> None:
        asked, self._asked, self._stopping = self._asked, None, False
        self._engine.buffer.take()
        if ended.turn is not None and ended.turn.reply:
            await self._conversation.finish(ended.turn.reply, ended.turn.reason)
        elif asked is not None:
            await self._conversation.take_back()
            self._give_back(asked.typed)
            self._files = asked.files
        if ended.trouble is not None:
            await self._conversation.tell(ended.trouble, trouble=True)
        elif ended.turn is not None and ended.turn.reason == "stop" and not ended.turn.reply:
            await self._conversation.tell("The model says nothing to this.")
        self._live.show(*self._engine.buffer.figures)
        await self._ask_waiting()

    def _give_back(self, prompt: str) -> None:
        """To where it was typed, if that is empty; one finds it among the earlier prompts in any case."""
        if not self._prompt.text:
            self._prompt.put(prompt)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key that would do nothing now is not offered."""
        return action != "stop" or self._asked is not None or bool(self._waiting)

    def action_stop(self) -> None:
        """The reply under way, and what waits."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._give_back("\n\n".join(waiting))
        self._show_waiting()
        self.stop_reply()

    def stop_reply(self) -> bool:
        """False where none is under way."""
        if self._asked is None:
            return False
        self._stopping = True
        self._engine.stop_reply()
        self._live.show("stopping")
        return True

    # -- what happened on the engine's thread -------------------------------------------------------------------------

    async def on_chat_opened(self, opened: messages.ChatOpened) -> None:
        self._history = opened.history
        self._prompt.remember(list(reversed(opened.prompts)))
        self._left = "\n\n".join(opened.left)
        if opened.drafts is not None:
            self._draft.keep_in(opened.drafts)
            self.set_interval(DRAFT_SECONDS, self._draft.save)

    async def on_conversation_shown(self, shown: messages.ConversationShown) -> None:
        self._system, self._edited = shown.system, None
        self._to_be_shown -= 1
        answered = shown.turns[:-1] if shown.unanswered is not None else shown.turns
        self._top.begin(shown.turns[0].prompt if shown.turns else "", anew=True)
        await self._conversation.show(answered)
        if shown.unanswered is not None:
            self._give_back(shown.unanswered)
        if self._left:
            await self._conversation.tell("What was typed last and not sent is back in the prompt.")
            self._prompt.put("\n\n".join(filter(None, (self._left, self._prompt.text))))
            self._left = ""
        if self._files and not self._waiting:
            await self._conversation.tell("The text of the files goes before the next prompt.")
        if self._model:
            self._live.show(*self._engine.buffer.figures)
        await self._ask_waiting()

    def on_branched(self, branched: messages.Branched) -> None:
        self.notify(f"What was said before stays in conversation {branched.conversation} (ctrl+r).", markup=False)

    def on_stage_reached(self, reached: messages.StageReached) -> None:
        self._live.show(f"{reached.stage} …")

    async def on_model_loaded(self, loaded: messages.ModelLoaded) -> None:
        self._model, self._card = loaded.card.name, loaded.card
        self._top.show_model(loaded.card.name, loaded.precision, loaded.device)
        self._live.show(*self._engine.buffer.figures)
        await self._ask_waiting()

    async def on_model_failed(self, failed: messages.ModelFailed) -> None:
        self._model = ""
        self._live.show("no model is loaded: ctrl+o chooses another")
        self._top.show_model("no model")
        await self._conversation.tell(failed.sentence, trouble=True)

    async def on_job_refused(self, refused: messages.JobRefused) -> None:
        await self._conversation.tell(refused.sentence, trouble=True)

    async def on_noticed(self, noticed: messages.Noticed) -> None:
        await self._conversation.tell(noticed.sentence)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_new(self) -> None:
        self.action_stop()
        self._to_be_shown += 1
        self._engine.new_conversation()

    def action_conversations(self) -> None:
        if self._history is None:
            self.notify("No conversations are kept here.", markup=False)
        else:
            from localspec_tui.screens.conversations import ConversationsScreen

            self.app.push_screen(ConversationsScreen(self._history), self._resume)

    def _resume(self, conversation: int | None) -> None:
        if conversation is not None:
            self.action_stop()
            self._to_be_shown += 1
            self._engine.resume(conversation)

    async def action_again(self) -> None:
        """The last prompt once more."""
        if self._may_go_back() and (turn := self._conversation.turn_of(None)):
            await self._go_on_from(turn[0])
            self._waiting.append(turn[1])
            await self._ask_waiting()

    def action_edit(self) -> None:
        """Puts a prompt back where one types; sent, it takes the place of that turn and of all after it."""
        if self._may_go_back() and (turn := self._conversation.turn_of(self.focused)):
            self._edited = turn[0]
            self._prompt.put(turn[1])
            self.type_here()
            self._live.show("enter goes on from here in another way", "esc leaves all as it is")

    def action_models(self) -> None:
        from localspec_tui.screens.models import ModelsScreen

        self.app.push_screen(ModelsScreen(self._card if self._model else None), self._switch)

    def _switch(self, card: "TargetCard | None") -> None:
        if card is not None:
            self.stop_reply()
            self._model = ""
            self._engine.switch_model(card)

    def action_system(self) -> None:
        from localspec_tui.screens.system_prompt import SystemPromptScreen

        self.app.push_screen(SystemPromptScreen(self._system or ""), self._set_system)

    def _set_system(self, system: str | None) -> None:
        if system is not None:
            self._system = system.strip() or None
            self._engine.set_system(self._system)
            self.notify("It holds from the next reply on.", title="System prompt", markup=False)

    def action_copy(self) -> None:
        focused = self.focused
        source = focused.source if isinstance(focused, MessageView) else self._conversation.last_reply
        if source:
            self.app.copy_to_clipboard(source)
        else:
            self.notify("There is no reply to copy yet.", markup=False)

    def action_back(self) -> None:
        """Closes the keys, if they are shown, and leaves an earlier prompt as it was; one types below again."""
        self.query(KeysPanel).remove()
        if self._edited is not None:
            self._edited = None
            self._prompt.put("")
            self._live.show(*self._engine.buffer.figures)
        self.type_here()

    def type_here(self) -> None:
        """At once: what is typed next must not overtake."""
        self.set_focus(self._prompt)

    async def action_keys(self) -> None:
        if shown := self.query(KeysPanel):
            await shown.remove()
        else:
            offered = [one for one in ChatScreen.BINDINGS if isinstance(one, Binding) and one.action != "back"]
            commands = (Line(f"/{one.name} {one.argument}".strip(), one.does) for one in COMMANDS)
            await self.mount(
                KeysPanel(
                    ("The chat", lines_of(one for one in offered if one.show)),
                    ("Typed in the prompt", commands),
                    ("Where one types", lines_of(Prompt.OWN)),
                    ("The conversation", lines_of(one for one in offered if not one.show)),
                )
            )

    def action_walk(self, step: int) -> None:
        if not self._conversation.walk(step):
            self.type_here()

    def action_page(self, step: int) -> None:
        self._conversation.page(step)
