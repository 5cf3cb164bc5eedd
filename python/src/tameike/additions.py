"""Entries of lanes beyond the index of a container; all entries if it has no index.

Each lane is scanned from where the index or the last scan ended in it. A record that its writer knew to be durable is
valid by its head. A later one is valid if all of its data has the right checksums. What a writer knew applies to its
own incarnation of the lane only.
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
    """Result of scans. It is immutable: a refresh makes another one."""

    #: End of the scanned part of each lane.
    ends: dict[LaneId, LaneEnd] = field(default_factory=dict)
    #: Newest entry of each path, including removals.
    newest: dict[Key, IndexEntry] = field(default_factory=dict)
    #: Damage found by scans.
    damage: list[Damage] = field(default_factory=list)
    #: Entries that are not valid.
    refused: list[tuple[Key, IndexEntry]] = field(default_factory=list)


class AdditionsScan:
    """Scan of lanes, from where the last one ended."""

    def __init__(
        self,
        before: Additions,
        superblock: Superblock,
        index: Optional[Index],
        lacks_data: Callable[[IndexEntry], bool],
    ) -> None:
        """``lacks_data`` returns whether some of an entry's data is missing or damaged."""
        self._superblock = superblock
        self._index = index
        self._lacks_data = lacks_data
        self._before = before
        self._ends = dict(before.ends)
        self._newest = before.newest
        self._damage = before.damage
        self._refused = before.refused

    def additions(self) -> Additions:
        """All entries found so far."""
        self._forget_replaced_damage()
        return Additions(self._ends, self._newest, self._damage, self._refused)

    def subfile(self, number: int, source: Source, states: Iterable[LaneState]) -> None:
        """Scans those lanes of a subfile that may have more."""
        for at, state in enumerate(states):
            lane = LaneId(number, at)
            end = self._ends.get(lane, LaneEnd(lane))
            # Without an index, incarnation 0 in the header is not trusted: it may be damaged.
            may_go_on = not end.is_finished and (state.incarnation != 0 or self._index is None)
            if state.incarnation != end.incarnation or may_go_on:
                self._lane(source, end)

    def _lane(self, source: Source, start: LaneEnd) -> None:
        scan = LaneScan(source, self._superblock, start)
        # Incomplete records are scanned again.
        self._damage = [
            damage for damage in self._damage if damage.lane != start.lane or damage.address < start.address
        ]
        self._refused = [
            (key, entry) for key, entry in self._refused if entry.lane != start.lane or entry.address < start.address
        ]
        current = Incarnation(start.incarnation)
        for before, step in scan:
            if isinstance(step, Damage):
                self._damage.append(step)
                current.first_invalid = current.first_invalid or before
                continue
            if step.incarnation != current.number:
                self._add_valid(current)
                current = Incarnation(step.incarnation)
            current.durable_end = max(current.durable_end, step.durable_end)
            entry = index_entry(step)
            if entry is not None:
                current.entries.append((before, *entry))
        first_invalid, end = self._add_valid(current), scan.known_end
        if first_invalid is not None and not end.is_finished:
            end = first_invalid._replace(is_finished=False)
        self._ends[start.lane] = end

    def _add_valid(self, current: "Incarnation") -> Optional[LaneEnd]:
        """Adds the valid entries of an incarnation. Returns the end before the first invalid one or damage.

        Entries not known to be durable are valid if their data is complete; a removal only if nothing before it is
        missing, as a rename puts the new path before it removes the old one.
        """
        first_invalid = current.first_invalid
        for before, key, entry in current.entries:
            is_behind = first_invalid is not None and first_invalid.address <= before.address
            is_removal = entry.kind is None
            if entry.address < current.durable_end or not (is_behind if is_removal else self._lacks_data(entry)):
                self._add(key, entry)
                continue
            if is_removal:
                what = (
                    "may have reappeared: its removal was not known to be durable, and records before it are missing "
                    "or damaged"
                )
            else:
                what = "is incomplete: its writer failed before it was durable"
            why = f"{printable(entry.path)} {what}"
            self._damage.append(Damage(entry.lane, entry.address, why))
            self._refused.append((key, entry))
            if not is_behind:
                first_invalid = before
        return first_invalid

    def _forget_replaced_damage(self) -> None:
        """Forgets damage of entries whose path was written again: a restarted writer repeats what it had kept."""
        replaced = {(entry.lane, entry.address) for key, entry in self._refused if self._version(key) > entry.version}
        if replaced:
            self._refused = [
                (key, entry) for key, entry in self._refused if (entry.lane, entry.address) not in replaced
            ]
            self._damage = [damage for damage in self._damage if (damage.lane, damage.address) not in replaced]

    def _version(self, key: Key) -> int:
        """Of the newest entry or removal of a path."""
        indexed = self._index.find(key) if self._index is not None else None
        return max((entry.version for entry in (indexed, self._newest.get(key)) if entry is not None), default=0)

    def _add(self, key: Key, entry: IndexEntry) -> None:
        known = self._newest.get(key)
        if known is not None and known.rank > entry.rank:
            return
        if self._newest is self._before.newest:
            self._newest = dict(self._newest)
        self._newest[key] = entry


@dataclass
class Incarnation:
    """Result of scanning one incarnation of a lane."""

    number: int
    #: The writer knew everything before this address to be durable.
    durable_end: int = 0
    #: Entries, each with the end of the record before it.
    entries: list[tuple[LaneEnd, Key, IndexEntry]] = field(default_factory=list)
    #: End of the record before the first damage.
    first_invalid: Optional[LaneEnd] = None


def index_entry(head: Head) -> Optional[tuple[Key, IndexEntry]]:
    """The index entry of a record; ``None`` if it has no entry."""
    if head.entry is None:
        return None
    path, version, node = head.entry
    return split_path(path), entry_of(path, version, head.position.lane, head.position.address, head.end, node)
