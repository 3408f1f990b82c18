"""Test the findings of S3D's paper (figures 4, 5 and 8, table 4) on published models.

    python research/paper_s3d.py -m smollm2-135m --data FILE… --prompts data/eval --out build/s3d > page.md

Figure 4 is also measured without training: how often some layers predict the same token as the whole model. Table 4
uses the drafter that a model already has. It measures seconds, so nothing else should run. All other variants are
trained. Figure 5 needs one training for each number of layers and seed, with the longest draft. Shorter drafts use the
same weights with fewer masks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import fmean, median, stdev
from typing import Any

from experiment import (
    NODES,
    NOT_RUN,
    Bench,
    OutOfTime,
    Reply,
    Variant,
    always,
    common,
    compared,
    page,
    parser,
    plain,
    trained,
)
from figures import by_depth, difference, figure, length, table, with_interval

from localspec.bench.prompts import BenchPrompt
from localspec.choosing.plans import cost_effectiveness
from localspec.decoding.budget import Budget
from localspec.decoding.measuring import finished
from localspec.drafters.layers import agreeing
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.trained import load_drafter
from localspec.errors import LocalspecError
from localspec.models.drafter_cards import find_drafter, read_drafter
from localspec.models.registry import resolve
from localspec.models.s3d_prediction import (
    Constants,
    MeasuredAcceptance,
    acceptance,
    acceptance_length,
    fit,
    improvement,
    share,
    symmetric,
)
from localspec.models.shape import Shape, shape_of
from localspec.repetition import until_it_goes_round

LONGEST = 5  # tokens of a draft
SHARES = (0.5, 0.75)  # of the layers, kept
PRECISIONS = {
    name: {"dtype": dtype, "quantize": quantize}
    for name, dtype, quantize in (
        ("fp32", "fp32", "none"), ("bf16", "bf16", "none"), ("int8", "auto", "int8"), ("int4", "auto", "int4")
    )
}  # fmt: skip
DRAFTERS = ("plain", "s3d", "s3d+phrases")
TREE = 4  # nodes of table 4
TERMS = """

Figure 4 is measured without training. First the whole model writes a reply at temperature 0. Then some of its layers, followed by its head (which turns their output into guesses), read
this reply and guess after each token which one comes next. Each row of a table is a choice of layers. In all columns of shares larger is better.

| column | is |
|---|---|
| scheme | which layers are skipped; *symmetric* is the paper's best scheme (above) |
| first guess right | share of tokens for which the likeliest guess is the model's token |
| among first four | share of tokens for which the model's token is among the four likeliest guesses |
| lead over symmetric | *first guess right* minus that of *symmetric* with equally many layers; negative means worse |"""


def schemes(count: int, size: int) -> dict[str, tuple[int, ...]]:
    """Return which `size` of `count` layers each scheme of figure 4 keeps. Early exit is the scheme "late skipped"."""
    early = size // 4
    spread = tuple(round(index * (count - 1) / max(size - 1, 1)) for index in range(size))
    return {
        "symmetric": symmetric(count, size),
        "late skipped": tuple(range(size)),
        "early skipped": tuple(range(count - size, count)),
        "evenly spread": spread,
        "middle skipped, three quarters of the kept ones late": (
            *range(early), *range(count - size + early, count)
        ),
    }  # fmt: skip


def shape_of_model(bench: Bench) -> Shape:
    """Return the sizes of the model."""
    shape = shape_of(resolve(bench.options.model).path)
    assert shape is not None
    return shape


def untrained(bench: Bench) -> str:
    """Return a table of how often some of the layers predict the whole model's next token, without training."""
    count = shape_of_model(bench).num_layers
    sets = {(size, name): layers for size in (int(count * part) for part in SHARES)
            for name, layers in schemes(count, size).items()}  # fmt: skip

    def answer(prompt: BenchPrompt, _: str) -> Reply:
        if not (text := bench.text(prompt)):
            return {}
        ids = text["ids"][: until_it_goes_round(text["ids"])]
        if len(ids) < 2:
            return {}
        measured = finished(agreeing(bench.engine.target, [(text["prompt"], ids)], list(sets.values())))
        return {"positions": len(ids) - 1, "shares": [scheme.shares for scheme in measured]}

    replies = bench.rows("untrained", [""], answer)[""]
    lines = []
    for number, (size, name) in enumerate(sets):
        if not replies:
            lines.append([f"{size} of {count}", name, NOT_RUN, "", ""])
            continue
        first, four = (
            [
                {"tokens": reply["positions"] * sum(reply["shares"][index][:ranks]), "steps": reply["positions"]}
                for reply in replies
            ]
            for index, ranks in ((number, 1), (number, 4))
        )
        if name == "symmetric":
            base = first
        ahead = "" if first is base else with_interval(difference([first], [base]))
        lines.append([f"{size} of {count}", name, with_interval(length([first])), figure(length([four]).value), ahead])
    heads = ["layers kept", "scheme", "first guess right", "among first four", "lead over symmetric"]
    positions = sum(reply["positions"] for reply in replies)
    return f"{table(heads, lines)}\n\n{len(replies)} replies, {positions} tokens."


def trained_layers(bench: Bench) -> str:
    """Train drafters with half of the layers, chosen by each scheme. Return the table of figure 4."""
    count = shape_of_model(bench).num_layers
    halves = schemes(count, max(1, count // 2))
    return compared(
        {name: Variant("s3d", {"kept": ",".join(map(str, layers))}) for name, layers in halves.items()}, bench
    )


ADAPTERS = {  # figure 8
    "adapters on all": Variant("s3d"),
    "adapters on v, k, o": Variant("s3d", {"adapters": "vko"}),
    "rank 64": Variant("s3d", {"rank": 64, "alpha": 128.0}),
    "full": Variant("s3d", {"full": True}, ("--labels", "text")),
}


def figure_5(bench: Bench) -> str:
    """Return a table of predicted and measured acceptance and speed, by share of the model (β) and drafted tokens (γ)."""
    shape, options = shape_of_model(bench), bench.options
    most = shape.num_layers
    counts = sorted({round(most * part / 8) for part in range(2, 8)})[: 2 if options.smoke else None]
    beta = {count: share(most, count, shape.embedding / shape.layer) for count in counts}
    notes: list[str] = []
    results: dict[tuple[int, int], list[dict[str, list[Reply]]]] = {}  # by layers and γ: by seed: plain, own
    for count in counts:
        variant = Variant("s3d", {"kept": ",".join(map(str, symmetric(most, count))), "depth": LONGEST})
        for seed in options.seeds:
            try:
                trained(variant, seed, bench)
            except OutOfTime:
                continue
            except LocalspecError as failed:
                notes.append(f"{count} layers: {failed}")
                continue
            replies = _by_length(variant, seed, bench)
            for gamma in range(1, LONGEST + 1):
                if replies["plain"]:
                    results.setdefault((count, gamma), []).append(
                        {"plain": replies["plain"], "own": replies[str(gamma)]}
                    )
    if not results:
        missing = ", ".join(f"{count} of {most} layers" for count in counts)
        return "\n\n".join([f"Not run: {missing}, each with 1 to {LONGEST} tokens.", *notes])
    names = [f"{name}, {source}" for name in ("α", "tokens a step", "×") for source in ("paper", "fitted", "measured")]
    cells = []
    for count in counts:
        for gamma in range(1, LONGEST + 1):
            if (runs := results.get((count, gamma))) is None:
                cells.append([figure(beta[count]), str(gamma), NOT_RUN, *[""] * (len(names) - 1)])
            else:
                others = [(other, run) for (other, _), all_ in results.items() for run in all_ if other != count]
                measured = [MeasuredAcceptance(beta[other], tuple(by_depth([run["own"]]))) for other, run in others]
                cells.append(
                    [figure(beta[count]), str(gamma), *_predicted(gamma, beta[count], runs, fit(measured, []))]
                )
    note = (
        "Predicted is by eqs. 10 to 12 and 14 with the paper's constants, and with U and the discount fitted to the "
        "measurements of other β; δ is the machine's. Measured acceptance is that of a tree, whose siblings count, and the "
        "paper's constants are for chains. ± is the standard deviation over seeds."
    )
    return "\n\n".join([table(["β", "γ", *names], cells), note, *notes])


def _by_length(variant: Variant, seed: int, bench: Bench) -> dict[str, list[Reply]]:
    """Return the replies of plain decoding ("plain") and those of one trained drafter by the length of its drafts."""
    directory = variant.directory(seed, bench.options)

    @cache
    def drafter(gamma: str) -> Any:
        card = read_drafter(directory)
        return load_drafter(replace(card, options={**card.options, "depth": int(gamma)}), bench.engine.target)

    def answer(prompt: BenchPrompt, name: str) -> Reply:
        if name == "plain":
            return bench.reply(prompt, plain, Budget(0))
        return bench.reply(prompt, always(drafter(name)), Budget(NODES))

    return bench.rows(f"figure 5 {directory.name}", ["plain", *map(str, range(1, LONGEST + 1))], answer)


def _predicted(gamma: int, beta: float, runs: Sequence[Mapping[str, list[Reply]]], others: Constants) -> list[str]:
    """Return the cells for one β and γ: predicted with the paper's and with fitted constants, and measured."""
    (replies,) = common([run["own"] for run in runs])
    times = [
        sum(reply["seconds"] for reply in run["plain"]) / max(sum(reply["seconds"] for reply in run["own"]), 1e-9)
        for run in runs
    ]
    delta = length(replies).value / fmean(times) - 1 - beta  # an iteration beyond the draft and a plain step
    pair = Constants(delta=delta), Constants(others.u, others.discount, delta)
    return [
        *(figure(acceptance(beta, constants.u)) for constants in pair),
        _spread([(*by_depth([run]), 0.0)[0] for run in replies]),
        *(figure(acceptance_length(gamma, beta, constants)) for constants in pair),
        with_interval(length(replies)),
        *(figure(improvement(gamma, beta, constants)) for constants in pair),
        _spread(times),
    ]


def _spread(values: list[float]) -> str:
    return figure(fmean(values)) + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def table_4(bench: Bench) -> str:
    """Return a table by precision and drafter: tokens/s, memory, and M (speedup ÷ relative memory) against the first
    row.
    """
    card = find_drafter("s3d", resolve(bench.options.model))
    benches = {name: replace(bench, flags=flags) for name, flags in PRECISIONS.items()}
    drafters = {
        name: cache(lambda variant=variant: load_drafter(card, variant.engine.target))
        for name, variant in benches.items()
    }

    def answer(prompt: BenchPrompt, row: str) -> Reply:
        precision, drafter = row.split(", ")
        if drafter == "plain":
            return benches[precision].reply(prompt, plain, Budget(0))
        s3d = drafters[precision]()
        make = always(s3d) if drafter == "s3d" else lambda pool: WithPhrases(s3d, pool, anywhere=True)
        return benches[precision].reply(prompt, make, Budget(TREE))

    rows = bench.rows(
        "table 4", [f"{precision}, {drafter}" for precision in PRECISIONS for drafter in DRAFTERS], answer
    )
    lines, base = [], next(iter(rows.values()))
    for name, replies in rows.items():
        if not replies:
            lines.append([name, NOT_RUN, "", "", ""])
            continue
        (speed, memory), plainly = _speed(replies), _speed(base)
        m = cost_effectiveness(speed, memory, *plainly)
        lines.append([name, f"{memory / 2**20:.1f}", f"{speed:.1f}", figure(m), with_interval(length([replies]))])
    return table(["", "MiB", "tokens/s", "M", "tokens a step"], lines)


def _speed(replies: Sequence[Reply]) -> tuple[float, int]:
    """Return tokens per second, and bytes of target, drafter and cache."""
    seconds = sum(reply["seconds"] for reply in replies)
    tokens = sum(reply["tokens"] for reply in replies)
    return tokens / max(seconds, 1e-9), round(median(reply["bytes"] for reply in replies))


def sections(bench: Bench) -> dict[str, partial[str]]:
    """Return the parts of the page by title, as functions that make them."""
    return {
        "Figure 4, untrained: agreement of layers with the model": partial(untrained, bench),
        "Figure 4, trained: which layers are skipped": partial(trained_layers, bench),
        "Figure 5: predicted and measured speed": partial(figure_5, bench),
        "Figure 8: adapters against full training": partial(compared, ADAPTERS, bench),
        "Table 4: M of precisions and drafters": partial(table_4, bench),
    }


def main(argv: Sequence[str] | None = None) -> None:
    page(parser(__doc__), "S3D: which layers draft best", "paper_s3d.py", sections, argv, more=TERMS)


if __name__ == "__main__":
    main()
