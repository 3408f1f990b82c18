"""Common parts of the scripts that test the claims of papers: flags, saved results, replies, trainings, and the page.

Each script takes the names of published models, appends every result to `OUT/MODEL/results.jsonl`, and prints a page.
After Ctrl+C or a kill, the same command continues. After the tables of a model, the page lists the parts and rows that
were not run.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from figures import DRAWS, difference, figure, length, table, with_interval

from localspec import config
from localspec.bench import prompts
from localspec.bench.prompts import BenchPrompt
from localspec.choosing.choose import choose
from localspec.cli.interrupt import INTERRUPTED
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.ouroboros_tuning import ReplayTarget
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.drafters.trained import CARD, WEIGHTS, load_drafter
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Done
from localspec.models import drafter_cards, registry
from localspec.repetition import until_it_goes_round
from localspec.store.store import Store
from localspec.training import checkpoint
from localspec.training.directory import Lock
from localspec.training.examples import read_examples
from localspec.weights.checkpoint import revision

GREEDY = Sampling()
NODES, DEPTHS = 16, 4
NOT_RUN = "not run"
# The best learning rates of those that were tried on the demo.
RATES = {"medusa": 5e-3, "s3d": 3e-3, "parallelspec": 3e-3, "semi": 3e-3}
# Options of every training of a kind. Without `drop` the rows of parallelspec would take most of the time.
ALWAYS: dict[str, dict[str, object]] = {"parallelspec": {"drop": 0.5}}
# Flags that change results: a folder has results of one setting of each.
DECISIVE = ("model", "limit", "max_tokens", "seeds", "steps", "smoke", "draft")
SMOKE = {"steps": 2, "limit": 3, "max_tokens": 12, "seeds": [0]}

MakeDrafter = Callable[[PhrasePool], Drafter]  # from an empty pool
Reply = dict[str, Any]
Rows = dict[str, list[Reply]]


# -- flags and results -------------------------------------------------------------------------------------------------


def parser(about: str, trains: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the flags that all scripts have, and with the flags of trainings if the script `trains`."""
    arg_parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    arg_parser.add_argument(
        "-m", "--models", nargs="+", required=True, help="names of models that were imported or pulled"
    )
    arg_parser.add_argument("--prompts", type=Path, required=True, help="a directory of .jsonl files, or one file")
    arg_parser.add_argument("--limit", type=positive, default=100, help="prompts")
    arg_parser.add_argument(
        "-n", "--max-tokens", type=positive, default=64, help="tokens of a reply, which ends at a loop"
    )
    arg_parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arg_parser.add_argument("--only", nargs="+", default=[""], help="parts to run: those whose titles begin like this")
    arg_parser.add_argument("--minutes", type=float, help="stop after this time; the same command continues")
    arg_parser.add_argument("--out", type=Path, required=True, help="a folder outside git for results and trainings")
    arg_parser.add_argument("--smoke", action="store_true", help="try every part on a few tokens of a few prompts")
    if trains:
        arg_parser.add_argument(
            "--data", type=Path, nargs="+", default=[], help="examples, as `localspec train` reads them"
        )
        arg_parser.add_argument(
            "--distilled", type=Path, help="answers by `localspec distill`, for variants that need them"
        )
        arg_parser.add_argument("--steps", type=positive, default=500, help="steps of 1,024 tokens of each training")
    return arg_parser


def positive(text: str) -> int:
    """Return the whole number above 0 in the text of a flag. Raises ArgumentTypeError for any other text."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not possible; give a whole number above 0")
    return int(text)


class OutOfTime(Exception):
    """An error: a result is missing, and nothing more may be measured, for example because `--minutes` are over."""


class Results:
    """A file of results by key, one line of JSON for each. An incomplete last line is discarded."""

    def __init__(self, file: Path, minutes: float | None = None) -> None:
        self._file, self._known = file, dict[str, Any]()
        self._end = time.monotonic() + 60 * minutes if minutes else float("inf")
        self.measuring, self.commits = True, dict[str, None]()
        text = file.read_text("utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            file.write_text(whole, "utf-8")
        for line in map(json.loads, whole.splitlines()):
            self._known[line["key"]] = line["value"]
            self.commits[line["commit"]] = None

    @property
    def seconds(self) -> float | None:
        """The seconds left; None without a limit."""
        return None if self._end == float("inf") else max(self._end - time.monotonic(), 0)

    def of(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the saved result of a key, or make and save it. Return None if nothing more may be measured."""
        if key not in self._known:
            if not self.measuring or time.monotonic() > self._end:
                return None
            try:
                value = make()
            except OutOfTime:
                return None
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "commit": commit(), "value": value}) + "\n")
            self._known[key], self.commits[commit()] = value, None
        return self._known[key]


@cache
def commit() -> str:
    """Return the commit of this checkout, with a + if files differ from it; "unknown" without git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=8"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return described.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def checked_flags(arg_parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed flags. Exit if a file cannot be read, or if the folder has results of other settings."""
    options = arg_parser.parse_args(argv)
    if options.smoke:
        for name, value in SMOKE.items():
            if hasattr(options, name):
                setattr(options, name, value)
    try:
        questions(options.prompts, 1)
        read_examples(vars(options).get("data") or ())  # check now, because a training may read the files hours later
        for model in options.models:
            model_options = of_model(options, model)
            decisive: dict[str, Any] = {name: vars(model_options).get(name) for name in DECISIVE}
            decisive |= {name: content(vars(options).get(name)) for name in ("data", "distilled", "prompts")}
            decisive |= weights(registry.resolve(model))
            if decisive["draft"]:
                registry.resolve(decisive["draft"])
            same_settings(arg_parser, model_options.out, decisive, "--out")
    except LocalspecError as mistake:
        arg_parser.error(str(mistake))
    return options


def of_model(options: argparse.Namespace, model: str) -> argparse.Namespace:
    """Return the flags for one of the models, with a separate output folder."""
    model_options = copy(options)
    model_options.model, model_options.out = model, options.out / file_name(model)
    return model_options


def same_settings(
    arg_parser: argparse.ArgumentParser, work: Path, decisive: Mapping[str, Any], flag: str = "--work"
) -> None:
    """Exit if a directory has results of other settings, and name the difference. Save a new directory's settings."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        old = saved_json(work / "settings.json", lambda: decisive)
        if not isinstance(old, dict):
            raise ValueError(old)
    except OSError as error:
        arg_parser.error(f"{flag} {work} cannot be used ({error.strerror}); name another directory.")
    except ValueError:
        arg_parser.error(f"{work / 'settings.json'} is damaged; give another {flag}, or delete that file.")
    for name in dict.fromkeys((*decisive, *old)):
        was, now = old.get(name), decisive.get(name)
        if was != now:
            arg_parser.error(
                f"{work} holds results of other settings: {name} was {was or 'none'}, and now it is {now or 'none'}; "
                f"give another {flag}, or the same settings."
            )


def weights(card: registry.TargetCard) -> dict[str, Any]:
    """Return digests of a model and of its trained drafters, because another model may have the same name later."""
    files = [drafter.path / WEIGHTS for drafter in drafter_cards.trained_drafters(card)]
    return {"weights": revision(card.path), "drafters": content([file for file in files if file.is_file()])}


def content(places: Path | Sequence[Path] | None) -> list[str]:
    """Return the name and digest of each file, or of each .jsonl file in a directory. Raises UsageMistake."""
    listed = [] if places is None else [places] if isinstance(places, Path) else places
    digests = []
    for path in listed:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            try:
                with file.open("rb") as opened:
                    digests.append(f"{file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()[:12]}")
            except OSError as error:
                raise UsageMistake(f"{file} cannot be read ({error.strerror}); name files that can.") from None
    return digests


def saved_json(file: Path, make: Callable[[], Any]) -> Any:
    """Return the JSON in a file. If the file is missing, it is first written with the result of `make`."""
    if not file.exists():
        value = make()
        part = file.with_suffix(".part")
        part.write_text(json.dumps(value), "utf-8")
        os.replace(part, file)
    return json.loads(file.read_text("utf-8"))


def file_name(title: str) -> str:
    """Return a title as a file name: spaces and most punctuation become hyphens."""
    return "".join(letter if letter.isalnum() or letter in "+.-" else "-" for letter in title)


# -- the page ----------------------------------------------------------------------------------------------------------


def page(
    arg_parser: argparse.ArgumentParser,
    title: str,
    script: str,
    sections: Callable[["Bench"], Mapping[str, Callable[[], str]]],
    argv: Sequence[str] | None = None,
    flags: Callable[[argparse.Namespace], Mapping[str, Any]] = lambda options: {},
    more: str = "",
) -> None:
    """Run the parts of a paper on each model and print the page.

    `flags` returns the settings for loading the models. `more` is a text that explains the columns. Conclusions are
    added to the page by hand.
    """
    options = checked_flags(arg_parser, argv)
    done, commits = [], dict[str, None]()
    for model in options.models:
        with ExitStack() as at_the_end:
            model_options = of_model(options, model)
            results = Results(model_options.out / "results.jsonl", options.minutes)
            bench = Bench(model_options, results, at_the_end, flags(options))
            done.append(f"## With `{model}`")
            absent, only_rows = list[str](), ""
            for name, make in sections(bench).items():
                results.measuring = name.startswith(tuple(options.only))
                try:
                    body = make()
                except LocalspecError as missing:
                    body = f"Not run: {missing}"
                body, missing_rows = only_run(body)
                if body:
                    done.append(f"### {name}\n\n{body}")
                if not body:
                    absent.append(name)
                elif missing_rows:
                    absent.append(f"{name} ({', '.join(missing_rows)})")
                    only_rows = ", or only their rows in brackets"
            if absent:
                done.append(
                    "\n".join(
                        [
                            f"**Not run** are these parts of the paper{only_rows}:\n",
                            *(f"- {part}" for part in absent),
                        ]
                    )
                )
            commits |= results.commits
    print("\n\n".join([f"# {title}", about(options, script, more, commits), *done]))


def about(options: argparse.Namespace, script: str, more: str, commits: Sequence[str] | Mapping[str, None]) -> str:
    """Return a paragraph that says how the page was made."""
    steps = f" --data FILE… --steps {options.steps}" if "steps" in options else ""
    draft = f" --draft {options.draft}" if vars(options).get("draft") else ""
    ran = f"results are of commit {', '.join(commits)}" if commits else "nothing was run yet"
    return (
        f"Made by `python research/{script} -m {' '.join(options.models)}{draft} --prompts DIR --limit {options.limit} "
        f"-n {options.max_tokens}{steps} --out DIR`; {ran}.\n\nAll figures are counted, not timed, so they do "
        f"not depend on the load of the machine. Square brackets hold 95 % bounds, from {DRAWS} bootstrap samples of prompts and seeds. A difference "
        f"compares the same prompts. A reply ends where it begins to repeat itself.{more}"
    )


def only_run(body: str) -> tuple[str, list[str]]:
    """Return the text of a part without the table rows that were not run, and the names of these rows.

    The text is empty if no row was run.
    """
    lines, missing, rows = list[str](), list[str](), 0
    for line in body.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if NOT_RUN in cells and not any(re.search(r"\d\.\d\d", cell) for cell in cells[1:]):
            missing.append(", ".join(cells[: cells.index(NOT_RUN)]))
            continue
        rows += line.startswith("|")
        lines.append(line)
    if body.startswith(NOT_RUN.capitalize()) or (missing and rows <= 2):  # the head and its rule
        return "", []
    return "\n".join(lines), missing


# -- replies -----------------------------------------------------------------------------------------------------------


def questions(path: Path, count: int | None) -> list[BenchPrompt]:
    """Return `count` prompts, or all if None. Files take turns, and so do the categories within a file."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    all_prompts = [
        replace(prompt, category=file.stem) for file in files for prompt in prompts.spread(prompts.read(file), None)
    ]
    if not all_prompts:
        raise UsageMistake(f"{path} holds no .jsonl files of prompts; name another.")
    return prompts.spread(all_prompts, count)


@dataclass
class Bench:
    """A model that answers prompts. It is loaded for the first reply, with the settings `flags`."""

    options: argparse.Namespace
    results: Results
    at_the_end: ExitStack
    flags: Mapping[str, Any] = field(default_factory=dict)
    changed: Path | None = None  # the directory of a target that a training changed

    @cached_property
    def engine(self) -> Engine:
        """The loaded model."""
        card = registry.resolve(str(self.changed or self.options.model))
        store = self.at_the_end.enter_context(Store.open(self.options.out / "localspec.db", print))
        choice = choose(card, config.load(flags={"drafter": "phrases", "temperature": 0.0, **self.flags}))
        return Engine(choice, store=store, phrases="off")

    @cached_property
    def questions(self) -> list[BenchPrompt]:
        """The prompts, of all kinds of text in turn."""
        return questions(self.options.prompts, self.options.limit)

    def rows(
        self,
        title: str,
        names: Sequence[str],
        answer: Callable[[BenchPrompt, str], Reply],
        subset: Sequence[BenchPrompt] | None = None,
    ) -> Rows:
        """Return the replies of each row of a table, for the prompts that all rows have answered.

        `answer` makes the missing replies of a prompt for all rows, then those of the next prompt. Prompts that leave no
        room for a reply are left out.
        """
        rows: Rows = {name: [] for name in names}
        for prompt in self.questions if subset is None else subset:
            replies = [
                self.results.of(f"{title} | {name} | {prompt.category} {prompt.id}", partial(answer, prompt, name))
                for name in names
            ]
            if None in replies:
                break
            if all(replies):
                for name, reply in zip(names, replies, strict=True):
                    rows[name].append({**reply, "task": prompt.category})
        return rows

    def text(self, prompt: BenchPrompt, sampling: Sampling = GREEDY, most: int = 0) -> Reply:
        """Return the ids of the prompt and of the target's reply, at most `most` tokens; {} if the prompt is too long.

        The reply is saved. Raises OutOfTime if it is missing and nothing more may be measured.
        """
        most = most or self.options.max_tokens
        settings = f"{most} {sampling.temperature} {sampling.top_p} {sampling.seed} {self.changed} {dict(self.flags)}"
        key = f"text | {settings} | {prompt.category} {prompt.id}"

        def make_text() -> Reply:
            target = self.engine.target
            ids = target.encode(prompts.message(prompt.text))
            if len(ids) + most > target.context:
                return {}
            reply = _generated(target, phrases, Budget(NODES), ids, sampling, most)
            return {"prompt": list(ids), "ids": reply["ids"]}

        if (saved := self.results.of(key, make_text)) is None:
            raise OutOfTime
        return dict(saved)

    def reply(
        self,
        prompt: BenchPrompt,
        make: MakeDrafter,
        budget: Budget,
        sampling: Sampling = GREEDY,
        most: int = 0,
        whole: bool = False,
        replay: bool = False,
    ) -> Reply:
        """Return the figures of a reply with the drafter that `make` returns.

        The reply must equal the reply without drafts, which `text` saved. It ends where that text begins to repeat
        itself. With `whole` it is neither compared nor cut, because some acceptance rules change the text. With `replay`
        the saved text takes the place of the target, which is faster.
        """
        if not (text := self.text(prompt, GREEDY if whole else sampling, most)):
            return {}
        count = (most or self.options.max_tokens) if whole else max(until_it_goes_round(text["ids"]), 2)
        ids = text["ids"][:count]
        target = ReplayTarget(text["prompt"] + ids, self.engine.target.vocab_size) if replay else self.engine.target
        reply = _generated(target, make, budget, text["prompt"], sampling, min(count, len(ids)) if replay else count)
        if not whole and reply["ids"] != ids:
            raise AssertionError(
                f"a reply to {prompt.id} differs from the saved text; use another --out after a change of the code"
            )
        return reply


def _generated(
    target: Any, make: MakeDrafter, budget: Budget, prompt: Sequence[int], sampling: Sampling, most: int
) -> Reply:
    drafter = make(PhrasePool(target.special_tokens))
    session = Session(target, drafter, budget)
    *_, done = session.generate(prompt, sampling, Limits(most))
    assert isinstance(done, Done)
    statistics = done.statistics
    return {
        "ids": list(statistics.token_ids),
        "tokens": max(len(statistics.token_ids) - 1, 0),  # the first one belongs to prefill
        "steps": statistics.steps,
        "rows": statistics.drafted,
        "seconds": statistics.decode_seconds,
        "depths": list(statistics.acceptance_by_depth),
        "bytes": statistics.memory.target + statistics.memory.drafter + statistics.memory.cache,
    }


def always(drafter: Drafter) -> MakeDrafter:
    """Return a function that gives every reply the same drafter, with all that it learned from earlier replies."""
    return lambda pool: drafter


def plain(pool: PhrasePool) -> Drafter:
    """Return a drafter that drafts nothing."""
    return Autoregressive()


def phrases(pool: PhrasePool) -> Drafter:
    """Return a drafter that drafts only phrases, which are token sequences that occurred before."""
    return WithPhrases(Autoregressive(), pool)


# -- trainings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A way to train a drafter: its kind, options and flags. If `distilled`, it is trained on the target's answers."""

    kind: str
    options: Mapping[str, object] = field(default_factory=dict)
    flags: Sequence[str] = ()
    distilled: bool = False

    def directory(self, seed: int, options: argparse.Namespace) -> Path:
        """Return the directory of a training. Tables with the same training share it."""
        words = [self.kind, *(f"{name}={value}" for name, value in sorted(self.together.items())), *self.flags]
        words += ["distilled"] * self.distilled
        return Path(options.out / file_name("_".join([*words, f"seed-{seed}"])))

    @property
    def together(self) -> dict[str, object]:
        """The options of this variant, with those that all trainings of its kind have."""
        return {**ALWAYS.get(self.kind, {}), **self.options}


def trained(variant: Variant, seed: int, bench: Bench) -> dict[str, Any]:
    """Train a variant with a seed, and return facts about the result. A stopped training continues.

    Raises OutOfTime if it is not finished and nothing more may be run, and LocalspecError if it was refused or failed.
    """
    options, directory = bench.options, variant.directory(seed, bench.options)

    def train_and_read() -> dict[str, Any]:
        data = [options.distilled] if variant.distilled else options.data
        if not all(data) or not data:
            raise OutOfTime
        if not finished(directory):
            _train(variant, seed, bench, directory, data)
        card = drafter_cards.read_drafter(directory)
        levels = [level[0] for level in card.about["accuracy_by_depth"]]
        return {"parameters": card.parameters, "right": levels, "perplexity": card.about["trained"].get("perplexity")}

    facts = bench.results.of(f"trained | {directory.name}", train_and_read)
    if facts is None:
        raise OutOfTime
    return dict(facts)


def finished(directory: Path) -> bool:
    """Return whether a training is complete, even if this program was killed before it saved the result."""
    return (directory / "drafter" / CARD).exists() and checkpoint.state(directory / "checkpoint") is None


def _train(variant: Variant, seed: int, bench: Bench, directory: Path, data: Sequence[Path]) -> None:
    """Run `localspec train` until the training is complete. Raises the errors of `trained`."""
    options = bench.options
    with Lock(directory) as lock:  # a training may continue after this program was killed
        lock.take()
    command = ["train", variant.kind, "-m", options.model, "-o", str(directory), "--steps", str(options.steps)]
    command += ["--seed", str(seed), "--lr", str(RATES[variant.kind]), "--batch", "1024", "--length", "512"]
    command += [word for name, value in variant.together.items() for word in ("-O", f"{name}={value}")]
    command += [*variant.flags, "--data", *map(str, data)]
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as training:
        try:
            _, errors = training.communicate(timeout=bench.results.seconds)
        except subprocess.TimeoutExpired:
            training.send_signal(signal.SIGINT)
            training.communicate()  # the training saves its state
            raise OutOfTime from None
    if training.returncode in (INTERRUPTED, -signal.SIGINT):
        raise OutOfTime
    if training.returncode:
        lines = errors.strip().splitlines() if training.returncode > 0 else ()  # a kill gives no reason
        raise LocalspecError(lines[-1].removeprefix("localspec: ") if lines else f"it ended with {training.returncode}")


def compared(variants: Mapping[str, Variant], bench: Bench) -> str:
    """Train each variant with each seed, and return a table that compares their acceptance."""
    options = bench.options
    if options.smoke:
        variants = dict([*variants.items()][:2])
    lines, first, notes = [], list[list[Reply]](), []
    heads = ["", "tokens a step", "against the first", *(f"right at depth {d}" for d in range(1, DEPTHS + 1))]
    for name, variant in variants.items():
        cards, replies = [], []
        for seed in options.seeds:
            try:
                card = trained(variant, seed, bench)
            except OutOfTime:
                break
            except LocalspecError as failed:
                notes.append(f"{name}: {failed}")
                break
            cards.append(card)
            replies.append(_measured(variant.directory(seed, options), bench))
        if not cards or not all(replies):
            lines.append([name, NOT_RUN, *[""] * len(heads)])
            continue
        first = first or replies
        rights = [fmean(c["right"][d] for c in cards) if len(cards[0]["right"]) > d else None for d in range(DEPTHS)]
        perplexities = [card["perplexity"] for card in cards]
        changed = (
            f"{fmean(p[0] for p in perplexities):.2f} → {fmean(p[1] for p in perplexities):.2f}"
            if all(perplexities)
            else ""
        )
        ahead = "" if replies is first else with_interval(difference(*common(replies, first)))
        line = [name, with_interval(length(common(replies)[0])), ahead, *map(figure, rights)]
        lines.append([*line, f"{cards[0]['parameters']:,}", changed])
    if not first:
        return "\n\n".join([f"Not run: {'; '.join(variants)}.", *notes])
    return "\n\n".join([table([*heads, "weights", "perplexity"], lines), *notes])


def _measured(directory: Path, bench: Bench) -> list[Reply]:
    """Return the replies with a trained drafter. If the training also changed the target, the changed one answers."""
    changed = directory / "target"
    variant_bench = replace(bench, changed=changed) if changed.exists() else bench
    loaded: list[Drafter] = []

    def answer(prompt: BenchPrompt, _: str) -> Reply:
        if not loaded:
            loaded.append(load_drafter(drafter_cards.read_drafter(directory), variant_bench.engine.target))
        return variant_bench.reply(prompt, always(loaded[0]), Budget(NODES))

    return variant_bench.rows(f"trained {directory.name}", [""], answer)[""]


def common(*rows: Sequence[Sequence[Reply]]) -> list[list[Sequence[Reply]]]:
    """Return the lists of replies cut to equal length: the number of prompts that every row and seed has answered."""
    count = min(len(replies) for row in rows for replies in row)
    return [[replies[:count] for replies in row] for row in rows]
