"""`localspec doctor`: the installed models, and the proof that speculation changes no token, which can also fail."""

import io
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import environment
from golden import wording
from machines import GIB, Told, apple, cpu, machine
from reply_statistics import said
from scripted_models import Script, random_model, scripted_model

from localspec import Done, Engine, Text
from localspec.bench import proof
from localspec.choosing import choose as selection
from localspec.choosing import survey
from localspec.cli import doctor as cli_doctor
from localspec.cli.main import main
from localspec.models import registry
from localspec.store.store import Store

pytestmark = pytest.mark.slow

Result = tuple[int, str, str]


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("doctor") / "noise")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Script:
    pieces = [b"a", b"b", b'\x1b]0;owned\x07"\n', b"\xe2\x80\xae", b"c"]
    return scripted_model(tmp_path_factory.mktemp("doctor") / "hostile", pieces)


@pytest.fixture
def home(fresh_home: Path) -> Path:
    return fresh_home


@pytest.fixture
def doctor(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        capfd.readouterr()
        code = main(["doctor", *map(str, arguments)])
        return code, *capfd.readouterr()

    return call


def prove(doctor: Callable[..., Result], model: Path, *arguments: object) -> Result:
    return doctor("--prove", model, "--limit", 2, "--max-tokens", 10, *arguments)


Ids = tuple[int, ...]


def tamper(monkeypatch: pytest.MonkeyPatch, change: Callable[[Engine, int, Ids], Sequence[int]]) -> list[Engine]:
    """Let engines report other tokens: `change(engine, number of replies before, token ids)`."""
    original, replies, engines = Engine.chat, {}, []

    def chat(self: Engine, *arguments: Any) -> Iterator[Any]:
        number = replies[id(self)] = replies.get(id(self), -1) + 1
        engines.append(self)
        for event in original(self, *arguments):
            if isinstance(event, Done):
                ids = tuple(change(self, number, event.statistics.token_ids))
                event = Done(event.reason, replace(event.statistics, token_ids=ids))
            yield event

    monkeypatch.setattr(Engine, "chat", chat)
    return engines


def sentence(result: Result) -> str:
    code, out, err = result
    assert (code, out) == (1, "")
    assert err.startswith("localspec: ") and err.count("\n") == 1 and err.endswith(".\n"), err
    return err


# -- the proof holds ---------------------------------------------------------------------------------------------------


def test_a_proof_ends_in_a_tick_and_keeps_nothing(doctor, noise, home):
    code, out, err = prove(doctor, noise)
    assert (code, err) == (0, "")
    assert out.startswith(wording("n4_4_replies_same_token_token_int8"))
    assert out.count("\n") == 1 and not (home / "data").exists()


def test_where_nothing_pays_it_is_proved_all_the_same(doctor, noise, monkeypatch):
    """On Apple's GPUs no drafter is used before it was measured."""
    usual = selection.choose

    def choose(card: Any, settings: Any, **named: Any) -> Any:
        return usual(card, settings if settings.draft_max != "auto" else replace(settings, drafter="none"), **named)

    monkeypatch.setattr(selection, "choose", choose)
    assert prove(doctor, noise)[1].startswith(wording("n4_4_replies_same"))
    assert prove(doctor, noise, "--drafter", "none")[0] == 2


def test_the_phrases_of_the_proof_itself_are_used(doctor, noise):
    code, out, _ = prove(doctor, noise, "--json", "--draft-max", 3)
    said = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    assert (said["same"], said["replies"], said["rows"], said["divergence"]) == (4, 4, 4, None)
    assert (said["model"], said["drafter"], said["exactness"]) == (str(noise), "phrases", "bitwise")
    assert (said["device"], said["dtype"], said["quantize"]) == ("cpu", "bf16", "int8")
    # The second time, each reply is known: a step commits at most three drafted tokens and one of the target's own.
    assert said["drafted"] >= said["accepted"] > 4 * 9 / 2


def test_the_users_own_phrases_stay_unchanged(doctor, noise, home):
    path = home / "data" / "localspec.db"
    with Store.open(path, pytest.fail) as store:
        store.phrases.learn(store.phrases.pool("demo", "hash"), [(1, b"", b"abcd")])
    before = path.read_bytes()
    assert prove(doctor, noise)[0] == 0
    assert path.read_bytes() == before and sorted(file.name for file in path.parent.iterdir()) == [
        "localspec.db",
        "localspec.db-lock",
    ]


def test_every_reply_is_requested_once_plainly_and_twice_with_speculation():
    asked: list[tuple[str, str, float, int]] = []
    afresh: list[int] = []  # an earlier reply must not be in the cache: the prompt is read once, in the same chunks

    def engine(name: str) -> Any:
        def chat(messages: Any, sampling: Any, limits: Any) -> Iterator[Any]:
            assert limits.max_tokens == 7 and len(messages) == 1
            asked.append((name, messages[0]["content"], sampling.temperature, sampling.seed))
            yield Text("x", (1,), ("target",), 0.1, 1)
            yield Done("stop", said())

        return SimpleNamespace(chat=chat, session=SimpleNamespace(rewind=afresh.append))

    pairs = list(proof._pairs(engine("plain"), engine("speculative"), 45, 7))
    assert [name for name, *_ in asked] == ["plain", "speculative", "speculative"] * 90
    assert afresh == [0] * 270
    assert len(pairs) == 180 and {case.number for case, _, _ in pairs} == set(range(1, 46))
    assert [how for name, *how in asked if name == "plain"] == [
        [case.prompt, case.sampling.temperature, case.sampling.seed] for case, _, _ in pairs[::2]
    ]
    assert len({prompt for _, prompt, _, _ in asked}) == 45, "none is asked again"
    assert {(t, seed) for _, _, t, seed in asked} == {(0.0, 0), *((0.8, seed) for seed in range(45))}


def test_prompts_are_of_many_kinds():
    assert len(set(proof.PROMPTS)) == 20
    kinds = {unicodedata.name(letter, "").split()[0] for prompt in proof.PROMPTS for letter in prompt if letter > " "}
    assert kinds >= {"LATIN", "CJK", "HIRAGANA", "CYRILLIC", "ARABIC", "DIGIT", "DOG"}


# -- the proof fails ---------------------------------------------------------------------------------------------------


def test_the_first_divergence_is_reported_with_exit_code_1(doctor, noise, monkeypatch):
    """The seeded reply to the second prompt, requested the second time, is the last of all replies."""

    def change(engine: Engine, number: int, ids: Ids) -> Sequence[int]:
        return ids if engine.choice.drafter == "none" or number < 7 else (*ids[:3], 65, *ids[4:])

    engines, gaps = tamper(monkeypatch, change), []
    monkeypatch.setattr(Engine, "gap", lambda self, *asked: gaps.append(asked) or 0.5)
    told = sentence(prove(doctor, noise))
    for word in (
        "prompt 2 (temperature 0.8, seed 1), token 4 of the reply",
        ' "A" instead of "',
        "differ by 0.5",
        "bitwise",
    ):
        assert word in told
    [(behind, one, other)] = gaps
    plain = next(engine for engine in engines if engine.choice.drafter == "none")
    prompt = plain.session.statistics.prompt_tokens
    reply = plain.session.statistics.token_ids
    assert behind == plain.session.tokens[: prompt + 3] and behind[prompt:] == list(reply[:3])
    assert (one, other) == (reply[3], 65) and len(reply) == 10
    assert len({id(engine) for engine in engines}) == 2 and len({id(engine.target) for engine in engines}) == 1


def test_a_divergence_in_json_is_one_value_and_exit_1(doctor, noise, monkeypatch):
    tamper(monkeypatch, lambda engine, _, ids: ids if engine.choice.drafter == "none" else (66, *ids[1:]))
    code, out, err = prove(doctor, noise, "--json")
    said = json.loads(out)
    assert code == 1 and out.count("\n") == 1 and err.startswith(wording("localspec_speculation_changes"))
    assert said["same"] == 0 and said["replies"] == 4
    parted = said["divergence"]
    assert parted["gap"] > 0, "the real one: a greedy pick has the largest logit"
    assert (parted["prompt"], parted["sampling"], parted["token"], parted["speculative"]) == (1, "greedy", 1, "B")
    assert parted["repeatable"] is True


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda ids: ids[:2], ', token 3 of the reply: the end instead of "c".'), (lambda ids: (*ids, 90), 'token 4 of the reply: "Z" instead of the end.')],
)  # fmt: skip
def test_a_reply_that_ends_elsewhere(doctor, tmp_path, monkeypatch, change, words):
    script = scripted_model(tmp_path / "model", [b"a", b"b", b"c"])
    tamper(monkeypatch, lambda engine, _, ids: ids if engine.choice.drafter == "none" else change(ids))
    sentence_ = sentence(prove(doctor, script.path))
    assert words in sentence_ and "differ by 30 " in sentence_, "as sharp as the model is made"


def test_plain_decoding_that_does_not_repeat_itself_is_reported(doctor, noise, monkeypatch):
    def change(engine: Engine, number: int, ids: Ids) -> Sequence[int]:
        return ids if engine.choice.drafter == "none" and number == 0 else (*ids[:5], 67 + number, *ids[6:])

    tamper(monkeypatch, change)
    told = sentence(prove(doctor, noise))
    assert wording("plain_decoding_does_repeat_itself") in told
    assert ', then "D".' in told and "Speculation" not in told


def test_what_a_token_says_cannot_command_the_terminal(doctor, hostile, monkeypatch):
    for place in (2, 3):
        with monkeypatch.context() as patched:
            tamper(patched, lambda engine, _, ids, at=place: ids if engine.choice.drafter == "none" else ids[:at])
            told = sentence(prove(doctor, hostile.path))
            assert not {"\x1b", "\x07", "\u202e"} & set(told)
            assert "owned" in told or place == 3
            parted = json.loads(prove(doctor, hostile.path, "--json")[1])["divergence"]
            assert parted["plain"] == ('␛]0;owned␇"\n' if place == 2 else "") and parted["speculative"] is None


# -- mistakes ----------------------------------------------------------------------------------------------------------


# -- the machine -------------------------------------------------------------------------------------------------------


BETTER = r"Better but slower mixtures of experts: [\w.-]+ \([\d.]+ tokens/s"


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine a Mac without measurements, whose CPU has a hostile name."""
    mac = machine(replace(apple(16, free=12), title="Apple\x1b[31m"), cpu(24, free=20, bandwidth=None))
    measurements = Told()
    monkeypatch.setattr("localspec.cli.doctor.this_machine", lambda bandwidth: mac)
    monkeypatch.setattr("localspec.cli.doctor.Measurements", lambda *_: measurements)
    monkeypatch.setattr("localspec.cli.doctor.torch_trouble", lambda: "A card is found: do this.\x07")
    monkeypatch.setattr("localspec.machine.hardware.versions", lambda device: f"torch 7, {device}")


def test_what_this_machine_has_and_what_fits(doctor, invented):
    code, out, err = doctor()
    assert (code, err) == (0, "") and "\x1b" not in out and "\x07" not in out
    take, fetch, experts, idle, mixture, until, idle_until_then, empty, *lines = out.splitlines()
    assert re.match(BETTER, mixture)
    best = re.split("[,:]", take)[0].removeprefix("Use ")
    assert idle.startswith(f"mps is not used: {best} needs ")
    assert idle_until_then.startswith(wording("mps_is_not_used"))
    assert re.fullmatch(
        r"The model is a mixture of experts: [\d.]+ B of [\d.]+ B parameters are read for each token;? ?.*\.", experts
    )
    assert f", license {registry.known()[best].license}: " in take
    assert fetch == wording("fetch_it_with_localspec_pull", best=best) and re.search(
        r" tokens/s; drafts are not expected to help; \d+\.\d GiB .*to download\.$", take
    )
    assert until.startswith(wording("until_then_demo_answers_which")) and empty == ""
    assert lines[1] == wording("mps_memory_16_0_gib_free_12_0_gib")
    assert lines[2].startswith("cpu: ") and "computes in bf16, fp32, int8, int4; reads 44 GB/s, assumed" in lines[2]
    assert lines[3].startswith("cpu: memory 24.0 GiB, free 20.0 GiB")
    assert "A card is found: do this." in out
    head = next(line for line in lines if line.startswith("MODEL"))
    assert head.split() == ["MODEL", "FITS", "TOKENS/S", "DRAFTS", "DOWNLOAD", "BY"] and max(map(len, lines)) <= 100
    rows = {line.split()[0]: re.split(r"\s{2,}", line) for line in lines[lines.index(head) + 1 :] if line[:1].islower()}
    assert rows["demo"][-2] == "here" and rows["demo"][1].startswith("yes, ") and best in rows
    assert all(re.fullmatch(r"\d\.\d GiB", rows[name][-2]) for name in ("qwen3-4b", "llama3.2-3b"))
    assert rows["qwen3-4b"][0] == "qwen3-4b" and rows["llama3.2-3b"][0] == "llama3.2-3b *"
    assert wording("gated_must_accept_terms_hub") in lines
    assert any(line.startswith(wording("models_by_quality")) for line in lines)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (60, 20), (100, 200)])
def test_at_a_terminal_one_ends_up_with_what_to_do(doctor, invented, monkeypatch, columns, lines):
    piped = doctor()[1].splitlines()
    monkeypatch.setattr("localspec.cli.console.output_is_terminal", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, lines)))
    shown = doctor()[1].splitlines()
    assert max(map(len, shown)) <= columns
    models = [line.split()[0] for line in shown if re.search(r"  (?:yes|no), \d", line)]
    assert models == [line.split()[0] for line in piped if re.search(r"  (?:yes|no), \d", line)]
    assert not [line for line in shown if re.search(r"\d[\d.]*(?: Gi?B?)?…", line)], "no number is cut"
    left_out = [line for line in shown if line.startswith("no room here for ")]
    assert len(left_out) == (columns == 60) and all(wording("by_which_json_has") in line for line in left_out)
    advice = " ".join(piped[: piped.index("")])
    assert " ".join(shown[: shown.index("")]) == advice
    last = " ".join(shown[len(shown) - shown[::-1].index("") :])
    assert last == advice if lines < 100 else last.startswith("~ marks predictions"), "once is enough where all is seen"


@pytest.mark.parametrize(("others", "warned"), [(1.5, True), (0.1, False)])
def test_a_busy_machine_is_reported(doctor, invented, monkeypatch, others, warned):
    monkeypatch.setattr("localspec.machine.hardware.OthersLoad.__call__", lambda self: others)
    code, page, _ = doctor()
    assert code == 0 and (wording("measured_while_other_programs") in page) is warned
    assert (wording("these_speeds_taken_while_other") in page) is warned
    assert (
        "The speed of the memory is assumed, because other programs would disturb its measurement.\n" in page
    ) is warned


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1.2, ", 1.2× faster with phrases, M 1.00, chosen by M"), (1.0, "; drafts are not expected to help")],
)
def test_drafts_without_a_gain_are_said_to_be_no_help(ratio, words):
    """It was "as fast with phrases, M 1.00, chosen by M"."""
    plan = SimpleNamespace(
        speed=20.0, measured=True, candidate=SimpleNamespace(name="phrases"), cost_effectiveness=1.0, rule="memory"
    )
    assert cli_doctor._speed(SimpleNamespace(plan=plan, speedup=ratio, drafts=True)) == f"20.0 tokens/s{words}"


def test_verbose_shows_m_and_reasons(doctor, invented):
    _, out, _ = doctor("--verbose")
    assert re.search(r"TOKENS/S +DRAFTS +M  DOWNLOAD +BY\n", out) and wording("m_is_speedup_relative_memory") in out
    assert wording("chosen_among_what_here_demo") in out and "\nRecommended: " in out
    for flag, value in (("--json", []), ("--prove", ["demo"])):
        code, out, err = doctor("--verbose", flag, *value)
        assert (code, out) == (2, "") and wording("verbose_has_no_effect_with", flag=flag) in err


def test_a_gated_model_is_marked_and_recommended_only_where_no_other_fits(doctor, invented, monkeypatch):
    take, *_ = doctor()[1].splitlines()
    assert not registry.known()[re.split("[,:]", take)[0].removeprefix("Use ")].entry.gated
    said = json.loads(doctor("--json")[1])
    assert said["recommended"] == said["recommended_open"]
    marked = {one["model"] for one in said["choices"] if one["gated"]}
    assert {name for name, card in registry.known().items() if card.entry.gated} == marked

    monkeypatch.setattr(
        "localspec.cli.doctor.preferred", lambda every, prefer=None: next((one for one in every if one.gated), None)
    )
    page = doctor("--verbose")[1]
    assert wording("every_model_fits_here_such_terms") in page and ", gated: " in page
    assert json.loads(doctor("--json")[1])["recommended_open"] is None


def test_a_gated_registered_model_is_recommended_only_with_an_open_one(doctor, monkeypatch):
    """The order of the registry decides this on every machine from 4 to 24 GB, and the registry may change."""
    measurements = Told()
    monkeypatch.setattr("localspec.cli.doctor.Measurements", lambda *_: measurements)
    gated = {name for name, card in registry.known().items() if card.entry.gated}
    for gib, prefer in ((4, "quality"), (6, "speed"), (12, "memory"), (24, None)):
        monkeypatch.setattr("localspec.cli.doctor.this_machine", lambda bandwidth, gib=gib: machine(cpu(gib)))
        said = json.loads(doctor("--json", *(("--prefer", prefer) if prefer else ()))[1])
        assert said["recommended_open"] and said["recommended_open"]["model"] not in gated
        assert said["recommended"]["gated"] == (said["recommended"]["model"] in gated)


def test_where_the_best_is_here_nothing_is_to_be_fetched(doctor, invented, monkeypatch):
    usual = survey.preferred
    monkeypatch.setattr(
        "localspec.cli.doctor.preferred",
        lambda every, prefer=None: usual([one for one in every if one.card.here], prefer),
    )
    first, second, mixture, third, *_ = doctor()[1].splitlines()
    assert re.match(BETTER, mixture)
    assert first.startswith(wording("use_demo_which_is_here"))
    assert first.endswith(wording("start_with_localspec_chat")) and third == ""
    assert second.startswith(wording("mps_is_not_used"))
    monkeypatch.setattr("localspec.cli.doctor.preferred", lambda every, prefer=None: None)
    assert doctor()[1].startswith(wording("no_registered_model_fits_here"))


def test_what_this_machine_has_as_json(doctor, invented):
    code, out, err = doctor("--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and out.count("\n") == 1
    assert found.keys() == {
        "processor", "cores", "capabilities", "torch_trouble", "packed", "devices", "choices", "chosen", "recommended",
        "recommended_open", "better_mixture", "found",
    }  # fmt: skip
    assert re.match(BETTER, found["better_mixture"])
    mac, cpu = found["devices"]
    assert (mac["device"], mac["free_bytes"], mac["title"]) == ("mps", 12 * GIB, "Apple\x1b[31m")
    assert (cpu["versions"], cpu["quantize"], cpu["bytes_per_second"]) == (
        "torch 7, cpu",
        ["none", "int8", "int4"],
        None,
    )
    assert found["chosen"]["model"] == "demo" and found["chosen"]["installed"]
    assert not found["recommended"]["installed"] and found["recommended"]["fits"]
    for choice in found["choices"]:
        assert choice["reason"] and (choice["drafter"] == "none" or choice["device"] != "mps"), "nothing is measured"


RUN = """
import sys
from localspec.cli import console
from localspec.cli import doctor as cli_doctor
from localspec.cli.main import main
console.WAIT_SECONDS = 600  # a busy machine names waits
sys.exit(main())
"""


def test_as_its_user_runs_it(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", RUN, "doctor"], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert result.returncode == 0 and result.stderr == "" and "\ncpu: " in f"\n{result.stdout}"
