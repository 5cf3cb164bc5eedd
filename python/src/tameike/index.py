"""The index of a container: all paths, sorted.

    pages    each  size u32 | crc32c u32 | IndexEntry ...        one after the other
    lanes          size u32 | crc32c u32 | Vec<{lane, address u64, sequence u64, is finished bool}>
    top            size u32 | crc32c u32 | Vec<{first path, offset u64}>
    footer         TMKI | format u16 | 0 u16 | container u64 | paths u64 | lanes at u64 | top at u64 | 0 u32 | crc32c

The list of pages and the last used pages stay in memory.
"""

import re
import stat
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Optional

from . import entry
from .checksum import crc32c
from .entry import NANOSECONDS, FileKind, Node, split_path
from .errors import DamagedError, FormatError, damaged, unsupported
from .geometry import LaneId
from .postcard import Decoder
from .record import incarnation_of
from .source import Directory, Source

NAME = "index"
FOOTER = struct.Struct("<4sHHQQQQII")
PART_HEAD = struct.Struct("<II")

MAGIC = b"TMKI"
FORMAT = 1
PART_SIZE_MAX = 256 << 20
#: Size of the first read of a part; most parts fit.
PART_READ_SIZE = 48 << 10
#: Size of the read at the end of the file; in most containers it covers everything but the pages.
TAIL_READ_SIZE = 64 << 10
#: Cached pages, of about 32 KiB each.
PAGES_KEPT = 64

#: Bytes after the path of an entry: five numbers, and seven more unless the path was removed.
_TAIL = re.compile(
    rb"(?:[\x80-\xff]{0,9}[\x00-\x7f]){5}(?:\x00|\x01(?:[\x80-\xff]{0,9}[\x00-\x7f]){7})",
)

#: Directory and name of a path; entries of a directory are adjacent in this order.
Key = tuple[bytes, bytes]


class IndexEntry(NamedTuple):
    """Index entry of a path: the attributes that listings show."""

    #: Path from the root of the container.
    path: str
    #: The highest version of a path is valid.
    version: int
    lane: LaneId
    #: Address of the record.
    address: int
    #: Size of the record; 0 for a directory without an entry.
    record_size: int
    #: ``None`` if the path was removed.
    kind: Optional[FileKind]
    #: Permission bits.
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    #: Size of the content, in bytes.
    size: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def mtime(self) -> float:
        """mtime in seconds since 1970."""
        return self.mtime_ns / NANOSECONDS

    @property
    def st_mode(self) -> int:
        """File type and permissions, as in `os.stat`."""
        return self.mode | (self.kind.mode if self.kind is not None else 0)

    @property
    def rank(self) -> tuple[int, LaneId, int]:
        """Order of entries of a path; the highest one is valid."""
        return self.version, self.lane, self.address

    def is_dir(self) -> bool:
        return self.kind == FileKind.DIRECTORY

    def is_file(self) -> bool:
        return self.kind == FileKind.FILE

    def is_symlink(self) -> bool:
        return self.kind == FileKind.SYMLINK


def implied_directory(path: bytes) -> IndexEntry:
    """A directory that has no entry, but contains something."""
    mode = stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH
    return IndexEntry(entry.text(path), 0, LaneId(0, 0), 0, 0, FileKind.DIRECTORY, mode, 0, 0, 0, 0)


def entry_of(
    path: bytes, version: int, lane: LaneId, address: int, record_size: int, node: Optional[Node]
) -> IndexEntry:
    """The index entry of a record."""
    common = entry.text(path), version, lane, address, record_size
    if node is None:
        return IndexEntry(*common, None, 0, 0, 0, 0, 0)
    return IndexEntry(*common, node.kind, node.mode, node.uid, node.gid, node.mtime_ns, node.size)


def decode_entry(decoder: Decoder) -> IndexEntry:
    """Decodes the next entry of a page. Raises `FormatError`."""
    path = entry.text(decoder.sized())
    version = decoder.unsigned(64)
    lane = entry.lane(decoder)
    address = decoder.unsigned(64)
    common = path, version, lane, address, decoder.unsigned(32)
    if not decoder.is_some():
        return IndexEntry(*common, None, 0, 0, 0, 0, 0)
    return IndexEntry(
        *common,
        kind=entry.kind(decoder),
        mode=decoder.unsigned(16),
        uid=decoder.unsigned(32),
        gid=decoder.unsigned(32),
        mtime_ns=entry.time_ns(decoder),
        size=decoder.unsigned(64),
    )


class LaneEnd(NamedTuple):
    """End of the indexed or scanned part of a lane."""

    lane: LaneId
    #: Address after the last record.
    address: int = 0
    #: Sequence number of the next record.
    sequence: int = 0
    #: True if the writer of this incarnation has finished.
    is_finished: bool = False

    @property
    def incarnation(self) -> int:
        """The incarnation; 0 if the lane is empty."""
        return incarnation_of(self.sequence)


class Page:
    """A page of entries. Paths are decoded at once, the rest of an entry on demand."""

    def __init__(self, data: bytes) -> None:
        self.keys: list[Key] = []
        self._places: list[int] = []
        self._data = data
        decoder = Decoder(data)
        while not decoder.is_at_end():
            self._places.append(decoder.at)
            self.keys.append(split_path(decoder.sized()))
            tail = _TAIL.match(data, decoder.at)
            if tail is None:
                raise FormatError("an entry cannot be decoded")
            decoder.at = tail.end()

    def entry(self, number: int) -> IndexEntry:
        return decode_entry(Decoder(self._data, self._places[number]))


class Parts:
    """The file of an index: its parts, verified when they are read."""

    def __init__(self, directory: Directory) -> None:
        """Reads the end of the file. `FileNotFoundError` if there is no index."""
        self._path = directory.path
        self._source: Source = directory.open(NAME)
        self._tail_at = max(0, self._source.size - TAIL_READ_SIZE)
        self._tail = self._source.read_at(self._tail_at, TAIL_READ_SIZE)

    def footer(self, container: int) -> tuple[int, int]:
        """Offsets of the lane ends and the list of pages."""
        footer = self._tail[-FOOTER.size :]
        if len(footer) < FOOTER.size:
            raise self.damaged("it is too short")
        magic, version, _, number, _, lanes_at, top_at, _, checksum = FOOTER.unpack(footer)
        if magic != MAGIC or crc32c(footer[:-4]) != checksum:
            raise self.damaged("its footer is invalid")
        if version != FORMAT:
            raise unsupported(f"{self._path}: the index has format {version}: use a later version of tameike")
        if number != container:
            raise self.damaged("it belongs to another container")
        return lanes_at, top_at

    def content(self, offset: int) -> bytes:
        """The content of a part."""
        data = self._read(offset, PART_READ_SIZE)
        if len(data) < PART_HEAD.size:
            raise self.damaged("a part is missing")
        size, checksum = PART_HEAD.unpack_from(data)
        if size > PART_SIZE_MAX:
            raise self.damaged("a part has an impossible size")
        end = PART_HEAD.size + size
        if len(data) < end:
            data += self._read(offset + len(data), end - len(data))
        content = data[PART_HEAD.size : end]
        if len(content) != size or crc32c(content) != checksum:
            raise self.damaged(f"the checksum of the part at {offset} is wrong")
        return content

    def page(self, offset: int) -> Page:
        try:
            return Page(self.content(offset))
        except FormatError as error:
            raise self.damaged(f"an entry cannot be decoded: {error}") from error

    def forget_end(self) -> None:
        """Drops the end of the file, which has been decoded."""
        self._tail = b""

    def damaged(self, what: str) -> DamagedError:
        return damaged(
            f"{self._path}: the index is damaged: {what}. Rebuild it from the records with `tameike agg verify "
            "--rebuild`, or open the container with use_index=False"
        )

    def _read(self, offset: int, size: int) -> bytes:
        if offset >= self._source.size:
            return b""
        at = offset - self._tail_at
        if self._tail and at >= 0:
            return self._tail[at : at + size]
        return self._source.read_at(offset, size)


class Index:
    """An open index of a container."""

    def __init__(self, directory: Directory, container: int) -> None:
        """`FileNotFoundError` if there is none, `DamagedError` if it is damaged."""
        self._parts = Parts(directory)
        lanes_at, top_at = self._parts.footer(container)
        #: Ends of the indexed lanes.
        self.lanes = self._read_lanes(lanes_at)
        self._firsts: list[Key] = []
        self._offsets: list[int] = []
        decoder = Decoder(self._parts.content(top_at))
        try:
            for _ in range(decoder.unsigned(64)):
                self._firsts.append(split_path(decoder.sized()))
                self._offsets.append(decoder.unsigned(64))
        except FormatError as error:
            raise self._parts.damaged(f"its list of pages cannot be decoded: {error}") from error
        self._parts.forget_end()
        self._page_at = lru_cache(maxsize=PAGES_KEPT)(self._parts.page)

    def _read_lanes(self, offset: int) -> list[LaneEnd]:
        decoder = Decoder(self._parts.content(offset))
        try:
            return [
                LaneEnd(entry.lane(decoder), decoder.unsigned(64), decoder.unsigned(64), decoder.boolean())
                for _ in range(decoder.unsigned(64))
            ]
        except FormatError as error:
            raise self._parts.damaged(f"its list of lanes cannot be decoded: {error}") from error

    def find(self, key: Key) -> Optional[IndexEntry]:
        """The entry of a path."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return None
        page = self._page(number)
        at = bisect_left(page.keys, key)
        return self._entry(page, at) if page.keys[at : at + 1] == [key] else None

    def seek(self, key: Key) -> Optional[Key]:
        """The first path at or after ``key``."""
        number = bisect_right(self._firsts, key) - 1
        if number >= 0:
            page = self._page(number)
            at = bisect_left(page.keys, key)
            if at < len(page.keys):
                return page.keys[at]
        return self._firsts[number + 1] if number + 1 < len(self._firsts) else None

    def iterate(self, key: Key) -> Iterator[tuple[Key, IndexEntry]]:
        """All entries at or after ``key``."""
        first = max(0, bisect_right(self._firsts, key) - 1)
        for number in range(first, len(self._firsts)):
            page = self._page(number)
            start = bisect_left(page.keys, key) if number == first else 0
            for at in range(start, len(page.keys)):
                yield page.keys[at], self._entry(page, at)

    def _page(self, number: int) -> Page:
        return self._page_at(self._offsets[number])

    def _entry(self, page: Page, at: int) -> IndexEntry:
        try:
            return page.entry(at)
        except FormatError as error:
            raise self._parts.damaged(f"an entry cannot be decoded: {error}") from error
