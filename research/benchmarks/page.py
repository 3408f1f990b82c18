"""docs/figures/benchmarks.md and its drawings, from the raw figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import plots
from benchmarks.decoding import PLAIN
from benchmarks.load_child import AT_ONCE
from benchmarks.readings import DISTURBED, Figure, Raw, figure, ratio
from benchmarks.sections import CONTEXTS, NEAR, PROMPTS, ROWS, flash_is_faster, limit

CONTENDERS = tuple(plots.COLOURS)
INT8, INT4, Q8_0, Q4_0, Q4_K_M, BF16 = CONTENDERS

INTRODUCTION = """# Benchmarks: localspec, llama.cpp and transformers

For readers who want to compare the CPU engine with other programs on the same weights, tokens and threads.

{summary}

Made by `make bench-report` (`research/bench_report.py`) from [benchmarks.json](benchmarks.json), which holds every reading.

- **Models.** `small` (0.37 B parameters) and `large` (1.44 B) are the demo model that comes with localspec, widened with zeros
  (`research/widen_demo.py`), so that they write real text at the speed of larger models. Their configuration claims a longer
  context than they were trained for, so that long contexts can be timed.
- **Turns.** Within a section all programs take turns, and the order changes from turn to turn. A forward is repeated for a
  fifth of a second, after one untimed warm-up. Figures are medians; a ratio is the median of the ratios within each turn.
- **Disturbed readings.** A reading is left out if other programs used more than {tenth} of a core meanwhile. If almost
  no reading is left, the median of all is given and marked with \\*.
- **Packings.** int8 and int4 are localspec's, Q8_0, Q4_0 and Q4_K_M are llama.cpp's. The digit is the
  approximate number of bits per weight.
- **llama.cpp** is built from source with the instructions of this machine, and called through llama-cpp-python's C functions.
  Its own quantiser makes its files. It repacks weights (its default), and uses flash attention for a model if that is
  faster on the whole. On a processor with AMX it is built without AMX (CFLAGS and CXXFLAGS `-mno-amx-int8
  -mno-amx-tile`), because with AMX it crashed here ([its issue 20824](https://github.com/ggml-org/llama.cpp/issues/20824)).
- **A forward** is one pass through the model. It ends when the likeliest token of each row is known. A *row* is one token
  position that it computes.
- **`memory read`** is the time in which the same threads read the bytes of a forward's weights and do nothing with them.
  Apart from noise, no forward can be faster.
"""

LOADING = (
    "Each load is a new process. *Warm* and *cold* are the seconds from the end of the imports to the first token after a "
    "prompt of 16 tokens; before a cold load the files were dropped from the page cache. *Plain read* is the time to read "
    "only the file from the disk. llama.cpp maps its file by default; a second line has it "
    f"with the file{AT_ONCE}. *Packs* is a load without localspec's packed file, which it then writes. *Peak* is the memory "
    "after a reply of 64 tokens, and *without files* the part of it that is not mapped from a file."
)
DECODING = (
    "Greedy replies, timed from the first token to the last. *× its plain* is the speedup over plain decoding by the same "
    "program in the same packing. *τ* is the tokens per forward of the target, without the first token. In plain decoding it "
    "is a little below 1 if replies end with a stop token, which takes a forward but does not count as a token. *Same* counts "
    "the replies with the tokens of plain decoding."
)
WAYS = (
    "The drafters of localspec are explained in [drafting.md](../drafting.md). *Look-up 2* and *10* are the prompt look-up of "
    "llama-cpp-python with drafts of 2 or 10 tokens, which `llama_decode` verifies. llama.cpp's *draft model* has the packing of "
    "the target, and drafts as llama.cpp's program `speculative` does: at most 16 tokens, each with a probability of at least "
    "0.75. transformers is its `generate`; *look-up* is its prompt look-up, and *assisted* uses the same draft model."
)
APART = 0.1  # most difference between a speedup and the ratio of the medians that the table shows
NOT_A_RATIO = (
    "† × differs by more than {percent} from the ratio of the two tokens/s. Each turn is one prompt, and prompts differ in "
    "speed. × is the median of the ratios within each turn. Tokens/s is the median of the replies, and may be of another prompt."
)


@dataclass(frozen=True)
class Measurements:
    """The measurements of one model with one set of instructions."""

    model: str
    isa: str
    runs: Mapping[str, Mapping[str, Any]]  # by section

    def readings(self, section: str) -> Raw:
        found: Raw = self.runs[section]["readings"] if section in self.runs else {}
        return found

    @property
    def title(self) -> str:
        billions = next(iter(self.runs.values()))["parameters"] / 1e9
        return f"{billions:.2f} B parameters, {self.isa}"

    @property
    def slug(self) -> str:
        return f"{self.model}-{self.isa}".replace("_", "-")


def grouped(raw: Mapping[str, Any]) -> list[Measurements]:
    """Return the runs of a raw file by model and instructions, in the order in which they came."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for run in raw["runs"].values():
        found.setdefault((run["model"], run["isa"]), {})[run["section"]] = run
    return [Measurements(model, isa, runs) for (model, isa), runs in found.items()]


def page(raw: Mapping[str, Any]) -> str:
    """Return the whole page."""
    parts = [INTRODUCTION.format(tenth=f"{DISTURBED:g}", summary=raw.get("summary", "")), _conditions(raw)]
    for measured in grouped(raw):
        parts += [f"## {measured.title}", _main_table(measured), _ratios(measured), _limits(measured)]
        parts += [f"![{alt}](plots/{name})" for name, alt in _drawn(measured)]
        parts += [part for part in (_decoding(measured), _loading(measured), _flags(measured)) if part]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def drawings(raw: Mapping[str, Any]) -> dict[str, str]:
    """Each drawing's file name and content."""
    return {name: draw() for measured in grouped(raw) for name, (draw, _) in _drawing_functions(measured).items()}


# -- tables ------------------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Markdown; every column but the first is of figures."""
    rows = [" | ".join(cells) for cells in (heads, ["---", *["---:"] * (len(heads) - 1)], *lines)]
    return "\n".join(f"| {row} |" for row in rows)


def shown(found: Figure | None, form: Callable[[float], str]) -> str:
    return "" if found is None else form(found.value) + ("\\*" if found.marked else "")


def milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def seconds(value: float) -> str:
    return f"{value / 1e3:.2f}"


def per_second(value: float) -> str:
    return f"{1e3 / value:.1f}"


def times(value: float) -> str:
    return f"{value:.2f}"


def mebibytes(value: float) -> str:
    return f"{value:,.0f}"


def _conditions(raw: Mapping[str, Any]) -> str:
    """Return when, on which machine, with which versions and under which load each section was measured."""
    lines = []
    for run in raw["runs"].values():
        taken = [others for cells in run["readings"].values() for _, _, others in cells]
        left_out = sum(others > DISTURBED for others in taken)
        low, high = run["load_average"]
        lines.append(
            [f"{run['model']}, {run['isa']}: {run['section']}", run["when"], str(run["threads"]), str(len(taken)),
             str(left_out), f"{low:.1f}–{high:.1f}", f"`{run['command']}`"]
        )  # fmt: skip
    machines = sorted({f"- {run['machine']}; {_versions(run)}" for run in raw["runs"].values()})
    told = ["Machine and versions (`native` is localspec's compiled library):", "\n".join(machines)]
    told.append(
        "Each section was measured by its own command. *Disturbed* counts the readings that other programs disturbed."
    )
    heads = ["section", "when (UTC)", "threads", "readings", "disturbed", "load average", "command"]
    return "\n\n".join([*told, table(heads, lines)])


def _versions(run: Mapping[str, Any]) -> str:
    """Return the versions of the programs, without the instructions that the run used."""
    return str(run["versions"]).replace(f"with {run['isa']}", "with the instructions of each section")


def _main_table(measured: Measurements) -> str:
    heads = ["milliseconds", *(f"{count} row{'s' if count > 1 else ''}" for count in ROWS)]
    heads += [f"{count} at {behind}" for behind in CONTEXTS[1:] for count in (1, 8)]
    heads += [f"prompt of {tokens} (s)" for tokens in PROMPTS]
    heads += ["first token, warm (s)", "cold (s)", "peak (MiB)", "plain (tokens/s)", "best speculation"]
    by_rows, by_context = measured.readings("rows"), measured.readings("context")
    prompts, loads, replies = (measured.readings(name) for name in ("prefill", "load", "decode"))
    lines = []
    for name in CONTENDERS:
        line = [shown(figure(by_rows, name, count), milliseconds) for count in ROWS]
        line += [
            shown(figure(by_context, name, f"{behind}/{count}"), milliseconds)
            for behind in CONTEXTS[1:]
            for count in (1, 8)
        ]
        line += [shown(figure(prompts, name, tokens), seconds) for tokens in PROMPTS]
        line += [shown(figure(loads, name, state), seconds) for state in ("warm", "cold")]
        line.append(shown(figure(loads, name, "peak"), mebibytes))
        line.append(shown(figure(replies, name, PLAIN), per_second))
        best = best_speculation(replies, name)
        line.append(f"{shown(figure(replies, name, best), per_second)} ({best})" if best else "")
        if any(line):
            lines.append([name, *line])
    lines += [
        [limit(name), shown(found, milliseconds), *[""] * (len(heads) - 2)]
        for name in (INT8, INT4)
        if (found := figure(by_rows, limit(name), 1))
    ]
    filled = [index for index in range(len(heads)) if any(line[index] for line in lines)]
    columns = f"Figures without a unit are milliseconds of a forward. The rows of `1 row` to `32 rows` follow {NEAR} tokens of text."
    if by_context:
        columns += " `8 at 2048` is 8 rows after 2048 tokens."
    if prompts:
        columns += " *Prompt of 512* is the time to read a prompt of 512 tokens."
    if loads:
        columns += " *First token*, *cold* and *peak* are explained under “Loading and memory”."
    if replies:
        columns += " *Best speculation* is the fastest setting with drafts, in tokens/s (“Replies”)."
    return f"{columns}\n\n{table([heads[i] for i in filled], [[line[i] for i in filled] for line in lines])}"


def columns_of(readings: Raw, contender: str) -> list[str]:
    """Return the columns in which a contender was measured."""
    return [name.split("|")[1] for name in readings if name.split("|")[0] == contender]


def best_speculation(replies: Raw, contender: str) -> str | None:
    """Return the fastest way of speculation that a contender has."""
    found = {
        column: known.value
        for column in columns_of(replies, contender)
        if column != PLAIN and (known := figure(replies, contender, column))
    }
    return min(found, key=lambda column: found[column]) if found else None


def _better(readings: Raw, column: object) -> str:
    """Return the faster one of llama.cpp's two kinds of four bits."""
    found = {name: known.value for name in (Q4_0, Q4_K_M) if (known := figure(readings, name, column))}
    return min(found, key=lambda name: found[name]) if found else Q4_0


def _ratios(measured: Measurements) -> str:
    """Return the speedups over llama.cpp in the same bits; empty without llama.cpp."""
    by_rows, by_context = measured.readings("rows"), measured.readings("context")
    prompts, replies = measured.readings("prefill"), measured.readings("decode")

    def beside(readings: Raw, column: object) -> list[str]:
        eight = ratio(readings, INT8, Q8_0, column)
        other = _better(readings, column)
        four = ratio(readings, INT4, other, column)
        return [shown(eight, times), f"{shown(four, times)} ({other.split()[1]})" if four else ""]

    lines = [[f"{count} row{'s' if count > 1 else ''}", *beside(by_rows, count)] for count in ROWS]
    lines += [
        [f"{count} row{'s' if count > 1 else ''} after {behind} tokens", *beside(by_context, f"{behind}/{count}")]
        for behind in CONTEXTS[1:]
        for count in (1, 8)
    ]
    lines += [[f"prompt of {tokens} tokens", *beside(prompts, tokens)] for tokens in PROMPTS]
    lines.append(["plain replies", *beside(replies, PLAIN)])
    best = [_speculation(replies, one) for one in (INT8, INT4)]
    lines.append(["best speculation ÷ llama.cpp at its fastest", *best])
    lines = [line for line in lines if any(line[1:])]
    heads = ["speed of localspec ÷ speed of llama.cpp", "int8 ÷ Q8_0", "int4 ÷ the faster of Q4_0 and Q4_K_M"]
    told = "Speedups over llama.cpp."
    if any(best):
        told += " The last row has both settings in brackets; llama.cpp may be at its fastest without drafts (*plain*)."
    return f"{told}\n\n{table(heads, lines)}" if lines else ""


def _limits(measured: Measurements) -> str:
    """Return how near the engine is to the limit of memory, and the cost of more rows."""
    by_rows = measured.readings("rows")
    lines = [
        ["speed of 1 row ÷ speed of `memory read`", *(_of_limit(by_rows, one) for one in (INT8, INT4))],
        ["time of 8 rows ÷ the shortest time of 1, 2 or 4 rows", *(_more_rows(by_rows, one) for one in (INT8, INT4))],
    ]
    return table(["localspec only", "int8", "int4"], lines) if any(any(line[1:]) for line in lines) else ""


def _speculation(replies: Raw, ours: str) -> str:
    ways = {
        (other, way): known.value
        for other in ((Q8_0,) if ours == INT8 else (Q4_0, Q4_K_M))
        for way in columns_of(replies, other)
        if (known := figure(replies, other, way))
    }
    own = best_speculation(replies, ours)
    if own is None or not ways:
        return ""
    other, way = min(ways, key=lambda pair: ways[pair])
    return f"{shown(ratio(replies, ours, other, own, way), times)} ({own}; {other.split()[1]} {way})"


def _of_limit(by_rows: Raw, ours: str) -> str:
    found = ratio(by_rows, limit(ours), ours, 1)  # how many times as fast reading by itself is
    return shown(found and Figure(1 / found.value, found.quiet, found.disturbed), times)


def _more_rows(by_rows: Raw, ours: str) -> str:
    few = {count: known.value for count in (1, 2, 4) if (known := figure(by_rows, ours, count))}
    return shown(ratio(by_rows, ours, ours, min(few, key=lambda count: few[count]), 8), times) if few else ""


def _decoding(measured: Measurements) -> str:
    if "decode" not in measured.runs:
        return ""
    replies, counted = measured.readings("decode"), measured.runs["decode"]["notes"]["replies"]
    lines, apart = [], []
    for name in CONTENDERS:
        for way in columns_of(replies, name):
            told = counted[f"{name}|{way}"]
            same = f"{told['same']}/{told['replies']}" if name in (INT8, INT4) else ""
            pace, plain = figure(replies, name, way), figure(replies, name, PLAIN)
            speedup = ratio(replies, name, name, way, PLAIN)
            if pace and plain and speedup and abs(plain.value / pace.value / speedup.value - 1) > APART:
                apart.append(f"{name}, {way}")
            lines.append([
                f"{name}, {way}{' †' if f'{name}, {way}' in apart else ''}", shown(pace, per_second), shown(speedup, times),
                f"{told['tokens'] / max(told['steps'], 1):.2f}", same,
            ])  # fmt: skip
    heads = ["", "tokens/s", "× its plain", "τ", "same"]
    parts = [
        "### Replies",
        DECODING,
        WAYS,
        table(heads, lines),
        NOT_A_RATIO.format(percent=f"{100 * APART:g} %") if apart else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _loading(measured: Measurements) -> str:
    if "load" not in measured.runs:
        return ""
    loads, sizes = measured.readings("load"), measured.runs["load"]["notes"]["bytes"]
    lines = [
        [
            name, mebibytes(sizes[name] / 2**20),
            *(shown(figure(loads, name, column), seconds) for column in ("warm", "cold")),
            shown(figure(loads, f"plain read for {name}", "cold"), seconds),
            shown(figure(loads, name, "packing"), seconds),
            *(shown(figure(loads, name, column), mebibytes) for column in ("peak", "own")),
        ]
        for name in sizes
    ]  # fmt: skip
    heads = [
        "",
        "file (MiB)",
        "warm (s)",
        "cold (s)",
        "plain read (s)",
        "packs (s)",
        "peak (MiB)",
        "without files (MiB)",
    ]
    return f"### Loading and memory\n\n{LOADING}\n\n{table(heads, lines)}"


def _flags(measured: Measurements) -> str:
    """llama.cpp with and without flash attention."""
    readings = measured.readings("flags")
    if not readings:
        return ""
    names = sorted({name.split("|")[0] for name in readings})
    columns = columns_of(readings, names[0])
    lines = [[name, *(shown(figure(readings, name, column), milliseconds) for column in columns)] for name in names]
    heads = [
        f"{column.split('/')[1]} at {column.split('/')[0]}" if "/" in column else "prompt of 2048" for column in columns
    ]
    told = f"On the whole flash attention is {'faster' if flash_is_faster(readings) else 'slower'} (milliseconds)."
    return f"### llama.cpp's flags\n\n{told}\n\n{table(['', *heads], lines)}"


# -- drawings ----------------------------------------------------------------------------------------------------------

Draw = Callable[[], str]


def _drawn(measured: Measurements) -> list[tuple[str, str]]:
    return [(name, alt) for name, (_, alt) in _drawing_functions(measured).items()]


def _drawing_functions(measured: Measurements) -> dict[str, tuple[Draw, str]]:
    """Return, for each possible drawing, its file, its function, and its description in words."""
    found: dict[str, tuple[Draw, str]] = {}
    by_rows, by_context = measured.readings("rows"), measured.readings("context")
    for name, readings, columns, alt, below in (
        ("rows", by_rows, {count: str(count) for count in ROWS}, "Milliseconds of a forward by rows", "rows"),
        ("context", by_context, {length: f"{length}/1" for length in CONTEXTS},
         "Milliseconds of a plain step by the tokens before it", "tokens before it"),
    ):  # fmt: skip
        series = {
            contender: [
                (x, known.value) for x, column in columns.items() if (known := figure(readings, contender, column))
            ]
            for contender in CONTENDERS
        }
        if series := {contender: points for contender, points in series.items() if points}:
            found[f"{name}-{measured.slug}.svg"] = (_lines(f"{alt}: {measured.title}", below, series), alt)
    if bars := _bars(measured.readings("decode")):
        alt = "Tokens a second of greedy replies"
        found[f"replies-{measured.slug}.svg"] = (
            lambda: plots.bars(f"{alt}: {measured.title}", "tokens/s", bars),
            alt,
        )
    return found


def _lines(title: str, below: str, series: Mapping[str, plots.Points]) -> Draw:
    return lambda: plots.lines(title, below, series)


def _bars(replies: Raw) -> list[tuple[str, str, float]]:
    """Each contender plain, and with its best speculation."""
    return [
        (name, f"{name}, {way}", 1e3 / known.value)
        for name in CONTENDERS
        for way in (PLAIN, best_speculation(replies, name))
        if way and (known := figure(replies, name, way))
    ]
