"""The files that a pull would fetch, from usual repositories, unusual ones, and malicious servers."""

import json
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from checkpoints import CONFIG, safetensors
from each import each
from golden import matching, wording
from hub_server import Hub, Repository, git_sha1, served

from localspec.errors import DoesNotFit, LocalspecError, NotHere
from localspec.hub.cache import find_snapshot
from localspec.hub.client import localspec_errors
from localspec.hub.fetch import fetch
from localspec.hub.plan import Part, plan
from localspec.hub.sources import Source
from localspec.paths import Paths

SOURCE = Source("org/name")
WEIGHTS = safetensors({"a": [4, 10]})
MODEL = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with served() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield hub


def planned(hub: Hub, files: dict[str, bytes], **more: object) -> Part:
    hub.repositories["org/name"] = Repository(files, **more)
    (part,) = plan([SOURCE]).parts
    return part


def cached() -> bool:
    """Return whether anything is in the common cache."""
    return Path(os.environ["HF_HOME"]).exists()


def names(part: Part) -> set[str]:
    return {file.name for file in part.files}


def changed(**values: object) -> dict[str, bytes]:
    return {**MODEL, "config.json": json.dumps({**CONFIG, **values}).encode()}


# -- what is wanted -----------------------------------------------------------------------------------------------------


def test_copies_in_other_formats_stay_where_they_are(hub):
    beside = {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "merges.txt", "vocab.json",
              "tokenizer.model", "chat_template.jinja", "LICENSE", "LICENSE.txt", "LICENSE-MODEL", "license_2.md", "NOTICE", "README.md"}  # fmt: skip
    unwanted = {
        "pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.safetensors", "original/model.pth",
        "model.gguf", "onnx/model.onnx", "modeling_x.py", "tokenizer.pkl", ".gitattributes", "flax_model.msgpack",
        "training_args.bin", "model-00001-of-00002.safetensors", "tokenization_x.py", "run.sh", "LICENSE.py", "license.pkl",
    }  # fmt: skip
    part = planned(hub, {**MODEL, **dict.fromkeys(beside | unwanted, b"{}")})
    assert names(part) == MODEL.keys() | beside and not part.heads and part.weights == len(WEIGHTS)


def test_shards_are_those_that_the_index_names(hub):
    shards = {f"model-0000{n}-of-00002.safetensors": WEIGHTS for n in (1, 2)}
    files = {name: content for name, content in MODEL.items() if name != "model.safetensors"}
    index = json.dumps({"weight_map": dict(zip("ab", shards, strict=True))}).encode()
    files |= {**shards, "model.safetensors.index.json": index, "model-00001-of-00003.safetensors": WEIGHTS}
    assert names(planned(hub, files)) == files.keys() - {"model-00001-of-00003.safetensors"}


@each("named", ["../../evil.safetensors", "/etc/passwd", "pytorch_model.bin", "not-there.safetensors",
                                   "\x1b[2J.safetensors", "sub/a.safetensors", 7, None])  # fmt: skip
def test_an_index_that_names_something_else(hub, named):
    files = {name: content for name, content in MODEL.items() if name != "model.safetensors"}
    index = json.dumps({"weight_map": {"a": named}}).encode()
    with pytest.raises(LocalspecError, match=matching("no_safetensors_file_beside_it")) as raised:
        planned(hub, {**files, "model.safetensors.index.json": index, "pytorch_model.bin": b"x"})
    assert "\x1b" not in str(raised.value)


def test_medusa_heads(hub):
    for weights in ("medusa_lm_head.pt", "medusa_lm_head.safetensors"):
        part = planned(hub, {"config.json": b'{"base_model_name_or_path": "org/base"}', weights: WEIGHTS})
        assert part.heads and names(part) == {"config.json", weights}
    part = planned(hub, {"medusa_lm_head.pt": b"x", "medusa_lm_head.safetensors": WEIGHTS, "README.md": b""})
    assert names(part) == {"medusa_lm_head.safetensors", "README.md"}
    part = planned(hub, {**MODEL, "config.json": b'{"architectures": ["MedusaModel"], "model_type": "medusa"}'})
    assert part.heads and "model.safetensors" in names(part)


@each("weights", ["model.safetensors", "pytorch_model.bin"])
def test_eagle3_heads(hub, weights):
    """Their config is like a model's, without a tokenizer; a pickle is fetched, since it is read as data."""
    said = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "draft_vocab_size": 9}
    part = planned(hub, {"config.json": json.dumps(said).encode(), weights: WEIGHTS})
    assert part.heads == "eagle3" and names(part) == {"config.json", weights} and not part.whole
    newer = {"speculators_model_type": "eagle3", "transformer_layer_config": {}}
    index = json.dumps({"weight_map": {"fc.weight": "model-1.safetensors"}}).encode()
    files = {"model.safetensors.index.json": index, "model-1.safetensors": WEIGHTS}
    part = planned(hub, {"config.json": json.dumps(newer).encode(), **files})
    assert part.heads == "eagle3" and names(part) == {"config.json", *files}
    with pytest.raises(LocalspecError, match=matching("pickle_only")):  # a form that nothing here reads
        planned(hub, {"config.json": b'{"speculators_model_type": "peagle"}', "pytorch_model.bin": b"x"})


@each(
    "card, said",
    [
        ({"license": "mit"}, "mit"),
        ({"license": "other", "license_name": "llama3.2"}, "llama3.2"),
        ({"license": "other"}, "other"),
        ({"license": ["mit", "apache-2.0"]}, "mit, apache-2.0"),
        ({"license": "\x1b[31mred\n\u202eline" + "x" * 500}, "␛[31mred line" + "x" * 87),
        ({"license": {"a": 1}}, "{'a': 1}"),
        ({}, None),
        (None, None),
        ("text", None),
        ({"license": 3, "model-index": [{"name": 1}]}, "3"),
    ],
)
def test_license(hub, card, said):
    assert planned(hub, MODEL, card=card).license == said


# -- what is refused ----------------------------------------------------------------------------------------------------


@each(
    "files, said",
    [
        ({**{k: v for k, v in MODEL.items() if k != "model.safetensors"}, "pytorch_model.bin": b"x"}, "only as pickle"),
        ({"config.json": MODEL["config.json"], "model.gguf": b"x"}, matching("no_weights_that_localspec_reads")),
        ({}, "no weights"),
        ({k: v for k, v in MODEL.items() if k != "tokenizer.json"}, matching("org_name_tokenizer_localspec")),
        ({**{k: v for k, v in MODEL.items() if k != "tokenizer.json"}, "vocab.json": b"{}"}, "has no tokenizer"),
        (
            {**{k: v for k, v in MODEL.items() if k != "tokenizer.json"}, "merges.txt": b"", "vocab.json": b"{}"},
            "has no tokenizer",
        ),
        (
            {**{k: v for k, v in MODEL.items() if k != "tokenizer.json"}, "tokenizer.model": b"x"},
            r"tokenizer\.json\); choose",
        ),
        ({k: v for k, v in MODEL.items() if k != "config.json"}, "no config.json"),
        (changed(architectures=["GPT2LMHeadModel"], model_type="gpt2"), matching("of_the_architecture")),
        (changed(architectures=["Own"], auto_map={"AutoModel": "own.Own"}), matching("code_own_auto_map_which_loc")),
        (changed(architectures=None), "names no architecture"),
        (changed(architectures=[["x"]]), "architecture"),
        (changed(model_type="own", auto_map={"AutoModel": "own.Own"}), matching("code_of_its_own")),
        (changed(quantization_config={"quant_method": "gptq"}), r"packed \(gptq\)"),
        (changed(quantization_config="awq"), r"packed \(awq\)"),
        ({**MODEL, "config.json": b"[1]"}, matching("not_a_json_object")),
        ({**MODEL, "config.json": b"\xff{"}, matching("not_a_json_object")),
        ({**MODEL, "config.json": b"[" * 10_000}, matching("not_a_json_object")),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_fetched(hub, tmp_path, files, said):
    with pytest.raises(LocalspecError, match=said) as raised:
        planned(hub, files)
    assert raised.value.exit_code == 1 and "org/name" in str(raised.value) and not cached()


@each("size", [2**50 + 1, 10**300])
@each("name", ["model.safetensors", "LICENSE"])
def test_files_longer_than_any_disk(hub, tmp_path, name, size):
    """However it is announced; a file that is not wanted may be as long as it likes."""
    files = {k: v for k, v in MODEL.items() if k != name}
    entry = {"rfilename": name, "size": size, "lfs": {"size": size, "sha256": "0" * 64, "pointerSize": 1}}
    with pytest.raises(LocalspecError, match=matching("more_than_million_gib_org_name", name=name)) as raised:
        planned(hub, files, listed=[entry])
    assert raised.value.exit_code == 1 and len(str(raised.value)) < 200 and not cached()
    assert planned(hub, MODEL, listed=[{**entry, "rfilename": "model.gguf"}]).files


def test_a_pull_that_cannot_be_recorded_is_not_begun(hub, tmp_path):
    planned(hub, MODEL)
    made = plan([SOURCE])
    hub.requests.clear()
    (tmp_path / "file").write_text("")
    for home in (Path("/proc/nope"), tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LocalspecError, match=matching("cannot_be_written")) as raised:
            fetch(made, paths=Paths(home))
        assert str(home) in str(raised.value) and "LOCALSPEC_HOME" in str(raised.value)
    assert hub.requests == [] and not cached()


def test_what_a_config_says_is_made_safe_and_cut_short(hub):
    with pytest.raises(LocalspecError) as raised:
        planned(hub, changed(architectures=["\x1b[2J\n\u202e" + "x" * 10**6]))
    assert "␛[2J" in str(raised.value) and not {"\x1b", "\n", "\u202e"} & set(str(raised.value))
    assert len(str(raised.value)) < 400


def test_code_that_a_supported_model_names_is_not_fetched(hub):
    """Phi-3 was published before transformers supported it, so it names code."""
    part = planned(hub, {**changed(auto_map={"AutoModelForCausalLM": "modeling.Own"}), "modeling.py": b"raise"})
    assert names(part) == MODEL.keys() and wording("neither_fetched_nor_run") in part.notes[0]


# -- servers that mean harm ---------------------------------------------------------------------------------------------


@each("name", ["../../../evil.json", "/tmp/evil.json", "..", "a\\..\\evil.json", "\x1b]0;x\x07.json",
                                  "evil\n.json", "C:evil.json", "con\u202e.json", "x" * 300 + ".json", "", ".bashrc.json",
                                  "sub/evil.json", "evil.json/", None, 7])  # fmt: skip
def test_names_of_files_that_are_no_names(hub, tmp_path, name):
    entry = {"rfilename": name, "size": 4, "blobId": git_sha1(b"evil")}
    hub.repositories["org/name"] = Repository({**MODEL}, listed=[entry])
    try:
        made = plan([SOURCE])
    except LocalspecError as error:
        assert wording("did_not_answer") in str(error) and not isinstance(name, str)  # noqa: PT017
        return
    assert names(made.parts[0]) == set(MODEL)
    fetch(made, paths=Paths(tmp_path / "home"))
    assert {path.name for path in find_snapshot(SOURCE, Paths(tmp_path / "home")).iterdir()} == set(MODEL)


@each("entry", [
        {"rfilename": "LICENSE"}, {"rfilename": "LICENSE", "size": -1, "blobId": "0" * 40},
        {"rfilename": "LICENSE", "size": 5, "blobId": "../../x"}, {"rfilename": "LICENSE", "size": "5", "blobId": "0" * 40},
        {"rfilename": "LICENSE", "size": 5, "blobId": None}, {"size": 5}, 3, {"rfilename": "LICENSE", "lfs": {"size": 1}},
        {"rfilename": "LICENSE", "size": True, "blobId": "0" * 40},
        {"rfilename": "LICENSE", "size": 5, "lfs": {"size": 5, "sha256": "/etc/passwd", "pointerSize": 1}},
    ])  # fmt: skip
def test_listings_that_cannot_be(hub, tmp_path, entry):
    hub.repositories["org/name"] = Repository({**MODEL}, listed=[entry])
    with pytest.raises(LocalspecError, match=matching("did_answer_about_org_name_hugging", endpoint=hub.endpoint)):
        plan([SOURCE])
    assert not cached()


ABOUT = json.dumps({"id": "org/name", "sha": "x", "siblings": []}).encode()


@each(
    "answer, said, code",
    [
        ((200, {"Content-Type": "text/html"}, b"<html>Log in to the \x1b[31mnetwork</html>"), "login page", 1),
        ((200, {}, b""), "does not answer requests", 1),
        ((200, {}, b"[]"), r"does not answer requests .+ \(the answer has an unexpected form\)", 1),
        ((200, {}, b"[1, 2]"), r"does not answer requests .+ \(the answer has an unexpected form\)", 1),
        ((200, {}, b"{}"), r"does not answer requests .+ \(the answer has an unexpected form\)", 1),
        ((200, {}, b'"' + b"x" * 10**6 + b'"'), "does not answer requests", 1),
        ((200, {}, b"[" * 100_000), "does not answer requests", 1),
        ((200, {}, ABOUT), "no commit", 1),
        ((200, {}, ABOUT.replace(b'"x"', b'"../../../../x"')), "no commit", 1),
        ((302, {"Location": "/api/models/org/name"}, b""), "in a loop", 1),
        ((301, {"Location": "http://127.0.0.1:9/"}, b""), "cannot be reached", 1),
        ((200, {"Content-Length": str(10**15), "Connection": "close"}, ABOUT), "was lost", 1),
        ((200, {"Content-Length": "x"}, ABOUT), "was lost", 1),
        ((200, {"Content-Encoding": "gzip"}, ABOUT), matching("sends_compressed_what_asked"), 1),
        ((404, {}, b"<html>"), "no org/name", 3),
        ((404, {"X-Error-Message": "\x9b2J" + "x" * 9000}, b""), "no org/name", 3),
        ((403, {"X-Error-Message": "Access to this resource is disabled."}, b""), "disabled", 5),
        ((429, {"Retry-After": "0"}, b""), "too many requests", 1),
        ((500, {}, b"\x1b[2J"), "answered 500", 1),
        ((503, {}, b""), "answered 503", 1),
        ((418, {}, b'{"error": ["\\u001b[2J"]}'), "answered 418", 1),
    ],
)
def test_invalid_answers(hub, tmp_path, answer, said, code):
    hub.answer = lambda path: answer
    with pytest.raises(LocalspecError, match=said) as raised:
        plan([SOURCE])
    text = str(raised.value)
    assert raised.value.exit_code == code and "\n" not in text and "\x1b" not in text and len(text) < 600
    assert not cached()


@pytest.mark.parametrize("head", [{"X-Linked-Size": str(10**15)}, {"X-Linked-Etag": '"../../../evil"'},
                                  {"X-Repo-Commit": "../../../../evil"}, {"Location": "/org/name/resolve/main/x"}])  # fmt: skip
def test_invalid_answers_about_a_file(hub, tmp_path, head):
    """They may cost the pull, and never a file outside the cache."""
    hub.repositories["org/name"] = Repository({**MODEL, "model.safetensors": safetensors({"a": [5000]})})
    made, answered = plan([SOURCE]), threading.Event()

    def answer(path: str) -> tuple[int, dict[str, str], bytes] | None:
        if "/resolve/" not in path:
            return None
        answered.set()
        name = path.rpartition("/")[2]
        content = hub.repositories["org/name"].files.get(name, b"")
        own = {"ETag": f'"{git_sha1(content)}"', "X-Repo-Commit": made.parts[0].commit}
        return (302 if "Location" in head else 200), {**own, **head}, content

    hub.answer = answer
    with pytest.raises(LocalspecError):
        fetch(made, paths=Paths(tmp_path / "home"))
    assert answered.is_set() and find_snapshot(SOURCE, Paths(tmp_path / "home")) is None
    outside = [p for p in tmp_path.rglob("*evil*") if not p.is_relative_to(tmp_path / "hf" / "hub")]
    assert outside == []


def test_an_answer_about_a_file_without_its_commit_is_reported_as_such(hub, tmp_path):
    planned(hub, MODEL)
    made = plan([SOURCE])
    hub.answer = lambda path: (200, {"ETag": f'"{"0" * 40}"'}, b"") if "/resolve/" in path else None
    with pytest.raises(LocalspecError, match=matching("answer_lacks_header_x_repo_commit")):
        fetch(made, paths=Paths(tmp_path / "home"))


def test_what_a_server_says_at_length_is_cut_where_one_sees_it(hub):
    with pytest.raises(LocalspecError, match=r"\((odd ){49}odd…\); check HF_ENDPOINT"), localspec_errors(SOURCE):
        raise ValueError("odd " * 100)


def test_nothing_to_ask_for_is_asked_of_nobody(hub):
    assert plan([]).parts == () and hub.requests == []


def test_no_token_no_header(hub):
    planned(hub, MODEL)
    assert hub.tokens == {None}


def test_a_repository_that_is_gone_between_plan_and_fetch(hub, tmp_path):
    planned(hub, MODEL)
    made = plan([SOURCE])
    hub.repositories.clear()
    with pytest.raises(NotHere, match=matching("lacks_file_listed_moment_ago")):
        fetch(made, paths=Paths(tmp_path / "home"))


def test_progress_is_reported_as_the_chunked_transfer_reports_it(hub, tmp_path):
    """The client's own Xet reporter with our progress bar: bytes on disk count, not those on the wire."""
    from types import SimpleNamespace

    from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

    from localspec.hub.fetch import _Fetching

    part = planned(hub, MODEL)
    file = next(file for file in part.files if file.name == "model.safetensors")
    seen: list[tuple[int, int]] = []
    bar = _Fetching(plan([SOURCE]), lambda done, total: seen.append((done, total)))._bar(file)
    total = sum(map(len, MODEL.values()))
    with XetDownloadProgressReporter(
        reconstruction_desc="x", total=file.bytes, log_level=30, name="x", tqdm_class=bar
    ) as reporter:
        for done, sent in ((0, 50), (100, 80), (file.bytes, 120)):
            reporter.update_progress(
                SimpleNamespace(
                    total_bytes_completed=done, total_transfer_bytes_completed=sent, total_bytes=file.bytes,
                    total_bytes_completion_rate=1.0, total_transfer_bytes_completion_rate=None,
                )
            )  # fmt: skip
    assert seen == [(100, total), (file.bytes, total)]


def test_what_does_not_fit_on_the_disk_is_not_begun(hub, tmp_path):
    planned(hub, MODEL)
    made = replace(plan([SOURCE]), disk_free=10)
    hub.requests.clear()
    with pytest.raises(DoesNotFit, match=matching("make_room")):
        fetch(made, paths=Paths(tmp_path / "home"))
    assert hub.requests == [] and not cached()
    fetch(made, paths=Paths(tmp_path / "home"), force=True)
    assert find_snapshot(SOURCE, Paths(tmp_path / "home")) is not None


def test_two_revisions_of_which_one_is_wanted_do_not_share_a_record(hub, tmp_path):
    hub.repositories["org/name"] = Repository(MODEL, revisions={"dev": "d" * 40})
    dev = Source("org/name", "dev")
    fetch(plan([SOURCE, dev]), paths=Paths(tmp_path / "home"))
    here = [find_snapshot(source, Paths(tmp_path / "home")) for source in (SOURCE, dev)]
    assert None not in here and here[1].name == "d" * 40 != here[0].name


def test_a_file_of_another_length_does_not_count_as_cached(hub, tmp_path):
    planned(hub, MODEL)
    fetch(plan([SOURCE]), paths=Paths(tmp_path / "home"))
    path = find_snapshot(SOURCE, Paths(tmp_path / "home"))
    assert plan([SOURCE]).parts[0].here == set(MODEL)
    (path / "model.safetensors").resolve().write_bytes(WEIGHTS[:-1])
    made = plan([SOURCE])
    assert made.parts[0].here == set(MODEL) - {"model.safetensors"} and made.fetch_bytes == len(WEIGHTS)


@each(
    "cause, said",
    [
        (socket.gaierror(-2, "Name or service not known"), matching("cannot_found_see_whether_machine")),
        (ConnectionRefusedError(111, "Connection refused"), matching("cannot_be_reached_connection")),
    ],
)
def test_no_number_of_an_error_is_shown(cause, said):
    with pytest.raises(LocalspecError, match=said) as told, localspec_errors(Source("org/name")):
        raise httpx2.ConnectError(str(cause)) from cause
    assert "Errno" not in str(told.value)
