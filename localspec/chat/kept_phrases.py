"""The phrases that are kept, as a person reads them: what was said after what, how often, where, and of what use."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from localspec.errors import LocalspecError
from localspec.models.registry import TargetCard, reference
from localspec.store.history import History
from localspec.store.phrases import Phrase, PoolInfo, unpack_key, unpack_tokens
from localspec.store.store import Store
from localspec.text import safe

Decode = Callable[[Sequence[int]], str | None]


class KeptPhrase(NamedTuple):
    """One phrase of a pool; `text` is None where the model's tokenizer is not here."""

    pool: PoolInfo
    phrase: Phrase
    text: str | None
    line: str  # context → what followed, safe

    @property
    def name(self) -> tuple[int, bytes, bytes]:
        """What the store knows it by, within its pool."""
        return self.phrase[:3]


def pools_of(store: Store, card: TargetCard) -> list[PoolInfo]:
    """The pools of a model: by its name, and those of its directory by whatever name. Raises StoreTrouble."""
    name, place = reference(card), str(card.path)
    return [pool for pool in store.phrases.pools() if pool.model == name or pool.path == place]


def kept_phrases(store: Store, pool: PoolInfo, decode: Decode, words: str = "") -> Iterator[KeptPhrase]:
    """Those whose line holds all the words, said or used most recently first. Raises StoreTrouble."""
    wanted = words.casefold().split()
    for phrase in store.phrases.export(pool.pool):
        before, after = (*unpack_tokens(phrase.before), *unpack_key(phrase.key)), unpack_tokens(phrase.after)
        text = decode((*before, *after))
        line = _line(before, after, text, decode)
        if all(word in line.casefold() for word in wanted):
            yield KeptPhrase(pool, phrase, text, line)


def decoder(directory: str | None) -> Decode:
    """Token ids -> text by the tokenizer in the model's directory; -> None where there is none that can be read."""
    if directory is None or not os.path.isfile(os.path.join(directory, "tokenizer.json")):  # nor a name that none has
        return lambda tokens: None
    from localspec.models.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.open(Path(directory))
    except LocalspecError:
        return lambda tokens: None

    def decode(tokens: Sequence[int]) -> str | None:
        with suppress(LocalspecError):
            return tokenizer.decode(tokens)
        return None

    return decode


def _line(context: Sequence[int], after: Sequence[int], text: str | None, decode: Decode) -> str:
    start = decode(context)
    if text is None or start is None:
        return f"{' '.join(map(str, context))} → {' '.join(map(str, after))}"
    # Decoded alone, what followed would lose its first space with some tokenizers.
    rest = text[len(start) :] if text.startswith(start) else decode(after) or ""
    return safe(f"{start} → {rest}").replace("\n", "⏎").replace("\t", "⇥")


class Stories:
    """What is told of phrases; each conversation is looked up once."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._titles: dict[int, str] = {}

    def of(self, phrase: Phrase) -> str:
        """How often it was said, last where, and in how many replies it was guessed right; or that nobody said it."""
        said = "said once" if phrase.uses == 1 else f"said {phrase.uses:,} times"
        if not phrase.uses:
            said = "never said, learned from a refused draft"
        where = "" if phrase.conversation is None else f", last in {self.title(phrase.conversation)}"
        replies = "1 reply" if phrase.served == 1 else f"{phrase.served:,} replies"
        served = f", guessed right in {replies}" if phrase.served else ""
        return f"{said}{where}{served}"

    def title(self, conversation: int) -> str:
        """How a conversation is named."""
        if conversation not in self._titles:
            try:
                info = self._history.info(conversation)
            except LocalspecError:
                info = None
            self._titles[conversation] = f"“{info.title}”" if info else f"conversation {conversation}, which is gone"
        return self._titles[conversation]
