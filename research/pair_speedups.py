"""Measure the speedups of `auto` and of all available drafters on a published model: published-speedups.md.

    python research/pair_speedups.py -m qwen2.5-coder-1.5b --prompts data/eval --work build/pair \
        --llama-cpp 1.5B.gguf 0.5B.gguf --seconds 85 --out docs/figures/published-speedups.md

Prompts of four kinds (code, chat, editing, JSON) are made from the files in `--prompts`. All variants answer a prompt
side by side, in turns of a twentieth of a second, each from a new engine that knows no phrases; llama.cpp answers after
them. If a text differs from plain decoding's, the program ends. Replies are saved in `--work`/replies.jsonl, so a
stopped run continues with the next prompt. Several models can share this folder. A reply that other programs or the
virtual machine's host disturbed is written again, three times at most.

`auto` has a separate database with the measurements of the model and of its earlier replies. `auto, first reply`
has an empty one each time, as after an import. Each reply of `auto` also records what `auto` would choose if memory
were limited to `--scarce` times the target's size. The page is made from all lines in the folder.
"""

import argparse
import json
import sqlite3
import time
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import checkout  # noqa: F401
from experiment import positive
from llama_cpp_model import Gguf
from llama_speculation import DraftModel, Propose, look_up, nothing, reply
from pair_page import AUTO, FIRST, LLAMA_CPP, page
from side_by_side import DISTURBED, LEAST, PLAIN, OtherPrograms, side_by_side

from localspec import Engine, Limits, Sampling, Statistics, config
from localspec.bench.prompts import message
from localspec.bench.race import on_its_own_clock
from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.config import Settings
from localspec.errors import DoesNotFit, LocalspecError
from localspec.events import Event, Reporter
from localspec.machine import compiled
from localspec.machine.hardware import IdleCores, physical_cores
from localspec.machine.machine import Machine, this_machine
from localspec.models import registry
from localspec.models.drafter_cards import trained_drafters
from localspec.models.drafter_kinds import TABLE, WEIGHTS, WITH_PHRASES
from localspec.repetition import until_it_goes_round
from localspec.store.store import Store

TRIES = 3
LONGEST = 320  # tokens of a prompt
SEEDED = 0.7
SEED = 49
RESERVED = 10  # prompts of a kind that no other kind uses, so that a smaller number takes the first of them
WARM_UP = "Say hello."
# Tokens of llama.cpp's draft, least probability of each; the last are its defaults.
AHEAD = {"3, any": (3, 0.0), "8, 0.6": (8, 0.6), "16, 0.75": (16, 0.75)}
LOOK_UP = 10
SLOW, SLOWEST = "layers", 70  # a drafter whose measuring takes long, and for how many seconds it may
Entry = dict[str, Any]  # a line of a file of prompts


# -- prompts -----------------------------------------------------------------------------------------------------------


def _question(entry: Entry) -> str:
    return str(entry["turns"][0])


def _open(entry: Entry) -> str:
    wanted = ("writing", "roleplay", "humanities", "stem", "reasoning")
    return _question(entry) if entry["category"] in wanted else ""


def _coding(entry: Entry) -> str:
    return _question(entry) if entry["category"] == "coding" else ""


def _edited_code(entry: Entry) -> str:
    code = str(entry["reference"]["code"]).replace("\r\n", "\n").strip()
    return f"Rename the function to `solve`, add type hints, and return all of it:\n\n```python\n{code}\n```"


def _passage(entry: Entry) -> str:
    """Return the first sentences of the text that the question is about."""
    text = _question(entry).split("\n\nQuestion:")[0][:420]
    return text[: text.rfind(". ") + 1]


def _edited_text(entry: Entry) -> str:
    return f"Correct the mistakes in this text, change nothing else, and return all of it:\n\n{_passage(entry)}"


def _facts(entry: Entry) -> str:
    return f"Give all names, places, dates and numbers in this text as a JSON object:\n\n{_passage(entry)}"


def _problem(entry: Entry) -> str:
    return f"Write what is given in this problem as a JSON object, without solving it:\n\n{_question(entry)}"


def _json(entry: Entry) -> str:
    return _question(entry) if "json" in _question(entry).lower() else ""


KINDS: dict[str, dict[str, Callable[[Entry], str]]] = {
    "code": {"humaneval": _question, "mbpp_test": _question, "spec_bench": _coding},
    "chat": {"oasst_en100": _question, "spec_bench": _open},
    "editing": {"mbpp_test": _edited_code, "xquad_en": _edited_text},
    "JSON": {"xquad_en": _facts, "gsm8k_test": _problem, "ifeval": _json},
}  # for each kind of text the files, and how a line becomes a prompt; each line serves only one kind


def prompts_of(folder: Path, skip: int, limit: int, fits: Callable[[str], bool]) -> dict[str, list[tuple[str, str]]]:
    """Return for each kind `limit` prompts after the first `skip`, as (name, text). The files of a kind take turns."""
    by_kind: dict[str, list[tuple[str, str]]] = {}
    used: set[str] = set()
    for kind, files in KINDS.items():
        of_files = [_of_file(folder / f"{file}.jsonl", make, used) for file, make in files.items()]
        every = (pair for turn in zip_longest(*of_files) for pair in turn if pair is not None and fits(pair[1]))
        by_kind[kind] = list(islice(every, max(skip + limit, RESERVED)))
        used |= {name for name, _ in by_kind[kind]}
        by_kind[kind] = by_kind[kind][skip : skip + limit]
    return by_kind


def _of_file(file: Path, make: Callable[[Entry], str], used: Container[str]) -> Iterator[tuple[str, str]]:
    for line in file.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if str(entry["id"]) not in used and (text := make(entry)):
            yield str(entry["id"]), text


# -- what is kept ------------------------------------------------------------------------------------------------------


def stolen() -> int:
    """Return the CPU ticks that the virtual machine's host has taken so far; 0 if the system does not say."""
    stat = Path("/proc/stat")
    return int(stat.read_text("utf-8").split("\n")[0].split()[8]) if stat.is_file() else 0


class SavedReplies:
    """A file with one line for each saved reply. An incomplete last line is removed."""

    def __init__(self, file: Path) -> None:
        self._file, self.lines = file, list[Entry]()
        whole = file.read_bytes() if file.exists() else b""
        for line in whole.split(b"\n")[:-1]:
            self.lines.append(json.loads(line))
        file.write_bytes(whole[: whole.rfind(b"\n") + 1])

    def add(self, line: Entry) -> None:
        """Save one reply."""
        with self._file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(line) + "\n")
        self.lines.append(line)

    def of(self, **key: object) -> list[Entry]:
        """Return the saved replies in which all these fields have these values."""
        return [line for line in self.lines if all(line[name] == value for name, value in key.items())]


# -- who answers -------------------------------------------------------------------------------------------------------


class TimeUp(Exception):
    """An error: the time of `--seconds` is over."""


class AllCores(IdleCores):
    """A replacement for the count of idle cores: it returns all cores, even if other programs use some."""

    def __call__(self) -> int:
        return physical_cores()


class Ours:
    """A set of engines of localspec for one model, with all drafters."""

    def __init__(
        self,
        card: registry.TargetCard,
        work: Path,
        scarce: float,
        wanted: Container[str],
        until: float,
        stack: ExitStack,
    ) -> None:
        """Make the missing measurements for the drafters in `wanted`. Raises TimeUp if too little time is left."""
        self._card, self._work, self._stack = card, work, stack
        self._settings = config.load(flags={"temperature": 0.0})
        known = work / "measured.db"
        self._named = self._open(known)
        self._plain = Engine(self._chosen(PLAIN), store=self._named, phrases="off")
        self._plain._idle_cores = AllCores()
        self._bases, self._untimed = list[Engine](), list[Engine]()
        self._wanted = [name for name in names(card) if name == PLAIN or not wanted or name in wanted]
        if not (file := work / "auto.db").exists():
            for name in sorted(self._wanted, key=lambda name: name.startswith(SLOW)):
                if choice := self._possible(name):
                    if name.startswith(SLOW) and time.monotonic() > until - SLOWEST:
                        raise TimeUp
                    engine = Engine(
                        choice, store=self._named, phrases="off", share_with=self._base(choice, self._named)
                    )
                    for count, _ in enumerate(engine.measure(), start=1):
                        print(f"measuring {name}: {count}", end="\r", flush=True)
            copy(known, file)
        self._auto = self._open(file)
        self._scarce = limited(self._plain.choice.loaded_bytes, scarce)

    @property
    def target(self) -> Any:
        return self._plain.target

    def names(self) -> list[str]:
        """Return the wanted drafters that this model has."""
        return [name for name in self._wanted if self._possible(name)]

    def answers(self, wanted: Sequence[str], text: str, sampling: Sampling, most: int) -> dict[str, Entry]:
        """Let the variants answer a prompt side by side, each with a new engine. Return the figures of their replies."""
        with ExitStack() as stack:
            about, replies = dict[str, Entry](), dict[str, Generator[Event, None, None]]()
            for name in wanted:
                choice, engine = self._new(name, stack)
                about[name] = {"drafter": choice.drafter, "nodes": choice.nodes, "precision": choice.precision}
                if name == AUTO and (scarce := self._under_limit()):
                    about[name]["scarce"] = scarce
                replies[name] = on_its_own_clock(engine.session, engine.chat(message(text), sampling, Limits(most)))
            return {name: figures(statistics) | about[name] for name, statistics in side_by_side(replies).items()}

    def _new(self, name: str, stack: ExitStack) -> tuple[Choice, Engine]:
        store = {AUTO: self._auto}.get(name, self._named)
        if name == FIRST:
            folder = Path(stack.enter_context(TemporaryDirectory(dir=self._work)))
            store = self._open(folder / "new.db", stack)
        choice = self._chosen(name, store)
        base = self._base(choice, None if name == FIRST else self._named)
        return choice, Engine(choice, store=store, phrases="off", share_with=base)

    def _under_limit(self) -> Entry:
        """Return what `auto` would choose if memory were limited, and why; {} if the model does not fit."""
        try:
            choice = self._chosen(AUTO, self._auto, self._scarce)
        except DoesNotFit:
            return {}
        return {"drafter": choice.drafter, "m": choice.cost_effectiveness, "rule": choice.rule, "why": choice.reason}

    def _open(self, file: Path, stack: ExitStack | None = None) -> Store:
        return (stack or self._stack).enter_context(Store.open(file, print))

    def _chosen(self, name: str, store: Store | None = None, machine: Machine | None = None) -> Choice:
        known = Measurements(MeasurementCache(store, Reporter()), False, None) if store else None
        settings: Settings = replace(self._settings, drafter=AUTO if name == FIRST else name)
        return choose(self._card, settings, machine, known)

    def _possible(self, name: str) -> Choice | None:
        try:
            return self._chosen(name, self._named)
        except LocalspecError as error:
            print(f"{name}: {error}", flush=True)
            return None

    def _base(self, choice: Choice, store: Store | None) -> Engine:
        """Return an engine that shares its loaded models with others. Without a store it has no measurements."""
        if choice.draft is None:
            return self._plain
        loaded = self._bases if store else self._untimed
        base = next((engine for engine in loaded if engine.choice.draft == choice.draft), None)
        if base is None:
            base = Engine(choice, store=store, phrases="off", share_with=self._plain)
            loaded.append(base)
        return base


def names(card: registry.TargetCard) -> list[str]:
    """Return plain decoding, `auto`, and every drafter that is available for `card`, without and with phrases."""
    trained = {drafter.kind for drafter in trained_drafters(card)}
    kinds = [kind for kind in TABLE if (kind.takes not in WEIGHTS or kind.name in trained) and kind.name != PLAIN]
    lengthened = [f"{kind.name}{WITH_PHRASES}" for kind in kinds if not kind.has_phrases]
    return [PLAIN, AUTO, FIRST, *(kind.name for kind in kinds), *lengthened]


def limited(target: int, times: float) -> Machine:
    """Return this machine with so little memory that a model may take only `times` times the target's bytes."""
    machine = this_machine()
    cpu = machine.device("cpu")
    assert cpu is not None
    kept_free = cpu.free - cpu.usable
    return replace(machine, devices=(replace(cpu, free=round(times * target) + kept_free),))


def copy(path: Path, target: Path) -> None:
    """Copy a database, even if it is open."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as into:
        source.backup(into)


def figures(statistics: Statistics) -> Entry:
    """Return the figures of a reply, in the form in which they are saved."""
    memory = statistics.memory
    return {
        "ids": list(statistics.token_ids), "tokens": max(len(statistics.token_ids) - 1, 0), "steps": statistics.steps,
        "seconds": statistics.decode_seconds, "draft": statistics.draft_seconds, "verify": statistics.verify_seconds,
        "prompt_tokens": statistics.prompt_tokens, "first": statistics.first_token_seconds,
        "bytes": memory.target + memory.drafter + memory.cache, "off": statistics.off_reason,
    }  # fmt: skip


class Peer:
    """A pair of models in llama.cpp, from the same files. It decodes plainly, with look-up, or with the draft model."""

    def __init__(self, files: Sequence[Path], engines: Ours, stack: ExitStack) -> None:
        self._target, vocabulary = engines.target, engines.target.vocab_size
        target, draft = (stack.enter_context(closing(Gguf(file, vocabulary, 1024))) for file in files)
        for model in (target, draft):
            model.set_threads(physical_cores())
        self._gguf = target
        self.ways: dict[str, Callable[[], Propose]] = {f"{LLAMA_CPP} plain": lambda: nothing}
        self.ways[f"{LLAMA_CPP} look-up {LOOK_UP}"] = partial(look_up, LOOK_UP)
        for name, (most, sure) in AHEAD.items():
            self.ways[f"{LLAMA_CPP} draft {name}"] = partial(DraftModel, draft, most, sure)

    def answer(self, name: str, text: str, most: int) -> Entry:
        """Return the figures of one reply."""
        prompt = self._target.encode(message(text))
        result = reply(self._gguf, prompt, most, self._target.stop_tokens, self.ways[name]())
        return {
            "ids": result.tokens,
            "tokens": max(len(result.tokens) - 1, 0),
            "steps": result.steps,
            "seconds": result.seconds,
        }


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace, saved: SavedReplies, stack: ExitStack) -> None:
    """Write the missing replies. Raises TimeUp if the time was too short for all of them."""
    until, card = time.monotonic() + options.seconds, registry.resolve(options.model)
    work = options.work / card.name
    work.mkdir(exist_ok=True)
    wanted = [*options.greedy, *options.seeded] if options.greedy else []
    engines = Ours(card, work, options.scarce, wanted, until, stack)
    peer = Peer(options.llama_cpp, engines, stack) if options.llama_cpp else None
    encode = engines.target.encode
    asked_prompts = prompts_of(
        options.prompts, options.skip, options.limit, lambda text: len(encode(message(text))) <= LONGEST
    )
    longest, warm = 0.0, set[str]()
    for temperature, chosen in ((0.0, options.greedy), (SEEDED, options.seeded)):
        possible = [name for name in engines.names() if name != PLAIN and (not chosen or name in chosen)]
        theirs = [name for name in (peer.ways if peer and not temperature else ()) if not chosen or name in chosen]
        for number, kind in ((number, kind) for number in range(options.limit) for kind in KINDS):
            if number >= len(asked_prompts[kind]):
                continue
            name_of_prompt, text = asked_prompts[kind][number]
            sampling = Sampling(temperature=temperature, seed=SEED + number) if temperature else Sampling()
            key = {"model": card.name, "kind": kind, "prompt": name_of_prompt, "temperature": temperature}
            while missing := still_wanted([*possible, *theirs], before := saved.of(**key)):
                began = time.monotonic()
                if began + longest > until:
                    raise TimeUp
                key_of_turn = key | {"turn": 1 + max((line["turn"] for line in before), default=0)}
                mine = [PLAIN, *(name for name in missing if name in possible)]
                if new := set(missing) - warm:
                    others = [name for name in mine if name != AUTO]  # `auto` would learn
                    engines.answers(others, WARM_UP, Sampling(), 6)
                    if peer:
                        for name in new & set(theirs):
                            peer.answer(name, WARM_UP, 6)
                    warm |= new
                    began = time.monotonic()
                shift = number % len(mine)
                entries = trimmed_replies(
                    lambda most: engines.answers(mine[shift:] + mine[:shift], text, sampling, most), options
                )
                for line in entries:
                    check(entries, line)
                    saved.add(key_of_turn | line)
                most = max(len(line["ids"]) for line in entries)
                for name in missing:
                    if peer and name in theirs:
                        saved.add(key_of_turn | noted(lambda: {name: peer.answer(name, text, most)})[0])
                longest = max(longest, time.monotonic() - began)
                paces = {line["variant"]: f"{line['tokens'] / max(line['seconds'], 1e-9):.1f}" for line in entries}
                print(f"{kind} {number} {temperature} others {entries[0]['others']:.2f} {paces}", flush=True)


def still_wanted(names: Sequence[str], before: Sequence[Entry]) -> list[str]:
    """Return the variants that have no undisturbed reply yet and were tried less than TRIES times."""
    tries = {name: [line for line in before if line["variant"] == name] for name in names}
    return [
        name for name, some in tries.items()
        if len(some) < TRIES and all(line["others"] > DISTURBED for line in some)
    ]  # fmt: skip


def trimmed_replies(answers: Callable[[int], dict[str, Entry]], options: argparse.Namespace) -> list[Entry]:
    """Return replies that end where the plain text begins to repeat itself."""
    entries = noted(lambda: answers(options.max_tokens))
    plain = next(line for line in entries if line["variant"] == PLAIN)["ids"]
    most = until_it_goes_round(plain)
    return entries if most == len(plain) or most < LEAST else noted(lambda: answers(most))


def noted(answers: Callable[[], dict[str, Entry]]) -> list[Entry]:
    """Return the replies, with the CPU time that other programs and the host took in the meantime."""
    others, before = OtherPrograms(), stolen()
    answered = answers()
    more = {"others": others(), "stolen": stolen() - before, "taken": time.time()}
    return [{"variant": name} | line | more for name, line in answered.items()]


def check(entries: Sequence[Entry], line: Entry) -> None:
    """Exit if the text of a reply differs from that of plain decoding."""
    plain = next(entry for entry in entries if entry["variant"] == PLAIN)
    if line["ids"] != plain["ids"]:
        raise SystemExit(f"The text of {line['variant']} differs from that of plain decoding: {line} {plain}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="a model that is here; without one the page is made of what is kept")
    parser.add_argument("--prompts", type=Path, help="a directory with the files of prompts")
    parser.add_argument("--limit", type=positive, default=10, help="prompts of each kind")
    parser.add_argument("--skip", type=int, default=0, help="prompts of each kind to leave out, for a trial run")
    parser.add_argument(
        "-n", "--max-tokens", type=positive, default=80, help="of a reply, which ends where it goes round"
    )
    parser.add_argument("--greedy", nargs="+", help="some variants, instead of all")
    parser.add_argument("--seeded", nargs="+", default=[AUTO, "phrases", "draft_model+phrases"], help=f"at {SEEDED}")
    parser.add_argument("--llama-cpp", type=Path, nargs=2, metavar=("TARGET", "DRAFT"), help="the same files")
    parser.add_argument("--scarce", type=float, default=1.6, help="times the target's bytes")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no reply is begun")
    parser.add_argument("--work", type=Path, required=True, help="where replies are kept; outside git")
    parser.add_argument("--out", type=Path, help="the page")
    options = parser.parse_args()
    if options.model and not options.prompts:
        parser.error("--model needs --prompts; name a directory with the files of prompts.")
    options.work.mkdir(parents=True, exist_ok=True)
    saved = SavedReplies(options.work / "replies.jsonl")
    if options.model:
        with ExitStack() as stack:
            try:
                measure(options, saved, stack)
                print("complete")
            except TimeUp:
                print("time is up")
    if options.out:
        machine = f"{physical_cores()} cores of a CPU with {compiled.instruction_set()}"
        options.out.write_text(page(saved.lines, machine), "utf-8")


if __name__ == "__main__":
    main()
