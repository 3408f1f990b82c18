"""The report of `bench` as a page of text: a sentence, a chart and a table; `--details` adds the rest."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from localspec.events import possible
from localspec.marks import bar, no_room
from localspec.models.drafter_kinds import kind_of
from localspec.quantities import counted, precision_in_words, speedup
from localspec.text import one_line, shortened

WIDTH = 100
_MEANINGS = (
    (("tokens/s", "speedup"), "medians and quartiles of the replies"),
    (("τ",), "tokens per step"),
    (("draft", "verify", "host"), "time of each part of a step, in units of a whole step without drafts"),
    (("limit",), "share of the speed that the memory's bandwidth allows without speculation"),
    (("M",), "speedup ÷ relative memory"),
    (("same",), "replies with the same tokens as plain decoding"),
)
_FIRST_LEFT_OUT = ("limit", "host", "verify", "draft", "M")  # columns that a narrow terminal leaves out, in this order
LEAST_NAME = 16  # columns of the name before them, which may be cut
BUSY = 0.25  # cores that other programs may use without a notice
MOST_CATEGORIES, MOST_COLUMNS = 12, 4
LONGEST_BAR, SHORTEST_BAR = 36, 4  # columns


def of(report: dict[str, Any], width: int = WIDTH, details: bool = False) -> str:
    """Return the report as lines of at most `width` columns: a sentence, a chart and a table; `details` adds more."""
    rows = report["rows"]
    lines = [*wrapped(sentence(rows), width), "", *_bars(rows, width), "", *_by_text(rows, width)]
    lines += wrapped(f"{report['model']} · {label(report)}", width)
    for note in _notes(report, details):
        lines += wrapped(note, width)
    if details:
        return "\n".join([*lines, "", *_details(report, width)])
    return "\n".join([*lines, *wrapped("`--details` adds quartiles, costs, memory and acceptance by depth.", width)])


def _notes(report: dict[str, Any], details: bool) -> Iterator[str]:
    """Yield sentences about anything that makes the report's figures less reliable or comparable."""
    rows, machine = report["rows"], report["machine"]
    for row in rows:
        if row["off_reason"]:
            reason = row["off_reason"]
            yield f"{_name(row)} switched drafting off: {reason}"
        if row["identical_prompts"] is not None and row["identical_prompts"] < row["prompts"]:
            same, every = row["identical_prompts"], row["prompts"]
            yield f"{_name(row)} gave the same text for {same} of {every} prompts."
        if row["reliable"] is False:
            yield (
                f"! {_name(row)} is unreliable: its accepted drafts allow a speedup of {number(row['speedup_limit'])}, "
                f"but {number(row['speedup'])} was measured, because other programs slowed plain decoding down; "
                "measure again while nothing else runs."
            )
    if any(
        (details and _beyond_in_quartiles(row)) or any(_beyond_in_category(row, name) for name in row["categories"])
        for row in rows
    ):
        yield (
            "! marks speedups that are higher than the accepted drafts allow: other programs slowed plain "
            "decoding down."
        )
    others, cores = machine["others"], machine["cores"]
    if others >= BUSY:
        load = f"Other programs used {others:.1f} of {cores} cores."
        yield f"{load} Figures of an idle machine are higher and steadier."


def _details(report: dict[str, Any], width: int) -> list[str]:
    rows, machine = report["rows"], report["machine"]
    peak = max(row["peak_bytes"] for row in rows)
    fact = (
        f"{machine['versions']} · {machine['memory'] / 2**30:.0f} GiB, read at {machine['bandwidth'] / 1e9:.1f} GB/s"
        f" · peak {peak / 2**30:.2f} GiB · no phrases of earlier replies"
    )
    notes = []
    if any(map(_above_memory, rows)):
        notes.append(
            "* More than 100 % of the memory's bandwidth: the processor's caches hold part of this model, or the "
            "memory was busy while its bandwidth was measured."
        )
    for row in (row for row in rows if row.get("draft_model")):
        form = f" ({row['draft_form']})" if row.get("draft_form") else ""  # earlier reports lack it
        small_model = row["draft_model"]
        notes.append(f"{_name(row)} drafts with {small_model}{form}{_hyperparameters(row)}")
    lines = [*wrapped(fact, width), "", *_figures(rows, width)]
    return [*lines, *(line for note in notes for line in wrapped(note, width)), *_depths(rows, width)]


def label(report: dict[str, Any]) -> str:
    """Return the precision and the machine of the measurements."""
    precision = precision_in_words(report["dtype"], report["quantize"], report.get("bits_per_weight"))
    temperature, seed, most = report["temperature"], report["seed"], report["max_tokens"]
    sampling = f"temperature {temperature:g}, seed {seed}" if temperature else "greedy"
    exactness, prompts, too_long = report["exactness"], report["prompts"], report["left_out"]
    return (
        f"{precision}, {exactness} · {prompts} prompts"
        + (f" × {report['repeat']}" if report["repeat"] > 1 else "")
        + (f" ({too_long} too long for the context)" if too_long else "")
        + f", {most} tokens at most, {sampling}"
    )


def sentence(rows: Sequence[dict[str, Any]]) -> str:
    """Return the result: the row that is fastest compared with plain decoding, or that no row is faster."""
    plain, drafting = rows[0]["tokens_per_second"], [row for row in rows if _drafts(row) and row["speedup"]]
    reliable = [row for row in drafting if row["reliable"] is not False]
    if plain is None:
        return "No reply was long enough to measure a speed; give a larger --max-tokens."
    if not drafting:
        auto = ", and `auto` uses no drafts" if any(row["nodes"] == "auto" and not _drafts(row) for row in rows) else ""
        return f"Plain decoding gives {plain:.1f} tokens/s here{auto}; name a drafter to compare with `--drafter`."
    if not reliable:
        return f"Plain decoding gave {plain:.1f} tokens/s while other programs disturbed it, so no speedup is reliable."
    best = max(reliable, key=lambda row: row["speedup"])
    # Each figure is a separate median, so the speedup need not be the quotient of the two speeds.
    speed = best["tokens_per_second"]
    speeds = f"the medians are {speed:.1f} tokens/s with drafts and {plain:.1f} without"
    ratio = speedup(best["speedup"])
    if not ratio.endswith("faster"):
        return f"Nothing here is faster than plain decoding: {row_name(best)} is {ratio} ({speeds})."
    same = {True: " All texts are the same.", False: " Not all texts are the same.", None: ""}[best["identical"]]
    return f"{row_name(best)} is {ratio} than plain decoding ({speeds}).{same}"


def _drafts(row: dict[str, Any]) -> bool:
    """Return whether a row drafts; `auto` may have chosen plain decoding."""
    return bool(row["nodes"]) and row["drafter"] != "none"


def _bars(rows: Sequence[dict[str, Any]], width: int) -> list[str]:
    measured = [row for row in rows if row["tokens_per_second"]]
    fastest = max((row["tokens_per_second"] for row in measured), default=1.0)
    labels = [f"{row['tokens_per_second']:.1f} tokens/s{gain(row)}" for row in measured]
    shares = [row["tokens_per_second"] / fastest for row in measured]
    return [*bars([row_name(row) for row in measured], shares, labels, width)]


def gain(row: dict[str, Any]) -> str:
    """Return the text after the speed of a row: its speedup or "unreliable"; empty if the row does not draft."""
    if not _drafts(row) or not row["speedup"]:
        return ""
    return ", unreliable" if row["reliable"] is False else f"  {speedup(row['speedup'])}"


def bars(names: Sequence[str], shares: Sequence[float], labels: Sequence[str], width: int) -> Iterator[str]:
    """Yield a line for each bar: its name, the bar itself and its label."""
    longest = max(map(len, names), default=0)
    room = width - longest - max(map(len, labels), default=0) - len("    " + " ")
    for name, share, label in zip(names, shares, labels, strict=True):
        yield f"  {name:{longest}}  {bar(share, max(SHORTEST_BAR, min(LONGEST_BAR, room)))} {label}"


def row_name(row: dict[str, Any]) -> str:
    """Return the name of a row in sentences and bars: its drafter and its nodes."""
    if row["drafter"] == "none":
        return "auto: plain decoding" if row["nodes"] else "plain decoding"
    name = shortened(one_line(_drafter(row)), 24)
    return name if row["nodes"] == "auto" else f"{name}, {row['nodes']} nodes"


def _hyperparameters(row: dict[str, Any]) -> str:
    chosen, parts = row["hyperparameters"], []
    if row["nodes"] == "auto":
        parts.append(f"drafts of {counted(chosen['draft'], 'token')}")
    if kind_of(row["drafter"]).has_phrases:
        phrases, length = counted(chosen["phrases"], "phrase"), chosen["phrase"]
        parts.append(f"{phrases} of {length} tokens")
        parts.append(f"a window of {counted(chosen['window'], 'column')}" if chosen["window"] else "no window")
    return "".join(f", {part}" for part in parts)


def _row(row: dict[str, Any]) -> list[str]:
    return [
        _drafter(row),
        str(row["nodes"]),
        number(row["tokens_per_second"], 1),
        interval(row["tokens_per_second_quartiles"], 0),
        number(row["speedup"]) + _mark(row),
        interval(row["speedup_quartiles"], 2) + ("!" if _beyond_in_quartiles(row) else ""),
        number(row["acceptance_length"]),
        *(number(row[f"{part}_cost"]) for part in ("draft", "verify", "host")),
        "-" if row["bandwidth_share"] is None else f"{row['bandwidth_share']:.0%}{'*' if _above_memory(row) else ''}",
        number(row["M"]) + _mark(row),
        row["accept"] if row["identical_prompts"] is None else f"{row['identical_prompts']}/{row['prompts']}",
    ]


_ROW_HEADS = ("drafter", "nodes", "tokens/s", "", "speedup", "", "τ", "draft", "verify", "host", "limit", "M", "same")


def _figures(rows: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    """Yield the lines of the table, then an explanation of its heads. Columns that do not fit `width` are left out."""
    lines, left_out = [list(_ROW_HEADS), *map(_row, rows)], []
    for head in _FIRST_LEFT_OUT:
        first, *rest = _widths(lines)
        if sum(rest) + len(rest) + min(first, LEAST_NAME) <= width:
            break
        column = lines[0].index(head)
        left_out.append(head)
        lines = [[*line[:column], *line[column + 1 :]] for line in lines]
    yield from columns(lines[0], lines[1:], width)
    shown = ((", ".join(head for head in heads if head in lines[0]), meaning) for heads, meaning in _MEANINGS)
    yield from wrapped(" · ".join(f"{heads}: {meaning}" for heads, meaning in shown if heads), width)
    if left_out:
        yield from wrapped(no_room(left_out[::-1]), width)


def _mark(row: dict[str, Any]) -> str:
    return "!" if row["reliable"] is False else ""


def _beyond(speedup: float | None, limit: float | None) -> bool:
    return speedup is not None and limit is not None and not possible(speedup, limit)


def _beyond_in_quartiles(row: dict[str, Any]) -> bool:
    pairs = zip(row["speedup_quartiles"] or (), row.get("speedup_limit_quartiles") or (), strict=False)
    return any(_beyond(*pair) for pair in pairs)


def _beyond_in_category(row: dict[str, Any], name: str) -> bool:
    figures = row["categories"][name]
    return _beyond(figures["speedup"], figures.get("speedup_limit"))


def _above_memory(row: dict[str, Any]) -> bool:
    return (row["bandwidth_share"] or 0.0) > 1.0


def _depths(rows: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    measured = [row for row in rows if row["acceptance_by_depth"]]
    if measured:
        yield ""
        yield from wrapped("acceptance rate at depth 1, 2, …, given that the parent node was accepted", width)
    for row in measured:
        yield from wrapped(f"{_name(row)}: {' '.join(f'{chance:.2f}' for chance in row['acceptance_by_depth'])}", width)


def _by_text(rows: Sequence[dict[str, Any]], width: int) -> list[str]:
    """Return a table of speedup and tokens per step by kind of text, for the first drafters; [] if no row drafts."""
    drafting = [row for row in rows if _drafts(row)][:MOST_COLUMNS]
    if not drafting:
        return []
    lines = [["all", *(_gain(row, _mark(row)) for row in drafting)]]
    categories = rows[0]["categories"] if len(rows[0]["categories"]) > 1 else ()
    for name in list(categories)[:MOST_CATEGORIES]:
        gains = (_gain(row["categories"][name], "!" if _beyond_in_category(row, name) else "") for row in drafting)
        lines.append([name, *gains])
    omitted = len(categories) - MOST_CATEGORIES
    return [
        *wrapped("Speedup over plain decoding (1: as fast), with tokens per step in brackets:", width),
        *columns(["kind of text", *map(_name, drafting)], lines, width),
        *([f"--json also shows {omitted} more kinds of text"] if omitted > 0 else []),
        "",
    ]


def _gain(figures: dict[str, Any], mark: str) -> str:
    accepted = f"({number(figures['acceptance_length'], 1)})"
    return f"{number(figures['speedup'])}{mark} {accepted.rjust(6)}"


def _name(row: dict[str, Any]) -> str:
    return f"{shortened(one_line(_drafter(row)), 15)} {row['nodes']}"


def _drafter(row: dict[str, Any]) -> str:
    name: str = row.get("name", row["drafter"])  # earlier reports lack it
    return name


def columns(heads: Sequence[str], lines: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Return aligned columns; the first one is cut if the table would be too wide."""
    lines = [[one_line(cell) for cell in line] for line in (heads, *lines)]
    first, *rest = _widths(lines)
    first = max(1, min(first, width - sum(rest) - len(rest)))
    return [" ".join([shortened(name, first).ljust(first), *map(str.rjust, cells, rest)]) for name, *cells in lines]


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """Return a text in lines of at most `width` columns."""
    return textwrap.wrap(one_line(text), width)


def number(value: float | None, digits: int = 2) -> str:
    """Return a figure with this many digits, or a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def interval(quartiles: Sequence[float] | None, digits: int) -> str:
    """Return a range from the lower to the upper quartile."""
    return "" if quartiles is None else f"{quartiles[0]:.{digits}f}–{quartiles[1]:.{digits}f}"
