"""The report as a person reads it, at most 100 columns: a sentence, bars, then the figures."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from localspec.charts import bar
from localspec.events import possible
from localspec.models.drafter_kinds import kind_of
from localspec.text import one_line

WIDTH = 100
LEGEND = (
    "tokens/s and speedup: medians and quartiles of the replies · τ: tokens a step · draft, verify, host: what a step "
    "takes, in plain steps · limit: of what the memory's bandwidth allows without speculation · M: speedup ÷ memory · "
    "same: replies with plain decoding's tokens"
)
BUSY = 0.25  # cores that other programs may keep busy without a word
MOST_CATEGORIES, MOST_COLUMNS = 12, 4
LONGEST_BAR = 36  # columns


def of(report: dict[str, Any]) -> str:
    """All that a report says."""
    rows, machine = report["rows"], report["machine"]
    parts = [
        f"{report['model']} · {label(report)} · no phrases of earlier replies",
        f"{machine['versions']} · {machine['memory'] / 2**30:.0f} GiB, read at {machine['bandwidth'] / 1e9:.1f} GB/s"
        f" · peak {max(row['peak_bytes'] for row in rows) / 2**30:.2f} GiB · {_load(machine)}",
    ]
    lines = [*wrapped(sentence(rows)), "", *_bars(rows), ""]
    lines += [line for part in parts for line in wrapped(part)]
    lines += ["", *columns(_ROW_HEADS, [_row(row) for row in rows]), *wrapped(LEGEND)]
    lines += [line for remark in _remarks(rows) for line in wrapped(remark)]
    for row in rows:
        if row["reliable"] is False:
            lines += wrapped(_unreliable(row))
        if row.get("draft_model"):
            lines += wrapped(f"{_name(row)} drafts with {row['draft_model']}{_hyperparameters(row)}")
        if row["off_reason"]:
            lines += wrapped(f"{_name(row)} was switched off: {row['off_reason']}")
    return "\n".join([*lines, *_depths(rows), *_categories(rows), *_peers(report["peers"])])


def label(report: dict[str, Any]) -> str:
    """In what precision, and on what, everything was measured."""
    precision = report["dtype"] if report["quantize"] == "none" else report["quantize"]
    sampling = f"temperature {report['temperature']:g}, seed {report['seed']}" if report["temperature"] else "greedy"
    return (
        f"{precision}, {report['exactness']} · {report['prompts']} prompts"
        + (f" × {report['repeat']}" if report["repeat"] > 1 else "")
        + (f" ({report['left_out']} too long for the context)" if report["left_out"] else "")
        + f", {report['max_tokens']} tokens at most, {sampling}"
    )


def sentence(rows: Sequence[dict[str, Any]]) -> str:
    """What was found: the row that is faster than plain decoding by most, or that none is."""
    plain, drafting = rows[0]["tokens_per_second"], [row for row in rows if row["nodes"] and row["speedup"]]
    known = [row for row in drafting if row["reliable"] is not False]
    if plain is None:
        return "No reply was long enough to measure a speed; give longer --max-tokens."
    if not drafting:
        return f"Plain decoding gives {plain:.1f} tokens/s here; --drafter names what to compare with it."
    if not known:
        return f"Plain decoding gave {plain:.1f} tokens/s; no speedup is reliable, for other programs disturbed it."
    best = max(known, key=lambda row: row["speedup"])
    beside = f"{best['speedup']:.2f} times as fast"
    speeds = f"{best['tokens_per_second']:.1f} tokens/s, and {plain:.1f} without"
    if best["speedup"] <= 1:
        return f"Nothing here is faster than plain decoding: {row_name(best)} is {beside} ({speeds})."
    same = {True: ", with the same text", False: ", but not all texts are the same", None: ""}[best["identical"]]
    return f"{row_name(best)} answers {beside} as plain decoding{same} ({speeds})."


def _bars(rows: Sequence[dict[str, Any]]) -> list[str]:
    measured = [row for row in rows if row["tokens_per_second"]]
    most = max((row["tokens_per_second"] for row in measured), default=1.0)
    names = [row_name(row) for row in measured]
    width = max(map(len, names), default=0)
    return [
        f"  {name:{width}}  {bar(row['tokens_per_second'] / most, LONGEST_BAR)} {row['tokens_per_second']:.1f} tokens/s"
        + (f"  × {row['speedup']:.2f}{_mark(row)}" if row["nodes"] and row["speedup"] else "")
        for name, row in zip(names, measured, strict=True)
    ]


def row_name(row: dict[str, Any]) -> str:
    """What a row is called where it stands alone."""
    size = {0: "", "auto": ""}.get(row["nodes"], f", {row['nodes']} nodes")
    name = "plain decoding" if row["drafter"] == "none" else clipped(one_line(row["drafter"]), 24)
    return f"{name}{size}"


def _hyperparameters(row: dict[str, Any]) -> str:
    chosen, parts = row["hyperparameters"], []
    if row["nodes"] == "auto":
        parts.append(f"drafts of {_count(chosen['draft'], 'token')}")
    if kind_of(row["drafter"]).has_phrases:
        parts.append(f"{_count(chosen['phrases'], 'phrase')} of {chosen['phrase']} tokens")
        parts.append(f"a window of {_count(chosen['window'], 'column')}" if chosen["window"] else "no window")
    return "".join(f", {part}" for part in parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


_ROW_HEADS = ("drafter", "nodes", "tokens/s", "", "speedup", "", "τ", "draft", "verify", "host", "limit", "M", "same")


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["drafter"],
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


def _load(machine: dict[str, Any]) -> str:
    others, cores = machine["others"], machine["cores"]
    return f"other programs kept {others:.1f} of {cores} cores busy" if others >= BUSY else "otherwise idle"


def _unreliable(row: dict[str, Any]) -> str:
    return (
        f"! {_name(row)} is unreliable: {number(row['speedup'])} times as fast cannot be, for its τ and its rows "
        f"allow {number(row['speedup_limit'])}. Plain decoding was disturbed; measure again while nothing else runs."
    )


def _mark(row: dict[str, Any]) -> str:
    return "!" if row["reliable"] is False else ""


def _beyond(speedup: float | None, limit: float | None) -> bool:
    """Whether it is more than what was drafted allows."""
    return speedup is not None and limit is not None and not possible(speedup, limit)


def _beyond_in_quartiles(row: dict[str, Any]) -> bool:
    pairs = zip(row["speedup_quartiles"] or (), row.get("speedup_limit_quartiles") or (), strict=False)
    return any(_beyond(*pair) for pair in pairs)


def _beyond_in_category(row: dict[str, Any], name: str) -> bool:
    figures = row["categories"][name]
    return _beyond(figures["speedup"], figures.get("speedup_limit"))


def _above_memory(row: dict[str, Any]) -> bool:
    return (row["bandwidth_share"] or 0.0) > 1.0


def _remarks(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What marks beside single figures mean, where there are any."""
    if any(
        _beyond_in_quartiles(row) or any(_beyond_in_category(row, name) for name in row["categories"]) for row in rows
    ):
        yield (
            "! beside quartiles or a category: more than τ and the rows of those replies allow; other programs "
            "disturbed their plain decoding."
        )
    if any(map(_above_memory, rows)):
        yield (
            "* above 100 % of the memory's bandwidth: caches of the processor hold a part of this model, or the memory "
            "was busy while its bandwidth was measured."
        )


def _depths(rows: Sequence[dict[str, Any]]) -> list[str]:
    found = [row for row in rows if row["acceptance_by_depth"]]
    lines = [
        line
        for row in found
        for line in wrapped(f"{_name(row)}: {' '.join(f'{chance:.2f}' for chance in row['acceptance_by_depth'])}")
    ]
    return ["", "accepted at depth 1, 2, …, where the node before was", *lines] if found else []


def _categories(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Speedup and acceptance length by the kind of text, as far as they fit."""
    drafting = [row for row in rows if row["nodes"]][:MOST_COLUMNS]
    if not drafting or len(rows[0]["categories"]) < 2:
        return []
    lines = [
        [
            name,
            *(
                f"{number(figures['speedup'])}{'!' if _beyond_in_category(row, name) else ''} "
                f"{number(figures['acceptance_length'])}"
                for row in drafting
                for figures in (row["categories"][name],)
            ),
        ]
        for name in rows[0]["categories"]
    ]
    more = len(lines) - MOST_CATEGORIES
    return [
        "",
        *columns(
            ["speedup and τ by category", *(_name(row) + _mark(row) for row in drafting)], lines[:MOST_CATEGORIES]
        ),
        *([f"and {more} categories more, in --json"] if more > 0 else []),
    ]


def _peers(peers: Sequence[dict[str, Any]]) -> list[str]:
    if not peers:
        return []
    lines = [
        [peer["name"], number(peer["tokens_per_second"], 1), *(f"{ms:.1f}" for ms in peer["ms_by_rows"].values())]
        for peer in peers
    ]
    return [
        "",
        *columns(["plain, greedy", "tokens/s", *peers[0]["ms_by_rows"]], lines),
        "after tokens/s: milliseconds of one forward of so many rows, with 256 tokens before them; medians",
    ]


def _name(row: dict[str, Any]) -> str:
    return f"{clipped(row['drafter'], 15)} {row['nodes']}"


def columns(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Aligned; the first column is cut where the whole would be too wide."""
    lines = [[one_line(cell) for cell in line] for line in (heads, *lines)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - len(widths) + 1)
    return [
        " ".join([clipped(first, widths[0]).ljust(widths[0]), *map(str.rjust, rest, widths[1:])])
        for first, *rest in lines
    ]


def clipped(text: str, width: int) -> str:
    """Its beginning, where it is longer."""
    return text if len(text) <= width else text[: width - 1] + "…"


def wrapped(text: str) -> list[str]:
    """As lines of at most 100 columns."""
    return textwrap.wrap(one_line(text), WIDTH)


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def interval(quartiles: Sequence[float] | None, digits: int) -> str:
    """From the lower to the upper quartile."""
    return "" if quartiles is None else f"{quartiles[0]:.{digits}f}–{quartiles[1]:.{digits}f}"
