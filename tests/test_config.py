import json
import re
from pathlib import Path

import pytest
from each import each
from golden import wording

from localspec.config import NAMES, TABLE, Settings, load
from localspec.errors import UsageMistake
from localspec.models.drafter_kinds import kinds
from localspec.paths import Paths


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "config").mkdir()
    return Paths(tmp_path)


def write(paths: Paths, text: str) -> None:
    paths.config_file.write_text(text, encoding="utf-8")


def test_the_help_of_drafter_names_every_kind():
    """It had only the word KIND."""
    words = set(re.findall(r"\w+", TABLE["drafter"].help))
    assert {*kinds()} <= words and "MODEL" in words


def mistake(paths: Paths, environ=None, flags=None) -> str:
    with pytest.raises(UsageMistake) as caught:
        load(paths, environ or {}, flags)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    return message


def test_defaults(paths):
    settings = load(paths, {})
    assert settings == Settings(origins=dict.fromkeys(NAMES, "default"))
    assert (settings.drafter, settings.draft_max, settings.pool, settings.log) == ("auto", "auto", "user", True)
    assert settings.exact is False
    assert settings.temperature is None and settings.stop == ()


def test_each_source_beats_the_one_before(paths):
    write(paths, "top_k = 1\ntop_p = 0.1\nmin_p = 0.1\n")
    environ = {"LOCALSPEC_TOP_P": "0.2", "LOCALSPEC_MIN_P": "0.2", "PATH": "/bin", "_LOCALSPEC_COMPLETE": "x"}
    settings = load(paths, environ, {"min_p": 0.3, "seed": None, "stop": []})
    assert (settings.top_k, settings.top_p, settings.min_p, settings.seed) == (1, 0.2, 0.3, None)
    origins = settings.origins
    assert (origins["top_k"], origins["top_p"], origins["min_p"], origins["seed"], origins["stop"]) == (
        str(paths.config_file),
        "LOCALSPEC_TOP_P",
        "--min-p",
        "default",
        "default",
    )


def test_every_setting_in_every_source(paths):
    given = {
        "model": "m", "system": "s", "max_tokens": 3, "stop": ["a", "b"], "context": 9, "temperature": 0.5, "top_p": 1.0,
        "top_k": 0, "min_p": 0.0, "seed": 0, "drafter": "none", "draft_max": 4, "accept": "typical", "pool": "off", "device": "cuda:1",
        "draft_device": "cpu", "drafter_rule": "memory", "think": False, "ouroboros": ["lengthening", "history"], "dtype": "bf16", "quantize": "int8", "threads": 3, "prefer": "memory", "int8_threshold": 6.0, "exact": True, "log": False,
        "server": "http://localhost:8000/v1", "theme": "nord", "keymap": {"chat.new": "f6"},
    }  # fmt: skip
    assert set(given) == set(NAMES)
    wanted = Settings(**{**given, "stop": ("a", "b"), "ouroboros": ("lengthening", "history")})
    plain = {name: value for name, value in given.items() if name != "keymap"}
    write(
        paths, "".join(f"{name} = {json.dumps(value)}\n" for name, value in plain.items()) + '[keymap]\nchat.new = "f6"'
    )
    environ = {f"LOCALSPEC_{n.upper()}": v if isinstance(v, str) else json.dumps(v) for n, v in given.items()}
    for settings in (load(paths, {}), load(Paths(Path("/nowhere")), environ), load(Paths(Path("/nowhere")), {}, given)):
        assert {n: getattr(settings, n) for n in NAMES} == {n: getattr(wanted, n) for n in NAMES}
        assert "default" not in settings.origins.values()


def test_keys_by_the_names_of_what_they_do(paths):
    write(paths, '[keymap]\n"chat.new" = "f6"\nchat.copy = "f7,f8"\nprompt = {send = "ctrl+g"}')
    assert load(paths, {}).keymap == {"chat.new": "f6", "chat.copy": "f7,f8", "prompt.send": "ctrl+g"}
    for text in ("keymap = 3", "keymap.chat.new = 3", "keymap.chat.new = ' '", "keymap = ['f6']"):
        write(paths, text)
        assert "keymap = " in mistake(paths) and "f6" in mistake(paths)
    write(paths, "")
    for value in ("f6", "{", '["f6"]', '{"chat.new": 3}'):
        assert "LOCALSPEC_KEYMAP" in mistake(paths, {"LOCALSPEC_KEYMAP": value})


def test_whole_temperatures_are_numbers(paths):
    write(paths, "temperature = 0")
    settings = load(paths, {})
    assert settings.temperature == 0.0 and isinstance(settings.temperature, float)


def test_variables_have_forms_of_their_own(paths):
    assert load(paths, {"LOCALSPEC_STOP": "END", "LOCALSPEC_LOG": "No"}).stop == ("END",)
    assert load(paths, {"LOCALSPEC_LOG": "No"}).log is False
    assert load(paths, {"LOCALSPEC_EXACT": "ON"}).exact is True
    assert load(paths, {"LOCALSPEC_EXACT": "0"}).exact is False
    assert load(paths, {"LOCALSPEC_DRAFT_MAX": "auto"}).draft_max == "auto"
    assert load(paths, {"LOCALSPEC_SYSTEM": "7"}).system == "7"
    assert load(paths, {"LOCALSPEC_SEED": ""}).origins["seed"] == "default"
    assert "list" in mistake(paths, {"LOCALSPEC_STOP": "[oops"})


def test_parts_of_ouroboros_come_in_one_order_and_once_each(paths):
    def parts(value: str) -> tuple[str, ...]:
        return load(paths, {"LOCALSPEC_OUROBOROS": value}).ouroboros

    assert load(paths, {}).ouroboros == ("accelerating", "lengthening", "beside", "verification", "history")
    assert parts('["history", "accelerating"]') == ("accelerating", "history")
    assert parts("history") == ("history",)
    assert parts("[]") == ()
    for wrong in ('["history", "history"]', "histori", '["beside", "history"]', "[" * 3000, "[]\nx = 1", "[3]"):
        assert "LOCALSPEC_OUROBOROS" in mistake(paths, {"LOCALSPEC_OUROBOROS": wrong})
    assert "lengthening" in mistake(paths, {"LOCALSPEC_OUROBOROS": "beside"})


def test_unknown_keys_name_the_nearest(paths):
    write(paths, "temperatur = 1")
    message = mistake(paths)
    assert "'temperatur'" in message and "'temperature'" in message and str(paths.config_file) in message
    write(paths, "draft-max = 1")
    assert "'draft_max'" in mistake(paths)
    write(paths, "zzzzzz = 1")
    assert wording("did_you_mean") not in mistake(paths)
    write(paths, "[sampling]\ntop_p = 1")
    assert "'sampling'" in mistake(paths)


def test_unknown_variables_name_the_nearest(paths):
    message = mistake(paths, {"LOCALSPEC_TEMPERATUR": "1"})
    assert "LOCALSPEC_TEMPERATUR" in message and "LOCALSPEC_TEMPERATURE" in message
    assert "LOCALSPEC_HOME" in mistake(paths, {"LOCALSPEC_HOM": "1"})


def test_an_unknown_flag_of_ours_is_a_bug_not_a_setting(paths):
    with pytest.raises(KeyError):
        load(paths, {}, {"nonsense": 1})


BAD = [
    ("model", '""'), ("model", "1"), ("system", "1"), ("drafter", '" "'),
    ("max_tokens", "0"), ("max_tokens", "-1"), ("max_tokens", "1.5"), ("max_tokens", "true"), ("max_tokens", '"3"'),
    ("stop", '""'), ("stop", '[""]'), ("stop", "[1]"), ("stop", "3"),
    ("context", "0"), ("context", "99999999999999999999"),
    ("temperature", "-0.1"), ("temperature", "nan"), ("temperature", "inf"), ("temperature", '"warm"'),
    ("temperature", "true"), ("temperature", '"0.5"'), ("temperature", "1" + "0" * 400),
    ("top_p", "0"), ("top_p", "1.01"), ("top_p", "-1"), ("top_k", "-1"), ("top_k", "0.5"),
    ("min_p", "-0.1"), ("min_p", "1.1"), ("seed", "-1"), ("seed", "9223372036854775808"),
    ("draft_max", "-1"), ("draft_max", '"many"'), ("draft_max", "2.0"), ("draft_max", "false"),
    ("pool", '"on"'), ("pool", "true"), ("device", '"gpu"'), ("device", '"cuda:"'), ("device", '"cuda:x"'), ("device", '"cpu\\n"'),
    ("dtype", '"float16"'), ("quantize", '"int5"'), ("threads", "0"), ("threads", "1.5"), ("prefer", '"cheap"'), ("int8_threshold", "-1"), ("int8_threshold", "nan"), ("log", "1"), ("log", '"yes"'), ("exact", "1"), ("exact", '"true"'),
]  # fmt: skip


@each("name, written", BAD)
def test_bad_values_in_the_file(paths, name, written):
    write(paths, f"{name} = {written}")
    message = mistake(paths)
    assert name in message and str(paths.config_file) in message and "must be" in message


@each(
    "name, value",
    [
        ("max_tokens", "x"),
        ("max_tokens", "1.5"),
        ("temperature", "-1"),
        ("top_p", "0"),
        ("log", "maybe"),
        ("exact", "bitwise"),
        ("seed", "nan"),
    ],
)
def test_bad_values_in_variables(paths, name, value):
    message = mistake(paths, {f"LOCALSPEC_{name.upper()}": value})
    assert f"LOCALSPEC_{name.upper()}" in message and value in message


@each("name, value, flag", [("temperature", -1.0, "--temperature"), ("draft_max", -2, "--draft-max")])
def test_bad_values_of_flags(paths, name, value, flag):
    message = mistake(paths, {}, {name: value})
    assert flag in message and str(value) in message


def test_long_values_are_cut_short(paths):
    assert len(mistake(paths, {"LOCALSPEC_SEED": "x" * 10_000})) < 300


@each(
    "text, line",
    [("seed = 1\ntop_k = = 2\n", 2), ("seed = 1\n\nstop = [", 3), ("seed = 1\nseed = 2\n", 2), ('model = "a\n"', 1)],
)
def test_broken_toml_names_file_and_line_and_stays(paths, text, line):
    write(paths, text)
    assert f"{paths.config_file}, line {line}:" in mistake(paths)
    assert paths.config_file.read_text() == text


def test_other_unreadable_files(paths):
    paths.config_file.write_bytes(b"seed = 1\nmodel = '\xff'\n")
    assert "line 2" in mistake(paths) and "UTF-8" in mistake(paths)
    write(paths, "stop = " + "[" * 5000)
    assert str(paths.config_file) in mistake(paths)
    paths.config_file.unlink()
    paths.config_file.mkdir()
    assert wording("cannot_be_read") in mistake(paths)


def test_a_byte_order_mark_is_not_part_of_the_file(paths):
    paths.config_file.write_bytes(b"\xef\xbb\xbfseed = 5\n")
    assert load(paths=paths, environ={}).seed == 5
    paths.config_file.write_bytes(b"\xef\xbb\xbfseed = 5\nx\n\xff")
    assert wording("line_3_utf_8") in mistake(paths)


def test_home_is_where_the_file_is_looked_for(paths, tmp_path):
    write(paths, "seed = 5")
    assert load(environ={"LOCALSPEC_HOME": str(tmp_path)}).seed == 5


@each("said, think", [("on", True), ("off", False), ("true", True), ("0", False), ("auto", None), ("", False)])
def test_thinking_is_on_off_or_the_models_own(paths, said, think):
    write(paths, "think = false\n")
    assert load(paths, {"LOCALSPEC_THINK": said}).think is think
    assert wording("must_true_false_auto") in mistake(paths, {"LOCALSPEC_THINK": "maybe"})


def test_the_flags_for_thinking_are_named_as_they_are_typed(paths):
    origins = [load(paths, {}, {"think": think}).origins["think"] for think in (True, False, None)]
    assert origins == ["--think", "--no-think", "default"]
