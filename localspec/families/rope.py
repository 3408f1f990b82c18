"""The frequencies of rotary position embeddings, for every kind of scaling in the supported families.

Each frequency is computed step by step in fp32 as in the Hugging Face code. Only the power of the base is rounded from
double precision, so that the frequency is the same on every machine.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from localspec.errors import LocalspecError
from localspec.families.model_config import ModelConfig

_Frequencies = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: the angles of a position are position * inv_freq [rotary_dim / 2], fp32.

    Cosines and sines are multiplied by `attention_scaling`. Channels of a head after `rotary_dim` are not rotated.
    """

    inv_freq: _Frequencies
    attention_scaling: float
    # for layers that are rotated differently, or not at all (zeros); as wide as their heads
    local: "Rope | None" = None
    query_factors: _Frequencies | None = None  # factors of queries at position i, by i // query_period
    query_period: int = 1

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inv_freq)

    @classmethod
    def of(cls, config: ModelConfig, context: int) -> "Rope":
        """Return the rotation of a model for texts of at most `context` tokens.

        Scaling that depends on the length (dynamic NTK, longrope) is fixed by `context`, so that a token's rotation
        never changes as a text grows. Raises LocalspecError for unknown or impossible parameters.
        """
        whole = cls._by(config, config.rope_parameters, context)
        if config.query_growth is not None and context > config.query_growth[1]:
            beta, period = config.query_growth
            turns = np.arange(context // period + 2, dtype=np.float32)  # drafts may reach beyond the context
            factors = 1 + np.float32(beta) * np.log(1 + turns)
            whole = replace(whole, query_factors=factors.astype(np.float32), query_period=period)
        if any(config.unrotated):
            return replace(whole, local=cls(np.zeros_like(whole.inv_freq), 1.0))
        if config.local_rope_parameters is None:
            return whole
        heads = [
            sizes.head_dim for sizes, window in zip(config.layer_sizes, config.sliding_windows, strict=False) if window
        ]
        of_local = replace(config, head_dim=heads[0]) if heads else config
        local = cls._by(of_local, config.local_rope_parameters, context)
        if local.rotary_dim != whole.rotary_dim and not heads:
            raise _impossible(
                f"{whole.rotary_dim} channels of a head rotate in some layers, {local.rotary_dim} in others"
            )
        return replace(whole, local=local)

    @classmethod
    def _by(cls, config: ModelConfig, parameters: Mapping[str, Any], context: int) -> "Rope":
        rope_type = parameters["rope_type"]
        if not isinstance(rope_type, str) or rope_type not in _KINDS:
            raise LocalspecError(
                f"The model scales its positions by '{rope_type}', which localspec does not support; choose another "
                "model."
            )
        try:
            with np.errstate(all="ignore"):
                inv_freq, attention_scaling = _KINDS[rope_type](config, parameters, context)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            key = error.args[0] if error.args else ""
            reason = f"the key '{key}' is missing" if isinstance(error, KeyError) else str(error)
            raise _impossible(reason) from None
        if not np.isfinite(inv_freq).all():
            raise _impossible("not all rotary frequencies are finite")
        if not 0 < attention_scaling < 1e6:
            raise _impossible(f"attention is scaled by the impossible factor {attention_scaling:g}")
        if not 0 < 2 * len(inv_freq) <= config.head_dim:
            raise _impossible(
                f"{2 * len(inv_freq)} channels of each head rotate, but heads have {config.head_dim} channels"
            )
        return cls(inv_freq.astype(np.float32), float(attention_scaling))


def _impossible(reason: str) -> LocalspecError:
    return LocalspecError(f"The model's rope_parameters cannot be used ({reason}); fetch the model again.")


def _rotary_dim(config: ModelConfig, parameters: Mapping[str, Any]) -> int:
    return int(config.head_dim * parameters.get("partial_rotary_factor", 1.0))


def _powers(base: float, dim: int) -> _Frequencies:
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return np.power(np.float64(np.float32(base)), exponents.astype(np.float64)).astype(np.float32)


def _default(config: ModelConfig, parameters: Mapping[str, Any], context: int) -> tuple[_Frequencies, float]:
    dim = _rotary_dim(config, parameters) if config.partial_rotary else config.head_dim
    return np.reciprocal(_powers(parameters["rope_theta"], dim)), 1.0


def _proportional(config: ModelConfig, parameters: Mapping[str, Any], context: int) -> tuple[_Frequencies, float]:
    """Return Gemma 4's frequencies: the slower ones of a head are zero, and the others are divided by a factor."""
    half, share = config.head_dim // 2, parameters.get("partial_rotary_factor", 1.0)
    rotated = np.arange(half) < int(share * config.head_dim // 2)
    inv_freq = np.reciprocal(_powers(parameters["rope_theta"], config.head_dim)) / np.float32(
        parameters.get("factor", 1.0)
    )
    return np.where(rotated, inv_freq, np.float32(0)), 1.0


def _linear(config: ModelConfig, parameters: Mapping[str, Any], context: int) -> tuple[_Frequencies, float]:
    powers = _powers(parameters["rope_theta"], _rotary_dim(config, parameters))
    return np.divide(np.reciprocal(powers), np.float32(parameters["factor"]), dtype=np.float32), 1.0


def _dynamic(config: ModelConfig, parameters: Mapping[str, Any], context: int) -> tuple[_Frequencies, float]:
    """Return frequencies with NTK-aware scaling: the base grows with the length of the text."""
    dim, factor, limit = _rotary_dim(config, parameters), parameters["factor"], config.max_position_embeddings
    growth = (factor * max(context, limit) / limit) - (factor - 1)
    return np.reciprocal(_powers(parameters["rope_theta"] * growth ** (dim / (dim - 2)), dim)), 1.0


def _yarn(config: ModelConfig, parameters: Mapping[str, Any], context: int) -> tuple[_Frequencies, float]:
    """Return frequencies of YaRN (Peng et al. 2023): slow frequencies are interpolated, fast ones are not, and a ramp
    joins both."""
    dim, base, original = _rotary_dim(config, parameters), parameters["rope_theta"], _original(parameters)
    factor = parameters.get("factor") or config.max_position_embeddings / original

    def channel(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = channel(parameters.get("beta_fast") or 32), channel(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high  # a ramp of no width
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    weight, powers = 1 - np.clip(ramp, np.float32(0), np.float32(1)), _powers(base, dim)
    inv_freq = np.reciprocal(np.float32(factor) * powers) * (1 - weight) + np.reciprocal(powers) * weight
    return inv_freq, _yarn_attention_scaling(parameters, factor)


def _yarn_attention_scaling(parameters: Mapping[str, Any], factor: float) -> float:
    def scaling(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if (attention_factor := parameters.get("attention_factor")) is not None:
        return float(attention_factor)
    mscale, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return scaling(mscale) / scaling(all_dim) if mscale and all_dim else scaling(1)


def _longrope(config: ModelConfig, parameters: Mapping[str, Any], context: int) -> tuple[_Frequencies, float]:
    """Return frequencies of LongRoPE (Ding et al. 2024): each channel has its own factor, found by a search.

    There is one set of factors for short texts and one for long texts.
    """
    original = _original(parameters)
    factor = parameters.get("factor") or config.max_position_embeddings / original
    factors = np.array(parameters["long_factor" if context > original else "short_factor"], np.float32)
    powers = _powers(parameters["rope_theta"], _rotary_dim(config, parameters))
    if factors.shape != powers.shape:
        raise ValueError(f"longrope needs {len(powers)} factors, but has {factors.size}")
    scaling = parameters.get("attention_factor")
    if scaling is None:
        scaling = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return np.reciprocal(factors * powers), float(scaling)


def _llama3(config: ModelConfig, parameters: Mapping[str, Any], context: int) -> tuple[_Frequencies, float]:
    """Return frequencies of Llama 3.1: long wavelengths are stretched, short ones are not, and a ramp joins both."""
    inv_freq = np.reciprocal(_powers(parameters["rope_theta"], _rotary_dim(config, parameters)))
    original = _original(parameters)
    factor, low, high = (parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    wave = np.reciprocal(inv_freq) * np.float32(2 * math.pi)
    stretched = np.where(wave > original / low, inv_freq / np.float32(factor), inv_freq)
    smooth = (np.reciprocal(wave) * np.float32(original) - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * stretched / np.float32(factor) + smooth * stretched
    medium = ~(wave < original / high) & ~(wave > original / low)
    return np.where(medium, between, stretched), 1.0


def _original(parameters: Mapping[str, Any]) -> int:
    length: int = parameters["original_max_position_embeddings"]
    return length


_KINDS: Mapping[str, Callable[[ModelConfig, Mapping[str, Any], int], tuple[_Frequencies, float]]] = {
    "default": _default,
    "linear": _linear,
    "proportional": _proportional,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
