"""What a record tells of a file.

Entry  {path, version u64, node Option<Node>}
Node   {kind, mode u16, uid u32, gid u32, rdev u32, atime, mtime, target, xattrs Vec<{name, value}>, size u64, content}
"""

import stat
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Optional

from .errors import FormatError
from .geometry import LaneId
from .postcard import Decoder

PATH_SIZE_MAX = 4096
NAME_SIZE_MAX = 255
SIZE_MAX = (1 << 63) - 1
NANOSECONDS = 1_000_000_000


class FileKind(IntEnum):
    """What kind of file it is."""

    FILE = 0
    DIRECTORY = 1
    SYMLINK = 2
    FIFO = 3
    SOCKET = 4
    CHARACTER_DEVICE = 5
    BLOCK_DEVICE = 6

    @property
    def mode(self) -> int:
        """Its bits of ``st_mode``."""
        return _MODES[self]


_KINDS = tuple(FileKind)
_MODES = (
    stat.S_IFREG,
    stat.S_IFDIR,
    stat.S_IFLNK,
    stat.S_IFIFO,
    stat.S_IFSOCK,
    stat.S_IFCHR,
    stat.S_IFBLK,
)


class Extent(NamedTuple):
    """Bytes of a file in a record of data."""

    #: The first one's place in the file.
    start: int
    length: int
    lane: LaneId
    #: Of the record.
    address: int
    #: Bytes of its data before the first one.
    skip: int


@dataclass(frozen=True)
class Node:
    """All that is told of a file."""

    kind: FileKind
    #: Permission bits: ``0o7777``.
    mode: int
    uid: int
    gid: int
    #: Number of a device file.
    rdev: int
    atime_ns: int
    mtime_ns: int
    #: Target of a symbolic link.
    target: str
    xattrs: dict[str, bytes]
    #: Bytes of content.
    size: int
    #: Where these are, ascending, zeros elsewhere; ``None``: with the entry.
    extents: Optional[list[Extent]]


class Entry(NamedTuple):
    """A change of a path. Of several of one path the one with the highest version is so."""

    path: bytes
    version: int
    #: What is there; nothing when it was removed.
    node: Optional[Node]


def text(path: bytes) -> str:
    """A path or name as Python has it. What is no UTF-8 is kept, as `os.fsdecode` does."""
    return path.decode("utf-8", "surrogateescape")


def encoded(path: str) -> bytes:
    """The other way."""
    return path.encode("utf-8", "surrogateescape")


def printable(path: str) -> str:
    """As a message has it: names come from programs, and may have anything in them."""
    return path if path.isprintable() else repr(path)[1:-1]


def split_path(path: bytes) -> tuple[bytes, bytes]:
    """The directory of a path, and its name there. Paths are ordered so."""
    directory, _, name = path.rpartition(b"/")
    return directory, name


def decode(data: bytes) -> Entry:
    """What a record has, or `FormatError`."""
    decoder = Decoder(data)
    path = decoder.sized()
    version = decoder.unsigned(64)
    node = _node(decoder) if decoder.is_some() else None
    if not decoder.is_at_end():
        raise FormatError("something comes after it")
    if not is_path(path):
        raise FormatError("its path cannot be")
    if node is not None and not _is_possible(node):
        raise FormatError("its sizes contradict each other")
    return Entry(path, version, node)


def is_path(path: bytes) -> bool:
    """Whether a container can have it."""
    names = path.split(b"/")
    return len(path) <= PATH_SIZE_MAX and all(
        name not in (b"", b".", b"..") and len(name) <= NAME_SIZE_MAX and b"\0" not in name for name in names
    )


def kind(decoder: Decoder) -> FileKind:
    number = decoder.unsigned(32)
    if number >= len(_KINDS):
        raise FormatError("it is of no known kind")
    return _KINDS[number]


def time_ns(decoder: Decoder) -> int:
    seconds = decoder.signed(64)
    return seconds * NANOSECONDS + decoder.unsigned(32)


def lane(decoder: Decoder) -> LaneId:
    return LaneId(decoder.unsigned(32), decoder.unsigned(32))


def _node(decoder: Decoder) -> Node:
    return Node(
        kind=kind(decoder),
        mode=decoder.unsigned(16),
        uid=decoder.unsigned(32),
        gid=decoder.unsigned(32),
        rdev=decoder.unsigned(32),
        atime_ns=time_ns(decoder),
        mtime_ns=time_ns(decoder),
        target=text(decoder.sized()),
        xattrs={text(decoder.sized()): decoder.sized() for _ in range(decoder.unsigned(64))},
        size=decoder.unsigned(64),
        extents=_content(decoder),
    )


def _content(decoder: Decoder) -> Optional[list[Extent]]:
    variant = decoder.unsigned(32)
    if variant == 0:
        return None
    if variant != 1:
        raise FormatError("its content is of no known kind")
    return [_extent(decoder) for _ in range(decoder.unsigned(64))]


def _extent(decoder: Decoder) -> Extent:
    return Extent(
        start=decoder.unsigned(64),
        length=decoder.unsigned(32),
        lane=lane(decoder),
        address=decoder.unsigned(64),
        skip=decoder.unsigned(32),
    )


def _is_possible(node: Node) -> bool:
    end = 0
    for extent in node.extents or ():
        if extent.length == 0 or extent.start < end or extent.skip + extent.length >= 1 << 32:
            return False
        end = extent.start + extent.length
    return end <= node.size <= SIZE_MAX
