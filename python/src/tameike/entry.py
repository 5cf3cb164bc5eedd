"""Entries: the attributes of a file, and where its content is.

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
    """File type."""

    FILE = 0
    DIRECTORY = 1
    SYMLINK = 2
    FIFO = 3
    SOCKET = 4
    CHARACTER_DEVICE = 5
    BLOCK_DEVICE = 6

    @property
    def mode(self) -> int:
        """The file type bits of ``st_mode``."""
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
    """Bytes of a file in a data record."""

    #: Offset in the file.
    start: int
    length: int
    lane: LaneId
    #: Address of the record.
    address: int
    #: Offset in the record's data.
    skip: int


@dataclass(frozen=True)
class Node:
    """All attributes of a file."""

    kind: FileKind
    #: Permission bits: ``0o7777``.
    mode: int
    uid: int
    gid: int
    #: Device number of a device file.
    rdev: int
    atime_ns: int
    mtime_ns: int
    #: Target of a symbolic link.
    target: str
    xattrs: dict[str, bytes]
    #: Size of the content, in bytes.
    size: int
    #: Location of the content, ascending, zeros elsewhere; ``None``: in the record of the entry.
    extents: Optional[list[Extent]]


class Entry(NamedTuple):
    """A change of a path. The highest version of a path is valid."""

    path: bytes
    version: int
    #: ``None`` if the path was removed.
    node: Optional[Node]


def text(path: bytes) -> str:
    """Decodes a path or name. Bytes that are not UTF-8 are kept, as by `os.fsdecode`."""
    return path.decode("utf-8", "surrogateescape")


def encoded(path: str) -> bytes:
    """Encodes a path or name; the inverse of `text`."""
    return path.encode("utf-8", "surrogateescape")


def printable(path: str) -> str:
    """A path for messages: escaped if it is not printable."""
    return path if path.isprintable() else repr(path)[1:-1]


def split_path(path: bytes) -> tuple[bytes, bytes]:
    """The directory of a path, and its name. Paths are ordered by these pairs."""
    directory, _, name = path.rpartition(b"/")
    return directory, name


def decode(data: bytes) -> Entry:
    """Decodes the entry of a record. Raises `FormatError`."""
    decoder = Decoder(data)
    path = decoder.sized()
    version = decoder.unsigned(64)
    node = _node(decoder) if decoder.is_some() else None
    if not decoder.is_at_end():
        raise FormatError("it has extra bytes")
    if not is_path(path):
        raise FormatError("its path is invalid")
    if node is not None and not _is_possible(node):
        raise FormatError("its sizes contradict each other")
    return Entry(path, version, node)


def is_path(path: bytes) -> bool:
    """True if a container can have the path."""
    names = path.split(b"/")
    return len(path) <= PATH_SIZE_MAX and all(
        name not in (b"", b".", b"..") and len(name) <= NAME_SIZE_MAX and b"\0" not in name for name in names
    )


def kind(decoder: Decoder) -> FileKind:
    number = decoder.unsigned(32)
    if number >= len(_KINDS):
        raise FormatError("its file type is unknown")
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
        raise FormatError("the type of its content is unknown")
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
