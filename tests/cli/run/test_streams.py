"""`localspec run`: its output on standard output and standard error, and either of them closed, full or abandoned."""

import errno
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
from cli.run.run_command import kept, process, shell
from clocks import PATIENCE
from command import environment
from each import each
from golden import wording
from scripted_models import scripted_model

from localspec.chat.start import DEMO

pytestmark = pytest.mark.slow

# Run the program without a network, and list what it imported.
OFFLINE = """
import sys
def watch(event, arguments):
    if event.startswith("socket."):
        raise SystemExit(f"network: {event} {arguments}")
sys.addaudithook(watch)
from localspec.cli.main import main
code = main(sys.argv[1:])
print(*(name for name in ("textual", "localspec_tui") if name in sys.modules), end="", file=sys.stderr)
sys.exit(code)
"""


def test_a_reply_and_nothing_else_without_network_or_interface(home, hello):
    result = subprocess.run(
        [sys.executable, "-c", OFFLINE, "run", "-m", hello.path, "hi"],
        env=environment(home, TERM="xterm"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, (hello.text + "\n").encode(), b"")
    assert hello.text == "Hello wörld 世!"


def test_the_newline_at_the_end(run, models):
    assert run("-m", scripted_model(models / "newline", [b"a", b"\n"]).path, "hi").out == "a\n"
    silent = scripted_model(models / "silent", [b"x"], follows={258: 259})
    result = run("-m", silent.path, "hi")
    assert (result.code, result.out, result.err) == (0, "\n", f"localspec: {wording('reply_is_empty')}\n")
    assert run("-m", silent.path, "hi", "--json").json["token_ids"] == []


def test_stats_are_two_lines_on_standard_error(run, hello):
    result = run("-m", hello.path, "hi", "--stats")
    assert result.out == hello.text + "\n"
    speed, origin = result.err.splitlines()
    assert re.fullmatch(r"([\d,.]+ tok/s · )?\d tokens · first token (within|after) \d+\.\d s", speed), speed
    assert re.fullmatch(
        r"int8 on cpu · same text[^·]* · \d+\.\d [MG]iB of memory at most( · drafting paused: [^·]+)? · temperature 0 .*",
        origin,
    ), origin
    assert "\r" not in result.err and "\x1b" not in result.err
    for form in ("--json", "--stream-json"):
        result = run("-m", hello.path, "hi", "--stats", form)
        assert result.err.count("\n") == 2 and "tok/s" in result.err
        assert all(json.loads(line) for line in result.out.splitlines())


def test_closed_streams(home, hello):
    """Output to a closed stream is dropped, and never goes to standard output instead."""
    (home / "config").mkdir(parents=True)
    (home / "config" / "models.toml").write_text(f'[demo]\npath = "{hello.path}"\n')
    result = shell(home, '"$@" <&- 2>&-', "hi", "--stats")
    assert (result.returncode, result.stdout) == (0, (hello.text + "\n").encode())


def test_no_standard_output(home, hello):
    result = shell(home, '"$@" >&-', "-m", hello.path, "hi")
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.startswith(b"localspec: Standard output is closed") and result.stderr.count(b"\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disks_behind_the_streams(home, hello):
    result = shell(home, '"$@" --stats 2>/dev/full', "-m", hello.path, "hi")
    assert (result.returncode, result.stdout) == (0, (hello.text + "\n").encode())
    result = shell(home, '"$@" >/dev/full', "-m", hello.path, "hi")
    assert result.returncode == 1
    assert result.stderr.startswith(b"localspec: Standard output") and result.stderr.count(b"\n") == 1


def test_notices(run, home, hello, monkeypatch):
    monkeypatch.setattr("localspec.models.entries.Entry.toy", True)  # like the demo model, which it replaces
    (home / "config").mkdir(parents=True)
    (home / "config" / "models.toml").write_text(f'[demo]\npath = "{hello.path}"\n')
    result = run("hi")
    assert (result.code, result.out) == (0, hello.text + "\n")
    assert result.err == f"localspec: {DEMO}\n"
    assert run("hi").err == ""  # shown once a day
    assert run("hi", "-m", "demo").err == ""


def test_a_reader_that_leaves(home, endless):
    command = '"$@" -n 100000000 2>"$LOCALSPEC_HOME/errors" | head -c 5; echo " ${PIPESTATUS[0]}"'
    result = shell(home, command, "-m", endless.path, "hi")  # in time, though the reply would take days
    assert result.stdout == b"and s 141\n"
    assert (home / "errors").read_bytes() == b""
    [turn] = kept(home)[0].turns
    assert (turn.reply[:10], turn.reason) == ("and so on ", "interrupted")


@pytest.mark.parametrize("form", [[], ["--stream-json"]])
def test_work_stops_at_once_when_nobody_reads(run, endless, monkeypatch, form):
    from localspec.decoding import session

    steps, original = itertools.count(), session.decode_step

    def counted(*arguments: Any) -> Any:
        next(steps)
        return original(*arguments)

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(session, "decode_step", counted)
    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # this process still uses descriptor 1
    assert run("-m", endless.path, "hi", "-n", "20", *form) == (141, "", "")
    assert next(steps) == 0


@pytest.mark.skipif(os.name != "posix", reason="pipes as on POSIX")
@pytest.mark.parametrize(("model", "code"), [(None, 0), ("nosuch", 3)])
def test_nobody_reads_standard_error(home, hello, model, code):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with process(home, "-m", model or hello.path, "hi", "--stats", stderr=writer) as running:
            out, _ = running.communicate(timeout=PATIENCE)
    finally:
        os.close(writer)
    assert (running.returncode, out) == (code, b"" if code else (hello.text + "\n").encode())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_sentence_that_cannot_be_written_keeps_its_exit_code(home):
    assert shell(home, '"$@" 2>/dev/full', "-m", "nosuch", "hi").returncode == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e-45},
        {"temperature": 1e-300},
        {"temperature": 100},
        {"temperature": 1.0, "top_p": 1e-300},
        {"temperature": 1e-30, "top_p": 5e-324, "min_p": 1.0},
    ],
    ids=str,
)
def test_whatever_temperature_and_top_p_are_accepted_something_is_said(run, home, noise, tmp_path, settings):
    """A temperature that fp32 rounds to 0, and a share that even the likeliest token exceeds."""
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    result = run("-m", noise, "hi", "-n", "5", "--seed", "1", *flags)
    assert (result.code, result.err) == (0, "")
    own = tmp_path / "own"
    shutil.copytree(noise, own)
    (own / "generation_config.json").write_text(json.dumps({"do_sample": True, **settings}))
    again = run("-m", own, "hi", "-n", "5", "--seed", "1", "--no-log")
    assert (again.code, again.out) == (0, result.out)


@each("cold, more", [("1e-20", ()), ("1e-38", ("--top-p", "0.9")), ("5e-324", ("--top-k", "3")), ("5e-324", ())])
def test_the_coldest_temperatures_say_what_is_likeliest(run, noise, cold, more):
    """In fp32, dividing by such a temperature makes every score infinite; then only the noise would pick."""
    likeliest = run("-m", noise, "hi", "-n", "5", "--temp", "0", "--no-log").out
    assert run("-m", noise, "hi", "-n", "5", "--seed", "1", "--no-log", "--temp", cold, *more).out == likeliest


def test_temperatures_that_leave_nothing_of_the_model_are_refused(run, noise, tmp_path):
    for hot in ("100.5", "9999", "1e+299"):
        result = run("-m", noise, "hi", "--temp", hot)
        assert result.code == 2 and wording("temperature_must_number_from_0", hot=hot) in result.err
    own = tmp_path / "own"
    shutil.copytree(noise, own)
    (own / "generation_config.json").write_text('{"do_sample": true, "temperature": 1e299}')
    result = run("-m", own, "hi", "-n", "2")
    assert result.code == 0 and "temperature = 1e+299" in result.err and "generation_config.json" in result.err
