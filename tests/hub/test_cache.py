"""Models that are found in the cache without a network, files that are not models, and damaged records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import safetensors, write_checkpoint
from each import each
from hub_server import git_sha1

from localspec.hub.cache import discard, find_snapshot, pulled_sources, verify
from localspec.hub.records import ExpectedFile, forget, record, remember
from localspec.hub.sources import Source
from localspec.paths import Paths

SOURCE, COMMIT = Source("org/name"), "c" * 40


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return Paths(tmp_path / "home")


@pytest.fixture
def snapshot(tmp_path: Path, paths: Paths) -> Path:
    """Write a snapshot as another program leaves it."""
    root = tmp_path / "hf" / "hub" / "models--org--name"
    path = write_checkpoint(root / "snapshots" / COMMIT)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    return path


def facts(path: Path) -> tuple[ExpectedFile, ...]:
    return tuple(
        ExpectedFile(file.name, file.stat().st_size, git_sha1(file.read_bytes())) for file in sorted(path.iterdir())
    )


def test_what_another_program_fetched(paths, snapshot):
    assert find_snapshot(SOURCE, paths) == snapshot == find_snapshot(Source("org/name", COMMIT), paths)
    for other in (Source("org/name", "dev"), Source("org/name", "d" * 40), Source("org/other")):
        assert find_snapshot(other, paths) is None


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_what_is_not_whole_is_not_here(paths, snapshot, missing):
    (snapshot / missing).unlink()
    assert find_snapshot(SOURCE, paths) is None
    (snapshot / missing).symlink_to(snapshot / "nowhere")
    assert find_snapshot(SOURCE, paths) is None


def test_weights_that_are_cut_or_lack_a_shard(paths, snapshot):
    weights = (snapshot / "model.safetensors").read_bytes()
    (snapshot / "model.safetensors").write_bytes(weights[:-1])
    assert find_snapshot(SOURCE, paths) is None
    (snapshot / "model.safetensors").unlink()
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (snapshot / shards["a"]).write_bytes(safetensors({"a": [4]}))
    assert find_snapshot(SOURCE, paths) is None
    (snapshot / shards["b"]).write_bytes(safetensors({"b": [4]}))
    assert find_snapshot(SOURCE, paths) == snapshot


def test_heads_of_medusa_need_no_tokenizer(paths, snapshot):
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "medusa_lm_head.pt").write_bytes(b"x")
    assert find_snapshot(SOURCE, paths) == snapshot


@each("said", ["", "main", "../../x", COMMIT[:-1], COMMIT + "\n", "\xff"])
def test_invalid_refs(paths, snapshot, said):
    (snapshot.parent.parent / "refs" / "main").write_bytes(said.encode("latin-1"))
    assert find_snapshot(SOURCE, paths) == (snapshot if said.strip() == COMMIT else None)


def test_the_cache_is_where_the_client_has_it(tmp_path):
    """Our reading of the variables, and the client's own, made when it is imported."""
    places = [
        ({"HF_HOME": "a"}, "a/hub"),
        ({"HF_HOME": "a", "HF_HUB_CACHE": "b"}, "b"),
        ({"HUGGINGFACE_HUB_CACHE": "c"}, "c"),
        ({"XDG_CACHE_HOME": "d"}, "d/huggingface/hub"),
        ({"HOME": "e"}, "e/.cache/huggingface/hub"),
        ({"HF_HOME": "$PLACE/f", "PLACE": "g"}, "g/f/hub"),
        ({"HF_HUB_CACHE": "~/h", "HOME": "i"}, "i/h"),
    ]
    code = (
        "import importlib, json, os, sys; import huggingface_hub.constants as c\n"
        "from localspec.environment import hub_places as p; usual = dict(os.environ)\n"
        "for variables in json.loads(sys.argv[1]):\n"
        "    os.environ.clear(); os.environ.update(usual | variables); importlib.reload(c)\n"
        "    print(c.HF_HUB_CACHE, p().cache)"
    )
    given = [
        {name: value if value[0] in "$~" else str(tmp_path / value) for name, value in variables.items()}
        for variables, _ in places
    ]
    foreign = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")
    usual = {name: value for name, value in os.environ.items() if name not in foreign}
    told = subprocess.check_output([sys.executable, "-c", code, json.dumps(given)], text=True, env=usual)
    assert [line.split() for line in told.splitlines()] == [[str(tmp_path / place)] * 2 for _, place in places]


def test_a_ref_leads_nowhere_but_to_a_commit(paths, snapshot):
    root = snapshot.parent.parent
    write_checkpoint(root / "elsewhere")
    (root / "refs" / "main").write_text("../elsewhere")
    assert find_snapshot(SOURCE, paths) is None


def test_a_tokenizer_that_needs_a_conversion_counts_as_missing(paths, snapshot):
    (snapshot / "tokenizer.json").rename(snapshot / "tokenizer.model")
    assert find_snapshot(SOURCE, paths) is None
    (snapshot / "tokenizer.model").rename(snapshot / "tokenizer.json")
    assert find_snapshot(SOURCE, paths) == snapshot


def test_a_record_says_what_was_pulled(paths, snapshot):
    assert remember(SOURCE, COMMIT, facts(snapshot), paths) is None
    pulled = record(SOURCE, paths)
    assert (pulled.commit, pulled.files) == (COMMIT, facts(snapshot)) and pulled.time
    file = paths.pulled / "models--org--name.json"
    assert file.stat().st_mode & 0o777 == 0o600
    remember(Source("org/name", "dev"), "d" * 40, facts(snapshot), paths)
    assert record(SOURCE, paths) == pulled and record(Source("org/name", "dev"), paths).commit == "d" * 40
    forget(SOURCE, COMMIT, paths)
    assert record(SOURCE, paths) is None and record(Source("org/name", "dev"), paths)
    forget(SOURCE, "d" * 40, paths)
    assert not file.exists()


def test_what_was_pulled_and_is_whole(paths, snapshot, tmp_path):
    assert pulled_sources(paths) == []  # here, but not pulled
    other = write_checkpoint(tmp_path / "hf" / "hub" / "models--an--other" / "snapshots" / COMMIT)
    wanted = [Source("an/other"), SOURCE, Source("org/name", "refs/pr/1"), Source("org/name", "v1.0")]
    for source in reversed(wanted):
        remember(source, COMMIT, facts(snapshot if source.repo == SOURCE.repo else other), paths)
    remember(Source("org/name", "gone"), "d" * 40, facts(snapshot), paths)
    remember(Source("org/name", "-\x1b[2J"), COMMIT, facts(snapshot), paths)
    for name, content in {"models--a--b": "{", "models--..--..": "{}", "models--x": "[" * 10_000, "y": "{}"}.items():
        (paths.pulled / f"{name}.json").write_text(content)
    (paths.pulled / "models--org--copy.json").write_text((paths.pulled / "models--org--name.json").read_text())
    assert pulled_sources(paths) == wanted
    (other / "tokenizer.json").unlink()
    assert pulled_sources(paths) == wanted[1:]
    (paths.pulled / "models--org--name.json").write_text("cut")
    assert pulled_sources(paths) == [] == pulled_sources(Paths(Path("/proc/nope")))


def test_a_recorded_revision_is_whole_or_not_here(paths, snapshot):
    remember(SOURCE, COMMIT, facts(snapshot), paths)
    assert find_snapshot(SOURCE, paths) == snapshot
    with (snapshot / "tokenizer.json").open("ab") as file:
        file.write(b" ")
    assert find_snapshot(SOURCE, paths) is None


@each("content", ["", "[]", "{", '{"format": 2}', '{"format": 1, "repo": "org/other", "revisions": {}}', "[" * 10_000,
     '{"format": 1, "repo": "org/name", "revisions": {"main": {"commit": "../x", "time": "", "files": {}}}}',
     json.dumps({"format": 1, "repo": "org/name", "revisions": {"main": {
         "commit": COMMIT, "time": "", "files": {"../../../etc/passwd": {"bytes": 1, "git_sha1": "0" * 40}}}}}),
     json.dumps({"format": 1, "repo": "org/other", "revisions": {"main": {
         "commit": COMMIT, "time": "", "files": {"config.json": {"bytes": 1, "git_sha1": "0" * 40}}}}}),
     json.dumps({"format": 2, "repo": "org/name", "revisions": {"main": {
         "commit": COMMIT, "time": "", "files": {"config.json": {"bytes": 1, "git_sha1": "0" * 40}}}}})])  # fmt: skip
def test_a_damaged_record_is_not_believed_and_set_aside_when_a_new_one_comes(paths, snapshot, content):
    paths.pulled.mkdir(parents=True, exist_ok=True)
    file = paths.pulled / "models--org--name.json"
    file.write_text(content)
    assert record(SOURCE, paths) is None and find_snapshot(SOURCE, paths) == snapshot
    told = remember(SOURCE, COMMIT, facts(snapshot), paths)
    assert told and str(file) in told and "set aside" in told
    (aside,) = paths.pulled.glob("*.aside")
    assert aside.read_text() == content and record(SOURCE, paths).commit == COMMIT
    aside.unlink()


def test_discarding_touches_nothing_outside_the_cache(paths, snapshot, tmp_path):
    own = tmp_path / "own.safetensors"
    (snapshot / "model.safetensors").rename(own)
    (snapshot / "model.safetensors").symlink_to(own)
    discard(SOURCE, COMMIT, ExpectedFile("model.safetensors", 1, "0" * 40))
    assert own.exists() and not os.path.lexists(snapshot / "model.safetensors")


def test_progress_of_verifying_counts_bytes(paths, snapshot):
    remember(SOURCE, COMMIT, facts(snapshot), paths)
    seen: list[tuple[int, int]] = []
    assert verify(SOURCE, paths, lambda done, total: seen.append((done, total))).problems == ()
    total = sum(file.bytes for file in facts(snapshot))
    assert seen[-1] == (total, total) and seen == sorted(seen)
