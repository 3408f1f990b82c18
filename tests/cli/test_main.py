import errno
import json
import os
import signal
import stat
import subprocess
import sys

import pytest
from clocks import PATIENCE
from command import called, environment, light_help, localspec, sentence
from each import each
from golden import wording

import localspec as package

ALL = [
    "chat",
    "run",
    "pull",
    "import",
    "list",
    "use",
    "ps",
    "show",
    "rm",
    "verify",
    "serve",
    "doctor",
    "bench",
    "race",
    "distill",
    "train",
    "export",
    "pool",
    "history",
    "config",
    "path",
    "uninstall",
]


@pytest.mark.slow
def test_version_and_help(tmp_path):
    assert localspec(tmp_path, "--version").stdout == f"localspec {package.__version__}\n"
    for arguments in ((), ("-h",), ("--help",)):
        result = called(tmp_path, *arguments)
        assert result.returncode == 0 and result.stderr == ""
        for command in ALL:
            assert f"\n  {command} " in result.stdout


def test_no_help_of_a_group_is_cut(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for group in ("pool", "history"):
        told = called(tmp_path, group, "--help").stdout.splitlines()
        assert max(map(len, told)) <= 80 and not any(line.endswith("...") for line in told[1:])


@pytest.mark.slow
def test_help_of_every_command_loads_nothing_heavy(tmp_path):
    told = light_help(tmp_path, *ALL)
    assert all(f"Usage: localspec {command}" in told for command in ALL)
    assert all(
        flag in told for flag in ("--data", "--steps", "--prompts", "--drafter", "--nodes", "--cast", "--prove MODEL")
    )
    assert "--install-completion" not in told and "\x1b" not in told


def test_a_broken_model_is_1(tmp_path):
    (tmp_path / "config.json").write_text("{")
    result = called(tmp_path, "show", ".")
    assert result.returncode == 1 and "config.json" in sentence(result)


def test_nothing_is_written_by_looking(tmp_path):
    for command in ("list", "path", "config"):
        assert called(tmp_path, command).returncode == 0
    assert list(tmp_path.iterdir()) == []


# A command that fails in the required way, in place of `path`.
MODULE = """
import sys, types, typer
module = types.ModuleType("localspec.cli.path")
module.app = typer.Typer()
@module.app.command()
def path():
    SECRET = "my secret prompt"
    {body}
"""
FAILING = f"""{MODULE}
sys.modules["localspec.cli.path"] = module
from localspec.cli.main import main
sys.exit(main(["path"]))
"""


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """failing(body): return the output of `localspec path` when this is its body."""

    def fail(body: str) -> subprocess.CompletedProcess[str]:
        names = {}
        exec(MODULE.format(body=body), names)
        monkeypatch.setitem(sys.modules, "localspec.cli.path", names["module"])
        return called(tmp_path, "path")

    return fail


def test_the_unexpected_is_one_line_and_a_private_log_without_values(tmp_path, failing):
    body = (
        "\n    try: 1 / 0\n    except ZeroDivisionError as e: raise ValueError('about ' + SECRET + '\\x1b[2J') from e"
    )
    result = failing(body)
    assert result.returncode == 1
    log = tmp_path / "state" / "logs" / "last-error.log"
    assert "ValueError" in sentence(result) and str(log) in result.stderr and "\x1b" not in result.stderr
    text = log.read_text("utf-8")
    assert "builtins.ValueError" in text and "builtins.ZeroDivisionError" in text and "in path" in text
    assert "secret prompt" not in text
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert failing(body).returncode == 1  # the earlier log is replaced
    assert len(list(log.parent.iterdir())) == 1


def test_a_log_that_cannot_be_written_hides_nothing(tmp_path, failing):
    (tmp_path / "state").write_text("in the way")
    result = failing("raise ValueError('odd')")
    assert result.returncode == 1 and "odd" in sentence(result)


@each(
    "body, code, said",
    [
        ("raise KeyboardInterrupt", 130, "Interrupted"),
        ("raise typer.Abort", 130, "Interrupted"),
        ("raise MemoryError", 4, "memory"),
        ("from localspec.errors import NotAllowed; raise NotAllowed('Two\\nlines.')", 5, "Two lines."),
        ("raise typer.BadParameter('odd\\nvalue')", 2, "odd value"),
    ],
)
def test_exit_codes(tmp_path, failing, body, code, said):
    result = failing(body)
    assert result.returncode == code and said in sentence(result)
    assert not (tmp_path / "state").exists()


def test_a_command_may_give_its_own_exit_code(failing):
    assert failing("raise typer.Exit(7)").returncode == 7
    assert failing("return 9").returncode == 9
    assert failing("return None").returncode == 0


@pytest.mark.slow
def test_a_real_interrupt(tmp_path):
    code = FAILING.format(body="import time; print('ready', flush=True); time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(tmp_path),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and errors == "localspec: Interrupted.\n"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="pipes as on POSIX")
@each(
    "code",
    [
        FAILING.format(body="print('x')"),  # fails in the flush at the end
        FAILING.format(body="\n    while True: print('x' * 1000)"),
        "import sys; from localspec.cli.main import main; sys.exit(main(['--help']))",
        "import sys; from localspec.cli.main import main; sys.exit(main(['config', '--json']))",
    ],
)
def test_a_reader_that_is_gone(tmp_path, code):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], env=environment(tmp_path), stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@each("unbuffered", ["", "1"])
def test_a_full_disk_behind_standard_output(tmp_path, unbuffered):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "localspec", "config"],
            env=environment(tmp_path, PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 1
    assert result.stderr.startswith("localspec: Standard output") and result.stderr.count("\n") == 1


@pytest.mark.slow
def test_closed_streams(tmp_path):
    command = f"'{sys.executable}' -m localspec"
    shell = {"shell": True, "env": environment(tmp_path), "stderr": subprocess.PIPE, "text": True}
    for given in ("path", "list --json", "--version"):
        result = subprocess.run(f"{command} {given} >&-", **shell)
        assert result.returncode == 1
        assert result.stderr.startswith(wording("localspec_standard_output_is")) and result.stderr.count("\n") == 1
    assert subprocess.run(f"{command} path >/dev/null 2>&-", **shell).returncode == 0
    assert subprocess.run(f"{command} show dmo >&- 2>&-", **shell).returncode == 3


@pytest.mark.slow
def test_a_terminal_that_lacks_a_character_is_no_error(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text('system = "世界"', encoding="utf-8")
    assert localspec(tmp_path, "config", PYTHONIOENCODING="ascii").returncode == 0


@pytest.mark.slow
def test_completion_of_commands(tmp_path):
    result = localspec(tmp_path, _LOCALSPEC_COMPLETE="complete_bash", COMP_WORDS="localspec ", COMP_CWORD="1")
    assert set(result.stdout.split()) == set(ALL)


@each("length", [300, 4500])
@each("command", [["history", "list"], ["pool", "list"], ["list"], ["config"], ["doctor"]])
def test_a_home_whose_name_no_file_can_have(tmp_path, command, length):
    place = tmp_path / "/".join(["n" * 300] if length == 300 else ["abcdefgh"] * (length // 9))
    result = called(tmp_path, *command, LOCALSPEC_HOME=str(place))
    assert result.returncode in (0, 2)
    assert "Unexpected" not in result.stderr and len(result.stderr) < 2000
    if result.returncode:
        assert "File name too long" in sentence(result)


@each(
    "error, code, said",
    [
        (MemoryError(), 4, wording("there_enough_memory")),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 4, wording("there_enough_memory")),
        (RuntimeError(wording("can_t_start_new_thread")), 4, wording("there_enough_memory")),
        (OSError(errno.EMFILE, "Too many open files"), 1, wording("more_files_can_opened_too_many")),
    ],
)
def test_no_more_memory_or_files_is_a_sentence_with_its_code(tmp_path, monkeypatch, error, code, said):
    def full() -> None:
        raise error

    monkeypatch.setattr("localspec.cli.path.home", full)
    result = called(tmp_path, "path")
    assert result.returncode == code and said in sentence(result)


@each("typed", ["https://huggingface.co/org/repo", "hf.co/org/repo"])
@each("prompt", [["hi"], ["more", "words"]])
def test_an_address_on_the_hub_before_the_prompt_is_no_prompt(tmp_path, typed, prompt):
    result = called(tmp_path, "run", typed, *prompt)
    assert result.returncode == 3 and sentence(result).rstrip().endswith(wording("model_of_the_hub_not_here"))


def test_what_looks_like_a_model_of_the_hub_may_be_a_prompt(tmp_path):
    result = called(tmp_path, "run", "org/repo", "hi")
    assert result.returncode == 2 and sentence(result).rstrip().endswith(wording("fetch_it_or_put_quotation_marks"))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="streams as on POSIX")
def test_a_standard_output_that_cannot_be_written(tmp_path):
    command = f"'{sys.executable}' -m localspec config 1</dev/null"
    result = subprocess.run(command, shell=True, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert result.stderr == wording("localspec_standard_output_cannot")


def test_a_long_value_in_a_sentence_is_cut(tmp_path):
    result = called(tmp_path, "show", "x" * 100_000)
    assert result.returncode == 3 and len(sentence(result)) < 2000
    assert result.stderr.startswith(wording("localspec_there_model_xxx")) and "demo" in result.stderr


@each("typed", ["ls", "models"])
def test_other_words_for_list(tmp_path, typed):
    assert called(tmp_path, typed).stdout == called(tmp_path, "list").stdout


@each("typed", ["version", "-v", "--version"])
def test_the_version_however_it_is_requested(tmp_path, typed):
    result = called(tmp_path, typed)
    assert (result.returncode, result.stdout) == (0, f"localspec {package.__version__}\n")


@each("command", [["rm"], ["rm", "--yes"], ["pool", "clear"], ["pool", "clear", "--yes"], ["verify"]])
@each("typed", ["demo-dr", "DEMO-DRAFT"])
def test_what_deletes_takes_no_beginning_of_a_name(tmp_path, command, typed):
    result = called(tmp_path, *command, typed)
    if command[0] == "pool":
        assert "demo-draft" not in result.stdout and "Deleted" not in result.stdout
    else:
        assert result.returncode == 3 and wording("there_is_no_model", typed=typed) in sentence(result)
        assert wording("localspec_list_shows_those_here") in result.stderr


@pytest.mark.slow
def test_a_model_may_precede_the_prompt_of_run(tmp_path):
    named = called(tmp_path, "run", "-m", "demo", "hello", "--temp", "0", "-n", "4")
    assert called(tmp_path, "run", "dem", "hello", "--temp", "0", "-n", "4").returncode == 2  # demo-draft begins so
    found = called(tmp_path, "run", "DEMO", "hello", "--temp", "0", "-n", "4")
    assert found.returncode == 0 and found.stdout == named.stdout != ""
    assert wording("there_model_foo_here") in sentence(called(tmp_path, "run", "foo", "hello"))
    assert called(tmp_path, "run", "-m", "demo", "demo", "hello").returncode == 2


def test_nothing_runs(tmp_path):
    result = called(tmp_path, "ps")
    assert result.stdout == wording("nothing_running_localspec_serve")
    found = json.loads(called(tmp_path, "ps", "--json").stdout)
    assert found == {"process": None, "socket": None, "models": []}
