"""Makes containers that `tameike agg create` does not: with removals, several versions, lost bytes, later formats."""

import struct
from pathlib import Path
from typing import Optional

from google_crc32c import value as crc32c

CONTAINER = 0x1122_3344_5566_7788
BLOCK_SIZE = 64 << 10
CHUNK_SIZE = 256 << 10


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
) -> bytes:
    """An entry, or a removal without a size. An extent is (start, length, subfile, lane, address, skip)."""
    encoded = sized(path) + unsigned(version)
    if size is None:
        return encoded + b"\0"
    numbers = b"".join(unsigned(number) for number in (kind, 0o644, 1000, 100, 0))
    times = 2 * (signed(1_700_000_000) + unsigned(5))
    content = b"\0"
    if extents is not None:
        content = b"\1" + unsigned(len(extents)) + b"".join(unsigned(n) for extent in extents for n in extent)
    return encoded + b"\1" + numbers + times + sized(target) + unsigned(0) + unsigned(size) + content


class Lane:
    """A lane of a subfile."""

    def __init__(
        self, directory: Path, subfile: int = 0, container: int = CONTAINER, lane: int = 0, lanes: int = 1
    ) -> None:
        directory.mkdir(exist_ok=True)
        if not (directory / "container").exists():
            (directory / "container").write_bytes(superblock(lanes=lanes, container=container))
        self.path = directory / f"{subfile:08x}.data"
        if not self.path.exists():
            header = superblock(subfile, lanes=lanes, container=container)
            self.path.write_bytes(header.ljust(BLOCK_SIZE, b"\0"))
        self.subfile = subfile
        self.lane = lane
        self.lanes = lanes
        self.container = container
        self.address = 0
        self.sequence = 0
        #: Nothing after it was synced.
        self.safe = 0
        self._number = 0

    def put(self, path: str, data: bytes, **more: int) -> int:
        return self.append(0, entry(path.encode(), self.version(), len(data)), data, **more)

    def remove(self, path: str) -> int:
        return self.append(0, entry(path.encode(), self.version(), None), b"")

    def link(self, path: str, target: str) -> int:
        return self.append(0, entry(path.encode(), self.version(), 0, kind=2, target=target.encode()), b"")

    def version(self) -> int:
        self._number += 1
        return self._number

    def sync(self) -> None:
        self.safe = self.address

    def append(self, kind: int, encoded: bytes, data: bytes, codec: int = 0, version: int = 1) -> int:
        """A record. Gives its address."""
        chunks = [data[at : at + CHUNK_SIZE] for at in range(0, len(data), CHUNK_SIZE)]
        size = 64 + len(encoded) + 8 * len(chunks) + len(data)
        room = BLOCK_SIZE - self.address % BLOCK_SIZE
        if size > room:
            self.write(2, b"", [], b"", 0, 1)
            self.address += room - 64
        address = self.address
        self.write(kind, encoded, chunks, data, codec, version)
        return address

    def write(self, kind: int, encoded: bytes, chunks: list[bytes], data: bytes, codec: int, version: int) -> None:
        unsafe = self.address - self.safe
        head = struct.pack(
            "<4sHBBQIIQQIIIII",
            *(b"TREC", version, kind, codec, self.container, self.subfile, self.lane, self.address, self.sequence),
            *(len(encoded), len(chunks), len(data), len(data), unsafe),
        )
        rest = encoded + b"".join(struct.pack("<II", len(chunk), crc32c(chunk)) for chunk in chunks)
        record = head + struct.pack("<I", crc32c(head + rest)) + rest + data
        record += bytes(-len(record) % 64)
        with self.path.open("r+b") as file:
            turn, within = divmod(self.address, BLOCK_SIZE)
            file.seek(BLOCK_SIZE + (turn * self.lanes + self.lane) * BLOCK_SIZE + within)
            file.write(record)
        self.address += len(record)
        self.sequence += 1
