"""A conversation: its turns, which are saved while they are written, and the request to a model for the next reply."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from localspec.chat.figures import memory_begins, saved_figures
from localspec.errors import UsageMistake
from localspec.events import Done, Event, Text
from localspec.store.conversations import Saved, Source, Turn, cut, title_of
from localspec.store.database import StoreTrouble
from localspec.store.history import History, WentOn
from localspec.text import one_line, safe

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer, ReplySampling
    from localspec.decoding.limits import Limits
    from localspec.events import Statistics

ELSEWHERE = (
    "This conversation is also open in another window, which does not show what you say here. If you "
    "write in both, the second window continues in a separate conversation."
)
Resumed = int | Literal["last", "last run"]  # the conversation to continue; "last" is for a chat
SAVE_SECONDS = 1.0  # most seconds of a reply that are lost when its process is killed


def saved_conversation(history: History | None, which: Resumed) -> Saved:
    """Return the saved conversation to resume: by its id, or the last one of a chat, or the last one of `run`.

    Raises StoreTrouble, and UsageMistake if the conversation does not exist.
    """
    number = None if history is None else which
    if history is not None and not isinstance(which, int):
        number = history.latest(lambda info: info.by_chat if which == "last" else info.by_run)
    saved = None if history is None or not isinstance(number, int) else history.read(number)
    if saved is None:
        if not isinstance(which, int):
            raise UsageMistake("There is no conversation to continue here; leave --continue out to begin one.")
        raise UsageMistake(f"There is no conversation {which} here; `localspec history list` shows those that are.")
    return saved


class Conversation:
    """The turns so far, including the current one. Use it from one thread at a time.

    With a history every turn is saved while it is written. A failure to save is reported to `notice` and does not stop
    a reply. Unsaved turns are saved before the next turn, in order, because a saved conversation must not have gaps.
    """

    def __init__(
        self,
        history: History | None,
        model: str,
        system: str | None = None,
        notice: Callable[[str], None] = lambda _: None,
        source: Source = "chat",
    ) -> None:
        self.id: int | None = None
        self.model, self.system = model, system
        self.turns: list[Turn] = []
        self.source = source  # where new turns come from: a chat, or `run`
        self._origin: int | None = None  # the saved conversation that this one is a branch of
        self._parent: Conversation | None = None  # the conversation it branched from, until it has a new answer
        self._siblings: list[Turn] = []  # other answers in place of its turn number `_branched_at`
        self._branched_at = -1
        self.same_answer = False  # the last answer equals one of the siblings
        self._called = ""  # its title when it was resumed
        self._counted_by = model  # the model whose tokens are counted in the figures of the last turn
        self._history, self._notice = history, notice
        self._unsaved_from: int | None = None  # the first turn that could not be saved completely
        self._trouble = ""  # the reason of the last failed save
        self._replaced: int | None = None  # a saved turn without an answer, which the next one replaces

    @classmethod
    def resume(
        cls,
        history: History | None,
        saved: Saved,
        model: str,
        notice: Callable[[str], None] = lambda _: None,
        source: Source = "chat",
    ) -> Self:
        """Return a saved conversation to continue. Without a history, new turns are not saved."""
        conversation = cls(history, model, saved.system, notice, source)
        conversation.id = saved.info.id if history is not None else None
        conversation.turns, conversation._called = list(saved.turns), saved.info.title
        conversation._counted_by = saved.info.model
        conversation._mark_open()
        return conversation

    def resume_other(self, saved: Saved) -> "Conversation":
        """Return another saved conversation to continue, with the model, history and source of this conversation."""
        self._leave()
        return Conversation.resume(self._history, saved, self.model, self._notice, self.source)

    def start_new(self, system: str | None = None) -> "Conversation":
        """Return a new conversation with this system prompt, and the model, history and source of this conversation."""
        self._leave()
        new = Conversation(self._history, self.model, system, self._notice, self.source)
        new._mark_open()
        return new

    def branch(self, turns: int) -> "Conversation":
        """Return a branch: a new conversation that begins with the first `turns` of this one.

        The branch is saved together with its first new turn.
        """
        self._leave()
        other = Conversation(self._history, self.model, self.system, self._notice, self.source)
        other.turns, other._counted_by = self.turns[:turns], self._counted_by
        other._origin, other._parent = self.id or self._origin, self
        siblings = self._siblings if self._branched_at == turns else []
        other._branched_at = turns
        other._siblings = [*self.turns[turns : turns + 1], *siblings, *self._saved_siblings(turns)]
        if other.turns and other._origin is None and self._unsaved_from is not None:
            other._unsaved_from, other._trouble = 0, self._trouble
        return other

    def _saved_siblings(self, turns: int) -> list[Turn]:
        """Return the next turn of each related saved conversation that begins with the same first `turns` turns.

        Related are this conversation's origin, other branches of the origin, and branches of this conversation.
        """
        if self._history is None or self.id is None:
            return []
        beginning = [(turn.prompt, turn.reply) for turn in self.turns[:turns]]
        siblings: list[Turn] = []
        with suppress(StoreTrouble):  # an unnecessary branch costs nothing
            infos = self._history.conversations()
            origin = next((info.branch_of for info in infos if info.id == self.id), None)
            family = {self.id} if origin is None else {self.id, origin}
            for info in infos:
                related = info.id != self.id and (info.id in family or info.branch_of in family)
                saved = self._history.read(info.id) if related and info.turns > turns else None
                if saved is not None and [(turn.prompt, turn.reply) for turn in saved.turns[:turns]] == beginning:
                    siblings += saved.turns[turns : turns + 1]
        return siblings

    def back(self) -> "Conversation | None":
        """If this branch has no new answer, delete it, and return its origin: the conversation from which it branched.

        Otherwise return None. An answer that equals an earlier one does not count as new.
        """
        parent, self._parent = self._parent, None
        if parent is not None and self.id is not None and self._history is not None:
            try:
                self._history.take_back(self.id)
            except StoreTrouble as trouble:
                self._notice(f"Conversation {self.id}, which is empty, could not be deleted: {trouble}")
        if parent is not None and self.same_answer:  # that seed was tried: the next answer uses another
            turn = parent.turns[self._branched_at]
            tried = {**turn.figures, "seed": self.turns[-1].figures.get("seed")}
            parent.turns[self._branched_at] = replace(turn, figures=tried)
        if parent is not None:
            parent._mark_open()
        return parent

    def instruct(self, system: str | None) -> None:
        """Set the system prompt from the next reply on, and save it at once if the conversation is saved."""
        self.system = system
        if self._history is not None and self._unsaved_from is None and self.id is not None:
            try:
                self._history.instruct(self.id, system)
            except StoreTrouble as trouble:
                self._notice(f"The system prompt is used here but not saved: {trouble}")

    def rename(self, title: str) -> None:
        """Set the title. An empty title restores the title made from the first prompt.

        Raises UsageMistake if the conversation is not saved.
        """
        if self._history is None or self.id is None or not self._history.rename(self.id, title):
            raise UsageMistake("This conversation is not saved yet, so it cannot have a title; say something first.")

    @property
    def title(self) -> str:
        """Return the present title; empty before the first prompt."""
        if self._history is not None and self.id is not None:
            with suppress(StoreTrouble):
                if (info := self._history.info(self.id)) is not None:
                    return info.title
        return self._called or (title_of(self.turns[0].typed) if self.turns else "")

    @property
    def lasts(self) -> bool:
        """Return whether the conversation can be continued after this process has ended."""
        saved = self._history is not None and self._history.database.path is not None
        return saved and self.id is not None and bool(self.turns)

    @property
    def unsaved(self) -> int:
        """Return how many of the newest turns are not completely saved on disk."""
        if self._lost:
            return len(self.turns)
        return 0 if self._unsaved_from is None else len(self.turns) - self._unsaved_from

    @property
    def unsaved_words(self) -> str:
        """Return the unsaved turns in words, such as "the last turn"; empty if all turns are saved."""
        return "" if not self.unsaved else "the last turn" if self.unsaved == 1 else f"the last {self.unsaved} turns"

    @property
    def trouble(self) -> str:
        """Return the latest reason why turns could not be saved."""
        return self._lost or self._trouble

    @property
    def _lost(self) -> str:
        return "" if self._history is None else self._history.database.why_lost

    @property
    def tokens(self) -> int:
        """The number of tokens up to the end of the last answer, counted by this model; 0 if unknown."""
        last = next((turn.figures for turn in reversed(self.turns) if turn.reply), {})
        counts = [last.get(name) for name in ("prompt_tokens", "completion_tokens")]
        is_known = self._counted_by == self.model and all(type(count) is int and count > 0 for count in counts)
        return sum(filter(None, counts)) if is_known else 0

    def memory_notice(self, dropped: int) -> str | None:
        """Return a sentence that says from which turn on the model reads the conversation; None if that did not change.

        `dropped` is the number of oldest turns that were left out for the current reply.
        """
        last = next((turn for turn in reversed(self.turns) if turn.reply), None)
        if not dropped or (last is not None and last.figures.get("dropped_turns") == dropped):
            return None
        oldest = "turn" if dropped == 1 else f"{dropped} turns"
        begins = memory_begins([bool(turn.reply) for turn in self.turns], dropped)
        first = cut(one_line(self.turns[begins].typed)) if begins < len(self.turns) else ""
        if first:
            return f"The context is full: the model no longer reads the oldest {oldest}, and begins at “{first}”."
        return f"The context is full: the model no longer reads the oldest {oldest}."

    @property
    def answered(self) -> int:
        """Return the number of turns that have a reply or thoughts."""
        return len(self.turns) - (self.unanswered is not None)

    @property
    def unanswered(self) -> str | None:
        """Return the last prompt if it has no reply; otherwise None.

        The model does not read this prompt, and the next prompt replaces it.
        """
        return self.turns[-1].typed if self.turns and self.turns[-1].unanswered else None

    def ask(
        self,
        engine: "Answerer",
        prompt: str,
        sampling: "ReplySampling",
        limits: "Limits | None" = None,
        about: Mapping[str, Any] | None = None,
        think: bool | None = None,
    ) -> Generator[Event, None, None]:
        """Yield the events of the reply. To stop the reply, close the generator: the turn is saved as interrupted.

        The figures `about` are saved with the prompt. `think` says whether the model thinks first, if its template has
        a switch for thinking. A turn is saved before its `Done` is yielded. Raises the errors of `Engine.chat`; a
        refused prompt is not saved.
        """
        events = engine.chat([*self._messages(), {"role": "user", "content": prompt}], sampling, limits, think)
        reply, reasoning, saved_at, turn = "", "", 0.0, None
        self.same_answer = False
        try:
            with closing(events):
                for event in events:
                    if turn is None:
                        turn, saved_at = self._begin(prompt, about or {}), time.monotonic()
                        engine.conversation = self.id
                    if isinstance(event, Text):
                        reply, reasoning = reply + safe(event.text), reasoning + safe(event.reasoning)
                        if time.monotonic() - saved_at >= SAVE_SECONDS:
                            turn = self._save(replace(turn, reply=reply, reasoning=reasoning))
                            saved_at = time.monotonic()
                    elif isinstance(event, Done):
                        self._counted_by = self.model
                        figures = {**turn.figures, **saved_figures(event.statistics, sampling)}
                        if event.reason == "length" and _filled_context(event.statistics, limits):
                            figures["context_full"] = True
                        turn = self._save(
                            replace(turn, reply=reply, reason=event.reason, figures=figures, reasoning=reasoning)
                        )
                        answer = (turn.prompt, turn.reply, turn.reason)
                        others = [(sibling.prompt, sibling.reply, sibling.reason) for sibling in self._siblings]
                        self.same_answer = self._parent is not None and bool(reply) and answer in others
                    yield event
        finally:
            if turn is not None and turn.reason is None:  # the consumer stopped, or the engine failed
                figures = saved_figures(engine.session.statistics, sampling) if engine.session.statistics else {}
                figures = {**turn.figures, **figures}
                self._save(replace(turn, reply=reply, reason="interrupted", figures=figures, reasoning=reasoning))
            if (reply or reasoning) and not self.same_answer:
                self._parent = None

    def _messages(self) -> list[dict[str, str]]:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            if turn.reply:
                answer = {"role": "assistant", "content": turn.reply}
                if turn.reasoning:  # a chat template may use it
                    answer["reasoning_content"] = turn.reasoning
                messages += ({"role": "user", "content": turn.prompt}, answer)
        return messages

    # -- saving ------------------------------------------------------------------------------------------------------

    def _begin(self, prompt: str, about: Mapping[str, Any]) -> Turn:
        if self.unanswered is not None:
            self._replaced = self.turns.pop().id or self._replaced
        turn = Turn(id=0, prompt=prompt, reply="", reason=None, figures=about, asked=time.time())
        if self._history is not None:
            try:
                self._keep_rest(self._history)
                turn = replace(turn, id=self._say(self._history, turn))
                self._report_saved()
            except StoreTrouble as trouble:
                self._report_unsaved(len(self.turns), trouble)
        self.turns.append(turn)
        if about:
            self._save(turn)
        self._entitle()
        return turn

    def _entitle(self) -> None:
        """Set the title from the typed part of the first prompt, without the text of files."""
        if len(self.turns) == 1 and self.turns[0].typed_from and self.id is not None and not self._called:
            with suppress(UsageMistake, StoreTrouble):
                self.rename(title_of(self.turns[0].typed))

    def _say(self, history: History, turn: Turn) -> int:
        """Begin to save a turn, in a new branch if another window continued the conversation. Return the turn's id."""
        if self.id is None and self._origin is not None:
            self._save_branch(history, self._origin)
        previous, instead = self.id, self._replaced
        newest = instead or next((turn.id for turn in reversed(self.turns)), 0)
        say = partial(
            history.say, prompt=turn.prompt, model=self.model, system=self.system, asked=turn.asked, source=self.source
        )
        try:
            self.id, number = say(previous, instead=instead, newest=newest or None)
        except WentOn:
            assert previous is not None
            self._save_branch(history, previous)
            self.id, number = say(self.id)
            self._notice(
                f"Conversation {previous} was continued in another window, so what you say here is saved as "
                f"conversation {self.id}."
            )
        else:
            if previous not in (None, self.id):
                self._notice(
                    f"Conversation {previous} was deleted elsewhere, so everything from here on is saved as "
                    f"conversation {self.id}."
                )
        self._replaced = None
        self._mark_open()
        return number

    def _mark_open(self) -> None:
        """Mark this conversation as open in this process. Notify the user if another process has it open, too."""
        if self._history is not None and self._history.presence.enter(self.id):
            self._notice(ELSEWHERE)

    def _save_branch(self, history: History, origin: int) -> None:
        """Save a branch that begins with the turns so far, and continue in it."""
        number, turns = history.branch(origin, self.turns, model=self.model, system=self.system, source=self.source)
        self.id, self._origin = number or None, None
        if number:
            self.turns = [replace(turn, id=new) for turn, new in zip(self.turns, turns, strict=True)]

    def _save(self, turn: Turn) -> Turn:
        """Save the present state of the turn, and return the turn with its id.

        If inserting the turn failed, retry only when the next turn is saved.
        """
        self.turns[-1] = turn
        has_unsaved = self._unsaved_from is not None
        if self._history is None or (has_unsaved and (turn.reason is None or not turn.id)):
            return turn
        try:
            if has_unsaved:
                self._keep_rest(self._history)
                self._report_saved()
            else:
                exists = self._history.write(turn.id, turn.reply, turn.reason, turn.figures, turn.reasoning)
                if turn.reason is not None and not exists:
                    self._notice("This turn was deleted while it was written, so it is not saved.")
        except StoreTrouble as trouble:
            self._report_unsaved(len(self.turns) - 1, trouble)
        return self.turns[-1]

    def keep_rest(self) -> None:
        """Try again to save the unsaved turns before the user leaves the conversation."""
        if self._history is not None and self.unsaved:
            try:
                self._history.database.reach_file()
                self._keep_rest(self._history)
                self._report_saved()
            except StoreTrouble as trouble:
                self._trouble = str(trouble)

    def _leave(self) -> None:
        """Save the unsaved turns before another conversation takes the place of this one; notify if turns are lost."""
        self.keep_rest()
        if words := self.unsaved_words:
            self._notice(f"“{self.title}” loses {words}, which could not be saved: {self.trouble}")

    def _keep_rest(self, history: History) -> None:
        """Save the unsaved turns, the oldest first.

        Raises StoreTrouble if one of them still cannot be saved.
        """
        if self._unsaved_from is None:
            return
        unsaved = self.turns[self._unsaved_from :]
        del self.turns[self._unsaved_from :]
        try:
            while unsaved:
                if not unsaved[0].id:
                    unsaved[0] = replace(unsaved[0], id=self._say(history, unsaved[0]))
                turn = unsaved[0]
                history.write(turn.id, turn.reply, turn.reason, turn.figures, turn.reasoning)
                self.turns.append(unsaved.pop(0))
                self._entitle()
        finally:
            self._unsaved_from = len(self.turns)
            self.turns += unsaved

    def _report_saved(self) -> None:
        if self._unsaved_from is not None:
            self._unsaved_from, self._trouble = None, ""
            self._notice("The whole conversation is saved now.")

    def _report_unsaved(self, turn: int, trouble: StoreTrouble) -> None:
        self._trouble = str(trouble)
        if self._unsaved_from is None:
            self._unsaved_from = turn
            if trouble.reported:
                return
            note = "" if self.id is None else f" What was saved before remains as conversation {self.id}."
            self._notice(f"This turn is not saved: {trouble}{note}")


def _filled_context(statistics: "Statistics", limits: "Limits | None") -> bool:
    """Return which limit ended a reply: True for the full context, False for the limit of tokens."""
    limit = limits.max_tokens if limits is not None else None
    return limit is None or 0 < statistics.tokens < limit  # 0: unknown
