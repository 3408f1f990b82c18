"""`pull NAME` takes the publisher's Q8_0 file where int8 or int4 would be used: plan, download, and loss of quality."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from cli.hub_commands import at, blobs
from command import sentence
from gguf_files import metadata_of, tensors_of, written
from golden import wording
from hub_server import Hub, Repository, model_repository, served
from machines import gpu, machine

from localspec import Done, Engine, Limits, Sampling
from localspec.choosing.choose import choose
from localspec.choosing.measure import NoMeasurements
from localspec.config import Settings
from localspec.models.registry import resolve
from localspec.paths import Paths
from localspec.weights.packed_files import packed_files

pytestmark = pytest.mark.slow

FORM = "org/name-GGUF:Q8_0"
ENTRY = """
[mine]
repo = "org/name"
license = "Apache-2.0"
publisher = "Somebody"
draft = "small"
shape = {{ layers = 6, width = 256, inner = 896, heads = 4, key_heads = 4, head_width = 64, vocabulary = 4096, context = 1024 }}
drafters = [{{ kind = "draft_model" }}]
[[mine.forms]]
repo = "org/name-GGUF"
gguf = "Q8_0"
publisher = "{publisher}"
license = "Apache-2.0"
[small]
repo = "org/small"
"""
TEXTS = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


@pytest.fixture(scope="module")
def whole() -> Repository:
    return model_repository(resolve("demo").path)


@pytest.fixture(scope="module")
def gguf() -> bytes:
    demo = resolve("demo").path
    return written(metadata_of(demo, "smollm"), tensors_of(demo, "Q8_0", faithful=True))


@pytest.fixture
def home(home: Path) -> Path:
    (home / "config").mkdir(mode=0o700)
    (home / "config" / "models.toml").write_text(ENTRY.format(publisher="Somebody"))
    return home


@pytest.fixture
def hub(whole: Repository, gguf: bytes):
    files = {"name-q8_0.gguf": gguf, "README.md": b"# name"}
    small = model_repository(resolve("demo").path / "draft")
    with served(
        **{"org__name": Repository({**whole.files}), "org__name-GGUF": Repository(files)}, org__small=small
    ) as hub:
        yield hub


def pull(home: Path, hub: Hub, *flags: str, drafter: str = "none", quantize: str = "int8"):
    return at(home, hub, "pull", "mine", "--yes", "--drafter", drafter, "--quantize", quantize, *flags)


def fetched(hub: Hub) -> set[str]:
    return {request.split("/")[-1] for request in hub.requests if "/resolve/" in request}


def reply(home: Path, hub: Hub, *flags: str) -> dict:
    usual = ("--temp", "0", "-n", "8", "--no-log", "--json")
    drafter = flags or ("--drafter", "phrases")  # `auto` would pack a small model, too
    result = at(home, hub, "run", "-m", "mine", "Who are you?", *usual, *drafter)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("quantize", ["auto", "int8", "int4"])
def test_the_smaller_download_with_the_publishers_own_texts(home, hub, whole, gguf, quantize):
    result = pull(home, hub, quantize=quantize)
    assert result.returncode == 0, result.stderr
    assert wording("form_place_org_name") in result.stdout
    kept = "int8" if quantize == "auto" else quantize
    assert wording("that_would_be_packed_to", quantize=kept) in result.stdout
    assert "--original fetches" in result.stdout and f"{FORM} is here" in result.stdout
    assert fetched(hub) == {"name-q8_0.gguf", *(TEXTS & whole.files.keys())} and len(blobs(home)) == 1
    forms = {one.header.packing: one for one in packed_files(Paths(home))}
    assert [*forms] == (["blocks"] if quantize == "auto" else ["blocks", quantize])
    for packed in forms.values():
        for name in TEXTS & whole.files.keys():
            assert packed.text(name) == whole.files[name], name
    assert "localspec" in reply(home, hub)["text"]
    shown = json.loads(at(home, hub, "show", "mine", "--json").stdout)
    assert shown["installed"] and shown["source"] == FORM
    assert shown["verified"] is True and len(shown["commit"]) == 40

    hub.requests.clear()
    again = pull(home, hub, quantize=quantize)
    assert again.returncode == 0 and f"{FORM} is here" in again.stdout and "0 bytes to fetch" in again.stdout
    assert fetched(hub) <= {"config.json"}, "that is read for the plan"
    assert at(home, hub, "verify", "mine").returncode == 0
    assert at(home, hub, "rm", "mine", "--yes").returncode == 0 and packed_files(Paths(home)) == []
    assert blobs(home) == {}


def test_a_published_drafter_is_made_for_the_gguf_file_that_comes(home, tmp_path, whole, gguf):
    from drafters.test_dflash import published
    from drafters.test_dspark import FORMS, spark_config, spark_tensors

    config = spark_config(SimpleNamespace(num_hidden_layers=8, vocab_size=8192, hidden_size=256), **FORMS[0])
    path = published(tmp_path / "head", config, spark_tensors(config))
    heads = Repository({file.name: file.read_bytes() for file in path.iterdir()})
    entry = ENTRY.format(publisher="Somebody").replace('kind = "draft_model"', 'kind = "dspark", repo = "org/heads"')
    (home / "config" / "models.toml").write_text(entry)
    files = {"org__name": Repository({**whole.files}), "org__name-GGUF": Repository({"name-q8_0.gguf": gguf})}
    with served(**files, org__heads=heads) as hub:
        result = pull(home, hub, drafter="dspark", quantize="auto")
        assert result.returncode == 0 and "--drafter dspark" in result.stderr, result.stderr
        assert not any(
            request.startswith("/org/name/") and request.endswith(".safetensors") for request in hub.requests
        )
        plain, found = reply(home, hub, "--no-spec"), reply(home, hub, "--drafter", "dspark", "--draft-max", "4")
    assert found["drafter"] == "dspark" and found["speculation"]["draft_n"] > 0
    assert found["token_ids"] == plain["token_ids"]


def test_packed_only_is_made_of_the_original_on_request(home, hub):
    """The file of the form would be a second copy."""
    result = pull(home, hub, "--packed-only")
    assert result.returncode == 0 and "form:" not in result.stdout and "name-q8_0.gguf" not in fetched(hub)
    assert [one.header.packing for one in packed_files(Paths(home))] == ["int8"] and blobs(home) == {}
    at(home, hub, "rm", "mine", "--yes")
    result = pull(home, hub, "--packed-only", quantize="auto")
    assert result.returncode == 0 and f"{FORM} is here" in result.stdout
    assert [one.header.packing for one in packed_files(Paths(home))] == ["blocks"] and len(blobs(home)) == 1


def test_the_dry_run_knows_it_without_a_network(home):
    result = at(home, Hub(endpoint="http://127.0.0.1:9"), "pull", "mine", "--dry-run", "--json", "--quantize", "int8")
    said = json.loads(result.stdout)
    (source,) = said["sources"][:1]
    assert (source["repo"], source["gguf"]) == ("org/name-GGUF", "Q8_0") and said["forms"] == []
    of = said["instead_of"]
    assert (of["repo"], of["quantize"]) == ("org/name", "int8") and source["bytes"] == of["bytes"] * 17 // 32
    flags = ("--dry-run", "--json", "--quantize", "int8", "--original")
    said = json.loads(at(home, Hub(endpoint="http://127.0.0.1:9"), "pull", "mine", *flags).stdout)
    assert said["sources"][0]["repo"] == "org/name" and said["instead_of"] is None


def test_the_original_is_fetched_where_it_is_requested_and_then_kept_up_to_date(home, hub):
    assert pull(home, hub, "--original").returncode == 0 and "model.safetensors" in fetched(hub)
    assert "name-q8_0.gguf" not in fetched(hub)
    result = pull(home, hub)
    assert result.returncode == 0 and "form:" not in result.stdout and "name-q8_0.gguf" not in fetched(hub)
    refused = at(home, hub, "pull", "org/name", "--original")
    assert refused.returncode == 2 and wording("original_has_no_effect") in sentence(refused)


def test_a_packing_that_this_machine_lacks_is_refused_and_nothing_fetched(home, hub):
    refused = pull(home, hub, quantize="nf4")
    assert refused.returncode == 2 and wording("quantize_nf4_cannot_be_had") in sentence(refused)
    assert not fetched(hub) & {"model.safetensors", "name-q8_0.gguf"}


def test_where_something_else_would_be_kept_the_original_comes(home, hub):
    result = pull(home, hub, quantize="none")
    assert result.returncode == 0 and fetched(hub) >= {"model.safetensors"} and "form:" not in result.stdout


def test_on_a_gpu_the_original_comes_and_a_gguf_file_says_what_it_becomes_there(home, hub, monkeypatch):
    """On a simulated machine with a GPU: only the decisions of a pull; a model this small must be named explicitly."""
    for place in ("pulling.pull", "pulling.announced"):
        monkeypatch.setattr(f"localspec.{place}.this_machine", lambda: machine(gpu(24)))
    # There is nothing to ask its driver.
    monkeypatch.setattr("localspec.pulling.pull.Measurements", lambda cache, quiet: NoMeasurements())
    said = json.loads(at(home, hub, "pull", "mine", "--dry-run", "--json", LOCALSPEC_DEVICE="cuda:0").stdout)
    assert said["instead_of"] is None and said["sources"][0]["repo"] == "org/name"
    planned = at(home, hub, "pull", "mine", "--drafter", "none", "--yes", LOCALSPEC_DEVICE="cuda:0")
    assert planned.returncode == 0 and "model.safetensors" in fetched(hub) and "name-q8_0.gguf" not in fetched(hub)
    planned = at(home, hub, "pull", FORM, "--dry-run")
    assert wording("cuda_0_computes_in_bf16_or_int8") in planned.stdout


def test_with_a_gpu_the_file_may_be_computed_on_both_devices_in_the_requested_int8(home, hub, monkeypatch):
    assert pull(home, hub).returncode == 0
    with patch.dict(os.environ, {"LOCALSPEC_HOME": str(home)}):
        card, there = resolve("mine"), machine(gpu(24))
        on_gpu, choice = (choose(card, Settings(device=device), there) for device in ("cuda:0", "cpu"))
        assert (on_gpu.device, on_gpu.engine, on_gpu.quantize) == ("cuda:0", "torch", "int8")
        assert (choice.device, choice.engine, choice.quantize) == ("cpu", "native", "int8")
        (reply,) = [
            one
            for one in Engine(choice).chat(
                [{"role": "user", "content": "Who are you?"}], Sampling(0.0), Limits(max_tokens=4)
            )
            if isinstance(one, Done)
        ]
    assert len(reply.statistics.token_ids) == 4


def test_a_copy_by_somebody_else_is_never_preferred(home, hub):
    (home / "config" / "models.toml").write_text(ENTRY.format(publisher="Somebody else"))
    assert pull(home, hub).returncode == 0 and "name-q8_0.gguf" not in fetched(hub)


def test_a_form_that_the_hub_lacks_is_reported_and_the_original_is_fetched(home, hub):
    del hub.repositories["org/name-GGUF"]
    result = pull(home, hub)
    assert result.returncode == 0 and "model.safetensors" in fetched(hub)
    assert wording("there_model_org_name_gguf") in result.stderr and "Therefore org/name is fetched" in result.stderr


def test_a_form_that_turns_out_gated_is_reported_and_the_original_is_fetched(home, hub):
    hub.repositories["org/name-GGUF"].gated = "manual"
    result = pull(home, hub)
    assert result.returncode == 0 and "model.safetensors" in fetched(hub) and "name-q8_0.gguf" not in fetched(hub)
    assert f"{FORM} is gated" in result.stderr and "so org/name is fetched" in result.stderr


def test_an_original_that_was_here_stays_with_packed_only_and_a_sentence_says_so(home, hub):
    assert pull(home, hub, "--original").returncode == 0
    result = pull(home, hub, "--original", "--packed-only")
    assert result.returncode == 0 and wording("that_were_here_before") in result.stderr
    assert "`localspec rm mine`" in result.stderr
    assert at(home, hub, "rm", "mine", "--yes").returncode == 0
    again = pull(home, hub, "--original", "--packed-only")
    assert again.returncode == 0 and wording("were_here_before") not in again.stderr and blobs(home) == {}


def test_its_small_model_comes_along_and_drafts_with_it(home, hub):
    result = pull(home, hub, drafter="draft_model")
    assert result.returncode == 0 and "org/small is here" in result.stdout, result.stderr
    plain, drafted = reply(home, hub, "--no-spec"), reply(home, hub, "--drafter", "draft_model")
    assert plain["text"] == drafted["text"] and drafted["drafter"] == "draft_model"


def test_what_its_publisher_changes_in_a_text_comes_with_the_next_pull(home, hub, whole):
    assert pull(home, hub, quantize="auto").returncode == 0
    template = whole.files["chat_template.jinja"] + b"{# changed #}"
    hub.repositories["org/name"] = Repository({**whole.files, "chat_template.jinja": template})
    assert pull(home, hub, quantize="auto").returncode == 0
    (packed,) = packed_files(Paths(home))
    assert packed.text("chat_template.jinja") == template


def test_what_was_in_the_cache_before_stays_there(home, hub):
    assert pull(home, hub, "--original").returncode == 0
    for kept in (home / "data" / "pulled", home / "cache" / "packed"):
        shutil.rmtree(kept)
    link = next((home / "hf").rglob("model.safetensors"))
    for file in (link.resolve(), link):
        file.unlink()
    before = blobs(home)
    assert pull(home, hub).returncode == 0 and "name-q8_0.gguf" in fetched(hub)
    later = blobs(home)
    assert len(later) == len(before) + 1 and {name: later[name] for name in before} == before and len(before) > 4


FOUR_BITS = """
[[mine.forms]]
repo = "org/name-qat-GGUF"
gguf = "Q4_0"
publisher = "{publisher}"
license = "Apache-2.0"
"""


@pytest.fixture
def four_bits(home, hub):
    """Publish a file of four bits too, and let the machine's memory ask for int4."""
    entry = ENTRY.format(publisher="Somebody").replace("[small]", FOUR_BITS.format(publisher="Somebody") + "[small]")
    (home / "config" / "models.toml").write_text(entry)
    demo = resolve("demo").path
    content = written(metadata_of(demo, "smollm"), tensors_of(demo, "Q4_0"))
    hub.repositories["org/name-qat-GGUF"] = Repository({"name-q4_0.gguf": content})
    with patch("localspec.pulling.packing.saved_packing", lambda *_: "int4"):
        yield


@pytest.mark.usefixtures("four_bits")
def test_the_publishers_four_bits_come_where_int4_would_be_kept_and_are_read_as_they_are(home, hub, whole):
    result = pull(home, hub, quantize="auto")
    assert result.returncode == 0, result.stderr
    assert wording("that_would_be_packed_to", quantize="int4") in result.stdout
    assert "Q4_0 is the form for which the publisher trained the model" in result.stdout
    assert fetched(hub) == {"name-q4_0.gguf", *(TEXTS & whole.files.keys())}
    (packed,) = packed_files(Paths(home))
    assert packed.header.packing == "blocks" and packed.text("config.json") == whole.files["config.json"]
    plain, drafted = reply(home, hub, "--no-spec"), reply(home, hub, "--drafter", "phrases")
    assert plain["token_ids"] == drafted["token_ids"]


@pytest.mark.usefixtures("four_bits")
def test_where_they_would_be_packed_again_or_more_bits_are_kept_eight_bits_come(home, hub):
    """The first case requests the packing, so a file of four bits would lose twice."""
    assert pull(home, hub, quantize="int4").returncode == 0 and "name-q8_0.gguf" in fetched(hub)
    assert "name-q4_0.gguf" not in fetched(hub)
    assert at(home, hub, "rm", "mine", "--yes").returncode == 0
    hub.requests.clear()
    with patch("localspec.pulling.packing.saved_packing", lambda *_: "int8"):
        assert pull(home, hub, quantize="auto").returncode == 0
    assert "name-q8_0.gguf" in fetched(hub) and "name-q4_0.gguf" not in fetched(hub)


@pytest.mark.usefixtures("four_bits")
def test_fewer_bits_than_the_name_says_are_refused_there_too(home, hub):
    demo = resolve("demo").path
    content = written(metadata_of(demo, "smollm"), tensors_of(demo, "Q2_K"))
    hub.repositories["org/name-qat-GGUF"] = Repository({"name-q4_0.gguf": content})
    result = pull(home, hub, quantize="auto")
    assert (
        result.returncode == 1
        and "Q2_K" in result.stderr
        and "--original fetches the original weights, from org/name" in result.stderr
    )
    assert packed_files(Paths(home)) == []


@pytest.mark.parametrize(
    ("unlike", "said"),
    [({"phi3.rope.freq_base": 500.0}, "rope_theta"), ({"kind": "Q4_0"}, "Q4_0")],
    ids=["another model", "fewer bits"],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_with_the_original(home, hub, unlike, said):
    demo = resolve("demo").path
    metadata = {**metadata_of(demo, "smollm"), **{key: one for key, one in unlike.items() if key != "kind"}}
    content = written(metadata, tensors_of(demo, unlike.get("kind", "Q8_0")))
    hub.repositories["org/name-GGUF"] = Repository({"name-q8_0.gguf": content})
    result = pull(home, hub)
    assert (
        result.returncode == 1
        and said in result.stderr
        and "--original fetches the original weights, from org/name" in result.stderr
    )
    assert packed_files(Paths(home)) == [] and at(home, hub, "run", "-m", "mine", "Hi").returncode == 3
