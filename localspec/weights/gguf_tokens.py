"""Makes a tokenizer's files from the metadata of a GGUF file, and finds special tokens in the same way as llama.cpp."""

import math
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from localspec.errors import LocalspecError
from localspec.machine import compiled
from localspec.machine.library import address, check, int32, library
from localspec.text import one_line
from localspec.weights.checkpoint import AROUND
from localspec.weights.gguf_metadata import Metadata, in_short, is_utf8, shown
from localspec.weights.gguf_splits import DIGIT, GPT2, SPLITS, Split

# Types of tokens that are marks: unknown, control, user-defined. Each is a list, to compare with a slice of the types:
# the slice is empty for a token that has no type.
_MARKS = ([2], [3], [4])
_NO_TOKEN = (-1, 2**32 - 1)  # ids by which converters say "no token"
_MERGING = ("gpt2", "gemma4")  # kinds of tokenizers whose file lists merges
_OF_PIECES = {"bos": 1, "eos": 2, "unknown": 0}  # default ids in a SentencePiece vocabulary
# Spellings of tokens that end a reply, from llama.cpp's src/llama-vocab.cpp, where it builds `special_eog_ids`.
_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
}  # fmt: skip
_FILL_ENDS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # spellings for the fill-in-the-middle roles, for files that give no id
# A mark does not end replies if the vocabulary also has all of these others: it is then used within a reply.
_NO_END = (
    ("<|end|>", {"<|return|>", "<|call|>"}), ("<|end|>", {"<|return|>", "<|calls|>"}),
    ("<|end|>", {"<|flush|>", "<|call|>"}), ("<|end|>", {"<|flush|>", "<|calls|>"}),
    ("</s>", {"<|tool_response>"}), ("</s>", {"<|plamo:eos|>"}),
)  # fmt: skip


def token_of(metadata: Metadata, role: str, count: int) -> int | None:
    """Return the id of the token with a role such as "eos"; None if there is no such token.

    `count` is the number of tokens. Raises ValueError for an end-of-text id beyond them; its message is not a whole
    sentence.
    """
    key = f"tokenizer.ggml.{role}_token_id"
    if key not in metadata.values:
        default = _OF_PIECES.get(role) if metadata.values.get("tokenizer.ggml.model") == "llama" else None
        return default if default is not None and default < count else None
    index = metadata.values[key]
    if _is_token(index, count):
        return int(index)  # type: ignore[arg-type]
    if role == "eos":
        raise ValueError(f"{key} = {in_short(index)} is not the id of one of the {count} tokens")
    return None


def _is_token(index: object, count: int) -> bool:
    return type(index) is int and 0 <= index < count


def impossible_roles(metadata: Metadata, count: int) -> list[str]:
    """Return a sentence for each special token that is ignored, because its id is outside the vocabulary."""
    outside = {
        key: index
        for key, index in metadata.values.items()
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and not _is_token(index, count)
    }
    return [
        f"{one_line(shown(key))} = {in_short(index)} is ignored, because it is not the id of one of the {count} tokens."
        for key, index in outside.items()
        if not (type(index) is int and index in _NO_TOKEN)
    ]


def around(metadata: Metadata, tokens: Sequence[str], begins: bool) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer adds before a text, and the ids that it adds after it.

    If the file does not say whether a begin-of-text token is added, `begins` decides. Raises LocalspecError if the file
    wants a token added but has no id for it.
    """
    added: list[list[int]] = []
    for role, default in (("bos", begins), ("eos", False)):
        key = f"tokenizer.ggml.add_{role}_token"
        flag, index = metadata.flag(key), token_of(metadata, role, len(tokens))
        if flag and index is None:
            raise LocalspecError(
                f"The {metadata.file} sets {key} = true but has no valid tokenizer.ggml.{role}_token_id; fetch it "
                "again, or choose another file."
            )
        added.append([index] if index is not None and (default if flag is None else flag) else [])
    return added[0], added[1]


def ends(metadata: Metadata) -> list[int]:
    """Return the ids of tokens that end a reply. They are named in the metadata, or spelled like a known end mark.

    Unlike in llama.cpp, a token that also occurs in ordinary text is not recognised by its spelling.
    """
    tokens = metadata.texts("tokenizer.ggml.tokens") or []
    types = metadata.numbers("tokenizer.ggml.token_type") or []
    count = len(tokens) or 2**32 - 1  # any id is possible in a file without a list of tokens
    candidates = [token_of(metadata, role, count) for role in ("eos", "eot", "eom", *_FILL_ENDS)]
    marks = set(_ENDS)
    for role, spellings in _FILL_ENDS.items():
        if token_of(metadata, role, count) is None:
            marks |= {*spellings}
    spelled = [index for index, token in enumerate(tokens) if token in marks]
    words = ordinary(metadata, tokens, types, spelled)
    candidates += [index for index in spelled if index not in words]
    ids = list(dict.fromkeys(index for index in candidates if index is not None))
    spelling = {index: tokens[index] for index in ids if index < len(tokens)}
    spellings_found = {spelling.get(index) for index in ids}
    within_replies = {mark for mark, others in _NO_END if others <= spellings_found}
    return [index for index in ids if spelling.get(index) not in within_replies]


def ends_at_words(metadata: Metadata) -> list[str]:
    """Return a warning for each id in the metadata that makes replies end at an ordinary word."""
    tokens = metadata.texts("tokenizer.ggml.tokens") or []
    types = metadata.numbers("tokenizer.ggml.token_type") or []
    ids = {f"tokenizer.ggml.{role}_token_id": token_of(metadata, role, len(tokens)) for role in ("eos", "eot", "eom")}
    words = ordinary(metadata, tokens, types, {index for index in ids.values() if index is not None})
    return [
        f"The file sets {key} = {index}, so replies end at {one_line(shown(tokens[index]))[:40]!r}, although this is "
        "an ordinary word."
        for key, index in ids.items()
        if index is not None and index in words and key in metadata.values
    ]


def ordinary(metadata: Metadata, tokens: Sequence[str], types: Sequence[int], ids: Collection[int]) -> set[int]:
    """Return which of `ids` are tokens of ordinary text.

    Such a token is not unknown, control or user-defined. It is one character, or can be merged from shorter tokens.
    """
    normal = {tokens[index]: index for index in ids if types[index : index + 1] not in _MARKS}
    if not normal:
        return set()
    if metadata.text("tokenizer.ggml.model") in _MERGING:
        return {index for token, index in normal.items() if len(token) == 1 or token in metadata.merged}
    if "tokenizer.ggml.token_type" not in metadata.values:
        # Without types, "<s>" would be taken for a word of the pieces "<" and "s>".
        return set()
    pieces = {token for index, token in enumerate(tokens) if types[index : index + 1] not in _MARKS}
    return {
        index
        for token, index in normal.items()
        if len(token) == 1 or any(token[:cut] in pieces and token[cut:] in pieces for cut in range(1, len(token)))
    }


_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)  # types of tokens
_MOST_TOKENS, _LONGEST = 2**20, 2**10  # characters of a token
_MOST_MERGES = 2**20  # the largest published vocabulary, o200k of GPT-4o and gpt-oss, has 446,189
_MERGED = 0.9  # the least share of words that merges make; in published vocabularies it is all or nearly all
_LONGEST_TEMPLATE = 2**20  # characters; published ones have some thousands
_LONGEST_PIECE = 2**7  # characters of a token that others are merged to
# Most of the sum of the squares of the tokens' bytes: about a second of computing. Gemma's 262,144 have 14 million.
_MOST_WAYS = 2**27
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_OF_PHI_3 = {"<|user|>", "<|assistant|>", "<|end|>"}  # marks after which its tokenizer drops blanks
_STEPS = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]  # fmt: skip


def tokenizer_files(metadata: Metadata, vocab_size: int) -> dict[str, Any]:
    """Return the content of tokenizer.json and tokenizer_config.json, and the chat template if there is one.

    Raises ValueError for missing or impossible values; its message is not a whole sentence. Raises LocalspecError for
    an unsupported kind of tokenizer.
    """
    kind, count = metadata.text("tokenizer.ggml.model"), metadata.count("tokenizer.ggml.tokens")
    if not kind or not count:
        raise ValueError("the file has no tokenizer")
    if count > min(vocab_size, _MOST_TOKENS):
        raise ValueError(f"the tokenizer has {count} tokens where the model has {vocab_size}")
    if (merges := metadata.count("tokenizer.ggml.merges")) > _MOST_MERGES:
        raise ValueError(f"the tokenizer has {merges:,} merges, but at most {_MOST_MERGES:,} are allowed")
    tokens = metadata.texts("tokenizer.ggml.tokens") or []
    if not is_utf8("".join(tokens)):
        odd = next(index for index, token in enumerate(tokens) if not is_utf8(token))
        raise ValueError(f"token {odd} in tokenizer.ggml.tokens is not UTF-8")
    if (longest := max(map(len, tokens))) > _LONGEST:
        raise ValueError(f"a token of the tokenizer has {longest:,} characters, but at most {_LONGEST:,} are allowed")
    types = metadata.numbers("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ValueError(f"the tokenizer has {len(tokens)} tokens, but {len(types)} token types")
    used = [token for token, token_type in zip(tokens, types, strict=True) if token and token_type != _UNUSED]
    if len(set(used)) < len(used):
        twice = next(token for token, count in Counter(used).items() if count > 1)
        raise ValueError(f"the tokenizer has the token {twice[:80]!r} twice")
    if kind not in (*_MERGING, "llama"):
        raise LocalspecError(
            f"The tokenizer of the {metadata.file} is of the kind {kind[:40]!r}, but localspec reads only gpt2, "
            "llama and gemma4; choose another file."
        )
    split = _split(metadata) if kind in _MERGING else None
    ids = {role: token_of(metadata, role, len(tokens)) for role in _ROLES}
    # A word with a role ends a reply or pads it; as a special token it would be removed from every text.
    words = ordinary(metadata, tokens, types, [index for index in ids.values() if index is not None])
    roles = {_ROLES[role]: tokens[index] for role, index in ids.items() if index is not None and index not in words}
    steps = _pieces(metadata, tokens, types, roles) if split is None else _merging(metadata, tokens, types, split)
    marks = around(metadata, tokens, split is None or split.begins)
    config = {**roles, "clean_up_tokenization_spaces": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {AROUND: marks} if any(marks) else {}
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": _added(metadata, tokens, types, roles),
        **steps, "post_processor": _with_marks(*marks, tokens),
    }  # fmt: skip
    files: dict[str, Any] = {"tokenizer.json": content, "tokenizer_config.json": config}
    if template := metadata.text("tokenizer.chat_template"):
        if len(template) > _LONGEST_TEMPLATE:
            raise ValueError(
                f"the chat template has {len(template):,} characters, but at most {_LONGEST_TEMPLATE:,} are allowed"
            )
        files["chat_template.jinja"] = template
    return files


def _added(
    metadata: Metadata, tokens: Sequence[str], types: Sequence[int], roles: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the special tokens as in tokenizer.json. They are searched for before a text is split."""
    marks = {token for token, kind in zip(tokens, types, strict=True) if kind != _NORMAL}
    swallow = marks >= _OF_PHI_3  # as in the publisher's files; llama.cpp looks for "phi-3" in the name
    not_stripped, role_tokens = {"<unk>", "<s>", "<|endoftext|>"}, {*roles.values()}
    return [
        {
            "id": index, "content": token, "single_word": False, "lstrip": False,
            "rstrip": swallow and token not in not_stripped, "normalized": False,
            "special": kind != _USER or token in role_tokens,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if token and (kind in (_CONTROL, _USER, _UNKNOWN) or token in role_tokens)
    ]  # fmt: skip


def _vocabulary(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Return the id of each token, by its spelling. Padding tokens are left out."""
    return {token: index for index, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}


def _with_marks(begin: Sequence[int], end: Sequence[int], tokens: Sequence[str]) -> dict[str, Any] | None:
    """Return the part of tokenizer.json that adds these ids before and after a text; None if there are no ids."""
    if not begin and not end:
        return None

    def processed(part: str, number: int) -> list[dict[str, Any]]:
        before, after = (
            [{"SpecialToken": {"id": tokens[index], "type_id": number}} for index in ids] for ids in (begin, end)
        )
        return [*before, {"Sequence": {"id": part, "type_id": number}}, *after]

    special = {
        tokens[index]: {"id": tokens[index], "ids": [index], "tokens": [tokens[index]]} for index in (*begin, *end)
    }
    first = processed("A", 0)
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *processed("B", 1)],
        "special_tokens": special,
    }


def _split(metadata: Metadata) -> Split:
    """Return how to split text before merging. Raises LocalspecError if the file does not name a supported way."""
    name = metadata.text("tokenizer.ggml.pre")
    if metadata.text("tokenizer.ggml.model") == "gemma4":
        return SPLITS["gemma4"]
    if name is None:
        raise LocalspecError(
            f"The {metadata.file} does not say how its tokenizer splits text (tokenizer.ggml.pre); choose a newer file."
        )
    if name not in SPLITS:
        raise LocalspecError(
            f"The tokenizer of the {metadata.file} splits text as {name[:40]!r}, which localspec does not support; "
            "choose another model."
        )
    return SPLITS[name]


def _merging(metadata: Metadata, tokens: Sequence[str], types: Sequence[int], split: Split) -> dict[str, Any]:
    """Return tokenizer.json's parts for BPE with merges of bytes, as in GPT-2, or of characters, as in Gemma 4."""
    interned = {token: token for token in tokens}  # each spelling only once in memory
    made_by: dict[tuple[str, str], str] = {}  # of equal pairs, the first counts
    for merge in metadata.texts("tokenizer.ggml.merges") or []:
        space = merge.find(" ", 1)  # the first token may begin with a space
        left, right = merge[:space], merge[space + 1 :]
        try:
            made_by[interned[left], interned[right]] = interned[left + right]
        except KeyError:
            problem = f"the tokenizer's merge {shown(merge)[:80]!r} does not join two of its tokens into a third one"
            raise ValueError(problem) from None
    vocabulary = _vocabulary(tokens, types)
    unused = {token: index for index, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == _UNUSED}
    if not unused.keys().isdisjoint(chain(made_by.values(), chain.from_iterable(made_by))):
        for pair, result in made_by.items():
            for token in (*pair, result):  # llama.cpp merges tokens into an unused one, too
                if token in unused:
                    vocabulary.setdefault(token, unused[token])
    words = {token for token, kind in zip(tokens, types, strict=True) if kind == _NORMAL and len(token) > 1}
    merged = words.intersection(made_by.values())
    if len(merged) < _MERGED * len(words):
        raise ValueError(
            f"tokenizer.ggml.merges yields only {len(merged)} of the {len(words)} tokens, so texts would be split into "
            "smaller parts"
        )
    if split.raw:
        return {
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "pre_tokenizer": _one_by_one([_isolating(expression) for expression in split.expressions]),
            "decoder": {"type": "Sequence", "decoders": _STEPS[:3]},
            "model": _bpe(vocabulary, [*made_by], byte_fallback=True),
        }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    *others, last = split.expressions
    steps = [_isolating(expression) for expression in (others if last == GPT2 else split.expressions)]
    return {
        "normalizer": {"type": "NFC"} if split.composed else None,
        "pre_tokenizer": _one_by_one([*steps, {**byte_level, "use_regex": last == GPT2}]),
        "decoder": {**byte_level, "use_regex": True},
        "model": _bpe(vocabulary, [*made_by], ignore_merges=split.whole_words),
    }


def _one_by_one(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*steps]}


def _isolating(expression: str) -> dict[str, Any]:
    """Return a pre-tokenizer, as in tokenizer.json, that makes each match of an expression a separate part."""
    if expression == DIGIT:
        return {"type": "Digits", "individual_digits": True}
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _pieces(
    metadata: Metadata, tokens: Sequence[str], types: Sequence[int], roles: Mapping[str, str]
) -> dict[str, Any]:
    """Return tokenizer.json's parts for SentencePiece's BPE, whose tokens have scores.

    Unknown characters become bytes.
    """
    scores = metadata.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ValueError(f"the tokenizer has {len(tokens)} tokens but {len(scores or [])} scores")
    if odd := next((score for score in scores if not abs(score) < math.inf), None):
        raise ValueError(f"tokenizer.ggml.scores contains {in_short(odd)}, which is not a finite number")
    vocabulary = _vocabulary(tokens, types)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix") is not False
    steps = [{"type": "Prepend", "prepend": "▁"}, replace] if prefix else [replace]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": _STEPS if prefix else _STEPS[:3]},
        "model": _bpe(
            vocabulary,
            _merges(metadata.file, tokens, types, scores),
            unk_token=roles.get("unk_token"),
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _merges(file: str, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece tokenizer, best score first: for each piece, the two parts that it is made
    of.

    SentencePiece always merges the two neighbours that form the piece with the best score; at equal scores, the first
    two. So the last merge that forms a piece joins the same two parts in any context, and no other pair is needed for
    the piece. Raises ValueError for pieces that are too long, and LocalspecError if two merged pieces have the same
    score, because the order of their merges then depends on the text.
    """
    normal = [index for index, kind in enumerate(types) if kind == _NORMAL and tokens[index]]
    if long := next((tokens[index] for index in normal if len(tokens[index]) > _LONGEST_PIECE), None):
        raise ValueError(
            f"a piece of the tokenizer has {len(long)} characters, but at most {_LONGEST_PIECE} are allowed"
        )
    costs = -np.array(scores, np.float64)[normal]
    order = np.argsort(costs, kind="stable")
    costs, pieces = costs[order], [tokens[normal[index]] for index in order.tolist()]
    encoded = [piece.encode() for piece in pieces]
    lengths, cuts = int32([*map(len, encoded)]), np.zeros(len(pieces), np.int32)
    if (ways := int(np.square(lengths, dtype=np.int64).sum())) > _MOST_WAYS:
        raise ValueError(f"the pieces of the tokenizer are too long: their squared lengths add up to {ways:,}")
    if compiled.library() is None:
        cost_of = dict(zip(encoded, costs.tolist(), strict=True))
        cuts[:] = [_cut(piece, cost_of) for piece in pieces]
    else:
        seed, arguments = secrets.randbits(64), (address(lengths), address(costs), len(pieces))
        check(library().ls_piece_cuts(b"".join(encoded), *arguments, seed, address(cuts)))
    merged = np.flatnonzero(cuts)
    same = merged[1:][costs[merged[1:]] == costs[merged[:-1]]]
    if len(same):  # the earlier of the two in a text is merged, so their order depends on it
        earlier = merged[np.searchsorted(merged, same[0]) - 1]
        raise LocalspecError(
            f"The tokenizer of the {file} gives the pieces {pieces[earlier][:40]!r} and {pieces[same[0]][:40]!r} the "
            "same score, so the order of merges depends on the text, which localspec does not support; choose "
            "another file."
        )
    halves = ((encoded[index], cuts[index]) for index in merged.tolist())
    return [(text[:cut].decode(), text[cut:].decode()) for text, cut in halves]


def _cut(piece: str, costs: Mapping[bytes, float]) -> int:
    """Return the byte offset between a piece's two parts; 0 if it has none. The result is that of `ls_piece_cuts`."""
    parts = [letter.encode() for letter in piece]
    while len(parts) > 2:
        ways = [costs.get(left + right, math.inf) for left, right in pairwise(parts)]
        if (best := min(ways)) == math.inf:
            return 0
        index = ways.index(best)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    return len(parts[0]) if len(parts) == 2 and costs.keys() >= {*parts} else 0


def _bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **settings: Any) -> dict[str, Any]:
    defaults = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
    }  # fmt: skip
    return {**defaults, **settings, "vocab": dict(vocabulary), "merges": merges}
