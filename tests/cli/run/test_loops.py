"""A reply that repeats itself without end is stopped at a terminal, and nowhere else."""

import os
import sys

import pytest
from cli.run.run_command import process
from command import reaching
from golden import wording
from scripted_models import scripted_model

SENTENCE = wording("localspec_stopped_reply_repeated")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("drafter", ["none", "phrases"])
def test_a_loop_is_cut_only_at_a_terminal(run, home, tmp_path, drafter):
    circle = scripted_model(tmp_path / "circle", [b"one ", b"two ", b"three ", b"four "], again=0, context=2000).path
    arguments = ["-m", circle, "hi", "-n", "600", "--drafter", drafter, "--no-log"]
    piped = run(*arguments)
    assert piped.out.split() == ["one", "two", "three", "four"] * 150 and SENTENCE not in piped.err
    assert run(*arguments, "--json").json["finish_reason"] == "length"
    ours, theirs = os.openpty()
    running = process(home, *arguments, stdout=theirs)
    os.close(theirs)
    shown = b"".join(reaching(ours))
    _, told = running.communicate()
    assert SENTENCE in told.decode()
    assert shown.decode().split() == ["one", "two", "three", "four"] * 56, "1,000 characters, at a 16th token"
