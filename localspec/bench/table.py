"""The report as a person reads it, at most 100 columns or as wide as a terminal: a sentence, bars, then the figures."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from localspec.charts import bar, no_room
from localspec.events import possible
from localspec.models.drafter_kinds import kind_of
from localspec.text import one_line

WIDTH = 100
_MEANINGS = (
    (("tokens/s", "speedup"), "medians and quartiles of the replies"),
    (("τ",), "tokens a step"),
    (("draft", "verify", "host"), "what a step takes, in plain steps"),
    (("limit",), "of what the memory's bandwidth allows without speculation"),
    (("M",), "speedup ÷ memory"),
    (("same",), "replies with plain decoding's tokens"),
)
_FIRST_LEFT_OUT = ("limit", "host", "verify", "draft", "M")  # of the table's columns, where a terminal is narrow
LEAST_NAME = 16  # columns of the name before them, which is cut where it is longer
BUSY = 0.25  # cores that other programs may keep busy without a word
MOST_CATEGORIES, MOST_COLUMNS = 12, 4
LONGEST_BAR, SHORTEST_BAR = 36, 4  # columns


def of(report: dict[str, Any], width: int = WIDTH) -> str:
    """All that a report says, in lines of at most so many columns."""
    rows, machine = report["rows"], report["machine"]
    facts = [
        f"{report['model']} · {label(report)} · no phrases of earlier replies",
        f"{machine['versions']} · {machine['memory'] / 2**30:.0f} GiB, read at {machine['bandwidth'] / 1e9:.1f} GB/s"
        f" · peak {max(row['peak_bytes'] for row in rows) / 2**30:.2f} GiB · {_load(machine)}",
    ]
    notes = [*_remarks(rows)]
    for row in rows:
        if row["reliable"] is False:
            notes.append(_unreliable(row))
        if row.get("draft_model"):
            notes.append(f"{_name(row)} drafts with {row['draft_model']}{_hyperparameters(row)}")
        if row["off_reason"]:
            notes.append(f"{_name(row)} was switched off: {row['off_reason']}")
    lines = [*wrapped(sentence(rows), width), "", *_bars(rows, width), ""]
    lines += [line for fact in facts for line in wrapped(fact, width)]
    lines += ["", *_figures(rows, width)]
    lines += [line for note in notes for line in wrapped(note, width)]
    return "\n".join([*lines, *_depths(rows, width), *_categories(rows, width), *_peers(report["peers"], width)])


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
    plain, drafting = rows[0]["tokens_per_second"], [row for row in rows if _drafts(row) and row["speedup"]]
    known = [row for row in drafting if row["reliable"] is not False]
    if plain is None:
        return "No reply was long enough to measure a speed; give longer --max-tokens."
    if not drafting:
        auto = ", and auto drafts nothing" if any(row["nodes"] == "auto" and not _drafts(row) for row in rows) else ""
        return f"Plain decoding gives {plain:.1f} tokens/s here{auto}; --drafter names what to compare with it."
    if not known:
        return f"Plain decoding gave {plain:.1f} tokens/s; no speedup is reliable, for other programs disturbed it."
    best = max(known, key=lambda row: row["speedup"])
    beside = f"{best['speedup']:.2f} times as fast"
    # Each figure is a median of its own, and so they need not divide.
    speeds = f"the median speeds are {best['tokens_per_second']:.1f} tokens/s, and {plain:.1f} without"
    speeds = f"the median of the replies; {speeds}"
    if round(best["speedup"], 2) <= 1:
        return f"Nothing here is faster than plain decoding: {row_name(best)} is {beside} ({speeds})."
    same = {True: ", with the same text", False: ", but not all texts are the same", None: ""}[best["identical"]]
    return f"{row_name(best)} answers {beside} as plain decoding{same} ({speeds})."


def _drafts(row: dict[str, Any]) -> bool:
    """Whether it is another thing than plain decoding, which auto may choose."""
    return bool(row["nodes"]) and row["drafter"] != "none"


def _bars(rows: Sequence[dict[str, Any]], width: int) -> list[str]:
    measured = [row for row in rows if row["tokens_per_second"]]
    most = max((row["tokens_per_second"] for row in measured), default=1.0)
    said = [
        f"{row['tokens_per_second']:.1f} tokens/s"
        + (f"  × {row['speedup']:.2f}{_mark(row)}" if _drafts(row) and row["speedup"] else "")
        for row in measured
    ]
    shares = [row["tokens_per_second"] / most for row in measured]
    return [*bars([row_name(row) for row in measured], shares, said, width)]


def bars(names: Sequence[str], shares: Sequence[float], said: Sequence[str], width: int) -> Iterator[str]:
    """A bar a line, behind its name, and what is said of it."""
    wide = max(map(len, names), default=0)
    room = width - wide - max(map(len, said), default=0) - len("    " + " ")
    for name, share, figures in zip(names, shares, said, strict=True):
        yield f"  {name:{wide}}  {bar(share, max(SHORTEST_BAR, min(LONGEST_BAR, room)))} {figures}"


def row_name(row: dict[str, Any]) -> str:
    """What a row is called where it stands alone."""
    if row["drafter"] == "none":
        return "auto: plain decoding" if row["nodes"] else "plain decoding"
    size = "" if row["nodes"] == "auto" else f", {row['nodes']} nodes"
    return f"{clipped(one_line(row['drafter']), 24)}{size}"


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


_ROW_HEADS = ("drafter", "nodes", "tokens/s", "", "speedup", "", "τ", "draft", "verify", "host", "limit", "M", "same")


def _figures(rows: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    """The table, without the columns that have no room, and what its heads mean."""
    lines, left_out = [list(_ROW_HEADS), *map(_row, rows)], []
    for head in _FIRST_LEFT_OUT:
        first, *rest = _widths(lines)
        if sum(rest) + len(rest) + min(first, LEAST_NAME) <= width:
            break
        at = lines[0].index(head)
        left_out.append(head)
        lines = [[*line[:at], *line[at + 1 :]] for line in lines]
    yield from columns(lines[0], lines[1:], width)
    shown = ((", ".join(head for head in heads if head in lines[0]), meaning) for heads, meaning in _MEANINGS)
    yield from wrapped(" · ".join(f"{heads}: {meaning}" for heads, meaning in shown if heads), width)
    if left_out:
        yield from wrapped(no_room(left_out[::-1]), width)


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


def _depths(rows: Sequence[dict[str, Any]], width: int) -> list[str]:
    found = [row for row in rows if row["acceptance_by_depth"]]
    lines = [
        line
        for row in found
        for line in wrapped(
            f"{_name(row)}: {' '.join(f'{chance:.2f}' for chance in row['acceptance_by_depth'])}", width
        )
    ]
    return ["", *wrapped("accepted at depth 1, 2, …, where the node before was", width), *lines] if found else []


def _categories(rows: Sequence[dict[str, Any]], width: int) -> list[str]:
    """Speedup and acceptance length by the kind of text, as far as they fit."""
    drafting = [row for row in rows if _drafts(row)][:MOST_COLUMNS]
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
            ["speedup and τ by category", *(_name(row) + _mark(row) for row in drafting)],
            lines[:MOST_CATEGORIES],
            width,
        ),
        *([f"and {more} categories more, in --json"] if more > 0 else []),
    ]


def _peers(peers: Sequence[dict[str, Any]], width: int) -> list[str]:
    if not peers:
        return []
    lines = [
        [peer["name"], number(peer["tokens_per_second"], 1), *(f"{ms:.1f}" for ms in peer["ms_by_rows"].values())]
        for peer in peers
    ]
    return [
        "",
        *columns(["plain, greedy", "tokens/s", *peers[0]["ms_by_rows"]], lines, width),
        *wrapped(
            "after tokens/s: milliseconds of one forward of so many rows, with 256 tokens before them; medians", width
        ),
    ]


def _name(row: dict[str, Any]) -> str:
    return f"{clipped(row['drafter'], 15)} {row['nodes']}"


def columns(heads: Sequence[str], lines: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Aligned; the first column is cut where the whole would be too wide."""
    lines = [[one_line(cell) for cell in line] for line in (heads, *lines)]
    first, *rest = _widths(lines)
    first = max(1, min(first, width - sum(rest) - len(rest)))
    return [" ".join([clipped(name, first).ljust(first), *map(str.rjust, cells, rest)]) for name, *cells in lines]


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def clipped(text: str, width: int) -> str:
    """Its beginning, where it is longer."""
    return text if len(text) <= width else text[: width - 1] + "…"


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """As lines of at most so many columns."""
    return textwrap.wrap(one_line(text), width)


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def interval(quartiles: Sequence[float] | None, digits: int) -> str:
    """From the lower to the upper quartile."""
    return "" if quartiles is None else f"{quartiles[0]:.{digits}f}–{quartiles[1]:.{digits}f}"
