"""What a container is, in its file ``container``, and where a lane's bytes lie in its subfile.

TMKC | format u16 | 0 u16 | container u64 | block size u32 | lanes u32 | 0 u32 | crc32c of the 28 bytes before u32
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from .checksum import crc32c
from .errors import damaged, no_container, unsupported
from .subfile import LIVES_AT

#: The file that makes a directory a container.
NAME = "container"
SUPERBLOCK = struct.Struct("<4sHHQIIII")

MAGIC = b"TMKC"
FORMAT = 1
BLOCK_SIZE_MIN = 4 << 10
BLOCK_SIZE_MAX = 64 << 20
LANES_MAX = 1 << 16
#: No lane is longer.
ADDRESS_MAX = 1 << 46


class LaneId(NamedTuple):
    """One writer's part of a subfile."""

    subfile: int
    lane: int

    def __str__(self) -> str:
        return f"lane {self.lane} of subfile {self.subfile}"


@dataclass(frozen=True)
class Superblock:
    """What is the same for all of a container."""

    #: A number that no other container has.
    container: int
    #: Bytes of a block, a power of two.
    block_size: int
    #: Lanes of each subfile.
    lanes: int

    @classmethod
    def decode(cls, data: bytes, path: str) -> "Superblock":
        """What the file ``container`` of the directory ``path`` has."""
        if len(data) < SUPERBLOCK.size:
            why = "is too short. Who was to make it may have died: remove it"
            raise no_container(f"{path} is no container: its file `{NAME}` {why}")
        magic, version, _, container, block_size, lanes, _, checksum = SUPERBLOCK.unpack(data[: SUPERBLOCK.size])
        if magic != MAGIC:
            raise no_container(f"{path} is no container: its file `{NAME}` begins otherwise")
        if version != FORMAT:
            raise unsupported(f"{path} is a container of format {version}: a later tameike reads it")
        if checksum != crc32c(data[: SUPERBLOCK.size - 4]):
            raise damaged(f"{path}: the header is damaged: its checksum is wrong")
        is_power = block_size & (block_size - 1) == 0
        if not (is_power and BLOCK_SIZE_MIN <= block_size <= BLOCK_SIZE_MAX and 1 <= lanes <= LANES_MAX):
            raise no_container(f"{path}: blocks of {block_size} bytes for {lanes} writers cannot be")
        return cls(container, block_size, lanes)

    @property
    def header_size(self) -> int:
        """Bytes of a subfile before the first block of a lane."""
        return -(-(LIVES_AT + 4 * self.lanes) // self.block_size) * self.block_size

    def offset(self, lane: int, address: int) -> int:
        """Where in its subfile the byte at an address of a lane lies."""
        block = self.block_size
        return self.header_size + (address // block * self.lanes + lane) * block + address % block

    def address_end(self, lane: int, size: int) -> int:
        """After the last address of a lane that lies in a subfile of so many bytes."""
        rest = size - self.offset(lane, 0)
        if rest <= 0:
            return 0
        turn = self.block_size * self.lanes
        return rest // turn * self.block_size + min(rest % turn, self.block_size)

    def block_end(self, address: int) -> int:
        """Where the block of an address ends."""
        return (address // self.block_size + 1) * self.block_size
