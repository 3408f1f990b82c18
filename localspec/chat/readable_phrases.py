"""Saved phrases in readable form: their text and use. A phrase is a context, and the tokens that followed it."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from localspec.errors import LocalspecError, NotHere
from localspec.models.registry import TargetCard, reference, resolve
from localspec.store.history import History
from localspec.store.phrases import Phrase, PoolInfo, unpack_key, unpack_tokens
from localspec.store.store import Store
from localspec.text import safe

if TYPE_CHECKING:
    from localspec.models.tokenizer import Tokenizer

Decode = Callable[[Sequence[int]], str | None]


class ReadablePhrase(NamedTuple):
    """One phrase of a pool (a model's phrases), decoded. `text` is None if the model's tokenizer is not here."""

    pool: PoolInfo
    phrase: Phrase
    text: str | None
    line: str  # context → continuation, safe

    @property
    def name(self) -> tuple[int, bytes, bytes]:
        """The key of the phrase in the store, within its pool."""
        return self.phrase[:3]


def pools_of(store: Store, card: TargetCard) -> list[PoolInfo]:
    """Return the phrase pools of a model: those saved with its name, and those saved with its directory.

    Raises StoreTrouble.
    """
    name, path = reference(card), str(card.path)
    return [pool for pool in store.phrases.pools() if pool.model == name or pool.path == path]


def readable_phrases(
    pool: PoolInfo, phrases: Iterable[Phrase], decode: Decode, words: str = ""
) -> Iterator[ReadablePhrase]:
    """Yield each of the pool's `phrases` whose displayed line contains all of `words`."""
    terms = words.casefold().split()
    for phrase in phrases:
        before, after = (*unpack_tokens(phrase.before), *unpack_key(phrase.key)), unpack_tokens(phrase.after)
        text = decode((*before, *after))
        line = _line(before, after, text, decode)
        if all(word in line.casefold() for word in terms):
            yield ReadablePhrase(pool, phrase, text, line)


def reader(pool: PoolInfo) -> tuple[Decode, str]:
    """Return a function that decodes a pool's token ids, and a notice if no tokenizer is here (else an empty text)."""
    try:
        tokenizer = _tokenizer(pool.path) or _tokenizer_by_name(pool)
    except NotHere:
        tokenizer = None
    except LocalspecError as error:
        return _ids_only, f"Token ids are shown: {error}"
    if tokenizer is None:
        return _ids_only, f"Token ids are shown, because the tokenizer of {pool.model} is no longer here."
    return _decode_by(tokenizer), ""


def decoder(path: str | None) -> Decode:
    """Return a function that decodes token ids of the model at `path`, or returns None if no tokenizer is there."""
    with suppress(LocalspecError):
        if tokenizer := _tokenizer(path):
            return _decode_by(tokenizer)
    return _ids_only


def _ids_only(tokens: Sequence[int]) -> None:
    return None


def _tokenizer(path: str | None) -> "Tokenizer | None":
    """Return the tokenizer of the model at `path`; None without a model. Raises LocalspecError."""
    if path is None or not (os.path.isfile(path) or os.path.isfile(os.path.join(path, "tokenizer.json"))):
        return None
    from localspec.models.chat_tokenizer import tokenizer_of

    return tokenizer_of(Path(path))


def _tokenizer_by_name(pool: PoolInfo) -> "Tokenizer | None":
    """Return the tokenizer of the model with the pool's name; None if the pool's ids are of another tokenizer.

    Use this if the model is no longer at the pool's path. Raises LocalspecError.
    """
    tokenizer = _tokenizer(str(resolve(pool.model).path))
    return tokenizer if tokenizer and tokenizer.hash == pool.tokenizer.split("-")[0] else None


def _decode_by(tokenizer: "Tokenizer") -> Decode:
    def decode(tokens: Sequence[int]) -> str | None:
        with suppress(LocalspecError):
            return tokenizer.decode(tokens)
        return None

    return decode


def _line(context: Sequence[int], after: Sequence[int], text: str | None, decode: Decode) -> str:
    start = decode(context)
    if text is None or start is None:
        return f"{' '.join(map(str, context))} → {' '.join(map(str, after))}"
    # Decoded by itself, the continuation would lose its first space with some tokenizers.
    continuation = text[len(start) :] if text.startswith(start) else decode(after) or ""
    return safe(f"{start} → {continuation}").replace("\n", "⏎").replace("\t", "⇥")


class Stories:
    """A formatter that says in words how phrases were used. It looks up the title of each conversation only once."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._titles: dict[int, str] = {}

    def of(self, phrase: Phrase) -> str:
        """Return how often a phrase was used, in which conversation last, and in how many replies it was accepted."""
        uses = "used once" if phrase.uses == 1 else f"used {phrase.uses:,} times"
        if not phrase.uses:
            uses = "never used, learned from a refused draft"
        if phrase.conversation is not None:
            uses = f"{uses}, last in {self.title(phrase.conversation)}"
        replies = "1 reply" if phrase.served == 1 else f"{phrase.served:,} replies"
        return f"{uses}, correct in {replies}" if phrase.served else uses

    def title(self, conversation: int) -> str:
        """Return the title of a conversation."""
        if conversation not in self._titles:
            try:
                info = self._history.info(conversation)
            except LocalspecError:
                info = None
            self._titles[conversation] = (
                f"“{info.title}”" if info else f"conversation {conversation}, which was deleted"
            )
        return self._titles[conversation]
