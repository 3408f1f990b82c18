"""`localspec chat --plain`: a conversation line by line, without cursor tricks."""

import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

from localspec.chat.commands import listed, read
from localspec.chat.conversation import dropped_turns_notice, saved_conversation
from localspec.chat.live_stats import LiveStats
from localspec.chat.start import StartedChat, start_chat
from localspec.checkpoint import inspect
from localspec.cli.console import counted
from localspec.cli.interrupt import Interrupt
from localspec.cli.options import SharedFlags
from localspec.cli.progress import Progress, tell
from localspec.cli.texts import conversation_id, joined
from localspec.errors import LocalspecError, UsageMistake
from localspec.models import registry
from localspec.text import one_line, safe

if TYPE_CHECKING:
    from localspec import Engine

HELP = f"""{listed()}
A line that ends in \\ goes on in the next one. Ctrl+C stops a reply, Ctrl+D leaves. //text says /text."""
LISTED = 20
LONG = 1000  # tokens: reading so many takes seconds


def converse(flags: SharedFlags, prompt: str | None) -> int:
    """Reads prompts from standard input until it ends, and answers each. Raises what opening the model raises."""
    progress = _LineProgress()
    if isinstance(sys.stdin, TextIOWrapper):  # bytes that are not text are no reason to stop
        sys.stdin.reconfigure(encoding=None if sys.stdin.isatty() else "utf-8", errors="replace")
    with ExitStack() as at_the_end:
        begun = start_chat(flags.settings, flags.resume, at_the_end, progress.notice, progress.show)
        talk = _Talk(flags, begun, progress)
        talk.greet()
        talk.listen(prompt)
    return 0


class _LineProgress(Progress):
    """At a terminal, a line for each stage: a screen reader may read an overwritten one out again and again."""

    def show(self, what: str) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            tell(one_line(f"{what} …"))


class _Talk:
    """One run of the line-by-line chat."""

    def __init__(self, flags: SharedFlags, begun: StartedChat, progress: Progress) -> None:
        self._settings, self._files, self._progress = flags.settings, flags.files, progress
        self._card, self._store, self._conversation = begun
        self._engine: Engine | None = None
        self._left = False

    def _load(self, card: registry.TargetCard) -> "Engine":
        self._progress.show(f"loading {card.name}")
        from localspec import Engine  # torch: a second

        engine = Engine.open(
            self._settings, card, store=self._store, notice=self._progress.notice, progress=self._progress.show
        )
        engine.sampling(self._settings)  # what this model cannot do is reported before the first prompt
        return engine

    def _loaded(self) -> "Engine":
        if self._engine is None:
            self._engine = self._load(self._card)
        return self._engine

    # -- lines --------------------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Prints which model answers, and the last turn of a conversation that goes on."""
        choice = self._loaded().choice
        precision = choice.dtype if choice.quantize == "none" else choice.quantize
        tell(one_line(f"{self._card.name} ({precision}, {choice.device}). /help lists the commands, Ctrl+D ends."))
        self._recall()

    def listen(self, prompt: str | None) -> None:
        """Answers prompts until the input ends or /quit."""
        if prompt is not None and prompt.strip():
            tell(safe(f"> {prompt}"))
            self._answer(prompt)
        while not self._left:
            try:
                line = self._line()
                if line is None:
                    return
                self._take(line)
            except KeyboardInterrupt:
                tell("\nCtrl+D ends.")
            except LocalspecError as error:
                if not sys.stdin.isatty():
                    raise  # a script shall not take what follows for the answer
                self._progress.notice(str(error))
                if self._engine is None:
                    self._progress.notice(f"{self._card.name} goes on.")

    def _line(self) -> str | None:
        """The next prompt, or None at the end of the input."""
        lines: list[str] = []
        while True:
            try:
                line = _read_line("… " if lines else "> ")
            except EOFError:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _take(self, line: str) -> None:
        said = read(line)
        if not said.command:
            if line.strip():
                self._answer(said.rest)
            return
        commands: dict[str, Callable[[str], None]] = {
            "new": self._new,
            "resume": self._resume,
            "model": self._model,
            "system": self._system,
            "again": self._again,
            "edit": self._edit,
            "title": self._title,
            "help": self._help,
            "quit": self._quit,
        }
        commands[said.command](said.rest)

    # -- commands -----------------------------------------------------------------------------------------------------

    def _help(self, _: str) -> None:
        tell(HELP)

    def _quit(self, _: str) -> None:
        self._left = True

    def _new(self, _: str) -> None:
        self._conversation = self._conversation.start_new()
        tell("A new conversation.")

    def _resume(self, which: str) -> None:
        history = self._store.history if self._store else None
        if which:
            found = saved_conversation(history, conversation_id(which, "/resume"))
            self._conversation = self._conversation.resume_other(found)
            self._recall()
            return
        infos = history.conversations(LISTED) if history else []
        for info in infos:
            tell(one_line(f"{info.id}: {info.title} ({info.turns})"))
        if not infos:
            tell("No conversations are kept here yet.")

    def _model(self, name: str) -> None:
        if not name:
            for card, found in registry.installed():
                tell(one_line(f"{card.name}: {found if isinstance(found, LocalspecError) else card.description}"))
            return
        card = registry.resolve(name)
        inspect(card.path)
        self._engine = None  # if this one fails, the next prompt loads the one before
        gc.collect()  # two may not fit at once
        self._engine = self._load(card)
        self._card, self._conversation.model = card, registry.reference(card)
        tell(one_line(f"{card.name} answers from here on."))

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = text
        tell(safe(f"System prompt: {self._conversation.system or 'none'}"))

    def _again(self, _: str) -> None:
        self._instead(None)

    def _edit(self, text: str) -> None:
        if not text:
            raise UsageMistake("/edit takes what is to be said instead of the last prompt; write it behind /edit.")
        self._instead(text)

    def _instead(self, prompt: str | None) -> None:
        """Goes on from before the last prompt that was answered, with this one or the same."""
        before, turns = self._conversation, self._conversation.answered - 1
        if turns < 0:
            raise UsageMistake("There is no reply yet; say something first.")
        self._conversation = before.branch(turns)
        try:
            self._answer(prompt or before.turns[turns].prompt)
        except LocalspecError:
            self._conversation = before
            raise
        if before.id is not None:
            tell(f"The answer before stays in conversation {before.id}: /resume {before.id} goes back to it.")

    def _title(self, text: str) -> None:
        self._conversation.rename(text)

    def _recall(self) -> None:
        turns = self._conversation.turns
        if turns:
            tell(f"Going on after {counted(len(turns), 'turn')}; the last one was:")
            tell(safe(f"> {turns[-1].prompt}"))
            tell(safe(turns[-1].reply or "(no answer)"))

    # -- answers ------------------------------------------------------------------------------------------------------

    def _answer(self, line: str) -> None:
        from localspec import Done, Limits, Prefill, Text

        settings, engine = self._settings, self._loaded()
        live, limits = LiveStats(engine, settings.accept), Limits(settings.max_tokens, settings.stop)
        prompt = joined(self._files, line)
        events = self._conversation.ask(engine, prompt, engine.sampling(settings), limits)
        ended, how, begun = "\n", "(stopped)", False
        with closing(events), Interrupt() as interrupt, suppress(KeyboardInterrupt):
            for event in events:
                live.take(event)
                match event:
                    case Prefill(done, total, _) if done < total:
                        if total - done >= LONG and not begun:
                            self._progress.show(f"reading {total - done:,} tokens")
                        begun = True
                    case Prefill(_, _, dropped):
                        interrupt.wait_for_step = True
                        if dropped:
                            self._progress.notice(dropped_turns_notice(dropped))
                    case Text(text):
                        print(text, end="", flush=True)
                        ended = text[-1:] or ended
                    case Done(reason):
                        how = "(cut off at the limit of tokens)" if reason == "length" else ""
                if interrupt.asked:
                    raise KeyboardInterrupt
        print(end="" if ended == "\n" else "\n", flush=True)
        if self._conversation.unanswered is None:
            self._files = ""  # the model has read them
        if how:
            tell(how)
        tell(f"({' · '.join(live.parts())})")


def _read_line(mark: str) -> str:
    """One line. At a terminal it can be edited, and arrow keys bring earlier ones back. Raises EOFError."""
    if sys.stdin is None:
        raise EOFError
    if sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty():
        with suppress(ImportError):  # Windows edits lines by itself
            import readline  # noqa: F401  # input() uses it once it is imported
        return input(mark)
    try:
        line = sys.stdin.readline()
    except OSError as error:
        raise UsageMistake(f"Standard input cannot be read ({error.strerror}); pipe text in, or </dev/null.") from None
    if not line:
        raise EOFError
    return line.rstrip("\n")
