"""Find the tokens with a role in a GGUF file, such as begin of text or end of reply, as llama.cpp does."""

from collections.abc import Collection, Sequence

from localspec.errors import LocalspecError
from localspec.gguf.metadata import Metadata, in_short, shown
from localspec.text import one_line

# Types of tokens that are marks: unknown, control, user-defined. Each is a list, to compare with a slice of the types:
# the slice is empty for a token that has no type.
_MARKS = ([2], [3], [4])
_NO_TOKEN = (-1, 2**32 - 1)  # ids by which converters say "no token"
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
    """Return the id of the token with a role, in a vocabulary of `count` tokens; None if there is no such token.

    Raises ValueError for an end-of-text id outside the vocabulary. Its message is a clause without a final period.
    """
    key = f"tokenizer.ggml.{role}_token_id"
    if key not in metadata.values:
        default = _OF_PIECES.get(role) if metadata.values.get("tokenizer.ggml.model") == "llama" else None
        return default if default is not None and default < count else None
    index = metadata.values[key]
    if _is_token(index, count):
        return int(index)  # type: ignore[arg-type]
    if role == "eos":
        raise ValueError(f"{key} = {in_short(index)} is none of {count} tokens")
    return None


def _is_token(index: object, count: int) -> bool:
    return type(index) is int and 0 <= index < count


def impossible_roles(metadata: Metadata, count: int) -> list[str]:
    """Return a sentence for each token id that is ignored, because it is outside the vocabulary."""
    outside = {
        key: index
        for key, index in metadata.values.items()
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and not _is_token(index, count)
    }
    return [
        f"{one_line(shown(key))} = {in_short(index)} is left out, because there are {count} tokens."
        for key, index in outside.items()
        if not (type(index) is int and index in _NO_TOKEN)
    ]


def around(metadata: Metadata, tokens: Sequence[str], begins: bool) -> tuple[list[int], list[int]]:
    """Return the tokens to add before a text, and those to add after it.

    `begins` is the default for adding a begin-of-text token, for files without this setting. Raises LocalspecError if
    the file wants such a token and does not name it.
    """
    added: list[list[int]] = []
    for role, default in (("bos", begins), ("eos", False)):
        key = f"tokenizer.ggml.add_{role}_token"
        wanted, index = metadata.flag(key), token_of(metadata, role, len(tokens))
        if wanted and index is None:
            raise LocalspecError(
                f"The {metadata.file} sets {key} = true and names no such token; fetch it again, or choose another."
            )
        added.append([index] if index is not None and (default if wanted is None else wanted) else [])
    return added[0], added[1]


def ends(metadata: Metadata) -> list[int]:
    """Return the tokens that end a reply: by an id in the metadata, or by the spelling of a known mark.

    A token that ordinary text is tokenized into is not a mark, even if it is spelled like one. llama.cpp would take it
    for a mark.
    """
    tokens = metadata.texts("tokenizer.ggml.tokens") or []
    types = metadata.numbers("tokenizer.ggml.token_type") or []
    count = len(tokens) or 2**32 - 1  # any id is possible in a file without a list of tokens
    found = [token_of(metadata, role, count) for role in ("eos", "eot", "eom", *_FILL_ENDS)]
    known = set(_ENDS)
    for role, spellings in _FILL_ENDS.items():
        if token_of(metadata, role, count) is None:
            known |= {*spellings}
    spelled = [index for index, token in enumerate(tokens) if token in known]
    words = ordinary(metadata, tokens, types, spelled)
    found += [index for index in spelled if index not in words]
    ids = list(dict.fromkeys(index for index in found if index is not None))
    spelling = {index: tokens[index] for index in ids if index < len(tokens)}
    spellings_found = {spelling.get(index) for index in ids}
    within_replies = {mark for mark, others in _NO_END if others <= spellings_found}
    return [index for index in ids if spelling.get(index) not in within_replies]


def ends_at_words(metadata: Metadata) -> list[str]:
    """Return a sentence for each token that ends replies because the file names its id, though text contains it."""
    tokens = metadata.texts("tokenizer.ggml.tokens") or []
    types = metadata.numbers("tokenizer.ggml.token_type") or []
    named = {f"tokenizer.ggml.{role}_token_id": token_of(metadata, role, len(tokens)) for role in ("eos", "eot", "eom")}
    words = ordinary(metadata, tokens, types, {index for index in named.values() if index is not None})
    return [
        f"Replies end at {one_line(shown(tokens[index]))[:40]!r}, an ordinary word, because {key} = {index}."
        for key, index in named.items()
        if index is not None and index in words and key in metadata.values
    ]


def ordinary(metadata: Metadata, tokens: Sequence[str], types: Sequence[int], ids: Collection[int]) -> set[int]:
    """Return the ids, among `ids`, of tokens that ordinary text is tokenized into.

    Such a token is not typed as a mark, and the tokenizer can merge it from shorter tokens, or it is one character.
    """
    normal = {tokens[index]: index for index in ids if types[index : index + 1] not in _MARKS}
    if not normal:
        return set()
    if metadata.text("tokenizer.ggml.model") == "gpt2":
        return {index for token, index in normal.items() if len(token) == 1 or token in metadata.merged}
    if "tokenizer.ggml.token_type" not in metadata.values:
        # Without types, "<s>" would be taken for a word of the pieces "<" and "s>".
        return set()
    pieces = {token for index, token in enumerate(tokens) if types[index : index + 1] not in _MARKS}
    return {
        index
        for token, index in normal.items()
        if len(token) == 1 or any(token[:at] in pieces and token[at:] in pieces for at in range(1, len(token)))
    }
