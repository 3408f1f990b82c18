"""`/set`: settings that can be changed during a chat, values that are refused, and the values in force."""

import pytest
from each import each
from golden import matching, wording

from localspec import config
from localspec.chat import sampling as module
from localspec.chat.sampling import (
    FIRST_SAMPLED,
    KEYS,
    ChatSettings,
    SettingLine,
    first_sampled,
    listed,
    sampling_words,
    split,
)
from localspec.config import Settings
from localspec.engine.reply_settings import requested_sampling
from localspec.errors import UsageMistake
from localspec.models.registry import TargetCard
from localspec.paths import Paths
from localspec.store.store import Store


class Model:
    """A loaded model with this generation_config."""

    def __init__(self, *, thinks=True, **generation):
        self.generation, self.thinks = generation, thinks

    def sampling(self, settings):
        return requested_sampling(settings, self.generation)

    def thinking(self, settings):
        if settings.think is not None and not self.thinks:
            raise UsageMistake("/think has no effect.")
        return settings.think


GREEDY, WARM = Model(do_sample=False), Model(do_sample=True, temperature=0.8, top_p=0.95)


@each(
    "key, value, name, taken",
    [
        ("temperature", "0.5", "temperature", 0.5),
        ("temp", "1", "temperature", 1.0),
        ("Top-P", "0.9", "top_p", 0.9),
        ("top_k", "40", "top_k", 40),
        ("min-p", "0.05", "min_p", 0.05),
        ("max-tokens", "200", "max_tokens", 200),
        ("seed", "9223372036854775807", "seed", 2**63 - 1),
    ],
)
def test_a_value_is_taken_and_shown_with_its_origin(key, value, name, taken):
    settings = ChatSettings(Settings())
    settings.change({key: value}, WARM)
    assert getattr(settings.now, name) == taken
    [line] = settings.lines(WARM, key)
    assert (line.key, line.origin) == (name.replace("_", "-"), "/set")
    assert float(line.value) == float(value)


@each("back", ["default", "", "  "])
def test_default_takes_back_to_what_the_chat_began_with(tmp_path, back):
    settings = ChatSettings(config.load(Paths(tmp_path), {}, {"top_p": 0.5}))
    settings.change({"top-p": "0.9", "seed": "3"}, WARM)
    settings.change({"top-p": back}, WARM)
    assert (settings.now.top_p, settings.now.origins["top_p"], settings.now.seed) == (0.5, "--top-p", 3)
    assert settings.typed == {"seed": "3"}


@each(
    "key, value, sentence",
    [
        ("tempreature", "1", wording("there_setting_tempreature_did")),
        ("wings", "1", wording("there_setting_wings_set_alone")),
        ("drafter", "none", wording("drafter_decided_when_chat_begins")),
        (
            "temperature",
            "1e999",
            wording("set_temperature_1e999_must_number"),
        ),
        (
            "temperature",
            "9999",
            wording("set_temperature_9999_must_number"),
        ),
        ("top-p", "2", wording("set_top_p_2_must_number_above_0")),
        ("temperature", "hot", wording("set_temperature_hot_must_number")),
        ("temperature", "nan", wording("set_temperature_nan_must_number")),
        ("top-k", "1.5", wording("set_top_k_1_5_must_whole_number")),
        ("max-tokens", "0", wording("set_max_tokens_0_must_whole")),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(key, value, sentence):
    settings = ChatSettings(Settings())
    with pytest.raises(UsageMistake) as mistake:
        settings.change({"seed": "1", key: value}, WARM)
    assert str(mistake.value).startswith(sentence)
    assert settings.now is settings.first and settings.typed == {}


def test_what_contradicts_the_model_is_refused():
    settings = ChatSettings(Settings())
    with pytest.raises(UsageMistake, match=f"^{matching('set_top_k_5_has_no')}"):
        settings.change({"top-k": "5"}, GREEDY)
    settings.change({"temperature": "0.7"}, GREEDY)
    settings.change({"top-k": "5"}, GREEDY)
    with pytest.raises(UsageMistake, match=matching("set_top_k_default_takes_back")):
        settings.change({"temperature": "default"}, GREEDY)
    settings.change({"temperature": "default", "top-k": "default"}, GREEDY)


def test_a_setting_that_contradicts_another_model_is_dropped_with_a_notice():
    settings = ChatSettings(Settings())
    settings.change({"top-k": "5"}, WARM)
    assert settings.fit(WARM) is None
    told = settings.fit(GREEDY)
    assert told is not None and told.startswith(wording("set_top_k_5_effect_temperature_0"))
    assert settings.now == Settings() and settings.typed == {} and settings.fit(GREEDY) is None


def test_flags_that_contradict_a_model_are_still_refused(tmp_path):
    settings = ChatSettings(config.load(Paths(tmp_path), {}, {"top_k": 5}))
    with pytest.raises(UsageMistake, match=f"^{matching('top_k_has_no_effect_at')}"):
        settings.fit(GREEDY)


def test_all_are_listed(tmp_path):
    settings = ChatSettings(config.load(Paths(tmp_path), {"LOCALSPEC_MAX_TOKENS": "50"}, {}))
    assert settings.lines(WARM) == [
        SettingLine("temperature", "0.8", "the model's file"), SettingLine("top-p", "0.95", "the model's file"),
        SettingLine("top-k", "0", "the model's file"), SettingLine("min-p", "0", "the model's file"),
        SettingLine("max-tokens", "50", "LOCALSPEC_MAX_TOKENS"), SettingLine("seed", "new", "for each reply"),
    ]  # fmt: skip
    assert [line.key for line in settings.lines(None)] == list(KEYS)
    assert settings.lines(None)[0].value == "?"
    assert listed(settings.lines(WARM, "temp")) == wording("temperature_0_8_model_s_file")


def test_another_answer_is_notice_where_replies_are_greedy():
    settings = ChatSettings(Settings())
    notice = wording("temperature_0_answer_would_same")
    assert settings.resampling_notice(GREEDY) == notice and settings.resampling_notice(WARM) is None
    other = GREEDY.sampling(settings.another({}, GREEDY))
    assert (other.temperature, other.top_p, other.chosen) == (0.7, 0.9, ("temperature", "top_p"))
    assert settings.another({}, WARM) == settings.now
    settings.change({"temperature": "0"}, WARM)
    assert settings.resampling_notice(WARM) == notice
    other = WARM.sampling(settings.another({"seed": 5}, WARM))
    assert (other.temperature, other.top_p) == (0.7, 0.9) and other.seed != WARM.sampling(settings.now).seed
    assert settings.another(None, WARM) == settings.now and settings.now.temperature == 0, "for this one answer only"


def test_a_new_conversation_takes_back_what_was_typed(tmp_path):
    settings = ChatSettings(config.load(Paths(tmp_path), {}, {"top_p": 0.5}))
    settings.change({"temperature": "0.9", "top-p": "0.7", "seed": "4"}, WARM)
    settings.reset()
    assert (settings.now, settings.typed) == (settings.first, {}) and settings.now.top_p == 0.5


@each(
    "seed, used, next_one", [(None, 8, None), (4, None, 4), (4, 4, 5), (4, 5, 6), (4, 3, 4), (4, 10**9, 4), (4, "4", 4)]
)
def test_another_answer_has_the_seed_after_that_of_the_one_before(seed, used, next_one):
    settings = ChatSettings(Settings(seed=seed))
    assert settings.another({"seed": used}, WARM).seed == next_one and settings.another({}, WARM).seed == seed
    assert settings.now.seed == seed


@each(
    "rest, parts",
    [
        ("", ("", "")),
        ("seed", ("seed", "")),
        (" seed  5 ", ("seed", "5")),
        ("a b c", ("a", "b c")),
        ("top-k=5", ("top-k", "5")),
        ("stop a=b", ("stop", "a=b")),
        ("stop =", ("stop", "=")),
    ],
)
def test_a_key_and_its_value(rest, parts):
    assert split(rest) == parts


@each(
    "settings, words",
    [
        (Settings(), wording("temperature_0_8_top_p_0_95_model")),
        (Settings(temperature=0.3), wording("temperature_0_3_yours_top_p_0_95")),
        (Settings(temperature=0.0), "temperature 0 (yours)"),
        (Settings(top_k=4), "top-k 4 (yours), temperature 0.8, top-p 0.95 (the model's file)"),
    ],
)
def test_where_values_come_from_is_reported(settings, words):
    assert sampling_words(WARM.sampling(settings)) == words


@pytest.mark.parametrize("log", [True, False])
def test_the_first_sampled_reply_of_an_imported_model_says_so_once(tmp_path, monkeypatch, log):
    monkeypatch.setattr(module, "is_packed", lambda path: path.name == "packed")
    imported, other = (TargetCard(name, tmp_path / name, None, "") for name in ("packed", "directory"))
    sentence = (
        "packed samples at temperature 0.8, top-p 0.95 (the model's file). `--temp 0` gives the same answer every time."
    )
    warm, settings = WARM.sampling(Settings()), Settings(log=log)
    with Store.open(tmp_path / "store.db", pytest.fail) as store:
        for process, told in enumerate((True, not log)):
            monkeypatch.setattr(module, "_shown_for", set())
            assert first_sampled(other, warm, store, settings) is None
            assert first_sampled(imported, GREEDY.sampling(Settings()), store, settings) is None
            assert first_sampled(imported, WARM.sampling(Settings(temperature=0.5)), store, settings) is None
            assert first_sampled(imported, warm, store, settings) == (sentence if told else None), process
            assert first_sampled(imported, warm, store, settings) is None, "once per process"
        assert store.measurements.recall(FIRST_SAMPLED, "packed") == (1 if log else None)
