"""Going through lanes, from record to record, also where some of it is damaged or was never finished.

What a container without an index has is found so. A record before the last place that its writer has known to be safe
is believed by its head, and what comes after that when all of its data has the right checksums.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, Optional, Union

from . import record
from .entry import Entry, split_path
from .geometry import LaneId, Superblock
from .index import IndexEntry, Key, entry_of
from .record import ALIGNMENT, FIXED, Blank, Damaged, Found, Head, Kind, Part, Place
from .source import Source

#: Bytes that are read at once.
WINDOW_SIZE = 256 << 10
#: Bytes of a window that are looked at for a record: most heads are smaller.
LOOK_SIZE = 1 << 10
#: Of the unsafe size: as much, or more.
UNSAFE_SIZE_MAX = (1 << 32) - 1


class Damage(NamedTuple):
    """Something of a container that is not as it was written."""

    lane: LaneId
    address: int
    why: str

    def __str__(self) -> str:
        return f"at address {self.address} in {self.lane}: {self.why}"


class LaneScan:
    """The records of a lane in their order, and what is damaged between them."""

    def __init__(self, source: Source, superblock: Superblock, lane: LaneId) -> None:
        self._source = source
        self._superblock = superblock
        self._lane = lane
        self._end = superblock.address_end(lane.lane, source.size)
        self._window = b""
        self._window_at = 0
        #: Its writer has known that what is before is safe.
        self.safe_end = 0

    def __iter__(self) -> Iterator[Union[Head, Damage]]:
        address = sequence = 0
        while address < self._end:
            block_end = self._superblock.block_end(address)
            found = self._look(address)
            if isinstance(found, Damaged):
                yield Damage(self._lane, address, found.why)
                address = self._find_record(address + ALIGNMENT, block_end)
            elif isinstance(found, (Blank, Part)) or address + found.end > min(self._end, block_end):
                # The end of the lane, or of what was written before its writer died, or the file was cut. Others may
                # have gone on with the next block.
                address = block_end
            else:
                if found.sequence > sequence:
                    missing = found.sequence - sequence
                    yield Damage(self._lane, address, f"{missing} records before it are missing")
                sequence = found.sequence + 1
                if found.unsafe_size < UNSAFE_SIZE_MAX:
                    self.safe_end = max(self.safe_end, address - found.unsafe_size)
                address = block_end if found.kind == Kind.REST else address + found.span
                yield found

    def _find_record(self, address: int, block_end: int) -> int:
        """The first record of the block from an address on, or its end."""
        for place in range(address, min(block_end, self._end), ALIGNMENT):
            if isinstance(self._look(place), Head):
                return place
        return block_end

    def _look(self, address: int) -> Found:
        place = Place(self._superblock.container, self._lane, address)
        data = self._read(address, FIXED.size)
        if data is None:
            return Part(FIXED.size)
        found = record.decode(data, place)
        if isinstance(found, Part):
            data = self._read(address, found.size)
            return found if data is None else record.decode(data, place)
        return found

    def _read(self, address: int, size: int) -> Optional[bytes]:
        """So many bytes, and maybe more; nothing where block or subfile end before."""
        room = min(self._superblock.block_end(address), self._end) - address
        if room < size:
            return None
        at = address - self._window_at
        if at < 0 or at + size > len(self._window):
            offset = self._superblock.offset(self._lane.lane, address)
            self._window = self._source.read_at(offset, min(room, max(size, WINDOW_SIZE)))
            self._window_at, at = address, 0
            if len(self._window) < size:
                return None
        return self._window[at : at + max(size, LOOK_SIZE)]


def index_entry(head: Head, change: Entry) -> IndexEntry:
    """What an index has of a record and the entry that it has."""
    path, version, node = change
    return entry_of(path, version, head.place.lane, head.place.address, head.end, node)


class Scanned:
    """What lanes have told, in the order of an index."""

    def __init__(self, found: dict[bytes, IndexEntry]) -> None:
        there = [(split_path(path), entry) for path, entry in found.items() if entry.kind is not None]
        there.sort(key=lambda item: item[0])
        self._keys: list[Key] = [key for key, _ in there]
        self._entries = [entry for _, entry in there]

    def find(self, key: Key) -> Optional[IndexEntry]:
        at = bisect_left(self._keys, key)
        return self._entries[at] if self._keys[at : at + 1] == [key] else None

    def seek(self, key: Key) -> Optional[Key]:
        at = bisect_left(self._keys, key)
        return self._keys[at] if at < len(self._keys) else None

    def iterate(self, key: Key) -> Iterator[tuple[Key, IndexEntry]]:
        for at in range(bisect_left(self._keys, key), len(self._keys)):
            yield self._keys[at], self._entries[at]
