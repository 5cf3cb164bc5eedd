"""Records, of which lanes consist.

0      4        6      7      8            16          20      24           32
+------+--------+------+------+------------+-----------+-------+------------+------------+
| TREC | format | kind | codec| container  | subfile   | lane  | address    | sequence   |
|      | u16    | u8   | u8   | u64        | u32       | u32   | u64        | u64        |
+------+--------+------+------+------------+-----------+-------+------------+------------+
40          44         48       52         56         60       64
+-----------+----------+--------+----------+----------+--------+-------+----------------+--------+---------+
| entry     | chunks   | data   | stored   | unsynced | crc32c | entry | chunks         | data   | zeros   |
| size u32  | u32      | size   | size u32 | size u32 |        |       | {size, crc32c} | as     | to a    |
|           |          | u32    |          |          |        |       | u32, u32       | stored | multiple|
+-----------+----------+--------+----------+----------+--------+-------+----------------+--------+---------+

A lane is a sequence of incarnations, each of one writer. The upper half of "sequence" is the incarnation, the lower one
counts its records.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import NamedTuple, Optional, Union

from . import codec, entry
from .checksum import crc32c
from .entry import Entry
from .errors import FormatError
from .geometry import BLOCK_SIZE_MAX, LaneId

#: Alignment of records, in bytes.
ALIGNMENT = 64
#: Bytes of data per checksum.
CHUNK_SIZE = 256 << 10
#: Fixed part of a head, before the entry. The last four bytes are the checksum.
FIXED = struct.Struct("<4sHBBQIIQQIIIIII")
CHUNK = struct.Struct("<II")

MAGIC = b"TREC"
FORMAT = 1
#: Maximum of the unsynced size: that many bytes, or more.
UNSYNCED_SIZE_MAX = (1 << 32) - 1
BLANK = bytes(FIXED.size)
ENTRY_SIZE_MAX = 4 << 20
HEAD_SIZE_MAX = FIXED.size + ENTRY_SIZE_MAX + BLOCK_SIZE_MAX // CHUNK_SIZE * CHUNK.size


def incarnation_of(sequence: int) -> int:
    """The incarnation of a sequence number."""
    return sequence >> 32


def first_sequence(incarnation: int) -> int:
    """The sequence number of the first record of an incarnation."""
    return incarnation << 32


class Kind(IntEnum):
    """Purpose of a record."""

    ENTRY = 0
    DATA = 1
    #: Unused rest of the block.
    REST = 2
    #: The writer has finished; all records of its incarnation before this one are durable.
    END = 3


class Position(NamedTuple):
    """Position of a record."""

    container: int
    lane: LaneId
    address: int


@dataclass(frozen=True)
class Head:
    """The decoded head of a record."""

    kind: Kind
    codec: int
    position: Position
    sequence: int
    entry: Optional[Entry]
    data_size: int
    kept_size: int
    #: Checksum of the stored bytes of each chunk.
    sums: tuple[int, ...]
    #: Offsets of the chunks' stored bytes in the record, and the end of the last one.
    bounds: tuple[int, ...]
    unsynced_size: int

    @property
    def size(self) -> int:
        """Size of the head."""
        return self.bounds[0]

    @property
    def end(self) -> int:
        """Size of the record."""
        return self.size + self.kept_size

    @property
    def span(self) -> int:
        """Distance to the next record."""
        return -(-self.end // ALIGNMENT) * ALIGNMENT

    @property
    def incarnation(self) -> int:
        """The incarnation of the lane."""
        return incarnation_of(self.sequence)

    @property
    def durable_end(self) -> int:
        """The address before which the writer knew all records of its incarnation to be durable."""
        return self.position.address - self.unsynced_size if self.unsynced_size < UNSYNCED_SIZE_MAX else 0

    def chunk_size(self, chunk: int) -> int:
        """Size of a chunk's data."""
        return min(CHUNK_SIZE, self.data_size - chunk * CHUNK_SIZE)

    def proves(self, chunk: int, stored: bytes) -> bool:
        """True if these are the stored bytes of a chunk."""
        size = self.bounds[chunk + 1] - self.bounds[chunk]
        return len(stored) == size and crc32c(stored) == self.sums[chunk]


class Blank(NamedTuple):
    """Zeros: nothing was ever written."""


class Part(NamedTuple):
    """The beginning of a head of this size."""

    size: int


class Damaged(NamedTuple):
    """No valid record of this position, and the reason."""

    why: str


Found = Union[Head, Blank, Part, Damaged]


def head_size(data_size: int) -> int:
    """Size of the head of a record with this data size and no entry."""
    return FIXED.size + -(-data_size // CHUNK_SIZE) * CHUNK.size


def decode(data: bytes, position: Position) -> Found:
    """Decodes a record at ``position`` from at least ``FIXED.size`` bytes. The sequence number is not checked."""
    fixed = data[: FIXED.size]
    if fixed == BLANK:
        return Blank()
    # First, as a scan that searches for a record meets mostly other bytes.
    if fixed[:4] != MAGIC:
        return Damaged("it does not begin with the magic number of a record")
    (_, version, number, codec_number, container, subfile, lane, address, sequence) = FIXED.unpack(fixed)[:9]
    entry_size, chunk_count, data_size, kept_size, unsynced_size, checksum = FIXED.unpack(fixed)[9:]
    if version != FORMAT:
        return Damaged("its format is unknown to this version")
    if number > Kind.END:
        return Damaged("its kind is unknown")
    if codec_number not in codec.KNOWN:
        return Damaged("its codec is unknown to this version")
    kind = Kind(number)
    size = FIXED.size + entry_size + chunk_count * CHUNK.size
    if size > HEAD_SIZE_MAX or chunk_count != -(-data_size // CHUNK_SIZE):
        return Damaged("its sizes contradict each other")
    if len(data) < size:
        return Part(size)
    rest = data[FIXED.size : size]
    if crc32c(fixed[:-4], rest) != checksum:
        return Damaged("its checksum is wrong")
    found = Position(container, LaneId(subfile, lane), address)
    if found != position:
        return Damaged("it was written for another position")
    change = None
    if kind == Kind.ENTRY:
        try:
            change = entry.decode(rest[:entry_size])
        except FormatError as error:
            return Damaged(f"its entry cannot be decoded: {error}")
    chunks = list(CHUNK.iter_unpack(rest[entry_size:]))
    head = Head(
        kind=kind,
        codec=codec_number,
        position=found,
        sequence=sequence,
        entry=change,
        data_size=data_size,
        kept_size=kept_size,
        sums=tuple(checksum for _, checksum in chunks),
        bounds=tuple(accumulate((stored for stored, _ in chunks), initial=size)),
        unsynced_size=unsynced_size,
    )
    return head if _adds_up(head) else Damaged("its sizes contradict each other")


def _adds_up(head: Head) -> bool:
    sizes = [end - start for start, end in zip(head.bounds, head.bounds[1:])]
    if sum(sizes) != head.kept_size:
        return False
    full = (head.chunk_size(chunk) for chunk in range(len(sizes)))
    if head.codec == codec.PLAIN:
        return all(size == whole for size, whole in zip(sizes, full))
    return all(size <= whole for size, whole in zip(sizes, full))
