"""The target: weights, tokenizer, chat template and stop tokens of one model; what the rest of the engine calls."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jinja2 import TemplateError
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoTokenizer, PretrainedConfig
from transformers.utils import logging

from localspec.checkpoint import Checkpoint, inspect
from localspec.decoding.forward import ForwardOutput
from localspec.decoding.tree import DraftTree
from localspec.errors import LocalspecError, UsageMistake, first_line
from localspec.nn.attention import LEAST_SLOTS, fastest, invariant, page
from localspec.nn.cache import KVCache
from localspec.nn.linear import Int8Linear, Linear, QuantizedLinear, outliers
from localspec.nn.packing import linear_class, lm_head_class
from localspec.nn.transformer import RotaryEmbedding, Transformer, TransformerConfig, weight_map
from localspec.nn.weights import Weights, freed_at_once, own_head

logging.set_verbosity_error()  # what a user can act on, we say ourselves

PROBE = (
    "The committee met on Tuesday, 14 March 2023, at 09:30 and heard 3 reports: costs had risen by 12.5 %, mostly for "
    'energy. "What do you suggest?" asked the chair. Nobody answered at first; then Dr. O\'Neill said: “We could wait.”'
    "\n\n```python\ndef mean(values: list[float]) -> float:\n    return sum(values) / len(values)\n```\n\n"
    "- Zürich, São Paulo, 北京, Москва\n- a² + b² = c²; 7 × 8 = 56\n"
)
Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}


class Target:
    """The model whose distribution is reproduced.

    `context` is the longest text it will hold, in tokens; it fixes length-dependent position scaling.
    """

    def __init__(
        self,
        transformer: Transformer,
        config: PretrainedConfig,
        tokenizer: Any,
        context: int,
        generation: Mapping[str, Any],
        exact: bool = False,
    ) -> None:
        self.exact = exact
        self.transformer, self.config, self.tokenizer, self.context = transformer, config, tokenizer, context
        self.generation = generation  # generation_config.json: the model's own sampling
        self.row_multiple = 1  # behind a cache, rows are filled up to a multiple of this many
        self.stop_tokens = _stop_tokens(config, generation, tokenizer)

    @classmethod
    @freed_at_once()
    def load(
        cls,
        path: Path,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        context: int | None = None,
        quantize: str = "none",
        exact: bool = False,
        threshold: float = 0.0,
    ) -> "Target":
        """Reads a directory in the Hugging Face layout, safetensors only; `context` is the model's own by default.

        `quantize` is none, int8, int4 or nf4, as far as the device has them; `exact` asks for the form whose rows never
        depend on each other; `threshold` is that of int8 on CUDA.

        Raises LocalspecError (broken, missing or unsupported files) and UsageMistake (a context the model cannot hold).
        """
        checkpoint = inspect(path)
        config = _config(checkpoint)
        own, limit = _contexts(config)
        if context is not None and context > limit:
            raise UsageMistake(
                f"A context of {context} tokens is more than the {limit} this model was made for; "
                f"ask for --context {limit} or less."
            )
        context = context or own
        sizes = TransformerConfig.of(config)
        if sizes.tied and own_head(checkpoint):  # as the stock model does: what the file holds is what counts
            sizes = replace(sizes, tied=False)
        transformer = Transformer(
            sizes,
            RotaryEmbedding(config, context, torch.device(device)),
            Weights(checkpoint, sizes, dtype, device),
            linear_class(quantize, device, threshold),
            invariant if exact else fastest,
            lm_head_class(quantize, device),
        )
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the tokenizers library raises bare Exception on a damaged file
            raise LocalspecError(
                f"The tokenizer in {path} cannot be read ({first_line(error)}); fetch the model again."
            ) from error
        target = cls(transformer, config, tokenizer, context, _generation(path), exact)
        if transformer.linear_class is Int8Linear:
            target._protect_outliers()
        return target

    def _protect_outliers(self) -> None:
        """Reads a text, and lets each int8 layer compute in fp32 the input channels that stand out there.

        A layer is looked at as soon as its input comes by, so those behind it already see what it then gives.
        """

        def look(layer: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
            assert isinstance(layer, Int8Linear)
            layer.protect(outliers(inputs[0]))

        layers = [layer for layer in self.transformer.modules() if isinstance(layer, Int8Linear)]
        hooks = [layer.register_forward_pre_hook(look) for layer in layers]
        try:
            known = [
                token for token in self.tokenizer(PROBE)["input_ids"] if token < self.transformer.config.vocab_size
            ]
            tokens = torch.tensor(known[: self.context] or [0])
            causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril_()
            with torch.inference_mode():
                self.forward(tokens, torch.arange(len(tokens)), causal)
        finally:
            for hook in hooks:
                hook.remove()

    # -- forward ------------------------------------------------------------------------------------------------------

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: KVCache | None = None,
        layers: Sequence[int] | None = None,
        last: bool = False,
    ) -> ForwardOutput:
        """One pass over new rows: tokens [n] (or [batch, n] without a cache), positions [n], mask bool [n, n].

        With `last` the logits are those of the last row only: what prefill needs of a long prompt.
        """
        rows = len(positions)
        if cache is not None and (short := -rows % self.row_multiple):
            tokens, positions = F.pad(tokens, (0, short)), F.pad(positions, (0, short), value=int(positions[0]))
            mask = F.pad(mask, (0, short, 0, short)) | torch.eye(rows + short, dtype=torch.bool, device=mask.device)
            cache.reserve(cache.length + rows + short)
        hidden = self.transformer(tokens if tokens.ndim == 2 else tokens[None], positions, mask, cache, layers)
        if tokens.ndim == 1:
            hidden = hidden[0]
        if last:
            return ForwardOutput(self.head(hidden[..., rows - 1 : rows, :]), hidden[..., :rows, :])
        return ForwardOutput(self.head(hidden)[..., :rows, :], hidden[..., :rows, :])

    def answers(self) -> bool:
        """Whether its logits are numbers, behind a short text."""
        with torch.inference_mode():
            row = torch.zeros(4, dtype=torch.long, device=self.device)
            causal = torch.ones(4, 4, dtype=torch.bool, device=self.device).tril_()
            logits = self.forward(row, torch.arange(4, device=self.device), causal, last=True).logits
        return bool(logits.isfinite().all())

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """The part of a tree, behind `start` committed tokens, that the exact form computes to the bit."""
        return tree.aligned(start, self.page) if self.exact else tree

    @property
    def page(self) -> int:
        """Slots that the invariant form of attention adds up in one go, where a single row is filled up."""
        shape = self.transformer.config
        rows = shape.num_heads // shape.num_kv_heads * self.row_multiple
        return page(shape.num_kv_heads, shape.head_dim, rows, self.device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Input embeddings of token ids, [..., width]."""
        return F.embedding(tokens, self.transformer.embed_tokens)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of hidden states behind the final norm, [..., vocabulary]."""
        logits: torch.Tensor = self.transformer.lm_head(hidden)
        return logits

    def cache(self, slots: int) -> KVCache:
        """An empty cache with room for `slots` tokens, in this model's precision and on its device."""
        shape, like = self.transformer.config, self.transformer.embed_tokens
        least = LEAST_SLOTS if self.exact else 0
        return KVCache(shape.num_layers, shape.num_kv_heads, shape.head_dim, slots, like.dtype, like.device, least)

    @property
    def device(self) -> torch.device:
        return self.transformer.embed_tokens.device

    @property
    def dtype(self) -> torch.dtype:
        return self.transformer.embed_tokens.dtype

    @cached_property
    def nbytes(self) -> int:
        packed = [layer.nbytes for layer in self.transformer.modules() if isinstance(layer, QuantizedLinear)]
        return sum(packed) + sum(parameter.nbytes for parameter in self.transformer.parameters())

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that one decode step reads: all but an embedding, of which it takes a few rows."""
        transformer = self.transformer
        shared = isinstance(transformer.lm_head, Linear) and transformer.lm_head.weight is transformer.embed_tokens
        return self.nbytes - (0 if shared else transformer.embed_tokens.nbytes)

    # -- text ---------------------------------------------------------------------------------------------------------

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation that waits for the assistant, through the model's own chat template.

        A model without a template gets the contents as plain text. Where a template refuses a system message, it is
        put before the first user message.
        """
        ids: list[int] = self.tokenizer(self.render(messages), add_special_tokens=self.framed)["input_ids"]
        if ids and max(ids) >= self.transformer.config.vocab_size:
            raise LocalspecError(
                f"The model's tokenizer gives the id {max(ids)}, and its config.json promises a vocab_size of "
                f"{self.transformer.config.vocab_size}; fetch the model again."
            )
        return ids

    @property
    def framed(self) -> bool:
        """Whether the tokenizer sets the marks around a text; a chat template brings its own."""
        return not self.tokenizer.chat_template

    def render(self, messages: Sequence[Message], waits: bool = True) -> str:
        """The text of a conversation that `waits` for the assistant, or has just ended; otherwise as `encode`."""
        messages = [{**message, "content": self.disarm(message["content"])} for message in messages]
        if self.framed:
            return "\n\n".join(message["content"] for message in messages)
        return self._templated(messages, waits)

    def _templated(self, messages: Sequence[Message], waits: bool) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=waits)
        except Exception as error:  # a template is somebody else's program, and may fail in any way
            if isinstance(error, TemplateError) and messages[0]["role"] == "system" and len(messages) > 1:
                system, first, *rest = messages
                first = {**first, "content": f"{system['content']}\n\n{first['content']}"}
                return self._templated([first, *rest], waits)
            raise LocalspecError(
                f"The model's chat template cannot be used ({first_line(error)}); fetch the model again."
            ) from error
        return text

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; special tokens have none."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        """Ids that stand for no text: role marks, ends, padding."""
        return frozenset(self.tokenizer.all_special_ids) | self._added.keys() | self.stop_tokens

    @cached_property
    def _added(self) -> dict[int, str]:
        return {i: token.content for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    def disarm(self, content: str) -> str:
        """Text that spells a special token must stay text: a file that is piped in may not end the user's turn."""
        for token in self._added.values():
            if token in content:
                content = content.replace(token, token[0] + "\u200c" + token[1:])
        return content

    # -- back to files ------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Writes weights, config and tokenizer in the Hugging Face layout. Raises LocalspecError for a packed model."""
        if self.transformer.packed:
            raise LocalspecError(
                "A model in int8, int4 or nf4 cannot be written back, for its weights are rounded; load it with "
                "--quantize none."
            )
        path.mkdir(parents=True, exist_ok=True)
        ours, tensors = dict(self.transformer.named_parameters()), {}
        for name, made_of in weight_map(self.transformer.config).items():
            pieces = torch.split(ours[name].detach(), [rows for _, rows in made_of])
            tensors.update({part: piece.contiguous() for (part, _), piece in zip(made_of, pieces, strict=True)})
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        self.config.save_pretrained(path)
        self.tokenizer.save_pretrained(path)


def _config(checkpoint: Checkpoint) -> PretrainedConfig:
    if packed := checkpoint.config.get("quantization_config"):
        method = packed.get("quant_method", "unknown") if isinstance(packed, dict) else packed
        raise LocalspecError(
            f"The weights in {checkpoint.path} are packed ({method}), which localspec does not read; "
            "use the model's bf16 or fp16 weights."
        )
    try:
        config: PretrainedConfig = CONFIG_MAPPING[checkpoint.config["model_type"]].from_dict(checkpoint.config)
    except Exception as error:  # config classes raise their own validation errors, of many kinds
        raise LocalspecError(
            f"The config.json in {checkpoint.path} is not usable ({first_line(error)}); fetch the model again."
        ) from error
    if "rope_type" not in config.rope_parameters:
        raise LocalspecError(
            f"The rope_parameters in {checkpoint.path / 'config.json'} are not of one kind for all layers, which "
            "localspec cannot serve; choose another model."
        )
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"):
        if getattr(config, name) < 1:
            raise LocalspecError(
                f"{name} = {getattr(config, name)} in {checkpoint.path / 'config.json'} is not possible; "
                "fetch the model again."
            )
    least = config.vocab_size * config.hidden_size + config.num_hidden_layers * 4 * config.hidden_size
    if least > checkpoint.parameters:  # told before anything is built for layers that are not there
        raise LocalspecError(
            f"{checkpoint.path / 'config.json'} promises {config.num_hidden_layers} layers and a vocabulary of "
            f"{config.vocab_size}, more than the {checkpoint.parameters} weights there are; fetch the model again."
        )
    return config


def _contexts(config: PretrainedConfig) -> tuple[int, int]:
    """(the model's own context, the longest it can be given), in tokens."""
    limit, rope = int(config.max_position_embeddings), config.rope_parameters
    if rope["rope_type"] == "longrope":  # two sets of factors: the short one is what the model was mostly trained with
        return min(int(rope["original_max_position_embeddings"]), limit), limit
    if rope["rope_type"] == "dynamic":
        return limit, int(limit * rope["factor"])
    return limit, limit


_SAMPLING: Mapping[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0 <= value < float("inf"),
    "top_k": lambda value: value >= 0 and int(value) == value,
    "top_p": lambda value: 0 < value <= 1,
    "min_p": lambda value: 0 <= value <= 1,
}


def _generation(path: Path) -> Mapping[str, Any]:
    """generation_config.json; a model may come without."""
    try:
        content = json.loads((path / "generation_config.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise LocalspecError(
            f"{path / 'generation_config.json'} cannot be read ({first_line(error)}); fetch the model again."
        ) from error
    content = content if isinstance(content, dict) else {}
    for name, possible in _SAMPLING.items():
        value = content.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and possible(value)):
            raise LocalspecError(
                f"{name} = {value!r} in {path / 'generation_config.json'} is not possible; correct it, "
                "or fetch the model again."
            )
    return content


def _stop_tokens(config: PretrainedConfig, generation: Mapping[str, Any], tokenizer: Any) -> frozenset[int]:
    """Every id that ends a reply: those of both configs, the tokenizer's, and the mark the template puts behind one."""
    stops: set[int] = set()
    for ids in (config.eos_token_id, generation.get("eos_token_id"), tokenizer.eos_token_id):
        several = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if not all(isinstance(token, int) for token in several):
            raise LocalspecError(f"The eos_token_id {ids!r} of this model is no token id; fetch the model again.")
        stops.update(several)
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\u2460"}]
        try:
            behind = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("\u2460")[2]
        except Exception:  # noqa: BLE001  # some refuse such turns; one that always fails is told when it is used
            return frozenset(stops)
        first = tokenizer(behind.strip(), add_special_tokens=False)["input_ids"][:1]
        stops.update(set(first) & tokenizer.added_tokens_decoder.keys())
    return frozenset(stops)


def tokenizer_hash(tokenizer: Any) -> str:
    """Two tokenizers with the same hash give the same ids for every text."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16]
