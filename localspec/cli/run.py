"""`localspec run [PROMPT]`: answers one prompt."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.chat.attachments import ComposedPrompt, with_piped
from localspec.chat.figures import (
    SAMENESS,
    drafting_off,
    gain,
    known_speedup,
    repeated,
    seconds_words,
    share_words,
    tokens_a_step,
)
from localspec.chat.sampling import first_sampled, sampling_words, why_empty
from localspec.cli.beginning import begin, keep_seconds
from localspec.cli.console import Progress, piped, say, tell
from localspec.cli.interrupt import INTERRUPTED, Interrupt
from localspec.cli.options import SharedFlags, takes_shared_flags
from localspec.cli.texts import checked_prompt, piped_text
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.events import Done, Event, Prefill, Text
from localspec.hub.sources import REPOSITORY, is_address
from localspec.models.names import full_name, name_in_prompt
from localspec.models.registry import known
from localspec.quantities import counted, precision_in_words, short_pace, size
from localspec.text import safe

if TYPE_CHECKING:
    from localspec import Statistics
    from localspec.chat.conversation import Conversation
    from localspec.engine.report import Report

app = typer.Typer()
NOT_CHECKED = "not checked yet (a chat checks after its first reply, `--exact` before a reply)"


@app.command()
@takes_shared_flags
def run(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [PROMPT]",
            help="The prompt, which may be about piped text. '-' means piped text only. You can put the name of a "
            "model before the prompt.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    stream_json: Annotated[
        bool, typer.Option("--stream-json", help="One JSON object per line while the reply is written.")
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep", metavar="TIME", help="Keep the model loaded for this long after the reply: 30s, 10m, 2h."
        ),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print two lines of figures on standard error.")] = False,
    flags: SharedFlags,
) -> int:
    """Print one answer; for pipelines."""
    if as_json and stream_json:
        raise UsageMistake("--json and --stream-json cannot be combined; give only one of them.")
    flags, prompt = _model_and_prompt(flags, words or [])
    keep_for = None if keep is None else keep_seconds(keep, flags.settings)
    question = _prompt(prompt, flags.files)
    form = _Stream if stream_json else _Object if as_json else _Plain
    return _answer(flags, question, form(Progress()), stats, keep_for)


def _answer(flags: SharedFlags, question: ComposedPrompt, output: "_Output", stats: bool, keep: int | None) -> int:
    if not sys.stdout.writable():
        raise LocalspecError(
            "Standard output is closed, so the answer cannot be printed; run it with standard output open."
        )
    settings, progress = flags.settings, output.progress
    with ExitStack() as at_the_end, Interrupt() as interrupt:
        at_the_end.callback(progress.clear)
        progress.show("starting")
        start = begin(settings, "last run" if flags.resume == "last" else flags.resume, at_the_end, progress)
        card, _, conversation = start.chat
        conversation.source = "pipe" if piped() else "run"
        began = time.perf_counter()

        from localspec import Limits

        engine = start.for_reply(settings, card, keep)
        engine.wanted = lambda: not interrupt.requested
        load_seconds = time.perf_counter() - began
        watched = isinstance(output, _Plain) and sys.stdout.isatty()  # for a program, a repeating reply is not stopped
        sampling = engine.sampling(settings)
        limits = Limits(settings.max_tokens, settings.stop, loop_prompt=question.prompt if watched else None)
        report = engine.report(sampling, load_seconds)
        if sampled := first_sampled(card, sampling, start.chat.store, settings):
            progress.notice(sampled)
        think = engine.thinking(settings, conversation.system)
        progress.clear()
        progress.show("waiting for the reply")
        events = conversation.ask(engine, question.prompt, sampling, limits, question.figures, think)
        at_the_end.callback(events.close)  # it needs the store until the end

        try:
            reason, statistics = _write(events, output, report, conversation, interrupt)
            code = 0
        except KeyboardInterrupt:
            progress.clear()
            events.close()  # settles the session and saves the turn
            if not output.started or engine.session.statistics is None:
                raise
            reason, statistics, code = "interrupted", engine.session.statistics, INTERRUPTED
        except LocalspecError:
            output.cut()
            raise
        progress.clear()
        values = report.of(output.reply, output.reasoning, reason, statistics)
        output.end(values)
        if reason == "repetition":
            progress.notice(f"{repeated(conversation.turns[-1].figures, '--temp 0.7 makes answers vary')}.")
        if sentence := why_empty(conversation.turns[-1], settings, engine, conversation.system):
            progress.notice(sentence)
        if stats:
            origin = (*_origin(values, report.exactness), sampling_words(sampling))
            for parts in (_speed(values, known_speedup(statistics)), origin):
                tell(" · ".join(filter(None, parts)))
        return code


def _write(
    events: Iterator[Event], output: "_Output", report: "Report", conversation: "Conversation", interrupt: Interrupt
) -> tuple[str, "Statistics"]:
    """Write a reply and its progress. Return why the reply ended, and its figures. Raises KeyboardInterrupt."""
    for event in events:
        if not output.started:
            if interrupt.requested:
                raise KeyboardInterrupt
            output.start(report)
        match event:
            case Prefill(done, total, _) if done < total:
                output.progress.show(f"reading {done} of {total} tokens")
            case Prefill(_, _, dropped):
                output.progress.clear()
                if sentence := conversation.memory_notice(dropped):
                    output.progress.notice(sentence)
                interrupt.wait_for_step = True
            case Text():
                output.step(event)
                if interrupt.requested:
                    raise KeyboardInterrupt
            case Done(reason, statistics):
                return reason, statistics
    raise KeyboardInterrupt  # the server did not answer


def _model_and_prompt(flags: SharedFlags, words: Sequence[str]) -> tuple[SharedFlags, str | None]:
    """Return the flags and the prompt. If there are two words, the first names the model, which must be here.

    Unlike in `chat`, a unique prefix of the name is enough, because a prompt follows it. Raises UsageMistake for any
    other words, and NotHere for an address on the hub whose model is not here.
    """
    if len(words) == 1 and (model := name_in_prompt(words[0])) is not None and flags.settings.elsewhere is None:
        say(f'{words[0]!r} is taken as the prompt; to ask that model, type `localspec run {model} "your question"`.')
    if len(words) < 2:
        return flags, words[0] if words else None
    if is_address(words[0]) and (model := full_name(words[0])) not in known():
        raise NotHere(f"The model {model!r} of the hub is not here; fetch it with `localspec pull {model}`.")
    if len(words) == 2 and not flags.settings.origins["model"].startswith("--") and flags.settings.elsewhere is None:
        model = full_name(words[0])
        if model in known():
            return flags.with_model(model), words[1]
        if REPOSITORY.fullmatch(model):
            raise UsageMistake(
                f"{words[0]!r} is not a model that is here; fetch it with `localspec pull {model}`, or, if it belongs "
                "to the prompt, put the whole prompt in quotation marks."
            )
        raise UsageMistake(
            f"{words[0]!r} is not a model that is here; if it belongs to the prompt, put the whole prompt in quotation "
            "marks."
        )
    more = " ".join(words[1:])
    raise UsageMistake(f"More words follow the prompt {words[0]!r} ({more}); put quotation marks around the prompt.")


def _prompt(argument: str | None, files: str) -> ComposedPrompt:
    """Return files, piped text and the argument as one prompt. Raises UsageMistake if all are missing."""
    text = piped_text()
    if text is None and argument == "-":
        raise UsageMistake("'-' stands for piped text, and nothing is piped in; pipe something, or give the prompt.")
    prompt = with_piped("" if argument is None or argument == "-" else checked_prompt(argument), text or "", files)
    if not prompt.prompt:
        raise UsageMistake('There is no prompt; write localspec run "your question", or pipe text in.')
    return prompt


def _speed(report: dict[str, Any], ratio: float | None) -> Iterator[str]:
    """Yield, in words, the speed, speedup, tokens per step, tokens, and seconds to the first token, where known."""
    timings = report["timings"]
    if timings["tokens_per_second"] is not None:
        yield short_pace(timings["tokens_per_second"])
    yield gain(ratio)
    yield tokens_a_step(report["speculation"]["acceptance_length"])
    if report["completion_tokens"] is not None:
        tokens = counted(report["completion_tokens"], "token")
        if report["reasoning_tokens"]:
            thoughts, duration = report["reasoning_tokens"], seconds_words(timings["reasoning_s"])
            tokens = f"{tokens}, {thoughts} of them for thinking ({duration})"
        yield tokens
    first = timings["first_token_s"]
    yield "first token within 0.1 s" if first < 0.1 else f"first token after {first:.1f} s"


def _origin(report: dict[str, Any], exactness: str) -> Iterator[str]:
    """Yield, in words, the proposers of tokens, precision, exactness, memory, and why drafts are off."""
    sources = report["speculation"]["sources"] or {}
    yield share_words(sources) if len(sources) > 1 else ""
    precision = precision_in_words(report["dtype"] or "", report["quantize"] or "none", report["bits_per_weight"])
    if precision:
        device = report["device"]
        yield f"{precision} on {device}" if device else precision
    yield NOT_CHECKED if exactness == "unchecked" else SAMENESS.get(exactness, exactness)
    if (peak := report["memory"]["peak_bytes"]) is not None:
        yield f"{size(peak)} of memory at most"
    yield drafting_off(report["speculation"]["off_reason"], drafts=report["drafter"] != "none")


class _Output:
    """A writer of a reply. `reply` is the text so far, and `reasoning` the thoughts so far."""

    streams = True  # whether the answer is shown as it comes

    def __init__(self, progress: Progress) -> None:
        self.progress, self.started = progress, False
        self.reply = self.reasoning = ""
        self._thinking_tokens = self._tokens = 0

    def start(self, report: "Report") -> None:
        """Report that the prompt is accepted and being read."""
        self.started = True

    def step(self, event: Text) -> None:
        """Write one decode step, or show how far the reply is."""
        self.reply += event.text
        self.reasoning += event.reasoning
        self._thinking_tokens += event.reasoning_tokens
        self._tokens += len(event.tokens)
        if event.text and self.streams:
            self.progress.clear()
        elif event.text:
            self.progress.show(f"writing, {counted(self._tokens - self._thinking_tokens, 'token')}")
        elif event.reasoning_tokens:
            self.progress.show(f"thinking, {counted(self._thinking_tokens, 'token')}")

    def end(self, report: dict[str, Any]) -> None:
        """Write the end of a reply that is complete or was interrupted."""

    def cut(self) -> None:
        """Write the end of a reply that failed. Its text so far stays."""


class _Plain(_Output):
    """A writer of only the answer, as it arrives."""

    def cut(self) -> None:
        if self.reply:
            self.end({})

    def step(self, event: Text) -> None:
        super().step(event)
        if event.text:
            print(safe(event.text), end="", flush=True)

    def end(self, report: dict[str, Any]) -> None:
        print(end="" if self.reply.endswith("\n") else "\n", flush=True)


class _Object(_Output):
    """A writer of one JSON object at the end."""

    streams = False

    def end(self, report: dict[str, Any]) -> None:
        print(json.dumps(report), flush=True)


class _Stream(_Output):
    """A writer of one JSON object per line: one at the start, one per step, one at the end."""

    def start(self, report: "Report") -> None:
        super().start(report)
        self._print({"event": "start", **report.start})

    def step(self, event: Text) -> None:
        super().step(event)
        texts = {"text": event.text, "reasoning": event.reasoning}
        self._print({"event": "step", **texts, "token_ids": event.tokens, "sources": event.sources})

    def end(self, report: dict[str, Any]) -> None:
        self._print({"event": "end", **report})

    @staticmethod
    def _print(value: dict[str, Any]) -> None:
        print(json.dumps(value), flush=True)
