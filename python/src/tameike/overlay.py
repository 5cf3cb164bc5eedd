"""The entries of a container: its index, overlaid with entries that were added later."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Optional

from .index import Index, IndexEntry, Key


class Overlay:
    """The newest entry of each path, without removed paths."""

    def __init__(self, index: Optional[Index], added: dict[Key, IndexEntry]) -> None:
        self._index = index
        self._added = added
        self._keys = sorted(added)

    def find(self, key: Key) -> Optional[IndexEntry]:
        newest = self._added.get(key)
        if self._index is not None:
            newest = _newest(newest, self._index.find(key))
        return newest if newest is not None and newest.kind is not None else None

    def seek(self, key: Key) -> Optional[Key]:
        """The first path at or after ``key``."""
        while True:
            at = bisect_left(self._keys, key)
            keys = self._keys[at : at + 1]
            indexed = self._index.seek(key) if self._index is not None else None
            if indexed is not None:
                keys.append(indexed)
            if not keys:
                return None
            first = min(keys)
            if first not in self._added or self.find(first) is not None:
                return first
            # It was removed. No name sorts in between.
            key = first[0], first[1] + b"\0"

    def iterate(self, key: Key) -> Iterator[tuple[Key, IndexEntry]]:
        """All entries at or after ``key``."""
        at = bisect_left(self._keys, key)
        for indexed, entry in self._index.iterate(key) if self._index is not None else ():
            while at < len(self._keys) and self._keys[at] < indexed:
                yield from self._present(self._keys[at])
                at += 1
            newest: Optional[IndexEntry] = entry
            if at < len(self._keys) and self._keys[at] == indexed:
                newest = _newest(self._added[indexed], entry)
                at += 1
            if newest is not None and newest.kind is not None:
                yield indexed, newest
        for rest in range(at, len(self._keys)):
            yield from self._present(self._keys[rest])

    def _present(self, key: Key) -> Iterator[tuple[Key, IndexEntry]]:
        entry = self._added[key]
        if entry.kind is not None:
            yield key, entry


def _newest(added: Optional[IndexEntry], indexed: Optional[IndexEntry]) -> Optional[IndexEntry]:
    if added is None or indexed is None:
        return added or indexed
    return indexed if indexed.rank > added.rank else added
