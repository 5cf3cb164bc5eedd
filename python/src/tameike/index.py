"""The closing index: all paths of a container in their order.

    pages    each  size u32 | crc32c u32 | IndexEntry ...        one after the other
    lanes          size u32 | crc32c u32 | Vec<{lane, address u64, sequence u64, is finished bool}>
    top            size u32 | crc32c u32 | Vec<{first path, offset u64}>
    footer         TMKI | format u16 | 0 u16 | container u64 | paths u64 | lanes at u64 | top at u64 | 0 u32 | crc32c

The list of pages stays in memory, and a few pages that were used last.
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
from .record import life_of
from .source import Directory, Source

NAME = "index"
FOOTER = struct.Struct("<4sHHQQQQII")
PART_HEAD = struct.Struct("<II")

MAGIC = b"TMKI"
FORMAT = 1
PART_SIZE_MAX = 256 << 20
#: Most parts come with the first read.
PART_READ_SIZE = 48 << 10
#: What is read of the end at once: in most containers, all but the pages.
TAIL_READ_SIZE = 64 << 10
#: Pages that stay in memory, of about 32 KiB each.
PAGES_KEPT = 64

#: What comes after the path of an entry: five numbers, and seven more where something is there.
_TAIL = re.compile(
    rb"(?:[\x80-\xff]{0,9}[\x00-\x7f]){5}(?:\x00|\x01(?:[\x80-\xff]{0,9}[\x00-\x7f]){7})",
)

#: Directory and name of a path: in their order all of a directory stand together.
Key = tuple[bytes, bytes]


class IndexEntry(NamedTuple):
    """What a container tells of a path without reading its record: what a listing shows."""

    #: Names from the root of the container on.
    path: str
    #: Which of several is so: the highest.
    version: int
    lane: LaneId
    #: Of the record.
    address: int
    #: Bytes of the record; 0 when a directory only follows from what is in it.
    record_size: int
    #: ``None`` when the path was removed.
    kind: Optional[FileKind]
    #: Permission bits.
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    #: Bytes of content.
    size: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def mtime(self) -> float:
        """Last change of content, in seconds since 1970."""
        return self.mtime_ns / NANOSECONDS

    @property
    def st_mode(self) -> int:
        """Kind and permissions, as `os.stat` has them."""
        return self.mode | (self.kind.mode if self.kind is not None else 0)

    @property
    def rank(self) -> tuple[int, LaneId, int]:
        """Of several entries of a path the one with the highest is so."""
        return self.version, self.lane, self.address

    def is_dir(self) -> bool:
        return self.kind == FileKind.DIRECTORY

    def is_file(self) -> bool:
        return self.kind == FileKind.FILE

    def is_symlink(self) -> bool:
        return self.kind == FileKind.SYMLINK


def implied_directory(path: bytes) -> IndexEntry:
    """A directory of which a container only has what is in it."""
    mode = stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH
    return IndexEntry(entry.text(path), 0, LaneId(0, 0), 0, 0, FileKind.DIRECTORY, mode, 0, 0, 0, 0)


def entry_of(
    path: bytes, version: int, lane: LaneId, address: int, record_size: int, node: Optional[Node]
) -> IndexEntry:
    """What an index has of a record."""
    told = entry.text(path), version, lane, address, record_size
    if node is None:
        return IndexEntry(*told, None, 0, 0, 0, 0, 0)
    return IndexEntry(*told, node.kind, node.mode, node.uid, node.gid, node.mtime_ns, node.size)


def decode_entry(decoder: Decoder) -> IndexEntry:
    """The next entry of a page, or `FormatError`."""
    path = entry.text(decoder.sized())
    version = decoder.unsigned(64)
    lane = entry.lane(decoder)
    address = decoder.unsigned(64)
    told = path, version, lane, address, decoder.unsigned(32)
    if not decoder.is_some():
        return IndexEntry(*told, None, 0, 0, 0, 0, 0)
    return IndexEntry(
        *told,
        kind=entry.kind(decoder),
        mode=decoder.unsigned(16),
        uid=decoder.unsigned(32),
        gid=decoder.unsigned(32),
        mtime_ns=entry.time_ns(decoder),
        size=decoder.unsigned(64),
    )


class LaneEnd(NamedTuple):
    """How far a lane is known."""

    lane: LaneId
    #: After the last record.
    address: int = 0
    #: Of the next one.
    sequence: int = 0
    #: Whether nothing more comes in this life of the lane.
    is_finished: bool = False

    @property
    def life(self) -> int:
        """The life that the lane was in; 0 when nothing was found of it."""
        return life_of(self.sequence)


class Page:
    """Entries that stand together. Their paths are decoded, the rest of each when it is asked for."""

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
                raise FormatError("an entry cannot be read")
            decoder.at = tail.end()

    def entry(self, number: int) -> IndexEntry:
        return decode_entry(Decoder(self._data, self._places[number]))


class Parts:
    """The file of an index: its parts, each of which is proven when it is read."""

    def __init__(self, directory: Directory) -> None:
        """Reads its end. `FileNotFoundError` when there is none."""
        self._path = directory.path
        self._source: Source = directory.open(NAME)
        self._tail_at = max(0, self._source.size - TAIL_READ_SIZE)
        self._tail = self._source.read_at(self._tail_at, TAIL_READ_SIZE)

    def footer(self, container: int) -> tuple[int, int]:
        """Where the lanes and the list of pages are."""
        footer = self._tail[-FOOTER.size :]
        if len(footer) < FOOTER.size:
            raise self.damaged("it is too short")
        magic, version, _, told, _, lanes_at, top_at, _, checksum = FOOTER.unpack(footer)
        if magic != MAGIC or crc32c(footer[:-4]) != checksum:
            raise self.damaged("it has no end")
        if version != FORMAT:
            raise unsupported(f"{self._path}: the index has format {version}: a later tameike reads it")
        if told != container:
            raise self.damaged("it belongs to another container")
        return lanes_at, top_at

    def content(self, offset: int) -> bytes:
        """The content of a part."""
        data = self._read(offset, PART_READ_SIZE)
        if len(data) < PART_HEAD.size:
            raise self.damaged("a part of it is missing")
        size, checksum = PART_HEAD.unpack_from(data)
        if size > PART_SIZE_MAX:
            raise self.damaged("a part of it has an impossible size")
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
            raise self.damaged(f"an entry of it cannot be read: {error}") from error

    def forget_end(self) -> None:
        """All that is at the end was read."""
        self._tail = b""

    def damaged(self, what: str) -> DamagedError:
        return damaged(
            f"{self._path}: the index is damaged: {what}. `tameike agg verify --rebuild` makes a new one of the "
            "files' own records, and use_index=False does without"
        )

    def _read(self, offset: int, size: int) -> bytes:
        if offset >= self._source.size:
            return b""
        at = offset - self._tail_at
        if self._tail and at >= 0:
            return self._tail[at : at + size]
        return self._source.read_at(offset, size)


class Index:
    """The index of a container, which is open."""

    def __init__(self, directory: Directory, container: int) -> None:
        """`FileNotFoundError` when there is none, `DamagedError` when it cannot be believed."""
        self._parts = Parts(directory)
        lanes_at, top_at = self._parts.footer(container)
        #: How far it goes in each lane.
        self.lanes = self._read_lanes(lanes_at)
        self._firsts: list[Key] = []
        self._offsets: list[int] = []
        decoder = Decoder(self._parts.content(top_at))
        try:
            for _ in range(decoder.unsigned(64)):
                self._firsts.append(split_path(decoder.sized()))
                self._offsets.append(decoder.unsigned(64))
        except FormatError as error:
            raise self._parts.damaged(f"its list of pages cannot be read: {error}") from error
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
            raise self._parts.damaged(f"its lanes cannot be read: {error}") from error

    def find(self, key: Key) -> Optional[IndexEntry]:
        """What it tells of a path."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return None
        page = self._page(number)
        at = bisect_left(page.keys, key)
        return self._entry(page, at) if page.keys[at : at + 1] == [key] else None

    def seek(self, key: Key) -> Optional[Key]:
        """The first path from one on that it tells of."""
        number = bisect_right(self._firsts, key) - 1
        if number >= 0:
            page = self._page(number)
            at = bisect_left(page.keys, key)
            if at < len(page.keys):
                return page.keys[at]
        return self._firsts[number + 1] if number + 1 < len(self._firsts) else None

    def iterate(self, key: Key) -> Iterator[tuple[Key, IndexEntry]]:
        """All from a path on, which need not be there."""
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
            raise self._parts.damaged(f"an entry of it cannot be read: {error}") from error
