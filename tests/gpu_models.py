"""Models for the GPU tests: the demo model, every kind of drafter for it, and the plain loop of reference."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_models import RECURRENT, byte_tokenizer, save_filled
from transformers import AutoModelForCausalLM

import localspec
from localspec.decoding.drafter import Drafter
from localspec.decoding.sampling import Sampling
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.dflash import DFlashOptions
from localspec.drafters.draft_model import build as draft_model
from localspec.drafters.dspark import DSparkOptions
from localspec.drafters.ingredients import Ingredients
from localspec.drafters.layers import Layers
from localspec.drafters.lookahead import build as lookahead
from localspec.drafters.mtp import MtpOptions
from localspec.drafters.ouroboros import build as ouroboros
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.drafters.trained import drafter_class, load_drafter
from localspec.models.drafter_cards import read_drafter
from localspec.models.drafter_kinds import kinds
from localspec.models.s3d_prediction import MeasuredLayers
from localspec.nn.target import Target

DEMO = Path(localspec.__file__).parent / "demo"
PARTS = ("accelerating", "lengthening", "beside", "verification", "history")  # of Ouroboros: all of them
GREEDY = Sampling()
WIDEST = 17  # rows of the trees that the self-test tries
TIE = 2e-5  # of the largest logit: sums in another order differ by less, so nearer ones prove nothing
QUESTIONS = ("Who are you?", "Tell me a short story about a fox and a lantern.", "What is 17 + 25?")


@dataclass(frozen=True)
class Stock:
    """A model as transformers reads it, and where it computes."""

    model: Any
    device: str

    @torch.no_grad()
    def reply(
        self, prompt: Sequence[int], count: int, stops: Collection[int], sampling: Sampling = GREEDY
    ) -> list[int]:
        """Decode in the simplest way, up to a near-tie or a stop: read the whole text again for every token."""
        tokens = list(prompt)
        while len(tokens) < len(prompt) + count:
            logits = self.model(torch.tensor([tokens], device=self.device), use_cache=False).logits[0, -1].float().cpu()
            scores = logits if sampling.greedy else noisy(logits, len(tokens), sampling)
            (first, second), (token, _) = (part.tolist() for part in scores.topk(2))
            if token in stops or first - second < TIE * float(logits.abs().max()):
                break
            tokens.append(token)
        return tokens[len(prompt) :]


def noisy(logits: torch.Tensor, position: int, sampling: Sampling) -> torch.Tensor:
    """Return the logarithms of the chances of the likeliest tokens, each with its noise of this position and seed."""
    warm = logits / sampling.temperature
    kept = warm.topk(sampling.top_k).indices
    scores = torch.full_like(warm, float("-inf"))
    noise = torch.from_numpy(sampling.noise(position, kept.numpy())).to(warm.dtype)
    scores[kept] = warm[kept].log_softmax(-1) + noise.view(-1)
    return scores


def stock_of(path: Path, device: str) -> Stock:
    """Return the stock model in fp32, with eager attention."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    return Stock(model.eval().to(device), device)


def prompt_of(target: Target, question: str) -> list[int]:
    return target.encode([{"role": "user", "content": question}])


@cache
def small_model(device: str, dtype: torch.dtype) -> Target:
    """Return the demo's draft model."""
    return Target.load(DEMO / "draft", device=device, dtype=dtype)


def trained(target: Target, kind: str) -> Drafter:
    """Return the demo's drafter of a kind."""
    return load_drafter(read_drafter(DEMO / "drafters" / kind), target)


def with_small(build: Callable[[Ingredients], Drafter]) -> Callable[[Target], Drafter]:
    """Return a function that makes a drafter with the draft model."""

    def make(target: Target) -> Drafter:
        small = small_model(target.device, target.dtype)
        small.use_step_form(target.step_form)
        return build(Ingredients(target, PhrasePool(target.special_tokens), small=small, parts=PARTS, fixed=True))

    return make


def random_numbers(kind: str, target: Target, options: Any, spread: float = 0.1) -> Drafter:
    """Return a published kind of drafter with random numbers. It drafts nonsense, which must change no token."""
    class_, chance = drafter_class(kind), np.random.default_rng(3)
    numbers = {
        name: (chance.normal(1.0 if len(spec.shape) == 1 else 0.0, spread, spec.shape)).astype(np.float32)
        for name, spec in class_.tensor_specs(target, options).items()
    }
    return class_(target, options, numbers)


def block(target: Target, options: Callable[..., DFlashOptions]) -> Drafter:
    """Return a drafter whose block has two layers, DFlash or DSpark."""
    sizes = target.transformer.config
    config = {
        "model_type": "qwen3", "hidden_size": sizes.hidden_size, "intermediate_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2, "vocab_size": sizes.vocab_size,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    made = options(config=json.dumps(config), states="2,5", mask=7, block=6)
    return random_numbers(made.KIND, target, made)


def phrases(target: Target) -> Drafter:
    return WithPhrases(Autoregressive(), PhrasePool(target.special_tokens))


# Every kind that drafts for the demo; `mtp` needs a target with such a layer, and `assistant` one of Gemma 4's.
MAKERS: Mapping[str, Callable[[Target], Drafter]] = {
    "none": lambda target: Autoregressive(),
    "phrases": phrases,
    "lookahead": lambda target: lookahead(Ingredients(target, PhrasePool(target.special_tokens))),
    "layers": lambda target: Layers(target, MeasuredLayers((0, 1, 6, 7), (0.5, 0.1)), fixed=True),
    **{kind: (lambda target, kind=kind: trained(target, kind)) for kind in kinds("weights")},
    "dflash": lambda target: block(target, DFlashOptions),
    "dspark": lambda target: block(target, DSparkOptions),
    "draft_model": with_small(draft_model),
    "ouroboros": with_small(ouroboros),
}
KNOWING = ("phrases", "layers", *kinds("weights"), "draft_model", "ouroboros")  # of whose drafts some are accepted
SAMPLED = Sampling(0.8, top_k=50, seed=11)


def recurrent_model(path: Path) -> Path:
    """Return a tiny model with recurrent layers, as a target for `mtp`."""
    config = RECURRENT["qwen3_5-grouped-shared-keys-interval"]()
    return save_filled(AutoModelForCausalLM.from_config(config), path, byte_tokenizer())


def mtp(target: Target) -> Drafter:
    return random_numbers("mtp", target, MtpOptions(depth=3))
