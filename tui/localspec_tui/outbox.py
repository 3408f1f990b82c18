"""Prompts on their way to the model: the one that is being answered, and those that wait for their turn."""

import asyncio
from typing import TYPE_CHECKING

from textual.screen import Screen

from localspec.chat.attachments import GIVEN, Written, written
from localspec.chat.wording import repeated, same_answer
from localspec_tui import keymap, messages
from localspec_tui.engine_thread import EngineThread
from localspec_tui.reply_under_way import ReplyUnderWay
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.first_screen import FirstScreen
from localspec_tui.widgets.live_line import LiveLine
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.status_line import TopLine, WaitingLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localspec.store.conversations import Turn


class Outbox:
    """Prompts without a reply. At most one is under way; the text of files that were given goes before the next one."""

    def __init__(self, first: str | None, files: str) -> None:
        self.waiting = [Written(first)] if first else []
        self.files = files
        self.under_way: Written | None = None
        self.model_loaded = False
        self.to_be_shown = 1  # conversations that were requested; prompts wait until the last one is shown
        self._given = ""  # those files whose text goes with the prompt under way

    @property
    def empty(self) -> bool:
        """Return whether no prompt is under way and none waits."""
        return self.under_way is None and not self.waiting

    @property
    def ready(self) -> bool:
        """Return whether the next prompt could be answered now."""
        return self.model_loaded and self.under_way is None and not self.to_be_shown

    @property
    def typed(self) -> list[str]:
        """Return the waiting prompts, as they were typed."""
        return [one.typed for one in self.waiting]

    def take(self) -> Written:
        """Return the prompt that has waited longest; it is under way now."""
        self.under_way = self.waiting.pop(0).behind(self.files, GIVEN)
        self._given, self.files = self.files, ""
        return self.under_way

    def end(self) -> Written | None:
        """Return the prompt that was under way."""
        ended, self.under_way = self.under_way, None
        return ended

    def refuse(self) -> None:
        """Take back the given files, for the ended prompt got no reply: they go before the next one."""
        self.files = self._given

    def drop_waiting(self) -> str:
        """Return the waiting prompts as one text; they wait no more."""
        dropped, self.waiting = self.typed, []
        return "\n\n".join(dropped)

    def unsent(self, begun: bool) -> list[str]:
        """Return the prompts that this process would lose. `begun`: the one under way is in the history already."""
        return [*([] if begun or self.under_way is None else [self.under_way.typed]), *self.typed]


class Sender:
    """A sender of prompts: of new ones, and of those that take the place of an earlier turn."""

    def __init__(
        self,
        screen: Screen[None],
        engine: EngineThread,
        outbox: Outbox,
        reply: ReplyUnderWay,
        conversation: ConversationView,
        prompt: Prompt,
        first: FirstScreen,
        top: TopLine,
        live: LiveLine,
        waiting: WaitingLine,
    ) -> None:
        self._screen, self._engine, self._outbox, self._reply = screen, engine, outbox, reply
        self._conversation, self._prompt, self._first = conversation, prompt, first
        self._top, self._live, self._waiting = top, live, waiting
        self.edited: int | None = None  # the turn whose prompt is being edited
        self._instead: int | None = None  # the turn in whose place the last prompt was sent

    # -- sending ------------------------------------------------------------------------------------------------------

    async def read(self, text: str) -> Written:
        """Return a prompt with the text of the files that it names. Raise UsageMistake."""
        return await asyncio.to_thread(written, text) if "@" in text else Written(text)

    async def send(self, prompt: Written) -> None:
        """Send a prompt as soon as it can be answered, in place of the turn that is being edited, if there is one."""
        turn, self.edited = self.edited, None
        if turn is not None:
            await self._go_on_from(turn)
        await self._queue(prompt)

    async def _queue(self, prompt: Written) -> None:
        self._first.leave()
        self._outbox.waiting.append(prompt)
        await self.send_waiting()

    async def send_waiting(self) -> None:
        """Send the prompt that has waited longest, if it can be answered now."""
        if self._outbox.waiting and self._outbox.ready:
            prompt = self._outbox.take()
            self._engine.ask(prompt)
            self._top.begin(prompt.typed)
            self._prompt.blinks = False
            self._reply.begin()
            await self._conversation.add_prompt(prompt, self._engine.traces[-1])
        self.show_waiting()

    def show_waiting(self) -> None:
        """Show the waiting prompts, and whether there is something to stop."""
        self._waiting.show(*self._outbox.typed)
        self._screen.refresh_bindings()

    def stop(self) -> None:
        """Stop the reply under way, and take back the waiting prompts."""
        if waiting := self._outbox.drop_waiting():
            self._prompt.give_back(waiting)
        self.show_waiting()
        self._reply.stop()

    # -- in place of an earlier turn ----------------------------------------------------------------------------------

    def _may_go_back(self) -> bool:
        """Return whether the conversation can continue from an earlier turn now; if not, notify why."""
        if self._outbox.waiting or not self._outbox.ready:
            self._screen.notify(f"A reply is under way; {self._key('chat.stop')} stops it.", markup=False)
        elif self._conversation.turn_of(None) is None:
            self._screen.notify("Nothing was said yet.", markup=False)
        else:
            return True
        return False

    async def _go_on_from(self, turn: int, *, again: bool = False) -> None:
        """Let the next prompt take the place of a turn; the turns so far stay as another conversation."""
        self._instead = None if again else turn
        self._engine.do(self._engine.conversation.branch, turn, again)
        await self._conversation.cut(turn)

    async def again(self) -> None:
        """Send the last prompt again, for another answer."""
        if self._may_go_back() and (turn := self._conversation.turn_of(None)):
            if notice := self._engine.model.resampling_notice():
                self._screen.notify(notice, markup=False)
            await self._go_on_from(turn[0], again=True)
            await self._queue(turn[1])

    async def send_instead(self, text: str) -> None:
        """Send a prompt in place of the last one. Raise UsageMistake."""
        if self._may_go_back() and (turn := self._conversation.turn_of(None)):
            prompt = await self.read(text)
            await self._go_on_from(turn[0])
            await self._queue(prompt)

    def edit(self) -> None:
        """Let the user edit the prompt of the chosen message; sent, it takes the place of that turn and all later."""
        if self._may_go_back() and (turn := self._conversation.turn_of(self._conversation.chosen)):
            self.edited = turn[0]
            self._prompt.put(turn[1].typed)
            self._screen.set_focus(self._prompt)
            self._show_edited()

    def _show_edited(self) -> None:
        sent, left = self._key("prompt.send"), self._key("chat.back")
        self._live.show(f"{sent} says this instead · {left} leaves all as it is")

    def leave_edited(self) -> None:
        """Leave the edited turn as it is."""
        if self.edited is not None:
            self.edited = None
            self._prompt.put("")
            self._reply.show_figures()

    # -- when the reply has ended -------------------------------------------------------------------------------------

    async def end(self, ended: messages.ReplyEnded) -> None:
        """Show the whole reply, or give the prompt back if none came, and send the next prompt."""
        prompt, turn = self._outbox.end(), ended.turn
        self._prompt.blinks = True
        self._top.answered(turn is not None)
        if ended.same and turn is not None:
            await self._conversation.show(ended.before or (), self._engine.traces)
            self._screen.notify(same_answer(turn.figures, self._warmer), markup=False)
        elif turn is not None and not turn.unanswered:
            await self._conversation.finish(turn)
        elif prompt is not None:
            await self._take_back(prompt, ended.before)
        if ended.trouble is not None:
            await self._conversation.tell(ended.trouble, trouble=True)
        elif turn is not None and (sentence := self._remark(turn)):
            await self._conversation.tell(sentence)
        await self._reply.end()
        if self.edited is not None:
            self._show_edited()
        await self.send_waiting()

    async def _take_back(self, prompt: Written, before: "Sequence[Turn] | None") -> None:
        """Give a prompt back. If it was sent in place of another, show the turns `before` that again."""
        self._outbox.refuse()
        if before is None:
            await self._conversation.take_back()
        else:
            answered = before[:-1] if before[-1].unanswered else before
            await self._conversation.show(answered, self._engine.traces)
            if self._instead is None:  # the prompt is there again, with its answer
                return
            self.edited = None if self._prompt.text else self._instead
        self._prompt.give_back(prompt.typed)

    def _remark(self, turn: "Turn") -> str | None:
        """Return the sentence for a reply that ended in an unusual way; None for any other reply."""
        if sentence := self._engine.model.only_thinking(turn, self._engine.conversation.now.system):
            return sentence
        if turn.reason == "repetition":
            sentence = repeated(turn.figures, self._warmer)
            return f"{sentence[:1].upper()}{sentence[1:]}."
        return "The model says nothing to this." if turn.reason == "stop" and not turn.reply else None

    @property
    def _warmer(self) -> str:
        return f"raise the temperature with {self._key('chat.sampling')}"

    def _key(self, name: str) -> str:
        return keymap.key(self._screen.app, name)
