"""Stage d: measures every drafter on a model of billions of weights: speedup, tokens per step, memory and M.

M is the speedup divided by the relative memory. Each drafter first writes a few replies by itself, which gives its peak
memory. Then `speedups.py` lets all drafters write side by side, for the time that is left.
"""

import gc
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from experiment import saved_json
from figures import figure, table
from side_by_side import PLAIN, interval, length, speedup, worth
from speedups import EVERY

from gpu_stages.aims import FASTER, LEAN, METHODS, Aim, failed
from gpu_stages.children import GRACE, last_line, run_script
from gpu_stages.papers import S3D_OVER_ALL, S3D_ROWS
from gpu_stages.record import Record, TimeUp, failure
from gpu_stages.request import Request
from gpu_stages.timing import peak_bytes, watch_peak
from gpu_stages.wide import parameters, precisions, prompts_place, questions_of, settings_of, wide_demo, without_phrases
from localspec import Done, Engine, Limits, Sampling, Statistics
from localspec.bench.prompts import message
from localspec.choosing.choose import choose
from localspec.models.registry import TargetCard
from localspec.store.store import Store

DRAFTERS = (
    PLAIN, "phrases", "s3d", "medusa", "eagle3", "parallelspec", "semi", "s3d+phrases", "medusa+phrases", "eagle3+phrases",
    "lookahead", "draft_model", "ouroboros", "layers",
)  # fmt: skip
SMALL_DRAFTERS = (PLAIN, "phrases", "medusa", "s3d")
TOKENS, REPLIES = 96, 12
SMALL_TOKENS, SMALL_REPLIES = 12, 1
LEAST = 15.0  # seconds for one drafter by itself
SEARCHED = ("draft_model", "ouroboros", "layers")  # drafters that search once how to draft
LEAST_SEARCHED = 60.0
SHARED = 60.0  # seconds that replies in turns need at least


def run(record: Record, request: Request) -> None:
    """Measure replies one by one in all precisions, then replies side by side, which share the time that is left."""
    card = wide_demo(request)
    if "model" not in record.figures:
        record.keep("model", {"parameters": parameters(card), "factor": request.width})
    for precision in precisions(request):
        alone(record, request, card, precision)
    waiting = [precision for precision in precisions(request) if f"{precision} side by side" not in record.figures]
    for index, precision in enumerate(waiting):
        seconds = record.left / (len(waiting) - index) - GRACE
        side_by_side(record, request, card, precision, seconds)


def drafters(request: Request) -> Sequence[str]:
    return SMALL_DRAFTERS if request.small else DRAFTERS


# -- one by one --------------------------------------------------------------------------------------------------------


def alone(record: Record, request: Request, card: TargetCard, precision: str) -> None:
    """Measure one drafter after the other on one loaded target, so that each peak belongs to one drafter."""
    missing = [name for name in drafters(request) if f"{precision} {name}" not in record.figures]
    if not missing:
        return
    with Store.open(request.work / f"measured-{precision}.db", print) as store:
        engines: list[Engine] = []

        def plain() -> Engine:
            if not engines:
                choice = choose(card, without_phrases(settings_of(request, precision), PLAIN))
                engines.append(Engine(choice, store=store, phrases="off", measured=True))
                replies(engines[0], request)  # the first replies load kernels
            return engines[0]

        for name in missing:
            least = LEAST_SEARCHED if name in SEARCHED else LEAST
            make = partial(one_alone, plain, request, card, precision, name, store)
            record.measured(f"{precision} {name}", make, least)
        engines.clear()
        gc.collect()


def one_alone(
    plain: Any, request: Request, card: TargetCard, precision: str, name: str, store: Store
) -> dict[str, Any]:
    """Return the tokens/s, the tokens per step and the peak memory of one drafter."""
    first = plain()
    choice = choose(card, without_phrases(settings_of(request, precision), name))
    watch_peak(request.device)
    engine = first if name == PLAIN else Engine(choice, store=store, phrases="off", share_with=first, measured=True)
    loaded = peak_bytes(request.device)
    if name != PLAIN:
        replies(engine, request)  # these take longer, because steps are recorded
    watch_peak(request.device)
    statistics = replies(engine, request)
    timed, memory = [reply for reply in statistics if reply.tokens_per_second], statistics[-1].memory
    return {
        "tokens_per_second": sum(len(reply.token_ids) - 1 for reply in timed) / sum(reply.decode_seconds for reply in timed),
        "length": fmean(reply.acceptance_length for reply in timed),
        "peak": peak_bytes(request.device) or memory.target + memory.drafter + memory.cache,
        "loading": loaded, "drafter": memory.drafter, "exactness": engine.exactness.bitwise,
        "ids": [list(reply.token_ids) for reply in statistics], "off": sum(bool(reply.off_reason) for reply in statistics),
        "load_seconds": engine.load_seconds, "form": str(getattr(engine.target, "step_form", "")),
    }  # fmt: skip


def replies(engine: Engine, request: Request, count: int | None = None) -> list[Statistics]:
    """Answer the first prompts greedily, and return the statistics of the replies."""
    statistics = []
    most = Limits(SMALL_TOKENS if request.small else TOKENS)
    for prompt in questions_of(request, count or (SMALL_REPLIES if request.small else REPLIES)):
        *_, done = engine.chat(message(prompt.text), Sampling(), most)
        assert isinstance(done, Done)
        statistics.append(done.statistics)
    return statistics


# -- side by side ------------------------------------------------------------------------------------------------------


def side_by_side(record: Record, request: Request, card: TargetCard, precision: str, seconds: float) -> None:
    """Let `speedups.py` measure all drafters for `seconds`, and save its results. The next call continues."""
    if seconds < SHARED and not request.small:
        raise TimeUp("side by side")
    work, log = request.work / f"speedups-{precision}", request.work / f"speedups-{precision}.log"
    words = [str(Path("research") / "speedups.py"), "-m", str(card.path), "--prompts", str(prompts_place(request))]
    words += ["--limit", "1" if request.small else "6", "-n", str(SMALL_TOKENS if request.small else 64)]
    words += ["--drafters", *(name for name in drafters(request) if name != PLAIN), "--work", str(work)]
    named_settings = {f"LOCALSPEC_{name.upper()}": value for name, value in precisions(request)[precision].items()}
    # A second process writes the replies, so this process must leave nothing on the card.
    code = run_script(words, seconds, log, {**named_settings, "LOCALSPEC_DEVICE": request.device})
    turns = turns_of(work)
    record.keep(f"{precision} turns", turns)
    if code is not None:
        record.keep(f"{precision} side by side", {"turns": len(turns)} if code == 0 else {"failed": last_line(log)})


def turns_of(folder: Path) -> list[dict[str, Any]]:
    """Return the saved results of all prompts that all drafters have answered."""
    files = sorted(folder.glob("turn-*.json"), key=lambda file: int(file.stem.partition("-")[2]))
    turns = (saved_json(file, dict) for file in files)
    return [without_ids(turn) for turn in turns if "replies" in turn]


def without_ids(turn: dict[str, Any]) -> dict[str, Any]:
    """Return a prompt's results with `differs` (from the plain reply) in place of each reply's token ids."""
    plain = turn["replies"][PLAIN]["ids"]
    replies = {
        name: {key: value for key, value in reply.items() if key != "ids"} | {"differs": reply["ids"] != plain}
        for name, reply in turn["replies"].items()
    }
    return {**turn, "replies": replies}


# -- the page ----------------------------------------------------------------------------------------------------------


def by_precision(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures of drafters that ran by themselves, by precision and drafter."""
    by_name: dict[str, dict[str, Any]] = {}
    for name, result in figures.items():
        precision, _, drafter = name.partition(" ")
        if drafter in DRAFTERS:
            by_name.setdefault(precision, {})[drafter] = result
    return by_name


def ratios(result: Mapping[str, Any], plain: Mapping[str, Any]) -> tuple[float, float]:
    """Return the speedup of a drafter over plain decoding, and M (speedup ÷ relative memory)."""
    faster = result["tokens_per_second"] / plain["tokens_per_second"]
    return faster, faster / (result["peak"] / plain["peak"])


def section(figures: dict[str, Any]) -> str:
    model = figures.get("model")
    parts = []
    if model:
        parts.append(
            f"The demo model was enlarged with zeros, {model['factor']} times in width: {model['parameters'] / 1e9:.2g} B parameters in 8 layers. It writes the demo's texts and drafts "
            "at the cost of a large model. "
            "A usual model of that size has four times as many layers, and so starts four times as many kernels in a step.\n\n"
            "A line is a drafter, or plain decoding (`none`).\n\n"
            "- *tokens/s*, *tokens/s per GiB* of peak memory, and *τ*, the tokens per step: more is better.\n"
            "- *×*, the speedup over plain decoding, and *M*, which is × ÷ relative peak memory: more is better.\n"
            "- *peak GiB*, the most memory used: less is better.\n"
            "- *other texts* counts replies that differ from plain decoding, and *switched off* replies in which drafting stopped because it did not pay."
        )
    for precision, results in by_precision(figures).items():
        plain = results.get(PLAIN)
        if plain is None or failure(plain):
            parts += failed({f"{precision} {name}": result for name, result in results.items()})
            continue
        lines = []
        for drafter, result in results.items():
            if failure(result):
                continue
            faster, worth = ratios(result, plain)
            differing = sum(left != right for left, right in zip(result["ids"], plain["ids"], strict=True))
            lines.append([
                drafter, f"{result['tokens_per_second']:.1f}", figure(result["length"]), figure(faster), f"{result['peak'] / 2**30:.2f}",
                figure(worth), figure(result["tokens_per_second"] / (result["peak"] / 2**30)), str(differing), str(result["off"]),
            ])  # fmt: skip
        heads = ["drafter", "tokens/s", "τ", "×", "peak GiB", "M", "tokens/s per GiB", "other texts", "switched off"]
        form = f" (steps of plain decoding are {plain['form']})" if plain.get("form") else ""
        parts.append(f"In {precision}, {len(plain['ids'])} replies of each drafter{form}:\n\n{table(heads, lines)}")
        parts += failed({f"{precision} {name}": result for name, result in results.items()})
        parts += speedups_by_kind(figures.get(f"{precision} turns") or [], precision)
        parts += failed({name: result for name, result in figures.items() if name == f"{precision} side by side"})
    papers = [[row[0], *(figure(value) for value in row[1:])] for row in S3D_ROWS]
    heads = ["method", "peak GiB", "tokens/s", "M", "M over all"]
    parts.append(
        "For comparison, these are methods in table 1 of the S3D paper. They were measured on an NVIDIA A10G with the prompts of MT-Bench. "
        "*M* compares with the first line. *M over all* is for all prompts of the paper; the value of S3D is the aim for M above. "
        f"More tokens/s and more M are better.\n\n{table(heads, papers)}"
    )
    return "\n\n".join(parts)


def speedups_by_kind(turns: Sequence[Mapping[str, Any]], precision: str) -> list[str]:
    """Return a table of the speedups of replies that were written side by side, by kind of text."""
    if not turns:
        return []
    kinds = {kind: [turn for turn in turns if turn["category"] == kind] for kind in EVERY}
    kinds = {kind: of_kind for kind, of_kind in kinds.items() if of_kind}
    lines = []
    for name in turns[0]["replies"]:
        low, high = interval(turns, name)
        differing = sum(turn["replies"][name]["differs"] for turn in turns)
        lines.append([
            name, f"{speedup(turns, name):.2f} [{low:.2f}, {high:.2f}]", figure(length(turns, name)), figure(worth(turns, name)),
            *(figure(speedup(of_kind, name)) for of_kind in kinds.values()), str(differing),
        ])  # fmt: skip
    heads = ["drafter", "×", "τ", "M", *(f"{kind} ({len(of_kind)})" for kind, of_kind in kinds.items()), "other texts"]
    return [f"In {precision}, side by side, by `speedups.py`, {len(turns)} prompts:\n\n{table(heads, lines)}"]


def aims(figures: dict[str, Any]) -> list[Aim]:
    goals = []
    for precision, results in by_precision(figures).items():
        plain = results.get(PLAIN)
        good = {
            name: ratios(result, plain)
            for name, result in results.items()
            if plain and not failure(plain) and not failure(result)
        }
        worth = max((worth for _, worth in good.values()), default=None)
        title = (
            f"{precision}: best speedup of {', '.join(METHODS)} with at most {LEAN} times the memory of plain decoding"
        )
        recorded = plain is not None and plain.get("form") == "captured"
        goals.append(Aim(title, best_lean(good) if recorded else None, FASTER))
        goals.append(
            Aim(
                f"{precision}: best M of all drafters (wanted: the M that the S3D paper reports)",
                worth,
                S3D_OVER_ALL,
            )
        )
    return goals or [Aim("× of the best drafter", None, FASTER)]


def best_lean(good: Mapping[str, tuple[float, float]]) -> float | None:
    """Return the speedup of the fastest method with little memory; 0 if all need more; None without measurements."""
    known = [good[name] for name in METHODS if name in good]
    lean = [faster for faster, worth in known if faster <= LEAN * worth]  # M is × over relative memory
    return max(lean, default=0.0) if known else None
