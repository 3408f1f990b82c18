"""`localspec run`: a mistake of the user is one sentence on standard error and an exit code."""

import pytest
from cli.run.run_command import refused
from each import each
from golden import wording
from scripted_models import scripted_model


@each(
    "arguments, said",
    [
        (["--temp", "-1"], ["--temperature -1"]),
        (["--temp", "nan"], ["--temperature nan"]),
        (["--temp", "9999"], ["--temperature 9999", "100"]),
        (["--temp", "hot"], ["--temperature", "'hot'", wording("number_from_0_100")]),
        (["--top-p", "0"], ["--top-p 0"]),
        (["--top-p", "1.5"], ["--top-p 1.5"]),
        (["--top-k", "-1"], ["--top-k -1"]),
        (["--min-p", "2"], ["--min-p 2"]),
        (["--seed", "-3"], ["--seed -3"]),
        (["-n", "0"], ["--max-tokens 0"]),
        (["--seed", 2**63], ["--seed", str(2**63), wording("whole_number_from_0")]),
        (["--draft-max", 2**63], ["--draft-max", wording("auto_whole_number_from_0")]),
        (["-n", "many"], ["--max-tokens", "'many'", wording("whole_number_from_1_up")]),
        (["-n", "1.5"], ["--max-tokens 1.5"]),
        (["--context", "0"], ["--context 0"]),
        (["--threads", "0"], ["--threads 0"]),
        (["--threads", "100000"], ["100000 threads", "here; give fewer"]),
        (["--context", "2000"], ["2000", "1000"]),
        (["--context", "4"], ["4", "tokens", "shorten"]),
        (["--stop", ""], ["--stop"]),
        (["--temprature", "1"], ["--temprature", "--temperature"]),
        (["--no-sepc"], ["--no-sepc", "--no-spec"]),
        (["--json", "--stream-json"], ["--json", "--stream-json"]),
        (["--no-spec", "--drafter", "phrases"], ["--no-spec", "--drafter phrases"]),
        (["--no-spec", "--draft-max", "4"], ["--draft-max 4"]),
        (["--no-spec", "--pool", "user"], ["--pool user"]),
        (["--draft-max", "0", "--pool", "readonly"], ["--pool readonly"]),
        (["--draft-max", "0", "--drafter", "phrases"], [wording("drafter_phrases_effect_draft_max")]),
        (["--draft-max", "lots"], ["--draft-max", "lots"]),
        (["--draft-max", "-1"], ["--draft-max", "-1"]),
        (["--draft-max", "9" * 5000], ["--draft-max inf"]),
        (["--draft-max", "65"], ["--draft-max 65", "64"]),
        (["--drafter", "medusaa"], ["medusaa", "phrases"]),
        (["--drafter", ""], ["--drafter"]),
        (["--pool", "of"], ["--pool", "of"]),
        (["--top-p", "0.5", "--temp", "0"], ["--top-p", "temperature 0"]),
        (["--top-k", "5"], ["--top-k", "temperature 0"]),
        (["--dtype", "fp16"], ["fp16"]),
        (["--dtype", "fp8"], ["--dtype", "fp8"]),
        (["--device", "cuda:99"], ["cuda:99", "cpu"]),
        (["--device", "gpu"], ["--device", "gpu"]),
        (["--quantize", "nf4", "--device", "cpu"], [wording("nf4_is_not_for_cpu")]),
        (["hi", "there"], ["there"]),
    ],
)
def test_usage_mistakes(run, models, arguments, said):
    if not (models / "short").exists():
        scripted_model(models / "short", [b"a"], context=1000)
    if "--dtype" in arguments:
        arguments = [*arguments, "--device", "cpu"]
    refused(run("-m", models / "short", "hi", *arguments), 2, *said)


def test_a_gpu_where_there_is_none(run, hello):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    refused(run("-m", hello.path, "hi", "--device", "cuda"), 2, "cuda", "cpu")


@pytest.mark.slow
def test_settings_that_are_no_settings(run, home, hello, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_TEMPERATUR", "1")
    refused(run("-m", hello.path, "hi"), 2, "LOCALSPEC_TEMPERATUR", "'LOCALSPEC_TEMPERATURE'")
    monkeypatch.delenv("LOCALSPEC_TEMPERATUR")
    monkeypatch.setenv("LOCALSPEC_TOP_P", "0")
    refused(run("-m", hello.path, "hi"), 2, "LOCALSPEC_TOP_P=")
    monkeypatch.delenv("LOCALSPEC_TOP_P")
    (home / "config").mkdir(parents=True)
    (home / "config" / "config.toml").write_text("max_token = 5\n")
    refused(run("-m", hello.path, "hi"), 2, "max_token", "'max_tokens'", "config.toml")
    (home / "config" / "config.toml").write_text("max_tokens = 2\n")
    assert run("-m", hello.path, "hi").out == "Hello\n"
    assert run("-m", hello.path, "hi", "-n", "1").out == "Hel\n"


@pytest.mark.slow
def test_a_prompt_longer_than_the_context(run, models):
    tight = scripted_model(models / "tight", [b"a", b"b", b"c"], context=20)
    refused(run("-m", tight.path, "x" * 100), 2, "103 tokens", "20")
    refused(run("-m", tight.path, "x" * 17), 2, "20 tokens")
    answer = run("-m", tight.path, "x" * 15, "--json").json
    assert answer["finish_reason"] == "length" and answer["text"] == "ab"  # the context is full


def test_no_such_model(run, tmp_path):
    refused(run("-m", "dmo", "hi"), 3, "'dmo'", "'demo'")
    refused(run("-m", "meta/llama", "hi"), 3, "'meta/llama'")
    refused(run("-m", "", "hi"), 2, "--model")
    (tmp_path / "empty").mkdir()
    refused(run("-m", tmp_path / "empty", "hi"), 3, "config.json")


@pytest.mark.slow
def test_what_cannot_be_foreseen_is_one_line_too(run, hello, monkeypatch):
    monkeypatch.setattr("localspec.decoding.session.decode_step", lambda *_: 1 / 0)
    result = run("-m", hello.path, "hi", "--json")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("localspec: Unexpected ZeroDivisionError") and result.err.count("\n") == 1
