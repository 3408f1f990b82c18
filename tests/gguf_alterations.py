"""The metadata of a GGUF file changed key by key, with its tensors as they are."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

FORMS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
KINDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "u64": 10, "i64": 11, "f64": 12}
TEXT, ARRAY = 8, 9


def text(content: str | bytes) -> bytes:
    """Return a text with its length before it."""
    content = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(content)) + content


def typed(kind: str, value: object) -> bytes:
    """Return a value with its type before it: a type of number, or `text`, or several as `texts` or such as `i32s`."""
    if kind == "text":
        assert isinstance(value, str | bytes)
        return struct.pack("<I", TEXT) + text(value)
    if kind == "texts":
        assert isinstance(value, list)
        return struct.pack("<IIQ", ARRAY, TEXT, len(value)) + b"".join(map(text, value))
    if kind.endswith("s"):
        assert isinstance(value, list)
        number = KINDS[kind[:-1]]
        return struct.pack("<IIQ", ARRAY, number, len(value)) + struct.pack(f"<{len(value)}{FORMS[number][1]}", *value)
    return struct.pack("<I", KINDS[kind]) + struct.pack(FORMS[KINDS[kind]], value)


class Header:
    """The header of a sound file: `keys` with their values as bytes, and the table of tensors."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as stream:
            self.path, self._stream = path, stream
            assert stream.read(4) == b"GGUF"
            self.version, self.tensors, count = self._unpacked("<I"), self._unpacked("<Q"), self._unpacked("<Q")
            self.keys: dict[str, bytes] = {}
            for _ in range(count):
                key, start = self._text().decode(), stream.tell()
                self._skip(self._unpacked("<I"))
                self.keys[key] = self._since(start)
            start = stream.tell()
            for _ in range(self.tensors):
                self._text()
                stream.seek(8 * self._unpacked("<I") + 12, 1)
            self.table = self._since(start)
            self.alignment = struct.unpack_from("<I", self.keys.get("general.alignment", typed("u32", 32)), 4)[0]
            self.data = -(-stream.tell() // self.alignment) * self.alignment

    def texts(self, key: str) -> list[str]:
        """Return the texts of an array."""
        content, found = self.keys[key], []
        at = 16
        for _ in range(struct.unpack_from("<Q", content, 8)[0]):
            length = struct.unpack_from("<Q", content, at)[0]
            found.append(content[at + 8 : at + 8 + length].decode())
            at += 8 + length
        return found

    def numbers(self, key: str) -> list[int]:
        """Return the numbers of an array."""
        content = self.keys[key]
        kind, count = struct.unpack_from("<IQ", content, 4)
        return [*struct.unpack_from(f"<{count}{FORMS[kind][1]}", content, 16)]

    def altered(self, changes: Mapping[str, bytes | None]) -> bytes:
        """Return the header with other keys; None leaves one out."""
        keys = {key: value for key, value in {**self.keys, **changes}.items() if value is not None}
        said = b"".join(text(key) + value for key, value in keys.items())
        header = b"GGUF" + struct.pack("<IQQ", self.version, self.tensors, len(keys)) + said + self.table
        return header + bytes(-len(header) % self.alignment)

    def write(self, file: Path, changes: Mapping[str, bytes | None]) -> Path:
        """Write the whole file with other keys."""
        with self.path.open("rb") as stream, file.open("wb") as out:
            out.write(self.altered(changes))
            stream.seek(self.data)
            _copy(stream, out)
        return file

    def _unpacked(self, form: str) -> int:
        number: int = struct.unpack(form, self._stream.read(struct.calcsize(form)))[0]
        return number

    def _text(self) -> bytes:
        return self._stream.read(self._unpacked("<Q"))

    def _skip(self, kind: int) -> None:
        if kind == TEXT:
            self._text()
        elif kind == ARRAY:
            of, count = self._unpacked("<I"), self._unpacked("<Q")
            for _ in range(count if of == TEXT else 0):
                self._text()
            self._stream.seek(0 if of == TEXT else count * struct.calcsize(FORMS[of]), 1)
        else:
            self._stream.seek(struct.calcsize(FORMS[kind]), 1)

    def _since(self, start: int) -> bytes:
        end = self._stream.tell()
        self._stream.seek(start)
        return self._stream.read(end - start)


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while piece := source.read(2**22):
        target.write(piece)
