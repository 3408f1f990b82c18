"""Lets plain decoding and each compared drafter (a row of the table) answer every prompt.

Rows take turns and share one loaded target, so that they can be compared.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import psutil

from localspec import Choice, Done, Engine, Limits, Sampling, Statistics
from localspec.bench import figures
from localspec.bench.figures import RowTimer, most_rows
from localspec.bench.prompts import BenchPrompt, in_turns, message, remaining_words
from localspec.config import Rule, Settings
from localspec.errors import UsageMistake
from localspec.events import Reporter
from localspec.machine import hardware
from localspec.store.store import Store
from localspec.weights.recipe import draft_in_words


@dataclass(frozen=True)
class ComparedRow:
    """A row of the table: the choice to load, the requested nodes (tokens) of draft trees, and the acceptance rule."""

    choice: Choice
    nodes: int | Literal["auto"]
    accept: Rule = "exact"


def bench(
    rows: Sequence[ComparedRow],
    prompts: Sequence[BenchPrompt],
    max_tokens: int,
    repeat: int,
    settings: Settings,
    progress: Callable[[str], None],
    store: Store | None = None,
    tune: bool = False,
) -> dict[str, Any]:
    """Measure all rows, of which the first is plain decoding, and return the report.

    Every row answers all prompts `repeat` times, with at most `max_tokens` per reply. Hyperparameters of draft models
    are taken from `store`, and searched only with `tune`. Raises UsageMistake if no prompt leaves room for an answer in
    the context.
    """
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "localspec.db", progress) as temporary:
        # A separate store, because costs are measured once and not for every engine; it has no phrases.
        load = partial(Engine, store=temporary, phrases="off", reporter=Reporter(progress=progress), measured=True)
        paired = partial(load, tune=tune) if store is None else partial(load, store=store, tune=tune)
        progress(f"loading {rows[0].choice.target.name}")
        engine = load(rows[0].choice)
        target, choice, sampling, limits = engine.target, engine.choice, engine.sampling(settings), Limits(max_tokens)
        lengths = {prompt.text: len(target.encode(message(prompt.text))) + max_tokens for prompt in prompts}
        fitting = [prompt for prompt in prompts if lengths[prompt.text] <= target.context]
        if not fitting:
            raise UsageMistake(
                f"No prompt leaves room for {max_tokens} tokens in a context of {target.context}; "
                "ask for fewer --max-tokens."
            )
        texts, categories = [prompt.text for prompt in fitting], [prompt.category for prompt in fitting]
        firsts = _first_engines(load, paired, [row.choice for row in rows], engine)
        engines = [partial(load, row.choice, share_with=first) for row, first in zip(rows, firsts, strict=True)]
        exactness = ["bitwise" if first.exactness.bitwise else "numerical" for first in firsts]
        rules = [replace(sampling, rule=row.accept) for row in rows]
        timer, load_by_others = RowTimer(target), hardware.OthersLoad()
        replies = run_rows(engines, texts, rules, limits, repeat, progress, timer, engine.hold_threads)
        others, costs = load_by_others(), timer.costs()
        bandwidth = hardware.memory_bandwidth(choice.device)
        names = names_of([row.choice for row in rows])
        return {
            "machine": {
                "versions": hardware.versions(choice.device),
                "cores": hardware.physical_cores(),
                "memory": psutil.virtual_memory().total,
                "bandwidth": round(bandwidth),
                "others": round(others, 2),  # cores that other programs used
            },
            "model": choice.target.name,
            "revision": engine.revision,
            "device": choice.device,
            "engine": choice.engine,
            "dtype": choice.dtype,
            "quantize": choice.quantize,
            "bits_per_weight": round(choice.bits, 3) or None,
            "exactness": max(exactness),  # the weaker of the two
            "prompts": len(fitting),
            "left_out": len(prompts) - len(fitting),
            "repeat": repeat,
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "pool": "off",
            "rows": [
                {
                    "drafter": row.choice.drafter,
                    "name": name,
                    "trained": [str(drafter.path) for drafter in row.choice.trained],
                    "nodes": row.nodes,
                    "accept": row.accept,
                    "exactness": promise,
                    **_draft_model_facts(first),
                    **figures.of_row(
                        row_replies, replies[0], categories, target.read_bytes, bandwidth, row.accept == "exact", costs
                    ),
                }
                for row, name, first, promise, row_replies in zip(rows, names, firsts, exactness, replies, strict=True)
            ],
            "peers": [],  # measured by research/compare_peers.py; the key stays for readers of reports
        }


def names_of(choices: Sequence[Choice]) -> list[str]:
    """Return a name for each choice: its drafter, such as `medusa+phrases`.

    Where trained drafters of the same kinds are compared, the name of a drafter's directory replaces its kind, such as
    `my-heads+phrases`. Drafters that come with localspec keep the name of their kind.
    """
    trained: dict[str, set[tuple[Path, ...]]] = {}
    for choice in choices:
        trained.setdefault(choice.drafter, set()).add(tuple(card.path for card in choice.trained))
    names = []
    for choice in choices:
        directories = {card.kind: _directory_name(card.path) for card in choice.trained if not card.shipped}
        several = len(trained[choice.drafter]) > 1
        names.append("+".join(directories.get(kind, kind) if several else kind for kind in choice.drafter.split("+")))
    return names


def _directory_name(path: Path) -> str:
    return path.parent.name if path.name == "drafter" else path.name  # training writes DIRECTORY/drafter


def _first_engines(
    load: Callable[..., Engine], paired: Callable[..., Engine], choices: Sequence[Choice], engine: Engine
) -> list[Engine]:
    """Return an engine for each choice.

    Engines with the same draft model share the loaded model, and the hyperparameters found for this pair of models.
    """
    engines: dict[int, Engine] = {}
    # Fixed sizes come last, because they use the window and the phrases that a search finds.
    for number, choice in sorted(enumerate(choices), key=lambda pair: pair[1].fixed):
        same_draft = [other for other in engines.values() if other.choice.draft == choice.draft]
        same_drafter = [other for other in same_draft if other.choice.drafter == choice.drafter]
        if choice.draft is None:
            engines[number] = load(choice, share_with=engine)
        elif same_drafter:
            engines[number] = load(choice, share_with=same_drafter[0])
        else:
            engines[number] = paired(choice, share_with=same_draft[0] if same_draft else engine)
    return [engines[number] for number in range(len(choices))]


def _draft_model_facts(engine: Engine) -> dict[str, Any]:
    draft = engine.choice.draft
    if draft is None:
        return {}
    tokens = engine.draft_model.target.vocab_size if draft.drafts and engine.draft_model else 0
    return {
        "draft_model": draft.target.name,
        "draft_form": draft_in_words(str(draft), tokens),
        "hyperparameters": engine.hyperparameters.as_json(),
    }


def run_rows(
    engines: Sequence[Callable[[], Engine]],
    prompts: Sequence[str],
    sampling: Sequence[Sampling],
    limits: Limits,
    repeat: int,
    progress: Callable[[str], None],
    timer: RowTimer | None = None,
    before_turn: Callable[[], None] = lambda: None,
    until: Callable[[int], bool] = lambda turns: False,
    at_most: Callable[[], float] = lambda: math.inf,
    warm_up: Limits | None = None,
) -> list[list[Statistics]]:
    """Return one list of replies for each compared row, with `repeat` replies to each prompt.

    `engines` and `sampling` have one entry for each row. In a turn, every row answers one prompt. Each reply comes from
    a new engine, because text learned in one reply would make the next one faster. Before each turn, `until` gets the
    number of finished turns. If it returns True, the bench ends; otherwise `before_turn` is called. After each turn,
    `timer` times forwards. The first reply of each row does not count; `warm_up` are its limits, if given. The
    displayed remaining time is at most `at_most()` seconds.
    """
    began = time.monotonic()
    for number, (engine, row_sampling) in enumerate(zip(engines, sampling, strict=True), start=1):
        progress(f"warming up row {number} of {len(engines)}")
        _reply(engine(), prompts[0], row_sampling, warm_up or limits)
    replies: list[list[Statistics]] = [[] for _ in engines]
    turns = repeat * len(prompts)
    for number, (turn, row) in enumerate(in_turns(range(len(engines)), turns)):
        mean = (time.monotonic() - began) / (len(engines) + number)  # of the replies so far, including the warm-up's
        seconds = min(mean * (len(engines) * turns - number), max(at_most(), mean))
        progress(f"prompt {turn + 1} of {turns}, {remaining_words(seconds)}")
        if number % len(engines) == 0:
            if until(turn):
                break
            before_turn()
        replies[row].append(_reply(engines[row](), prompts[turn % len(prompts)], sampling[row], limits))
        if timer and all(len(of_row) == turn + 1 for of_row in replies):
            timer.time_forwards(most_rows([of_row[-1].rows for of_row in replies]))
    return replies


def _reply(engine: Engine, prompt: str, sampling: Sampling, limits: Limits) -> Statistics:
    *_, done = engine.chat(message(prompt), sampling, limits)
    assert isinstance(done, Done)
    return done.statistics
