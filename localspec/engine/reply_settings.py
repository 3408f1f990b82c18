"""Derives the sampling and the thinking of a reply from settings and the model's recommendations."""

import secrets
from collections.abc import Mapping
from typing import Any

from localspec.config import TYPED, Settings
from localspec.decoding.sampling import Sampling
from localspec.errors import UsageMistake
from localspec.families.generation_config import default_sampling
from localspec.models.chat_tokenizer import ChatTokenizer


def requested_sampling(settings: Settings, generation: Mapping[str, Any], name: str = "") -> Sampling:
    """Return the sampling that the settings ask for. The model's defaults and a new seed fill in what they leave open.

    `generation` is the model's generation_config.json, and `name` the model's name. Raises UsageMistake for a setting
    without effect.
    """
    default = default_sampling(generation, name, settings.think)
    chosen = tuple(key for key in ("temperature", "top_p", "top_k", "min_p") if getattr(settings, key) is not None)

    def value(key: str) -> Any:
        return getattr(settings if key in chosen else default, key)

    sampling = Sampling(
        temperature=float(value("temperature")),
        top_k=int(value("top_k")),
        top_p=float(value("top_p")),
        min_p=float(value("min_p")),
        seed=secrets.randbits(32) if settings.seed is None else settings.seed,
        rule=settings.accept,
        source=default.source,
        chosen=chosen,
    )
    for name in ("top_p", "top_k", "min_p") if sampling.greedy else ():
        origin, spelled = settings.origins.get(name, ""), name.replace("_", "-")
        if origin == TYPED:
            raise UsageMistake(
                f"{settings.shown(name)} has no effect at temperature 0; {TYPED} temperature 0.7 gives it one, "
                f"{TYPED} {spelled} default resets it."
            )
        if origin.startswith("--"):
            raise UsageMistake(f"--{spelled} has no effect at temperature 0; leave it out, or give a --temp above 0.")
    return sampling


def requested_thinking(settings: Settings, chat: ChatTokenizer, model: str, system: str | None = None) -> bool | None:
    """Return whether the model is asked to think; None leaves that to its chat template.

    Raises UsageMistake if thinking was set for this model and its template ignores it, in general or with this `system`
    prompt. A setting in config.toml may be ignored.
    """
    if settings.think is None or chat.heeds_switch(system):
        return settings.think
    origin = settings.origins.get("think", "")
    if origin == TYPED:
        option, remedy = f"/think {'on' if settings.think else 'off'}", "/think auto restores the default"
    elif origin.startswith("--"):
        option, remedy = origin, "leave it out"
    else:
        return None
    if chat.switch is None:
        raise UsageMistake(
            f"{option} has no effect, because the chat template of {model} has no switch for thinking; {remedy}."
        )
    raise UsageMistake(
        f"{option} has no effect with a system prompt, because the chat template of {model} has no switch for "
        f"thinking; {remedy}, or the system prompt."
    )
