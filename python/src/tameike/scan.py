"""Going through lanes, from record to record, also where some of it is damaged or was never finished."""

from collections.abc import Iterator
from typing import NamedTuple, Optional, Union

from . import record
from .geometry import LaneId, Superblock
from .index import LaneEnd
from .record import ALIGNMENT, FIXED, Blank, Damaged, Found, Head, Kind, Part, Place, first_sequence
from .source import Source

#: Bytes that are read at once, where heads stand close to each other.
WINDOW_SIZE_MAX = 256 << 10
#: The same where nothing may stand.
WINDOW_SIZE_MIN = 4 << 10
#: Bytes of a window that are looked at for a record: most heads are smaller.
LOOK_SIZE = 1 << 10

#: Why a record is none that begins as one: nobody can tell which of the two.
TORN = "it is not all there: its writer did not come to its end, or the subfile was cut or damaged"


class Damage(NamedTuple):
    """Something of a container that is not as it was written."""

    lane: LaneId
    address: int
    why: str

    def __str__(self) -> str:
        return f"at address {self.address} in {self.lane}: {self.why}"


class LaneScan:
    """The records of a lane in their order, from where a scan has ended before, and what is damaged between them."""

    def __init__(self, source: Source, superblock: Superblock, start: LaneEnd) -> None:
        self._source = source
        self._superblock = superblock
        self._lane = start.lane
        self._end = superblock.address_end(start.lane.lane, source.size)
        self._window = b""
        self._window_at = 0
        self._window_size = WINDOW_SIZE_MIN
        #: What comes after the last record that was found.
        self.known_end = start

    def __iter__(self) -> Iterator[tuple[LaneEnd, Union[Head, Damage]]]:
        """Each with what was the known end before it."""
        address, sequence = self.known_end.address, self.known_end.sequence
        while address < self._end:
            block_end = self._superblock.block_end(address)
            found = self._look(address)
            if isinstance(found, Damaged):
                yield self.known_end, Damage(self._lane, address, found.why)
                address = self._find_record(address + ALIGNMENT, block_end)
            elif isinstance(found, Part):
                yield self.known_end, Damage(self._lane, address, TORN)
                address = self._find_record(address + ALIGNMENT, block_end)
            elif isinstance(found, Blank):
                # The end of a life, or of what was written before its writer died. Another may have gone on behind it.
                address = block_end
            elif address + found.end > min(self._end, block_end):
                yield self.known_end, Damage(self._lane, address, TORN)
                address = block_end
            else:
                # A new life has numbers of its own.
                missing = found.sequence - max(sequence, first_sequence(found.life))
                if missing > 0:
                    yield self.known_end, Damage(self._lane, address, f"{missing} records before it are missing")
                before, sequence = self.known_end, found.sequence + 1
                address = block_end if found.kind in (Kind.REST, Kind.END) else address + found.span
                self.known_end = LaneEnd(self._lane, address, sequence, found.kind == Kind.END)
                yield before, found

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
            # Less than a head is left of the subfile, which only a cut leaves.
            offset = self._superblock.offset(self._lane.lane, address)
            rest = self._source.read_at(offset, min(self._end - address, FIXED.size))
            return Part(FIXED.size) if any(rest) else Blank()
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
            # Where heads follow each other more is read at once.
            follows = self._window != b"" and 0 <= at <= len(self._window) + self._window_size
            self._window_size = min(self._window_size * 4, WINDOW_SIZE_MAX) if follows else WINDOW_SIZE_MIN
            offset = self._superblock.offset(self._lane.lane, address)
            self._window = self._source.read_at(offset, min(room, max(size, self._window_size)))
            self._window_at, at = address, 0
            if len(self._window) < size:
                return None
        return self._window[at : at + max(size, LOOK_SIZE)]
