"""Reads a file of a container. Bytes are returned only after their checksum was verified."""

import io
import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Optional

from . import codec
from .entry import Extent, FileKind, Node, printable
from .errors import DamagedError, FormatError, UnsupportedError, damaged, unsupported
from .record import CHUNK_SIZE, Head, head_size
from .source import Source

if TYPE_CHECKING:
    from .container import Container

#: Chunks per read of a sequential reader, also if less is wanted.
CHUNKS_AHEAD = 4
#: Maximum number of chunks per read.
CHUNKS_MAX = 16


class Window:
    """A part of a record with some of its chunks, and the chunk that was verified last."""

    def __init__(self, head: Head, at: int, data: bytes) -> None:
        self.head = head
        #: Offset of the bytes in the record.
        self._at = at
        self._data = data
        self._proven: tuple[int, bytes] = (-1, b"")

    @property
    def chunks_end(self) -> int:
        """Number of the chunk after the last whole one."""
        return bisect_right(self.head.bounds, self._at + len(self._data)) - 1

    def has(self, chunk: int) -> bool:
        bounds = self.head.bounds
        return self._at <= bounds[chunk] and bounds[chunk + 1] <= self._at + len(self._data)

    def stored(self, chunk: int) -> bytes:
        """The stored bytes of a chunk in the window, unverified."""
        start, end = self.head.bounds[chunk : chunk + 2]
        return self._data[start - self._at : end - self._at]

    def data(self, chunk: int) -> Optional[bytes]:
        """The data of a chunk in the window; ``None`` if it is damaged."""
        number, data = self._proven
        if number != chunk:
            stored = self.stored(chunk)
            if not self.head.proves(chunk, stored):
                return None
            data = codec.decode(stored, self.head.chunk_size(chunk))
            self._proven = (chunk, data)
        return data


class FileReader:
    """The content of a file. Threads may read it in parallel."""

    def __init__(
        self,
        container: "Container",
        path: str,
        node: Node,
        record: tuple[Head, bytes],
        external: Optional[Source] = None,
    ) -> None:
        self.path = path
        self.node = node
        self.container = container
        #: External content.
        self._external = external
        head, data = record
        self._own = Window(head, 0, data)
        self._piece: Optional[Window] = None
        self._ends = [extent.start + extent.length for extent in node.extents or ()]

    @property
    def size(self) -> int:
        return self.node.size

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; fewer only at the end of the file."""
        end = min(offset + size, self.node.size)
        if end <= offset:
            return b""
        if self._external is not None:
            return self._read_external(self._external, offset, end - offset)
        if self.node.extents is None:
            parts = self._data(self._own_window(), offset, end)
        else:
            parts = self._from_extents(self.node.extents, offset, end)
        return b"".join(parts)

    def _read_external(self, content: Source, offset: int, size: int) -> bytes:
        data = content.read_at(offset, size)
        if len(data) < size:
            raise damaged(f"{printable(self.path)}: it became shorter while it was read")
        return data

    def damage(self) -> Optional[DamagedError]:
        """The first damage of the file."""
        if self.node.kind != FileKind.FILE:
            return None
        try:
            if self.node.extents is None:
                if self.node.size > 0:
                    self._prove(self._own_window(), 0, self.node.size)
            else:
                for extent in self.node.extents:
                    window = self._piece_window(extent, extent.skip + extent.length)
                    self._prove(window, extent.skip, extent.skip + extent.length)
        except DamagedError as error:
            return error
        return None

    def _own_window(self) -> Window:
        """The record of the entry, with all of its data."""
        window = self._own
        head = window.head
        if head.data_size != self.node.size:
            raise self._damaged(head, "its size differs from that of its content")
        if window.chunks_end < len(head.sums):
            window = Window(*self._with_all(head))
            self._own = window
        return window

    def _with_all(self, head: Head) -> tuple[Head, int, bytes]:
        head, data = self.container.read_record(head.position.lane, head.position.address, head.end, self.path)
        if len(data) < head.end:
            raise self._damaged(head, "the subfile ends within its data")
        return head, 0, data

    def _from_extents(self, extents: list[Extent], offset: int, end: int) -> Iterator[bytes]:
        at = offset
        number = bisect_right(self._ends, offset)
        while at < end:
            extent = extents[number] if number < len(extents) else None
            if extent is None or extent.start >= end:
                yield bytes(end - at)
                return
            if extent.start > at:
                yield bytes(extent.start - at)
                at = extent.start
            until = min(extent.start + extent.length, end)
            start = extent.skip + at - extent.start
            window = self._piece_window(extent, start + until - at)
            yield from self._data(window, start, start + until - at)
            at = until
            number += 1

    def _piece_window(self, extent: Extent, end: int) -> Window:
        """The window of an extent's record, which has data up to ``end``. It need not contain the chunks."""
        window = self._piece
        if window is None or window.head.position[1:] != (extent.lane, extent.address):
            first = head_size(extent.skip + extent.length)
            head, data = self.container.read_record(extent.lane, extent.address, first, self.path)
            window = Window(head, 0, data)
            self._piece = window
        if end > window.head.data_size:
            raise self._damaged(window.head, "its data is shorter than the entry says")
        return window

    def _data(self, record: Window, start: int, end: int) -> Iterator[bytes]:
        """Bytes of a record's data."""
        for window, chunk in self._windows(record, start, end):
            try:
                data = self._chunk(window, chunk)
            except UnsupportedError as error:
                raise unsupported(f"{printable(self.path)}: {error.strerror}") from None
            base = chunk * CHUNK_SIZE
            yield data[max(start - base, 0) : end - base]

    def _prove(self, record: Window, start: int, end: int) -> None:
        for window, chunk in self._windows(record, start, end):
            # A chunk that cannot be decompressed here has the right checksum all the same.
            with suppress(UnsupportedError):
                self._chunk(window, chunk)

    def _chunk(self, window: Window, chunk: int) -> bytes:
        try:
            data = window.data(chunk)
        except FormatError as error:
            raise self._damaged(window.head, f"its chunk {chunk} cannot be decompressed: {error}") from error
        if data is None:
            raise self._damaged(window.head, f"the checksum of its chunk {chunk} is wrong")
        return data

    def _windows(self, window: Window, start: int, end: int) -> Iterator[tuple[Window, int]]:
        """The chunks of a range of a record's data, each with a window that contains it."""
        chunks_end = -(-end // CHUNK_SIZE)
        for chunk in range(start // CHUNK_SIZE, chunks_end):
            if not window.has(chunk):
                # A reader that begins at the first chunk, or continues the window, is likely to be sequential.
                is_sequential = chunk in (0, window.chunks_end)
                ahead = max(chunks_end, chunk + CHUNKS_AHEAD) if is_sequential else chunks_end
                window = self._read_chunks(window.head, chunk, min(ahead, chunk + CHUNKS_MAX))
            yield window, chunk

    def _read_chunks(self, head: Head, first: int, last: int) -> Window:
        start, end = head.bounds[first], head.bounds[min(last, len(head.sums))]
        data = self.container.read_lane(head.position.lane, head.position.address + start, end - start)
        # Chunks before a truncation are readable.
        if len(data) < head.bounds[first + 1] - start:
            raise self._damaged(head, "the subfile ends within its data")
        window = Window(head, start, data)
        self._piece = window
        return window

    def _damaged(self, head: Head, why: str) -> DamagedError:
        return self.container.damaged_record(head.position.lane, head.position.address, why, self.path)


class RawFile(io.RawIOBase):
    """A file of a container as an unbuffered Python file."""

    mode = "rb"

    def __init__(self, reader: FileReader) -> None:
        super().__init__()
        self.reader = reader
        self.name = reader.path
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.reader.size}.get(whence)
        if base is None:
            raise ValueError(f"invalid whence: {whence}")
        if base + offset < 0:
            raise ValueError(f"the position is before the beginning of the file: {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._check()
        view = memoryview(buffer).cast("B")
        data = self.reader.read_at(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        self._check()
        data = self.reader.read_at(self._at, self.reader.size)
        self._at += len(data)
        return data

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class ContainerFile(io.BufferedReader):
    """An open file of a container: binary, seekable, buffered, read-only."""

    raw: RawFile

    def __init__(self, reader: FileReader) -> None:
        super().__init__(RawFile(reader))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as the file's path and position; it is opened again when it is unpickled."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return _reopen_at, (self.raw.reader.container, self.raw.reader.path, self.tell())

    @property
    def size(self) -> int:
        return self.raw.reader.size


def _reopen_at(container: "Container", path: str, at: int) -> ContainerFile:
    file = container.open(path)
    file.seek(at)
    return file
