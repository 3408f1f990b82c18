"""Torture scenarios: a command, its home, and the conditions that hold afterwards, however the command ended."""

import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import tiny_models
from gguf_files import write_model
from hub_server import Hub, model_repository, served
from scripted_models import random_model
from torture.cage import Cage, Ended, Fault, Signal
from transformers import LlamaConfig

DOCUMENTED = {0, 1, 3, 4, 130, 141, 143}  # 2 and 5 are for wrong usage and refused access, which do not occur here
KEPT = ("What was kept first?", "And what second?")
TYPED = [f"What is question {number}?" for number in range(8)]
# Behind each prompt that `chat` has taken, with its pace where a reply came; and what it says of a Ctrl+C between them.
FIGURES = re.compile(
    r"^(?:(?:\(stopped\)\n)?\((?:([\d,.]+ tok/s .*)|context .*)|\(stopped\)|(Ctrl\+D ends\.))$", re.MULTILINE
)
NOT_KEPT = "can only be read|nothing new is saved|not saved|cannot be saved|no longer saved|not kept"
# Random parts of file names, and the files that a live process or SQLite keeps next to a file.
CHANCE = re.compile(r"[0-9a-f]{16,}|(?<=[-._])[a-z0-9_]{8}(?=\.|$)|\d{4,}")
BESIDE = re.compile(
    r"(\.lock|-lock|-journal|-wal|-shm|last-error\.log|packed/digests\.json)$|/\.locks/|/\.no_exist/|(^|/)(CACHEDIR|version)"
)


@dataclass(frozen=True)
class Ground:
    """The common base of all scenarios: models, texts and a hub, outside every home."""

    model: Path
    gguf: Path
    texts: Path
    prompts: Path
    hub: Hub

    def variables(self, home: Path) -> dict[str, str]:
        return {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(home / "hf")}


@contextmanager
def open_ground(directory: Path) -> Iterator[Ground]:
    model = random_model(directory / "noise")
    sizes = {**tiny_models._SHAPE, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2}
    tiny = tiny_models.write(directory / "tiny", LlamaConfig(**sizes), tiny_models.byte_tokenizer(), 0)
    texts, prompts = directory / "texts.jsonl", directory / "prompts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"{number} and then {number + 1} "}) + "\n" for number in range(60)))
    prompts.write_text("".join(json.dumps({"prompt": f"Question {number}?"}) + "\n" for number in range(3)))
    with served(org__name=model_repository(model)) as hub:
        hub.piece, hub.pause = 1024, 0.01  # slow, so that random moments also fall within a file
        yield Ground(model, write_model(directory / "Tiny.Q8_0.gguf", tiny, "Q8_0"), texts, prompts, hub)


@dataclass(frozen=True)
class Scenario:
    """`words`: the command; `typed`: its standard input. `before`: commands that make the home it finds; two conversations are always there.

    `complaints` inspects the home after the command ended, and after it ran once more without a fault.
    """

    words: Callable[[Ground, Path], list[str]]
    typed: str = ""
    before: Callable[[Ground, Path], list[list[str]]] = lambda ground, home: []
    complaints: Callable[["Look", Ended], Iterator[str]] = lambda look, ended: iter(())
    again: frozenset[int] = frozenset({0})  # how it may end when it is given once more


@dataclass
class Look:
    """A home, and separate commands that inspect it."""

    cage: Cage
    ground: Ground
    home: Path

    def run(self, *words: str, typed: str = "") -> Ended:
        return self.cage.run(self.home, *words, typed=typed, **self.ground.variables(self.home))

    def json(self, *words: str) -> Any:
        """Return the JSON output of a command that must not fail."""
        ended = self.run(*words, "--json")
        assert ended.code == 0, f"{' '.join(words)} ends with {ended.code} afterwards: {ended.errors.strip()}"
        return json.loads(ended.out)

    def turns(self) -> list[dict[str, Any]]:
        """Return all saved turns, the oldest conversation first."""
        return [turn for one in self.json("history", "export") for turn in one["turns"]]

    def prompts(self) -> list[str]:
        return [turn["prompt"] for turn in self.turns()]

    def answered(self) -> Counter[str]:
        """Return how often each prompt has a finished reply, including those ended by Ctrl+C."""
        return Counter(turn["prompt"] for turn in self.turns() if turn["reason"])


def _say(ground: Ground, *more: str) -> list[str]:
    return ["run", "-m", str(ground.model), "-n", "12", *more]


def _was_kept(look: Look, ended: Ended) -> Iterator[str]:
    """Yield an error if a run that reported no problem did not save its turn."""
    if ended.code == 0 and not re.search(NOT_KEPT, ended.errors) and "A new one." not in look.prompts():
        yield "it ended well and without a word, and what was said is not kept"


def finished(ended: Ended) -> list[str]:
    """Return the prompts of `chat` whose figures it printed, until a Ctrl+C that may have removed a prompt as well."""
    told = takewhile(lambda found: not found[1], FIGURES.findall(ended.errors))
    return [prompt for prompt, (pace, _) in zip(TYPED, told, strict=False) if pace]


def _were_kept(look: Look, ended: Ended) -> Iterator[str]:
    """Yield an error if a chat did not save a finished reply, and did not say so."""
    if not re.search(NOT_KEPT, ended.errors):
        yield from (f"the reply to {prompt!r} is lost" for prompt in Counter(finished(ended)) - look.answered())


def _is_gone(look: Look, ended: Ended) -> Iterator[str]:
    if ended.code == 0 and KEPT[1] in look.prompts():
        yield "it ended well, and the conversation is still there"
    content = b"".join(file.read_bytes() for file in (look.home / "data").glob("localspec.db*"))
    if ended.code == 0 and KEPT[1].encode() in content:
        yield "it ended well, and the bytes of the conversation are still there"


def _is_whole(model: str) -> Callable[[Look, Ended], Iterator[str]]:
    """Yield an error if a successful command did not bring the model, or a listed file has another digest."""

    def complaints(look: Look, ended: Ended) -> Iterator[str]:
        names = [row["name"] for row in look.json("list")]
        if ended.code == 0 and model not in names:
            yield f"it ended well, and {names} is all that is here"
        if model in names and look.run("verify", model).code:
            yield f"{model} is listed, and does not agree with its digests"

    return complaints


def _drafts(look: Look, ended: Ended) -> Iterator[str]:
    said = look.run(*_say(look.ground, "--no-log", "--drafter", str(look.home / "heads" / "drafter"), "Hi"))
    if ended.code == 0 and said.code:
        yield f"it ended well, and its drafter cannot be used: {said.errors.strip()}"


def _has_whole_lines(look: Look, ended: Ended) -> Iterator[str]:
    file = look.home / "replies.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    if ended.code == 0 and len(lines) != 3:
        yield f"it ended well with {len(lines)} of 3 replies"
    for line in lines[:-1] if ended.code else lines:
        json.loads(line)


SCENARIOS: Mapping[str, Scenario] = {
    "run": Scenario(lambda ground, home: _say(ground, "A new one."), complaints=_was_kept),
    "run -c": Scenario(lambda ground, home: _say(ground, "-c", "A new one."), complaints=_was_kept),
    "chat": Scenario(
        lambda ground, home: ["chat", "--plain", "-m", "demo", "-n", "24"],
        typed="".join(f"{line}\n" for line in TYPED), complaints=_were_kept,
    ),
    "history rm": Scenario(
        lambda ground, home: ["history", "rm", "-y", "2"], complaints=_is_gone, again=frozenset({0, 1, 2, 3})
    ),
    "pool clear": Scenario(lambda ground, home: ["pool", "clear", "-y"], again=frozenset({0, 1, 3})),
    "pull": Scenario(lambda ground, home: ["pull", "-y", "org/name"], complaints=_is_whole("org/name")),
    "rm": Scenario(
        lambda ground, home: ["rm", "-y", "org/name"],
        before=lambda ground, home: [["pull", "-y", "org/name"]],
        again=frozenset({0, 3}),
    ),
    "import": Scenario(lambda ground, home: ["import", str(ground.gguf)], complaints=_is_whole("Tiny.Q8_0")),
    "distill": Scenario(
        lambda ground, home: ["distill", "-m", str(ground.model), "--prompts", str(ground.prompts), "-n", "8",
                              "-o", str(home / "replies.jsonl")],
        complaints=_has_whole_lines,
    ),
    "train": Scenario(
        lambda ground, home: ["train", "medusa", "-m", str(ground.model), "--data", str(ground.texts),
                              "--steps", "3", "--batch", "64", "--length", "64", "--save-every", "0",
                              "-o", str(home / "heads")],
        complaints=_drafts, again=frozenset({0, 2}),
    ),
}  # fmt: skip


def names(home: Path) -> set[str]:
    """Return every file below the home that needs an explanation, without the random parts of its name."""
    found = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() or path.is_symlink()}
    return {CHANCE.sub("*", name) for name in found if not BESIDE.search(name)}


class Stage:
    """A stage that builds the home of a scenario once, copies it for each case, and judges the results."""

    def __init__(self, cage: Cage, ground: Ground, directory: Path) -> None:
        self.cage, self.ground, self._directory = cage, ground, directory
        self.home = directory / "home"  # the same place for each case, because a home may contain its own paths
        self._clean: dict[str, Ended] = {}
        self._names: dict[str, set[str]] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def look(self, home: Path) -> Look:
        return Look(self.cage, self.ground, home)

    def found(self, name: str) -> Path:
        """Return the home as the command finds it."""
        home = self._directory / name.replace(" ", "")
        if not home.exists():
            home.mkdir()
            look = self.look(home)
            for words in ([*_say(self.ground, prompt)] for prompt in KEPT):
                assert look.run(*words).code == 0
            for words in SCENARIOS[name].before(self.ground, home):
                assert (ended := look.run(*words)).code == 0, ended.errors
        return home

    def copied(self, name: str) -> Path:
        """Copy `home` again, in the state in which the command finds it."""
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.found(name), self.home, symlinks=True)
        return self.home

    def ended(self, name: str, fault: Fault | None = None, sent: Signal | None = None) -> Ended:
        """Run the command in a separate home, which `complaints` then inspects, and return how it ended."""
        home, scenario = self.copied(name), SCENARIOS[name]
        return self.cage.run(
            home, *scenario.words(self.ground, home), typed=scenario.typed, fault=fault, sent=sent,
            **self.ground.variables(home),
        )  # fmt: skip

    def clean(self, name: str) -> Ended:
        """Run the command undisturbed, and return how it ended; the files that it leaves are allowed."""
        if name not in self._clean:
            ended = self.ended(name)
            assert ended.code == 0, f"{name} fails without a fault: {ended.errors}"
            scenario, look = SCENARIOS[name], self.look(self.home)
            assert not (found := list(scenario.complaints(look, ended))), found
            look.run(*scenario.words(self.ground, self.home), typed=scenario.typed)
            self._clean[name], self._names[name] = ended, names(self.home)
        return self._clean[name]

    def left(self, name: str) -> set[str]:
        """Return files that an undisturbed command would not leave."""
        return names(self.home) - self._names[name]

    def complaints(self, name: str, ended: Ended, sent: signal.Signals | None = None) -> list[str]:
        """Return what is wrong with how the command ended in `copied`, and with the files that it left."""
        look, scenario, found = self.look(self.home), SCENARIOS[name], [*wrong_end(ended, sent)]
        try:
            said = look.prompts()
            lost = [
                prompt for prompt in KEPT if prompt not in said and not (name == "history rm" and prompt == KEPT[1])
            ]
            found += [f"{prompt!r} is lost" for prompt in lost]
            found += scenario.complaints(look, ended)
            again = look.run(*scenario.words(self.ground, self.home), typed=scenario.typed)
            found += wrong_end(again, None, scenario.again)
            if again.code not in scenario.again:
                found.append(f"given again it ends with {again.code}: {again.errors.strip()}")
            elif left := self.left(name):
                found.append(f"afterwards there is also {', '.join(sorted(left))}")
        except (AssertionError, ValueError) as error:
            found.append(str(error))
        return found


def wrong_end(ended: Ended, sent: signal.Signals | None, too: frozenset[int] = frozenset()) -> Iterator[str]:
    """Yield what a command must never do, under any fault."""
    if ended.hung:
        yield f"it hung for {ended.seconds:.0f} s"
    elif ended.code not in DOCUMENTED | too and not (sent and ended.code == -sent):
        yield f"exit code {ended.code}: {ended.errors[-300:]}"
    for word in ("Traceback", "localspec: Unexpected "):  # Jinja and others also print "unexpected"
        if word in ended.errors:
            yield f"{word}: {ended.errors[-600:]}"
