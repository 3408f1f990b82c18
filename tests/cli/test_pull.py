"""`pull` with the real client against a local hub: messages, exit codes, and the files in the cache."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from cli.hub_commands import WEIGHTS, at, blobs, common_cache, repository, started, stray
from clocks import PATIENCE, until
from command import ROOT, localspec, reaching, sentence
from each import each
from golden import wording
from hub_server import Hub, Repository, model_repository, served

from localspec.hub.cache import find_snapshot
from localspec.hub.sources import Source
from localspec.machine.machine import Device, Machine
from localspec.paths import Paths

pytestmark = pytest.mark.slow

SOURCE = Source("org/name")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return repository(tmp_path / "model")


def found(home: Path, source: Source = SOURCE) -> Path | None:
    return find_snapshot(source, Paths(home))


def is_whole(home: Path, repo: Repository) -> bool:
    path = found(home)
    assert path is not None and stray(home) == []
    return {file.name: file.read_bytes() for file in path.iterdir()} == repo.files


def test_fresh_then_everything_is_cached(home, hub, repo):
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and result.stderr == "" and is_whole(home, repo)
    assert "apache-2.0" in result.stdout and "0 bytes cached already, 3.4 MiB to fetch" in result.stdout
    assert result.stdout.splitlines()[-1] == f"org/name is here: {found(home)}"
    record = home / "data" / "pulled" / "models--org--name.json"
    assert record.stat().st_mode & 0o777 == 0o600 and record.parent.stat().st_mode & 0o777 == 0o700
    said = json.loads(record.read_text())["revisions"]["main"]
    assert said["commit"] == repo.revisions["main"] and set(said["files"]) == set(repo.files)
    assert "sha256" in said["files"][WEIGHTS] and "git_sha1" in said["files"]["config.json"]
    assert (common_cache(home) / "models--org--name" / "refs" / "main").read_text() == said["commit"]

    before, hub.requests[:] = blobs(home), []
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and "0 bytes to fetch" in result.stdout and blobs(home) == before
    assert [request for request in hub.requests if "resolve" in request] == []  # not even requested


def test_dry_run_fetches_nothing_and_is_one_value_as_json(home, hub, repo):
    result = at(home, hub, "pull", "org/name", "--dry-run", "--json")
    value = json.loads(result.stdout)
    assert result.returncode == 0 and result.stderr == "" and not common_cache(home).exists()
    total = sum(map(len, repo.files.values()))
    assert (value["bytes"], value["cached_bytes"], value["fetch_bytes"]) == (total, 0, total)
    assert value["name"] == "org/name" and value["fits"] is True and value["disk_free_bytes"] > 0 and value["memory"]
    (source,) = value["sources"]
    assert {key: source[key] for key in ("repo", "revision", "commit", "license", "gated")} == {
        "repo": "org/name", "revision": "main", "commit": repo.revisions["main"], "license": "apache-2.0",
        "gated": False,
    }  # fmt: skip
    assert {file["name"]: file["bytes"] for file in source["files"]} == {n: len(c) for n, c in repo.files.items()}
    assert not any(file["cached"] for file in source["files"])
    assert at(home, hub, "pull", "org/name", "--dry-run").returncode == 0 and not common_cache(home).exists()
    assert "--dry-run" in sentence(at(home, hub, "pull", "org/name", "--json"))
    at(home, hub, "pull", "org/name")
    assert json.loads(at(home, hub, "pull", "org/name", "--dry-run", "--json").stdout)["fetch_bytes"] == 0


def test_a_tag_and_a_commit_are_revisions_and_share_equal_files(home, hub, repo):
    commit = repo.revisions["main"]
    repo.revisions |= {"v1.0": commit, "refs/pr/1": commit}
    for revision in ("v1.0", commit, "refs/pr/1"):
        assert at(home, hub, "pull", f"org/name@{revision}").returncode == 0
        assert found(home, Source("org/name", revision)) is not None
    assert found(home) is None  # main was not pulled
    assert len([request for request in hub.requests if request.startswith("GET") and WEIGHTS in request]) == 1


def test_what_was_pulled_stays_what_it_was(home, hub, repo):
    at(home, hub, "pull", "org/name")
    (common_cache(home) / "models--org--name" / "refs" / "main").write_text("0" * 40)
    assert found(home) is not None


def test_as_the_real_server_sends_files(home, hub: Hub, repo):
    """Small files are compressed for clients that accept it. Another host, which must not see the token, sends large ones."""
    hub.gzip = hub.elsewhere = True
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and result.stderr == "" and is_whole(home, repo)
    assert hub.tokens == {"Bearer hf_secretsecret"} and hub.tokens_elsewhere == {None}


def test_the_former_commit_of_a_branch_is_reported(home, hub: Hub, repo):
    at(home, hub, "pull", "org/name")
    former = repo.revisions["main"]
    repo.files["README.md"] += b"more"
    repo.revisions["main"] = "e" * 40
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and f"`localspec rm org/name@{former}` deletes it" in result.stderr
    assert found(home).name == "e" * 40 and at(home, hub, "rm", f"org/name@{former}", "--yes").returncode == 0
    assert at(home, hub, "verify", "org/name").returncode == 0


# -- interrupted --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_at_half_and_continued(home, hub: Hub, repo, sent):
    hub.hold = 2_000_000
    process = started(home, hub, "pull", "org/name")
    assert hub.waiting.wait(PATIENCE)
    until(lambda: sum(path.stat().st_size for path in common_cache(home).rglob("*.incomplete")) >= 2**20)
    process.send_signal(sent)
    out, errors = process.communicate(timeout=PATIENCE)
    assert found(home) is None and "is here" not in out and not list((home / "data" / "pulled").glob("*.json"))
    if sent == signal.SIGINT:
        assert process.returncode == 130 and stray(home) == []
        lines = errors.splitlines()
        assert lines[-1] == "localspec: Interrupted." and len(lines) == 2
        assert re.search(
            r"These files stay in the cache: .*tokenizer\.json.*\. A later pull fetches model\.safetensors .* \(1,048,576 of 3,600,\d+ bytes",
            lines[0],
        )
        assert wording("fetched_again_from_beginning") in lines[0] and "goes on" not in lines[0]
    else:
        assert process.returncode == -sent and len(stray(home)) == (sent == signal.SIGKILL)
    kept = blobs(home)

    hub.hold = None
    hub.requests.clear()
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and is_whole(home, repo)
    assert ("Removed" in result.stderr and wording("killed_left_behind") in result.stderr) == (sent == signal.SIGKILL)
    assert [r.rpartition("/")[2] for r in hub.requests if r.startswith("GET /org")] == [WEIGHTS]
    small = {name: when for name, when in kept.items() if "incomplete" not in name}
    assert len(small) == 3 and small.items() <= blobs(home).items()


def test_empty_files_that_the_client_of_a_killed_pull_left_go(home, hub: Hub, repo):
    place = common_cache(home) / "models--org--name" / "blobs"
    place.mkdir(parents=True)
    empty, foreign = (place / f"tmp_{uuid.uuid4()}" for _ in range(2))
    empty.touch()
    foreign.write_text("of something else")
    both, link, file, others = (
        common_cache(home) / f"tmp{name}" for name in ("a_bcdef1", "abcdefgh", "12345678", "_x_x_x_x")
    )
    for directory in (both, link, file, others):
        directory.mkdir()
        if directory != link:
            (directory / "dummy_file_src").touch()
        if directory in (both, link):
            (directory / "dummy_file_dst").symlink_to("dummy_file_src")
    (others / "dummy_file_src").write_text("of something else")
    (others / "dummy_file_dst").symlink_to(others / "dummy_file_src")
    assert at(home, hub, "pull", "org/name").returncode == 0 and is_whole(home, repo)
    assert not empty.exists() and foreign.exists()
    assert not both.exists() and not link.exists() and [*file.iterdir()] == [] and len([*others.iterdir()]) == 2


def test_the_server_dies_midway(home, hub: Hub, repo):
    hub.die_after = 2_000_000
    process = started(home, hub, "pull", "org/name")
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and found(home) is None and stray(home) == []
    assert errors.count("\n") == 1 and hub.endpoint in errors
    assert "config.json" in errors and "A later pull fetches model.safetensors" in errors
    hub.dead, hub.die_after = False, None
    assert at(home, hub, "pull", "org/name").returncode == 0 and is_whole(home, repo)


def test_a_connection_that_breaks_once_is_resumed(home, hub: Hub, repo, monkeypatch):
    """The client asks for the rest of the file."""
    monkeypatch.setattr("time.sleep", lambda seconds: setattr(hub, "dead", False) if seconds >= 1 else None)
    hub.die_after = 2_000_000

    def revive(path: str) -> None:
        if hub.sent_bytes:
            hub.die_after = None

    hub.answer = revive
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and result.stderr == "" and is_whole(home, repo)
    assert hub.sent_bytes < 1.5 * len(repo.files[WEIGHTS])


def test_two_pulls_at_once(home, hub: Hub, repo):
    hub.hold = 2_000_000
    processes = [started(home, hub, "pull", "org/name") for _ in range(2)]
    assert hub.waiting.wait(PATIENCE)
    time.sleep(1.5)  # the other pull waits for its turn
    hub.go.set()
    for process in processes:
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "") and "is here" in out
    assert is_whole(home, repo) and at(home, hub, "verify", "org/name").returncode == 0
    assert hub.sent_bytes == len(repo.files[WEIGHTS])  # it came once


# -- damaged ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_wrong_hash_is_removed_and_nothing_counts_as_installed(home, hub: Hub, repo, name):
    content = repo.files[name]
    repo.sent[name] = content[:-1] + b"!"
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert f"{name} is damaged: its {'sha256' if name == WEIGHTS else 'git' + chr(39) + 's sha1'}" in result.stderr
    assert wording("it_was_removed") in result.stderr
    assert wording("fetched_again_from_beginning_2", name=name) in result.stderr
    assert found(home) is None and stray(home) == []
    assert not any(path.read_bytes() == repo.sent[name] for path in common_cache(home).glob("models--*/blobs/*"))
    repo.sent.clear()
    assert at(home, hub, "pull", "org/name").returncode == 0 and is_whole(home, repo)


def test_a_file_that_is_damaged_in_the_cache_is_fetched_again(home, hub: Hub, repo):
    """`pull` repairs what `verify` reports: wrong bytes of the right length, a short file, and a broken link."""
    at(home, hub, "pull", "org/name")
    file = found(home) / WEIGHTS
    for damage, cached in (
        (lambda blob: blob.write_bytes(blob.read_bytes()[:-1] + b"!"), True),
        (lambda blob: blob.write_bytes(b"short"), False),
        (Path.unlink, False),
    ):
        damage(file.resolve())
        assert at(home, hub, "verify", "org/name").returncode == 1
        result = at(home, hub, "pull", "org/name")
        assert result.returncode == 0 and ("0 bytes to fetch" in result.stdout) == cached
        again = f"{WEIGHTS} of org/name was damaged in the cache and was fetched again."
        assert (again in result.stderr) == cached  # for the other files, the plan announced that they would be fetched
        assert is_whole(home, repo) and at(home, hub, "verify", "org/name").returncode == 0


@pytest.mark.parametrize(
    ("sent", "said"),
    [(lambda c: c + b"more", "now announces"), (lambda c: c[:-5], "now announces"), (lambda c: b"", "announce")],
    ids=["longer", "shorter", "empty"],
)
def test_another_length_than_was_planned(home, hub: Hub, repo, sent, said):
    repo.sent[WEIGHTS] = sent(repo.files[WEIGHTS])
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 1 and said in result.stderr and "These files stay in the cache: " in result.stderr
    assert found(home) is None and stray(home) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("tokenizer.json", "sends more of tokenizer.json than the 2 bytes"), ("config.json", "longer than announced")],
)
def test_a_file_that_continues_after_what_was_announced(home, hub: Hub, repo, name, said):
    hub.chunked = True
    repo.sent[name] = repo.files[name] + b" " * 30_000_000
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 1 and said in result.stderr and found(home) is None and stray(home) == []


# -- refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("closed", "said", "late"),
    [
        ((401, "GatedRepo"), wording("accept_terms_then_log_here_hf"), False),
        ((403, "GatedRepo"), wording("account_logged_here_access"), True),
        ((401, ""), wording("does_not_accept_the_token"), True),
        ((403, ""), "forbids access", False),
    ],
)
def test_gated(home, hub: Hub, repo, closed, said, late):
    if late:
        at(home, hub, "pull", "org/name")
        (found(home) / "tokenizer.json").resolve().unlink()
    repo.closed, repo.gated = closed, "manual"
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 5 and said in result.stderr and result.stderr.count("\n") == 1
    assert f"{hub.endpoint}/org/name" in result.stderr or closed == (401, "")
    assert wording("hf_auth_login") in result.stderr and "hf_secret" not in result.stdout + result.stderr
    assert found(home) is None
    hub.token = "hf_secretsecret"
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and ", gated" in result.stdout and is_whole(home, repo)


def test_a_model_that_would_be_refused_once_it_is_here_is_not_fetched(home, hub: Hub, repo):
    config = {**json.loads(repo.files["config.json"]), "num_local_experts": 8, "shared_intermediate_size": 16}
    config |= {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid"}
    repo.files["config.json"] = json.dumps(config).encode()
    result = at(home, hub, "pull", "org/name", "--force")
    assert result.returncode == 1 and "org/name has experts (num_local_experts = 8), which" in sentence(result)
    assert wording("nearest_model_granite_4_0_micro") in result.stderr and not common_cache(home).exists()


def test_a_repository_and_a_revision_that_are_not_there(home, hub):
    result = at(home, hub, "pull", "org/nam")
    assert result.returncode == 3 and wording("there_model_org_nam") in sentence(result)
    result = at(home, hub, "pull", "org/name@mian")
    assert result.returncode == 3 and wording("did_you_mean_main") in sentence(result)
    at(home, hub, "pull", "org/name")
    assert wording("did_you_mean_org_name") in sentence(at(home, hub, "pull", "org/nam"))
    result = at(home, hub, "pull", "dem")
    assert result.returncode == 3 and wording("did_you_mean_demo") in sentence(result)


@each("name", ["../../x", "org/../x", "/etc/passwd", "org/name@../..", "org/na me", "org/name@", "a/b/c", "org/\x1b[2J",
             "org/name\n", "o--rg/name", "org/name.git", "org/" + "n" * 100, "-org/name", "org/name@-x", ".a/b"])  # fmt: skip
def test_invalid_names_are_refused_without_a_request(home, hub: Hub, name):
    result = at(home, hub, "pull", "--", name)
    assert result.returncode in (2, 3) and "\x1b" not in sentence(result)
    assert hub.requests == [] and not common_cache(home).exists() and not (home / "data").exists()


def test_a_disk_that_is_too_small(home, hub: Hub, repo, monkeypatch):
    usage = type("usage", (), {"free": 3_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 4 and wording("n3_4_mib_fetched") in result.stderr and "--force" in result.stderr
    assert not common_cache(home).exists()
    assert json.loads(at(home, hub, "pull", "org/name", "--dry-run", "--json").stdout)["fits"] is False
    result = at(home, hub, "pull", "org/name", "--force")
    assert result.returncode == 0 and result.stderr == "" and is_whole(home, repo)


def test_what_will_not_fit_into_memory(home, hub: Hub, repo, monkeypatch):
    small = Machine((Device("cpu", "a processor", 10**9, 600 * 10**6 + 1000, ("fp32",)),), 1)
    monkeypatch.setattr("localspec.pulling.pull.this_machine", lambda: small)
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 4 and wording("org_name_does_not_fit") in result.stderr and "--force" in result.stderr
    assert json.loads(at(home, hub, "pull", "org/name", "--dry-run", "--json").stdout)["fits"] is False
    assert not common_cache(home).exists()
    assert at(home, hub, "pull", "org/name", "--force").returncode == 0 and is_whole(home, repo)


@each("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline(home, hub: Hub, variable):
    result = at(home, hub, "pull", "org/name", **{variable: "1"})
    assert result.returncode == 3 and "HF_HUB_OFFLINE" in sentence(result) and hub.requests == []


def test_a_cache_that_cannot_be_written(home, hub: Hub, repo):
    (home / "hf").write_text("a file where a directory belongs")
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 1 and str(home / "hf") in result.stderr and "Traceback" not in result.stderr


def test_a_disk_that_fills_up_meanwhile(home, hub: Hub, repo, monkeypatch):
    from huggingface_hub import file_download

    def write(url: str, *more: object, get=file_download.http_get, **named: object) -> None:
        if url.endswith(WEIGHTS):
            raise OSError(28, "No space left on device")
        get(url, *more, **named)

    monkeypatch.setattr(file_download, "http_get", write)
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 4 and wording("is_full_make_room") in result.stderr
    assert re.search(r"These files stay in the cache: .*config\.json\.", result.stderr)
    assert found(home) is None and stray(home) == []


def test_a_password_in_the_address_is_not_shown(home):
    result = at(home, Hub(endpoint="http://me:hunter2@127.0.0.1:9"), "pull", "org/name")
    assert result.returncode == 1 and wording("http_127_0_0_1_9_cannot_reached") in sentence(result)
    assert "hunter2" not in result.stderr
    assert "HF_ENDPOINT" in sentence(at(home, Hub(endpoint="ftp://x"), "pull", "org/name"))


# -- Medusa heads -------------------------------------------------------------------------------------------------------


@pytest.fixture
def heads() -> Repository:
    import io

    import torch

    blocks = {f"{head}.0.linear.weight": torch.ones(48, 48) for head in range(2)}
    stream = io.BytesIO()
    torch.save({**blocks, **{f"{head}.0.linear.bias": torch.zeros(48) for head in range(2)}}, stream)
    config = {"base_model_name_or_path": "org/base", "medusa_num_heads": 5}
    return Repository({"config.json": json.dumps(config).encode(), "medusa_lm_head.pt": stream.getvalue()})


def test_heads_become_a_drafter_of_their_model(home, tiny, heads):
    base = model_repository(tiny("llama-grouped-dynamic").path)
    with served(org__base=base, org__heads=heads) as hub:
        result = at(home, hub, "pull", "org/heads")
        assert result.returncode == 0 and wording("localspec_pull_org_base_then") in result.stderr
        assert at(home, hub, "pull", "org/base").returncode == 0
        result = at(home, hub, "pull", "org/heads")
        assert result.returncode == 0 and wording("drafter_org_base") in result.stderr
        shown = json.loads(at(home, hub, "show", "org/base", "--json").stdout)
        assert "medusa" in shown["drafters"]

        (home / "config").mkdir()
        entry = '[mine]\nrepo = "org/base"\n[[mine.drafters]]\nkind = "medusa"\nrepo = "org/heads"\n'
        (home / "config" / "models.toml").write_text(entry)
        (directory,) = (home / "data" / "drafters").iterdir()
        (directory / "drafter" / "drafter.json").unlink()
        assert at(home, hub, "pull", "mine").returncode == 0
        assert at(home, hub, "pull", "mine", "--drafter", "medusa").returncode == 0
        result = at(home, hub, "run", "-m", "mine", "--drafter", "medusa", "-n", "8", "--json", "--no-log", "the cat")
        assert result.returncode == 0 and json.loads(result.stdout)["drafter"] == "medusa", result.stderr
        result = at(home, hub, "rm", "mine", "--yes")
        assert result.returncode == 0 and f"is deleted too: {directory}" in result.stdout and not directory.exists()


@pytest.mark.parametrize("pickled", [True, False])
def test_an_eagle3_head_becomes_a_drafter_of_its_own_kind(home, tiny, tmp_path, pickled):
    from drafters.test_eagle3 import eagle
    from training.test_eagle3_files import PLAIN, specforge, speculators

    model = tiny("llama-grouped-dynamic")
    weights = eagle(model.target, config=json.dumps(PLAIN), vocabulary=90, states="2,1,0")
    path = specforge(weights, tmp_path / "head", pickled=True) if pickled else speculators(weights, tmp_path / "head")
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    with served(org__base=model_repository(model.path), org__heads=Repository(files)) as hub:
        result = at(home, hub, "pull", "org/heads")
        said = "`localspec pull org/base`, then repeat this command"
        said = wording("do_not_name_the_model") if pickled else said  # older heads do not name their model
        assert result.returncode == 0 and said in result.stderr
        listed = json.loads(at(home, hub, "list", "--json").stdout)
        assert not any("heads" in one["name"] for one in listed), "a head is no model"
        (home / "config").mkdir()
        entry = '[mine]\nrepo = "org/base"\n[[mine.drafters]]\nkind = "eagle3"\nrepo = "org/heads"\n'
        (home / "config" / "models.toml").write_text(entry)
        result = at(home, hub, "pull", "mine", "--drafter", "eagle3")
        assert result.returncode == 0 and wording("drafter_org_base_drafter_eagle3") in result.stderr, result.stderr
        plain = at(
            home, hub, "run", "-m", "mine", "--no-spec", "-n", "8", "--temp", "0", "--json", "--no-log", "the cat"
        )
        result = at(
            home, hub, "run", "-m", "mine", "--drafter", "eagle3", "--draft-max", "4", "-n", "8", "--temp", "0", "--json",
            "--no-log", "the cat",
        )  # fmt: skip
        found = json.loads(result.stdout)
        assert found["drafter"] == "eagle3" and found["token_ids"] == json.loads(plain.stdout)["token_ids"]


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_drafter_of_blocks_becomes_one_of_its_own_kind(home, tiny, tmp_path, kind):
    from drafters.test_dflash import config_of, published
    from drafters.test_dspark import FORMS, spark_config, spark_tensors

    model = tiny("llama-grouped-dynamic")
    config = config_of(model.stock.config, block_size=5)
    if kind == "dspark":
        config = spark_config(model.stock.config, **FORMS[0])
    path = published(tmp_path / "head", config, spark_tensors(config) if kind == "dspark" else None)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    name = config["architectures"][0].encode()
    second = {**files, "config.json": files["config.json"].replace(name, b"DFlash2DraftModel")}
    with served(
        org__base=model_repository(model.path), org__heads=Repository(files), org__second=Repository(second)
    ) as hub:
        (home / "config").mkdir()
        entry = f'[mine]\nrepo = "org/base"\n[[mine.drafters]]\nkind = "{kind}"\nrepo = "org/heads"\n'
        (home / "config" / "models.toml").write_text(entry)
        result = at(home, hub, "pull", "mine", "--drafter", kind)
        assert result.returncode == 0, result.stderr
        assert wording("drafter_org_base_drafter_dflash").replace("dflash", kind) in result.stderr
        how = ("-n", "8", "--temp", "0", "--json", "--no-log", "the cat")
        plain = json.loads(at(home, hub, "run", "-m", "mine", "--no-spec", *how).stdout)
        found = json.loads(at(home, hub, "run", "-m", "mine", "--drafter", kind, "--draft-max", "4", *how).stdout)
        assert found["drafter"] == kind and found["token_ids"] == plain["token_ids"]
        assert found["speculation"]["draft_n"] > 0
        refused = at(home, hub, "pull", "org/second")
        assert refused.returncode == 1 and wording("org_second_dflash_drafter_second") in refused.stderr


def test_an_assistant_becomes_a_drafter_of_the_model_that_its_repository_is_named_after(
    home, tiny, tmp_path, monkeypatch
):
    from drafters.test_assistant import GEMMAS, allow_assistants, published

    allow_assistants(monkeypatch)
    model = tiny(GEMMAS[0])
    path = published(tmp_path / "head", model.stock.config)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    repositories = {"org__base": model_repository(model.path), "org__base-assistant": Repository(files)}
    with served(**repositories) as hub:
        result = at(home, hub, "pull", "org/base-assistant")
        assert result.returncode == 0 and "`localspec pull org/base`" in result.stderr, result.stderr
        assert at(home, hub, "pull", "org/base").returncode == 0
        result = at(home, hub, "pull", "org/base-assistant")
        assert result.returncode == 0 and "org/base; use them with --drafter assistant" in result.stderr, result.stderr
        how = ("-m", "org/base", "-n", "8", "--temp", "0", "--json", "--no-log", "the cat")
        plain = json.loads(at(home, hub, "run", "--no-spec", *how).stdout)
        found = json.loads(at(home, hub, "run", "--drafter", "assistant", "--draft-max", "4", *how).stdout)
        assert found["drafter"] == "assistant" and found["token_ids"] == plain["token_ids"]
        assert found["speculation"]["draft_n"] > 0


def test_heads_that_would_run_code_do_not(home, tiny, heads):
    import pickle

    class Malicious:
        def __reduce__(self):
            return os.system, (f"touch {home / 'ran'}",)

    heads.files["medusa_lm_head.pt"] = pickle.dumps({"0.0.linear.weight": Malicious()}, protocol=2)
    with served(org__base=model_repository(tiny("llama-grouped-dynamic").path), org__heads=heads) as hub:
        at(home, hub, "pull", "org/base")
        result = at(home, hub, "pull", "org/heads")
    assert result.returncode == 1 and wording("would_run_code") in result.stderr and not (home / "ran").exists()
    assert not (home / "data" / "drafters" / "models--org--heads").exists()


@pytest.mark.parametrize("form", ["shards", "pickles"])
def test_a_whole_model_with_heads_inside_is_target_and_drafter(home, tiny, tmp_path, form):
    """The authors of Medusa publish their models this way (1.0)."""
    from training.test_medusa_files import official, whole_model

    model = tiny("llama-grouped-dynamic")
    whole = whole_model(model.path, tmp_path / "whole", form, official())
    files = {file.name: file.read_bytes() for file in whole.iterdir()}
    with served(org__whole=Repository(files)) as hub:
        result = at(home, hub, "pull", "org/whole", "--json", "--dry-run")
        names = {file["name"] for file in json.loads(result.stdout)["sources"][0]["files"]}
        suffix = ".bin" if form == "pickles" else ".safetensors"
        assert sum(name.endswith(suffix) for name in names) == 2 and "tokenizer.json" in names
        result = at(home, hub, "pull", "org/whole")
        assert result.returncode == 0, result.stderr
        assert wording("heads_org_whole_drafter_org_whole") in result.stderr
        at_home = home / "data" / "drafters" / "models--org--whole"
        assert ((at_home / "target").is_dir() and f"{at_home / 'target'}" in result.stdout) == (form == "pickles")
        assert "org/whole" in [one["name"] for one in json.loads(at(home, hub, "list", "--json").stdout)]
        replies = []
        for drafter in ("none", "medusa"):
            words = f"run -m org/whole --drafter {drafter} -n 16 --temp 0 --json --no-log".split()
            result = at(home, hub, *words, "the cat")
            assert result.returncode == 0, result.stderr
            replies.append(json.loads(result.stdout))
        assert replies[0]["text"] == replies[1]["text"] and replies[1]["drafter"] == "medusa"
        assert at(home, hub, "pull", "org/whole").returncode == 0
        result = at(home, hub, "rm", "org/whole", "--yes")
        assert result.returncode == 0 and not at_home.exists(), result.stderr


def test_pickles_without_heads_are_not_fetched(home, tiny, tmp_path):
    from training.test_medusa_files import whole_model

    whole = whole_model(tiny("llama-grouped-dynamic").path, tmp_path / "whole", "pickles", {})
    with served(org__whole=Repository({file.name: file.read_bytes() for file in whole.iterdir()})) as hub:
        result = at(home, hub, "pull", "org/whole")
    assert result.returncode == 1 and wording("as_pickle_only") in sentence(result)


# -- on a terminal ------------------------------------------------------------------------------------------------------


def on_terminal(home: Path, hub: Hub, *arguments: str, types: bytes = b"") -> tuple[int, str, str]:
    """Return the exit code, standard output, and standard error as a terminal receives it."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = started(home, hub, *arguments, stdin=theirs, stderr=theirs, text=False)
    os.close(theirs)
    os.write(ours, types)
    out, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, out.decode(), b"".join(reaching(ours)).decode()


def test_a_slow_server_shows_rate_and_time_left(home, hub: Hub, repo):
    hub.pause, hub.piece = 0.04, 2**16  # about 1.5 MB/s
    code, out, errors = on_terminal(home, hub, "pull", "org/name", "--yes")
    assert code == 0 and "Fetch?" not in out and is_whole(home, repo)
    lines = [line for line in errors.split("\r\x1b[K") if "MiB" in line]
    assert len(lines) >= 3 and all("fetching org/name: " in line for line in lines)
    assert re.search(r"of 3\.4 MiB, [\d.,]+ [KM]iB/s, \d+ s left", "".join(lines))
    assert errors.endswith("\r\x1b[K")  # the line is cleared at the end


def test_somebody_is_asked_and_may_say_no(home, hub: Hub, repo):
    code, out, _ = on_terminal(home, hub, "pull", "org/name", types=b"n\n")
    assert code == 0 and "Fetch? [Y/n]" in out and out.endswith(wording("nothing_was_fetched"))
    assert not common_cache(home).exists()
    code, out, _ = on_terminal(home, hub, "pull", "org/name", types=b"\n")
    assert code == 0 and "Fetch? [Y/n]" in out and is_whole(home, repo)


# -- and then without a network -----------------------------------------------------------------------------------------

FORBIDDEN = """
import socket
class Socket(socket.socket):
    def __init__(self, family=-1, *more, **named):
        assert family not in (-1, socket.AF_INET, socket.AF_INET6), "a network connection"
        super().__init__(family, *more, **named)
def refuse(*_, **__):
    raise AssertionError("a look-up of a name")
socket.socket, socket.getaddrinfo = Socket, refuse
"""


@pytest.mark.parametrize("command", [["run"], ["chat", "--plain"]])
def test_after_a_pull_nothing_needs_a_network(home, tiny, command):
    with served(org__name=model_repository(tiny("llama-grouped-dynamic").path)) as hub:
        assert at(home, hub, "pull", "org/name").returncode == 0
    (home / "sitecustomize.py").write_text(FORBIDDEN)
    check = [sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', 9))"]
    path = {"PYTHONPATH": f"{home}{os.pathsep}{ROOT}"}
    assert b"AssertionError" in subprocess.run(check, env={**os.environ, **path}, capture_output=True).stderr
    model = ["-m", "org/name", "--no-log", "-n", "24", "--temp", "0", "the cat"]
    result = localspec(home, *command, *model, HF_HOME=str(home / "hf"), HF_ENDPOINT="http://127.0.0.1:9", **path)
    assert result.returncode == 0 and result.stdout.strip(), result.stderr


@pytest.mark.skipif(os.name != "posix", reason="modes as on POSIX")
def test_nobody_else_may_write_what_was_pulled(home, hub, repo):
    before = os.umask(0)
    try:
        assert at(home, hub, "pull", "org/name").returncode == 0
    finally:
        os.umask(before)
    assert is_whole(home, repo)
    files = [path for path in home.rglob("*") if not path.is_symlink()]
    assert any(path.suffix == ".lock" for path in files)
    assert {"blobs", "snapshots", "data"} <= {path.name for path in files}
    assert [path for path in files if path.stat().st_mode & 0o022] == []
    assert [path for path in files if (home / "hf") not in (path, *path.parents) and path.stat().st_mode & 0o077] == []
