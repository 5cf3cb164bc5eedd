"""A container that is open for reading. It shows the state at the time of the open, or of the last refresh.

An open reads the end of the index and the headers of the subfiles. A lookup reads a page of the index, and a small
file takes one read of its record. Nothing is written or locked. Threads, forked and spawned processes may read in
parallel.
"""

import errno
import os
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Optional, Union

from . import geometry, record, source, subfile
from .additions import Additions, AdditionsScan
from .entry import FileKind, Node, encoded, printable, text
from .errors import DamagedError, DamageWarning, damaged, no_container
from .external import PREFIX, external_of
from .geometry import ADDRESS_MAX, LaneId, Superblock
from .index import Index, IndexEntry, implied_directory
from .overlay import Overlay
from .reader import ContainerFile, FileReader
from .record import FIXED, Blank, Damaged, Head, Part, Position
from .scan import Damage
from .source import Directory, Source
from .tree import Tree

AnyPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

#: Subfiles that stay open.
SUBFILES_KEPT = 64
#: Attempts to open a container while it is compacted.
ATTEMPTS_MAX = 10


@dataclass(frozen=True)
class Shown:
    """State of an open container."""

    #: The index it was opened by; ``None`` without one.
    index: Optional[Index]
    #: Entries beyond the index.
    additions: Additions
    tree: Tree
    #: Some files have external content.
    has_external: bool = False


class Container:
    """A container of ``tameike agg create`` or of other programs, open for reading.

    ``path`` is its directory, or a URL of fsspec. With ``protocol`` (and ``options`` for it) it is a path of that file
    system.

    An open also scans lanes for entries that were added after the index was written. It scans all lanes if there is no
    index, or with ``use_index=False``. Damage found by scans is in `damage`, and raises a `DamageWarning`. Entries that
    other processes add while it is open are visible after `refresh`.

    Paths are relative to the root of the container. Names that are not UTF-8 are decoded as by `os.fsdecode`. Symbolic
    links are followed within the container, by the methods that say so.
    """

    def __init__(
        self,
        path: Union[str, "os.PathLike[str]"],
        *,
        protocol: Optional[str] = None,
        options: Optional[dict[str, Any]] = None,
        use_index: bool = True,
    ) -> None:
        self._directory = source.directory(path, protocol, options)
        is_local = isinstance(self._directory, source.LocalDirectory)
        where = self._directory.path if is_local else os.fspath(path)
        self._origin = (where, protocol, options, use_index)
        #: The directory, for messages.
        self.path = self._directory.path
        self._superblock = self._read_superblock()
        self._subfile = lru_cache(maxsize=SUBFILES_KEPT)(partial(_open_subfile, self._directory))
        self._use_index = use_index
        self._turn = (os.getpid(), threading.Lock())
        self._shown = Shown(None, Additions(), Tree(Overlay(None, {})))
        self._update()

    def __repr__(self) -> str:
        return f"<tameike.Container {self.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._origin

    @property
    def identity(self) -> int:
        """Unique number of the container."""
        return self._superblock.container

    @property
    def has_index(self) -> bool:
        """True if it was opened by its index."""
        return self._shown.index is not None

    @property
    def damage(self) -> list[Damage]:
        """Damage found by scans. Indexed records are checked when they are read."""
        return self._shown.additions.damage

    def refresh(self) -> None:
        """Scans for entries that were added since the open or the last refresh, and uses a newer index if there is one.

        Incomplete records are scanned again. Open files keep their content, unless the container is compacted: then
        their bytes may be gone.
        """
        with self._refresh_lock():
            self._forget()
            self._update()

    # Names

    def exists(self, path: AnyPath) -> bool:
        """True if a path exists after all links are followed."""
        try:
            return self._resolve(_inner(path), follow=True) is not None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return False
            raise

    def find(self, path: AnyPath) -> Optional[IndexEntry]:
        """The entry of a path; ``None`` if it does not exist. Links in the path are followed, except the last one.

        A directory without an entry exists if it contains something.
        """
        entry = self._resolve(_inner(path), follow=False)
        return None if entry is None else self._with_external(entry)

    def follow(self, path: AnyPath) -> IndexEntry:
        """The entry of a path after all links are followed. `FileNotFoundError` if it does not exist."""
        inner = _inner(path)
        entry = self._resolve(inner, follow=True)
        if entry is None:
            raise self._no_file(inner)
        return self._with_external(entry)

    def children(self, path: AnyPath = "") -> Iterator[IndexEntry]:
        """Entries of a directory, by name. Links to the directory are followed."""
        return map(self._with_external, self._shown.tree.children(self._directory_at(path)))

    def walk(self, path: AnyPath = "") -> Iterator[IndexEntry]:
        """All entries below a directory, by directory and name.

        Links to the directory are followed, those in it are not.
        """
        return map(self._with_external, self._shown.tree.walk(self._directory_at(path)))

    def node(self, path: AnyPath) -> Node:
        """All attributes of a path. Links in the path are followed, except the last one."""
        inner = _inner(path)
        entry = self.find(path)
        if entry is None:
            raise self._no_file(inner)
        if entry.record_size == 0:
            implied = implied_directory(inner)
            return Node(FileKind.DIRECTORY, implied.mode, 0, 0, 0, 0, 0, "", {}, 0, None)
        # Size and mtime of external content are not in the record.
        return replace(self._read_entry(entry)[0], size=entry.size, mtime_ns=entry.mtime_ns)

    def readlink(self, path: AnyPath) -> str:
        """Target of a symbolic link."""
        node = self.node(path)
        if node.kind != FileKind.SYMLINK:
            raise OSError(errno.EINVAL, "it is no symbolic link", text(_inner(path)))
        return node.target

    def xattrs(self, path: AnyPath) -> dict[str, bytes]:
        """Extended attributes."""
        return self.node(path).xattrs

    # Content

    def open(self, path: AnyPath) -> ContainerFile:
        """Opens a file for reading: binary, seekable, buffered. Links are followed."""
        return ContainerFile(self.reader(path))

    def read_bytes(self, path: AnyPath) -> bytes:
        """The content of a file. Links are followed."""
        reader = self.reader(path)
        return reader.read_at(0, reader.size)

    def reader(self, path: AnyPath) -> FileReader:
        """A file without a position, for reads at any offset from any thread. Links are followed."""
        entry = self.follow(path)
        if entry.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), entry.path)
        if not entry.is_file():
            raise OSError(errno.EINVAL, "it is no regular file", entry.path)
        node, found = self._read_entry(entry)
        external = external_of(node)
        if external is None:
            return FileReader(self, entry.path, node, found)
        content = external.open(self._directory, entry.path)
        return FileReader(self, entry.path, replace(node, size=content.size), found, content)

    # Access to records, for readers

    def read_lane(self, lane: LaneId, address: int, size: int) -> bytes:
        """Bytes of a lane, within a block, unchecked."""
        return self._subfile(lane.subfile).read_at(self._superblock.offset(lane.lane, address), size)

    def read_record(self, lane: LaneId, address: int, size: int, path: str) -> tuple[Head, bytes]:
        """A record of the file ``path``, and the ``size`` bytes that were read (more if its head is larger)."""
        rest = self._superblock.block_end(address) - address
        if lane.lane >= self._superblock.lanes or address >= ADDRESS_MAX or rest < FIXED.size:
            raise self.damaged_record(lane, address, "the address is invalid", path)
        position = Position(self._superblock.container, lane, address)
        wanted = min(max(size, FIXED.size), rest)
        while True:
            try:
                data = self.read_lane(lane, address, wanted)
            except FileNotFoundError:
                raise self.damaged_record(lane, address, "the subfile is missing", path) from None
            if len(data) < FIXED.size:
                raise self.damaged_record(lane, address, "the subfile ends before it", path)
            found = record.decode(data, position)
            if isinstance(found, Head):
                return found, data
            if isinstance(found, Part) and wanted < found.size <= rest:
                wanted = found.size
                continue
            why = "the subfile ends within it"
            if isinstance(found, Blank):
                why = "nothing was ever written there"
            elif isinstance(found, Damaged):
                why = found.why
            raise self.damaged_record(lane, address, why, path)

    def damaged_record(self, lane: LaneId, address: int, why: str, path: str) -> DamagedError:
        return damaged(f"{printable(path)}: the record at address {address} in {lane} of {self.path} is damaged: {why}")

    # Opening

    def _read_superblock(self) -> Superblock:
        try:
            file = self._directory.open(geometry.NAME)
        except (FileNotFoundError, NotADirectoryError):
            raise no_container(f"{self.path} is no container: it has no file `{geometry.NAME}`") from None
        return Superblock.decode(file.read_at(0, geometry.SUPERBLOCK.size), self.path)

    def _open_index(self) -> Optional[Index]:
        try:
            return Index(self._directory, self._superblock.container) if self._use_index else None
        except FileNotFoundError:
            return None

    def _update(self) -> None:
        before = self._shown
        for remaining in reversed(range(ATTEMPTS_MAX)):
            try:
                # One assignment, as other threads read the state, or refresh it.
                self._shown = self._found_since(before)
                break
            except FileNotFoundError:
                # A compaction has removed a subfile just now. Others have its entries.
                if remaining == 0:
                    raise
                self._forget()
        known = set(before.additions.damage)
        new = [damage for damage in self.damage if damage not in known]
        if new:
            warnings.warn(
                f"{self.path}: {len(new)} places are damaged, the first one {new[0]}. Some files may be missing or "
                "outdated; see `Container.damage`",
                DamageWarning,
                stacklevel=3,
            )

    def _found_since(self, before: "Shown") -> "Shown":
        index, names = self._open_index(), self._directory.names()
        numbers = sorted(number for number in map(subfile.number_of, names) if number is not None)
        lanes = index.lanes if index is not None else []
        known_lanes = before.index.lanes if before.index is not None else []
        is_compacted = not {lane.subfile for lane in before.additions.ends} <= set(numbers)
        if (index is None) != (before.index is None) or lanes != known_lanes or is_compacted:
            # A new index: it contains what was found beyond the old one.
            base = Additions({end.lane: end for end in lanes})
        else:
            index, base = before.index, before.additions
        scan = AdditionsScan(base, self._superblock, index, self._lacks_data)
        for number in numbers:
            file = self._subfile(number)
            scan.subfile(number, file, subfile.lane_states(file, self._superblock.lanes))
        found = scan.additions()
        has_external = any(name.startswith(PREFIX) for name in names)
        if index is before.index and found.newest is before.additions.newest:
            return Shown(index, found, before.tree, has_external)
        return Shown(index, found, Tree(Overlay(index, found.newest)), has_external)

    def _refresh_lock(self) -> threading.Lock:
        """The lock of refreshes. A child process has its own, as its parent may refresh during the fork."""
        if self._turn[0] != os.getpid():
            self._turn = (os.getpid(), threading.Lock())
        return self._turn[1]

    def _forget(self) -> None:
        """Drops cached state of files that other processes may have changed."""
        self._directory.forget()
        self._subfile.cache_clear()

    def _lacks_data(self, entry: IndexEntry) -> bool:
        if entry.kind is None:
            return False
        try:
            node, found = self._read_entry(entry)
        except DamagedError:
            return True
        return FileReader(self, entry.path, node, found).damage() is not None

    # Lookup

    def _read_entry(self, entry: IndexEntry) -> tuple[Node, tuple[Head, bytes]]:
        """The node of an entry, and its record."""
        head, data = self.read_record(entry.lane, entry.address, entry.record_size, entry.path)
        found = head.entry
        if found is None or found.node is None or found.version != entry.version or text(found.path) != entry.path:
            why = "another record than the index says is there"
            raise self.damaged_record(entry.lane, entry.address, why, entry.path)
        return found.node, (head, data)

    def _with_external(self, entry: IndexEntry) -> IndexEntry:
        """An entry with size and mtime of its external content, if there is any and it can be found."""
        if not self._shown.has_external or entry.kind != FileKind.FILE or entry.size > 0:
            return entry
        external = external_of(self._read_entry(entry)[0])
        if external is None:
            return entry
        status = external.status(self._directory)
        if status is None:
            return entry
        size, mtime_ns = status
        return entry._replace(size=size, mtime_ns=entry.mtime_ns if mtime_ns is None else mtime_ns)

    def _resolve(self, path: bytes, follow: bool) -> Optional[IndexEntry]:
        return self._shown.tree.resolve(path, follow, self._target)

    def _directory_at(self, path: AnyPath) -> bytes:
        entry = self.follow(path)
        if not entry.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), entry.path)
        return encoded(entry.path)

    def _target(self, link: IndexEntry) -> bytes:
        return encoded(self._read_entry(link)[0].target)

    def _no_file(self, path: bytes) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, f"it is not in the container {self.path}", text(path))


def _open_subfile(directory: Directory, number: int) -> Source:
    return directory.open(subfile.name_of(number))


def _reopen(path: str, protocol: Optional[str], options: Optional[dict[str, Any]], use_index: bool) -> Container:
    return Container(path, protocol=protocol, options=options, use_index=use_index)


def _inner(path: AnyPath) -> bytes:
    """A path as the container stores it."""
    inner = os.fspath(path)
    if isinstance(inner, str):
        inner = encoded(inner)
    return inner.strip(b"/")
