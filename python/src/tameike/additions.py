"""What lanes have beyond the index of a container; where it has none, all that they have.

What was added to a lane is found from where the index ends in it, or the last look. A record before the last place
that its writer has known to be safe is believed by its head, and what comes after that when all of its data has the
right checksums. What a writer has known it says of its own life of the lane alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Optional

from .entry import printable, split_path
from .geometry import LaneId, Superblock
from .index import Index, IndexEntry, Key, LaneEnd, entry_of
from .record import Head
from .scan import Damage, LaneScan
from .source import Source
from .subfile import LaneState


@dataclass(frozen=True)
class Additions:
    """What was found of lanes. It is never changed: who looks again makes another one."""

    #: How far each lane is known.
    ends: dict[LaneId, LaneEnd] = field(default_factory=dict)
    #: Of each path what is so, removals among it.
    newest: dict[Key, IndexEntry] = field(default_factory=dict)
    #: What is damaged of the records that were gone through.
    damage: list[Damage] = field(default_factory=list)
    #: Entries that are not believed.
    refused: list[tuple[Key, IndexEntry]] = field(default_factory=list)


class Look:
    """A look at lanes, which goes on where the one before has ended."""

    def __init__(
        self,
        before: Additions,
        superblock: Superblock,
        index: Optional[Index],
        lacks_data: Callable[[IndexEntry], bool],
    ) -> None:
        """``lacks_data`` tells whether some of an entry's data is not what was written."""
        self._superblock = superblock
        self._index = index
        self._lacks_data = lacks_data
        self._before = before
        self._ends = dict(before.ends)
        self._newest = before.newest
        self._damage = before.damage
        self._refused = before.refused

    def additions(self) -> Additions:
        """All that was found by now."""
        self._forget_replaced()
        return Additions(self._ends, self._newest, self._damage, self._refused)

    def subfile(self, number: int, source: Source, states: Iterable[LaneState]) -> None:
        """Looks at those lanes of a subfile that may have more."""
        for at, state in enumerate(states):
            lane = LaneId(number, at)
            end = self._ends.get(lane, LaneEnd(lane))
            # Without an index nothing is believed that could be damaged.
            may_go_on = not end.is_finished and (state.life != 0 or self._index is None)
            if state.life != end.life or may_go_on:
                self._lane(source, end)

    def _lane(self, source: Source, start: LaneEnd) -> None:
        scan = LaneScan(source, self._superblock, start)
        # What was not yet all there is looked at again.
        self._damage = [
            damage for damage in self._damage if damage.lane != start.lane or damage.address < start.address
        ]
        self._refused = [
            (key, entry) for key, entry in self._refused if entry.lane != start.lane or entry.address < start.address
        ]
        life = Life(start.life)
        for before, step in scan:
            if isinstance(step, Damage):
                self._damage.append(step)
                life.doubtful = life.doubtful or before
                continue
            if step.life != life.number:
                self._settle(life)
                life = Life(step.life)
            life.safe_end = max(life.safe_end, step.safe_end)
            entry = index_entry(step)
            if entry is not None:
                life.entries.append((before, *entry))
        doubtful, end = self._settle(life), scan.known_end
        if doubtful is not None and not end.is_finished:
            end = doubtful._replace(is_finished=False)
        self._ends[start.lane] = end

    def _settle(self, life: "Life") -> Optional[LaneEnd]:
        """What may be there in part is believed when it is there; a removal when all before it is.

        That may be where its file is now. Returns where the first thing is that is not believed.
        """
        doubtful = life.doubtful
        for before, key, entry in life.entries:
            is_behind = doubtful is not None and doubtful.address <= before.address
            is_removal = entry.kind is None
            if entry.address < life.safe_end or not (is_behind if is_removal else self._lacks_data(entry)):
                self._add(key, entry)
                continue
            what = "is not all there:"
            if is_removal:
                what = "may be back: its removal comes after what is not all there, and"
            why = f"{printable(entry.path)} {what} its writer has never known it to be safe"
            self._damage.append(Damage(entry.lane, entry.address, why))
            self._refused.append((key, entry))
            if not is_behind:
                doubtful = before
        return doubtful

    def _forget_replaced(self) -> None:
        """What is not believed is no damage where the path was put again since.

        A writer that was started again does so, of what it had kept.
        """
        replaced = {(entry.lane, entry.address) for key, entry in self._refused if self._version(key) > entry.version}
        if replaced:
            self._refused = [
                (key, entry) for key, entry in self._refused if (entry.lane, entry.address) not in replaced
            ]
            self._damage = [damage for damage in self._damage if (damage.lane, damage.address) not in replaced]

    def _version(self, key: Key) -> int:
        """Of what is so at a path, also of a removal."""
        indexed = self._index.find(key) if self._index is not None else None
        return max((told.version for told in (indexed, self._newest.get(key)) if told is not None), default=0)

    def _add(self, key: Key, entry: IndexEntry) -> None:
        known = self._newest.get(key)
        if known is not None and known.rank > entry.rank:
            return
        if self._newest is self._before.newest:
            self._newest = dict(self._newest)
        self._newest[key] = entry


@dataclass
class Life:
    """What was found of a life of a lane."""

    number: int
    #: Its writer has known that what is before is safe.
    safe_end: int = 0
    #: Entries, and where the record before each ends.
    entries: list[tuple[LaneEnd, Key, IndexEntry]] = field(default_factory=list)
    #: Where the record before the first damage ends.
    doubtful: Optional[LaneEnd] = None


def index_entry(head: Head) -> Optional[tuple[Key, IndexEntry]]:
    """What an index has of a record, if it has an entry."""
    if head.entry is None:
        return None
    path, version, node = head.entry
    return split_path(path), entry_of(path, version, head.place.lane, head.place.address, head.end, node)
