"""Saves a target model's outputs for the training texts, so that it has to read each text only once.

`readings.bin` has a record for each position whose next token counts in the loss: the target's hidden state and the
likeliest next tokens. `readings.jsonl` has a line for each text, with its number of records. If the process is killed,
complete texts are kept, and an incomplete text is read again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from localspec.decoding.sampling import Sampling
from localspec.engine.backends import Target as DecodingTarget
from localspec.errors import DoesNotFit, LocalspecError
from localspec.native.target import NativeTarget
from localspec.nn.losses import Likeliest
from localspec.nn.target import Target
from localspec.training.corpus import Row

LIKELIEST = 64  # tokens stored for a position; on published models they have about 96 % of the probability
RECORDS, INDEX = "readings.bin", "readings.jsonl"
GAP = 128  # positions between two texts; more than a draft has
CHUNK = 128  # tokens of a forward, or rows of a softmax over the vocabulary: bounds the memory
LARGEST = float(np.finfo(np.float16).max)  # of a stored state

# (tokens of a text, first position) -> of the positions from there on: states [rows, hidden_size], and ids and
# chances of the likeliest next tokens, each [rows, LIKELIEST].
Reader = Callable[[Sequence[int], int], tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]


@dataclass(frozen=True)
class Places:
    """The n positions in some texts whose next token counts in the loss, in the order of the texts.

    `states` [n, hidden_size] are the target's hidden states, and `roots` [n] the next tokens in the text. `numbers` [n]
    int64 number the positions in ascending order. Neighbours in a text differ by 1; between two texts is a gap that is
    longer than any draft. `labels` are what to predict at each position. They are hidden states [n, hidden_size], from
    which the target's head computes logits, or `Likeliest` tokens.
    """

    states: torch.Tensor
    roots: torch.Tensor
    numbers: torch.Tensor
    labels: torch.Tensor | Likeliest

    def following(self, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the `depth` positions that follow each of the n positions. Return their indices among the n, and whether
        they are there; both [n, depth]."""
        following = self.numbers[:, None] + torch.arange(1, depth + 1, device=self.numbers.device)
        indices = torch.searchsorted(self.numbers, following).clamp(max=max(len(self.numbers) - 1, 0))
        return indices, self.numbers[indices] == following


def positions(row: Row) -> list[int]:
    """Return the positions of a row whose next token counts in the loss."""
    return [position for position, counts in enumerate(row.loss_mask[1:]) if counts]


class Readings:
    """A directory of saved outputs of a target; hidden states have `width` numbers. Raises LocalspecError for
    damage."""

    def __init__(self, directory: Path, width: int) -> None:
        self._directory = directory
        self._record = np.dtype([("state", "<f2", width), ("ids", "<i4", LIKELIEST), ("chances", "<f2", LIKELIEST)])
        self._stored: dict[str, tuple[int, int]] = {}  # by a row's digest: its first record, its number of records
        self._count = 0
        self._records: Any = None
        self._open()

    @staticmethod
    def bytes_of(width: int, tokens: int) -> int:
        """Return about how many bytes the saved outputs for `tokens` positions take; hidden states have `width`
        numbers."""
        return tokens * (2 * width + 6 * LIKELIEST)

    def _open(self) -> None:
        """Read the index. Cut both files after the last complete text: a killed process may have left part of
        another."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / RECORDS).touch(0o600)
            (self._directory / INDEX).touch(0o600)
            size = (self._directory / RECORDS).stat().st_size
            *lines, _ = (self._directory / INDEX).read_bytes().split(b"\n")
            whole = 0
            for line in lines:
                name, count = json.loads(line)
                if (self._count + count) * self._record.itemsize > size:
                    break
                self._stored[str(name)] = self._count, int(count)
                self._count, whole = self._count + int(count), whole + len(line) + 1
            os.truncate(self._directory / INDEX, whole)
            os.truncate(self._directory / RECORDS, self._count * self._record.itemsize)
        except (OSError, ValueError, TypeError) as error:
            raise LocalspecError(f"{self._directory} cannot be used ({error}); delete it, and start over.") from None

    def leave_out_after(self, positions: int) -> None:
        """Ignore all texts after the first `positions` saved positions. Raises LocalspecError if fewer are saved."""
        if self._count < positions:
            raise LocalspecError(
                f"{self._directory} lacks texts that the stopped training has read; give --force to start over."
            )
        self._stored = {name: (first, count) for name, (first, count) in self._stored.items() if first < positions}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, row: Row) -> bool:
        return _digest(row) in self._stored

    def lacking(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that are not saved yet, without duplicates. Rows without a token to predict are left out."""
        by_digest = {_digest(row): row for row in rows if positions(row)}
        return [row for name, row in by_digest.items() if name not in self._stored]

    def fill(self, rows: Sequence[Row], reader: Reader) -> Iterator[int]:
        """Let `reader` read the rows that are not saved yet. Yield the number of saved positions after each row.

        Raises DoesNotFit if the files cannot be written.
        """
        for row in self.lacking(rows):
            places = positions(row)
            states, ids, chances = reader(row.tokens[: places[-1] + 1], places[0])
            offsets = np.array(places) - places[0]
            records = np.empty(len(places), self._record)
            records["state"] = np.clip(states[offsets], -LARGEST, LARGEST)
            records["ids"], records["chances"] = ids[offsets], chances[offsets]
            self._append(_digest(row), records)
            yield self._count

    def _append(self, name: str, records: npt.NDArray[Any]) -> None:
        try:
            with (self._directory / RECORDS).open("ab") as file:
                file.write(records.tobytes())
            with (self._directory / INDEX).open("ab") as file:
                file.write(json.dumps([name, len(records)]).encode() + b"\n")
        except OSError as error:
            raise DoesNotFit(
                f"{self._directory} cannot be written ({error.strerror}); make room, and give the same command again."
            ) from error
        self._stored[name] = self._count, len(records)
        self._count, self._records = self._count + len(records), None

    def places(self, rows: Sequence[Row], device: str, distill: bool) -> Places:
        """Return the saved outputs for `rows`. Labels are the likeliest tokens, or without `distill` the text's
        tokens."""
        if self._records is None:
            shape = (self._count,)  # without what another training is writing just now
            self._records = np.memmap(self._directory / RECORDS, self._record, "r", 0, shape) if self._count else None
        parts, roots, numbers, start = [], [], [], 0
        for row in rows:
            first, count = self._stored[_digest(row)]
            row_positions = positions(row)
            parts.append(self._records[first : first + count])
            roots += [row.tokens[position + 1] for position in row_positions]
            numbers += [start + position for position in row_positions]
            start += len(row.tokens) + GAP  # so that no text continues in the next one
        records = np.concatenate(parts)
        following = torch.tensor(roots, device=device)
        if distill:
            ids = torch.from_numpy(records["ids"].astype(np.int64)).to(device)
            labels = Likeliest(ids, torch.from_numpy(records["chances"].astype(np.float32)).to(device))
        else:
            labels = Likeliest(following[:, None], torch.ones(len(following), 1, device=device))
        states = torch.from_numpy(records["state"].astype(np.float32)).to(device)
        return Places(states, following, torch.tensor(numbers, device=device), labels)


def reader_of(target: DecodingTarget) -> Reader:
    """Return a function that runs `target`, in torch or the compiled library, over a text and returns its outputs."""
    if isinstance(target, NativeTarget):
        return _native(target)
    assert isinstance(target, Target)
    return _torch(target)


def _native(target: NativeTarget) -> Reader:
    def read(tokens: Sequence[int], first: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        cache, chunks = target.cache(len(tokens)), []
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            skipped = min(max(first - start, 0), len(part) - 1)  # logits are expensive, so only from here on
            logits, hidden, _ = target.model.forward(part, None, cache, skipped)
            cache.keep(range(len(part)))
            if start + len(part) > first:
                likely = logits.candidates(range(len(logits)), LIKELIEST, Sampling())
                chunks.append((hidden[skipped:], np.array(likely)))
        states, likeliest = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
        return states, likeliest[..., 0].astype(np.int32), likeliest[..., 1]

    return read


def _torch(target: Target) -> Reader:
    @torch.no_grad()
    def read(tokens: Sequence[int], first: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        text = torch.tensor([*tokens], device=target.device)
        places = torch.arange(len(text), device=target.device)
        hidden = target.transformer(text[None], places, places[:, None] >= places)[0, first:]
        top = [target.head(part).float().softmax(-1).topk(LIKELIEST) for part in hidden.split(CHUNK)]
        ids, chances = (
            torch.cat([getattr(part, name) for part in top]).cpu().numpy() for name in ("indices", "values")
        )
        return hidden.float().cpu().numpy(), ids, chances

    return read


def _digest(row: Row) -> str:
    """Return the key of a row in the index, a digest of its tokens and of the positions to predict."""
    text = json.dumps([[*row.tokens], positions(row)]).encode()
    return hashlib.sha256(text).hexdigest()[:24]
