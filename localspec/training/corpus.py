"""Makes lists of token ids from texts, and batches from these lists, in an order that depends only on a seed.

A row is the token ids of one text. Rows of similar length are batched together. Texts are never joined in one row, so
that a drafter sees each text from its beginning, as it does when it drafts.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from localspec.errors import LocalspecError, UsageMistake
from localspec.nn.target import Target
from localspec.training.examples import Example

HELD_OUT, LEAST_HELD_OUT = 0.02, 16  # of the examples, and at least this many: never trained on
MOST_HELD_OUT = 0.25  # if there are few examples
MEASURED = 16384  # tokens of held-out text for the measurement
BLOCK = 1024  # examples that are shuffled into batches together
KEPT = 2**18  # tokens of rows that stay in memory, 12 MB; those of further examples are made again when they are needed
SHORTEST = 8  # tokens of a row; fewer leave nothing to predict


@dataclass(frozen=True)
class Row:
    """The token ids of a text, and a mask of the tokens that count in the loss. These are replies with their end marks,
    or all tokens of a plain text."""

    tokens: Sequence[int]
    loss_mask: Sequence[bool]

    @property
    def worth(self) -> int:
        """The number of tokens of this row that a drafter can learn to predict.

        The first two do not count: a drafter needs the target's hidden state at a token, and the token after it.
        """
        return sum(self.loss_mask[2:])


@dataclass
class Cursor:
    """A position in the training data: the pass over the data, the block of examples, and the batch in the block."""

    epoch: int = 0
    block: int = 0
    batch: int = 0


class Corpus:
    """The examples for training and the held-out examples. Raises UsageMistake if there is too little text.

    Rows have at most `length` tokens, and a batch at most `batch` tokens including padding. Training uses only examples
    for which `usable` returns true.
    """

    def __init__(self, target: Target, examples: Sequence[Example], length: int, batch: int, seed: int) -> None:
        self._target, self.length, self._batch, self._seed = target, length, batch, seed
        self.usable: Callable[[Row], bool] = lambda row: True
        self._cache: dict[tuple[bytes, int], list[Row]] = {}  # by digest and length
        self._cached_tokens = 0
        self.refused: set[bytes] = set()  # digests of examples that the model's template or tokenizer refuses
        # By digest, so that no text is on both sides.
        by_digest = {example.digest: example for example in examples}
        digests = sorted(by_digest)
        limit = int(HELD_OUT * 2**32).to_bytes(4, "big")
        least = max(1, min(LEAST_HELD_OUT, int(MOST_HELD_OUT * len(digests))))
        apart = {digest for digest in digests if digest < limit} | {*digests[:least]}
        held_out = [by_digest[digest] for digest in digests if digest in apart]
        self.held_out = self._first_rows(held_out, MEASURED)
        self.examples = [example for example in examples if example.digest not in apart]
        if not self.held_out or not self._first_rows(self.examples[:BLOCK], 1):
            raise self._too_little(held_out, len(examples))

    @property
    def blocks(self) -> int:
        """The number of blocks in one pass over the text; a block is `BLOCK` examples that are shuffled together."""
        return -(-len(self.examples) // BLOCK)

    def batches(self, start: Cursor) -> Iterator[tuple[list[Row], Cursor, float]]:
        """Yield batches endlessly from `start` on: the rows of a batch, the position after it, and the passes done."""
        epoch, number, skip = start.epoch, start.block, start.batch
        while True:
            block = self._block(epoch, number)
            for index in range(skip, len(block)):
                done = epoch + (number + (index + 1) / len(block)) / self.blocks
                following = Cursor(epoch, number, index + 1)
                if index + 1 == len(block):
                    following = Cursor(epoch, number + 1) if number + 1 < self.blocks else Cursor(epoch + 1)
                yield block[index], following, done
            number, skip = number + 1, 0
            if number == self.blocks:
                epoch, number = epoch + 1, 0

    def one_pass(self) -> Iterator[list[Row]]:
        """Yield the batches of the first pass."""
        for rows, following, _ in self.batches(Cursor()):
            yield rows
            if following.epoch:
                return

    def rows(self) -> Iterator[Row]:
        """Yield all rows for training and all held-out rows, in the order of the first pass."""
        yield from self.held_out
        for rows in self.one_pass():
            yield from rows

    def _block(self, epoch: int, number: int) -> list[list[Row]]:
        """Return the batches of a block of examples in pass `epoch`, each of at most `batch` tokens with padding."""
        order = list(range(len(self.examples)))
        random.Random(f"{self._seed} {epoch}").shuffle(order)  # noqa: S311
        chosen = order[number * BLOCK : (number + 1) * BLOCK]
        rows = [row for index in chosen for row in self._rows(self.examples[index])]
        rows.sort(key=lambda row: len(row.tokens))
        batches: list[list[Row]] = [[]]
        for row in rows:  # their length grows, so the last one is the longest
            if batches[-1] and (len(batches[-1]) + 1) * len(row.tokens) > self._batch:
                batches.append([])
            batches[-1].append(row)
        random.Random(f"{self._seed} {epoch} {number}").shuffle(batches)  # noqa: S311
        return [batch for batch in batches if batch]

    def frequencies(self, most: int = 20_000) -> torch.Tensor:
        """Return how often each token is a label, [vocab_size], counted in at most `most` of the examples."""
        frequencies = torch.zeros(self._target.transformer.config.vocab_size, dtype=torch.long)
        for example in self.examples[:: -(-len(self.examples) // most)]:
            for row in self._rows(example):
                counted = [token for token, counts in zip(row.tokens, row.loss_mask, strict=True) if counts]
                frequencies += torch.bincount(torch.tensor(counted), minlength=len(frequencies))
        return frequencies

    def _too_little(self, held_out: Sequence[Example], count: int) -> UsageMistake:
        amount = f"{count} {'example' if count == 1 else 'examples'}"
        length, self.length = self.length, self._target.context
        if self._first_rows(held_out, 1) and self._first_rows(self.examples[:BLOCK], 1):
            return UsageMistake(
                f"If {amount} of text are cut to {length} tokens, nothing is left to learn; give a larger --length."
            )
        refused = ", and the model's template or tokenizer refuses some of it" if self.refused else ""
        return UsageMistake(
            f"There is too little text ({amount}, part of which is held out{refused}); give several texts of more "
            f"than {SHORTEST} tokens each."
        )

    def _first_rows(self, examples: Sequence[Example], tokens: int) -> list[Row]:
        rows: list[Row] = []
        for example in examples:
            rows += self._rows(example)
            if sum(len(row.tokens) for row in rows) >= tokens:
                break
        return rows

    def _rows(self, example: Example) -> list[Row]:
        all_rows = self._cache.get((example.digest, self.length))
        if all_rows is None:
            try:
                all_rows = self._chat(example) if example.messages else self._text(example.text)
            except LocalspecError:
                self.refused.add(example.digest)
                all_rows = []
            self._keep(example, all_rows)
        rows = [row for row in all_rows if len(row.tokens) >= SHORTEST and row.worth and self.usable(row)]
        vocabulary = self._target.transformer.config.vocab_size
        if any(max(row.tokens) >= vocabulary for row in rows):
            raise LocalspecError(
                f"The model's tokenizer gives ids beyond its vocab_size of {vocabulary}; fetch the model again."
            )
        return rows

    def _keep(self, example: Example, rows: list[Row]) -> None:
        """Keep the rows of an example in memory while there is room, because making them again takes milliseconds."""
        tokens = sum(len(row.tokens) for row in rows)
        if self._cached_tokens + tokens <= KEPT:
            self._cache[example.digest, self.length] = rows
            self._cached_tokens += tokens

    def _text(self, text: str) -> list[Row]:
        tokens = self._target.chat.marks.encode(self._target.chat.marks.set_apart(text), True)
        pieces = [tokens[start : start + self.length] for start in range(0, len(tokens), self.length)]
        return [Row(piece, [True] * len(piece)) for piece in pieces]

    def _chat(self, example: Example) -> list[Row]:
        """Return a conversation as one row. If the template renders a reply differently once other messages follow it,
        return one row per reply."""
        messages = list(example.messages)
        whole, spans = self._target.chat.render_apart(messages, waits=False), []
        for index in (i for i, message in enumerate(messages) if i and message["role"] == "assistant"):
            prompt = self._target.chat.render_apart(messages[:index])
            last = index + 1 == len(messages)
            upto = whole if last else self._target.chat.render_apart(messages[: index + 1], waits=False)
            content = self._target.chat.marks.set_apart(messages[index]["content"])
            if not upto.startswith(prompt) and content in upto:
                upto = prompt + content + upto.rpartition(content)[2]
            spans.append((prompt, upto))
        if all(whole.startswith(upto) and upto.startswith(prompt) for prompt, upto in spans):
            return [self._row(whole, [(len(prompt), len(upto)) for prompt, upto in spans])]
        return [self._row(upto, [(len(prompt), len(upto))]) for prompt, upto in spans if upto.startswith(prompt)]

    def _row(self, text: str, spans: Sequence[tuple[int, int]]) -> Row:
        """Return a text as a row. The loss counts tokens inside `spans` of characters, and the end mark after each
        span."""
        tokens, offsets = self._target.chat.marks.encode_with_offsets(text, self._target.chat.add_special_tokens)
        loss_mask, over = [], False
        waiting = iter([*spans, (len(text) + 1, 0)])
        start, end = next(waiting)
        for token, (first, last) in zip(tokens, offsets, strict=True):
            while last > end and first >= end and end:
                (start, end), over = next(waiting), False
            inside = first >= start and last <= end and last > first and not over
            loss_mask.append(inside)
            over = over or (inside and token in self._target.stop_tokens)
        return Row(tokens[: self.length], loss_mask[: self.length])


@dataclass(frozen=True)
class PaddedRows:
    """Several rows, the shorter ones padded with zeros: tokens [rows, n], loss_mask bool [rows, n]."""

    tokens: torch.Tensor
    loss_mask: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], device: str) -> "PaddedRows":
        """Pad rows to the same length. The mask is made from their lengths, because id 0 can also be an end mark."""
        longest = max(len(row.tokens) for row in rows)
        tokens = torch.zeros(len(rows), longest, dtype=torch.long)
        loss_mask = torch.zeros(len(rows), longest, dtype=torch.bool)
        for index, row in enumerate(rows):
            tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
            loss_mask[index, : len(row.loss_mask)] = torch.tensor(row.loss_mask)
        return cls(tokens.to(device), loss_mask.to(device))

    @cached_property
    def causal(self) -> torch.Tensor:
        """A mask, bool [n, n]: each token sees itself and the tokens before it, so none sees the padding at the end."""
        n = self.tokens.shape[1]
        return torch.ones(n, n, dtype=torch.bool, device=self.tokens.device).tril_()


def split_rows(rows: Sequence[Row], tokens: int) -> list[list[Row]]:
    """Return rows in groups of at most `tokens` tokens including padding. A longer row is a group by itself."""
    groups: list[list[Row]] = []
    longest = 0
    for row in sorted(rows, key=lambda row: -len(row.tokens)):
        if not groups or (len(groups[-1]) + 1) * longest > tokens:
            groups.append([])
            longest = len(row.tokens)
        groups[-1].append(row)
    return groups
