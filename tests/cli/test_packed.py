"""Packed models in commands: `pull` makes them, `--packed-only` keeps only them, and they are listed and verified."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cli.hub_commands import WEIGHTS, at, common_cache
from each import each
from golden import matching, wording
from hub_server import Hub, Repository, model_repository, served

from localspec.decoding.tree import DraftTree
from localspec.errors import NotHere
from localspec.events import Reporter
from localspec.hub.cache import find_snapshot
from localspec.hub.sources import Source
from localspec.machine import compiled
from localspec.models.model import model_of
from localspec.models.registry import resolve
from localspec.native.target import NativeTarget
from localspec.paths import Paths
from localspec.quantities import size
from localspec.weights.checkpoint import inspect, revision
from localspec.weights.opening import load
from localspec.weights.packed_file import read
from localspec.weights.packed_files import packed_files

pytestmark = [pytest.mark.slow, pytest.mark.skipif(compiled.library() is None, reason="the library is not built")]


@pytest.fixture
def repo(tiny) -> Repository:
    return model_repository(tiny("qwen2-one-key-head").path)


def used_by(monkeypatch: pytest.MonkeyPatch, engine: str, quantize: str) -> None:
    """Let every model be loaded with this engine and quantization."""
    monkeypatch.setattr(
        "localspec.choosing.fetching.choices", lambda *_: [SimpleNamespace(engine=engine, quantize=quantize)]
    )


def packed(home: Path) -> list[Path]:
    return [one.path for one in packed_files(Paths(home))]


@pytest.mark.parametrize(
    ("engine", "quantize", "made"), [("native", "int8", 1), ("native", "none", 0), ("torch", "int4", 0)]
)
def test_pull_packs_what_the_cpu_engine_would_use(home, hub: Hub, monkeypatch, engine, quantize, made):
    used_by(monkeypatch, engine, quantize)
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and result.stderr == "" and len(packed(home)) == made
    assert ("is packed" in result.stdout) == bool(made)
    (row,) = [row for row in json.loads(at(home, hub, "list", "--json").stdout) if row["name"] == "org/name"]
    assert row["packed"] == ({quantize: packed(home)[0].stat().st_size} if made else {})
    assert Path(row["path"]) == find_snapshot(Source("org/name"), Paths(home))


def test_pull_packs_nothing_where_the_library_is_missing(home, hub: Hub, monkeypatch):
    monkeypatch.setattr(compiled, "missing", lambda: "there is none")
    assert at(home, hub, "pull", "org/name").returncode == 0 and packed(home) == []


@pytest.mark.parametrize(("by", "only"), [("flag", []), ("environment", ["--packed-only"]), ("file", [])])
def test_pull_packs_as_the_settings_ask(home, hub: Hub, by, only):
    if by == "file":
        file = Paths(home).config_file
        file.parent.mkdir(exist_ok=True)
        file.write_text('quantize = "int4"\n')
    flags = ["--quantize", "int4"] if by == "flag" else []
    more = {"LOCALSPEC_QUANTIZE": "int4"} if by == "environment" else {}
    assert at(home, hub, "pull", "org/name", *flags, *only, **more).returncode == 0
    (file,) = packed(home)
    assert read(file).header.packing == "int4" and load(file, "int4", "", 1, Reporter(), Paths(home)).sizes


@each("packing", ["int8", "int4"])
def test_a_plan_names_the_requested_packing(home, hub: Hub, packing):
    result = at(home, hub, "pull", "org/name", "--packed-only", "--quantize", packing, "--dry-run")
    assert result.returncode == 0 and re.search(f"memory: .* GiB in {packing} on cpu", result.stdout), result.stdout


def test_a_header_that_names_no_source_hides_no_model(home, hub: Hub):
    assert at(home, hub, "pull", "org/name", "--packed-only").returncode == 0
    (file,) = packed(home)
    found = read(file)
    changed = replace(found.header, origin=replace(found.header.origin, repo="../../etc"))
    start = changed.encoded()
    file.write_bytes(start + file.read_bytes()[found.start :])
    assert read(file).header.origin.repo == "../../etc"
    result = at(home, hub, "list")
    assert result.returncode == 0 and "demo" in result.stdout and "etc" not in result.stdout


@pytest.mark.parametrize(
    ("engine", "quantize", "kept"), [("native", "int4", "int4"), ("native", "none", "int8"), ("torch", "nf4", "int8")]
)
def test_packed_only_is_the_packing_that_would_be_loaded_or_int8(home, hub: Hub, monkeypatch, engine, quantize, kept):
    used_by(monkeypatch, engine, quantize)
    assert at(home, hub, "pull", "org/name", "--packed-only").returncode == 0
    (file,) = packed(home)
    assert read(file).header.packing == kept


@each("asked", [["--quantize", "none"], ["--quantize", "nf4"]])
def test_packed_only_in_a_packing_without_a_file_is_refused_before_the_download(home, hub: Hub, asked):
    result = at(home, hub, "pull", "org/name", "--packed-only", *asked)
    said = {"none": wording("weights_in_are_asked_for", asked="none"), "nf4": "nf4"}[
        asked[1]
    ]  # no device has the other packing
    assert result.returncode == 2 and said in result.stderr
    result = at(home, hub, "pull", "org/name", "--packed-only", LOCALSPEC_DTYPE="bf16")
    assert result.returncode == 2 and wording("weights_bf16_asked") in result.stderr
    assert not list(common_cache(home).rglob("blobs/*")) and packed(home) == []
    assert at(home, hub, "pull", "org/name", "--packed-only", "--quantize", "int3").returncode == 2


def test_packed_only_a_disk_too_small_for_both_is_refused_before_the_download(home, hub: Hub, monkeypatch, repo):
    total = sum(map(len, repo.files.values()))
    monkeypatch.setattr("localspec.hub.plan.free_disk_bytes", lambda: total + 1000)
    result = at(home, hub, "pull", "org/name", "--packed-only")
    assert result.returncode == 4 and wording("while_it_is_packed") in result.stderr
    assert not list(common_cache(home).rglob("blobs/*"))
    assert at(home, hub, "pull", "org/name").returncode == 0, "there is room for its own files only"


def test_packed_only_in_both_packings_each_is_loaded_and_one_stays_when_the_other_is_deleted(home, hub: Hub):
    for packing in ("int8", "int4"):
        assert at(home, hub, "pull", "org/name", "--packed-only", "--quantize", packing).returncode == 0
    assert len(packed(home)) == 2 and model_of(resolve("org/name", Paths(home))).packed in (
        ("int4", "int8"),
        ("int8", "int4"),
    )
    card = resolve("org/name", Paths(home))
    for packing in ("int8", "int4"):
        assert load(card.path, packing, "", 1, Reporter(), Paths(home)).header.packing == packing
    (row,) = [row for row in json.loads(at(home, hub, "list", "--json").stdout) if row["name"] == "org/name"]
    assert set(row["packed"]) == {"int8", "int4"}
    assert at(home, hub, "rm", "org/name", "--yes").returncode == 0 and packed(home) == []


def test_a_disk_without_room_for_it_is_a_notice_and_the_model_is_here(home, hub: Hub, monkeypatch):
    used_by(monkeypatch, "native", "int8")
    (home / "cache").write_text("no directory")
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and wording("cannot_be_written") in result.stderr
    assert find_snapshot(Source("org/name"), Paths(home))


def test_packed_only_no_second_copy_stays(home, hub: Hub, repo, tiny):
    result = at(home, hub, "pull", "org/name", "--packed-only")
    (file,) = packed(home)
    assert result.returncode == 0 and f"org/name is packed, {size(file.stat().st_size)}: {file}" in result.stdout
    assert f"{size(sum(map(len, repo.files.values())))}, are deleted" in result.stderr
    assert not list(common_cache(home).glob("models--*")) and find_snapshot(Source("org/name"), Paths(home)) is None
    card = resolve("org/name", Paths(home))
    assert card.path == file and card.here and inspect(file).packing == "int8"
    assert revision(file) == revision(tiny("qwen2-one-key-head").path)
    model = load(card.path, "int8", "", 1, Reporter(pytest.fail), Paths(home))
    assert model.texts["tokenizer.json"] == repo.files["tokenizer.json"] and model.sizes.family == "qwen2"
    (row,) = [row for row in json.loads(at(home, hub, "list", "--json").stdout) if row["name"] == "org/name"]
    assert row["path"] == str(file) and row["packed"] == {"int8": row["bytes"]}
    assert row["parameters"] == inspect(file).parameters
    shown = json.loads(at(home, hub, "show", "org/name", "--json").stdout)
    assert shown["path"] == str(file) and shown["installed"] and shown["revision"] == revision(file)


def test_packed_only_is_not_fetched_twice_and_commands_that_need_the_original_say_how_to_fetch_it(home, hub: Hub):
    from localspec.nn.target import Target

    assert at(home, hub, "pull", "org/name", "--packed-only").returncode == 0
    (file,) = packed(home)
    asked, before = len(hub.requests), file.stat().st_mtime_ns
    result = at(home, hub, "pull", "org/name", "--packed-only")
    assert result.returncode == 0 and "is packed" in result.stdout and file.stat().st_mtime_ns == before
    assert not any(WEIGHTS in str(request) for request in hub.requests[asked:])
    for asks in (lambda: Target.load(file), lambda: load(file, "int4", "", 1, Reporter(), Paths(home))):
        with pytest.raises(
            NotHere, match=f"{matching('packed_form_in_int8_alone')}.*{matching('localspec_pull_org_name')}"
        ) as found:
            asks()
        assert found.value.exit_code == 3
    assert at(home, hub, "pull", "org/name").returncode == 0
    assert Target.load(resolve("org/name", Paths(home)).path).nbytes


def test_packed_only_earlier_files_are_not_touched(home, hub: Hub, repo):
    assert at(home, hub, "pull", "org/name").returncode == 0
    before = {
        path: path.stat().st_mtime_ns for path in common_cache(home).glob("models--*/[bs]*/**/*") if path.is_file()
    }
    result = at(home, hub, "pull", "org/name", "--packed-only")
    assert result.returncode == 0 and "deleted" not in result.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert find_snapshot(Source("org/name"), Paths(home)) and at(home, hub, "verify", "org/name").returncode == 0


def test_packed_only_deletes_only_files_that_it_fetched(home, hub: Hub, repo):
    assert at(home, hub, "pull", "org/name").returncode == 0
    path = find_snapshot(Source("org/name"), Paths(home))
    (path / WEIGHTS).resolve().unlink()
    (path / WEIGHTS).unlink()
    stay = sorted(file.name for file in path.iterdir())
    assert at(home, hub, "pull", "org/name", "--packed-only").returncode == 0
    assert sorted(file.name for file in path.iterdir()) == stay and "config.json" in stay
    assert resolve("org/name", Paths(home)).path == packed(home)[0]


@each(
    "change, said",
    [
        (lambda files: files.update({"config.json": _config(files, hidden_act="gelu")}), "gelu"),
        (
            lambda files: files.update({"config.json": _config(files, rope_parameters={"rope_type": "spiral"})}),
            "spiral",
        ),
        (lambda files: files.update({"config.json": _config(files, rms_norm_eps="x")}), "rms_norm_eps"),
        (lambda files: files.update({"config.json": _config(files, rms_norm_eps=1.5)}), "rms_norm_eps = 1.5"),
        (
            lambda files: files.update(
                {
                    "config.json": _config(
                        files, rope_parameters={"rope_type": "yarn", "factor": 2, "attention_factor": 1e9}
                    )
                }
            ),
            wording("scale_attention_by_1e_09"),
        ),
        (
            lambda files: files.update({"config.json": _config(files, vocab_size=10**6)}),
            wording("promises_more_weights_than"),
        ),
    ],
)
def test_what_cannot_be_packed_is_refused_before_the_download(home, repo, change, said):
    files = {**repo.files}
    change(files)
    with served(org__name=Repository(files)) as hub:
        result = at(home, hub, "pull", "org/name", "--packed-only", "--yes")
        assert result.returncode == 1 and result.stderr.count("\n") == 1
        assert re.search(f"cannot be kept in packed form only: .*{said}.*; leave --packed-only out", result.stderr)
    assert not list(common_cache(home).rglob("blobs/*"))


def test_packed_only_a_model_with_recurrent_layers_is_complete_and_computes_the_same(home, tiny):
    path = tiny("qwen3_5-grouped-shared-keys-interval").path
    with served(org__name=model_repository(path)) as hub:
        assert at(home, hub, "pull", "org/name", "--packed-only", "--yes").returncode == 0
        assert at(home, hub, "verify", "org/name").returncode == 0
    [file] = packed(home)
    rows = [
        target.forward(DraftTree.chain([5, 6, 7, 8]), target.cache(0)).logits.numpy()
        for target in (NativeTarget.open(one) for one in (file, path))
    ]
    assert np.array_equal(*rows)


def test_packed_only_weights_with_nan_are_refused_and_fetched_files_stay(home, tiny, tmp_path):
    from weights.test_opening import copied

    def change(tensors):
        return {
            name: tensor * float("nan") if name == "model.norm.weight" else tensor for name, tensor in tensors.items()
        }

    damaged = model_repository(copied(tiny("qwen2-one-key-head").path, tmp_path / "damaged", change))
    with served(org__name=damaged) as hub:
        result = at(home, hub, "pull", "org/name", "--packed-only", "--yes")
        assert result.returncode == 1 and "norm of " in result.stderr and wording("holds_nan_or_inf") in result.stderr
        assert wording("what_fetched_stays_until") in result.stderr
        assert packed(home) == [] and find_snapshot(Source("org/name"), Paths(home))


def test_packed_only_a_model_that_cannot_be_opened_is_refused_and_fetched_files_stay(home, repo):
    repo.files["tokenizer.json"] = b"{}"
    with served(org__name=repo) as hub:
        result = at(home, hub, "pull", "org/name", "--packed-only", "--yes")
        assert result.returncode == 1 and wording("the_tokenizer_in") in result.stderr
        assert wording("what_fetched_stays_until") in result.stderr
        assert find_snapshot(Source("org/name"), Paths(home))


def _config(files, **values):
    return json.dumps({**json.loads(files["config.json"]), **values}).encode()


def test_without_the_library_it_is_refused_before_the_download(home, hub: Hub, monkeypatch):
    monkeypatch.setattr(compiled, "missing", lambda: wording("installation_compiled_library"))
    result = at(home, hub, "pull", "org/name", "--packed-only")
    assert result.returncode == 1 and wording("no_compiled_library") in result.stderr
    assert not list(common_cache(home).rglob("blobs/*"))
    result = at(home, hub, "pull", "demo", "--packed-only")
    assert result.returncode == 0 and wording("demo_is_here_already") in result.stdout, "this model needs no download"


# -- what a model that is here only packed can do ----------------------------------------------------------------------


@pytest.fixture
def packed_only(request, home, hub: Hub) -> SimpleNamespace:
    """Return a model that is here in one packing only; `other` is another packing."""
    packing = getattr(request, "param", "int8")
    assert at(home, hub, "pull", "org/name", "--packed-only", "--quantize", packing).returncode == 0
    other = {"int8": "int4", "int4": "int8"}[packing]
    return SimpleNamespace(packing=packing, other=other, file=packed(home)[0], run=partial(at, home, hub))


@pytest.mark.parametrize("packed_only", ["int8", "int4"], indirect=True)
def test_packed_only_it_runs_in_its_packing_and_nothing_else_is_suggested(packed_only):
    result = packed_only.run("run", "Hi", "-m", "org/name", "-n", "4", "--temp", "0", "--json")
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert (said["quantize"], said["engine"]) == (packed_only.packing, "native") and said["completion_tokens"] > 0
    report = json.loads(packed_only.run("doctor", "--json").stdout)
    (row,) = [row for row in report["choices"] if row["model"] == "org/name"]
    assert row["quantize"] == packed_only.packing and row["fits"] and row["installed"]
    compared = packed_only.run(
        "bench", "-m", "org/name", "--drafter", "phrases", "--limit", "1", "--max-tokens", "4", "--json"
    )
    assert json.loads(compared.stdout)["quantize"] == packed_only.packing
    assert packed_only.run("run", "Hi", "-m", "org/name", "-n", "2", "--quantize", packed_only.packing).returncode == 0


def test_packed_only_it_drafts_for_another_model_in_its_packing(packed_only, tiny):
    target = str(tiny("qwen2-one-key-head").path)
    drafter = ("--drafter", "draft_model:org/name", "--draft-max", "2")
    asked = ("run", "Hi", "-m", target, "-n", "4", "--temp", "0", *drafter, "--json")
    said = json.loads(packed_only.run(*asked).stdout)
    assert said["drafter"] == "draft_model" and said["speculation"]["draft_n"] > 0


@each(
    "asked",
    [
        ("run", "Hi", "-n", "2", "--quantize", "none", "-m"),
        ("run", "Hi", "-n", "2", "--dtype", "fp32", "-m"),
        ("run", "Hi", "-n", "2", "--quantize", "OTHER", "-m"),
        ("bench", "--limit", "1", "--quantize", "OTHER", "-m"),
        ("doctor", "--quantize", "OTHER", "--prove"),
    ],
)
def test_packed_only_commands_that_need_the_original_name_the_command_that_fetches_it(packed_only, asked):
    result = packed_only.run(*(packed_only.other if word == "OTHER" else word for word in asked), "org/name")
    assert result.returncode == 3, result.stderr
    assert wording("org_name_there_packed_form_alone", packing=packed_only.packing) in result.stderr
    assert "`localspec pull org/name`" in result.stderr and result.stdout == ""


def test_packed_only_without_the_library_nothing_computes_it(packed_only, monkeypatch):
    monkeypatch.setattr(compiled, "missing", lambda: wording("installation_compiled_library"))
    result = packed_only.run("run", "Hi", "-m", "org/name", "-n", "2")
    assert result.returncode == 3 and "`localspec pull org/name`" in result.stderr
    (row,) = [
        row for row in json.loads(packed_only.run("doctor", "--json").stdout)["choices"] if row["model"] == "org/name"
    ]
    assert not row["fits"] and row["quantize"] is None and "only packed" in row["reason"]


def test_packed_only_with_a_damaged_text_it_says_what_to_do(packed_only):
    content = bytearray(packed_only.file.read_bytes())
    at_text = read(packed_only.file)
    section = at_text.header.texts["tokenizer.json"]
    content[at_text.start + section.offset + 5] ^= 1
    packed_only.file.write_bytes(content)
    result = packed_only.run("run", "Hi", "-m", "org/name", "-n", "2")
    assert result.returncode == 1 and "tokenizer.json" in result.stderr
    assert "`localspec rm org/name`" in result.stderr and "`localspec pull org/name`" in result.stderr


# -- verified and removed ----------------------------------------------------------------------------------------------


def test_verify_reads_it_and_names_what_is_damaged(home, hub: Hub):
    assert at(home, hub, "pull", "org/name", "--packed-only").returncode == 0
    (file,) = packed(home)
    result = at(home, hub, "verify", "org/name")
    assert result.returncode == 0 and wording("every_weight_agrees_digest") in result.stdout
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    result = at(home, hub, "verify", "org/name")
    assert result.returncode == 1 and "is damaged" in result.stdout
    assert wording("is_damaged_delete_it", file=file) in result.stderr
    file.write_bytes(content[:-1])
    result = at(home, hub, "verify", "org/name")
    assert result.returncode == 3 and "`localspec pull org/name`" in result.stderr, "it does not even tell its name"
    result = at(home, hub, "pull", "org/name", "--packed-only")
    assert (
        result.returncode == 0 and "is damaged" in result.stderr and at(home, hub, "verify", "org/name").returncode == 0
    )


def test_rm_deletes_it_with_the_model(home, hub: Hub, monkeypatch):
    used_by(monkeypatch, "native", "int8")
    assert at(home, hub, "pull", "org/name").returncode == 0
    path, (file,) = find_snapshot(Source("org/name"), Paths(home)), packed(home)
    load(path, "int4", "", 1, Reporter(), Paths(home))
    (file.parent / (file.name + ".partial")).write_bytes(b"of a process that was killed")
    result = at(home, hub, "rm", "org/name")
    assert result.returncode == 2 and str(file) in result.stdout and file.exists()
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 0 and [left.suffix for left in file.parent.iterdir() if left.suffix != ".lock"] == []
    assert at(home, hub, "rm", "org/name", "--yes").returncode == 3


def test_rm_deletes_the_packed_form_of_a_directory_and_not_the_directory(home, hub: Hub, tiny):
    path = tiny("qwen2-one-key-head").path
    before = sorted(file.name for file in path.iterdir())
    result = at(home, hub, "rm", str(path), "--yes")
    assert result.returncode == 2 and wording("fetched_localspec_pull") in result.stderr
    load(path, "int8", "", 1, Reporter(), Paths(home))
    result = at(home, hub, "rm", str(path))
    assert result.returncode == 2 and f"{path} itself stays" in result.stdout and len(packed(home)) == 1
    result = at(home, hub, "rm", str(path), "--yes")
    assert result.returncode == 0 and wording("are_free_again") in result.stdout and packed(home) == []
    assert sorted(file.name for file in path.iterdir()) == before


def test_rm_keeps_what_was_pulled_for_another_source_with_the_same_weights(home, repo, tiny):
    path = tiny("qwen2-one-key-head").path
    with served(org__name=repo, org__mirror=repo) as hub:
        assert at(home, hub, "pull", "org/name", "--packed-only", "--quantize", "int8").returncode == 0
        assert at(home, hub, "pull", "org/mirror", "--quantize", "int4").returncode == 0
    kept = resolve("org/name", Paths(home)).path
    load(path, "int8", "", 1, Reporter(pytest.fail), Paths(home))
    result = at(home, hub, "rm", str(path), "--yes")
    assert result.returncode == 2 and wording("org_name_packed_same_weights", kept=kept) in result.stdout
    result = at(home, hub, "rm", "org/mirror", "--yes")
    assert result.returncode == 0 and wording("org_name_packed_same_weights", kept=kept) in result.stdout
    assert packed(home) == [kept] and at(home, hub, "verify", "org/name").returncode == 0
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 0 and "The packed model of org/name, " in result.stdout and packed(home) == []


def test_changed_weights_leave_no_packed_form_of_the_former_ones(home, tiny, tmp_path):
    from weights.test_changed_weights import change
    from weights.test_opening import copied

    def pack(path: Path, packing: str) -> None:
        load(path, packing, str(path), 1, Reporter(), Paths(home))

    changed, other = (copied(tiny("qwen2-one-key-head").path, tmp_path / name) for name in ("changed", "other"))
    pack(changed, "int8")
    pack(changed, "int4")
    (eight,) = (file for file in packed(home) if "-int8-" in file.name)
    change(changed)
    pack(other, "int8")
    assert eight in packed(home), "another directory has the weights of before"
    pack(changed, "int8")
    assert len(packed(home)) == 2 and eight not in packed(home), "one in int8, and int4 until that is asked for"
    pack(changed, "int4")
    assert sorted(read(file).header.packing for file in packed(home)) == ["int4", "int8"]


def test_verify_and_rm_take_a_directory_and_a_packed_file(home, hub: Hub, tiny, tmp_path):
    path = tiny("qwen2-one-key-head").path
    load(path, "int8", "", 1, Reporter(), Paths(home))
    (file,) = packed(home)
    for name in (str(path), str(file)):
        result = at(home, hub, "verify", name)
        assert result.returncode == 0 and wording("every_weight_agrees_digest") in result.stdout, result.stderr
    whole = file.read_bytes()
    for name in (str(path), str(file)):
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        result = at(home, hub, "verify", name)
        assert result.returncode == 1 and wording("was_damaged_and_is_deleted", file=file) in result.stderr
        assert not file.exists()
    file.write_bytes(whole)
    mine = tmp_path / "mine.packed"
    mine.write_bytes(whole)
    result = at(home, hub, "rm", str(mine), "--yes")
    assert result.returncode == 2 and wording("delete_it_yourself") in result.stderr and mine.exists()
    result = at(home, hub, "rm", str(file))
    assert result.returncode == 2 and str(file) in result.stdout and file.exists()
    result = at(home, hub, "rm", str(file), "--yes")
    assert result.returncode == 0 and wording("are_free_again") in result.stdout and not file.exists()
    assert at(home, hub, "verify", str(tmp_path / "nothing")).returncode in (2, 3)


@pytest.mark.parametrize("times", ["kept", "new"])
def test_verify_sees_weights_that_changed_between_the_samples(home, hub: Hub, tiny, tmp_path, monkeypatch, times):
    from weights.test_changed_weights import bytes_of, change_unseen
    from weights.test_opening import copied

    from localspec.weights import file_fingerprint

    monkeypatch.setattr(file_fingerprint, "SETTLED", 0)
    path = copied(tiny("qwen2-one-key-head").path, tmp_path / "model")
    monkeypatch.setattr(file_fingerprint, "SAMPLES", 16)
    before = bytes_of(load(path, "int8", "", 1, Reporter(), Paths(home)))
    assert at(home, hub, "verify", str(path)).returncode == 0
    change_unseen(path, monkeypatch, times)
    assert bytes_of(load(path, "int8", "", 1, Reporter(), Paths(home))) == before
    result = at(home, hub, "verify", str(path))
    assert result.returncode == 1 and wording("changed_neither_size_nor_samples", weights=WEIGHTS) in result.stdout
    assert bytes_of(load(path, "int8", "", 1, Reporter(), Paths(home))) != before
    assert at(home, hub, "verify", str(path)).returncode == 0


@pytest.mark.parametrize("packing", ["int8", "int4"])
def test_what_was_packed_of_a_damaged_download_is_packed_again_once_that_is_mended(home, hub, monkeypatch, packing):
    from weights.test_changed_weights import bytes_of, change

    used_by(monkeypatch, "native", "int8")
    assert at(home, hub, "pull", "org/name").returncode == 0
    path = find_snapshot(Source("org/name"), Paths(home))
    right = bytes_of(load(path, packing, "", 1, Reporter(), Paths(home)))
    for file in Paths(home).packed.iterdir():
        file.unlink()
    change(path)  # the common cache still names it by its digest
    assert bytes_of(load(path, packing, "", 1, Reporter(), Paths(home))) != right
    result = at(home, hub, "pull", "org/name")
    assert result.returncode == 0 and wording("damaged_cache_fetched_again") in result.stderr
    assert bytes_of(load(path, packing, "", 1, Reporter(), Paths(home))) == right
    before = {file: file.stat().st_mtime_ns for file in packed(home)}
    assert at(home, hub, "pull", "org/name").returncode == 0, "what is sound is neither deleted nor packed again"
    assert {file: file.stat().st_mtime_ns for file in packed(home)} == before


# -- a commit that changes texts only ----------------------------------------------------------------------------------


@pytest.mark.parametrize("only", [[], ["--packed-only"]], ids=["with weights", "packed only"])
def test_a_commit_that_changes_only_the_chat_template_is_used(home, hub: Hub, repo, monkeypatch, only):
    used_by(monkeypatch, "native", "int8")
    assert at(home, hub, "pull", "org/name", *only).returncode == 0
    template = b"{% for message in messages %}changed {{ message['content'] }}{% endfor %}"
    repo.files["chat_template.jinja"] = template
    repo.revisions["main"] = "c" * 40
    result = at(home, hub, "pull", "org/name", *only)
    assert result.returncode == 0, result.stderr
    (file,) = packed(home)
    assert read(file).header.origin.commit == "c" * 40
    card = resolve("org/name", Paths(home))
    assert NativeTarget.open(card.path).chat.render([{"role": "user", "content": "Hi"}]) == "changed Hi"
    assert at(home, hub, "verify", "org/name").returncode == 0


def test_packed_only_it_is_found_by_its_name_even_if_its_directory_was_packed_before(home, hub: Hub, tiny):
    load(tiny("qwen2-one-key-head").path, "int8", "", 1, Reporter(), Paths(home))
    assert at(home, hub, "pull", "org/name", "--packed-only", "--quantize", "int8").returncode == 0
    (file,) = packed(home)
    assert resolve("org/name", Paths(home)).path == file and read(file).header.origin.repo == "org/name"


def test_packed_only_it_stays_when_a_copy_is_pulled(home, repo):
    with served(org__name=repo, org__copy=repo) as hub:
        assert at(home, hub, "pull", "org/name", "--packed-only", "--quantize", "int8").returncode == 0
        result = at(home, hub, "pull", "org/copy", "--packed-only", "--quantize", "int8")
        assert result.returncode == 1 and wording("org_copy_weights_org_name") in result.stderr
        assert at(home, hub, "pull", "org/copy", "--quantize", "int8").returncode == 0
    (file,) = packed(home)
    assert resolve("org/name", Paths(home)).path == file
    assert find_snapshot(Source("org/copy"), Paths(home))
