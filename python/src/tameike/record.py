"""Records: what a lane consists of.

0      4        6      7      8            16          20      24           32
+------+--------+------+------+------------+-----------+-------+------------+------------+
| TREC | format | kind | codec| container  | subfile   | lane  | address    | sequence   |
|      | u16    | u8   | u8   | u64        | u32       | u32   | u64        | u64        |
+------+--------+------+------+------------+-----------+-------+------------+------------+
40          44         48       52         56         60       64
+-----------+----------+--------+----------+----------+--------+-------+----------------+------+---------+
| entry     | chunks   | data   | kept     | unsafe   | crc32c | entry | chunks         | data | zeros   |
| size u32  | u32      | size   | size u32 | size u32 |        |       | {size, crc32c} | kept | to a    |
|           |          | u32    |          |          |        |       | u32, u32       | so   | multiple|
+-----------+----------+--------+----------+----------+--------+-------+----------------+------+---------+

A lane is a sequence of lives, each of one writer: the upper half of "sequence" tells which, the lower one counts its
records.
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

#: Where records begin.
ALIGNMENT = 64
#: Bytes of data that have a checksum of their own.
CHUNK_SIZE = 256 << 10
#: What comes before the entry. The last four bytes are the checksum.
FIXED = struct.Struct("<4sHBBQIIQQIIIIII")
CHUNK = struct.Struct("<II")

MAGIC = b"TREC"
FORMAT = 1
#: Of the unsafe size: as much, or more.
UNSAFE_SIZE_MAX = (1 << 32) - 1
BLANK = bytes(FIXED.size)
ENTRY_SIZE_MAX = 4 << 20
HEAD_SIZE_MAX = FIXED.size + ENTRY_SIZE_MAX + BLOCK_SIZE_MAX // CHUNK_SIZE * CHUNK.size


def life_of(sequence: int) -> int:
    """The life of a lane that a record with this number belongs to."""
    return sequence >> 32


def first_sequence(life: int) -> int:
    """The number of the first record of a life."""
    return life << 32


class Kind(IntEnum):
    """What a record is for."""

    ENTRY = 0
    DATA = 1
    #: Nothing: the rest of the block is not used.
    REST = 2
    #: Nothing: its writer has ended, and all before it in its life is safe.
    END = 3


class Place(NamedTuple):
    """Where a record begins."""

    container: int
    lane: LaneId
    address: int


@dataclass(frozen=True)
class Head:
    """What the head of a record tells."""

    kind: Kind
    codec: int
    place: Place
    sequence: int
    entry: Optional[Entry]
    data_size: int
    kept_size: int
    #: Checksum of what is kept of each chunk.
    sums: tuple[int, ...]
    #: Where in the record what is kept of each chunk begins, and where the last one ends.
    bounds: tuple[int, ...]
    unsafe_size: int

    @property
    def size(self) -> int:
        """Bytes before the data."""
        return self.bounds[0]

    @property
    def end(self) -> int:
        """Bytes of all of it."""
        return self.size + self.kept_size

    @property
    def span(self) -> int:
        """Bytes until the next record."""
        return -(-self.end // ALIGNMENT) * ALIGNMENT

    @property
    def life(self) -> int:
        """The life of the lane that it belongs to."""
        return life_of(self.sequence)

    @property
    def safe_end(self) -> int:
        """Its writer has known that all of its life before this address is safe."""
        return self.place.address - self.unsafe_size if self.unsafe_size < UNSAFE_SIZE_MAX else 0

    def chunk_size(self, chunk: int) -> int:
        """Bytes of data in a chunk."""
        return min(CHUNK_SIZE, self.data_size - chunk * CHUNK_SIZE)

    def proves(self, chunk: int, kept: bytes) -> bool:
        """Whether this is what was kept of a chunk."""
        size = self.bounds[chunk + 1] - self.bounds[chunk]
        return len(kept) == size and crc32c(kept) == self.sums[chunk]


class Blank(NamedTuple):
    """Nothing was ever written there."""


class Part(NamedTuple):
    """The first bytes of a head of so many."""

    size: int


class Damaged(NamedTuple):
    """Something else, and why it is no record of this place."""

    why: str


Found = Union[Head, Blank, Part, Damaged]


def head_size(data_size: int) -> int:
    """Size of the head of a record with so much data and no entry."""
    return FIXED.size + -(-data_size // CHUNK_SIZE) * CHUNK.size


def decode(data: bytes, place: Place) -> Found:
    """What ``data``, at least ``FIXED.size`` bytes from ``place`` on, begins with. Any number of a record is right."""
    fixed = data[: FIXED.size]
    if fixed == BLANK:
        return Blank()
    # As most of what is looked at while a scan searches is none.
    if fixed[:4] != MAGIC:
        return Damaged("it does not begin as a record")
    (_, version, number, codec_number, container, subfile, lane, address, sequence) = FIXED.unpack(fixed)[:9]
    entry_size, chunk_count, data_size, kept_size, unsafe_size, checksum = FIXED.unpack(fixed)[9:]
    if version != FORMAT:
        return Damaged("it has a format that this version does not know")
    if number > Kind.END:
        return Damaged("it is of no known kind")
    if codec_number not in codec.KNOWN:
        return Damaged("its data was made smaller in a way that this version does not know")
    kind = Kind(number)
    size = FIXED.size + entry_size + chunk_count * CHUNK.size
    if size > HEAD_SIZE_MAX or chunk_count != -(-data_size // CHUNK_SIZE):
        return Damaged("its sizes contradict each other")
    if len(data) < size:
        return Part(size)
    rest = data[FIXED.size : size]
    if crc32c(fixed[:-4], rest) != checksum:
        return Damaged("its checksum is wrong")
    told = Place(container, LaneId(subfile, lane), address)
    if told != place:
        return Damaged("it belongs to another place")
    change = None
    if kind == Kind.ENTRY:
        try:
            change = entry.decode(rest[:entry_size])
        except FormatError as error:
            return Damaged(f"its entry cannot be read: {error}")
    chunks = list(CHUNK.iter_unpack(rest[entry_size:]))
    head = Head(
        kind=kind,
        codec=codec_number,
        place=told,
        sequence=sequence,
        entry=change,
        data_size=data_size,
        kept_size=kept_size,
        sums=tuple(checksum for _, checksum in chunks),
        bounds=tuple(accumulate((kept for kept, _ in chunks), initial=size)),
        unsafe_size=unsafe_size,
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
