"""What was asked for, and what a model says of itself -> how a reply is sampled."""

import secrets
from collections.abc import Mapping
from typing import Any

from localspec.config import TYPED, Settings
from localspec.decoding.sampling import Sampling
from localspec.errors import UsageMistake
from localspec.models.generation_config import own_temperature


def asked_sampling(settings: Settings, generation: Mapping[str, Any]) -> Sampling:
    """What was asked for, else the model's own generation_config; a fresh seed where none was given.

    Raises UsageMistake for what was asked for and has no effect.
    """
    own = generation if generation.get("do_sample") else {}

    def value(name: str, default: float) -> float:
        for given in (getattr(settings, name), own.get(name)):
            if given is not None:
                return float(given)
        return default

    sampling = Sampling(
        temperature=value("temperature", own_temperature(generation)),
        top_k=int(value("top_k", 0)),
        top_p=value("top_p", 1.0),
        min_p=value("min_p", 0.0),
        seed=secrets.randbits(32) if settings.seed is None else settings.seed,
        rule=settings.accept,
    )
    for name in ("top_p", "top_k", "min_p") if sampling.greedy else ():
        origin, spelled = settings.origins.get(name, ""), name.replace("_", "-")
        if origin == TYPED:
            raise UsageMistake(
                f"{settings.shown(name)} has no effect at temperature 0; {TYPED} temperature 0.7 lets it have one, "
                f"{TYPED} {spelled} default takes it back."
            )
        if origin.startswith("--"):
            raise UsageMistake(f"--{spelled} has no effect at temperature 0; leave it out, or give a --temp above 0.")
    return sampling
