"""Scan of lanes, record by record, across damaged and unfinished parts."""

from collections.abc import Iterator
from typing import NamedTuple, Optional, Union

from . import record
from .geometry import LaneId, Superblock
from .index import LaneEnd
from .record import ALIGNMENT, FIXED, Blank, Damaged, Found, Head, Kind, Part, Position, first_sequence
from .source import Source

#: Maximum bytes per read, for consecutive heads.
WINDOW_SIZE_MAX = 256 << 10
#: Minimum bytes per read, where no record may be.
WINDOW_SIZE_MIN = 4 << 10
#: Bytes of a window that are decoded first: most heads are smaller.
HEAD_READ_SIZE = 1 << 10

#: Damage of an incomplete record; the two causes cannot be distinguished.
TORN = "it is incomplete: its writer failed, or the subfile was truncated or damaged"


class Damage(NamedTuple):
    """A damaged part of a lane."""

    lane: LaneId
    address: int
    why: str

    def __str__(self) -> str:
        return f"at address {self.address} in {self.lane}: {self.why}"


class LaneScan:
    """Iterates over the records of a lane and the damage between them, from the end of an earlier scan."""

    def __init__(self, source: Source, superblock: Superblock, start: LaneEnd) -> None:
        self._source = source
        self._superblock = superblock
        self._lane = start.lane
        self._end = superblock.address_end(start.lane.lane, source.size)
        self._window = b""
        self._window_at = 0
        self._window_size = WINDOW_SIZE_MIN
        #: End of the last record that was found.
        self.known_end = start

    def __iter__(self) -> Iterator[tuple[LaneEnd, Union[Head, Damage]]]:
        """Each record or damage, with the known end before it."""
        address, sequence = self.known_end.address, self.known_end.sequence
        while address < self._end:
            block_end = self._superblock.block_end(address)
            found = self._decode_at(address)
            if isinstance(found, Damaged):
                yield self.known_end, Damage(self._lane, address, found.why)
                address = self._find_record(address + ALIGNMENT, block_end)
            elif isinstance(found, Part):
                yield self.known_end, Damage(self._lane, address, TORN)
                address = self._find_record(address + ALIGNMENT, block_end)
            elif isinstance(found, Blank):
                # The end of an incarnation or of a failed writer. The next one may begin in the next block.
                address = block_end
            elif address + found.end > min(self._end, block_end):
                yield self.known_end, Damage(self._lane, address, TORN)
                address = block_end
            else:
                # Each incarnation has its own sequence numbers.
                missing = found.sequence - max(sequence, first_sequence(found.incarnation))
                if missing > 0:
                    yield self.known_end, Damage(self._lane, address, f"{missing} records before it are missing")
                before, sequence = self.known_end, found.sequence + 1
                address = block_end if found.kind in (Kind.REST, Kind.END) else address + found.span
                self.known_end = LaneEnd(self._lane, address, sequence, found.kind == Kind.END)
                yield before, found

    def _find_record(self, address: int, block_end: int) -> int:
        """The address of the first record of the block from ``address`` on, or the end of the block."""
        for position in range(address, min(block_end, self._end), ALIGNMENT):
            if isinstance(self._decode_at(position), Head):
                return position
        return block_end

    def _decode_at(self, address: int) -> Found:
        position = Position(self._superblock.container, self._lane, address)
        data = self._read(address, FIXED.size)
        if data is None:
            # The subfile ends within a head, which only truncation leaves.
            offset = self._superblock.offset(self._lane.lane, address)
            rest = self._source.read_at(offset, min(self._end - address, FIXED.size))
            return Part(FIXED.size) if any(rest) else Blank()
        found = record.decode(data, position)
        if isinstance(found, Part):
            data = self._read(address, found.size)
            return found if data is None else record.decode(data, position)
        return found

    def _read(self, address: int, size: int) -> Optional[bytes]:
        """At least ``size`` bytes; ``None`` if the block or the subfile ends before that."""
        rest = min(self._superblock.block_end(address), self._end) - address
        if rest < size:
            return None
        at = address - self._window_at
        if at < 0 or at + size > len(self._window):
            # Consecutive heads are read in growing windows.
            follows = self._window != b"" and 0 <= at <= len(self._window) + self._window_size
            self._window_size = min(self._window_size * 4, WINDOW_SIZE_MAX) if follows else WINDOW_SIZE_MIN
            offset = self._superblock.offset(self._lane.lane, address)
            self._window = self._source.read_at(offset, min(rest, max(size, self._window_size)))
            self._window_at, at = address, 0
            if len(self._window) < size:
                return None
        return self._window[at : at + max(size, HEAD_READ_SIZE)]
