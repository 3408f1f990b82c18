"""Every file and answer from outside, damaged: its format, its place, and the commands that read it."""

import json
import os
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from command import called
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from scripted_models import TEMPLATE
from torture.cage import Ended
from torture.damage import ODD, damaged_bytes, damaged_json, damaged_text, either
from torture.scenarios import SCENARIOS, Ground, Stage, wrong_end

ALLOWED = {0, 1, 2, 3, 4}
CONFIG = 'model = "demo"\ndrafter = "auto"\nmax_tokens = 20\ntemperature = 0.5\nseed = 3\nbudget = 10\npool = true\n'
MODELS = (
    '[mine]\nrepo = "org/name"\nlicense = "mit"\nparameters = 3000\n[[mine.drafters]]\nkind = "medusa"\nrepo = "a/b"\n'
)
RUN = ("-n", "2", "--no-log", "Hi")


@dataclass(frozen=True)
class Format:
    """A format. `content`: a valid example; `commands`: a function that puts it into a home and names its readers."""

    content: Callable[["Soil"], st.SearchStrategy[bytes]]
    commands: Callable[["Soil", Path, bytes], list[list[str]]]
    allowed: frozenset[int] = frozenset(ALLOWED)


class Soil:
    """The sources of valid files."""

    def __init__(self, stage: Stage) -> None:
        self.ground: Ground = stage.ground
        self.stage = stage
        self._heads: Path | None = None

    def read(self, name: str) -> bytes:
        return (self.ground.model / name).read_bytes()

    @property
    def heads(self) -> Path:
        """Return a trained drafter."""
        if self._heads is None:
            home = self.stage.copied("train")
            ended = called(home, *SCENARIOS["train"].words(self.ground, home))  # here, where torch is imported already
            assert ended.returncode == 0, ended.stderr
            self._heads = home.parent / "heads"
            shutil.copytree(home / "heads" / "drafter", self._heads)
        return self._heads


def _with(soil: Soil, home: Path, name: str, content: bytes) -> Path:
    """Return the model with one other file; the rest are links."""
    path = home / "model"
    path.mkdir()
    for file in soil.ground.model.iterdir():
        if file.name != name:
            os.link(file, path / file.name)
    (path / name).write_bytes(content)
    return path


def _model_file(name: str) -> Callable[[Soil, Path, bytes], list[list[str]]]:
    def commands(soil: Soil, home: Path, content: bytes) -> list[list[str]]:
        path = str(_with(soil, home, name, content))
        return [["run", "-m", path, *RUN], ["show", path]]

    return commands


def _heads(name: str) -> Callable[[Soil, Path, bytes], list[list[str]]]:
    def commands(soil: Soil, home: Path, content: bytes) -> list[list[str]]:
        shutil.copytree(soil.heads, home / "heads")
        (home / "heads" / name).write_bytes(content)
        return [["run", "-m", str(soil.ground.model), "--drafter", str(home / "heads"), *RUN]]

    return commands


def _home_file(name: str, *commands: list[str]) -> Callable[[Soil, Path, bytes], list[list[str]]]:
    def put(soil: Soil, home: Path, content: bytes) -> list[list[str]]:
        file = home / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        return list(commands)

    return put


def _gguf(soil: Soil, home: Path, content: bytes) -> list[list[str]]:
    file = home / "model.gguf"
    file.write_bytes(content)
    return [["show", str(file)], ["import", str(file)]]


def _about(soil: Soil) -> bytes:
    """Return the hub's answer about the model."""
    with urlopen(f"{soil.ground.hub.endpoint}/api/models/org/name/revision/main?blobs=true") as answer:
        return bytes(answer.read())


def _hub_says(soil: Soil, home: Path, content: bytes) -> list[list[str]]:
    answer = (200, {"Content-Type": "application/json"}, content)
    soil.ground.hub.answer = lambda path: answer if path.startswith("/api/models/") else None
    return [["pull", "--dry-run", "org/name"], ["pull", "-y", "org/name"], ["list"]]


def _header(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def _headers(soil: Soil) -> st.SearchStrategy[bytes]:
    """Return the header of a safetensors file as damaged JSON or as damaged bytes."""
    sound = soil.read("model.safetensors")
    (length,) = struct.unpack("<Q", sound[:8])
    header = json.loads(sound[8 : 8 + length])
    return damaged_json(header).map(lambda new: _header(new) + sound[8 + length :]) | damaged_bytes(sound, 8 + length)


READERS = (["history", "export"], ["history", "search", "What was"], ["pool", "show"])


def _cells(soil: Soil, home: Path, content: bytes) -> list[list[str]]:
    """Replace the values of two random cells of the database."""
    chosen = json.loads(content)
    with closing(sqlite3.connect(home / "data" / "localspec.db")) as database:
        tables = [name for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
        ) if not name.startswith("sqlite_")]  # fmt: skip
        for table_number, column_number, value in chosen:
            table = tables[table_number % len(tables)]
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            column = columns[column_number % len(columns)]
            try:
                database.execute("PRAGMA ignore_check_constraints = ON")
                database.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
            except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                continue
        database.commit()
    return [*READERS, ["run", "-m", str(soil.ground.model), "-n", "2", "-c", "Hi"], ["history", "rm", "-y", "1"]]


def _odd_cells(soil: Soil) -> st.SearchStrategy[bytes]:
    values = [value for value in ODD if isinstance(value, str | int | float | None)]
    cell = st.tuples(st.integers(0, 20), st.integers(0, 20), st.sampled_from(values))
    return st.lists(cell, min_size=1, max_size=2).map(lambda cells: json.dumps(cells).encode())


def _database(soil: Soil, home: Path, content: bytes) -> list[list[str]]:
    (home / "data" / "localspec.db").write_bytes(content)
    return [*READERS, ["run", "-m", str(soil.ground.model), "-n", "2", "Hi"]]


def _packed(soil: Soil, home: Path, content: bytes) -> list[list[str]]:
    for file in (home / "cache" / "packed").glob("*.packed"):
        file.write_bytes(content)
    return [["run", "-m", str(soil.ground.model), *RUN], ["list"]]


def _sound_home(soil: Soil) -> Path:
    return soil.stage.found("run")


def _file_of(soil: Soil, pattern: str) -> bytes:
    return next(_sound_home(soil).glob(pattern)).read_bytes()


FORMATS: Mapping[str, Format] = {
    "config.toml": Format(
        lambda soil: damaged_text(CONFIG), _home_file("config/config.toml", ["config"], ["list"]), frozenset({0, 2})
    ),
    "models.toml": Format(
        lambda soil: damaged_text(MODELS), _home_file("config/models.toml", ["list"], ["show", "mine"], ["pull", "--dry-run", "mine"])
    ),
    "config.json": Format(lambda soil: either(soil.read("config.json")), _model_file("config.json")),
    "tokenizer.json": Format(lambda soil: either(soil.read("tokenizer.json")), _model_file("tokenizer.json")),
    "tokenizer_config.json": Format(
        lambda soil: either(soil.read("tokenizer_config.json")), _model_file("tokenizer_config.json")
    ),
    "generation_config.json": Format(
        lambda soil: either(b'{"eos_token_id": [259], "temperature": 0.5, "top_p": 0.9, "do_sample": true}'),
        _model_file("generation_config.json"),
    ),
    "chat template": Format(
        lambda soil: damaged_text(TEMPLATE),
        _model_file("chat_template.jinja"),
    ),
    "safetensors": Format(_headers, _model_file("model.safetensors")),
    "GGUF": Format(lambda soil: damaged_bytes(soil.ground.gguf.read_bytes(), 30_000), _gguf),
    "drafter.json": Format(lambda soil: either((soil.heads / "drafter.json").read_bytes()), _heads("drafter.json")),
    "heads": Format(
        lambda soil: damaged_bytes((soil.heads / "drafter.safetensors").read_bytes(), 600), _heads("drafter.safetensors")
    ),
    "database": Format(lambda soil: damaged_bytes(_file_of(soil, "data/localspec.db")), _database),
    "database cells": Format(_odd_cells, _cells),
    "packed file": Format(lambda soil: damaged_bytes(_file_of(soil, "cache/packed/*.packed"), 20_000), _packed),
    "pull record": Format(
        lambda soil: either(next(soil.stage.found("rm").glob("data/pulled/*.json")).read_bytes()),
        _home_file("data/pulled/models--org--name.json", ["list"], ["verify", "org/name"]),
    ),
    "hub answer": Format(lambda soil: either(_about(soil)), _hub_says, frozenset(ALLOWED | {5})),
    "prompts": Format(
        lambda soil: damaged_text(soil.ground.prompts.read_text() + soil.ground.texts.read_text()[:300]),
        lambda soil, home, content: [
            *_home_file("p.jsonl")(soil, home, content),
            ["distill", "-m", str(soil.ground.model), "--prompts", "p.jsonl", "-o", "o.jsonl", "-n", "2", "--limit", "2"],
        ],
    ),
}  # fmt: skip


def judged(words: list[str], ended: Ended, allowed: frozenset[int]) -> Iterator[str]:
    yield from wrong_end(ended, None, allowed)
    if ended.code and ended.code not in allowed:
        yield f"exit code {ended.code}: {ended.errors[-300:]}"
    if ended.code and not ended.errors.splitlines()[-1:][0].startswith("localspec: "):
        yield f"it ends with {ended.code} and says {ended.errors[-300:]!r}"
    if found := sorted({sign for sign in ended.out + ended.errors if sign < " " and sign not in "\n\t"} | set()):
        yield f"control characters reach whoever reads: {found}"


def tried(stage: Stage, soil: Soil, name: str, examples: int, number: int) -> None:
    """Try `examples` damaged files. Raise AssertionError with the smallest one that does harm; `number` is the seed."""
    form = FORMATS[name]

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
    )
    @seed(number)
    @given(form.content(soil))
    def try_one(content: bytes) -> None:
        home = stage.copied("rm" if name == "pull record" else "run")
        look = stage.look(home)
        for words in form.commands(soil, home, content):
            bad = list(judged(words, look.run(*words), form.allowed))
            assert not bad, f"{name}, {' '.join(words)}: {'; '.join(bad)}"

    sound = stage.ground.hub.answer
    try:
        try_one()
    finally:
        stage.ground.hub.answer = sound
