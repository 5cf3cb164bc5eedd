"""The paths of a container, with directories that have no entry, and resolution of symbolic links."""

import errno
import heapq
import os
from collections.abc import Callable, Iterator
from typing import Optional, Protocol

from .entry import encoded, split_path, text
from .index import IndexEntry, Key, implied_directory

#: Maximum number of symbolic links in one resolution, as on Linux.
LINKS_MAX = 40


class Names(Protocol):
    """Access to entries by path."""

    def find(self, key: Key) -> Optional[IndexEntry]: ...

    def seek(self, key: Key) -> Optional[Key]: ...

    def iterate(self, key: Key) -> Iterator[tuple[Key, IndexEntry]]: ...


class Tree:
    """The paths of a container."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def children(self, directory: bytes) -> Iterator[IndexEntry]:
        """Entries of a directory, by name."""
        # Both are sorted by name, and disjoint.
        return heapq.merge(self._entries(directory), self._implied(directory), key=lambda child: encoded(child.path))

    def walk(self, directory: bytes) -> Iterator[IndexEntry]:
        """All entries below a directory."""
        yield from self._entries(directory)
        # `0` sorts after `/`: the range contains all directories below this one, and none beside it.
        first, last = (directory + b"/", directory + b"0") if directory else (b"\0", None)
        for (parent, _), entry in self._names.iterate((first, b"")):
            if last is not None and parent >= last:
                return
            yield entry

    def _at(self, path: bytes) -> Optional[IndexEntry]:
        """The entry of a path, without following links."""
        if not path:
            return implied_directory(path)
        entry = self._names.find(split_path(path))
        if entry is None and self._has_some_below(path):
            entry = implied_directory(path)
        return entry

    def _has_some_below(self, path: bytes) -> bool:
        inside = self._names.seek((path, b""))
        if inside is not None and inside[0] != path:
            # Names with characters less than `/` sort in between.
            inside = self._names.seek((path + b"/", b""))
        return inside is not None and (inside[0] == path or inside[0].startswith(path + b"/"))

    def resolve(self, path: bytes, follow: bool, target: Callable[[IndexEntry], bytes]) -> Optional[IndexEntry]:
        """The entry of a path after its links are followed, the last one only with ``follow``."""
        entry = self._at(path)
        if entry is None:
            parent, name = split_path(path)
            directory = self._at(parent)
            is_plain = name not in (b".", b"..")
            if is_plain and directory is not None and directory.is_dir():
                return None
        elif not (follow and entry.is_symlink()):
            return entry
        return self._resolve_by_step(path, follow, target)

    def _resolve_by_step(
        self, path: bytes, follow: bool, target: Callable[[IndexEntry], bytes]
    ) -> Optional[IndexEntry]:
        done, steps, links = b"", path.split(b"/")[::-1], 0
        while steps:
            name = steps.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                if not done:
                    # The path leads out of the container.
                    return None
                done = split_path(done)[0]
                continue
            at = done + b"/" + name if done else name
            entry = self._at(at)
            if entry is None:
                return None
            if entry.is_symlink() and (follow or steps):
                links += 1
                if links > LINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), text(path))
                to = target(entry)
                if to.startswith(b"/"):
                    return None
                steps.extend(to.split(b"/")[::-1])
            elif steps and not entry.is_dir():
                return None
            else:
                done = at
        return self._at(done)

    def _entries(self, directory: bytes) -> Iterator[IndexEntry]:
        """Entries of a directory."""
        for (parent, _), entry in self._names.iterate((directory, b"")):
            if parent != directory:
                return
            yield entry

    def _implied(self, directory: bytes) -> list[IndexEntry]:
        """Subdirectories without an entry that contain something."""
        prefix = directory + b"/" if directory else b""
        seen: set[bytes] = set()
        implied = []
        # No name begins with a NUL.
        following = self._names.seek((prefix or b"\0", b""))
        while following is not None and following[0].startswith(prefix):
            below = following[0]
            name = below[len(prefix) :].split(b"/", 1)[0]
            child = prefix + name
            if name not in seen:
                seen.add(name)
                if self._names.find((directory, name)) is None:
                    implied.append(implied_directory(child))
            # Skip what is in the directory, then what is below it.
            following = self._names.seek((child + (b"\0" if below == child else b"0"), b""))
        return sorted(implied, key=lambda entry: encoded(entry.path))
