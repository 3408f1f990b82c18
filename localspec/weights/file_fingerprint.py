"""The fingerprint of a file, which identifies it without reading all of it."""

import hashlib
import os
import stat
import struct
import time
from pathlib import Path
from typing import BinaryIO

from localspec.errors import LocalspecError, cannot_read
from localspec.outside_files import MIB

Stamp = list[int]  # bytes, nanoseconds of the last change of its content and of its metadata, inode
SETTLED = 2 * 10**9  # nanoseconds: file times are coarse, so a file changed this recently may change again unnoticed
DIGITS = 40  # of a fingerprint; a SHA-256 has 64
HEADER = 24 * MIB  # bytes from the start of a file that are read entirely: the largest headers of GGUF have 20 MiB
SAMPLES, SAMPLE_BYTES = 1024, 64  # of the rest of a file
_known: dict[Path, tuple[Stamp, str]] = {}  # fingerprints of files as they were


def file_fingerprint(file: Path) -> str:
    """Return 40 hexadecimal digits that change with the size, the header and 1024 samples of a file.

    A process reads an unchanged file only once, unless the file was changed less than two seconds before the reading.
    Raises LocalspecError for a file that cannot be read, is empty, or becomes shorter meanwhile.
    """
    digest = hashlib.sha256()
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            raise LocalspecError(f"{file} cannot be read, because it is not a regular file; give a file of weights.")
        if not status.st_size:
            raise LocalspecError(f"{file} is empty; fetch it again.")
        known_stamp, fingerprint = _known.get(file, ([], ""))
        if known_stamp == stamp(status):
            return fingerprint
        with file.open("rb", buffering=0) as stream:
            digest.update(f"file {status.st_size}\n".encode())
            start = _header_bytes(stream, status.st_size)
            digest.update(read_at(stream, 0, start, file))
            rest = status.st_size - start
            if rest <= SAMPLES * SAMPLE_BYTES:
                digest.update(read_at(stream, start, rest, file))
            else:
                for sample in range(SAMPLES):
                    position = start + (rest - SAMPLE_BYTES) * sample // (SAMPLES - 1)
                    digest.update(read_at(stream, position, SAMPLE_BYTES, file))
    except OSError as error:
        raise cannot_read(file, error) from None
    if settled(stamp(status)):
        _known[file] = stamp(status), digest.hexdigest()[:DIGITS]
    return digest.hexdigest()[:DIGITS]


def stamp(status: os.stat_result) -> Stamp:
    """Return a file's size, times and inode. Together they differ after nearly every change of its content."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def settled(stamp: Stamp) -> bool:
    """Return whether a file's last change is old enough that another change would alter its times."""
    return all(abs(time.time_ns() - moment) > SETTLED for moment in stamp[1:3])


def _header_bytes(stream: BinaryIO, size: int) -> int:
    """Return how many bytes at the start of a file to read completely. Of the rest only samples are read."""
    begin = stream.read(9)
    if len(begin) == 9 and begin[8:] == b"{":  # safetensors
        length = 8 + int(struct.unpack("<Q", begin[:8])[0])
        return min(length, size, HEADER)
    return min(size, HEADER)


def read_at(stream: BinaryIO, start: int, count: int, file: Path) -> bytes:
    """Read a part of a file. Raises LocalspecError if the file ends too early."""
    stream.seek(start, os.SEEK_SET)
    pieces = []
    while count:
        piece = stream.read(count)
        if not piece:
            raise LocalspecError(f"{file} ends too early: it is damaged, or being written; fetch it again.")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
