"""The superblock: identity and geometry of a container, in the file ``container`` of its directory.

TMKC | format u16 | 0 u16 | container u64 | block size u32 | lanes u32 | 0 u32 | crc32c of the 28 bytes before u32
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from .checksum import crc32c
from .errors import damaged, no_container, unsupported
from .subfile import INCARNATIONS_AT

#: The file that makes a directory a container.
NAME = "container"
SUPERBLOCK = struct.Struct("<4sHHQIIII")

MAGIC = b"TMKC"
FORMAT = 1
BLOCK_SIZE_MIN = 4 << 10
BLOCK_SIZE_MAX = 64 << 20
LANES_MAX = 1 << 16
#: Maximum size of a lane.
ADDRESS_MAX = 1 << 46


class LaneId(NamedTuple):
    """Identifier of a lane, the part of a subfile that one writer appends to."""

    subfile: int
    lane: int

    def __str__(self) -> str:
        return f"lane {self.lane} of subfile {self.subfile}"


@dataclass(frozen=True)
class Superblock:
    """Identity and geometry of a container."""

    #: Container number; unique.
    container: int
    #: Block size in bytes, a power of two.
    block_size: int
    #: Number of lanes of each subfile.
    lanes: int

    @classmethod
    def decode(cls, data: bytes, path: str) -> "Superblock":
        """Decodes the file ``container`` of the directory ``path``."""
        if len(data) < SUPERBLOCK.size:
            why = "is too short. The process that created it may have failed: remove it"
            raise no_container(f"{path} is no container: its file `{NAME}` {why}")
        magic, version, _, container, block_size, lanes, _, checksum = SUPERBLOCK.unpack(data[: SUPERBLOCK.size])
        if magic != MAGIC:
            raise no_container(f"{path} is no container: its file `{NAME}` has another format")
        if version != FORMAT:
            raise unsupported(f"{path} is a container of format {version}: use a later version of tameike")
        if checksum != crc32c(data[: SUPERBLOCK.size - 4]):
            raise damaged(f"{path}: the header is damaged: its checksum is wrong")
        is_power = block_size & (block_size - 1) == 0
        if not (is_power and BLOCK_SIZE_MIN <= block_size <= BLOCK_SIZE_MAX and 1 <= lanes <= LANES_MAX):
            raise no_container(
                f"{path}: invalid geometry of {block_size} bytes per block and {lanes} writers per subfile"
            )
        return cls(container, block_size, lanes)

    @property
    def header_size(self) -> int:
        """Size of a subfile's header, padded to whole blocks."""
        return -(-(INCARNATIONS_AT + 4 * self.lanes) // self.block_size) * self.block_size

    def offset(self, lane: int, address: int) -> int:
        """Offset in the subfile of an address of a lane."""
        block = self.block_size
        return self.header_size + (address // block * self.lanes + lane) * block + address % block

    def address_end(self, lane: int, size: int) -> int:
        """End address of a lane in a subfile of ``size`` bytes."""
        rest = size - self.offset(lane, 0)
        if rest <= 0:
            return 0
        turn = self.block_size * self.lanes
        return rest // turn * self.block_size + min(rest % turn, self.block_size)

    def block_end(self, address: int) -> int:
        """End address of the block that contains an address."""
        return (address // self.block_size + 1) * self.block_size
