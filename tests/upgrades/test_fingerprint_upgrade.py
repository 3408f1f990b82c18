"""A home in which everything is filed under revisions, as earlier: fingerprints find it, and move it."""

import json
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from command import called
from safetensors.numpy import load_file, save_file

from localspec.models.drafter_cards import trained_drafters
from localspec.models.registry import resolve
from localspec.paths import Paths
from localspec.store.store import Store
from localspec.weights import file_fingerprint, fingerprint
from localspec.weights.checkpoint import revision
from localspec.weights.fingerprint import Identity, recognised, weights_fingerprint
from localspec.weights.gguf_model import GgufModel
from localspec.weights.packed_file import read
from localspec.weights.packed_files import import_of, imports

HERE = Path(__file__).parent
SAID = ("-n", "24", "--seed", "1", "--temp", "1", "--drafter", "phrases")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpack a home with a drafter of a directory, and with an import whose GGUF file is there."""
    with tarfile.open(HERE / "imports-561bc3b4.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Copy a home with phrases, a drafter and a packed form of a directory."""
    return Path(shutil.copytree(HERE / "2026-11-23", tmp_path / "home"))


def pools(home: Path) -> dict[int, tuple[str, int]]:
    with Store.open(Paths(home).database, pytest.fail) as store:
        return {one.pool: (one.tokenizer, one.phrases) for one in store.phrases.pools()}


def in_two_files(path: Path) -> None:
    """Divide a model's weights among two files, which changes its revision."""
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    for number, part in enumerate((names[:2], names[2:])):
        save_file({name: weights[name] for name in part}, path / f"{number}.safetensors")
    table = {name: f"{int(name not in names[:2])}.safetensors" for name in names}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


@pytest.mark.slow
def test_phrases_of_a_directory_stay_with_its_weights(state: Path) -> None:
    with closing(sqlite3.connect(Paths(state).database)) as connection, connection:  # which was written elsewhere
        connection.execute("UPDATE pool SET model = ?1, path = ?1", (str(state / "model"),))
    ((pool, (tokenizer, phrases)),) = pools(state).items()
    assert phrases and tokenizer.endswith(revision(state / "model")[:16])
    result = called(state, "run", "hello", "-m", "model", *SAID)
    assert result.returncode == 0, result.stderr
    ((now, (renamed, more)),) = pools(state).items()
    weights = weights_fingerprint(state / "model")
    assert (now, renamed) == (pool, f"{tokenizer.partition('-')[0]}-{weights[:16]}") and more >= phrases
    (state / "model").rename(state / "moved")
    in_two_files(state / "moved")
    (state / "moved" / "chat_template.jinja").write_text("{% for one in messages %}{{ one.content }}{% endfor %}")
    result = called(state, "run", "hello", "-m", "moved", *SAID)
    assert result.returncode == 0, result.stderr
    assert {number: one[0] for number, one in pools(state).items()} == {pool: renamed}
    assert str(state / "moved") in called(state, "pool", "list").stdout


def test_what_was_packed_of_a_directory_is_not_packed_again(state: Path) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in Paths(state).packed.glob("*.packed")}
    assert before
    packed = [read(Paths(state).packed / name) for name in before]
    for one in packed:
        assert called(state, "run", "hi", "-n", "1", "-m", "model", "--quantize", one.header.packing).returncode == 0
    assert {file.name: file.stat().st_mtime_ns for file in Paths(state).packed.glob("*.packed")} == before


def test_a_drafter_is_found_by_its_revision(home: Path) -> None:
    (drafter,) = trained_drafters(resolve(str(home / "model")), Paths(home))
    assert not drafter.weights and drafter.revision == revision(home / "model")
    file = home / "data" / "drafters" / "model-medusa" / "drafter" / "drafter.json"
    about = json.loads(file.read_text())
    about["target"]["weights"] = weights_fingerprint(home / "model")  # as it is written from now on
    file.write_text(json.dumps(about))
    in_two_files(home / "model")
    (drafter,) = trained_drafters(resolve(str(home / "model")), Paths(home))
    assert drafter.revision != revision(home / "model")


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
def test_an_import_is_recognised_in_a_file_of_another_name_and_read_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr(file_fingerprint, "SETTLED", 0)
    paths, file = Paths(home), (home / "here.gguf").rename(home / "renamed.gguf")
    before = {one.path.name for one in imports(paths).values()}
    read, reads = fingerprint._read, []
    monkeypatch.setattr(fingerprint, "_read", lambda files, *more: reads.extend(files) or read(files, *more))
    if known:
        assert fingerprint.weight_digests([file], paths)
        reads.clear()
    found = import_of(file, paths)
    assert found and found.header.origin.name == "here" and reads == ([] if known else [file])
    reads.clear()
    assert import_of(file, paths) and not reads, "it is read once"
    result = called(home, "import", "renamed.gguf", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["name"] == "here" and json.loads(result.stdout)["packing"] == "blocks"
    assert before <= {one.name for one in paths.imports.glob("*.packed")}


@pytest.mark.slow
def test_another_packing_of_an_import_has_its_revision_and_the_fingerprint_for_both(home: Path) -> None:
    paths, former = Paths(home), imports(Paths(home))["here"]
    assert not former.header.origin.weights
    assert weights_fingerprint(former.path) == former.header.origin.revision
    phrases = pools(home)
    result = called(home, "import", "here.gguf", "--quantize", "int4", "--json")
    assert result.returncode == 0, result.stderr
    new, former = read(Path(json.loads(result.stdout)["path"])), read(paths.imports / former.path.name)
    weights = GgufModel.open(home / "here.gguf").weights
    assert new.header.origin.weights == weights and not former.header.origin.weights
    assert new.header.origin.revision == former.header.origin.revision
    assert recognised([home / "here.gguf"], new.header.origin.files, paths)
    for one in (new, former):
        assert Identity(one.path).weights == weights and Identity(one.path).owns(former.header.origin.revision)
        result = called(home, "run", "hello", "-m", "here", "--quantize", one.header.packing, *SAID)
        assert result.returncode == 0, result.stderr
    assert pools(home).keys() == phrases.keys()


def test_an_import_whose_file_is_gone_keeps_its_phrases(home: Path) -> None:
    before = pools(home)
    for name in ("here", "gone"):
        result = called(home, "run", "hello", "-m", name, *SAID)
        assert result.returncode == 0, result.stderr
    after = pools(home)
    assert after.keys() == before.keys()
    assert all(after[pool][0] == before[pool][0] and after[pool][1] >= before[pool][1] for pool in before)
