"""The end of a write-ahead log, where a transaction that failed leaves what it had written: overwritten in place."""

import os
import struct
from pathlib import Path
from typing import BinaryIO

_HEADER, _FRAME = 32, 24  # bytes; as in SQLite's description of its file format
_BIG_ENDIAN_SUMS = 1  # this bit of the magic number


def log_size(path: Path) -> int:
    """Bytes in the log of the database at `path`; 0 where there is none."""
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0


def overwrite_tail(path: Path) -> int:
    """Zeroes what follows the last whole transaction in the log of the database at `path`; returns how many bytes.

    It needs no room on the disk. The caller holds the lock for writing, so that nobody adds to the log. Raises OSError.
    """
    # Unlike the database itself, the log carries none of SQLite's locks, which closing a file would drop.
    with open(f"{path}-wal", "r+b") as log:
        end, size = _end_of_transactions(log), os.fstat(log.fileno()).st_size
        log.seek(end)
        log.writelines(bytes(min(2**16, size - start)) for start in range(end, size, 2**16))
        log.flush()
        os.fsync(log.fileno())
    return max(0, size - end)


def _end_of_transactions(log: BinaryIO) -> int:
    """Where the last frame ends that SQLite would read, found as it finds it: by salts and running checksums."""
    header = log.read(_HEADER)
    if len(header) < _HEADER:
        return 0
    magic, _, page, _, *rest = struct.unpack(">8I", header)
    order, sums = ">" if magic & _BIG_ENDIAN_SUMS else "<", (0, 0)
    sums = _added(sums, header[:24], order)
    if sums != tuple(rest[2:]):
        return _HEADER
    end, at = _HEADER, _HEADER
    while len(frame := log.read(_FRAME + page)) == _FRAME + page:
        _, committed, *found = struct.unpack(">6I", frame[:_FRAME])
        sums = _added(_added(sums, frame[:8], order), frame[_FRAME:], order)
        if found[:2] != rest[:2] or sums != tuple(found[2:]):
            break
        at += len(frame)
        end = at if committed else end
    return end


def _added(sums: tuple[int, int], content: bytes, order: str) -> tuple[int, int]:
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
