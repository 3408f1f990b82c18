"""SIGKILL at random moments of replies, pulls and trainings: finished work is saved, and no partial file stays."""

import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from torture.cage import Signal
from torture.scenarios import KEPT, SCENARIOS, Stage, finished, wrong_end

KILLED = ("chat", "pull", "train")
IN_ONE_HOME = 20  # kills in one home before it is examined; each begins where the previous one ended


@dataclass
class Tally:
    """`kills` of each command that came before its end; `replies` that were finished by then."""

    kills: Counter[str] = field(default_factory=Counter)
    replies: int = 0
    lost: int = 0
    left: int = 0  # half-written files, after the same command was given again
    wrong: int = 0  # any other fault

    def __str__(self) -> str:
        commands = ", ".join(f"{name} {number}" for name, number in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills ({commands}): of {self.replies} finished replies {self.lost} lost, "
            f"{self.left} half-written files left, {self.wrong} other faults"
        )


def killed_in_one_home(stage: Stage, name: str, chance: random.Random, most: int, tally: Tally) -> list[str]:
    """Kill a command up to `most` times in one home, and inspect it after each kill; return what is wrong."""
    seconds, home, scenario = stage.clean(name).seconds, stage.copied(name), SCENARIOS[name]
    variables, replies, found = stage.ground.variables(home), Counter[str](), list[str]()
    words, before = scenario.words(stage.ground, home), tally.kills[name]
    for _ in range(most):
        sent = Signal(signal.SIGKILL, chance.random() * seconds)
        ended = stage.cage.run(home, *words, typed=scenario.typed, sent=sent, **variables)
        found += wrong_end(ended, sent.number, scenario.again)
        replies.update(finished(ended) if name == "chat" else ())
        tally.kills[name] += ended.code == -signal.SIGKILL
        if ended.code == -signal.SIGKILL or name == "chat":
            continue
        if tally.kills[name] > before:
            break  # the command has finished all its work
        seconds = ended.seconds / 2  # the machine may be less busy now
        stage.copied(name)
    look = stage.look(home)
    lost = (Counter(KEPT) + replies) - (look.answered() + Counter(look.prompts()[: len(KEPT)]))
    again = look.run(*words, typed=scenario.typed)
    found += wrong_end(again, None, scenario.again)
    if again.code not in scenario.again:
        found.append(f"given again it ends with {again.code}: {again.errors.strip()}")
    found += scenario.complaints(look, again)
    left = stage.left(name)
    tally.replies, tally.lost, tally.left = (
        tally.replies + replies.total(), tally.lost + lost.total(), tally.left + len(left),
    )  # fmt: skip
    tally.wrong += len(found)
    return [*found, *(f"{prompt!r} is lost {number} times" for prompt, number in lost.items()),
            *(f"{file} is left" for file in sorted(left))]  # fmt: skip


def kill_so_often(stage: Stage, seed: int, kills: int, only: Sequence[str] = ()) -> Tally:
    """Kill commands until `kills` of them died before their end; print what is wrong, and the progress."""
    tally = Tally()
    for number, name in enumerate(cycle([name for name in KILLED if not only or name in only])):
        before = tally.kills.total()
        if before >= kills:
            break
        chance = random.Random(f"{seed}:kills:{name}:{number}")
        for complaint in killed_in_one_home(stage, name, chance, min(IN_ONE_HOME, kills - before), tally):
            print(f"kills, {name}, turn {number}: {complaint}", flush=True)
        if tally.kills.total() // 100 > before // 100:
            print(tally, flush=True)
    return tally
