"""A model that is a table with known probabilities: all that decoding needs of a model, in forty lines of Python."""

from collections.abc import Sequence

import numpy as np

from localspec.decoding.forward import ForwardOutput
from localspec.decoding.logits import NumpyHidden, NumpyLogits
from localspec.decoding.tree import DraftTree


class TableCache:
    """The tokens that were read, in place of keys and values: those of the last forward lie after the committed ones."""

    def __init__(self, slots: int) -> None:
        self.slots, self.length = [0] * slots, 0

    @property
    def capacity(self) -> int:
        return len(self.slots)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.slots)

    def reserve(self, slots: int, spare: bool = True) -> None:
        self.slots += [0] * (slots - self.capacity)

    def keep(self, path: Sequence[int]) -> None:
        kept = [self.slots[self.length + row] for row in path]
        self.slots[self.length : self.length + len(kept)] = kept
        self.length += len(kept)

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        self.length = length

    def assume(self, length: int) -> None:
        self.length = length


class TableModel:
    """A model whose next token depends on the last two: logits [vocabulary, vocabulary, vocabulary].

    Its states are those two tokens, [rows, 2].
    """

    context, row_multiple, branches, nbytes = 4096, 1, True, 0
    device, precision, file = "cpu", "fp32", None
    stop_tokens = special_tokens = frozenset[int]()

    def __init__(self, vocab_size: int, seed: int, spread: float = 1.0) -> None:
        self.vocab_size = vocab_size
        self.logits = np.random.default_rng(seed).normal(0, spread, (vocab_size,) * 3).astype(np.float32)
        self.rows: list[int] = []  # of each forward

    def cache(self, slots: int) -> TableCache:
        return TableCache(slots)

    def forward(self, tree: DraftTree, cache: TableCache, *, last: bool = False) -> ForwardOutput:
        assert cache.length + tree.size <= cache.capacity, "after the end of the cache"
        self.rows.append(tree.size)
        cache.slots[cache.length : cache.length + tree.size] = tree.tokens
        before = [
            tree.tokens[parent] if parent >= 0 else cache.slots[cache.length - 1] if cache.length else 0
            for parent in tree.parents
        ]
        states = np.array([before, tree.tokens]).T
        logits = NumpyLogits(self.logits[tuple(states.T)])
        return ForwardOutput(logits.take([tree.size - 1]) if last else logits, NumpyHidden(states.astype(np.float32)))

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        return tree

    def encode(self, messages: Sequence[dict[str, str]], think: bool | None = None) -> list[int]:
        return [ord(letter) % self.vocab_size for message in messages for letter in message["content"]]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(97 + token % 26) for token in tokens)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return the greedy reply, read from the table."""
        text = [0, *prompt]
        for _ in range(count):
            text.append(int(self.logits[text[-2], text[-1]].argmax()))
        return text[1 + len(prompt) :]

    def joint(self, prompt: Sequence[int], temperature: float, top_k: int = 0) -> np.ndarray:
        """Return the chance of each three tokens after a prompt, read off the table: [vocab_size] * 3."""
        chances = np.exp(self.logits.astype(np.float64) / temperature)
        if top_k:
            chances[chances < np.sort(chances, -1)[..., -top_k, None]] = 0
        chances /= chances.sum(-1, keepdims=True)
        before, last = prompt[-2], prompt[-1]
        joint: np.ndarray = chances[before, last][:, None, None] * chances[last][:, :, None] * chances
        return joint
