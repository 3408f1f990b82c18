"""Reads the help corpus: questions about localspec with their answers, written by hand in training-data/help/."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HELP = Path(__file__).parents[2] / "training-data" / "help"


@dataclass(frozen=True)
class HelpEntry:
    """One answer, and what it answers.

    `planned`: it is about something that the program does not have yet. `until`: it is right until the program has these.
    """

    questions: list[str]
    answer: str
    about: list[str]
    planned: bool = False
    until: Sequence[str] = ()


def load_help(path: Path = HELP) -> list[HelpEntry]:
    """Returns the entries of a TOML file, or of all those in a directory, in the order of their names.

    Raises ValueError for a key that entries do not have, or lack, naming the file and the entry.
    """
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    return [_entry(entry, file) for file in files for entry in tomllib.loads(file.read_text("utf-8"))["entry"]]


def _entry(entry: dict[str, object], file: Path) -> HelpEntry:
    match entry:
        case {"about": list(about), "questions": str(questions), "answer": str(answer), **others}:
            asked = [line.strip() for line in questions.splitlines() if line.strip()]
            match others:
                case {"planned": True} if len(others) == 1:
                    return HelpEntry(asked, answer.strip(), about, planned=True)
                case {"until": list(until)} if len(others) == 1:
                    return HelpEntry(asked, answer.strip(), about, until=until)
                case {} if not others:
                    return HelpEntry(asked, answer.strip(), about)
    raise ValueError(f"{file.name}: {entry} needs about, questions and answer, and may have planned = true or until.")
