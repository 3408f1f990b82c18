"""Row-scaled int8: as good as eight bits are, every row bit for bit what it is alone, gradients of the quantised weight."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from clocks import PATIENCE
from quantized_layers import error, gaussian, gradient_is_that_of_a_dense_layer
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY, Tiny, byte_tokenizer, prompt_ids, write
from transformers import LlamaConfig

from localspec.nn import linear
from localspec.nn.linear import MOST_OUTLIERS, Int8Linear, activation_steps, outliers
from localspec.nn.target import Target

Make = Callable[[str], Tiny]
OUT, IN = 301, 255  # no multiples of what a kernel works on at once
PROTECTED = torch.tensor([3, 7, 100])


def layer(bias: bool = False, protected: torch.Tensor | None = None, out: int = OUT, inner: int = IN) -> Int8Linear:
    made = Int8Linear(gaussian(out, inner, seed=1), gaussian(out, seed=2) if bias else None)
    if protected is not None:
        made.protect(protected)
    return made


kinds = pytest.mark.parametrize("protected", [None, PROTECTED], ids=["plain", "outliers"])
biases = pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])


# -- values ------------------------------------------------------------------------------------------------------------


@kinds
@biases
@pytest.mark.parametrize(("out", "inner"), [(OUT, IN), (64, 48), (512, 1024), (3, 5)])
def test_the_product_is_the_dense_one_to_a_hundredth(
    out: int, inner: int, bias: bool, protected: torch.Tensor | None
) -> None:
    channels = None if protected is None else protected[protected < inner]
    made, x = layer(bias, channels, out, inner), gaussian(40, inner)
    dense = F.linear(x, gaussian(out, inner, seed=1), gaussian(out, seed=2) if bias else None)
    assert 1e-4 < error(made(x), dense) < 0.02, "near, and in eight bits"
    assert made(x[None]).shape == (1, 40, out)
    assert torch.equal(made(x[None])[0], made(x))
    assert torch.equal(made(gaussian(inner, 4).T), made(gaussian(inner, 4).T.contiguous()))


def test_the_weight_is_whole_steps_of_one_scale_an_output_channel() -> None:
    made, weight = layer(), gaussian(OUT, IN, seed=1)
    scale = weight.abs().amax(1, keepdim=True) / 127
    steps = made.weight / scale
    assert torch.allclose(steps, steps.round(), atol=1e-4)
    assert torch.equal(steps.abs().amax(1).round(), torch.full((OUT,), 127.0)), "every channel uses all its steps"
    assert ((made.weight - weight).abs() <= 0.5001 * scale).all()


@kinds
@biases
def test_rows_of_zeros_give_the_bias_and_nothing_else(bias: bool, protected: torch.Tensor | None) -> None:
    made, x = layer(bias, protected), gaussian(6, IN)
    x[[0, 3]] = 0.0
    nothing = gaussian(OUT, seed=2) if bias else torch.zeros(OUT)
    assert torch.equal(made(x)[0], nothing)
    assert torch.equal(made(x)[3], nothing)
    assert made(x).isfinite().all()
    assert torch.equal(made(torch.zeros(2, IN)), torch.stack([nothing] * 2))


@kinds
@pytest.mark.parametrize("power", [-66, 66], ids=["1e-20", "1e20"])
def test_the_size_of_a_row_does_not_matter(power: int, protected: torch.Tensor | None) -> None:
    """A power of two changes exponents only, so not one bit of the result may differ otherwise."""
    made, x = layer(protected=protected), gaussian(9, IN)
    assert torch.equal(made(x * 2.0**power), made(x) * 2.0**power)


def test_rows_too_small_for_a_scale_give_no_more_than_their_size() -> None:
    made = layer(bias=True)
    y = made(torch.full((2, IN), 1e-36))
    assert torch.allclose(y, gaussian(OUT, seed=2).expand(2, -1))


def test_channels_of_zeros_tiny_and_huge_weights() -> None:
    weight, x = gaussian(6, IN, seed=1), gaussian(9, IN)
    weight[0] = 0.0
    weight[1] *= 2.0**-66
    weight[2] *= 2.0**66
    made, plain = Int8Linear(weight), layer(out=6)
    assert torch.equal(made.weight[0], torch.zeros(IN))
    assert torch.equal(made(x)[:, 0], torch.zeros(9))
    for channel, power in ((1, -66), (2, 66)):
        assert torch.allclose(made(x)[:, channel] * 2.0**-power, plain(x)[:, channel], rtol=1e-5)


def test_what_it_takes_in_memory() -> None:
    made = layer()
    assert made.nbytes == OUT * IN + 12 * OUT
    assert layer(bias=True).nbytes == made.nbytes + 4 * OUT
    assert layer(protected=PROTECTED).nbytes == made.nbytes + 4 * OUT * len(PROTECTED)


# -- a row is what it is alone -----------------------------------------------------------------------------------------


@kinds
@biases
@pytest.mark.parametrize(("out", "inner"), [(OUT, IN), (1024, 640)])
def test_a_row_is_bit_for_bit_what_it_is_alone(
    out: int, inner: int, bias: bool, protected: torch.Tensor | None
) -> None:
    made, x = layer(bias, protected, out, inner), gaussian(65, inner)
    alone = torch.cat([made(x[row : row + 1]) for row in range(65)])
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for rows in (*range(1, 18), 24, 32, 33, 48, 64, 65):
            assert torch.equal(made(x[:rows]), alone[:rows]), f"{rows} rows, {threads} threads"


@kinds
@biases
def test_a_row_does_not_see_its_neighbours(bias: bool, protected: torch.Tensor | None) -> None:
    made, x = layer(bias, protected), gaussian(5, IN)
    alone = torch.cat([made(x[row : row + 1]) for row in range(5)])
    for neighbour in (1e4 * gaussian(1, IN, seed=3), torch.full((1, IN), 1e30), torch.zeros(1, IN), x[:1]):
        among = torch.cat([neighbour, x[:2], neighbour.expand(9, -1), x[2:], neighbour])
        assert torch.equal(made(among)[[1, 2, 12, 13, 14]], alone)


# -- gradients ---------------------------------------------------------------------------------------------------------


@kinds
@biases
@pytest.mark.parametrize("shape", [(7, IN), (2, 5, IN)], ids=["2-D", "3-D"])
def test_the_gradient_is_that_of_a_dense_layer_with_the_quantised_weight(
    shape: tuple[int, ...], bias: bool, protected: torch.Tensor | None
) -> None:
    gradient_is_that_of_a_dense_layer(layer(bias, protected), shape)


def test_no_gradient_is_made_where_none_is_asked_for() -> None:
    assert not layer()(gaussian(3, IN)).requires_grad
    with torch.no_grad():
        assert not layer()(gaussian(3, IN).requires_grad_()).requires_grad


def test_gradients_flow_through_an_int8_model_as_through_a_float_one_of_its_weights(tiny: Make) -> None:
    path = tiny("llama-many-heads-biases-llama3").path
    packed, dense = Target.load(path, quantize="int8"), Target.load(path)
    for name, module in packed.transformer.named_modules():
        if isinstance(module, Int8Linear):
            dense.transformer.get_submodule(name).weight.data = module.weight
    tokens, direction = torch.tensor([prompt_ids(18, seed=seed) for seed in (7, 8)]), gaussian(2, 18, VOCABULARY)
    for target in (packed, dense):
        target.transformer.requires_grad_(True)
        causal = torch.ones(18, 18, dtype=torch.bool).tril()
        (target.forward_tensors(tokens, torch.arange(18), causal).logits * direction).sum().backward()
    theirs = dict(dense.transformer.named_parameters())
    compared = [name for name, _ in packed.transformer.named_parameters()]
    assert "embed_tokens" in compared and "layers.0.input_layernorm" in compared
    for name, parameter in packed.transformer.named_parameters():
        assert parameter.grad is not None, name
        assert F.cosine_similarity(parameter.grad.flatten(), theirs[name].grad.flatten(), dim=0) > 0.99, name
        assert error(parameter.grad, theirs[name].grad) < 0.15, name


# -- outlier channels --------------------------------------------------------------------------------------------------


def with_outliers(channels: list[int], rows: int = 40, width: int = 512, size: float = 60.0) -> torch.Tensor:
    x = gaussian(rows, width)
    x[:, channels] = size * x[:, channels].sign()
    return x


@pytest.mark.parametrize("channels", [[0], [5, 77], [511], [3, 4, 100, 200, 300, 400]], ids=str)
def test_channels_that_stand_out_are_found(channels: list[int]) -> None:
    assert outliers(with_outliers(channels)).tolist() == channels
    assert outliers(with_outliers(channels)[None]).tolist() == channels, "of a batch too"
    assert outliers(with_outliers(channels) * 1e-12).tolist() == channels, "measured by what is around them"


def test_channels_that_stand_out_in_a_quarter_of_the_rows_are_found_and_in_fewer_are_not() -> None:
    x = with_outliers([200])
    x[:10, 5] = 60.0
    x[:9, 77] = 60.0
    assert outliers(x).tolist() == [5, 200]


def test_channels_without_which_the_scale_would_hardly_shrink_are_left_where_they_are() -> None:
    assert outliers(with_outliers([5], width=4096, size=6.6)).tolist() == []
    assert outliers(with_outliers([5], width=4096, size=10.0)).tolist() == [5]
    seldom = gaussian(40, 512)
    seldom[:15, 5] = 60.0
    assert outliers(seldom).tolist() == [], "a typical row is without it already"


def test_nothing_stands_out_of_noise_of_zeros_or_in_one_row_alone() -> None:
    assert outliers(gaussian(200, 512)).tolist() == []
    assert outliers(torch.zeros(40, 512)).tolist() == []
    spike = gaussian(40, 512)
    spike[7, 9] = 1e6
    assert outliers(spike).tolist() == []


def test_of_too_many_the_largest_are_taken_in_their_order() -> None:
    planted = list(range(10, 10 + MOST_OUTLIERS + 8))
    x = with_outliers(planted, width=4096)
    x[:, planted[:8]] /= 2
    assert outliers(x).tolist() == planted[8:]


def test_protection_keeps_what_outliers_would_drown() -> None:
    channels = [5, 77, 300]
    x, weight = with_outliers(channels), gaussian(OUT, 512, seed=1)
    made, dense = Int8Linear(weight), F.linear(x, weight)
    # What the outliers themselves contribute is large and right: the question is what becomes of the rest.
    ordinary = x.index_fill(-1, torch.tensor(channels), 0.0)
    rest = F.linear(ordinary, weight).norm()
    unprotected = (made(x) - dense).norm() / rest
    made.protect(outliers(x))
    assert made.outliers is not None and made.outliers.tolist() == channels
    right = F.linear(x, made.weight)  # protection is of activations: the weight stays in eight bits
    assert (made(x) - right).norm() / rest < 0.02
    assert (made(x) - right).norm() / rest < unprotected / 5
    made.protect(torch.tensor([], dtype=torch.long))
    assert torch.equal(made(x), Int8Linear(weight)(x)), "and can be taken back"


@pytest.fixture(scope="module")
def spiky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose norms blow up two channels a hundredfold, and whose weights there are small, as in real models."""
    config = LlamaConfig(
        hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    path = write(tmp_path_factory.mktemp("model") / "spiky", config, byte_tokenizer(), seed=3)
    file = path / "model.safetensors"
    weights = load_file(file)
    for name, weight in weights.items():
        if "layernorm" in name:
            weight[[5, 77]] *= 100
        if "embed_tokens" in name:
            weight[:, [5, 77]] = 0.18 * weight[:, [5, 77]].sign()
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            # One step of eight bits: what is compared is the rounding of activations, not of these weights.
            weight[:, [5, 77]] = weight[:, [5, 77]].sign() * weight.abs().amax(1, keepdim=True) / 127
    save_file(weights, file, metadata={"format": "pt"})
    return path


def test_a_model_with_outlier_channels_is_protected_when_it_is_loaded(spiky: Path) -> None:
    tokens, causal = torch.tensor(prompt_ids(60)), torch.ones(60, 60, dtype=torch.bool).tril()

    @torch.inference_mode()
    def logits(target: Target) -> torch.Tensor:
        return target.forward_tensors(tokens, torch.arange(60), causal).logits

    right, packed = logits(Target.load(spiky)), Target.load(spiky, quantize="int8")
    for block in packed.transformer.layers:
        for module in (block.qkv_proj, block.gate_up_proj):
            assert module.outliers is not None and {5, 77} <= set(module.outliers.tolist())
    protected = error(logits(packed), right)
    for module in packed.transformer.modules():
        if isinstance(module, Int8Linear):
            module.protect(torch.tensor([], dtype=torch.long))
    assert protected < 0.15
    assert error(logits(packed), right) > 5 * protected


def test_every_layer_is_looked_at_and_no_logits_are_made(spiky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a whole text take more memory than the model where the vocabulary is large."""
    looked_at: list[int] = []
    outputs: list[int] = []
    forward = Int8Linear.forward

    def watched(layer: Int8Linear, *given: object) -> object:
        outputs.append(layer.shape[0])
        return forward(layer, *given)

    def look(x: torch.Tensor) -> torch.Tensor:
        looked_at.append(x.shape[-1])
        return outliers(x)

    monkeypatch.setattr("localspec.nn.outliers.outliers", look)
    monkeypatch.setattr(Int8Linear, "forward", watched)
    target = Target.load(spiky, quantize="int8")
    assert looked_at == 2 * [128, 128, 128, 96] + [128]
    assert len(outputs) == 2 * 4 and target.transformer.config.vocab_size not in outputs


# -- seven bits --------------------------------------------------------------------------------------------------------


@pytest.fixture
def seven_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "activation_steps", lambda: (63, 64))


@kinds
def test_in_seven_bits_the_product_is_half_as_exact_and_no_row_sees_another(
    seven_bits: None, protected: torch.Tensor | None
) -> None:
    made, x = layer(True, protected), gaussian(65, IN)
    dense = F.linear(x, gaussian(OUT, IN, seed=1), gaussian(OUT, seed=2))
    assert 0.005 < error(made(x), dense) < 0.03
    alone = torch.cat([made(x[row : row + 1]) for row in range(65)])
    assert torch.equal(made(x), alone)
    assert torch.equal(made(torch.zeros(1, IN))[0], gaussian(OUT, seed=2))


def test_here_the_kernel_gives_what_the_steps_promise() -> None:
    steps, zero = activation_steps()
    assert (steps, zero) in ((127, 128), (63, 64))
    made, x = Int8Linear(torch.ones(64, 256)), torch.ones(3, 256)
    for sign in (1, -1):  # the largest sums there are
        assert torch.allclose(made(sign * x), torch.full((3, 64), sign * 256.0), rtol=1e-4)


RESTRICTED = """
import json, torch
from localspec.nn import linear
torch.manual_seed(0)
weight, x = torch.rand(64, 256) + 1, torch.rand(9, 256) + 1  # all of one sign: the sums that overflow
def error():
    layer, dense = linear.Int8Linear(weight), x @ weight.T
    return float((layer(x) - dense).norm() / dense.norm())
steps = linear.activation_steps()
ours = error()
linear.activation_steps = lambda: (127, 128)
print(json.dumps([steps, ours, error()]))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="processors of this kind only")
def test_where_eight_bits_overflow_seven_are_used() -> None:
    """Without VNNI two products are added in 16 bits; FBGEMM can be told to compute as such a processor does."""
    environment = {**os.environ, "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", RESTRICTED],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    steps, ours, eight_bits = json.loads(done.stdout)
    assert steps == [63, 64]
    assert ours < 0.03
    assert eight_bits > 0.1, "the control: eight bits really overflow there"
