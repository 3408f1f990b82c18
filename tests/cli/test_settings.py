"""The flags that commands derive from the table of settings."""

import inspect

import pytest
from golden import wording
from typer.main import get_command

from localspec.cli import serve
from localspec.cli.options import _shared_flags, takes_settings
from localspec.config import TABLE, Settings
from localspec.errors import UsageMistake


def test_each_flag_is_spelled_as_its_row_says():
    options = {one.name: one for one in get_command(serve.app).params}
    taken = options.keys() & TABLE.keys()
    assert {"model", "max_tokens", "draft_max", "log"} <= taken
    for name in taken:
        spelled = "--" + name.replace("_", "-")
        assert {spelled, *TABLE[name].flags} == {*options[name].opts}
        assert options[name].default is None
    assert options["log"].secondary_opts == ["--no-log"]


@pytest.mark.parametrize(("flag", "exact", "origin"), [(None, True, "LOCALSPEC_EXACT"), (False, False, "--no-exact")])
def test_a_flag_takes_back_what_a_variable_says(tmp_path, monkeypatch, flag, exact, origin):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_EXACT", "1")
    empty = {name: one.default for name, one in inspect.signature(_shared_flags).parameters.items()}
    settings = _shared_flags(**{**empty, "exact": flag}).settings
    assert (settings.exact, settings.origins["exact"]) == (exact, origin)


def test_a_command_gets_its_settings_in_the_place_of_one_argument(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))

    @takes_settings("seed", "stop", stop="Where it ends.")
    def command(*, before: int = 1, settings: Settings, after: int = 2) -> tuple[int, Settings, int]:
        return before, settings, after

    assert [*inspect.signature(command).parameters] == ["before", "seed", "stop", "after"]
    before, settings, after = command(before=3, seed=4, stop=["END"], after=5)
    assert (before, settings.seed, settings.stop, after) == (3, 4, ("END",), 5)
    assert settings.by_flag("seed") and not settings.by_flag("context")
    with pytest.raises(UsageMistake, match=wording("seed_minus_1_must_be")):
        command(before=3, seed=-1, stop=[], after=5)
