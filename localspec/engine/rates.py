"""Measures how long a device takes for a weight and for a layer, to predict models that are not on this machine."""

from collections.abc import Callable

from localspec.engine.backends import Target, random_target
from localspec.engine.forward_timing import measure_forward_costs
from localspec.families.model_config import ModelConfig
from localspec.machine.hardware import physical_cores
from localspec.policy.forward_costs import ForwardCosts
from localspec.policy.prediction import Rates

# Two models whose layers differ in the size of their matrices alone. The wide one spends nearly all its time on them,
# as no CPU cache holds them; the slim one much less. Its matrices are not tiny either, since products with tiny ones
# are quicker than any in a real model.
WIDE = {"num_hidden_layers": 2, "hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 2048}
SLIM = {"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1536, "vocab_size": 512}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
CONTEXT = 512


def measure_rates(
    engine: str, device: str, dtype: str, quantize: str, settle: Callable[[Target], None] = lambda target: None
) -> Rates:
    """The rates by rows, measured in some seconds; the wide model takes 0.6 GB at most, while it is made.

    `settle` decides how each of both models computes its steps. Raises RuntimeError where the device has no room for
    it, or cannot compute in this precision.
    """
    wide, slim = (_costs(sizes, engine, device, dtype, quantize, settle) for sizes in (WIDE, SLIM))
    found = [weight_and_layer(*seconds) for seconds in zip(wide.seconds[0], slim.seconds[0], strict=True)]
    return Rates(wide.rows, *map(tuple, zip(*found, strict=True)))


def _costs(
    sizes: dict[str, int], engine: str, device: str, dtype: str, quantize: str, settle: Callable[[Target], None]
) -> ForwardCosts:
    """What forwards of a model of these sizes cost."""
    config = ModelConfig.of({"model_type": "llama", **sizes, **HEADS, "max_position_embeddings": CONTEXT})
    target = random_target(engine, config, device, dtype, quantize)
    target.set_threads(physical_cores())
    settle(target)
    return measure_forward_costs(target)


def weight_and_layer(wide: float, slim: float) -> tuple[float, float]:
    """(seconds for one weight, seconds for a layer beside its weights), from those of a forward of each model.

    Neither is less than a tenth of the most that it could be, however disturbed the measurement was.
    """
    layers, share = SLIM["num_hidden_layers"], WIDE["num_hidden_layers"] / SLIM["num_hidden_layers"]
    weight = (wide - share * slim) / (_matrices(WIDE) - share * _matrices(SLIM))
    weight = max(weight, wide / _matrices(WIDE) / 10)
    return weight, max(slim - weight * _matrices(SLIM), slim / 10) / layers


def _matrices(sizes: dict[str, int]) -> int:
    """How many weights one forward reads."""
    width, inner, head = sizes["hidden_size"], sizes["intermediate_size"], HEADS["head_dim"]
    attention = width * head * 2 * (HEADS["num_attention_heads"] + HEADS["num_key_value_heads"])
    return sizes["num_hidden_layers"] * (attention + 3 * width * inner) + sizes["vocab_size"] * width
