"""What the scripts that try the papers' claims have in common: what is asked for and kept, replies, trainings."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from figures import DRAWS, difference, figure, length, table, told

from localspec import config
from localspec.bench import prompts
from localspec.bench.turns import in_turns
from localspec.choosing.choose import choose
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.drafters.saved import WEIGHTS, load_drafter
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Done
from localspec.models import drafter_cards, registry
from localspec.repetition import until_it_goes_round
from localspec.store.store import Store
from localspec.training.examples import read_examples
from localspec.weights.checkpoint import revision

GREEDY = Sampling()
NODES, DEPTHS = 16, 4
RATES = {"medusa": 5e-3, "s3d": 3e-3, "parallelspec": 3e-3, "semi": 3e-3}  # of those that were tried, the best
ALWAYS: dict[str, dict[str, object]] = {"parallelspec": {"drop": 0.5}}  # else its many rows take most of the time
DECISIVE = ("model", "limit", "max_tokens", "seeds", "steps", "smoke", "draft")  # of what was asked for
SMOKE = {"steps": 2, "limit": 3, "max_tokens": 12, "seeds": [0]}

MakeDrafter = Callable[[PhrasePool], Drafter]  # from an empty pool


# -- what is asked for, and what is kept -------------------------------------------------------------------------------


def parser(about: str, trains: bool = True) -> argparse.ArgumentParser:
    """Return the flags that all of them have; those of trainings too where a script `trains`."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-m", "--model", default="demo")
    made.add_argument("--prompts", type=Path, required=True, help="a directory of .jsonl files, or one file")
    made.add_argument("--limit", type=positive, default=100, help="prompts")
    made.add_argument(
        "-n", "--max-tokens", type=positive, default=64, help="of a reply, which ends where it goes round"
    )
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--only", nargs="+", default=[""], help="parts whose titles begin so")
    made.add_argument("--work", type=Path, required=True, help="where trainings and replies are kept; outside git")
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--smoke", action="store_true", help="a few tokens of a few prompts: does all of it run?")
    if trains:
        made.add_argument("--data", type=Path, nargs="+", required=True, help="as `localspec train` reads it")
        made.add_argument("--distilled", type=Path, help="answers by `localspec distill`, for what learns from them")
        made.add_argument("--steps", type=positive, default=500, help="of 1,024 tokens, of each training")
    return made


def positive(text: str) -> int:
    """Return a number of something, of which there must be some."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not possible; give a whole number above 0")
    return int(text)


def begun(made: argparse.ArgumentParser, given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what was asked for. What was kept with other settings is not mixed with it: such a directory is refused.

    So are files that cannot be read, before anything is computed.
    """
    asked = made.parse_args(given)
    if asked.smoke:
        for name, value in SMOKE.items():
            if hasattr(asked, name):
                setattr(asked, name, value)
    decisive: dict[str, Any] = {name: vars(asked).get(name) for name in DECISIVE}
    try:
        decisive |= {name: content(vars(asked).get(name)) for name in ("data", "distilled", "prompts")}
        questions(asked.prompts, 1)
        read_examples(vars(asked).get("data") or ())  # what trains reads them, and this may be hours later
        decisive |= weights(registry.resolve(asked.model))
        if decisive["draft"]:
            registry.resolve(decisive["draft"])
    except LocalspecError as mistake:
        made.error(str(mistake))
    same_settings(made, asked.work, decisive)
    return asked


def same_settings(made: argparse.ArgumentParser, work: Path, decisive: Mapping[str, Any]) -> None:
    """Refuses a directory whose results were made with something else of what decides them, and says with what."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        before = kept(work / "settings.json", lambda: decisive)
        if not isinstance(before, dict):
            raise ValueError(before)
    except OSError as error:
        made.error(f"--work {work} cannot be used ({error.strerror}); name another directory.")
    except ValueError:
        made.error(f"{work / 'settings.json'} is damaged; give another --work, or delete that file.")
    for name in dict.fromkeys((*decisive, *before)):
        was, now = before.get(name), decisive.get(name)
        if was != now:
            made.error(
                f"{work} holds results of other settings: {name} was {was or 'none'}, and now it is {now or 'none'}; "
                "give another --work, or the same settings."
            )


def weights(card: registry.TargetCard) -> dict[str, Any]:
    """Return what identifies a model and its trained drafters, because another of the same name may have been made."""
    files = [one.path / WEIGHTS for one in drafter_cards.trained_drafters(card)]
    return {"weights": revision(card.path), "drafters": content([file for file in files if file.is_file()])}


def content(places: Path | Sequence[Path] | None) -> list[str]:
    """Return the names of files, or of those in a directory, each with a digest of its content. Raises UsageMistake."""
    listed = [] if places is None else [places] if isinstance(places, Path) else places
    found = []
    for place in listed:
        for file in sorted(place.glob("*.jsonl")) if place.is_dir() else [place]:
            try:
                with file.open("rb") as opened:
                    found.append(f"{file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()[:12]}")
            except OSError as error:
                raise UsageMistake(f"{file} cannot be read ({error.strerror}); name files that can.") from None
    return found


def kept(file: Path, make: Callable[[], Any]) -> Any:
    """Return what was kept in a file; else what `make` gives, which is kept whole or not at all."""
    if not file.exists():
        made = make()
        half = file.with_suffix(".part")
        half.write_text(json.dumps(made), "utf-8")
        os.replace(half, file)
    return json.loads(file.read_text("utf-8"))


def named(title: str) -> str:
    """Return a title as the name of a file."""
    return "".join(letter if letter.isalnum() or letter in "+.-" else "-" for letter in title)


def parts(asked: argparse.Namespace, head: str, made: Mapping[str, Callable[[], str]]) -> None:
    """Write the page part by part, each below its title."""
    done = [head]
    for title, make in made.items():
        if title.startswith(tuple(asked.only)):
            print(title, file=sys.stderr, flush=True)
            done.append(f"## {title}\n\n{make()}")
            asked.out.write_text("\n\n".join(done) + "\n", "utf-8")


# -- replies -----------------------------------------------------------------------------------------------------------


def questions(place: Path, count: int | None) -> list[prompts.BenchPrompt]:
    """So many prompts, or all, one of each file in turn, categories in turn within a file."""
    files = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    asked = [
        replace(prompt, category=file.stem) for file in files for prompt in prompts.spread(prompts.read(file), None)
    ]
    if not asked:
        raise UsageMistake(f"{place} holds no .jsonl files of prompts; name another.")
    return prompts.spread(asked, count)


@dataclass
class Bench:
    """A loaded model and the prompts that it answers."""

    engine: Engine
    asked: Sequence[prompts.BenchPrompt]
    max_tokens: int
    _limits: dict[tuple[Sampling, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, asked: argparse.Namespace, at_the_end: ExitStack, model: str = "", **flags: Any) -> "Bench":
        """Open the requested model, or `model`; `flags` are its own settings. Its measurements are saved."""
        card = registry.resolve(model or asked.model)
        store = at_the_end.enter_context(Store.open(asked.work / "localspec.db", print))
        choice = choose(card, config.load(flags={"drafter": "phrases", "temperature": 0.0, **flags}))
        engine = Engine(choice, store=store, phrases="off", measured=True)
        return cls(engine, [], asked.max_tokens).on(questions(asked.prompts, asked.limit))

    def on(self, asked: Sequence[prompts.BenchPrompt]) -> "Bench":
        """Return the same model with other prompts, those of them that leave room for a reply."""
        target, most = self.engine.target, self.max_tokens
        room = [one for one in asked if len(target.encode(prompts.message(one.text))) + most <= target.context]
        return Bench(self.engine, room, most)

    def replies(
        self, rows: Mapping[str, tuple[MakeDrafter, int]], sampling: Sampling = GREEDY
    ) -> dict[str, list[dict[str, Any]]]:
        """Of each row, a drafter and its nodes, the replies to all prompts, one row after the other at each prompt.

        The pools that drafters are made from are empty at the beginning of each reply.
        """
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
        for turn, name in in_turns(list(rows), len(self.asked)):
            make, nodes = rows[name]
            found[name].append(self.reply(turn, make, Budget(nodes), sampling))
        return found

    def reply(
        self, number: int, make: MakeDrafter, budget: Budget, sampling: Sampling = GREEDY, whole: bool = False
    ) -> dict[str, Any]:
        """One reply, as long as its plain text does not go round; the `whole` reply for rules that give other texts."""
        prompt = self.engine.target.encode(prompts.message(self.asked[number].text))
        most = self.max_tokens if whole else self._most(prompt, number, sampling)
        return _said(self.engine.target, make, budget, prompt, sampling, most)

    def _most(self, prompt: Sequence[int], number: int, sampling: Sampling) -> int:
        if (key := (sampling, number)) not in self._limits:
            plain = _said(self.engine.target, phrases, Budget(NODES), prompt, sampling, self.max_tokens)
            self._limits[key] = max(until_it_goes_round(plain["ids"]), 2)
        return self._limits[key]


def _said(
    target: Any, make: MakeDrafter, budget: Budget, prompt: Sequence[int], sampling: Sampling, most: int
) -> dict[str, Any]:
    session = Session(target, make(PhrasePool(target.special_tokens)), budget)
    *_, done = session.generate(prompt, sampling, Limits(most))
    assert isinstance(done, Done)
    said = done.statistics
    return {
        "ids": list(said.token_ids),
        "tokens": max(len(said.token_ids) - 1, 0),  # the first one belongs to prefill
        "steps": said.steps,
        "rows": said.drafted,
        "seconds": said.decode_seconds,
        "depths": list(said.acceptance_by_depth),
        "sources": dict(said.sources),
        "bytes": said.memory.target + said.memory.drafter + said.memory.cache,
    }


def always(drafter: Drafter) -> MakeDrafter:
    """Return the same one for each reply: it knows what it learned in those before."""
    return lambda pool: drafter


def plain(pool: PhrasePool) -> Drafter:
    """No drafts."""
    return Autoregressive()


def phrases(pool: PhrasePool) -> Drafter:
    """Phrases alone."""
    return WithPhrases(Autoregressive(), pool)


# -- trainings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """One way to train a drafter: its kind, options, flags of `train`; from the target's own answers, if `distilled`."""

    kind: str
    options: Mapping[str, object] = field(default_factory=dict)
    flags: Sequence[str] = ()
    distilled: bool = False


def trained(variant: Variant, seed: int, asked: argparse.Namespace) -> Path:
    """Return the directory of a finished training, which all tables share. A training that was stopped is continued."""
    together = {**ALWAYS.get(variant.kind, {}), **variant.options}
    words = [variant.kind, *(f"{name}={value}" for name, value in sorted(together.items())), *variant.flags]
    words += ["distilled"] * variant.distilled
    directory: Path = asked.work / named("_".join([*words, f"seed-{seed}"]))
    if not (directory / "drafter" / "drafter.json").exists():
        data = [asked.distilled] if variant.distilled else asked.data
        chosen = [word for name, value in together.items() for word in ("-O", f"{name}={value}")]
        command = ["train", variant.kind, "-m", asked.model, "-o", str(directory), "--steps", str(asked.steps)]
        command += ["--seed", str(seed), "--lr", str(RATES[variant.kind]), "--batch", "1024", "--length", "512"]
        command += [*chosen, *variant.flags, "--data", *map(str, data)]
        try:
            subprocess.run([sys.executable, "-m", "localspec", *command], check=True, stdout=subprocess.DEVNULL)
        except subprocess.CalledProcessError as failed:  # it said why
            sys.exit(failed.returncode)
    return directory


def compared(variants: Mapping[str, Variant], asked: argparse.Namespace, at_the_end: ExitStack) -> str:
    """Trains each variant with each seed, and tells them apart: the table of one question."""
    possible = {name: variant for name, variant in variants.items() if asked.distilled or not variant.distilled}
    if asked.smoke:
        possible = dict([*possible.items()][:2])
    bench: list[Bench] = []  # opened once it is needed

    def measured(directory: Path) -> list[dict[str, Any]]:
        own = (directory / "target").exists()  # which the training changed
        if own or not bench:
            made = Bench.of(asked, at_the_end, str(directory) if own else "")
        if not own and not bench:
            bench.append(made)
        used = made if own else bench[0]
        drafter = load_drafter(drafter_cards.read_drafter(directory), used.engine.target)
        return used.replies({"": (always(drafter), NODES)})[""]

    found: dict[str, list[list[dict[str, Any]]]] = {}
    cards: dict[str, list[drafter_cards.DrafterCard]] = {}
    for name, variant in possible.items():
        for seed in asked.seeds:
            directory = trained(variant, seed, asked)
            cards.setdefault(name, []).append(drafter_cards.read_drafter(directory))
            replies = kept(directory / "replies.json", partial(measured, directory))
            found.setdefault(name, []).append(replies)
    heads = ["", "tokens a step", "against the first", *(f"right at depth {d}" for d in range(1, DEPTHS + 1))]
    lines, (first, *_) = [], found.values()
    for name, replies in found.items():
        levels = [[level[0] for level in card.about["accuracy_by_depth"]] for card in cards[name]]
        rights = [fmean(known[d] for known in levels) if len(levels[0]) > d else None for d in range(DEPTHS)]
        before = [card.about["trained"].get("perplexity") for card in cards[name]]
        changed = f"{fmean(p[0] for p in before):.2f} → {fmean(p[1] for p in before):.2f}" if all(before) else ""
        line = [name, told(length(replies)), "" if replies is first else told(difference(replies, first))]
        lines.append([*line, *map(figure, rights), f"{cards[name][0].parameters:,}", changed])
    return table([*heads, "weights", "perplexity"], lines)


def about(asked: argparse.Namespace, script: str, more: str = "") -> str:
    """How a page was made."""
    steps = f"{asked.steps} steps of 1,024 tokens a training, " if "steps" in asked else ""
    return (
        f"Made by `research/{script}`: {steps}{asked.limit} prompts, replies of at most {asked.max_tokens} tokens, which "
        f"end where the text goes round; trees of {NODES} nodes unless something else is said; seeds "
        f"{' '.join(map(str, asked.seeds))}. In brackets are the bounds of 95 % of {DRAWS} bootstrap samples of prompts and "
        f"seeds; differences are taken prompt by prompt.{more}"
    )
