"""localspec run [PROMPT]"""

import json
import re
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from localspec import config, registry
from localspec.cli.options import Context, Device, Drafter, DraftMax, Dtype, Quantize, number
from localspec.cli.progress import Progress, tell
from localspec.errors import LocalspecError, UsageMistake
from localspec.paths import Paths

if TYPE_CHECKING:
    from localspec import Engine, Sampling, Statistics
    from localspec.config import Settings

app = typer.Typer()


@app.command()
def run(
    prompt: Annotated[
        str | None, typer.Argument(help="The question; piped text comes before it. '-' is piped text alone.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A name, or a directory in the Hugging Face layout.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="System prompt.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="Text put before the prompt; repeatable.")
    ] = None,
    max_tokens: Annotated[int | None, number("--max-tokens", "-n", help="The longest reply, in tokens.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Text that ends the reply; repeatable.")] = None,
    context: Context = None,
    temperature: Annotated[float | None, number("--temperature", "--temp", help="0 is greedy.")] = None,
    top_p: Annotated[
        float | None, number("--top-p", help="Only the likeliest tokens that reach this together.")
    ] = None,
    top_k: Annotated[int | None, number("--top-k", help="Only so many of the likeliest tokens.")] = None,
    min_p: Annotated[
        float | None, number("--min-p", help="Only tokens this likely, relative to the likeliest.")
    ] = None,
    seed: Annotated[
        int | None, number("--seed", help="The same seed gives the same text (in bf16 up to its rounding).")
    ] = None,
    drafter: Drafter = None,
    no_spec: Annotated[bool, typer.Option("--no-spec", help="Plain decoding: --drafter none.")] = False,
    draft_max: DraftMax = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Text with and without speculation the same bit for bit; may cost speed.")
    ] = False,
    pool: Annotated[
        str | None, typer.Option("--pool", help="Phrases kept on disk: user (learn and use), readonly, off.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    quantize: Quantize = None,
    no_log: Annotated[bool, typer.Option("--no-log", help="Keep nothing of this reply.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    stream_json: Annotated[
        bool, typer.Option("--stream-json", help="One JSON object a line, as the reply comes.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="A line of figures on standard error.")] = False,
) -> int:
    """One answer to standard output; for pipelines."""
    if as_json and stream_json:
        raise UsageMistake("--json and --stream-json exclude each other; give one of them.")
    if no_spec and drafter not in (None, "none"):
        raise UsageMistake(f"--no-spec and --drafter {drafter} contradict each other; give one of them.")
    settings = config.load(
        flags={
            "model": model, "system": system, "max_tokens": max_tokens, "stop": stop, "context": context,
            "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed,
            "drafter": "none" if no_spec else drafter,
            "draft_max": draft_max, "exact": exact or None, "pool": pool,
            "device": device, "dtype": dtype, "quantize": quantize, "log": False if no_log else None,
        }
    )  # fmt: skip
    if pool in ("user", "readonly") and (settings.drafter == "none" or settings.draft_max == 0):
        raise UsageMistake(f"--pool {pool} has no effect without a drafter; leave it out.")
    question = _prompt(prompt, file or [])
    output: _Output = _Stream() if stream_json else _Object() if as_json else _Plain()
    return _answer(settings, question, output, stats)


def _answer(settings: "Settings", question: str, output: "_Output", stats: bool) -> int:
    if sys.stdout is None:
        raise LocalspecError("Standard output is closed, so there is no place for an answer; leave it open.")
    card = registry.resolve(settings.model or "demo")
    checkpoint = registry.inspect(card.path)  # a mistake in the model's name is told before anything is loaded
    progress = Progress()
    if settings.model is None:
        progress.notice("no model named, so the small demo model answers; choose one with -m.")
    with ExitStack() as at_the_end, _Interrupt() as interrupt:
        at_the_end.callback(progress.clear)
        progress.show(f"loading {card.name}")
        began = time.perf_counter()

        # From here on torch is needed, and takes a second to import.
        from localspec import Done, Engine, Limits, Prefill, Text
        from localspec.selection import choose
        from localspec.store import Store

        choice = choose(card, settings, checkpoint.parameters)
        store, database = None, Paths(config.home()).database
        if settings.log or database.exists():  # what was measured here is kept there too
            store = at_the_end.enter_context(Store.open(database, progress.notice))
        engine = Engine(
            choice,
            store=store,
            learn=settings.log and settings.pool == "user",
            phrases=settings.pool != "off" and choice.drafter != "none",
            notice=progress.notice,
            progress=progress.show,
        )
        load_seconds = time.perf_counter() - began
        sampling, limits = engine.sampling(settings), Limits(settings.max_tokens, settings.stop)
        messages = [{"role": "system", "content": _whole(settings.system)}] if settings.system else []
        messages.append({"role": "user", "content": question})
        report = _Report(engine, sampling, load_seconds)
        events = engine.chat(messages, sampling, limits)
        at_the_end.callback(events.close)  # it needs the store to the last

        def end(reason: str, statistics: "Statistics") -> None:
            values = report.of(output.said, reason, statistics)
            output.end(values)
            if stats:
                tell(_figures(values))

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
                    case Prefill():
                        progress.clear()
                        interrupt.wait_for_step = True
                    case Text():
                        output.text(event.text, event.tokens, event.sources)
                        if interrupt.asked:
                            raise KeyboardInterrupt
                    case Done(reason, statistics):
                        end(reason, statistics)
        except KeyboardInterrupt:
            progress.clear()
            events.close()  # settles the session and keeps what was said
            if not started or engine.session.statistics is None:
                raise
            end("interrupted", engine.session.statistics)
            return 130
    return 0


class _Interrupt:
    """Ctrl+C while text comes: the step under way is finished, so that text and tokens agree. Again: at once."""

    def __init__(self) -> None:
        self.asked = self.wait_for_step = False

    def __enter__(self) -> Self:
        self._ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup and the like ignore it
        if self._ours:
            signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _ask(self, *_: object) -> None:
        first, self.asked = not self.asked, True  # kept, for a library that is being imported may swallow the exception
        if not first or not self.wait_for_step:
            raise KeyboardInterrupt


def _prompt(argument: str | None, files: list[Path]) -> str:
    """Files, then piped text, then the argument, with blank lines between. Raises UsageMistake where there is none."""
    parts = [_read(file) for file in files]
    piped = sys.stdin is not None and not sys.stdin.isatty()
    if piped and sys.stdin is not None:
        try:
            parts.append(sys.stdin.buffer.read().decode("utf-8", "replace"))
        except OSError as error:
            raise UsageMistake(
                f"Standard input cannot be read ({error.strerror}); pipe text in, or </dev/null."
            ) from None
    elif argument == "-":
        raise UsageMistake("'-' stands for piped text, and nothing is piped in; pipe something, or give the prompt.")
    if argument is not None and argument != "-":
        parts.append(_whole(argument))
    whole = "\n\n".join(text for part in parts if (text := part.strip("\r\n")).strip())
    if not whole:
        raise UsageMistake('There is no prompt; write localspec run "your question", or pipe text in.')
    return whole


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageMistake(f"{file} cannot be read ({error.strerror}); give a file that can.") from None
    except UnicodeDecodeError:
        raise UsageMistake(f"{file} is not UTF-8 text; give a text file.") from None


def _whole(argument: str) -> str:
    """An argument whose bytes were no text holds lone surrogates, which no tokenizer takes."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", argument)


class _Report:
    """The JSON object of one reply, as far as it does not depend on how the reply went."""

    def __init__(self, engine: "Engine", sampling: "Sampling", load_seconds: float) -> None:
        choice = engine.choice
        self._load_seconds = load_seconds
        self.start: dict[str, Any] = {
            "model": choice.target.name,
            "revision": engine.revision,
            "drafter": choice.drafter,
            "device": choice.device,
            "dtype": choice.dtype,
            "quantize": choice.quantize,
            "exactness": "bitwise" if engine.exactness.bitwise else "numerical",
            "accept": "exact",
            "lossless": True,
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


def _figures(report: dict[str, Any]) -> str:
    """The line of --stats."""
    timings, speculation = report["timings"], report["speculation"]
    precision = report["dtype"] if report["quantize"] == "none" else report["quantize"]
    sources = ", ".join(f"{name} {count}" for name, count in speculation["sources"].items())
    return (
        f"{timings['tokens_per_second']:.1f} tokens/s · {speculation['acceptance_length']:.2f} tokens/step ({sources})"
        f" · {report['completion_tokens']} tokens · first after {timings['first_token_s']:.2f} s"
        f" · {precision}, {report['exactness']} · {report['memory']['peak_bytes'] / 2**30:.2f} GiB at most"
    )


class _Output:
    """Where a reply goes. `said` is all of its text so far."""

    def __init__(self) -> None:
        self.said = ""

    def start(self, report: _Report) -> None:
        """The prompt is accepted, and being read."""

    def text(self, text: str, tokens: tuple[int, ...], sources: tuple[str, ...]) -> None:
        """One decode step."""
        self.said += text

    def end(self, report: dict[str, Any]) -> None:
        """The reply is complete, or was interrupted."""


class _Plain(_Output):
    """The reply and nothing else, flushed as it comes."""

    def text(self, text: str, tokens: tuple[int, ...], sources: tuple[str, ...]) -> None:
        super().text(text, tokens, sources)
        print(text, end="", flush=True)

    def end(self, report: dict[str, Any]) -> None:
        print(end="" if self.said.endswith("\n") else "\n", flush=True)


class _Object(_Output):
    """One JSON object at the end."""

    def end(self, report: dict[str, Any]) -> None:
        print(json.dumps(report), flush=True)


class _Stream(_Output):
    """One JSON object a line: start, a step each, end."""

    def start(self, report: _Report) -> None:
        self._line({"event": "start", **report.start})

    def text(self, text: str, tokens: tuple[int, ...], sources: tuple[str, ...]) -> None:
        super().text(text, tokens, sources)
        self._line({"event": "step", "text": text, "token_ids": tokens, "sources": sources})

    def end(self, report: dict[str, Any]) -> None:
        self._line({"event": "end", **report})

    @staticmethod
    def _line(value: dict[str, Any]) -> None:
        print(json.dumps(value), flush=True)
