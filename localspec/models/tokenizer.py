"""Reads a model's tokenizer from its files: text <-> token ids, and which ids are special."""

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken, Encoding, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend

from localspec.errors import LocalspecError, cannot_read, first_line, out_of_memory
from localspec.models.encoding import Unwanted, patience, run_with_timeout
from localspec.models.tokenizer_trial import HASH, Trial, try_out
from localspec.outside_files import parse_json, read_bytes
from localspec.weights.checkpoint import AROUND, TOKENIZER_FILES

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a single text needs no threads, which complain after a fork
_handed_on: "list[Tokenizer]" = []  # at most one


class Tokenizer:
    """A tokenizer of the `tokenizers` library, with special tokens and a chat template from the model's files.

    It returns the same ids as transformers. `special_tokens` are the tokens with a name, such as eos_token;
    `chat_template` is None if the model has none.
    """

    def __init__(self, files: Mapping[str, str], path: Path, tried: bool = False) -> None:
        """Read `files`, texts by name, including config.json. `path` is their origin, for messages.

        A tokenizer that was not tried before (`tried`) is first tried in a child process, because it may crash. Raises
        LocalspecError for damaged files, and if tokenizer.json is missing.
        """
        self._files = {name: files[name] for name in TOKENIZER_FILES if name in files}
        if "tokenizer.json" not in files:
            raise LocalspecError(
                f"The model in {path} has no tokenizer.json, which localspec needs; "
                'transformers writes one: python -c "from transformers import AutoTokenizer; '
                f"AutoTokenizer.from_pretrained('{path}').save_pretrained('{path}')\"."
            )
        self._path = path
        self.trial = Trial() if tried else try_out(files, path)
        try:
            self.backend: Backend = Backend.from_str(files["tokenizer.json"])
            config = self._read("tokenizer_config.json")
            self.special_tokens, extra = self._special_tokens(config)
            if _splits_like_llama(files, config):
                _split_like_llama(self.backend, config)
            self._add(self._added_tokens(config, {*self.special_tokens.values(), *extra}), extra)
            self.chat_template = _default_template(files, config)
        except BaseException as error:  # the tokenizers library raises bare Exception on a damaged file, or panics
            raise _failed(path, error) from error
        self.backend.no_truncation()
        self.backend.no_padding()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the tokenizer in a directory. Raises the errors of the constructor."""
        names = (name for name in (*TOKENIZER_FILES, "config.json") if (path / name).is_file())
        try:
            return cls.decoded({name: read_bytes(path / name) for name in names}, path)
        except OSError as error:
            raise cannot_read(Path(error.filename or path), error) from error

    @classmethod
    def decoded(cls, files: Mapping[str, bytes], path: Path, share_with: Self | None = None) -> Self:
        """Read the tokenizer in `files`, contents by name. If `share_with` has the same files, share its vocabulary.

        Raises the errors of the constructor.
        """
        names = {*TOKENIZER_FILES, "config.json"} & files.keys()
        try:
            texts = {name: files[name].decode("utf-8") for name in names}
        except UnicodeDecodeError as error:
            raise _damaged(path, error) from error
        others: list[Any] = [share_with, _handed_on.pop() if _handed_on else None]
        copies = (other._with_template(texts, path) for other in others if other is not None)
        return next(filter(None, copies), None) or cls(texts, path)

    def hand_on(self) -> None:
        """Let the next tokenizer that is read from the same files share the vocabulary of this one."""
        _handed_on[:] = [self]

    def _with_template(self, files: Mapping[str, str], path: Path) -> Self | None:
        """Return a copy with the chat template in `files`; None if any other file differs, or for LlamaTokenizer."""
        differing = {name for name in TOKENIZER_FILES if files.get(name) != self._files.get(name)}
        if differing - {"chat_template.jinja"} or "LlamaTokenizer" in files.get("tokenizer_config.json", ""):
            return None  # Llama's splitting depends on config.json, too
        tokenizer = copy(self)
        tokenizer._files, tokenizer._path = {name: files[name] for name in TOKENIZER_FILES if name in files}, path
        tokenizer.trial = try_out(files, path)
        tokenizer.chat_template = _default_template(files, tokenizer._read("tokenizer_config.json"))
        return tokenizer

    # -- text and ids -------------------------------------------------------------------------------------------------

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with the tokenizer's marks around it if requested.

        Raises LocalspecError for a text on which the tokenizer fails or never ends, and Unwanted if the ids are no
        longer wanted (`stopping_unless`).
        """
        ids: list[int] = self.encoding(text, add_special_tokens).ids
        return ids

    def encoding(self, text: str, add_special_tokens: bool) -> Encoding:
        """Return the `ids` of a text, the range of characters of each in `offsets`, and a `special_tokens_mask`.

        The mask is 1 for ids that the tokenizer added around the text. Raises the errors of `encode`.
        """

        def encode() -> Encoding:  # as a batch: for a single text, the library would hold Python's interpreter
            return self.backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]

        seconds = patience(text)
        try:
            return run_with_timeout(encode, seconds)
        except TimeoutError:
            raise LocalspecError(
                f"The tokenizer in {self._path} has not read a text of {len(text)} characters in {seconds:.0f} "
                "seconds; shorten it, or choose another model."
            ) from None
        except Unwanted:
            raise
        except BaseException as error:
            raise _failed(self._path, error) from error

    def reading_as_text(self, marks: Collection[str], alias: str) -> Self:
        """Return a copy that reads the added tokens `marks` as ordinary text, and `alias` as a token."""
        tokenizer = copy(self)
        tokenizer.backend = Backend.from_str(self.backend.to_str())
        tokenizer.backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
        tokenizer.backend.add_tokens([AddedToken(alias, normalized=False)])
        tokenizer.backend.encode_special_tokens = True
        return tokenizer

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids, without the clean-up of spaces that transformers offers."""
        try:
            text: str = self.backend.decode(tokens, skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            raise _failed(self._path, error) from error
        return text

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token in the spelling of the vocabulary; None if the vocabulary lacks the token."""
        token_id: int | None = self.backend.token_to_id(token)
        return token_id

    def get_vocab(self) -> dict[str, int]:
        """Return all tokens with their ids."""
        vocabulary: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return vocabulary

    # -- special tokens -----------------------------------------------------------------------------------------------

    @property
    def eos_token_id(self) -> int | None:
        eos = self.special_tokens.get("eos_token")
        return None if eos is None else self.token_to_id(eos)

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """The ids that the GGUF file requires before and after every prompt, whatever the chat template writes."""
        stored = self._read("tokenizer_config.json").get(AROUND)
        pair = stored if isinstance(stored, list) and len(stored) == 2 else [[], []]
        ids = range(self.backend.get_vocab_size(with_added_tokens=True))
        sides = (side if isinstance(side, list) else [] for side in pair)
        before, after = ([token for token in side if type(token) is int and token in ids] for side in sides)
        return before, after

    @cached_property
    def added_tokens(self) -> dict[int, AddedToken]:
        """The tokens that are looked for in a text before it is split, by id; each has `content` and `special`."""
        return dict(self.backend.get_added_tokens_decoder())

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of tokens without text: marks of roles, of the end of a text, and of padding."""
        named = (self.token_to_id(token) for token in self.special_tokens.values())
        special = (token for token, added in self.added_tokens.items() if added.special)
        return frozenset(token for token in (*named, *special) if token is not None)

    # -- files --------------------------------------------------------------------------------------------------------

    @cached_property
    def hash(self) -> str:
        """A hash that is the same only for tokenizers that return the same ids for every text."""
        return self.trial.hash(lambda: hashlib.sha256(self.backend.to_str().encode()).hexdigest()[:HASH])

    def save(self, path: Path) -> None:
        """Write the files from which the tokenizer was read."""
        for name, text in self._files.items():
            (path / name).write_text(text, "utf-8")

    def _read(self, name: str) -> dict[str, Any]:
        content = parse_json(self._files.get(name, "{}"))
        if not isinstance(content, dict):
            raise TypeError(f"{name} is not an object")
        return content

    def _special_tokens(self, config: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
        """Return special tokens by name, and special tokens without a name."""
        if "added_tokens_decoder" not in config:  # older models have them in a separate file
            config = {**config, **self._read("special_tokens_map.json")}
        named = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
        extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
        if isinstance(extra, dict):
            named.update({name: _content(value) for name, value in extra.items()})
            extra = []
        contents = [content for value in extra if (content := _content(value)) is not None]
        return {name: content for name, content in named.items() if content is not None}, contents

    def _added_tokens(self, config: Mapping[str, Any], special: set[str]) -> list[AddedToken]:
        """Return tokens in the config that tokenizer.json lacks or describes differently."""
        if "added_tokens_decoder" in config:
            entries = sorted(config["added_tokens_decoder"].items(), key=lambda entry: int(entry[0]))
            return [AddedToken(**{key: entry[key] for key in _FLAGS if key in entry}) for _, entry in entries]
        known = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        added = sorted(self._read("added_tokens.json").items(), key=lambda entry: entry[1])
        return [
            AddedToken(token, normalized=token not in special, special=token in special)
            for token, _ in added
            if token not in known
        ]

    def _add(self, tokens: list[AddedToken], extra: Sequence[str]) -> None:
        known = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        known |= {token.content for token in tokens}
        missing = dict.fromkeys(token for token in (*self.special_tokens.values(), *extra) if token not in known)
        self.backend.add_tokens([*tokens, *(AddedToken(token, special=True) for token in missing)])


_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


def _failed(path: Path, error: BaseException) -> BaseException:
    """Return the error to raise for an error of the `tokenizers` library: MemoryError, LocalspecError, or that error.

    The library's panics are not an Exception, so they are recognized by name. Ctrl+C is raised unchanged.
    """
    if out_of_memory(error):  # another copy of the file would not help
        return MemoryError()
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return _damaged(path, error)
    return error


def _damaged(path: Path, error: BaseException) -> LocalspecError:
    return LocalspecError(f"The tokenizer in {path} cannot be read ({first_line(error)[:200]}); fetch the model again.")


def _content(value: object) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _default_template(files: Mapping[str, str], config: Mapping[str, Any]) -> str | None:
    """Return the chat template: the template file, or else the config's template, or its default if it has several."""
    template = files.get("chat_template.jinja", config.get("chat_template"))
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    if isinstance(template, dict):
        template = template["default"]
    if template is not None and not isinstance(template, str):
        raise TypeError("the chat_template is not text")
    return template


def _splits_like_llama(files: Mapping[str, str], config: Mapping[str, Any]) -> bool:
    """Return whether the config names the class LlamaTokenizer, for which transformers changes how text is split."""
    model_type = parse_json(files.get("config.json", "{}")).get("model_type")
    is_llama = str(config.get("tokenizer_class", "")).removesuffix("Fast") == "LlamaTokenizer"
    return is_llama and model_type == "llama" and '"ByteLevel"' not in files["tokenizer.json"]


def _split_like_llama(backend: Backend, config: Mapping[str, Any]) -> None:
    """Mark beginnings of words by ▁, as LlamaTokenizer does: of a text's first word unless `add_prefix_space` is false,
    and with `legacy` also of words after a special token."""
    prefix = config.get("add_prefix_space") is not False
    scheme = "never" if not prefix else "always" if config.get("legacy", False) else "first"
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
