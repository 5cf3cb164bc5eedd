"""A subfile's header: how often each of its lanes was begun.

0             32           36              40      104     128
+------------+------------+---------------+-------+-------+--------------------+
| superblock | owner      | crc32c of the | owner | zeros | lives              |
|            | size u32   | owner u32     |       |       | u32 of each lane   |
+------------+------------+---------------+-------+-------+--------------------+

Whose it is only writers ask.
"""

import re
import struct
from typing import NamedTuple, Optional

from .source import Source

#: Where the numbers of lanes' lives begin.
LIVES_AT = 128
#: Of a lane's number: its writer has ended.
FINISHED = 1 << 31

_NAME = re.compile(r"([0-9a-f]{8})\.data")


class LaneState(NamedTuple):
    """How a lane stands."""

    #: How often it was begun.
    life: int
    #: Whether the last who began it has ended as it should.
    is_finished: bool


def lane_states(source: Source, lanes: int) -> list[LaneState]:
    """How each lane of a subfile stands. What the file is too short for was never written."""
    size = 4 * lanes
    numbers = source.read_at(LIVES_AT, size).ljust(size, b"\0")
    return [LaneState(number & ~FINISHED, number & FINISHED != 0) for (number,) in struct.iter_unpack("<I", numbers)]


def name_of(number: int) -> str:
    """What a subfile is called."""
    return f"{number:08x}.data"


def number_of(name: str) -> Optional[int]:
    """The number of the subfile that is called so."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None
