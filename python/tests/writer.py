"""Writes containers that `tameike agg create` does not: with removals, several versions, lost bytes, later formats."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from google_crc32c import value as crc32c

from tameike.codec import zstd

CONTAINER = 0x1122_3344_5566_7788
BLOCK_SIZE = 64 << 10
CHUNK_SIZE = 256 << 10
INCARNATIONS_AT = 128
FINISHED = 1 << 31


def unsigned(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def signed(number: int) -> bytes:
    return unsigned(number << 1 if number >= 0 else (-number << 1) - 1)


def sized(data: bytes) -> bytes:
    return unsigned(len(data)) + data


def superblock(subfile: int = 0, version: int = 1, lanes: int = 1, container: int = CONTAINER) -> bytes:
    fixed = struct.pack("<4sHHQIII", b"TMKC", version, 0, container, BLOCK_SIZE, lanes, subfile)
    return fixed + struct.pack("<I", crc32c(fixed))


def entry(
    path: bytes,
    version: int,
    size: Optional[int],
    kind: int = 0,
    target: bytes = b"",
    extents: Optional[list[tuple[int, ...]]] = None,
    seconds: int = 1_700_000_000,
) -> bytes:
    """An entry, or a removal without a size. An extent is (start, length, subfile, lane, address, skip)."""
    encoded = sized(path) + unsigned(version)
    if size is None:
        return encoded + b"\0"
    numbers = b"".join(unsigned(number) for number in (kind, 0o644, 1000, 100, 0))
    times = 2 * (signed(seconds) + unsigned(5))
    content = b"\0"
    if extents is not None:
        content = b"\1" + unsigned(len(extents)) + b"".join(unsigned(n) for extent in extents for n in extent)
    return encoded + b"\1" + numbers + times + sized(target) + unsigned(0) + unsigned(size) + content


def compressed(data: bytes) -> bytes:
    """The stored bytes of a chunk."""
    frame: bytes = zstd.compress(data)
    return frame if len(frame) < len(data) else data


class Lane:
    """A writer of a lane. It appends after everything in the subfile."""

    def __init__(
        self, directory: Path, subfile: int = 0, container: int = CONTAINER, lane: int = 0, lanes: int = 1
    ) -> None:
        directory.mkdir(exist_ok=True)
        if not (directory / "container").exists():
            (directory / "container").write_bytes(superblock(lanes=lanes, container=container))
        self.path = directory / f"{subfile:08x}.data"
        if not self.path.exists():
            self.path.write_bytes(superblock(subfile, lanes=lanes, container=container).ljust(INCARNATIONS_AT, b"\0"))
        self.subfile = subfile
        self.lane = lane
        self.lanes = lanes
        self.container = container
        self._number = 0
        self.begin()

    def begin(self) -> None:
        """Begins the next incarnation."""
        (before,) = struct.unpack("<I", self.number_in_header())
        self.incarnation = (before & ~FINISHED) + 1
        self.address = 0
        if before:
            turn, rest = divmod(max(0, self.path.stat().st_size - self.position(0)), BLOCK_SIZE * self.lanes)
            self.address = (turn + (rest > 0)) * BLOCK_SIZE
        self.set_in_header(self.incarnation)
        self.sequence = self.incarnation << 32
        #: Records of the incarnation before this address are durable.
        self.durable_end = self.address

    def put(self, path: str, data: bytes, **more: Any) -> int:
        return self.append(0, entry(path.encode(), self.version(), len(data)), data, **more)

    def remove(self, path: str) -> int:
        return self.append(0, entry(path.encode(), self.version(), None), b"")

    def link(self, path: str, target: str) -> int:
        return self.append(0, entry(path.encode(), self.version(), 0, kind=2, target=target.encode()), b"")

    def version(self) -> int:
        self._number += 1
        return self._number

    def sync(self) -> None:
        self.durable_end = self.address

    def finish(self) -> None:
        self.sync()
        self.write(3, b"", [], [], 0, 1)
        self.set_in_header(self.incarnation | FINISHED)

    def append(
        self,
        kind: int,
        encoded: bytes,
        data: bytes,
        codec: int = 0,
        version: int = 1,
        encode: Callable[[bytes], bytes] = bytes,
    ) -> int:
        """Appends a record, and returns its address. ``encode`` returns the stored bytes of a chunk."""
        chunks = [data[at : at + CHUNK_SIZE] for at in range(0, len(data), CHUNK_SIZE)]
        stored = [encode(chunk) for chunk in chunks]
        size = 64 + len(encoded) + 8 * len(chunks) + sum(map(len, stored))
        rest = BLOCK_SIZE - self.address % BLOCK_SIZE
        if size > rest:
            assert size <= BLOCK_SIZE
            self.write(2, b"", [], [], 0, 1)
            self.address += rest - 64
        address = self.address
        self.write(kind, encoded, chunks, stored, codec, version)
        return address

    def write(
        self, kind: int, encoded: bytes, chunks: list[bytes], stored: list[bytes], codec: int, version: int
    ) -> None:
        unsynced = self.address - self.durable_end
        head = struct.pack(
            "<4sHBBQIIQQIIIII",
            *(b"TREC", version, kind, codec, self.container, self.subfile, self.lane, self.address, self.sequence),
            *(len(encoded), len(chunks), sum(map(len, chunks)), sum(map(len, stored)), unsynced),
        )
        rest = encoded + b"".join(struct.pack("<II", len(chunk), crc32c(chunk)) for chunk in stored)
        record = head + struct.pack("<I", crc32c(head + rest)) + rest + b"".join(stored)
        record += bytes(-len(record) % 64)
        self.write_at(self.position(self.address), record)
        self.address += len(record)
        self.sequence += 1

    def position(self, address: int) -> int:
        """Offset of an address in the subfile."""
        header = -(-(INCARNATIONS_AT + 4 * self.lanes) // BLOCK_SIZE) * BLOCK_SIZE
        turn, within = divmod(address, BLOCK_SIZE)
        return header + (turn * self.lanes + self.lane) * BLOCK_SIZE + within

    def number_in_header(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(INCARNATIONS_AT + 4 * self.lane)
            return file.read(4).ljust(4, b"\0")

    def set_in_header(self, number: int) -> None:
        self.write_at(INCARNATIONS_AT + 4 * self.lane, struct.pack("<I", number))

    def write_at(self, position: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(position)
            file.write(data)
