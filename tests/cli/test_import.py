"""localspec import, and GGUF files wherever a model is named: from the file to a reply."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from command import called, sentence
from each import each
from filelock import FileLock
from gguf_files import metadata_of, tensors_of, write_model, written
from golden import wording
from machines import Told, machine
from transformers import LlamaConfig

from localspec.cli.main import main
from localspec.config import load
from localspec.engine import importing
from localspec.events import Reporter
from localspec.machine import compiled
from localspec.paths import Paths
from localspec.weights import file_fingerprint as file_fingerprints
from localspec.weights.file_fingerprint import file_fingerprint
from localspec.weights.gguf_model import GgufModel
from localspec.weights.packed_file import read
from localspec.weights.source import PackingSource

SHAPE = {**tiny_models._SHAPE, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    return tiny_models.write(path, LlamaConfig(**SHAPE), tiny_models.byte_tokenizer(), 0)


@pytest.fixture
def gguf(directory: Path, tmp_path: Path) -> Path:
    return write_model(tmp_path / "Tiny Chat.Q8_0.gguf", directory, "Q8_0")


def imported(home: Path, file: Path, *flags: str) -> dict[str, object]:
    result = called(home, "import", str(file), *flags, "--json")
    assert result.returncode == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def listed(home: Path) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(called(home, "list", "--json").stdout)}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `doctor`'s measurements, which take ten seconds."""
    measurements = Told()
    monkeypatch.setattr("localspec.cli.doctor.this_machine", lambda bandwidth: machine())
    monkeypatch.setattr("localspec.cli.doctor.Measurements", lambda *_: measurements)


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_what_processes_left_that_were_killed_goes_and_what_one_writes_stays(tmp_path: Path, gguf: Path) -> None:
    imports = Paths(tmp_path).imports
    imports.mkdir(parents=True, mode=0o700)
    for command in (["import", str(gguf)], ["doctor", "--json"], ["rm", "nosuch"]):
        for name in ("left", "held"):
            (imports / f"{name}.packed.partial").write_bytes(b"x" * 1000)
        with FileLock(imports / "held.lock"):
            called(tmp_path, *command)
        assert [file.name for file in sorted(imports.glob("*.partial"))] == ["held.packed.partial"], command
        assert not (imports / "left.lock").exists()


@pytest.mark.slow
def test_a_failed_import_leaves_nothing(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr("localspec.weights.opening.shutil.disk_usage", lambda path: usage)
    assert called(tmp_path, "import", str(gguf)).returncode == 4
    assert list(Paths(tmp_path).imports.iterdir()) == []
    monkeypatch.undo()
    assert called(tmp_path, "import", str(gguf)).returncode == 0
    monkeypatch.setattr("localspec.weights.opening.shutil.disk_usage", lambda path: usage)
    assert called(tmp_path, "import", str(gguf), "--quantize", "int8").returncode == 4
    assert not list(Paths(tmp_path).packed.glob("*.p*"))


@pytest.mark.skipif(os.name == "nt", reason="has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_what_a_signal_ends_is_cleared_up(name, monkeypatch, tmp_path, gguf):
    before = signal.getsignal(number := getattr(signal, name))
    filled = PackingSource.filler

    def ending(self: PackingSource, known: Any) -> Any:
        os.kill(os.getpid(), number)
        return filled(self, known)

    raised: list[int] = []
    monkeypatch.setattr(PackingSource, "filler", ending)
    monkeypatch.setattr("localspec.cli.interrupt.signal.raise_signal", raised.append)
    with pytest.raises(SystemExit) as ended:
        called(tmp_path, "import", str(gguf), "--quantize", "int8")
    assert ended.value.code == 128 + number and raised == [number] and not list(Paths(tmp_path).packed.glob("*.p*"))
    assert signal.getsignal(number) == before


@pytest.mark.slow
def test_a_file_becomes_a_model_that_is_read_from_it(tmp_path: Path, gguf: Path) -> None:
    before = gguf.read_bytes()
    first = imported(tmp_path, gguf)
    assert first["name"] == "Tiny-Chat.Q8_0"
    assert first["new"] is True and first["packing"] == "blocks" and first["types"] == ["Q8_0"]
    assert first["file_bytes"] == gguf.stat().st_size
    again = imported(tmp_path, gguf)
    assert again["new"] is False and again["path"] == first["path"]
    row = listed(tmp_path)["Tiny-Chat.Q8_0"]
    assert row["path"] == first["path"] and row["license"] == "apache-2.0" and row["packed"] == {}
    assert (
        row["bits_per_weight"] == first["bits_per_weight"] and 8.5 <= first["bits_per_weight"] < 9
    )  # its head and its embedding are the same blocks of chance
    assert Path(str(first["path"])).stat().st_size < gguf.stat().st_size / 2, "nothing is copied"
    shown = json.loads(called(tmp_path, "show", "Tiny-Chat.Q8_0", "--json").stdout)
    assert shown["installed"] and shown["architecture"] == "LlamaForCausalLM"
    assert shown["source"] == str(gguf) and shown["thinking"] == "no"
    assert wording("every_weight_agrees") in called(tmp_path, "verify", "Tiny-Chat.Q8_0").stdout
    reply = called(tmp_path, "run", "-m", "Tiny-Chat.Q8_0", "-n", "8", "--json", "Hi")
    assert json.loads(reply.stdout)["quantize"] == "blocks"
    assert json.loads(reply.stdout)["bits_per_weight"] == first["bits_per_weight"]
    assert " bits per weight, " in shown["weights"]
    for command in (
        ("run", "--stats", "-n", "8", "Hi"),
        ("bench", "--limit", "1", "-n", "8", "--drafter", "phrases"),
    ):
        said = called(tmp_path, command[0], "-m", "Tiny-Chat.Q8_0", *command[1:])
        words = said.stdout + said.stderr
        assert said.returncode == 0 and " bits per weight" in words and "blocks" not in words, words
    assert " bits per weight" in called(tmp_path, "list").stdout
    removed = called(tmp_path, "rm", "Tiny-Chat.Q8_0", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert f"{gguf} {wording('stays_your_own_file')}" in removed.stdout and gguf.read_bytes() == before
    assert "Tiny-Chat.Q8_0" not in listed(tmp_path) and not Path(str(first["path"])).exists()


@pytest.mark.slow
def test_a_person_reads_what_was_made_of_what(tmp_path: Path, gguf: Path) -> None:
    result = called(tmp_path, "import", gguf.name)
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith("Tiny-Chat.Q8_0 is ready: ") and " bits per weight, " in result.stdout
    assert f"{wording('read_from_must_stay', file=gguf.name)}\n" in result.stdout
    assert "localspec chat -m Tiny-Chat.Q8_0" in result.stdout
    assert "imported before" in called(tmp_path, "import", gguf.name).stdout


@pytest.mark.slow
def test_a_file_that_is_named_is_imported_when_it_is_first_used(tmp_path: Path, gguf: Path) -> None:
    first = called(tmp_path, "run", "-m", gguf.name, "-n", "8", "--no-log", "--temp", "0", "Hi")
    assert first.returncode == 0 and wording("imported_tiny_chat_q8_0") in first.stderr
    again = called(tmp_path, "run", "-m", gguf.name, "-n", "8", "--no-log", "--temp", "0", "Hi")
    assert again.stdout == first.stdout and again.stderr == ""
    by_name = called(tmp_path, "run", "-m", "Tiny-Chat.Q8_0", "-n", "8", "--no-log", "--temp", "0", "Hi")
    assert by_name.stdout == first.stdout
    shutil.move(gguf, tmp_path / "elsewhere.gguf")
    moved = called(tmp_path, "run", "-m", "elsewhere.gguf", "-n", "8", "--no-log", "--temp", "0", "Hi")
    assert (moved.stdout, moved.stderr) == (first.stdout, "")
    assert len([*Paths(tmp_path).imports.iterdir()]) == 1, "the registration of the former place is gone"
    assert json.loads(called(tmp_path, "show", "Tiny-Chat.Q8_0", "--json").stdout)["source"].endswith("elsewhere.gguf")
    in_few_bits = called(
        tmp_path, "run", "-m", "elsewhere.gguf", "-n", "8", "--quantize", "int4", "--no-log", "--temp", "0", "Hi"
    )
    assert in_few_bits.returncode == 0, in_few_bits.stderr
    assert [file.parent for file in tmp_path.rglob("*-int4-*.packed")] == [Paths(tmp_path).packed]
    assert called(tmp_path, "verify", "Tiny-Chat.Q8_0").stdout.count(wording("every_weight_agrees")) == 2
    assert called(tmp_path, "rm", "elsewhere.gguf", "--yes").returncode == 0
    assert list(tmp_path.rglob("*.packed")) == [] and (tmp_path / "elsewhere.gguf").exists()


@pytest.mark.slow
@pytest.mark.parametrize("same_size", [False, True])
def test_a_file_that_changed_is_another_model(tmp_path, gguf, directory, same_size):
    before, content = imported(tmp_path, gguf), gguf.read_bytes()
    if same_size:
        gguf.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        write_model(gguf, directory, "F16")
    assert sentence(called(tmp_path, "show", gguf.name)).endswith(f"`localspec import {shlex.quote(gguf.name)}`.\n")
    refused = called(tmp_path, "run", "-m", str(before["name"]), "--no-log", "Hi")
    assert refused.returncode == 3
    assert wording("changed_since_imported_put_back", file=gguf) in sentence(refused)
    result = called(tmp_path, "run", "-m", gguf.name, "-n", "1", "--no-log", "Hi")
    assert result.returncode == 0 and wording("changed_since_imported_tiny_chat") in result.stderr
    after = imported(tmp_path, gguf)
    assert after["new"] is False and str(after["name"]).startswith("Tiny-Chat.Q8_0-")
    rows = listed(tmp_path)
    assert rows[str(after["name"])]["missing"] is None and run_hi(tmp_path, str(after["name"]))
    assert same_size or rows[str(before["name"])]["missing"] == str(gguf)
    gguf.write_bytes(content)
    assert imported(tmp_path, gguf)["name"] == before["name"] and run_hi(tmp_path, str(before["name"]))


@pytest.mark.slow
def test_a_file_that_changed_since_an_earlier_version_packed_it_is_another_model(tmp_path, gguf, directory):
    before = packed_by_an_earlier_version(tmp_path, gguf)
    write_model(gguf, directory, "F16")
    result = called(tmp_path, "run", "-m", gguf.name, "-n", "1", "--no-log", "Hi")
    assert result.returncode == 0 and wording("changed_since_imported_tiny_chat") in result.stderr
    after = imported(tmp_path, gguf)
    assert after["new"] is False and str(after["name"]).startswith("Tiny-Chat.Q8_0-") and after["types"] == ["F16"]
    assert listed(tmp_path).keys() >= {str(before), str(after["name"])}
    for name in (before, after["name"]):
        assert called(tmp_path, "run", "-m", str(name), "-n", "1", "--no-log", "Hi").returncode == 0


def packed_by_an_earlier_version(home: Path, gguf: Path) -> str:
    """Import a file and leave it as earlier versions did: as a packed file in the data directory."""
    name = str(imported(home, gguf, "--quantize", "int8")["name"])
    [registration], [packed] = Paths(home).imports.glob("*.packed"), Paths(home).packed.glob("*.packed")
    registration.unlink()
    packed.rename(registration.with_name(packed.name))
    return name


@pytest.mark.slow
def test_two_files_of_one_name_are_two_models(tmp_path: Path, gguf: Path, directory: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_model(tmp_path / "other" / gguf.name, directory, "F16")
    first, second = imported(tmp_path, gguf), imported(tmp_path, other)
    assert second["name"] != first["name"] and str(second["name"]).startswith("Tiny-Chat.Q8_0-")
    named_demo = write_model(tmp_path / "demo.gguf", directory, "F32")
    assert str(imported(tmp_path, named_demo)["name"]).startswith("demo-")
    assert set(listed(tmp_path)) >= {str(first["name"]), str(second["name"]), "demo"}


def entered(home: Path, name: str, *files: Path, marks: bool = True) -> None:
    """Write an entry that lists the files into the user's models.toml, with their fingerprints or without."""
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    fingerprints = f"fingerprints = {json.dumps([file_fingerprint(file) for file in files])}\n" if marks else ""
    entry = f'[{name}]\nrepo = "org/{name}"\nlicense = "MIT"\ndescription = "Listed."\nquality = 7\n'
    Paths(home).user_models_file.parent.mkdir(parents=True, exist_ok=True)
    Paths(home).user_models_file.write_text(f'{entry}starters = ["Hi"]\nsha256 = {json.dumps(digests)}\n{fingerprints}')


def run_hi(home: Path, model: str) -> str:
    result = called(
        home,
        "run",
        "-m",
        model,
        "-n",
        "24",
        "--temp",
        "0",
        "--drafter",
        "phrases",
        "the cat sat on the mat and the cat",
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_file_that_an_entry_lists_is_that_model(tmp_path: Path, gguf: Path) -> None:
    entered(tmp_path, "listed", gguf)
    assert sentence(called(tmp_path, "run", "-m", "listed", "Hi")).endswith(wording("fetch_localspec_pull_listed"))
    assert imported(tmp_path, gguf)["name"] == "listed"
    row = listed(tmp_path)["listed"]
    assert row["license"] == "MIT" and row["description"] == "Listed." and "Tiny-Chat.Q8_0" not in listed(tmp_path)
    shown = json.loads(called(tmp_path, "show", "listed", "--json").stdout)
    assert (shown["quality"], shown["source"], shown["verified"]) == (7, str(gguf), True)
    assert run_hi(tmp_path, "listed") == run_hi(tmp_path, str(gguf))
    assert called(tmp_path, "pull", "listed", "--dry-run").stdout.startswith(f"listed is already here: {shown['path']}")
    assert wording("every_weight_agrees") in called(tmp_path, "verify", "listed").stdout
    assert called(tmp_path, "rm", "listed", "--yes").returncode == 0 and "listed" not in listed(tmp_path)
    assert list(tmp_path.rglob("*.packed")) == []


@pytest.mark.slow
def test_an_import_of_an_earlier_version_is_the_model_that_an_entry_lists(tmp_path: Path, gguf: Path) -> None:
    before = imported(tmp_path, gguf)
    text = run_hi(tmp_path, "Tiny-Chat.Q8_0")
    pools = json.loads(called(tmp_path, "pool", "list", "--json").stdout)
    assert len(pools) == 1
    entered(tmp_path, "listed", gguf)
    again = imported(tmp_path, gguf)
    assert (again["name"], again["new"], again["path"]) == ("listed", False, before["path"])
    assert set(listed(tmp_path)) == {"listed", "demo", "demo-draft"} and len(list(tmp_path.rglob("*.packed"))) == 1
    assert run_hi(tmp_path, "listed") == run_hi(tmp_path, "Tiny-Chat.Q8_0") == text
    after = json.loads(called(tmp_path, "pool", "list", "--json").stdout)
    assert [one["model"] for one in after] == ["listed"] and after[0]["phrases"] >= pools[0]["phrases"] > 0
    for name in ("listed", "Tiny-Chat.Q8_0"):
        assert called(tmp_path, "pool", "show", name).stdout, name
        assert json.loads(called(tmp_path, "show", name, "--json").stdout)["name"] == "listed"
    resumed = called(tmp_path, "run", "-c", "-n", "4", "and")
    assert resumed.returncode == 0, resumed.stderr
    in_few_bits = imported(tmp_path, gguf, "--quantize", "int4")
    assert in_few_bits["name"] == "listed" and set(listed(tmp_path)) == {"listed", "demo", "demo-draft"}
    assert called(tmp_path, "rm", "Tiny-Chat.Q8_0", "--yes").returncode == 0
    assert list(tmp_path.rglob("*.packed")) == []


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_a_file_is_read_for_the_digest_that_only_an_entry_of_ones_own_lists(
    tmp_path: Path, gguf: Path, before: bool
) -> None:
    if before:
        assert imported(tmp_path, gguf)["name"] == "Tiny-Chat.Q8_0"
    entered(tmp_path, "listed", gguf, marks=False)
    assert imported(tmp_path, gguf)["name"] == "listed"
    assert set(listed(tmp_path)) == {"listed", "demo", "demo-draft"}
    assert imported(tmp_path, gguf.rename(tmp_path / "moved.gguf"))["new"] is False


@pytest.mark.slow
def test_verify_prints_what_an_entry_lists_and_finds_a_byte_that_changed(tmp_path: Path, gguf: Path) -> None:
    first = imported(tmp_path, gguf)
    digest, mark = hashlib.sha256(gguf.read_bytes()).hexdigest(), file_fingerprint(gguf)
    result = called(tmp_path, "verify", str(first["name"]))
    assert result.returncode == 0 and digest in result.stdout and mark in result.stdout
    assert wording("read_and_noted") in result.stdout
    assert wording("same_content_as_last_reading") in called(tmp_path, "verify", str(gguf)).stdout
    entered(tmp_path, "listed", gguf, marks=False)
    assert "listed" in listed(tmp_path), "its digest is known without reading it again"
    digests = json.loads((Paths(tmp_path).packed / "digests.json").read_text())
    digests[os.path.realpath(gguf)][1] = "0" * 64  # as if a byte between the samples had been another one then
    (Paths(tmp_path).packed / "digests.json").write_text(json.dumps(digests))
    changed = called(tmp_path, "verify", "listed")
    assert changed.returncode == 1 and wording("changed_unseen_rm_and_import_again") in changed.stderr
    assert called(tmp_path, "verify", "listed").returncode == 1, "damage is not accepted by saying it once"
    assert called(tmp_path, "rm", "listed", "--yes").returncode == 0
    imported(tmp_path, gguf)
    assert called(tmp_path, "verify", "listed").returncode == 0


@pytest.mark.slow
def test_two_files_that_one_entry_lists_are_two_models(tmp_path: Path, gguf: Path, directory: Path) -> None:
    other = write_model(tmp_path / "Other.gguf", directory, "F16")
    assert imported(tmp_path, gguf)["name"] == "Tiny-Chat.Q8_0"
    entered(tmp_path, "listed", gguf, other)
    assert imported(tmp_path, other)["name"] == "Other"
    assert set(listed(tmp_path)) == {"listed", "Other", "demo", "demo-draft"}
    assert listed(tmp_path)["listed"]["path"] == imported(tmp_path, gguf)["path"]


@pytest.mark.slow
def test_an_import_keeps_its_name_when_a_new_version_registers_another_model_so(tmp_path, directory, monkeypatch):
    file = write_model(tmp_path / "smollm2-135m.gguf", directory, "Q8_0")
    with monkeypatch.context() as patched:
        patched.setattr("localspec.models.registry._shipped_entries", lambda: ())
        assert imported(tmp_path, file)["name"] == "smollm2-135m"
    assert imported(tmp_path, file)["new"] is False and run_hi(tmp_path, "smollm2-135m")
    assert listed(tmp_path)["smollm2-135m"]["license"] == "apache-2.0", "what the file says, not the entry"


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["phrases", "lookahead", "layers"])
def test_drafts_change_no_token(tmp_path: Path, gguf: Path, drafter: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    asked = ("-n", "60", "--temp", "0", "--no-log", "--json", "the cat sat on the mat and the cat")

    def ids(*flags: str) -> list[int]:
        result = called(home, "run", "-m", str(gguf), *flags, *asked)
        assert result.returncode == 0, result.stderr
        found: list[int] = json.loads(result.stdout)["token_ids"]
        return found

    assert ids("--drafter", drafter, "--draft-max", "6") == ids("--drafter", "none")


@pytest.mark.slow
def test_without_the_library_torch_computes_the_file(tmp_path: Path, gguf: Path, monkeypatch, capfd) -> None:
    """torch is also used on a GPU, with another packing."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(compiled, "missing", lambda: "there is none")
    found = []
    for drafter in ("none", "phrases", "layers"):
        words = ["run", "-m", str(gguf), "--drafter", drafter, "-n", "40", "--temp", "0", "--no-log", "--json"]
        assert main([*words, "the cat sat on the mat and the cat"]) == 0
        found.append(json.loads(capfd.readouterr().out))
    assert {(one["engine"], one["device"], one["quantize"]) for one in found} == {("torch", "cpu", "none")}
    assert len({tuple(one["token_ids"]) for one in found}) == 1
    assert main(["import", str(gguf), "--quantize", "int8"]) == 1
    assert wording("gguf_file_packed_by_library") in capfd.readouterr().err


@pytest.mark.slow
def test_a_file_that_changed_where_nothing_is_sampled_is_reported(
    tmp_path: Path, gguf: Path, monkeypatch, capfd
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setattr(file_fingerprints, "HEADER", 0)
    monkeypatch.setattr(file_fingerprints, "SAMPLES", 2)
    os.utime(gguf, (1, 1))
    monkeypatch.setattr(file_fingerprints, "SETTLED", -1)

    def said() -> str:
        assert main(["import", str(gguf)]) == 0
        return capfd.readouterr().err

    sentence = wording("changed_since_it_was_read_whole")
    assert sentence not in said()
    assert main(["verify", "Tiny-Chat.Q8_0"]) == 0
    assert sentence not in said()
    with gguf.open("r+b") as stream:
        stream.seek(gguf.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, 1)
        stream.write(bytes([byte[0] ^ 1]))
    assert sentence in said()
    assert main(["verify", "Tiny-Chat.Q8_0"]) == 1
    assert sentence in said()
    moved = gguf.rename(tmp_path / "moved.gguf")
    assert main(["import", str(moved)]) == 0
    for _ in range(2):
        assert main(["verify", "Tiny-Chat.Q8_0"]) == 1
        assert wording("changed_unseen_rm_and_import_again") in capfd.readouterr().err


@pytest.mark.slow
def test_a_copy_leaves_the_model_where_it_is(tmp_path: Path, gguf: Path) -> None:
    imported(tmp_path, gguf)
    copy = Path(shutil.copy(gguf, tmp_path / "copy.gguf"))
    again = called(tmp_path, "import", str(copy))
    assert again.returncode == 0 and wording("is_still_read_from_there") in again.stderr, again.stderr
    assert f"sampled parts of {copy} are the same" in again.stderr
    assert wording("read_from_must_stay", file=gguf) in again.stdout
    copy.unlink()
    assert called(tmp_path, "run", "-m", "Tiny-Chat.Q8_0", "-n", "1", "--no-log", "Hi").returncode == 0


@pytest.mark.slow
def test_what_a_file_cannot_be_is_reported(tmp_path: Path, gguf: Path, directory: Path) -> None:
    def refused(code: int, *arguments: str) -> str:
        result = called(tmp_path, *arguments)
        assert result.returncode == code, result.stderr
        return sentence(result)

    (tmp_path / "empty").mkdir()
    assert "nothing.gguf" in refused(3, "import", "nothing.gguf")
    for given, said in (
        (str(tmp_path / "empty"), "is a directory without GGUF files; give another directory, or a GGUF file"),
        ("/dev/null", "'/dev/null' is not a regular file; give a GGUF file"),
        ("", wording("name_file")),
    ):
        assert said in refused(2, "import", given)
    assert "localspec import" in refused(3, "show", gguf.name)
    assert "nf4" in refused(2, "import", gguf.name, "--quantize", "nf4")
    (tmp_path / "a.gguf").write_bytes(gguf.read_bytes()[:-1])
    assert "a.gguf" in refused(1, "import", "a.gguf")
    write_model(tmp_path / "gemma.gguf", directory, "Q8_0", general__architecture="gemma2")
    assert wording("gguf_file_gemma_gguf_architecture") in refused(1, "run", "-m", "gemma.gguf", "Hi")
    imported(tmp_path, gguf)
    assert "There is no device 'cuda' here" in refused(2, "run", "-m", gguf.name, "--device", "cuda", "--no-log", "Hi")
    (tmp_path / "texts.txt").write_text("one two three\n" * 100)
    for kind, option in (("medusa", "joint=true"), ("semi", "first=0.5"), ("s3d", "full=true")):
        said = refused(2, "train", kind, "-m", gguf.name, "--data", "texts.txt", "-O", option)
        assert wording("changes_weights_of_gguf_blocks", option=option) in said
    assert f"`localspec chat -m {gguf.name}`" in refused(2, "pull", gguf.name)
    assert called(tmp_path, "rm", gguf.name, "--yes").returncode == 0
    assert wording("which_nothing_kept_here") in refused(3, "rm", gguf.name, "--yes") and gguf.exists()


def test_a_file_with_another_name_and_a_missing_file_are_reported_as_such(tmp_path: Path, gguf: Path) -> None:
    shutil.copy(gguf, tmp_path / "noext")
    user = tmp_path / "config" / "models.toml"
    user.parent.mkdir()
    user.write_text(f"[mine]\npath = '{gguf}'\n")
    for name, said in (
        ("noext", "noext is a GGUF file, although its name does not say so; import it with `localspec import noext`"),
        ("nosuch.gguf", "There is no file 'nosuch.gguf'"),
        ("mine", wording("gguf_file_imported_first", gguf=shlex.quote(str(gguf)))),
    ):
        result = called(tmp_path, "run", "-m", name, "Hi")
        assert result.returncode == 3 and said in sentence(result)
        assert "qwen3" not in result.stderr


@pytest.mark.slow
def test_commands_in_messages_quote_file_names(tmp_path: Path, gguf: Path) -> None:
    odd = gguf.rename(tmp_path / '$(touch x) `y` "q".gguf')
    imported(tmp_path, odd)
    with odd.open("ab") as stream:
        stream.write(b"x")
    quoted = shlex.quote(str(odd))
    assert f"`localspec import {quoted}` imports" in called(tmp_path, "list").stderr
    assert f"`localspec import {quoted}`" in sentence(called(tmp_path, "show", str(odd)))
    assert f"give -m {quoted}." in sentence(called(tmp_path, "run", str(odd)))
    noext = odd.rename(tmp_path / "no ending")
    assert f"`localspec import {shlex.quote(str(noext))}`" in sentence(called(tmp_path, "show", str(noext)))


@pytest.mark.slow
def test_what_is_requested_answers(tmp_path: Path, gguf: Path) -> None:
    def answers(*flags: str) -> str:
        result = called(tmp_path, "run", "-m", "Tiny-Chat.Q8_0", "-n", "1", "--no-log", "--json", *flags, "Hi")
        return str(json.loads(result.stdout)["quantize"])

    packed = imported(tmp_path, gguf, "--quantize", "int8")
    assert packed["packing"] == "int8" and answers() == "int8" and answers("--quantize", "int4") == "int4"
    assert json.loads(called(tmp_path, "show", "Tiny-Chat.Q8_0", "--json").stdout)["weights"].startswith("int8, ")
    assert sorted(listed(tmp_path)["Tiny-Chat.Q8_0"]["packed"]) == ["int4", "int8"]
    assert imported(tmp_path, gguf)["packing"] == "blocks" and answers() == "blocks"
    assert answers("--dtype", "fp32") == "none"
    imported(tmp_path, gguf, "--quantize", "int8")
    moved = gguf.rename(tmp_path / "moved.gguf")
    assert called(tmp_path, "run", "-m", str(moved), "-n", "1", "--no-log", "Hi").returncode == 0
    assert answers() == "int8", "as before it was moved"


@pytest.mark.slow
def test_a_model_whose_file_is_gone_is_reported(tmp_path: Path, gguf: Path) -> None:
    imported(tmp_path, gguf)
    away = gguf.rename(tmp_path / "away.gguf")
    for command in (
        ("run", "-m", "Tiny-Chat.Q8_0", "Hi"),
        ("show", "Tiny-Chat.Q8_0"),
        ("verify", "Tiny-Chat.Q8_0"),
    ):
        result = called(tmp_path, *command)
        assert result.returncode == 3 and wording("read_from_not_there", file=gguf) in sentence(result), command
    table = called(tmp_path, "list")
    assert wording("read_from_not_there", file=gguf) in table.stderr
    assert f"missing: {gguf}" in table.stdout and listed(tmp_path)["Tiny-Chat.Q8_0"]["missing"] == str(gguf)
    for number in range(2):  # the only one, then the chosen one
        said = called(tmp_path, "run", "-n", "1", "--no-log", "Hi")
        assert said.returncode == 0 and wording("read_from_not_there", file=gguf) in said.stderr, number
        assert wording("until_then_demo_answers") in said.stderr and said.stderr.count("\n") == 1
        away.rename(gguf)
        assert called(tmp_path, "use", "Tiny-Chat.Q8_0").returncode == 0
        gguf.rename(away)
    row = listed(tmp_path)["Tiny-Chat.Q8_0"]
    assert row["chosen"] is False and wording("read_from_not_there", file=gguf) in row["problem"]
    assert imported(tmp_path, away)["new"] is False and run_hi(tmp_path, "Tiny-Chat.Q8_0")
    imported(tmp_path, away, "--quantize", "int8")
    away.unlink()
    result = called(tmp_path, "run", "-m", "Tiny-Chat.Q8_0", "-n", "1", "--no-log", "Hi")
    assert result.returncode == 0 and wording("answers_as_packed_before") in result.stderr
    row = listed(tmp_path)["Tiny-Chat.Q8_0"]
    assert row["missing"] == str(away) and [*row["packed"]] == ["int8"] and row["bytes"] > 0
    assert f", missing: {away}" in called(tmp_path, "list").stdout
    assert called(tmp_path, "rm", "Tiny-Chat.Q8_0", "--yes").returncode == 0
    assert list(Paths(tmp_path).imports.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--quantize", "int8")], ids=["blocks", "int8"])
def test_verify_looks_at_the_file_of_a_registration_whether_a_packing_answers_or_not(
    tmp_path: Path, gguf: Path, flags: tuple[str, ...]
) -> None:
    imported(tmp_path, gguf, *flags)
    assert called(tmp_path, "verify", "Tiny-Chat.Q8_0").returncode == 0
    content = gguf.read_bytes()
    for changed in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1]):
        gguf.write_bytes(changed)
        result = called(tmp_path, "verify", "Tiny-Chat.Q8_0")
        assert result.returncode == 3 and f"{gguf}, which has changed since it was imported" in sentence(result)
    gguf.unlink()
    result = called(tmp_path, "verify", "Tiny-Chat.Q8_0")
    assert result.returncode == 3 and f"{gguf}, which is not there" in sentence(result)


@pytest.mark.slow
def test_all_packings_that_an_earlier_version_made_are_named(tmp_path: Path, gguf: Path) -> None:
    for packing in ("int8", "int4"):
        imported(tmp_path, gguf, "--quantize", packing)
    paths = Paths(tmp_path)
    next(paths.imports.glob("*.packed")).unlink()
    for file in paths.packed.glob("*.packed"):
        file.rename(paths.imports / file.name)
    refused = called(tmp_path, "run", "-m", "Tiny-Chat.Q8_0", "--dtype", "fp32", "--no-log", "Hi")
    assert refused.returncode == 3 and "from GGUF and packed in int4 and int8," in sentence(refused)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 30, 2000, -1], ids=str)
def test_a_registration_that_is_damaged_is_called_so_everywhere(tmp_path: Path, gguf: Path, keep: int) -> None:
    path = Path(str(imported(tmp_path, gguf)["path"]))
    content = path.read_bytes()
    path.write_bytes(content[:keep] if keep >= 0 else content.replace(b'"license":"', b'"license":"x', 1))
    said = called(tmp_path, "run", "-m", "Tiny-Chat.Q8_0", "Hi")
    assert said.returncode == 1 and wording("is_damaged_rm_and_import", file=path) in sentence(said)
    table = called(tmp_path, "list").stderr.replace("\n", " ")
    assert "is damaged" in table and wording("rm_file_and_import_its_gguf", file=path) in table
    if keep < 0:
        assert "damaged" not in called(tmp_path, "run", "-m", "another", "Hi").stderr
    assert imported(tmp_path, gguf)["path"] == str(path) and run_hi(tmp_path, "Tiny-Chat.Q8_0")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_a_pipe_is_no_file_whichever_command_is_given_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for command in (("run", "Hi", "-m"), ("chat", "--plain", "-m"), ("show",), ("import",)):
        result = called(tmp_path, *command, "pipe.gguf")
        assert result.returncode == 2 and wording("no_regular_file_give_gguf") in sentence(result), command


@pytest.mark.slow
def test_all_parts_of_a_model_are_said_to_stay(tmp_path: Path, gguf: Path, directory: Path) -> None:
    first, second = (tmp_path / f"part-0000{number}-of-00002.gguf" for number in (1, 2))
    metadata, tensors = metadata_of(directory, "gpt-2"), tensors_of(directory, "Q8_0")
    names = sorted(tensors)
    for number, (file, part) in enumerate(((first, names[:3]), (second, names[3:]))):
        said = {"split.no": number, "split.count": 2, "split.tensors.count": len(names)}
        file.write_bytes(
            written({**(said if number else {**metadata, **said})}, {name: tensors[name] for name in part})
        )
    assert wording("and_other_part_must_stay", file=first) in called(tmp_path, "import", str(first)).stdout
    assert called(tmp_path, "rm", "part", "--yes").returncode == 0
    used = called(tmp_path, "run", "-m", first.name, "-n", "1", "--no-log", "Hi")
    assert wording("and_other_part_must_stay", file=first.name) in used.stderr.replace("\n", " ")
    second.rename(tmp_path / "away.gguf")
    assert str(second) in sentence(called(tmp_path, "run", "-m", "part", "Hi"))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["GgufModel.open", "registry.file_digests", "registry.listed_as", "new_name"])
def test_imports_that_overlap_are_one_model(tmp_path: Path, gguf: Path, monkeypatch: Any, step: str) -> None:
    """The first waits at a step until the second has ended."""
    if step != "new_name":
        entered(tmp_path, "listed", gguf)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    said, found = list[str](), list[importing.Imported]()
    place, name = (importing.registry, step.partition(".")[2]) if "registry" in step else (importing, step)
    place, name = (GgufModel, "open") if step == "GgufModel.open" else (place, name)
    real = getattr(place, name)

    def once(*given: Any) -> Any:
        monkeypatch.setattr(place, name, real)
        found.append(importing.import_gguf(gguf, load(), Reporter(said.append)))
        return real(*given)

    monkeypatch.setattr(place, name, once)
    found.append(importing.import_gguf(gguf, load(), Reporter(said.append)))
    assert said == [] and found[0].path == found[1].path and found[0].name == found[1].name
    assert [file.name for file in Paths(tmp_path).imports.iterdir()] == [found[0].path.name]


def test_a_revision_changes_with_files_texts_and_repository() -> None:
    files, texts = {"/a.gguf": (1, "0" * 40)}, {"config.json": b"{}"}
    others = [
        importing._revision({"/a.gguf": (1, "1" * 40)}, texts, ""),
        importing._revision(files, {"config.json": b"[]"}, ""),
        importing._revision(files, texts, "org/name:Q8_0"),
    ]
    own = importing._revision({"/elsewhere.gguf": (1, "0" * 40)}, texts, "")
    assert own == importing._revision(files, texts, "") and len({own, *others}) == 4


def test_a_license_without_end_is_cut(tmp_path: Path, directory: Path) -> None:
    file = write_model(tmp_path / "a.gguf", directory, "Q8_0", general__license="a\nb" + "c" * 100_000)
    assert imported(tmp_path, file)["license"] == "a b" + "c" * 97
    assert len(called(tmp_path, "list").stdout) < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("command", [("run",), ("chat", "--plain")], ids=" ".join)
def test_a_file_in_place_of_a_question_gets_the_advice_to_name_it_as_a_model(
    tmp_path: Path, gguf: Path, command: Any
) -> None:
    result = called(tmp_path, *command, gguf.name)
    assert result.returncode == 2 and f"-m {shlex.quote(gguf.name)}" in sentence(result)
    assert (
        "not a question" not in called(tmp_path, *command, "nothing.gguf", "--no-log", "-n", "1", "-m", "demo").stderr
    )


@pytest.mark.slow
def test_every_command_that_lets_a_model_speak_imports_a_file_first(tmp_path: Path, gguf: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hi"}\n')
    commands = {
        "bench": ("--drafter", "phrases", "--nodes", "2", "--limit", "1", "--max-tokens", "2"),
        "race": ("Hi", "-n", "2", "--drafter", "phrases"),
        "distill": ("--prompts", "prompts.jsonl", "-o", "own.jsonl", "--max-tokens", "2"),
        "doctor": ("--limit", "1", "-n", "2"),
    }
    for command, flags in commands.items():
        named = ("--prove", gguf.name) if command == "doctor" else ("-m", gguf.name)
        result = called(tmp_path, command, *named, *flags)
        assert result.returncode == 0 and wording("imported_tiny_chat_q8_0") in result.stderr, result.stderr
        assert called(tmp_path, "rm", gguf.name, "--yes").returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_no_text_is_refused(tmp_path: Path, gguf: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf"))
    shutil.copy(gguf, odd)
    assert "rename it" in called(tmp_path, "import", str(odd)).stderr


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_doctor_knows_what_was_imported(tmp_path: Path, gguf: Path) -> None:
    imported(tmp_path, gguf)
    said = json.loads(called(tmp_path, "doctor", "--json").stdout)
    own = [one for one in said["choices"] if one["model"] == "Tiny-Chat.Q8_0"]
    assert own and all(one["installed"] for one in own)


@pytest.mark.slow
@each(
    "template, command",
    [
        ("{% for %}", ["run", "-n", "1", "Hi", "-m"]),
        ("{{ raise_exception('never') }}", ["import"]),
    ],
)
def test_an_unusable_template_is_refused_before_weights_are_packed(tmp_path, directory, monkeypatch, template, command):
    monkeypatch.setattr("localspec.weights.opening.register", pytest.fail)
    file = write_model(tmp_path / "a.gguf", directory, "Q8_0", tokenizer__chat_template=template)
    result = called(tmp_path, *command, str(file))
    assert result.returncode == 1 and "chat template cannot be used" in result.stderr
    assert not list(tmp_path.rglob("*.packed")) and listed(tmp_path).keys() == {"demo", "demo-draft"}


@pytest.mark.slow
def test_a_file_without_the_ending_becomes_a_model_too(tmp_path: Path, gguf: Path) -> None:
    blob = gguf.rename(gguf.with_name("sha256-0123"))
    assert called(tmp_path, "import", str(blob)).returncode == 0
    assert called(tmp_path, "run", "-m", "sha256-0123", "-n", "2", "--no-log", "Hi").returncode == 0


def test_what_is_left_out_of_the_metadata_is_reported_once(tmp_path: Path, directory: Path) -> None:
    file = write_model(
        tmp_path / "odd.gguf", directory, tokenizer__ggml__add_bos_token=True, tokenizer__ggml__bos_token_id=0,
        tokenizer__ggml__padding_token_id=2**31, general__sampling__top_p=1e30, general__sampling__penalty_repeat=1.5,
    )  # fmt: skip
    first, second = called(tmp_path, "import", str(file)), called(tmp_path, "import", str(file))
    assert first.returncode == second.returncode == 0
    said = (
        wording("general_sampling_top_p_left"),
        wording("general_sampling_penalty_left"),
        wording("padding_token_left"),
        wording("wants_before_each_prompt"),
    )
    assert [first.stderr.count(one) for one in said] == [1] * len(said)
    assert not any(one in second.stderr for one in said)


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["auto", "int8"])
def test_a_file_that_an_earlier_version_read_in_another_way_is_read_again(tmp_path, gguf, monkeypatch, packing):
    with monkeypatch.context() as earlier:
        earlier.setattr("localspec.weights.gguf_config.ends", lambda metadata: [5])
        first = imported(tmp_path, gguf, "--quantize", "int8")
    paths = Paths(tmp_path)
    if packing == "int8":  # also if it was the only copy meanwhile
        for file in paths.packed.glob("*.packed"):
            file.rename(paths.imports / file.name)
    again = called(tmp_path, "import", str(gguf), "--json", "--quantize", packing)
    assert wording("another_way_it_is_read_again") in again.stderr
    found = json.loads(again.stdout)
    assert (found["name"], found["new"]) == (first["name"], True)
    for file in tmp_path.rglob("*.packed"):
        assert json.loads(read(file).text("generation_config.json"))["eos_token_id"] != [5]
    assert imported(tmp_path, gguf, "--quantize", packing)["new"] is False


@pytest.mark.slow
def test_a_damaged_import_is_named_and_deleted(tmp_path: Path, gguf: Path) -> None:
    path = Path(str(imported(tmp_path, gguf)["path"]))
    path.write_bytes(path.read_bytes()[:-1])
    for command in (("run", "-m", "Tiny-Chat.Q8_0", "Hi"), ("show", "Tiny-Chat.Q8_0"), ("verify", "Tiny-Chat.Q8_0")):
        result = called(tmp_path, *command)
        assert result.returncode == 1 and wording("is_damaged_rm_and_import", file=path) in sentence(result), command
    said = called(tmp_path, "list").stderr
    assert wording("rm_file_and_import_its_gguf", file=path) in said and said.count("is left out") == 1
    path.write_bytes(b"")  # it may be any model, but none without a name
    unnamed = called(tmp_path, "rm", "")
    assert unnamed.returncode == 3 and wording("there_is_no_model", typed="") in sentence(unnamed)
    assert called(tmp_path, "rm", str(path), "--yes").returncode == 0 and not path.exists()
    assert imported(tmp_path, gguf)["new"] is True
