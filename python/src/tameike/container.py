"""A container that is open for reading. It shows what it was when it was opened, or last looked at again.

Opening reads the end of the index and the headers of the subfiles, a lookup reads a page of the index, and a small
file is one read of its record. Nothing is written, and nothing is locked: any number of threads, forked and spawned
processes read at the same time.
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
from .additions import Additions, Look
from .entry import FileKind, Node, encoded, printable, text
from .errors import DamagedError, DamageWarning, damaged, no_container
from .geometry import ADDRESS_MAX, LaneId, Superblock
from .index import Index, IndexEntry, implied_directory
from .outside import PREFIX, outside_of
from .overlay import Overlay
from .reader import ContainerFile, FileReader
from .record import FIXED, Blank, Damaged, Head, Part, Place
from .scan import Damage
from .source import Directory, Source
from .tree import Tree

AnyPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

#: Subfiles that stay open.
SUBFILES_KEPT = 64
#: Looks that somebody may spoil by compacting the container.
LOOKS_MAX = 10


@dataclass(frozen=True)
class Shown:
    """What a container shows."""

    #: What it was opened by, if so.
    index: Optional[Index]
    #: What lanes have beyond that.
    additions: Additions
    tree: Tree
    #: Some files have their content outside.
    has_outside: bool = False


class Container:
    """A container that ``tameike agg create`` or programs have made, open for reading.

    ``path`` is its directory, or a URL of fsspec. With ``protocol`` (and ``options`` for it) it is a path of that file
    system.

    What was added after its index was made is looked for, as all is in a container that has none, and in every one with
    ``use_index=False``. What is damaged of what was gone through so is in `damage`, and a `DamageWarning` tells of it.
    What others add while it is open is seen after `refresh`.

    Paths are relative to the root of the container. Names that are no UTF-8 are as `os.fsdecode` makes them. Symbolic
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
        #: Of its directory, as messages name it.
        self.path = self._directory.path
        self._superblock = self._read_superblock()
        self._subfile = lru_cache(maxsize=SUBFILES_KEPT)(partial(_open_subfile, self._directory))
        self._use_index = use_index
        self._turn = (os.getpid(), threading.Lock())
        self._shown = Shown(None, Additions(), Tree(Overlay(None, {})))
        self._look()

    def __repr__(self) -> str:
        return f"<tameike.Container {self.path!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._origin

    @property
    def identity(self) -> int:
        """A number that no other container has."""
        return self._superblock.container

    @property
    def has_index(self) -> bool:
        """Whether it was opened by its index."""
        return self._shown.index is not None

    @property
    def damage(self) -> list[Damage]:
        """What is damaged of the records that were gone through. Nobody has looked at those that the index has."""
        return self._shown.additions.damage

    def refresh(self) -> None:
        """Looks for what was added since it was opened, or looked at the last time.

        What was not yet all there then is looked at again, and an index that was made since is used. Files that are
        open stay what they are, unless the container is compacted: then their bytes may be gone.
        """
        with self._looking():
            self._forget()
            self._look()

    # What is there

    def exists(self, path: AnyPath) -> bool:
        """Whether there is something at a path, all links followed."""
        try:
            return self._resolve(_inner(path), follow=True) is not None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return False
            raise

    def find(self, path: AnyPath) -> Optional[IndexEntry]:
        """What is at a path, links on the way followed, but not the last; ``None`` when nothing is.

        A directory of which the container only has what is in it is there, too.
        """
        entry = self._resolve(_inner(path), follow=False)
        return None if entry is None else self._with_outside(entry)

    def follow(self, path: AnyPath) -> IndexEntry:
        """What is at a path, all links followed. `FileNotFoundError` when nothing is."""
        inner = _inner(path)
        entry = self._resolve(inner, follow=True)
        if entry is None:
            raise self._no_file(inner)
        return self._with_outside(entry)

    def children(self, path: AnyPath = "") -> Iterator[IndexEntry]:
        """What is in a directory, by name. Links to the directory are followed."""
        return map(self._with_outside, self._shown.tree.children(self._directory_at(path)))

    def walk(self, path: AnyPath = "") -> Iterator[IndexEntry]:
        """Everything that the container tells of below a directory, by directory and name.

        Links to the directory are followed, those in it are not.
        """
        return map(self._with_outside, self._shown.tree.walk(self._directory_at(path)))

    def node(self, path: AnyPath) -> Node:
        """All that is told of a path, links on the way followed, but not the last."""
        inner = _inner(path)
        entry = self.find(path)
        if entry is None:
            raise self._no_file(inner)
        if entry.record_size == 0:
            implied = implied_directory(inner)
            return Node(FileKind.DIRECTORY, implied.mode, 0, 0, 0, 0, 0, "", {}, 0, None)
        # Of content that is outside size and time are not its record's.
        return replace(self._read_entry(entry)[0], size=entry.size, mtime_ns=entry.mtime_ns)

    def readlink(self, path: AnyPath) -> str:
        """Where a symbolic link leads to."""
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
        """All of a file. Links are followed."""
        reader = self.reader(path)
        return reader.read_at(0, reader.size)

    def reader(self, path: AnyPath) -> FileReader:
        """A file without a position, for reads from any place and thread. Links are followed."""
        entry = self.follow(path)
        if entry.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), entry.path)
        if not entry.is_file():
            raise OSError(errno.EINVAL, "it is no regular file", entry.path)
        node, found = self._read_entry(entry)
        outside = outside_of(node)
        if outside is None:
            return FileReader(self, entry.path, node, found)
        content = outside.open(self._directory, entry.path)
        return FileReader(self, entry.path, replace(node, size=content.size), found, content)

    # For what reads files

    def read_lane(self, lane: LaneId, address: int, size: int) -> bytes:
        """Bytes of a lane, within a block, as they are."""
        return self._subfile(lane.subfile).read_at(self._superblock.offset(lane.lane, address), size)

    def read_record(self, lane: LaneId, address: int, size: int, path: str) -> tuple[Head, bytes]:
        """A record of the file ``path``, and what was read of it: ``size`` bytes, and more where its head is larger."""
        room = self._superblock.block_end(address) - address
        if lane.lane >= self._superblock.lanes or address >= ADDRESS_MAX or room < FIXED.size:
            raise self.damaged_record(lane, address, "there is no such place", path)
        place = Place(self._superblock.container, lane, address)
        wanted = min(max(size, FIXED.size), room)
        while True:
            try:
                data = self.read_lane(lane, address, wanted)
            except FileNotFoundError:
                raise self.damaged_record(lane, address, "the subfile is missing", path) from None
            if len(data) < FIXED.size:
                raise self.damaged_record(lane, address, "the subfile ends before it", path)
            found = record.decode(data, place)
            if isinstance(found, Head):
                return found, data
            if isinstance(found, Part) and wanted < found.size <= room:
                wanted = found.size
                continue
            why = "the subfile ends in it"
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

    def _look(self) -> None:
        before = self._shown
        for remaining in reversed(range(LOOKS_MAX)):
            try:
                # At once, as other threads read, and may look, too.
                self._shown = self._found_since(before)
                break
            except FileNotFoundError:
                # Who compacts the container has removed a subfile just now: others have what it had.
                if remaining == 0:
                    raise
                self._forget()
        known = set(before.additions.damage)
        new = [damage for damage in self.damage if damage not in known]
        if new:
            warnings.warn(
                f"{self.path}: {len(new)} places are damaged, the first one {new[0]}. Some files may "
                "be missing, or older than they should be; `Container.damage` has all",
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
            # There is another index, which has what was found beside the one before.
            base = Additions({end.lane: end for end in lanes})
        else:
            index, base = before.index, before.additions
        look = Look(base, self._superblock, index, self._lacks_data)
        for number in numbers:
            file = self._subfile(number)
            look.subfile(number, file, subfile.lane_states(file, self._superblock.lanes))
        found = look.additions()
        has_outside = any(name.startswith(PREFIX) for name in names)
        if index is before.index and found.newest is before.additions.newest:
            return Shown(index, found, before.tree, has_outside)
        return Shown(index, found, Tree(Overlay(index, found.newest)), has_outside)

    def _looking(self) -> threading.Lock:
        """One at a time, so that no look undoes a later one. A child has its own: its parent may look when it forks."""
        if self._turn[0] != os.getpid():
            self._turn = (os.getpid(), threading.Lock())
        return self._turn[1]

    def _forget(self) -> None:
        """What is known of files that others may have changed."""
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

    # Finding

    def _read_entry(self, entry: IndexEntry) -> tuple[Node, tuple[Head, bytes]]:
        """The record that has an entry."""
        head, data = self.read_record(entry.lane, entry.address, entry.record_size, entry.path)
        told = head.entry
        if told is None or told.node is None or told.version != entry.version or text(told.path) != entry.path:
            why = "it is another one than the index tells of"
            raise self.damaged_record(entry.lane, entry.address, why, entry.path)
        return told.node, (head, data)

    def _with_outside(self, entry: IndexEntry) -> IndexEntry:
        """An entry with size and time of content that is outside, if that can be found."""
        if not self._shown.has_outside or entry.kind != FileKind.FILE or entry.size > 0:
            return entry
        outside = outside_of(self._read_entry(entry)[0])
        if outside is None:
            return entry
        status = outside.status(self._directory)
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
    """A path as a container has it."""
    inner = os.fspath(path)
    if isinstance(inner, str):
        inner = encoded(inner)
    return inner.strip(b"/")
