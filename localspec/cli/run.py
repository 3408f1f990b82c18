"""localspec run [PROMPT]"""

import json
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.chat.conversation import dropped_turns_notice
from localspec.chat.start import start_chat
from localspec.cli.interrupt import Interrupt
from localspec.cli.options import SharedFlags, takes_shared_flags
from localspec.cli.progress import Progress, tell
from localspec.cli.texts import joined, piped_text, valid_text
from localspec.errors import LocalspecError, UsageMistake

if TYPE_CHECKING:
    from localspec import Engine, Sampling, Statistics

app = typer.Typer()


@app.command()
@takes_shared_flags
def run(
    flags: SharedFlags,
    prompt: Annotated[
        str | None, typer.Argument(help="The question; piped text comes before it. '-' is piped text alone.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    stream_json: Annotated[
        bool, typer.Option("--stream-json", help="One JSON object a line, as the reply comes.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="A line of figures on standard error.")] = False,
) -> int:
    """One answer to standard output; for pipelines."""
    if as_json and stream_json:
        raise UsageMistake("--json and --stream-json exclude each other; give one of them.")
    question = _prompt(prompt, flags.files)
    output: _Output = _Stream() if stream_json else _Object() if as_json else _Plain()
    return _answer(flags, question, output, stats)


def _answer(flags: SharedFlags, question: str, output: "_Output", stats: bool) -> int:
    if sys.stdout is None:
        raise LocalspecError("Standard output is closed, so there is no place for an answer; leave it open.")
    settings, progress = flags.settings, Progress()
    with ExitStack() as at_the_end, Interrupt() as interrupt:
        at_the_end.callback(progress.clear)
        card, store, conversation = start_chat(settings, flags.resume, at_the_end, progress.notice, progress.show)
        progress.show(f"loading {card.name}")
        began = time.perf_counter()

        # From here on torch is needed, and takes a second to import.
        from localspec import Done, Engine, Limits, Prefill, Text

        engine = Engine.open(settings, card, store=store, notice=progress.notice, progress=progress.show)
        load_seconds = time.perf_counter() - began
        sampling, limits = engine.sampling(settings), Limits(settings.max_tokens, settings.stop)
        report = _Report(engine, sampling, load_seconds)
        events = conversation.ask(engine, question, sampling, limits)
        at_the_end.callback(events.close)  # it needs the store to the last

        def end(reason: str, statistics: "Statistics") -> None:
            values = report.of(output.reply, reason, statistics)
            output.end(values)
            if stats:
                tell(_figures(values, report.exactness))

        started = False
        try:
            for event in events:
                if not started:
                    if interrupt.asked:
                        raise KeyboardInterrupt
                    output.start(report)
                    started = True
                match event:
                    case Prefill(done, total, _) if done < total:
                        progress.show(f"reading {done} of {total} tokens")
                    case Prefill(_, _, dropped):
                        progress.clear()
                        if dropped:
                            progress.notice(dropped_turns_notice(dropped))
                        interrupt.wait_for_step = True
                    case Text():
                        output.text(event.text, event.tokens, event.sources)
                        if interrupt.asked:
                            raise KeyboardInterrupt
                    case Done(reason, statistics):
                        end(reason, statistics)
        except KeyboardInterrupt:
            progress.clear()
            events.close()  # settles the session and saves the turn
            if not started or engine.session.statistics is None:
                raise
            end("interrupted", engine.session.statistics)
            return 130
    return 0


def _prompt(argument: str | None, files: str) -> str:
    """Files, then piped text, then the argument, with blank lines between. Raises UsageMistake where there is none."""
    before = piped_text()
    if before is None and argument == "-":
        raise UsageMistake("'-' stands for piped text, and nothing is piped in; pipe something, or give the prompt.")
    prompt = joined(files, before or "", "" if argument is None or argument == "-" else valid_text(argument))
    if not prompt:
        raise UsageMistake('There is no prompt; write localspec run "your question", or pipe text in.')
    return prompt


class _Report:
    """The JSON object of one reply, as far as it does not depend on how the reply went."""

    def __init__(self, engine: "Engine", sampling: "Sampling", load_seconds: float) -> None:
        choice = engine.choice
        self._load_seconds, self.exactness = load_seconds, engine.exactness.label(sampling.rule)
        self.start: dict[str, Any] = {
            "model": choice.target.name,
            "revision": engine.revision,
            "drafter": choice.drafter,
            "device": choice.device,
            "engine": choice.engine,
            "dtype": choice.dtype,
            "quantize": choice.quantize,
            "exactness": engine.exactness.word(sampling.rule),
            "accept": sampling.rule,
            "lossless": sampling.rule != "typical",
            "seed": sampling.seed,
        }

    def of(self, text: str, reason: str, statistics: "Statistics") -> dict[str, Any]:
        memory = statistics.memory
        return {
            "text": text,
            "token_ids": statistics.token_ids,
            **self.start,
            "finish_reason": reason,
            "prompt_tokens": statistics.prompt_tokens,
            "completion_tokens": len(statistics.token_ids),
            "timings": {
                "load_s": round(self._load_seconds, 4),
                "prefill_s": round(statistics.prefill_seconds, 4),
                "first_token_s": round(statistics.first_token_seconds, 4),
                "decode_s": round(statistics.decode_seconds, 4),
                "tokens_per_second": round(statistics.tokens_per_second, 2),
            },
            "speculation": {
                "steps": statistics.steps,
                "acceptance_length": round(statistics.acceptance_length, 4),
                "acceptance_by_depth": [round(chance, 4) for chance in statistics.acceptance_by_depth],
                "draft_n": statistics.drafted,
                "draft_n_accepted": statistics.accepted,
                "sources": dict(statistics.sources),
                "speedup": None,
                "M": None,
                "off_reason": statistics.off_reason,
            },
            "memory": {
                "target_bytes": memory.target,
                "drafter_bytes": memory.drafter,
                "cache_bytes": memory.cache,
                "peak_bytes": memory.peak,
            },
        }


def _figures(report: dict[str, Any], exactness: str) -> str:
    """The line of --stats."""
    timings, speculation = report["timings"], report["speculation"]
    precision = report["dtype"] if report["quantize"] == "none" else report["quantize"]
    sources = ", ".join(f"{name} {count}" for name, count in speculation["sources"].items())
    return (
        f"{timings['tokens_per_second']:.1f} tokens/s · {speculation['acceptance_length']:.2f} tokens/step ({sources})"
        f" · {report['completion_tokens']} tokens · first after {timings['first_token_s']:.2f} s"
        f" · {precision}, {exactness} · {report['memory']['peak_bytes'] / 2**30:.2f} GiB at most"
    )


class _Output:
    """Where a reply goes. `reply` is all of its text so far."""

    def __init__(self) -> None:
        self.reply = ""

    def start(self, report: _Report) -> None:
        """The prompt is accepted, and being read."""

    def text(self, text: str, tokens: tuple[int, ...], sources: tuple[str, ...]) -> None:
        """One decode step."""
        self.reply += text

    def end(self, report: dict[str, Any]) -> None:
        """The reply is complete, or was interrupted."""


class _Plain(_Output):
    """The reply and nothing else, flushed as it comes."""

    def text(self, text: str, tokens: tuple[int, ...], sources: tuple[str, ...]) -> None:
        super().text(text, tokens, sources)
        print(text, end="", flush=True)

    def end(self, report: dict[str, Any]) -> None:
        print(end="" if self.reply.endswith("\n") else "\n", flush=True)


class _Object(_Output):
    """One JSON object at the end."""

    def end(self, report: dict[str, Any]) -> None:
        print(json.dumps(report), flush=True)


class _Stream(_Output):
    """One JSON object a line: start, a step each, end."""

    def start(self, report: _Report) -> None:
        self._print({"event": "start", **report.start})

    def text(self, text: str, tokens: tuple[int, ...], sources: tuple[str, ...]) -> None:
        super().text(text, tokens, sources)
        self._print({"event": "step", "text": text, "token_ids": tokens, "sources": sources})

    def end(self, report: dict[str, Any]) -> None:
        self._print({"event": "end", **report})

    @staticmethod
    def _print(value: dict[str, Any]) -> None:
        print(json.dumps(value), flush=True)
