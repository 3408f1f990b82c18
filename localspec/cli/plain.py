"""`localspec chat --plain`: a conversation line by line, without cursor movements."""

import gc
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext, suppress
from io import TextIOWrapper
from itertools import islice
from typing import TYPE_CHECKING, Any

from localspec.chat.attachments import GIVEN, ComposedPrompt, measured, saved_prompt, with_files
from localspec.chat.branches import rows
from localspec.chat.commands import listed, look_up, read
from localspec.chat.conversation import saved_conversation
from localspec.chat.figures import LiveStats, ending, in_words, repeated, same_answer, saved_thought
from localspec.chat.introduction import farewell
from localspec.chat.model_list import all_models, in_lines
from localspec.chat.readable_phrases import Stories, pools_of, readable_phrases, reader
from localspec.chat.sampling import (
    SHOW,
    THINK,
    ChatSettings,
    first_sampled,
    parse_think,
    state,
    why_empty,
)
from localspec.chat.sampling import listed as settings_listed
from localspec.chat.sampling import split as key_and_value
from localspec.chat.start import choose
from localspec.chat.trace import UNTOLD, Trace, step_by_step
from localspec.cli.beginning import ChatAndServer, begin
from localspec.cli.console import Progress, WordWrap, at_a_terminal, is_terminal, piped, tell, width
from localspec.cli.interrupt import Interrupt, cleared_up_when_ended
from localspec.cli.meanwhile import Meanwhile
from localspec.cli.options import SharedFlags
from localspec.cli.texts import LONGEST, TOO_LONG, conversation_id, read_line
from localspec.engine.importing import ready
from localspec.errors import LocalspecError, UsageMistake
from localspec.models import registry
from localspec.quantities import counted, precision_in_words
from localspec.store.searched_words import excerpt, folded_words, hits
from localspec.text import one_line, safe
from localspec.weights.checkpoint import inspect

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer
    from localspec.config import Settings
    from localspec.events import Text

HELP = f"""{listed()}
A line that ends in \\ continues on the next one. Ctrl+C stops a reply, Ctrl+D leaves. //text sends /text.
From a pipe or a file, a line that is refused ends the chat (exit code 2), and the lines after it are not read."""
WARMER = "/set temperature 0.7 makes answers vary"
LISTED = 20
LONG = 1000  # tokens that take seconds to read


def converse(flags: SharedFlags, prompt: str | None) -> int:
    """Read prompts from standard input until it ends, and answer each. Raises the errors of opening the model."""
    if isinstance(sys.stdin, TextIOWrapper):  # bytes that are not text are no reason to stop
        sys.stdin.reconfigure(encoding=None if sys.stdin.isatty() else "utf-8-sig", errors="replace")
    with _LineProgress() as progress, cleared_up_when_ended(), ExitStack() as at_the_end:
        script = piped()  # then the conversation counts as one of `run`, also for --continue
        resume = "last run" if script and flags.resume == "last" else flags.resume
        start = begin(flags.settings, resume, at_the_end, progress)
        if script:
            start.chat.conversation.source = "pipe"
        talk = _Talk(flags, start, progress)
        talk.greet()
        try:
            talk.listen(prompt)
        finally:  # a signal may end it
            conversation = talk.conversation
            conversation.keep_rest()
            if is_terminal(sys.stderr) and (words := farewell(conversation, conversation.title)):
                # the mark may be on the line by itself
                tell(f"\n{words}" if at_a_terminal() and not talk.left else words)
    return 0


class _LineProgress(Progress):
    """Progress as one line per stage, because a screen reader may read an overwritten line again and again."""

    def show(self, stage: str) -> None:
        if is_terminal(sys.stderr):
            tell(one_line(f"{stage} …"))
        else:
            super().show(stage)


class _ReplyPrinter:
    """A writer of one reply, wrapped between words, and of its progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._wrap = progress, WordWrap(width())
        self._reads = self._thinks = False
        self._last = "\n"  # the last character

    def read(self, left: int) -> None:
        """Show "reading 2,048 tokens" at the first call, if at least LONG prompt tokens are `left` to read."""
        if left >= LONG and not self._reads:
            self._progress.show(f"reading {left:,} tokens")
        self._reads = True

    def add(self, event: "Text") -> None:
        """Print a text, or show once that the model thinks."""
        if event.reasoning and not self._thinks:
            self._progress.show("thinking")
            self._thinks = True
        if event.text:
            self._progress.clear()
        print(self._wrap.add(safe(event.text)), end="", flush=True)
        self._last = event.text[-1:] or self._last

    def end(self) -> None:
        """End the last line."""
        print(self._wrap.flush(), end="" if self._last == "\n" else "\n", flush=True)


class _Talk:
    def __init__(self, flags: SharedFlags, start: ChatAndServer, progress: Progress) -> None:
        self._settings, self._files, self._progress = ChatSettings(flags.settings), flags.files, progress
        self._start = start
        self._card, self._store, self.conversation = start.chat
        self._engine: Answerer | None = None
        self.left = False  # with a command; otherwise the chat ends with its input
        self._trace: Trace | None = None  # of the last reply
        self._meanwhile = Meanwhile()  # measures what is missing after the first reply, while the user types

    def _load(self, card: registry.TargetCard) -> "Answerer":
        engine = self._start.for_chat(self._settings.first, card)
        if notice := self._settings.fit(engine):  # report what this model cannot do before the first prompt
            self._progress.notice(notice)
        return engine

    def _loaded(self) -> "Answerer":
        if self._engine is None:
            self._engine = self._load(self._card)
        return self._engine

    # -- lines --------------------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Print which model answers and, for a continued conversation, its last prompt and reply."""
        choice = self._loaded().choice
        precision = precision_in_words(choice.dtype, choice.quantize, choice.bits)
        details = ", ".join(filter(None, (precision, choice.device)))
        tell(one_line(f"{self._card.name} ({details}). /help lists the commands, Ctrl+D ends."))
        self._recall()

    def listen(self, prompt: str | None) -> None:
        """Answer prompts until the input ends or /quit."""
        if prompt is not None and prompt.strip():
            tell(safe(f"> {prompt}"))
            self._answer(prompt)
        while not self.left:
            try:
                self._progress.clear()
                typing = at_a_terminal() and self._trace is not None
                with self._meanwhile.measuring(self._engine) if typing else nullcontext():
                    line = self._line()
                if line is None:
                    return
                self._take(line)
            except KeyboardInterrupt:
                tell("\nCtrl+D ends.")
            except LocalspecError as error:
                if not sys.stdin.isatty():
                    raise  # a script must not take the next output for the answer
                self._progress.notice(str(error))
                if self._engine is None:
                    self._progress.notice(f"{self._card.name} continues.")

    def _line(self) -> str | None:
        """Return the next prompt, or None at the end of the input."""
        lines: list[str] = []
        length, history = 0, self._store.history if self._store else None
        while True:
            try:
                line = read_line("… " if lines else "> ", lambda need: look_up(need, history))
            except EOFError:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])
            if (length := length + len(line)) > LONGEST:
                raise UsageMistake(TOO_LONG)

    def _take(self, line: str) -> None:
        parsed = read(line)
        if not parsed.command:
            if line.strip():
                self._answer(parsed.rest)
            return
        getattr(self, f"do_{parsed.command}")(parsed.rest)

    # -- commands -----------------------------------------------------------------------------------------------------

    def do_help(self, _: str) -> None:
        tell(HELP)

    def do_quit(self, _: str) -> None:
        self.left = True

    def do_new(self, _: str) -> None:
        self._settings.reset()
        self.conversation = self.conversation.start_new(self._settings.first.system)
        tell("A new conversation.")

    def do_resume(self, argument: str) -> None:
        history = self._store.history if self._store else None
        if argument:
            saved = saved_conversation(history, conversation_id(argument, "/resume"))
            self.conversation = self.conversation.resume_other(saved)
            self._recall()
            return
        script = piped()  # which may also continue conversations of scripts
        infos = history.conversations(LISTED, lambda info: script or info.for_a_chat) if history else []
        for row in rows(history, infos) if history else []:
            tell(f"{'  ' * row.below}{one_line(f'{row.info.id}: {row.indented} ({row.info.turns})')}")
        if not infos:
            tell("No conversations are saved here yet.")

    def do_model(self, name: str) -> None:
        if (server := self._start.server) is not None:
            self._answer_as(server.named(name)) if name else tell("\n".join(server.listed(self._card.name)))
            return
        if not name:
            engine = self._engine
            freed, pace = (engine.freed_memory, tuple(engine.choice.pace)) if engine else (("cpu", 0), ())
            models, _ = all_models(self._card, freed, pace, self._settings.first.drafter_rule)
            for line in in_lines(models, self._card):
                tell(one_line(line))
            return
        card = ready(name, self._settings.first, self._progress.reporter)
        inspect(card.path)
        self._answer_as(card)

    def _answer_as(self, card: registry.TargetCard) -> None:
        self._engine = None  # if this one fails, the next prompt loads the previous one
        gc.collect()  # two may not fit at once
        self._engine = self._load(card)
        self._card, self.conversation.model = card, registry.reference(card)
        if self._start.server is None:
            choose(card, "chat", self._progress.notice)
        tell(one_line(f"{card.name} answers from now on."))

    def do_system(self, text: str) -> None:
        if text:
            self.conversation.instruct(text)
        tell(safe(f"System prompt: {self.conversation.system or 'none'}"))

    def do_set(self, rest: str) -> None:
        key, value = key_and_value(rest)
        if value:
            self._settings.change({key: value}, self._loaded())
        tell(settings_listed(self._settings.lines(self._loaded(), key)))

    def do_think(self, rest: str) -> None:
        word = parse_think(rest)
        if word == SHOW:
            thoughts = next((turn.reasoning for turn in reversed(self.conversation.turns) if turn.reasoning), "")
            tell(safe(thoughts or "No reply has thoughts yet."))
            return
        if word:
            self._settings.change({THINK: word}, self._loaded())
        tell(state(self._settings.now, self._loaded(), self.conversation.system).sentence)

    def do_again(self, _: str) -> None:
        if self.conversation.answered and (notice := self._settings.resampling_notice(self._loaded())):
            tell(notice)
        self._instead(None)

    def do_edit(self, text: str) -> None:
        if not text:
            raise UsageMistake("/edit needs the new text of your last prompt: /edit TEXT.")
        self._instead(text)

    def _instead(self, prompt: str | None) -> None:
        """Answer the last answered prompt again in a new branch, or answer `prompt` in its place.

        Raises UsageMistake if there is no reply yet.
        """
        origin, turns = self.conversation, self.conversation.answered - 1
        if turns < 0:
            raise UsageMistake("There is no reply yet; say something first.")
        self.conversation = origin.branch(turns)
        try:
            if prompt is None:
                turn = origin.turns[turns]
                self._answer_prompt(saved_prompt(turn), turn.figures)
            else:
                self._answer(prompt)
        except LocalspecError:
            self.conversation = self.conversation.back() or origin
            raise
        branch = self.conversation
        if (previous := self.conversation.back()) is not None:
            self.conversation = previous
            same = same_answer(branch.turns[-1].figures, WARMER) if branch.same_answer else ""
            tell(same or "The model wrote nothing, so the earlier answer stays.")
        elif origin.id is not None:
            tell(f"The earlier answer stays in conversation {origin.id}: /resume {origin.id} returns to it.")

    def do_title(self, text: str) -> None:
        self.conversation.rename(text)

    def do_find(self, words: str) -> None:
        turns = self.conversation.turns
        if not words:
            raise UsageMistake("/find needs the words to look for: /find WORDS.")
        matches = hits([(turn.typed, turn.reply) for turn in turns], words)
        for turn, reply, _ in matches:
            text = turns[turn].reply if reply else turns[turn].typed
            speaker = "the reply" if reply else "the prompt"
            tell(one_line(f"{turn + 1}, {speaker}: {excerpt(folded_words(words)[0], text, '')}"))
        if not matches:
            tell("No message of this conversation contains that.")

    def do_phrases(self, words: str) -> None:
        output: list[str] = []
        if store := self._store:
            stories = Stories(store.history)
            for pool in pools_of(store, self._card):
                decode, why_ids = reader(pool)
                phrases = readable_phrases(pool, store.phrases.most_useful(pool.pool), decode, words)
                lines = [f"{row.line}  ({stories.of(row.phrase)})" for row in islice(phrases, LISTED - len(output))]
                output += [why_ids, *lines] if why_ids and lines else lines
        for line in output or ["No phrase contains that." if words else "No phrases are saved for this model yet."]:
            tell(one_line(line))

    def do_race(self, line: str) -> None:
        """Print the result of a race, as `localspec race` does without a terminal."""
        if not line:
            raise UsageMistake("/race needs the prompt that both answer: /race PROMPT.")
        from localspec.bench.race import opponents, race, result, sentences
        from localspec.serving.socket_engine import in_this_process

        prompt, engine = with_files(line).prompt, in_this_process(self._loaded())
        self._progress.show("racing")
        lanes, streams = opponents(engine, prompt, self.conversation.system, self._settings.now)
        with ExitStack() as at_the_end:
            for stream in streams:
                at_the_end.enter_context(closing(stream))
            interrupt = at_the_end.enter_context(Interrupt())
            interrupt.wait_for_step = True
            for _ in race(lanes, streams):
                if interrupt.requested:
                    raise KeyboardInterrupt
        for sentence in sentences(lanes, result(*lanes)):
            tell(one_line(sentence))

    def do_xray(self, _: str) -> None:
        if self._trace is None and self._engine is not None and self._engine.decode is None:
            raise UsageMistake(UNTOLD)
        if self._trace is None:
            raise UsageMistake("There is no reply in this session yet; say something first.")
        for line in step_by_step(self._trace):
            tell(safe(line))

    def _recall(self) -> None:
        turns = self.conversation.turns
        if turns:
            tell(f"Continuing a conversation of {counted(len(turns), 'turn')}; the last one was:")
            for name in saved_prompt(turns[-1]).files:
                tell(one_line(f"+ {name}"))
            tell(safe(f"> {turns[-1].typed}"))
            if turns[-1].reasoning:
                tell(f"({saved_thought(turns[-1].figures)})")
            tell(safe(turns[-1].reply or "(no answer)"))

    # -- answers ------------------------------------------------------------------------------------------------------

    def _answer(self, line: str) -> None:
        """Send the typed prompt, with the text of the files that it names."""
        prompt, engine = with_files(line), self._loaded()
        for description in measured(line, engine.count_tokens, engine.context, visible=True):
            tell(one_line(f"+ {description}"))
        self._answer_prompt(prompt)

    def _answer_prompt(self, prompt: ComposedPrompt, figures: Mapping[str, Any] | None = None) -> None:
        """Send a prompt, and print the reply. If it replaces a reply, `figures` are those saved with the old reply."""
        from localspec import Done, Limits, Prefill, Text

        engine = self._loaded()
        settings = self._settings.another(figures, engine)
        trace = Trace(prompt.typed, engine.decode or str)
        live = LiveStats(engine, settings.accept)
        watched = sys.stdout.isatty()  # for a program, a repeating reply is not stopped
        limits = Limits(settings.max_tokens, settings.stop, loop_prompt=prompt.typed if watched else None)
        prompt = prompt.after(self._files, GIVEN)
        sampling, think = engine.sampling(settings), engine.thinking(settings, self.conversation.system)
        if sampled := first_sampled(self._card, sampling, self._store, self._settings.first):
            self._progress.notice(sampled)
        events = self.conversation.ask(engine, prompt.prompt, sampling, limits, prompt.figures, think)
        printer, outcome = _ReplyPrinter(self._progress), "(stopped)"
        try:
            with closing(events), Interrupt() as interrupt, suppress(KeyboardInterrupt):
                engine.wanted = lambda: not interrupt.requested
                for event in events:
                    live.take(event)
                    if engine.decode is not None:
                        trace.take(event)
                    match event:
                        case Prefill(done, total, _) if done < total:
                            printer.read(total - done)
                        case Prefill(_, _, dropped):
                            interrupt.wait_for_step = True
                            if sentence := self.conversation.memory_notice(dropped):
                                self._progress.notice(sentence)
                        case Text():
                            printer.add(event)
                        case Done(reason):
                            outcome = self._how_ended(reason, settings, engine)
                    if interrupt.requested:
                        raise KeyboardInterrupt
        finally:  # the error gets a separate line
            printer.end()
        trace.ended = True
        self._trace = trace if trace.tokens else self._trace
        if self.conversation.unanswered is None:
            self._files = ""  # the model has read them
        if outcome:
            tell(outcome)
        unsaved = self.conversation.unsaved_words
        if words := [*in_words(live.figures()), *([f"not saved: {unsaved}"] if unsaved else [])]:
            tell(f"({' · '.join(words)})")

    def _how_ended(self, reason: str, settings: "Settings", engine: "Answerer") -> str:
        """Return a sentence about the end of the last reply; "" if the model ended it as usual."""
        turn = self.conversation.turns[-1]
        if sentence := why_empty(turn, settings, engine, self.conversation.system):
            return sentence
        outcome = repeated(turn.figures, WARMER) if reason == "repetition" else ending(reason, turn.figures)
        return outcome and f"({outcome})"
