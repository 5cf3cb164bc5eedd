"""Header of a subfile: the incarnation of each lane.

0             32           36              40      104     128
+------------+------------+---------------+-------+-------+--------------------+
| superblock | owner      | crc32c of the | owner | zeros | incarnations       |
|            | size u32   | owner u32     |       |       | u32 of each lane   |
+------------+------------+---------------+-------+-------+--------------------+

Only writers use the owner.
"""

import re
import struct
from typing import NamedTuple, Optional

from .source import Source

#: Offset of the lanes' incarnations.
INCARNATIONS_AT = 128
#: Bit of a lane's number: its writer has finished.
FINISHED = 1 << 31

_NAME = re.compile(r"([0-9a-f]{8})\.data")


class LaneState(NamedTuple):
    """State of a lane."""

    #: Incarnation: how often the lane was claimed.
    incarnation: int
    #: True if the writer of this incarnation has finished.
    is_finished: bool


def lane_states(source: Source, lanes: int) -> list[LaneState]:
    """The state of each lane of a subfile. Numbers beyond the end of the file were never written."""
    size = 4 * lanes
    numbers = source.read_at(INCARNATIONS_AT, size).ljust(size, b"\0")
    return [LaneState(number & ~FINISHED, number & FINISHED != 0) for (number,) in struct.iter_unpack("<I", numbers)]


def name_of(number: int) -> str:
    """The file name of a subfile."""
    return f"{number:08x}.data"


def number_of(name: str) -> Optional[int]:
    """The number of a subfile by its file name; ``None`` for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None
