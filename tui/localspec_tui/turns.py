"""The turns of the chat: sends prompts, saves unsent ones, shows the current reply, and replaces earlier turns."""

import asyncio
import sqlite3
from typing import TYPE_CHECKING

from textual.timer import Timer

from localspec.chat.attachments import GIVEN, ComposedPrompt, with_files
from localspec.chat.figures import repeated, same_answer, thought
from localspec.errors import LocalspecError
from localspec.repetition import goes_round
from localspec_tui import keymap, messages
from localspec_tui.messages import Pace
from localspec_tui.widgets.message_view import NoticeView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localspec.store.conversations import Turn
    from localspec.store.drafts import Drafts
    from localspec_tui.screens.chat import ChatScreen


class Outbox:
    """The prompts that have no reply yet.

    At most one is being answered; the others wait. The text of given files (`files`) goes before the next prompt.
    """

    def __init__(self, first: str | None, files: str) -> None:
        self.waiting = [ComposedPrompt(first)] if first else []
        self.files = files
        self.under_way: ComposedPrompt | None = None
        self.model_loaded = False
        self.to_be_shown = 1  # conversations that were requested; prompts wait until the last one is shown
        self._sent_files = ""  # the files whose text goes with the current prompt

    @property
    def empty(self) -> bool:
        """Whether no prompt is being answered and no prompt waits."""
        return self.under_way is None and not self.waiting

    @property
    def ready(self) -> bool:
        """Whether the next prompt could be answered now."""
        return self.model_loaded and self.under_way is None and not self.to_be_shown

    @property
    def typed(self) -> list[str]:
        """Return the waiting prompts as they were typed."""
        return [prompt.typed for prompt in self.waiting]

    def take(self) -> ComposedPrompt:
        """Make the prompt that has waited longest the current one, and return it."""
        self.under_way = self.waiting.pop(0).after(self.files, GIVEN)
        self._sent_files, self.files = self.files, ""
        return self.under_way

    def end(self) -> ComposedPrompt | None:
        """End the current prompt, and return it; None if no prompt was being answered."""
        ended, self.under_way = self.under_way, None
        return ended

    def reuse_files(self) -> None:
        """Add the files of the last prompt to the next prompt, because the last prompt got no reply."""
        self.files = self._sent_files

    def drop_waiting(self) -> str:
        """Return the waiting prompts as one text, and empty the queue."""
        dropped, self.waiting = self.typed, []
        return "\n\n".join(dropped)

    def unsent(self, begun: bool) -> list[str]:
        """Return the prompts that would be lost with this process.

        `begun` says that the current prompt is already in the history.
        """
        return [*([] if begun or self.under_way is None else [self.under_way.typed]), *self.typed]


class UnsentText:
    """A saver of unsent text: the typed text, unanswered prompts, and drafts that were put aside.

    Without a store nothing is saved. A failing store only sets `trouble`.
    """

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat
        self._aside: dict[int, str] = {}  # drafts of other conversations, by number; 0 is the next new one
        self._drafts: Drafts | None = None
        self._tried: tuple[str, int | None] = "", None
        self._trouble = ""  # why the last attempt to save failed

    def put_aside(self, *, for_new: bool = False) -> None:
        """Move the typed text from the prompt field to a draft for this conversation.

        If this conversation is not saved, the draft is for the next new one (with `for_new`), or the text stays.
        """
        if self._chat.outbox.to_be_shown:  # the present conversation may not be open yet
            return
        number = self._chat.engine.conversation.now.id or (0 if for_new else None)
        if number is not None and self._chat.prompt.text.strip():
            self._aside[number] = self._chat.prompt.text
            self._chat.prompt.put("")

    def take_aside(self, number: int | None) -> str:
        """Remove and return the text put aside for a conversation (None: for a new one); empty if there is none."""
        return self._aside.pop(number or 0, "")

    def save_to(self, drafts: "Drafts") -> None:
        """Save unsent text to this table of the store from now on."""
        self._drafts = drafts

    async def save(self) -> None:
        """Save the unsent text if it has changed, without blocking the user."""
        drafts = self._drafts
        if drafts is not None and (draft := self._now()) != self._tried:
            self._tried = draft
            self._trouble = await asyncio.to_thread(self._save, drafts, *draft)

    def save_now(self) -> None:
        """Save the unsent text when the chat ends, even if the last attempt failed."""
        if self._drafts is not None and ((draft := self._now()) != self._tried or self._trouble):
            self._tried = draft
            self._trouble = self._save(self._drafts, *draft)

    @property
    def trouble(self) -> str:
        """Return why the unsent text is not saved; empty if it is saved, or if there is no unsent text."""
        return self._trouble if self._trouble and self._now()[0] else ""

    def _now(self) -> tuple[str, int | None]:
        """Return the unsent text, and the conversation that it belongs to."""
        here = [*self._chat.outbox.unsent(self._chat.engine.buffer.accepted), self._chat.prompt.text]
        text = "\n\n".join(text for text in [*self._aside.values(), *here] if text.strip())
        if not text:
            return "", None
        in_this = any(text.strip() for text in here) or not self._aside
        return text, self._chat.engine.conversation.now.id if in_this else [*self._aside][-1] or None

    def _save(self, drafts: "Drafts", text: str, conversation: int | None) -> str:
        """Save the unsent text, and return why that failed; empty on success."""
        try:
            drafts.keep(text, self._chat.engine.settings.elsewhere, conversation)
        except LocalspecError as error:
            return str(error)
        except sqlite3.ProgrammingError:  # the store is closed: the application ends
            return ""
        return ""


class Turns:
    """A controller of the turns of the chat: it sends a prompt, shows its reply, and ends the turn."""

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat
        self._pace = Pace()
        self._timer: Timer | None = None
        self._stopping = False
        self.edited: int | None = None  # the turn whose prompt is being edited
        self._instead: int | None = None  # the turn that the last prompt replaces
        self._refusal: NoticeView | None = None  # about the last prompt, if it was refused

    # -- sending ------------------------------------------------------------------------------------------------------

    async def read(self, text: str) -> ComposedPrompt:
        """Return a typed prompt with the text of the files that it names. Raises UsageMistake."""
        return await asyncio.to_thread(with_files, text) if "@" in text else ComposedPrompt(text)

    async def send(self, prompt: ComposedPrompt) -> None:
        """Send a prompt as soon as it can be answered. If a turn is being edited, the prompt replaces it."""
        turn, self.edited = self.edited, None
        if turn is not None:
            await self._go_on_from(turn)
        await self._queue(prompt)

    async def _queue(self, prompt: ComposedPrompt) -> None:
        self._chat.first.leave()
        self._chat.outbox.waiting.append(prompt)
        await self.send_waiting()

    async def send_waiting(self) -> None:
        """Send the prompt that has waited longest, if it can be answered now."""
        if self._chat.outbox.waiting and self._chat.outbox.ready:
            prompt = self._chat.outbox.take()
            self._chat.engine.ask(prompt)
            self._chat.top.begin(prompt.typed)
            self._chat.live.show("reading the prompt")
            self._chat.prompt.cursor_blink = False  # each blink draws one more frame
            self._pace.begin()
            self._follow_after(self._pace.period)
            await self._chat.view.add_prompt(prompt, self._chat.engine.traces[-1])
        self.show_waiting()

    def show_waiting(self) -> None:
        """Show the waiting prompts, and update the footer, which may now show or hide the key for stopping."""
        self._chat.waiting.show(*self._chat.outbox.typed)
        self._chat.refresh_bindings()

    def stop(self) -> None:
        """Stop the current reply, and take back the waiting prompts."""
        if waiting := self._chat.outbox.drop_waiting():
            self._chat.prompt.give_back(waiting)
        self.show_waiting()
        self.stop_reply()

    # -- the current reply --------------------------------------------------------------------------------------------

    def _follow_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._chat.set_timer(seconds, self._follow)

    async def _follow(self) -> None:
        """Show text that has arrived since the last call, and schedule the next call."""
        if self._chat.outbox.under_way is None:
            return
        if not self._chat.is_covered:
            with self._chat.app.batch_update():  # text and figures are drawn together
                if not self._stopping:
                    self.show_figures()  # first: they are drawn after the text has been read
                if thoughts := self._chat.engine.buffer.take_thoughts():
                    await self._chat.view.think(thoughts)
                if text := self._chat.engine.buffer.take():
                    await self._chat.view.grow(text)
                    await self._chat.finder.search_again()
        self._follow_after(self._pace.next())

    def show_figures(self) -> None:
        """Show the figures of the current or the last reply."""
        figures = self._chat.engine.buffer.figures
        circles = goes_round(self._chat.view.growing)
        warning = f"the reply repeats itself: {keymap.key(self._chat.app, 'chat.stop')} stops it" if circles else ""
        self._chat.live.show_figures(figures, warning)
        self._chat.panel.show(figures)
        if figures is not None and figures.reasoning_tokens:
            tokens, still = figures.reasoning_tokens, figures.reasoning_tokens == figures.tokens
            self._chat.view.tell_thought(thought(tokens, figures.reasoning_seconds, still=still))

    def stop_reply(self) -> bool:
        """Stop the reply; return whether there was one."""
        if self._chat.outbox.under_way is None:
            return False
        self._stopping = True
        self._chat.engine.stop_reply()
        self._chat.live.show("stopping")
        return True

    def notify_stop(self) -> None:
        """Notify the user that the current reply, if any, is stopped for another request."""
        if self._chat.outbox.under_way is not None:
            begun = self._chat.view.growing
            stopped = "The reply was stopped; its text so far stays." if begun else "The reply was stopped."
            self._chat.notify(stopped, markup=False)

    async def end(self, ended: messages.ReplyEnded) -> None:
        """Show the whole reply, or give the prompt back if it got no reply. Then send the next prompt."""
        prompt, turn = self._chat.outbox.end(), ended.turn
        self._stopping, self._chat.prompt.cursor_blink = False, True
        self._chat.engine.buffer.take()
        self._chat.top.answered(turn is not None)
        if ended.same and turn is not None:
            await self._chat.view.show(ended.before or (), self._chat.engine.traces)
            self._chat.notify(same_answer(turn.figures, self._warmer), markup=False)
        elif turn is not None and not turn.unanswered:
            await self._chat.view.finish(turn)
        elif prompt is not None:
            await self._take_back(prompt, ended.before)
        await self._chat.view.forget(self._refusal)
        self._refusal = None
        if ended.trouble is not None:
            notice = await self._chat.view.tell(ended.trouble, trouble=True)
            self._refusal = notice if turn is None else None
        elif turn is not None and (sentence := self._remark(turn)):
            await self._chat.view.tell(sentence)
        self.show_figures()
        if self.edited is not None:
            self._show_edited()
        await self._chat.finder.search_again()
        await self.send_waiting()

    async def _take_back(self, prompt: ComposedPrompt, before: "Sequence[Turn] | None") -> None:
        """Put a prompt back into the field. `before` are turns to show again, if the prompt was to replace a turn."""
        self._chat.outbox.reuse_files()
        if before is None:
            await self._chat.view.take_back()
        else:
            answered = before[:-1] if before[-1].unanswered else before
            await self._chat.view.show(answered, self._chat.engine.traces)
            if self._instead is None:  # the prompt is shown again, with its answer
                return
            self.edited = None if self._chat.prompt.text else self._instead
        self._chat.prompt.give_back(prompt.typed)

    def _remark(self, turn: "Turn") -> str | None:
        """Return a sentence about a reply that ended in an unusual way; None for any other reply."""
        sentence = self._chat.engine.model.why_empty(turn, self._chat.engine.conversation.now.system)
        if sentence is None and turn.reason == "repetition":
            stopped = repeated(turn.figures, self._warmer)
            return f"{stopped[:1].upper()}{stopped[1:]}."
        return sentence

    # -- replacing an earlier turn ------------------------------------------------------------------------------------

    def _may_go_back(self) -> bool:
        """Return whether the conversation can continue from an earlier turn now. If not, notify the user why."""
        if self._chat.outbox.waiting or not self._chat.outbox.ready:
            self._chat.notify(
                f"Wait until a model is loaded and no reply is being written. {self._key('chat.stop')} stops a reply.",
                markup=False,
            )
        elif self._chat.view.turn_of(None) is None:
            self._chat.notify("This conversation is empty.", markup=False)
        else:
            return True
        return False

    async def _go_on_from(self, turn: int, *, again: bool = False) -> None:
        """Let the next prompt replace turn number `turn` and all later turns. The old conversation keeps them."""
        self._instead = None if again else turn
        self._chat.engine.do(self._chat.engine.conversation.branch, turn, again)
        await self._chat.view.cut(turn)

    async def again(self) -> None:
        """Send the last prompt again, for another answer."""
        if self._may_go_back() and (turn := self._chat.view.turn_of(None)):
            if notice := self._chat.engine.model.resampling_notice():
                self._chat.notify(notice, markup=False)
            await self._go_on_from(turn[0], again=True)
            await self._queue(turn[1])

    async def send_instead(self, text: str) -> None:
        """Send a prompt in place of the last one. Raises UsageMistake."""
        if self._may_go_back() and (turn := self._chat.view.turn_of(None)):
            prompt = await self.read(text)
            await self._go_on_from(turn[0])
            await self._queue(prompt)

    def edit(self) -> None:
        """Let the user edit the prompt of the chosen message. Sending it replaces that turn and all later ones."""
        if self._may_go_back() and (turn := self._chat.view.turn_of(self._chat.view.chosen)):
            self.edited = turn[0]
            self._chat.prompt.put(turn[1].typed)
            self._chat.set_focus(self._chat.prompt)
            self._show_edited()

    def _show_edited(self) -> None:
        sent, left = self._key("prompt.send"), self._key("chat.back")
        self._chat.live.show(f"{sent} replaces the prompt · {left} cancels")

    def leave_edited(self) -> None:
        """End editing without changing the turn."""
        if self.edited is not None:
            self.edited = None
            self._chat.prompt.put("")
            self.show_figures()

    @property
    def _warmer(self) -> str:
        return f"raise the temperature with {self._key('chat.sampling')}"

    def _key(self, name: str) -> str:
        return keymap.key(self._chat.app, name)
