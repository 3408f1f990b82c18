"""The tokenizer in the metadata of a GGUF file, as the files that the tokenizers library and transformers read."""

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.errors import LocalspecError
from localspec.gguf.config import Metadata

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)  # types of tokens
_MOST_TOKENS, _LONGEST = 2**20, 2**10  # characters of a token
_LONGEST_PIECE = 2**7  # characters of a token that others are merged to: every way to cut it is tried
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _CONTRACTIONS + _WORDS + r"\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + _WORDS + r"\p{N}" + _REST
_GPT4O = _CASED % (_CONTRACTIONS + "?", _CONTRACTIONS + "?", "{1,3}")
_TEKKEN = _CASED % ("", "", "")
# How text is split before it is merged, by tokenizer.ggml.pre: an expression, or none for GPT-2's own, with or without
# every digit by itself. As the Hugging Face files of these models have it.
_SPLITS: Mapping[str, str | None] = {
    "gpt-2": None, "smollm": None, "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "megrez": _QWEN2, "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3, "llama-v3": _LLAMA3, "dbrx": _LLAMA3, "smaug-bpe": _LLAMA3, "falcon3": _LLAMA3,
    "gpt-4o": _GPT4O, "tekken": _TEKKEN,
}  # fmt: skip
_SINGLE_DIGITS = ("smollm",)
_WHOLE_WORDS = (
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "tekken",
)  # a word that is a token is never merged from parts
_COMPOSED = ("qwen2", "deepseek-r1-qwen", "megrez")  # which normalise to NFC
_BEGINS = ("llama-bpe", "llama3", "llama-v3", "tekken")  # with the mark of a beginning, unless it is said otherwise
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_STEPS = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]  # fmt: skip


def tokenizer_files(metadata: Metadata, vocab_size: int) -> dict[str, Any]:
    """tokenizer.json and tokenizer_config.json as objects, and the chat template as a text where there is one.

    Raises ValueError, with a clause, for what is missing or not possible, LocalspecError for a kind that is not known.
    """
    kind, tokens = metadata.text("tokenizer.ggml.model"), metadata.texts("tokenizer.ggml.tokens")
    if not kind or not tokens:
        raise ValueError("it holds no tokenizer")
    if len(tokens) > min(vocab_size, _MOST_TOKENS):
        raise ValueError(f"its tokenizer has {len(tokens)} tokens where the model has {vocab_size}")
    if (longest := max(map(len, tokens))) > _LONGEST:
        raise ValueError(f"a token of its tokenizer has {longest:,} characters, and {_LONGEST:,} are the most")
    types = metadata.numbers("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens have {len(types)} types")
    if kind not in ("gpt2", "llama"):
        raise LocalspecError(
            f"The tokenizer of the {metadata.file} is of the kind {kind[:40]!r}, and localspec reads gpt2 and llama; "
            "choose another."
        )
    roles = {theirs: token for ours, theirs in _ROLES.items() if (token := _named(metadata, ours, tokens)) is not None}
    make = _byte_level if kind == "gpt2" else _pieces
    config = {**roles, "clean_up_tokenization_spaces": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": _added(metadata, tokens, types, roles),
        **make(metadata, tokens, types, roles),
    }  # fmt: skip
    files: dict[str, Any] = {"tokenizer.json": content, "tokenizer_config.json": config}
    if template := metadata.text("tokenizer.chat_template"):
        files["chat_template.jinja"] = template
    return files


def _named(metadata: Metadata, role: str, tokens: Sequence[str]) -> str | None:
    index = metadata.number(f"tokenizer.ggml.{role}_token_id")
    if index is None:
        return None
    if type(index) is not int or not 0 <= index < len(tokens):
        raise ValueError(f"its {role} token is number {index} of {len(tokens)}")
    return tokens[index]


def _added(
    metadata: Metadata, tokens: Sequence[str], types: Sequence[int], roles: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The tokens that a text is searched for before it is split."""
    name = (metadata.text("general.name") or "").lower()
    swallow = any(phi in name for phi in ("phi-3", "phi3"))  # as its own files say, and llama.cpp knows by the name
    kept = {"<unk>", "<s>", "<|endoftext|>"}
    return [
        {
            "id": index, "content": token, "single_word": False, "lstrip": False,
            "rstrip": swallow and token not in kept, "normalized": False,
            "special": types[index] != _USER or token in roles.values(),
        }
        for index, token in enumerate(tokens)
        if token and (types[index] in (_CONTROL, _USER, _UNKNOWN) or token in roles.values())
    ]  # fmt: skip


def _vocabulary(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Tokens by what they spell; what pads a vocabulary spells nothing."""
    return {token: index for index, token in enumerate(tokens) if types[index] != _UNUSED}


def _beginning(
    metadata: Metadata, roles: Mapping[str, str], tokens: Sequence[str], usual: bool
) -> dict[str, Any] | None:
    """What sets a mark before a text that has no chat template around it."""
    asked = metadata.flag("tokenizer.ggml.add_bos_token")
    bos = roles.get("bos_token")
    if not bos or not (usual if asked is None else asked):
        return None
    begin, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    other = [{"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    named = {bos: {"id": bos, "ids": [tokens.index(bos)], "tokens": [bos]}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, *other],
        "special_tokens": named,
    }


def _byte_level(
    metadata: Metadata, tokens: Sequence[str], types: Sequence[int], roles: Mapping[str, str]
) -> dict[str, Any]:
    """Byte-level BPE, as GPT-2 began it."""
    pre = metadata.text("tokenizer.ggml.pre") or "default"
    if pre not in _SPLITS:
        raise LocalspecError(
            f"The tokenizer of the {metadata.file} splits text as {pre[:40]!r}, which localspec does not know; choose "
            f"a newer file, or one of {', '.join(_SPLITS)}."
        )
    merges = metadata.texts("tokenizer.ggml.merges") or []
    pairs = [merge.split(" ") for merge in merges]
    vocabulary = _vocabulary(tokens, types)
    if odd := next((pair for pair in pairs if len(pair) != 2 or "".join(pair) not in vocabulary), None):
        raise ValueError(f"its tokenizer merges {str(odd)[:80]}, which is no pair that makes a token")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    expression = _SPLITS[pre]
    first = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    steps = [first] if expression else [{"type": "Digits", "individual_digits": True}] if pre in _SINGLE_DIGITS else []
    return {
        "normalizer": {"type": "NFC"} if pre in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, {**byte_level, "use_regex": not expression}]},
        "post_processor": _beginning(metadata, roles, tokens, pre in _BEGINS),
        "decoder": {**byte_level, "use_regex": True},
        "model": _bpe(vocabulary, pairs, ignore_merges=pre in _WHOLE_WORDS),
    }


def _pieces(
    metadata: Metadata, tokens: Sequence[str], types: Sequence[int], roles: Mapping[str, str]
) -> dict[str, Any]:
    """Pieces of SentencePiece's BPE with scores: what is not among them is spelled in bytes."""
    scores = metadata.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens have {len(scores or [])} scores")
    vocabulary = _vocabulary(tokens, types)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix") is not False
    steps = [{"type": "Prepend", "prepend": "▁"}, replace] if prefix else [replace]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": _beginning(metadata, roles, tokens, True),
        "decoder": {"type": "Sequence", "decoders": _STEPS if prefix else _STEPS[:3]},
        "model": _bpe(
            vocabulary,
            _merges(tokens, types, scores),
            unk_token=roles.get("unk_token"),
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[list[str]]:
    """Every pair of pieces that makes a piece, the piece of the best score first, as transformers orders them."""
    normal = {token: index for index, token in enumerate(tokens) if types[index] == _NORMAL}
    if long := next((token for token in normal if len(token) > _LONGEST_PIECE), None):
        raise ValueError(f"a piece of its tokenizer has {len(long)} characters")
    found = []
    for piece, index in normal.items():
        cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        ways = [(left, right) for left, right in cuts if left in normal and right in normal]
        found += [(scores[index], *way) for way in sorted(ways, key=lambda way: (normal[way[0]], normal[way[1]]))]
    found.sort(key=lambda one: (one[0], len(one[1]), len(one[2])), reverse=True)
    return [[left, right] for _, left, right in found]


def _bpe(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], **unlike: Any) -> dict[str, Any]:
    usual = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
    }  # fmt: skip
    return {**usual, **unlike, "vocab": dict(vocabulary), "merges": [list(pair) for pair in merges]}
