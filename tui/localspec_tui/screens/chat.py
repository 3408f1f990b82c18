"""The one screen that is always there: the conversation, the live line, the prompt."""

import asyncio
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Static

from localspec.chat.attachments import Written, written
from localspec.chat.commands import is_command, read
from localspec.chat.completion import look_up
from localspec.chat.wording import repeated, same_answer
from localspec.errors import LocalspecError, UsageMistake
from localspec_tui import keymap, messages, slash_commands
from localspec_tui.code_blocks import CodeCopies
from localspec_tui.draft import Draft
from localspec_tui.editor import edit_prompt
from localspec_tui.engine_thread import EngineThread
from localspec_tui.outbox import Outbox
from localspec_tui.pace import Pace
from localspec_tui.screens.chat_keys import KEYS
from localspec_tui.screens.choosing import ChoosingScreen
from localspec_tui.screens.finding import FindingScreen
from localspec_tui.screens.steady import Steady
from localspec_tui.widgets.attached_line import AttachedLine
from localspec_tui.widgets.below_line import BelowLine
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.download_line import DownloadLine
from localspec_tui.widgets.find_line import FindLine
from localspec_tui.widgets.first_screen import FirstScreen
from localspec_tui.widgets.keys_footer import KeysFooter
from localspec_tui.widgets.keys_panel import KeysPanel
from localspec_tui.widgets.live_line import LiveLine
from localspec_tui.widgets.message_view import NoticeView
from localspec_tui.widgets.mounted_turns import import_replies
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.side_panel import LEAST_COLUMNS, SidePanel
from localspec_tui.widgets.status_line import TopLine, UnkeptLine, WaitingLine
from localspec_tui.widgets.suggestions import Suggestions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localspec.models.registry import TargetCard
    from localspec.store.conversations import Turn
    from localspec.store.history import History
    from localspec_tui.screens.download import DownloadScreen


DRAFT_SECONDS = 1.0  # of typing are lost at most, should the process be killed


class ChatScreen(Steady, ChoosingScreen, FindingScreen):
    """It owns what is under way: at most one reply, and the prompts that wait for their turn."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-wide"), (LEAST_COLUMNS, "-panel")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (14, "-high"), (28, "-tall")]  # noqa: RUF012  # of 24 lines, the panel needs each
    BINDINGS = KEYS

    def __init__(self, engine: EngineThread, first: str | None, files: str, kept: bool) -> None:
        super().__init__()
        self._engine = engine
        self._top, self._conversation, self._live = TopLine(kept), ConversationView(), LiveLine()
        self._first = FirstScreen()
        self._suggestions = Suggestions(lambda need: look_up(need, self._history))
        self._attached = AttachedLine(engine.files_in)
        self._below, self._code_copies = BelowLine(), CodeCopies()
        self._find = FindLine()
        self._conversation.tell_below = self._below.show
        self._line, self._unkept, self._panel = WaitingLine(), UnkeptLine(), SidePanel()
        self._prompt = Prompt(self._suggestions, self._first.starter)
        self.download = DownloadLine(engine.settings, _download_screen)
        self._outbox = Outbox(first, files)
        self._edited: int | None = None  # the turn whose prompt is being changed
        self._instead: int | None = None  # the turn in whose place another prompt was sent last
        self._stopping = False
        self._refused: NoticeView | None = None  # what was said of the last line that was refused
        self._to_be_shown = 1  # conversations that were asked for; what is sent before the last is shown waits for it
        self._model = ""  # whose turn it is to answer; empty while none is loaded
        self._card: TargetCard | None = None  # of the model that answered last
        self._pace_told: tuple[str, ...] = ()
        self._told_of_branches = False
        self._system: str | None = None
        self._system_draft: str | None = None
        self._sampling_draft: dict[str, str] = {}
        self._history: History | None = None
        self._draft = Draft(self._unsent, engine.settings.elsewhere, self._typed_in)
        self._left_in: dict[int, str] = {}  # unsent drafts of other conversations; 0 is the next new one
        self._pace = Pace()
        self._follower: Timer | None = None

    def compose(self) -> ComposeResult:
        yield self._top
        with Horizontal(id="middle"):
            with Vertical(id="talk"):
                yield self._first
                yield self._conversation
            yield self._panel
        yield self._find
        yield self._below
        yield self._unkept
        yield self._line
        yield self.download
        yield self._live
        yield self._attached
        yield self._suggestions
        with Horizontal(id="input"):
            yield Static("❯", id="mark")
            yield self._prompt
        yield KeysFooter()

    def on_mount(self) -> None:
        self._prompt.focus()
        self._prompt.remember(self._outbox.typed)
        self._show_waiting()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """What the first paint need not wait for."""
        self._engine.begin(self.post_message)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def on_prompt_sent(self, sent: Prompt.Sent) -> None:
        await self._conversation.forget(self._refused)
        self._refused = None
        if not self.has_class("-panel"):  # there the keys cover what comes of it
            await self.query(KeysPanel).remove()
        try:
            said = read(sent.text)
            if said.command:
                await slash_commands.obey(self, *said)
            else:
                prompt = await self._with_files(said.rest)
        except LocalspecError as mistake:
            self._give_back(sent.text)
            if is_command(sent.text):
                self._prompt.select_all()  # to be changed, or replaced by what is typed next
            self._refused = await self._conversation.tell(str(mistake), trouble=True)
            return
        if not said.command:
            turn, self._edited = self._edited, None
            if turn is not None:
                await self._go_on_from(turn)
            await self._ask(prompt)

    async def _with_files(self, text: str) -> Written:
        """What was typed, and the text of the files that it names. Raises UsageMistake."""
        return await asyncio.to_thread(written, text) if "@" in text else Written(text)

    def _may_go_back(self) -> bool:
        """Whether the conversation can go on from an earlier turn now; says why not."""
        if not self._outbox.empty or self._to_be_shown or not self._model:
            self.notify(f"A reply is under way; {self._key('chat.stop')} stops it.", markup=False)
        elif self._conversation.turn_of(None) is None:
            self.notify("Nothing was said yet.", markup=False)
        else:
            return True
        return False

    async def _go_on_from(self, turn: int, *, again: bool = False) -> None:
        """What is asked next takes the place of this turn; the way so far stays as a conversation of its own."""
        self._instead = None if again else turn
        self._engine.branch(turn, again=again)
        await self._conversation.cut(turn)

    async def _ask(self, prompt: Written) -> None:
        """As soon as it can be answered."""
        self._first.leave()
        self._outbox.waiting.append(prompt)
        await self._ask_waiting()

    async def _ask_waiting(self) -> None:
        """Asks what has waited longest, if it can be answered now."""
        if self._outbox.waiting and self._model and self._outbox.asked is None and not self._to_be_shown:
            prompt = self._outbox.take()
            self._engine.ask(prompt)
            self._live.show("reading the prompt")
            self._top.begin(prompt.typed)
            self._pace.begin()
            self._prompt.cursor_blink = False  # each blink is one more picture
            self._follow_again(self._pace.period)
            await self._conversation.add_prompt(prompt, self._engine.traces[-1])
        self._show_waiting()

    def _show_waiting(self) -> None:
        self._line.show(*self._outbox.typed)
        self.refresh_bindings()  # whether there is something to stop

    def _unsent(self) -> str:
        """Return the text that this process would lose: unsent drafts, waiting prompts and the prompt being typed."""
        texts = [*self._left_in.values(), *self._outbox.unsent(self._engine.buffer.begun), self._prompt.text]
        return "\n\n".join(text for text in texts if text.strip())

    def _typed_in(self) -> int | None:
        """Return the conversation of the unsent text: the current one, unless only others have such text."""
        here = self._prompt.text.strip() or self._outbox.unsent(self._engine.buffer.begun)
        return self._engine.conversation_id() if here or not self._left_in else [*self._left_in][-1] or None

    def keep_unsent(self) -> None:
        """At once, for the application ends."""
        self._draft.save_now()

    @property
    def unsent_lost(self) -> str:
        """Why that is not kept; nothing where it is, or where nothing is to be."""
        return self._draft.trouble if self._unsent() else ""

    async def _save_draft(self) -> None:
        await self._draft.save()
        self._unkept.show_typed(self.unsent_lost)

    async def on_unkept(self, unkept: messages.Unkept) -> None:
        self._unkept.show_turns(unkept.turns)

    def on_text_area_changed(self, changed: Prompt.Changed) -> None:
        self._attached.look(changed.text_area.text)

    def on_option_list_option_selected(self, clicked: Suggestions.OptionSelected) -> None:
        self._prompt.complete(self._suggestions.line_of(clicked.option_index))

    # -- replies ------------------------------------------------------------------------------------------------------

    def _follow_again(self, seconds: float) -> None:
        if self._follower is not None:
            self._follower.stop()
        self._follower = self.set_timer(seconds, self._follow)

    async def _follow(self) -> None:
        """Shows what was said since the last look, and looks again in a while."""
        if self._outbox.asked is None:
            return
        if not self.is_covered:
            with self.app.batch_update():  # text and figures are one picture
                if not self._stopping:
                    self._show_figures()  # first: they are drawn when the text has been read
                if thoughts := self._engine.buffer.take_thoughts():
                    await self._conversation.think(thoughts)
                if text := self._engine.buffer.take():
                    await self._conversation.grow(text)
                    await self.find_anew(last=True)
        self._follow_again(self._pace.next())

    def on_first_screen_chosen(self, chosen: FirstScreen.Chosen) -> None:
        self._prompt.put(chosen.prompt)

    async def on_reply_ended(self, ended: messages.ReplyEnded) -> None:
        asked, self._stopping = self._outbox.ended(), False
        self._prompt.cursor_blink = True
        self._engine.buffer.take()
        self._top.answered(ended.turn is not None)
        warmer = f"raise the temperature with {self._key('chat.sampling')}"
        if ended.same and ended.turn is not None:
            await self._conversation.show(ended.before or (), self._engine.traces)
            self.notify(same_answer(ended.turn.figures, warmer), markup=False)
        elif ended.turn is not None and not ended.turn.unanswered:
            await self._conversation.finish(ended.turn)
        elif asked is not None:
            await self._take_back(asked, ended.before)
        if ended.trouble is not None:
            await self._conversation.tell(ended.trouble, trouble=True)
        elif ended.turn is not None and (sentence := self._engine.only_thinking(ended.turn)):
            await self._conversation.tell(sentence)
        elif ended.turn is not None and ended.turn.reason == "repetition":
            sentence = repeated(ended.turn.figures, warmer)
            await self._conversation.tell(f"{sentence[:1].upper()}{sentence[1:]}.")
        elif ended.turn is not None and ended.turn.reason == "stop" and not ended.turn.reply:
            await self._conversation.tell("The model says nothing to this.")
        self._show_figures()
        if self._edited is not None:
            self._say_edited()
        await self.find_anew(last=False)
        await self._ask_waiting()

    async def _take_back(self, asked: Written, before: "Sequence[Turn] | None") -> None:
        """No reply came. What another way was begun instead of, the turns `before`, is there again."""
        self._outbox.refused()
        if before is None:
            await self._conversation.take_back()
        else:
            answered = before[:-1] if before[-1].unanswered else before
            await self._conversation.show(answered, self._engine.traces)
            if self._instead is None:  # the prompt is there again, with its answer
                return
            self._edited = None if self._prompt.text else self._instead
        self._give_back(asked.typed)

    def _give_back(self, prompt: str) -> None:
        """To where it was typed, if that is empty; one finds it among the earlier prompts in any case."""
        if not self._prompt.text:
            self._prompt.put(prompt)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key that would do nothing now is not offered."""
        return action != "stop" or not self._outbox.empty or self._line.busy

    def action_stop(self) -> None:
        """Stop the reply, the waiting prompts and the measuring."""
        if self._line.busy:
            self._engine.skip_measuring()
        self._stop_all()

    def _stop_all(self) -> None:
        """The reply under way, and what waits."""
        if waiting := self._outbox.drop_waiting():
            self._give_back(waiting)
        self._show_waiting()
        self.stop_reply()

    # -- what happened on the engine's thread -------------------------------------------------------------------------

    async def on_chat_opened(self, opened: messages.ChatOpened) -> None:
        self._history = opened.history
        self._prompt.remember(list(reversed(opened.prompts)))
        if opened.drafts is not None:
            self._draft.keep_in(opened.drafts)
            self.set_interval(DRAFT_SECONDS, self._save_draft)

    async def on_conversation_shown(self, shown: messages.ConversationShown) -> None:
        self._system, self._edited = shown.system, None
        self._show_what_is_set()
        self._to_be_shown -= 1
        if self.types_elsewhere:
            self.type_here()
        self._leave_find()
        answered = shown.turns[:-1] if shown.unanswered is not None else shown.turns
        self._top.call(shown.title)
        self._first.keeps(self._engine.place)
        await self._conversation.show(answered, self._engine.traces)
        self._first.begin(shown.last, said=bool(shown.turns or self._outbox.waiting))
        if shown.unanswered is not None:
            self._give_back(shown.unanswered)
        if left := [*shown.left, *filter(None, [self._left_in.pop(shown.number or 0, "")])]:
            self._prompt.put("\n\n".join(filter(None, (*left, self._prompt.text))))
            self._first.offer_none()
            await self._conversation.tell("Restored your unsent draft.")
        elif shown.waiting:
            where = f"“{shown.waiting}” ({self._key('chat.resume')})"
            await self._conversation.tell(f"Your unsent draft waits in {where}.")
        if self._outbox.files and not self._outbox.waiting:
            await self._conversation.tell("The text of the files goes before the next prompt.")
        if self._model:
            self._show_figures()
        await self._ask_waiting()

    def on_stage_reached(self, reached: messages.StageReached) -> None:
        self._live.show(f"{reached.stage} …")

    def on_measuring(self, measuring: messages.Measuring) -> None:
        self._line.show_activity(measuring.stage, f"{self._key('chat.stop')} skips" if measuring.stage else "")
        self.refresh_bindings()
        if not measuring.stage and self._outbox.asked is None:
            self._show_figures()

    def on_model_comes(self, comes: messages.ModelComes) -> None:
        self._first.expect(comes.name, comes.starters)

    async def on_model_loaded(self, loaded: messages.ModelLoaded) -> None:
        self._model, self._card = loaded.card.name, loaded.card
        self._top.show_model(loaded.card.name, loaded.introduction.precision, loaded.introduction.device)
        self._show_what_is_set()  # it may have contradicted the model
        self._first.introduce(loaded.introduction)
        self._pace_told = loaded.introduction.pace
        self._show_figures()
        await self._ask_waiting()
        self._prepare_replies()

    @work
    async def _prepare_replies(self) -> None:
        await import_replies()

    async def on_model_failed(self, failed: messages.ModelFailed) -> None:
        self._model = ""
        self._first.leave()
        self._live.show(f"no model is loaded: {self._key('chat.models')} chooses another")
        self._top.show_model("no model")
        await self._conversation.tell(failed.sentence, trouble=True)

    async def on_job_refused(self, refused: messages.JobRefused) -> None:
        await self._conversation.tell(refused.sentence, trouble=True)

    async def on_noticed(self, noticed: messages.Noticed) -> None:
        await self._conversation.tell(noticed.sentence)

    def _key(self, name: str) -> str:
        return keymap.key(self.app, name)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_new(self) -> None:
        self.tell_of_stopping()
        self._begin_another()

    def _leave_draft(self, *, for_new: bool = False) -> None:
        """Put the unsent draft aside for its conversation: a saved one, or with `for_new` the next new one."""
        number = None if self._to_be_shown else self._engine.conversation_id() or (0 if for_new else None)
        if number is not None and self._prompt.text.strip():
            self._left_in[number] = self._prompt.text
            self._prompt.put("")

    def _begin_another(self) -> None:
        self._stop_all()
        self._leave_draft()
        self._to_be_shown += 1
        self._engine.new_conversation()

    def action_conversations(self) -> None:
        if self._history is None:
            self.notify("No conversations are kept here.", markup=False)
        else:
            from localspec_tui.screens.conversations import ConversationsScreen, OpenConversation

            engine, nothing = self._engine, "No conversation is kept here yet."
            if engine.store is not None and engine.store.path is None:
                nothing = "What is kept could not be opened when this chat began; leave it and begin again to see that."
            call, kept = self._top.call, engine.phrases_are_kept
            now = OpenConversation(engine.conversation_id, self._begin_another, call, kept, nothing)
            self.app.push_screen(ConversationsScreen(self._history, now), self.resume)

    def resume(self, conversation: int | None) -> None:
        """Goes on with an earlier conversation, if one was chosen."""
        if conversation is not None:
            self.tell_of_stopping()
            self._stop_all()
            self._leave_draft(for_new=True)
            self._to_be_shown += 1
            self._engine.resume(conversation)

    def must_be_kept(self, conversation: int) -> None:
        """Raises UsageMistake for a conversation that is none, before anything is stopped for it. Reads the disk."""
        if self._history is not None and self._history.info(conversation) is None:
            raise UsageMistake(f"There is no conversation {conversation}; {self._key('chat.resume')} lists them.")

    def action_again(self) -> None:
        """The last prompt once more. Behind what was sent, which may be on its way: keys come from where one types."""
        self.call_later(self.again)

    async def again(self) -> None:
        """The last prompt once more."""
        if self._may_go_back() and (turn := self._conversation.turn_of(None)):
            if notice := self._engine.resampling_notice():
                self.notify(notice, markup=False)
            await self._go_on_from(turn[0], again=True)
            await self._ask(turn[1])

    async def say_instead(self, prompt: str) -> None:
        """Instead of the last prompt; the conversation goes on from there."""
        if self._may_go_back() and (turn := self._conversation.turn_of(None)):
            written_anew = await self._with_files(prompt)
            await self._go_on_from(turn[0])
            await self._ask(written_anew)

    def action_edit(self) -> None:
        """As `action_again`."""
        self.call_later(self.edit)

    def edit(self) -> None:
        """Puts a prompt back where one types; sent, it takes the place of that turn and of all after it."""
        if self._may_go_back() and (turn := self._conversation.turn_of(self._conversation.chosen)):
            self._edited = turn[0]
            self._prompt.put(turn[1].typed)
            self.type_here()
            self._say_edited()

    def _say_edited(self) -> None:
        sent, left = self._key("prompt.send"), self._key("chat.back")
        self._live.show(f"{sent} says this instead · {left} leaves all as it is")

    def action_editor(self) -> None:
        edit_prompt(self.app, self._prompt)
        self.type_here()

    def action_back(self) -> None:
        """Closes the keys, if they are shown, and leaves an earlier prompt as it was; one types below again."""
        self.query(KeysPanel).remove()
        if self._edited is not None:
            self._edited = None
            self._prompt.put("")
            self._show_figures()
        self.type_here()


def _download_screen(model: str) -> "DownloadScreen":
    from localspec_tui.screens.download import DownloadScreen  # after the first paint

    return DownloadScreen(model)
