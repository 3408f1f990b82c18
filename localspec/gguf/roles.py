"""Which tokens of a GGUF file have a role: beginning, end of a reply, padding; as llama.cpp finds them."""

from collections.abc import Collection, Sequence

from localspec.errors import LocalspecError
from localspec.gguf.metadata import Metadata, in_short, shown
from localspec.text import one_line

_MARKS = ([2], [3], [4])  # types of tokens: unknown, control, user-defined
_NO_TOKEN = (-1, 2**32 - 1)  # how converters write that there is none
_OF_PIECES = {"bos": 1, "eos": 2, "unknown": 0}  # where a vocabulary of pieces does not say
# The spellings are those of llama.cpp's src/llama-vocab.cpp, where it builds `special_eog_ids`.
_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
}  # fmt: skip
_FILL_ENDS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # of fill-in-the-middle, where no id says otherwise
# Marks with which another one is no end: it stands within a reply, or is an ordinary token.
_NO_END = (
    ("<|end|>", {"<|return|>", "<|call|>"}), ("<|end|>", {"<|return|>", "<|calls|>"}),
    ("<|end|>", {"<|flush|>", "<|call|>"}), ("<|end|>", {"<|flush|>", "<|calls|>"}),
    ("</s>", {"<|tool_response>"}), ("</s>", {"<|plamo:eos|>"}),
)  # fmt: skip


def token_of(metadata: Metadata, role: str, count: int) -> int | None:
    """Return the id of the token with a role, of so many; None where there is none.

    Raises ValueError, with a clause, for an end that is not possible.
    """
    key = f"tokenizer.ggml.{role}_token_id"
    if key not in metadata.values:
        usual = _OF_PIECES.get(role) if metadata.values.get("tokenizer.ggml.model") == "llama" else None
        return usual if usual is not None and usual < count else None
    index = metadata.values[key]
    if _is_token(index, count):
        return int(index)  # type: ignore[arg-type]
    if role == "eos":
        raise ValueError(f"{key} = {in_short(index)} is none of {count} tokens")
    return None


def _is_token(index: object, count: int) -> bool:
    return type(index) is int and 0 <= index < count


def impossible_roles(metadata: Metadata, count: int) -> list[str]:
    """Return a sentence for each token id that is left out, because there is no such token."""
    several = {
        key: index
        for key, index in metadata.values.items()
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and not _is_token(index, count)
    }
    return [
        f"{one_line(shown(key))} = {in_short(index)} is left out, because there are {count} tokens."
        for key, index in several.items()
        if not (type(index) is int and index in _NO_TOKEN)
    ]


def around(metadata: Metadata, tokens: Sequence[str], begins: bool) -> tuple[list[int], list[int]]:
    """Return the tokens that are to stand before a text and after it.

    `begins` says whether tokenizers of this kind set a beginning where the file does not say. Raises LocalspecError
    where the file wants a token and does not name one.
    """
    found: list[list[int]] = []
    for role, usual in (("bos", begins), ("eos", False)):
        key = f"tokenizer.ggml.add_{role}_token"
        wanted, index = metadata.flag(key), token_of(metadata, role, len(tokens))
        if wanted and index is None:
            raise LocalspecError(
                f"The {metadata.file} sets {key} = true and names no such token; fetch it again, or choose another."
            )
        found.append([index] if index is not None and (usual if wanted is None else wanted) else [])
    return found[0], found[1]


def ends(metadata: Metadata) -> list[int]:
    """Return the tokens that end a reply: those with that role, and known marks by their spelling.

    An ordinary token that is merged from others is no mark, whatever it spells; llama.cpp makes one of it.
    """
    tokens = list(metadata.texts("tokenizer.ggml.tokens") or [])
    types = metadata.numbers("tokenizer.ggml.token_type") or []
    count = len(tokens) or 2**32 - 1  # without a list of tokens, nothing limits their ids
    found = [token_of(metadata, role, count) for role in ("eos", "eot", "eom", *_FILL_ENDS)]
    known = set(_ENDS)
    for role, spellings in _FILL_ENDS.items():
        if token_of(metadata, role, count) is None:
            known |= {*spellings}
    spelled = [index for index, token in enumerate(tokens) if token in known]
    words = ordinary(metadata, tokens, types, spelled)
    found += [index for index in spelled if index not in words]
    ids = list(dict.fromkeys(index for index in found if index is not None))
    spelling = dict(enumerate(tokens))
    texts = {spelling.get(index) for index in ids}
    inside = {token for token, others in _NO_END if others <= texts}
    return [index for index in ids if spelling.get(index) not in inside]


def ordinary(metadata: Metadata, tokens: Sequence[str], types: Sequence[int], ids: Collection[int]) -> set[int]:
    """Return those of the tokens that are made of others, as words are, and whose type is not that of a mark."""
    normal = {tokens[index]: index for index in ids if types[index : index + 1] not in _MARKS}
    if not normal:
        return set()
    if metadata.text("tokenizer.ggml.model") == "gpt2":
        made = (merge.replace(" ", "") for merge in metadata.texts("tokenizer.ggml.merges") or [])
        return {normal[token] for token in made if token in normal} | {normal[one] for one in normal if len(one) == 1}
    if "tokenizer.ggml.token_type" not in metadata.values:  # pieces such as "<" and "s>" would make a word of "<s>"
        return set()
    pieces = {token for index, token in enumerate(tokens) if types[index : index + 1] not in _MARKS}
    return {
        index
        for token, index in normal.items()
        if len(token) == 1 or any(token[:at] in pieces and token[at:] in pieces for at in range(1, len(token)))
    }
