"""localspec pull org/repo-GGUF:TYPE: one type is fetched, and is a model of that name which is read from its file."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
from cli.hub_commands import at, blobs, common_cache, stray
from command import sentence
from each import each
from gguf_files import metadata_of, tensors_of, write_model, written
from golden import matching, wording
from hub_server import Hub, Repository, model_repository, served
from machines import SEVEN
from transformers import Qwen3Config

from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.families.family import MixtureSizes
from localspec.hub.cached_gguf import of_type, types_listed
from localspec.hub.records import ExpectedFile
from localspec.hub.sources import Source
from localspec.machine.machine import Device, Machine
from localspec.models.registry import resolve
from localspec.paths import Paths, private_directory
from localspec.pulling.gguf import memory
from localspec.quantities import size
from localspec.weights.gguf_model import GgufModel
from localspec.weights.gguf_weights import gguf_source
from localspec.weights.opening import pack_gguf
from localspec.weights.packed_file import Origin

pytestmark = pytest.mark.slow

SHAPE = {**tiny_models._SHAPE, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 32}
NAME = "org/tiny-GGUF:Q8_0"
MIXTURE = replace(SEVEN, experts=MixtureSizes(8, 2, 64))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    return tiny_models.write(path, Qwen3Config(**SHAPE), tiny_models.byte_tokenizer(), 0)


@pytest.fixture(scope="module")
def files(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return a typical repository: types in several spellings, one in two parts, and files that are no models."""
    folder = tmp_path_factory.mktemp("gguf")
    kinds = {"tiny-Q8_0.gguf": "Q8_0", "tiny-F16.gguf": "F16", "tiny.q5_1.gguf": "Q5_1"}
    found = {name: write_model(folder / name, directory, kind).read_bytes() for name, kind in kinds.items()}
    metadata, tensors = metadata_of(directory, "gpt-2"), tensors_of(directory, "BF16")
    names = sorted(tensors)
    for number, part in enumerate((names[:5], names[5:])):
        said = {"split.no": number, "split.count": 2}
        said = {**(metadata if number == 0 else {}), **said}
        content = written(said, {name: tensors[name] for name in part})
        found[f"tiny-BF16-{number + 1:05}-of-00002.gguf"] = content
    return {**found, "mmproj-F16.gguf": b"x" * 20000, "README.md": b"# tiny"}


def test_one_type_is_fetched_and_read_from_its_file(home: Path, files: dict[str, bytes]) -> None:
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        plan = json.loads(at(home, hub, "pull", NAME, "--dry-run", "--json").stdout)
        assert [file["name"] for file in plan["sources"][0]["files"]] == ["tiny-Q8_0.gguf"]
        assert plan["fetch_bytes"] == len(files["tiny-Q8_0.gguf"]) and blobs(home) == {}
        result = at(home, hub, "pull", NAME, "--yes")
        assert result.returncode == 0, result.stderr
        (file,) = common_cache(home).rglob("tiny-Q8_0.gguf")
        assert f"{NAME} is here, 8." in result.stdout and str(file) in result.stdout
        assert {request.split("/")[-1] for request in hub.requests if "/resolve/" in request} == {"tiny-Q8_0.gguf"}
        fetched = blobs(home)
        assert len(fetched) == 1 and stray(home) == []
        assert file.stat().st_size > 5 * sum(one.stat().st_size for one in packed(home)), "one copy of the weights"
        sent, registered = hub.sent_bytes, packed(home)
        again = at(home, hub, "pull", NAME, "--yes")
        assert again.returncode == 0 and hub.sent_bytes == sent and f"{NAME} is here" in again.stdout
        assert blobs(home) == fetched and packed(home) == registered
    shutil.rmtree(home / "cache", ignore_errors=True)  # users may empty the cache
    listed = at(home, hub, "list", "--json")
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows[NAME]["packed"] == {} and rows[NAME]["license"] == "apache-2.0" and NAME not in listed.stderr
    assert 8.5 <= rows[NAME]["bits_per_weight"] < 9  # its head and its embedding are both counted
    for name in (NAME, "org/tiny-GGUF:q8_0"):
        reply = at(home, hub, "run", "-m", name, "-n", "8", "--no-log", "--json", "Hi")
        assert reply.returncode == 0 and json.loads(reply.stdout)["model"] == NAME
    assert len(packed(home)) == 1
    shown = json.loads(at(home, hub, "show", NAME, "--json").stdout)
    assert shown["source"] == NAME and shown["commit"] == file.parent.name and shown["verified"] is True
    removed = at(home, hub, "rm", NAME, "--yes")
    assert removed.returncode == 0 and wording("other_programs_share_this_cache") in removed.stdout
    assert blobs(home) == {} and packed(home) == [] and not list(common_cache(home).glob("models--*"))
    assert NAME not in {row["name"] for row in json.loads(at(home, hub, "list", "--json").stdout)}
    assert "localspec pull" in sentence(at(home, hub, "run", "-m", NAME, "Hi"))


def packed(home: Path) -> list[Path]:
    return sorted(home.rglob("*.packed"))


def test_a_damaged_or_missing_file_is_reported_and_fetched_again(home: Path, files: dict[str, bytes]) -> None:
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        at(home, hub, "pull", NAME, "--yes")
        (file,) = common_cache(home).rglob("tiny-Q8_0.gguf")
        good = at(home, hub, "verify", NAME)
        assert good.returncode == 0 and wording("file_agrees_with_their_names") in good.stdout
        content = file.resolve()
        content.chmod(0o600)
        content.write_bytes(files["tiny-Q8_0.gguf"][:-1] + b"x")
        bad = at(home, hub, "verify", NAME)
        assert bad.returncode == 1 and "tiny-Q8_0.gguf is damaged" in bad.stdout
        assert f"`localspec pull {NAME}`" in bad.stderr
        assert at(home, hub, "pull", NAME, "--yes").returncode == 0
        assert at(home, hub, "verify", NAME).returncode == 0
        file.resolve().unlink()
        assert "tiny-Q8_0.gguf is missing" in at(home, hub, "verify", NAME).stdout
        said = at(home, hub, "run", "-m", NAME, "Hi")
        assert said.returncode == 3 and f"`localspec pull {NAME}`" in sentence(said)
        assert at(home, hub, "pull", NAME, "--yes").returncode == 0
        assert at(home, hub, "run", "-m", NAME, "-n", "1", "--no-log", "Hi").returncode == 0


def test_a_packing_that_is_requested_comes_in_addition_and_answers(home: Path, files: dict[str, bytes]) -> None:
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        result = at(home, hub, "pull", NAME, "--yes", "--quantize", "int4")
        assert result.returncode == 0, result.stderr
        assert f"{NAME} is here" in result.stdout and f"{NAME} is packed" in result.stdout
        assert len(blobs(home)) == 1 and answers(home, hub) == "int4"
        assert at(home, hub, "pull", NAME, "--yes", "--quantize", "int8").returncode == 0
        assert answers(home, hub) == "int8" and len(packed(home)) == 2
        assert at(home, hub, "pull", NAME, "--yes").returncode == 0
        assert answers(home, hub) == "blocks" and len(packed(home)) == 1
        at(home, hub, "pull", NAME, "--yes", "--quantize", "int4")
        assert at(home, hub, "rm", NAME, "--yes").returncode == 0 and packed(home) == []


def answers(home: Path, hub: Hub) -> str:
    reply = at(home, hub, "run", "-m", NAME, "-n", "1", "--no-log", "--json", "Hi")
    return json.loads(reply.stdout)["quantize"]


def test_what_an_earlier_version_packed_answers_until_the_file_is_here(home, files, tmp_path, monkeypatch):
    """An earlier version kept the packed form in int8 and deleted the file."""
    (tmp_path / "tiny-Q8_0.gguf").write_bytes(files["tiny-Q8_0.gguf"])
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        commit = Repository(files).revisions["main"]
        model = GgufModel.open(tmp_path / "tiny-Q8_0.gguf")
        held = {"tiny-Q8_0.gguf": (model.size, hashlib.sha256(files["tiny-Q8_0.gguf"]).hexdigest())}
        origin = Origin(NAME, "a" * 40, "mit", NAME, commit, held)
        place = Paths(home)
        made = pack_gguf(gguf_source(model), "int8", origin, 1, Reporter(), place)
        old = place.imports / made.name  # as an earlier version saved it
        private_directory(place.imports)
        made.rename(old)
        assert answers(home, hub) == "int8"
        assert at(home, hub, "verify", NAME).returncode == 0
        assert at(home, hub, "pull", NAME, "--yes").returncode == 0
        assert answers(home, hub) == "blocks" and not old.exists() and len(blobs(home)) == 1
        assert json.loads(at(home, hub, "show", NAME, "--json").stdout)["revision"] == "a" * 40


def test_an_import_of_the_file_in_the_cache_is_another_model(home: Path, files: dict[str, bytes]) -> None:
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        at(home, hub, "pull", NAME, "--yes")
        (file,) = common_cache(home).rglob("tiny-Q8_0.gguf")
        assert at(home, hub, "import", str(file)).returncode == 0
        assert len(packed(home)) == 2
        removed = at(home, hub, "rm", NAME, "--yes")
        assert removed.returncode == 0 and file.exists(), "the user's own entry still needs it"
        assert at(home, hub, "run", "-m", "tiny-Q8_0", "-n", "1", "--no-log", "Hi").returncode == 0
        assert at(home, hub, "pull", NAME, "--yes").returncode == 0
        assert at(home, hub, "rm", "tiny-Q8_0", "--yes").returncode == 0 and file.exists()
        assert at(home, hub, "run", "-m", NAME, "-n", "1", "--no-log", "Hi").returncode == 0


def test_a_file_that_is_the_only_copy_outlives_the_rest_of_its_repository(home, files, tmp_path):
    both = model_repository(resolve("demo").path)
    both.files |= {"tiny-Q8_0.gguf": files["tiny-Q8_0.gguf"]}
    with served(**{"org__tiny-GGUF": Repository(both.files)}) as hub:
        assert at(home, hub, "pull", "org/tiny-GGUF", "--yes").returncode == 0
        assert at(home, hub, "pull", NAME, "--yes").returncode == 0
        said = at(home, hub, "rm", "org/tiny-GGUF", "--yes")
        assert said.returncode == 1 and "tiny-Q8_0.gguf" in sentence(said)
        assert at(home, hub, "run", "-m", NAME, "-n", "1", "--no-log", "Hi").returncode == 0
        assert at(home, hub, "rm", NAME, "--yes").returncode == 0
        assert at(home, hub, "rm", "org/tiny-GGUF", "--yes").returncode == 0 and blobs(home) == {}


def test_uninstall_deletes_what_was_fetched_where_that_is_reported(home: Path, files: dict[str, bytes]) -> None:
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        at(home, hub, "pull", NAME, "--yes")
        result = at(home, hub, "uninstall", "--yes", "--fetched")
        assert result.returncode == 0 and f"{NAME}, in " in result.stdout and blobs(home) == {}


def test_parts_are_fetched_together_and_types_in_any_spelling(home: Path, files: dict[str, bytes]) -> None:
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        for kind, count in (("bf16", 2), ("Q5_1", 1)):
            result = at(home, hub, "pull", f"org/tiny-GGUF:{kind}", "--yes")
            assert result.returncode == 0, result.stderr
            assert (
                sum(kind.lower() in line.lower() and ".gguf " in line for line in result.stdout.splitlines()) >= count
            )
            name = f"org/tiny-GGUF:{kind.upper()}"
            assert at(home, hub, "run", "-m", name, "-n", "1", "--no-log", "Hi").returncode == 0


def test_files_in_folders_are_found_by_their_names_or_the_folders(home, files):
    """Repositories of large models have a folder for each type, with the parts in it."""
    inside = {
        **{f"BF16/{name}": content for name, content in files.items() if "BF16" in name},
        "gguf/Q8_0/model.gguf": files["tiny-Q8_0.gguf"],
        "tiny-F16.gguf": files["tiny-F16.gguf"],
        "old/tiny-F16.gguf": b"x" * 20000,
        "old/mmproj-Q4_0.gguf": b"x",
    }
    with served(**{"org__tiny-GGUF": Repository(inside)}) as hub:
        said = sentence(at(home, hub, "pull", "org/tiny-GGUF"))
        assert [said.count(f"{kind} (") for kind in ("BF16", "Q8_0", "Q4_0")] == [1, 1, 0]
        for kind in ("BF16", "Q8_0", "F16"):
            result = at(home, hub, "pull", f"org/tiny-GGUF:{kind}", "--yes")
            assert result.returncode == 0 and "is here" in result.stdout, result.stderr
            reply = at(home, hub, "run", "-m", f"org/tiny-GGUF:{kind}", "-n", "1", "--no-log", "Hi")
            assert reply.returncode == 0, reply.stderr
            assert at(home, hub, "rm", f"org/tiny-GGUF:{kind}", "--yes").returncode == 0
            assert not list(common_cache(home).glob("models--*"))
        assert not any("old/" in request for request in hub.requests)
    twice = {f"{folder}/tiny-Q8_0.gguf": files["tiny-Q8_0.gguf"] for folder in ("a", "b")}
    with served(**{"org__tiny-GGUF": Repository(twice)}) as hub:
        assert wording("no_parts_of_one_model") in sentence(at(home, hub, "pull", NAME))


@each("name", ["../a-Q8_0.gguf", "/a-Q8_0.gguf", "a/../b-Q8_0.gguf", ".a/b-Q8_0.gguf", "a//b-Q8_0.gguf",
               "a/b/c/d/e-Q8_0.gguf", "a\\b-Q8_0.gguf", "a/\x1b[2J-Q8_0.gguf", "a/b-Q8_0.gguf\n"])  # fmt: skip
def test_a_place_that_leads_elsewhere_is_ignored(home: Path, name: str) -> None:
    with served(**{"org__tiny-GGUF": Repository({name: b"x" * 20000})}) as hub:
        assert wording("gguf_file_type_q8_0") in sentence(at(home, hub, "pull", NAME))
        assert not any("/resolve/" in request for request in hub.requests)


def test_without_a_type_or_with_an_unknown_one_the_types_are_listed(home: Path, files: dict[str, bytes]) -> None:
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        for name in ("org/tiny-GGUF", "org/tiny-GGUF:Q4_K_M"):
            said = sentence(at(home, hub, "pull", name))
            assert "Q8_0 (" in said and "F16 (" in said and "BF16 (" in said and "Q5_1 (" in said
            assert "`localspec pull org/tiny-GGUF:Q8_0`" in said
    only = {name: content for name, content in files.items() if "BF16-00001" in name}
    with served(**{"org__tiny-GGUF": Repository(only)}) as hub:
        assert wording("no_parts_of_one_model") in sentence(at(home, hub, "pull", "org/tiny-GGUF:BF16"))


def test_what_cannot_fit_is_refused_before_it_is_fetched(home, files, monkeypatch):
    """The size and the type of the file decide, for the memory and for the disk."""
    length = len(files["tiny-Q8_0.gguf"])
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        usage = type("usage", (), {"free": length - 1})
        with monkeypatch.context() as patch:
            patch.setattr("shutil.disk_usage", lambda path: usage)
            result = at(home, hub, "pull", NAME, "--yes")
            assert result.returncode == 4 and "--force" in result.stderr
            assert json.loads(at(home, hub, "pull", NAME, "--dry-run", "--json").stdout)["fits"] is False
        small = Machine((Device("cpu", "a processor", 10**9, 600 * 10**6 + 1000, ("fp32",)),), 1)
        with monkeypatch.context() as patch:
            patch.setattr("localspec.pulling.pull.this_machine", lambda: small)
            result = at(home, hub, "pull", NAME, "--yes")
            assert (
                result.returncode == 4
                and "in int4, but only 1,000 bytes" in result.stderr
                and "--force" in result.stderr
            )
            assert json.loads(at(home, hub, "pull", NAME, "--dry-run", "--json").stdout)["fits"] is False
            assert blobs(home) == {}
            assert at(home, hub, "pull", NAME, "--yes", "--force").returncode == 0


@each(
    "name, kind, read",
    [
        ("a-IQ2_M.gguf", "IQ2_M", True),
        ("a-Q3_K_S.gguf", "Q3_K_S", True),
        ("a-Q2_0.gguf", "Q2_0", False),
        ("a-Q4_0_4_4.gguf", "Q4_0_4_4", False),
        ("a-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", True),
        ("a-UD-Q4_K_XL.gguf", "Q4_K_XL", True),
        ("UD-Q5_K_XL/a.gguf", "UD-Q5_K_XL", True),
        ("a-UD-IQ1_S.gguf", "UD-IQ1_S", True),
        ("a-UD-Q1_0.gguf", "UD-Q1_0", False),
    ],
)
def test_types_that_nothing_here_reads_are_refused_by_their_names(name: str, kind: str, read: bool) -> None:
    known = [ExpectedFile(one, 10, "a" * 64) for one in (name, "a-Q8_0.gguf")]
    source = Source("org/a-GGUF", "main", kind)
    if read:
        assert [file.name for file in of_type(source, known)] == [name]
        return
    assert (listed := types_listed(source, known)).endswith(wording("out_q8_0_10_bytes_does_read", kind=kind))
    with pytest.raises(LocalspecError, match=matching("does_read_choose_type")) as error:
        of_type(source, known)
    assert listed.partition("; ")[2] in str(error.value)


def test_what_is_no_model_stays_and_is_reported(home: Path, files: dict[str, bytes]) -> None:
    broken = {"tiny-Q8_0.gguf": files["tiny-Q8_0.gguf"][:-40000] + bytes(100)}
    with served(**{"org__tiny-GGUF": Repository(broken)}) as hub:
        result = at(home, hub, "pull", NAME, "--yes")
        assert result.returncode == 1 and wording("what_was_fetched_stays") in result.stderr
        assert "tiny-Q8_0.gguf" in result.stderr and len(blobs(home)) == 1
        assert (
            f"until you run `localspec rm {NAME}`" in result.stderr and wording("fetch_it_again") not in result.stderr
        )
        found = at(home, hub, "list", "--json")
        assert NAME not in found.stdout and wording("localspec_rm_deletes_it", name=NAME) in found.stderr
        for name in (NAME, "org/tiny-GGUF"):
            removed = at(home, hub, "rm", name, "--yes")
            assert removed.returncode == 0 and "tiny-Q8_0.gguf" in removed.stdout, removed.stderr
            assert blobs(home) == {} and not list(common_cache(home).glob("models--*"))
            at(home, hub, "pull", NAME, "--yes")


def about(architecture: str, files: dict[str, bytes]) -> tuple[int, dict[str, str], bytes]:
    """Return the hub's answer about a repository of GGUF files of this architecture."""
    repository = Repository(files)
    said = {"id": "org/tiny-GGUF", "sha": repository.revisions["main"], "siblings": repository.entries(), "tags": []}
    more = {"private": False, "gated": False, "cardData": {}, "gguf": {"architecture": architecture, "total": 1}}
    return 200, {"Content-Type": "application/json"}, json.dumps({**said, **more}).encode()


def test_what_cannot_be_meant_is_refused(home: Path, files: dict[str, bytes]) -> None:
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        assert "--packed-only" in sentence(at(home, hub, "pull", NAME, "--packed-only"))
        assert "nf4" in sentence(at(home, hub, "pull", NAME, "--yes", "--quantize", "nf4"))
        assert blobs(home) == {}
        hub.answer = lambda path: about("gemma2", files) if path.startswith("/api/") else None
        assert "'gemma2'" in sentence(at(home, hub, "pull", NAME, "--yes"))
        hub.answer = lambda path: about("gemma4-assistant", files) if path.startswith("/api/") else None
        assert "google/gemma-4-E4B-it-assistant" in sentence(at(home, hub, "pull", NAME, "--yes"))
        hub.answer = lambda path: None
        assert "org/repo:TYPE" in sentence(at(home, hub, "pull", "org/tiny-GGUF:"))
        assert "org/repo:TYPE" in sentence(at(home, hub, "pull", "org/tiny-GGUF:../x"))
        assert wording("nothing_is_removed") in sentence(at(home, hub, "rm", NAME, "--yes"))
        assert wording("is_not_here") in sentence(at(home, hub, "verify", NAME))


def test_a_newer_commit_takes_the_place_of_the_one_before(home, files, directory, tmp_path):
    with served(**{"org__tiny-GGUF": Repository(files)}) as hub:
        at(home, hub, "pull", NAME, "--yes")
        before = set(blobs(home))
        hub.repositories["org/tiny-GGUF"] = Repository({**files, "README.md": b"# changed"})
        same = at(home, hub, "pull", NAME, "--yes")
        assert same.returncode == 0 and "localspec rm" not in same.stderr and set(blobs(home)) == before
        changed = write_model(tmp_path / "b.gguf", directory, "Q8_0", general__license="mit").read_bytes()
        hub.repositories["org/tiny-GGUF"] = Repository({**files, "tiny-Q8_0.gguf": changed})
        newer = at(home, hub, "pull", NAME, "--yes")
        former = "org/tiny-GGUF@" + Repository({**files, "README.md": b"# changed"}).revisions["main"] + ":Q8_0"
        assert newer.returncode == 0 and f"`localspec rm {former}`" in newer.stderr and len(blobs(home)) == 2
    rows = [row for row in json.loads(at(home, hub, "list", "--json").stdout) if row["name"] == NAME]
    assert [row["license"] for row in rows] == ["mit"]
    assert len(packed(home)) == 1
    assert at(home, hub, "rm", former, "--yes").returncode == 0
    assert len(blobs(home)) == 1 and not set(blobs(home)) & before
    assert at(home, hub, "run", "-m", NAME, "-n", "1", "--no-log", "Hi").returncode == 0
    assert at(home, hub, "rm", NAME, "--yes").returncode == 0
    assert blobs(home) == {} and not list(common_cache(home).glob("models--*/snapshots/*"))


@pytest.mark.parametrize(
    ("kind", "stored", "held"),  # bits of a weight
    [("Q4_K_M", 5.5, 5.5), ("F16", 16, 8.5), ("BF16", 16, 8.5), ("F32", 32, 8.5), ("UD-IQ2_M", 3.5, 4.5)],
)
def test_a_plan_counts_what_types_without_kernels_become(kind, stored, held):
    part: Any = SimpleNamespace(source=Source.parse(f"org/tiny-GGUF:{kind}"), weights=int(10**9 * stored), config={})
    machine = Machine((Device("cpu", "a processor", 10**12, 10**12, ("fp32",)),), 1)
    fits, said = memory(part, Settings(), machine)
    assert fits is None and said.startswith(f"about {size(10**9 * held)}, of")


@each("packing, bits", [("int8", 8.25), ("int4", 4.9)])
def test_a_plan_counts_the_packing_that_is_named(packing, bits):
    part: Any = SimpleNamespace(source=Source.parse("org/tiny-GGUF:Q8_0"), weights=85 * 10**8, config={})
    machine = Machine((Device("cpu", "a processor", 10**12, 10**12, ("fp32",)),), 1)
    fits, said = memory(part, Settings(quantize=packing), machine)
    assert fits is None and said.startswith(f"about {size(10**9 * bits)} packed in {packing}, of")


@each("architecture, shape", [("qwen3moe", None), ("gpt-oss", None), ("gemma4", MIXTURE)])
def test_a_plan_of_a_mixture_lets_half_of_its_experts_stay_on_the_disk(architecture, shape, fresh_home, monkeypatch):
    source, config = Source.parse("org/tiny-GGUF:Q4_K_M"), {"architecture": architecture}
    part: Any = SimpleNamespace(source=source, weights=10**10, config=config)

    def planned(gigabytes: int) -> tuple[bool | None, str]:
        free = gigabytes * 10**9
        return memory(part, Settings(), Machine((Device("cpu", "a processor", free, free, ("fp32",)),), 1), shape)

    copy = f"copied once to a file of about {size(10**10)} in {Paths(fresh_home).packed}"
    fits, said = planned(20)
    assert fits is None and copy in said and "disk" not in said.replace(copy, "")
    with monkeypatch.context() as patched:  # download and second file are on one disk
        patched.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=2 * 10**10 - 1))
        assert planned(20)[1].endswith(f"{copy}, but the disk of both files has only {size(2 * 10**10 - 1)} free")
        patched.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=2 * 10**10))
        assert planned(20)[1].endswith(copy)
    fits, said = planned(8)
    assert fits is None and copy in said and "experts stays on the disk" in said
    fits, said = planned(5)
    assert fits is False and f"needs about {size(0.55 * 10**10)}" in said
    part.config, shape = {"architecture": "gemma4"}, None
    fits, said = planned(8)
    assert fits is False and "needs about" in said
    fits, said = planned(20)
    assert fits is None and "copied" not in said
