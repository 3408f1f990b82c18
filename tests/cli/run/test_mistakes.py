"""`localspec run`: a mistake of the user is one sentence on standard error and an exit code."""

import pytest
from cli.run.run_command import refused
from scripted_models import scripted_model


def test_a_gpu_on_a_machine_without_one(run, hello):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    refused(run("-m", hello.path, "hi", "--device", "cuda"), 2, "cuda", "cpu")


@pytest.mark.slow
def test_a_prompt_longer_than_the_context(run, models):
    tight = scripted_model(models / "tight", [b"a", b"b", b"c"], context=20)
    refused(run("-m", tight.path, "x" * 100), 2, "103 tokens", "20")
    refused(run("-m", tight.path, "x" * 17), 2, "20 tokens")
    answer = run("-m", tight.path, "x" * 15, "--json").json
    assert answer["finish_reason"] == "length" and answer["text"] == "ab"  # the context is full


@pytest.mark.slow
def test_what_cannot_be_foreseen_is_one_line_too(run, hello, monkeypatch):
    monkeypatch.setattr("localspec.decoding.session.decode_step", lambda *_: 1 / 0)
    result = run("-m", hello.path, "hi", "--json")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("localspec: Unexpected ZeroDivisionError") and result.err.count("\n") == 1
