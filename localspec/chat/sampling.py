"""`/set`: settings of sampling that change during a chat. `/think`: whether the model thinks first."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec import config
from localspec.config import SAMPLING, TYPED, Settings, nearest
from localspec.errors import UsageMistake
from localspec.quantities import counted
from localspec.store.conversations import Turn
from localspec.text import one_line
from localspec.weights.checkpoint import is_packed

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer, ReplySampling
    from localspec.families.generation_config import DefaultSampling
    from localspec.models.registry import TargetCard
    from localspec.store.store import Store

KEYS = tuple(name.replace("_", "-") for name in SAMPLING)
THINK = "think"  # changed like a setting of sampling, but not one
DEFAULT = "default"  # typed as a value, it restores the default
TRIES = 1000  # a seed up to this much above the setting belongs to another answer
WARMER, NARROWER = 0.7, 0.9  # temperature and top-p of another answer if replies are greedy
FIRST_SAMPLED = "sampling shown"  # key in the store for models whose sampling notice was shown
_shown_for: set[str] = set()  # names of models whose notice this process showed
# By name of a setting, the value that is not shown; None: every value is shown.
_SHOWN_WITH = {"temperature": None, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


class SettingLine(NamedTuple):
    """One setting: its key, its present value, and the source of the value."""

    key: str
    value: str
    origin: str


class ChatSettings:
    """The settings of a chat: the initial settings, and the values typed since then. Any thread may use it."""

    def __init__(self, first: Settings) -> None:
        self.first = self.now = first
        self.typed: Mapping[str, str] = {}  # by key

    def change(self, values: Mapping[str, str], model: "Answerer | None") -> None:
        """Set `values` by key. Raises UsageMistake if a value is invalid; then no value is set.

        An empty value and `default` restore the initial value. If `model` is None (not loaded yet), call the method
        `fit` later, to reset values that the model does not support.
        """
        typed = {**self.typed, **{_key(key): value.strip() for key, value in values.items()}}
        typed = {key: value for key, value in typed.items() if value not in ("", DEFAULT)}
        now = self.first
        for key, value in typed.items():
            now = config.changed(now, _name(key), value)
        if model is not None:
            _try(model, now)
        self.now, self.typed = now, typed

    def fit(self, model: "Answerer") -> str | None:
        """If this model does not support the present values, restore the initial ones, and return a notice; else None.

        Raises UsageMistake if the model does not support an initial value.
        """
        try:
            _try(model, self.now)
        except UsageMistake as mistake:
            _try(model, self.first)
            self.now, self.typed = self.first, {}
            return f"{mistake} All sampling settings have their initial values again."
        return None

    def lines(self, model: "Answerer | None", key: str | None = None) -> list[SettingLine]:
        """Return the present value of every setting, or of the setting `key`.

        Raises UsageMistake for an unknown key.
        """
        sampling = model.sampling(self.now) if model is not None else None
        return [_line(setting, self.now, sampling) for setting in ([_key(key)] if key else KEYS)]

    @property
    def chosen(self) -> list[str]:
        """Return the values that were set on the command line, in a file or in the chat: `temperature 0.5`, `no
        thinking`."""
        values = ((key, getattr(self.now, _name(key))) for key in KEYS)
        think = [] if self.now.think is None else ["thinking" if self.now.think else "no thinking"]
        return [*think, *(f"{key} {_shown(value)}" for key, value in values if value is not None)]

    def reset(self) -> None:
        """Restore the initial settings, for a new conversation."""
        self.now, self.typed = self.first, {}

    def another(self, figures: Mapping[str, Any] | None, model: "Answerer") -> Settings:
        """Return the settings for another answer to a prompt; `figures` belong to the earlier answer, if there is one.

        A seed that the user chose is raised by one, so that answers differ and can be reproduced. If replies are
        greedy, the new answer is sampled. Raises UsageMistake if the model does not support a present setting.
        """
        if figures is None:
            return self.now
        seed, used, settings = self.now.seed, figures.get("seed"), self.now
        if seed is not None and isinstance(used, int) and 0 <= used - seed < TRIES:
            settings = replace(settings, seed=used + 1)
        if model.sampling(self.now).greedy:
            origins = {**settings.origins, "temperature": TYPED, "top_p": TYPED}
            settings = replace(settings, temperature=WARMER, top_p=NARROWER, origins=origins)
        return settings

    def resampling_notice(self, model: "Answerer") -> str | None:
        """Return a notice that the next answer is sampled, because replies are greedy (temperature 0); else None."""
        if not model.sampling(self.now).greedy:
            return None
        return (
            f"At temperature 0 the answer would be the same, so this one is sampled at temperature {WARMER}, top-p "
            f"{NARROWER}."
        )


def sampling_words(sampled: "ReplySampling | DefaultSampling") -> str:
    """Return the sampling in words, with its source: `temperature 0.2, top-p 0.9 (usual for SmolLM2)`."""
    values = {name: getattr(sampled, name) for name in _SHOWN_WITH}
    shown = [name for name, value in values.items() if value is not None and value != _SHOWN_WITH[name]]
    if sampled.greedy:
        shown = [name for name in shown if name == "temperature"]
    groups = (
        ([name for name in shown if name in sampled.chosen], "yours"),
        ([name for name in shown if name not in sampled.chosen], sampled.source),
    )
    return ", ".join(
        f"{', '.join(f'{_key_of(name)} {_shown(values[name])}' for name in names)}{f' ({source})' if source else ''}"
        for names, source in groups
        if names
    )


def first_sampled(
    card: "TargetCard", sampled: "ReplySampling", store: "Store | None", settings: Settings
) -> str | None:
    """Return a notice that an imported model samples its replies by default; None for other models.

    The notice is returned only once for each model. The store records this, if conversations are saved.
    """
    if sampled.greedy or sampled.temperature is None or "temperature" in sampled.chosen or not is_packed(card.path):
        return None
    if card.name in _shown_for or (store is not None and store.measurements.recall(FIRST_SAMPLED, card.name)):
        return None
    _shown_for.add(card.name)
    if store is not None and settings.log:
        from localspec.store.database import StoreTrouble  # the first paint of a chat does not wait for it

        with suppress(StoreTrouble):  # otherwise it is shown once more
            store.measurements.remember(FIRST_SAMPLED, card.name, 1)
    return f"{card.name} samples at {sampling_words(sampled)}. `--temp 0` gives the same answer every time."


def split(rest: str) -> tuple[str, str]:
    """Return the key and the value after `/set`, as in `top-k 5` or `top-k=5`. A missing key or value is empty."""
    key, _, value = re.sub(r"^([\w-]+)=", r"\1 ", rest.strip()).partition(" ")
    return key, value.strip()


def listed(lines: Iterable[SettingLine]) -> str:
    """Return the settings as text, one line each."""
    return "\n".join(f"{key:13}{value:12}{origin}" for key, value, origin in lines)


def _try(model: "Answerer", settings: Settings) -> None:
    model.sampling(settings)
    model.thinking(settings)


def _key(typed: str) -> str:
    """Return the key of the setting that the user typed. Raises UsageMistake."""
    key = typed.strip().lower().replace("_", "-")
    if key == "temp":
        return "temperature"
    if key in (*KEYS, THINK):
        return key
    if _name(key) in config.NAMES:
        raise UsageMistake(f"{key} cannot change during a chat; {TYPED} by itself lists the settings that can.")
    raise UsageMistake(f"There is no setting {typed!r}{nearest(typed, KEYS)}; {TYPED} by itself lists them.")


def _name(key: str) -> str:
    return key.replace("-", "_")


def _key_of(name: str) -> str:
    return name.replace("_", "-")


def _line(key: str, settings: Settings, sampling: "ReplySampling | None") -> SettingLine:
    name = _name(key)
    value = getattr(settings, name)
    if key == THINK:
        origin = settings.origins.get(name, DEFAULT) if value is not None else "as the chat template decides"
        return SettingLine(key, {True: "on", False: "off", None: "auto"}[value], one_line(origin))
    if value is not None:
        return SettingLine(key, _shown(value), one_line(settings.origins.get(name, DEFAULT)))
    if name == "max_tokens":
        return SettingLine(key, "no limit", "only the context limits a reply")
    if name == "seed":
        return SettingLine(key, "new", "for each reply")
    value = None if sampling is None else getattr(sampling, name)
    source = "the model's default" if sampling is None else sampling.source
    return SettingLine(key, "?" if value is None else _shown(value), source)


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.15g}"


WORDS = ("on", "off", "auto")
SHOW = "show"


def why_empty(turn: Turn, settings: Settings, model: "Answerer", system: str | None) -> str | None:
    """Return a sentence that explains why a reply ended without text; None for any other reply."""
    if turn.reply or turn.reason not in ("stop", "length", "repetition"):
        return None
    if not (turn.reasoning or turn.figures.get("reasoning_tokens")):  # a mark of thinking counts as thought
        tokens = turn.figures.get("completion_tokens") or 0
        if tokens:
            return f"The reply is empty: the model wrote {counted(tokens, 'token')} and no text."
        return "The reply is empty: the model ended it at once."
    otherwise = ", or let it answer without thinking" if model.thinks_by_itself(system) is not None else ""
    if turn.reason == "repetition":
        return f"The model's thoughts repeated themselves, so there is no answer; ask again{otherwise}."
    if turn.reason == "stop":
        return f"The model stopped after its thoughts, so there is no answer; ask again{otherwise}."
    if turn.figures.get("context_full") is True:
        longer = "begin a new conversation, or give a longer --context where the model allows one"
        return f"The model's thoughts filled the context, so there is no answer; {longer}{otherwise}."
    tokens = turn.figures.get("completion_tokens") or settings.max_tokens or 0
    return (
        f"The model's thoughts took the whole limit of {counted(tokens, 'token')}, so there is no answer; allow "
        f"more tokens{otherwise}."
    )


def parse_think(rest: str) -> str:
    """Read the argument of `/think`: on, off, auto, show or nothing. Raises UsageMistake."""
    word = rest.strip().lower()
    if word and word not in (*WORDS, SHOW):
        raise UsageMistake(f"/think takes on, off, auto or show, not {rest.strip()!r}.")
    return word


class ThinkingState(NamedTuple):
    """A `sentence` on whether the model thinks first, and the argument of `/think` for the `other` choice."""

    sentence: str
    other: str


def state(settings: Settings, model: "Answerer", system: str | None) -> ThinkingState:
    """Return whether the model thinks now, and how to change that. Raises UsageMistake if a setting has no effect."""
    requested, by_itself = model.thinking(settings, system), model.thinks_by_itself(system)
    if by_itself is None and model.choice.engine == "server":
        now = "auto" if requested is None else "on" if requested else "off"
        return ThinkingState(
            f"The server is asked for /think {now}, but may ignore this.", "off" if requested else "on"
        )
    if by_itself is None:
        # /think is refused in this case.
        return ThinkingState("The chat template of this model has no switch for thinking.", "on")
    thinks = by_itself if requested is None else requested
    now = "auto" if requested is None else "on" if requested else "off"
    others = " and ".join(f"/think {word}" for word in WORDS if word != now)
    if thinks:
        return ThinkingState(f"The model thinks before it answers (/think {now}). Other choices: {others}.", "off")
    return ThinkingState(f"The model answers without thinking (/think {now}). Other choices: {others}.", "on")
