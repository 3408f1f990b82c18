"""Independent implementations to compare localspec with. Nothing in this file imports localspec.

Files are read by the package `gguf`. Text is split by the package `regex`, merged by the loop below, and rendered by
transformers' own Jinja environment. Stock transformers models compute with the weights that `gguf` dequantises.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import regex
import torch
import transformers
from gguf.quants import dequantize
from transformers.utils.chat_template_utils import render_jinja_template

# Spellings of these types are taken out of a text before it is split.
MARKS = {gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED}
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class File:
    """A GGUF file as the package `gguf` reads it."""

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(path)
        self.architecture: str = self["general.architecture"]

    def __getitem__(self, key: str) -> Any:
        return self._reader.fields[key].contents()

    def number(self, key: str) -> Any:
        """Return a number of the model's shape, such as block_count."""
        return self[f"{self.architecture}.{key}"]

    @property
    def template(self) -> str:
        return self["tokenizer.chat_template"]

    def weights(self) -> dict[str, np.ndarray]:
        """Return all tensors in fp32, by their names in the file."""
        return {one.name: dequantize(one.data, one.tensor_type) for one in self._reader.tensors}


def _byte_characters() -> dict[int, str]:
    """Return the character of each byte, as in GPT-2."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


class BytePairs:
    """A byte-level BPE in plain Python, from the vocabulary and the merges of a file."""

    CHARACTERS = _byte_characters()

    def __init__(self, file: File) -> None:
        self.tokens: list[str] = file["tokenizer.ggml.tokens"]
        self.split_name: str = file["tokenizer.ggml.pre"]
        types = file["tokenizer.ggml.token_type"]
        self.marks = {self.tokens[i]: i for i, kind in enumerate(types) if kind in MARKS}
        self.ids = {token: i for i, token in enumerate(self.tokens) if types[i] == gguf.TokenType.NORMAL}
        pairs = (tuple(merge.split(" ")) for merge in file["tokenizer.ggml.merges"])
        self.ranks: dict[tuple[str, ...], int] = {pair: rank for rank, pair in enumerate(pairs)}
        longest_first = sorted(self.marks, key=len, reverse=True)
        self._marks = regex.compile("|".join(map(regex.escape, longest_first)))
        self._word = lru_cache(None)(self._merged)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which spellings of marks are marks."""
        found: list[int] = []
        start = 0
        for mark in self._marks.finditer(text):
            found += self._plain(text[start : mark.start()])
            found.append(self.marks[mark.group()])
            start = mark.end()
        return found + self._plain(text[start:])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, the spelling of marks included."""
        bytes_of = {character: byte for byte, character in self.CHARACTERS.items()}
        whole = b""
        for i in ids:
            token = self.tokens[i]
            whole += token.encode() if token in self.marks else bytes(bytes_of[character] for character in token)
        return whole.decode("utf-8", errors="replace")

    @cached_property
    def missing_bytes(self) -> frozenset[int]:
        """Return the bytes that no token stands for."""
        return frozenset(byte for byte, character in self.CHARACTERS.items() if character not in self.ids)

    def _plain(self, text: str) -> list[int]:
        return [i for piece in self._pieces(text) for i in self._word(piece)]

    def _pieces(self, text: str) -> list[str]:
        if self.split_name == "qwen2":
            return regex.findall(QWEN2, unicodedata.normalize("NFC", text))
        assert self.split_name == "smollm", self.split_name
        runs = regex.findall(r"\p{N}|\P{N}+", text)  # every digit by itself
        return [piece for run in runs for piece in regex.findall(GPT2, run)]

    def _merged(self, piece: str) -> tuple[int, ...]:
        parts = [self.CHARACTERS[byte] for byte in piece.encode()]
        parts = [part for part in parts if part in self.ids]
        while len(parts) > 1:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(parts)]
            best = min(ranks)
            if best == len(self.ranks):
                break
            place = ranks.index(best)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return tuple(self.ids[part] for part in parts)


def rendered(file: File, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the text that transformers makes of a conversation that waits for the assistant."""
    tokens = file["tokenizer.ggml.tokens"]
    names = {f"{name}_token": tokens[file[f"tokenizer.ggml.{key}_token_id"]] for name, key in (("bos", "bos"), ("eos", "eos"))}  # fmt: skip
    conversations = [[dict(message) for message in messages]]
    texts, _ = render_jinja_template(conversations, chat_template=file.template, add_generation_prompt=True, **names)
    return texts[0]


_PARTS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _name(theirs: str) -> str:
    stem, end = theirs.rsplit(".", 1)
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{end}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_PARTS[part]}.{end}"


def _halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of q or k as transformers rotates them: two halves of a head, where llama.cpp has neighbours."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


class Exact:
    """The weights of a file in fp32, computed by a stock transformers model."""

    def __init__(self, file: File) -> None:
        stored = file.weights()
        heads, pairs = file.number("attention.head_count"), file.number("attention.head_count_kv")
        if file.architecture == "llama":
            for name, rows in stored.items():
                if ".attn_q." in name or ".attn_k." in name:
                    stored[name] = _halves(rows, heads if ".attn_q." in name else pairs)
        kinds = {
            "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
            "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        }
        config_class, model_class = kinds[file.architecture]
        tied = "output.weight" not in stored
        config = config_class(
            vocab_size=len(stored["token_embd.weight"]),
            hidden_size=file.number("embedding_length"),
            intermediate_size=file.number("feed_forward_length"),
            num_hidden_layers=file.number("block_count"),
            num_attention_heads=heads,
            num_key_value_heads=pairs,
            max_position_embeddings=file.number("context_length"),
            rms_norm_eps=file.number("attention.layer_norm_rms_epsilon"),
            rope_parameters={"rope_type": "default", "rope_theta": file.number("rope.freq_base")},
            tie_word_embeddings=tied,
        )
        state = {_name(name): torch.from_numpy(np.require(rows, requirements="W")) for name, rows in stored.items()}
        if tied:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        with torch.device("meta"):
            self.model = model_class(config)
        self.model.load_state_dict(state, strict=True, assign=True)
        # Frequencies are no weights: on the meta device they have no values.
        self.model.model.rotary_emb = type(self.model.model.rotary_emb)(config=config)
        self.model.eval()

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits after each token."""
        return self.model(torch.tensor([list(tokens)])).logits[0].float().numpy()

    @torch.inference_mode()
    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the likeliest continuation, token by token."""
        found: list[int] = []
        read, cache = torch.tensor([list(tokens)]), None
        for _ in range(count):
            out = self.model(read, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            found.append(int(out.logits[0, -1].argmax()))
            read = torch.tensor([[found[-1]]])
        return found


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log probabilities in double precision."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def divergence(exact: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return KL(exact || found) of each row, in nats."""
    one, other = log_softmax(exact), log_softmax(found)
    return (np.exp(one) * (one - other)).sum(-1)


def surprise(logits: np.ndarray, tokens: Sequence[int], rows: int = 256) -> np.ndarray:
    """Return the negative log likelihood, in nats, of each token but the first; `rows` rows at once, to save memory."""
    after = np.array(tokens[1:])
    starts = range(0, len(after), rows)
    parts = [log_softmax(logits[start : start + rows])[: len(after) - start] for start in starts]
    chosen = [after[start : start + rows] for start in starts]
    return np.concatenate([-part[np.arange(len(ids)), ids] for part, ids in zip(parts, chosen, strict=True)])
