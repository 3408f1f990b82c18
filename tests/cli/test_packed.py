"""Packed models as commands know them: made by `pull`, kept alone where that is asked for, listed, verified, removed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli.hub_commands import WEIGHTS, at, common_cache, home_with_cache
from hub_server import Hub, Repository, model_repository, served

from localspec.checkpoint import inspect, revision
from localspec.cli.console import size
from localspec.errors import NotHere
from localspec.events import Reporter
from localspec.hub.cache import find_snapshot
from localspec.hub.sources import Source
from localspec.machine import compiled
from localspec.models.packed_files import packed_files
from localspec.models.registry import resolve
from localspec.native.packed_cache import load
from localspec.paths import Paths

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")


@pytest.fixture
def repo(tiny) -> Repository:
    return model_repository(tiny("qwen2-one-key-head").path)


@pytest.fixture
def hub(repo: Repository):
    with served(org__name=repo) as hub:
        yield hub


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return home_with_cache(tmp_path, monkeypatch)


def used_by(monkeypatch: pytest.MonkeyPatch, device: str, quantize: str) -> None:
    precision = SimpleNamespace(device=SimpleNamespace(name=device), quantize=quantize)
    monkeypatch.setattr(
        "localspec.pulling.packing.recommend",
        lambda *_, **__: SimpleNamespace(plan=SimpleNamespace(precision=precision)),
    )


def packed(home: Path) -> list[Path]:
    return [one.path for one in packed_files(Paths(home))]


@pytest.mark.parametrize(
    ("device", "quantize", "made"),
    [("cpu", "int8", 1), ("cpu", "int4", 1), ("cpu", "none", 0), ("cuda:0", "int8", 0), ("mps", "int4", 0)],
)
def test_pull_packs_what_the_cpu_engine_would_use(home, hub: Hub, monkeypatch, device, quantize, made):
    used_by(monkeypatch, device, quantize)
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and result.stderr == "" and len(packed(home)) == made
    assert ("is packed" in result.stdout) == bool(made)
    (row,) = [row for row in json.loads(at(home, hub, "list", "--json").stdout) if row["name"] == "org/name"]
    assert row["packed"] == ({quantize: packed(home)[0].stat().st_size} if made else {})
    assert Path(row["path"]) == find_snapshot(Source("org/name"), Paths(home))


def test_pull_packs_nothing_where_the_library_is_missing(home, hub: Hub, monkeypatch):
    used_by(monkeypatch, "cpu", "int8")
    monkeypatch.setattr(compiled, "missing", lambda: "there is none")
    assert at(home, hub, "pull", "org/name").returncode == 0 and packed(home) == []


def test_a_disk_without_room_for_it_is_a_notice_and_the_model_is_here(home, hub: Hub, monkeypatch):
    used_by(monkeypatch, "cpu", "int8")
    (home / "cache").write_text("no directory")
    result = at(home, hub, "pull", "org/name")
    assert (
        result.returncode == 0
        and "cannot be written" in result.stderr
        and find_snapshot(Source("org/name"), Paths(home))
    )


def test_kept_alone_no_second_copy_stays(home, hub: Hub, repo, tiny):
    result = at(home, hub, "pull", "org/name", "--packed-only")
    (file,) = packed(home)
    assert result.returncode == 0 and f"org/name is packed, {size(file.stat().st_size)}: {file}" in result.stdout
    assert f"{size(sum(map(len, repo.files.values())))}, is deleted" in result.stderr
    assert not list(common_cache(home).glob("models--*")) and find_snapshot(Source("org/name"), Paths(home)) is None
    card = resolve("org/name", Paths(home))
    assert card.path == file and card.here and inspect(file).packing == "int8"
    assert revision(file) == revision(tiny("qwen2-one-key-head").path)
    model = load(card.path, "int8", "", 1, Reporter(pytest.fail), Paths(home))
    assert model.text("tokenizer.json") == repo.files["tokenizer.json"] and model.sizes.family == "qwen2"
    (row,) = [row for row in json.loads(at(home, hub, "list", "--json").stdout) if row["name"] == "org/name"]
    assert (
        row["path"] == str(file)
        and row["packed"] == {"int8": row["bytes"]}
        and row["parameters"] == inspect(file).parameters
    )
    shown = json.loads(at(home, hub, "show", "org/name", "--json").stdout)
    assert shown["path"] == str(file) and shown["installed"] and shown["revision"] == revision(file)


def test_kept_alone_it_is_not_fetched_twice_and_what_needs_its_own_weights_says_how_to_fetch_them(home, hub: Hub):
    from localspec.nn.target import Target

    assert at(home, hub, "pull", "org/name", "--packed-only").returncode == 0
    (file,) = packed(home)
    asked, before = len(hub.requests), file.stat().st_mtime_ns
    result = at(home, hub, "pull", "org/name", "--packed-only")
    assert result.returncode == 0 and "is packed" in result.stdout and file.stat().st_mtime_ns == before
    assert not any(WEIGHTS in str(request) for request in hub.requests[asked:])
    for asks in (lambda: Target.load(file), lambda: load(file, "int4", "", 1, Reporter(), Paths(home))):
        with pytest.raises(NotHere, match=r"packed form in int8 alone.*`localspec pull org/name`") as found:
            asks()
        assert found.value.exit_code == 3
    assert at(home, hub, "pull", "org/name").returncode == 0
    assert Target.load(resolve("org/name", Paths(home)).path).nbytes


def test_kept_alone_what_was_there_before_is_not_touched(home, hub: Hub, repo):
    assert at(home, hub, "pull", "org/name").returncode == 0
    before = {
        path: path.stat().st_mtime_ns for path in common_cache(home).glob("models--*/[bs]*/**/*") if path.is_file()
    }
    result = at(home, hub, "pull", "org/name", "--packed-only")
    assert result.returncode == 0 and "deleted" not in result.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert find_snapshot(Source("org/name"), Paths(home)) and at(home, hub, "verify", "org/name").returncode == 0


def test_kept_alone_only_what_it_fetched_itself_goes(home, hub: Hub, repo):
    assert at(home, hub, "pull", "org/name").returncode == 0
    path = find_snapshot(Source("org/name"), Paths(home))
    (path / WEIGHTS).resolve().unlink()
    (path / WEIGHTS).unlink()
    stay = sorted(file.name for file in path.iterdir())
    assert at(home, hub, "pull", "org/name", "--packed-only").returncode == 0
    assert sorted(file.name for file in path.iterdir()) == stay and "config.json" in stay
    assert resolve("org/name", Paths(home)).path == packed(home)[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: files.update({"config.json": _config(files, hidden_act="gelu")}), "gelu"),
        (
            lambda files: files.update({"config.json": _config(files, rope_parameters={"rope_type": "spiral"})}),
            "spiral",
        ),
        (lambda files: files.update({"config.json": _config(files, rms_norm_eps="x")}), "rms_norm_eps"),
    ],
)
def test_what_cannot_be_packed_is_refused_before_the_download(home, repo, change, said):
    change(repo.files)
    with served(org__name=repo) as hub:
        result = at(home, hub, "pull", "org/name", "--packed-only", "--yes")
        assert result.returncode == 1 and result.stderr.count("\n") == 1
        assert re.search(f"cannot be kept packed alone: .*{said}.*; leave --packed-only out", result.stderr)
    assert not list(common_cache(home).rglob("blobs/*"))


def _config(files, **values):
    return json.dumps({**json.loads(files["config.json"]), **values}).encode()


def test_without_the_library_it_is_refused_before_the_download(home, hub: Hub, monkeypatch):
    monkeypatch.setattr(compiled, "missing", lambda: "this installation has no compiled library")
    result = at(home, hub, "pull", "org/name", "--packed-only")
    assert result.returncode == 1 and "no compiled library" in result.stderr
    assert not list(common_cache(home).rglob("blobs/*"))
    result = at(home, hub, "pull", "demo", "--packed-only")
    assert result.returncode == 0 and "demo is here already" in result.stdout, "nothing is fetched for it"


# -- verified and removed ----------------------------------------------------------------------------------------------


def test_verify_reads_it_and_names_what_is_damaged(home, hub: Hub):
    assert at(home, hub, "pull", "org/name", "--packed-only").returncode == 0
    (file,) = packed(home)
    result = at(home, hub, "verify", "org/name")
    assert result.returncode == 0 and "every weight agrees with its digest" in result.stdout
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    result = at(home, hub, "verify", "org/name")
    assert result.returncode == 1 and "is damaged" in result.stdout and f"{file} is damaged; delete it" in result.stderr
    file.write_bytes(content[:-1])
    result = at(home, hub, "verify", "org/name")
    assert result.returncode == 3 and "`localspec pull org/name`" in result.stderr, "it does not even tell its name"
    result = at(home, hub, "pull", "org/name", "--packed-only")
    assert (
        result.returncode == 0 and "is damaged" in result.stderr and at(home, hub, "verify", "org/name").returncode == 0
    )


def test_rm_deletes_it_with_the_model(home, hub: Hub, monkeypatch):
    used_by(monkeypatch, "cpu", "int8")
    assert at(home, hub, "pull", "org/name").returncode == 0
    path, (file,) = find_snapshot(Source("org/name"), Paths(home)), packed(home)
    load(path, "int4", "", 1, Reporter(), Paths(home))
    (file.parent / (file.name + ".partial")).write_bytes(b"of a process that was killed")
    result = at(home, hub, "rm", "org/name")
    assert result.returncode == 2 and str(file) in result.stdout and file.exists()
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 0 and [left.suffix for left in file.parent.iterdir() if left.suffix != ".lock"] == []
    assert at(home, hub, "rm", "org/name", "--yes").returncode == 3


def test_rm_deletes_one_that_is_all_there_is(home, hub: Hub):
    assert at(home, hub, "pull", "org/name", "--packed-only").returncode == 0
    (file,) = packed(home)
    total = size(file.stat().st_size)
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 0 and f"Deleted; {total} are free again." in result.stdout and packed(home) == []
    assert at(home, hub, "show", "org/name").returncode == 3
