"""The report on servers as text: a sentence, bars, then the figures."""

from collections.abc import Iterator, Sequence
from typing import Any

from localspec.bench.table import WIDTH, bars, columns, interval, number, wrapped
from localspec.quantities import counted, speedup
from localspec.text import one_line, shortened

LEGEND = (
    "medians and quartiles of the replies, timed here; the servers count the tokens · whole: tokens/s from the "
    "question to the end · first: seconds until the first token · after: tokens/s after the first token · speedup: "
    "whole ÷ the first server's whole"
)
LONGEST_NAME = 34  # before a bar
WHOLE = "reply_tokens_per_second"
AGAIN = "· prompts were repeated; a server that had cached them sends the first token sooner"


def of(report: dict[str, Any], width: int = WIDTH) -> str:
    """Return the whole report. Sentences and bars have at most `width` columns; the table may be wider."""
    rows = report["rows"]
    lines = [*wrapped(sentence(rows), width), "", *_bars(rows, width), "", *wrapped(label(report), width)]
    lines += ["", *columns(_heads(rows), [_row(row, len(rows) > 1) for row in rows])]
    lines += wrapped(f"{LEGEND} {AGAIN}" if report["repeat"] > 1 else LEGEND, width)
    return "\n".join([*lines, *(line for row in rows for line in wrapped(_untold(row), width))])


def label(report: dict[str, Any]) -> str:
    """Return what all servers had to do: `6 prompts × 2, 80 tokens at most, greedy, seed 0`."""
    sampling = f"temperature {report['temperature']:g}" if report["temperature"] else "greedy"
    return (
        counted(report["prompts"], "prompt")
        + (f" × {report['repeat']}" if report["repeat"] > 1 else "")
        + (f" ({report['left_out']} too long for the context)" if report["left_out"] else "")
        + f", {report['max_tokens']} tokens at most, {sampling}"
        + ("" if report["seed"] is None else f", seed {report['seed']}")
    )


def sentence(rows: Sequence[dict[str, Any]]) -> str:
    """Return the result in a sentence: the fastest of several servers, or the speed of the only one."""
    answered = [row for row in rows if row[WHOLE]]
    if not answered:
        return "No server answered, so there is no speed to show."
    if len(rows) == 1:
        server, speed, seconds = row_name(rows[0]), rows[0][WHOLE], rows[0]["first_token_s"]
        rate = rows[0]["tokens_per_second"]
        whole = f"{server} gives {speed:.1f} tokens/s of whole replies: the first token comes after {seconds:.2f} s"
        return f"{whole}." if rate is None else f"{whole}, and the others at {rate:.1f} tokens/s."
    others = [row for row in rows[1:] if row["speedup"]]
    if not others:
        server, speed = row_name(answered[0]), answered[0][WHOLE]
        return f"{server} gives {speed:.1f} tokens/s of whole replies, but there is no other speed to compare it with."
    best = max(others, key=lambda row: row["speedup"])
    server, first, speed, of_first = row_name(best), row_name(rows[0]), best[WHOLE], rows[0][WHOLE]
    speeds = f"whole replies at {speed:.1f} instead of {of_first:.1f} tokens/s"
    return f"{server} against {first}: {speedup(best['speedup'])} ({speeds})."


def row_name(row: dict[str, Any]) -> str:
    """Return the name of a server in sentences and bars: its program and its address."""
    program, address = row["program"] or "the server", row["name"]
    return one_line(f"{program} at {address}")


def _bars(rows: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    answered = [row for row in rows if row[WHOLE]]
    fastest = max((row[WHOLE] for row in answered), default=1.0)
    labels = [
        f"{row[WHOLE]:.1f} tokens/s" + (f"  {speedup(row['speedup'])}" if row["speedup"] and row is not rows[0] else "")
        for row in answered
    ]
    names = [shortened(row_name(row), LONGEST_NAME) for row in answered]
    return bars(names, [row[WHOLE] / fastest for row in answered], labels, width)


def _heads(rows: Sequence[dict[str, Any]]) -> list[str]:
    heads = ["server", "model", "whole", "", "first", "", "after", ""]
    return [*heads, "speedup", "", "same"] if len(rows) > 1 else heads


def _row(row: dict[str, Any], several: bool) -> list[str]:
    approximate = "~" if row["counted"] == "pieces" else ""
    cells = [
        row["name"],
        shortened(row["model"], 20),
        approximate + number(row[WHOLE], 1),
        interval(row[f"{WHOLE}_quartiles"], 0),
        number(row["first_token_s"]),
        interval(row["first_token_s_quartiles"], 2),
        approximate + number(row["tokens_per_second"], 1),
        interval(row["tokens_per_second_quartiles"], 0),
    ]
    same = "-" if row["identical_prompts"] is None else f"{row['identical_prompts']}/{row['prompts']}"
    return [*cells, number(row["speedup"]), interval(row["speedup_quartiles"], 2), same] if several else cells


def _untold(row: dict[str, Any]) -> str:
    if row["counted"] == "pieces":
        return f"~ {row_name(row)} does not report tokens: pieces of its replies were counted, a token or more each."
    if row["tokens_per_second"] is None:
        return (
            f"{row_name(row)} sends its replies all at once, or too fast to time, so the table has no “after” for it."
        )
    return ""
