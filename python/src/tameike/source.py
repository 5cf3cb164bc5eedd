"""The files of a container, on a local file system or on one of fsspec.

Reads take an offset, so that threads and forked processes can share open files.
"""

import errno
import os
import posixpath
import stat
from typing import Any, Optional, Protocol, Union

import fsspec
from fsspec.implementations.local import LocalFileSystem


class NotRegularError(OSError):
    """It exists, but is no regular file."""


class Source(Protocol):
    """An open file."""

    #: Size at the open, in bytes.
    size: int

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""


class Directory(Protocol):
    """The directory of a container."""

    #: Path for messages.
    path: str

    def open(self, name: str) -> Source:
        """Opens a file. Raises `FileNotFoundError`."""

    def status(self, name: str) -> tuple[int, Optional[int]]:
        """Size of a file, without following a link, and mtime in nanoseconds since 1970 if it is known."""

    def names(self) -> list[str]:
        """Names of all files."""

    def forget(self) -> None:
        """Drops cached state of files that other processes may have changed."""


class LocalSource:
    """A local file, closed with its last reference."""

    def __init__(self, path: str) -> None:
        # Nonblocking, so that a FIFO cannot block the open.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.size = _size_of_regular(path, os.fstat(self._descriptor))

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) in (0, size):
            return data
        # The end of the file, or a file system with short reads.
        parts = [data]
        while data:
            offset, size = offset + len(data), size - len(data)
            data = os.pread(self._descriptor, size, offset)
            parts.append(data)
        return b"".join(parts)

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)


class LocalDirectory:
    """A local directory."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, name: str) -> LocalSource:
        return LocalSource(os.path.join(self.path, name))

    def status(self, name: str) -> tuple[int, Optional[int]]:
        path = os.path.join(self.path, name)
        status = os.lstat(path)
        return _size_of_regular(path, status), status.st_mtime_ns

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def forget(self) -> None:
        """Nothing is cached."""


class RemoteSource:
    """A file on a file system of fsspec."""

    def __init__(self, fs: fsspec.AbstractFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self.size = int(fs.info(path)["size"])

    def read_at(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        return bytes(self._fs.cat_file(self._path, start=offset, end=end))


class RemoteDirectory:
    """A directory on a file system of fsspec."""

    def __init__(self, fs: fsspec.AbstractFileSystem, path: str) -> None:
        self._fs = fs
        self.path = path

    def open(self, name: str) -> RemoteSource:
        return RemoteSource(self._fs, posixpath.join(self.path, name))

    def status(self, name: str) -> tuple[int, Optional[int]]:
        return int(self._fs.info(posixpath.join(self.path, name))["size"]), None

    def names(self) -> list[str]:
        listed: list[str] = self._fs.ls(self.path, detail=False)
        return [posixpath.basename(path.rstrip("/")) for path in listed]

    def forget(self) -> None:
        self._fs.invalidate_cache(self.path)


def _size_of_regular(path: str, status: os.stat_result) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(errno.EINVAL, "it is no regular file", path)
    return status.st_size


def directory(
    path: Union[str, "os.PathLike[str]"],
    protocol: Optional[str] = None,
    options: Optional[dict[str, Any]] = None,
) -> Directory:
    """The directory at a local path, a URL, or a path of the file system of ``protocol``."""
    where = os.fspath(path)
    if protocol is None and "://" not in where:
        protocol = "file"
    if protocol is None:
        fs, where = fsspec.core.url_to_fs(where, **(options or {}))
    else:
        fs = fsspec.filesystem(protocol, **(options or {}))
        where = fs._strip_protocol(where)
    if isinstance(fs, LocalFileSystem) and hasattr(os, "pread"):
        return LocalDirectory(where)
    return RemoteDirectory(fs, where)
