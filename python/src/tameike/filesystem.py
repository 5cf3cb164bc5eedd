"""Containers as a read-only file system of fsspec: ``tameike-agg://path/inside::file:///container``."""

import errno
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn, Optional, Union

from fsspec import AbstractFileSystem

from .container import Container
from .entry import NANOSECONDS
from .errors import ContainerError
from .index import IndexEntry
from .reader import ContainerFile, FileReader

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class ContainerFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of a container.

    ``fo`` is the directory of the container, or its URL; with ``target_protocol`` and ``target_options`` it is on that
    file system. ``use_index=False`` scans the container instead of reading its index.

    Links to files appear as files. Links to directories are followed if a path contains them, but not by walks.
    """

    #: The second one is for libraries that allow no hyphen, such as xarray.
    protocol = ("tameike-agg", "tameikeagg")
    root_marker = ""

    def __init__(
        self,
        fo: Union[str, "os.PathLike[str]"] = "",
        target_protocol: Optional[str] = None,
        target_options: Optional[dict[str, Any]] = None,
        use_index: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not os.fspath(fo):
            raise ValueError("no container given: set `fo`, or use a URL such as tameike-agg://path::file:///container")
        self.fo = fo
        self.container = Container(fo, protocol=target_protocol, options=target_options, use_index=use_index)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped.lstrip("/") if isinstance(stripped, str) else stripped

    def invalidate_cache(self, path: Optional[str] = None) -> None:
        """Makes entries visible that other processes have added."""
        self.container.refresh()
        super().invalidate_cache(path)

    # Names

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        entry = self.container.find(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._info(entry, path, is_walking=False)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        entry = self.container.follow(path)
        if not entry.is_dir():
            return [self.info(path) if detail else path]
        prefix = f"{path}/" if path else ""
        children = self.container.children(path)
        if not detail:
            return [prefix + child.name for child in children]
        return [self._info(child, prefix + child.name, is_walking=True) for child in children]

    def find(
        self,
        path: str,
        maxdepth: Optional[int] = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        entry = self.container.find(path)
        # Directory by directory, if the depth is limited or the path contains links.
        if maxdepth is not None or entry is None or not entry.is_dir() or entry.path != path:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        found = {entry.path: entry for entry in self._below(path, withdirs)}
        if withdirs and path:
            found[path] = entry
        if not detail:
            return sorted(found)
        return {name: self._info(found[name], name, is_walking=True) for name in sorted(found)}

    def _below(self, path: str, withdirs: bool) -> Iterator[IndexEntry]:
        seen = {path, ""}
        for entry in self.container.walk(path):
            if withdirs:
                yield from self._parents(entry.path, seen)
            if withdirs or not entry.is_dir():
                yield entry

    def _parents(self, path: str, seen: set[str]) -> Iterator[IndexEntry]:
        """The parents of a path that are not in ``seen``."""
        parent = path.rpartition("/")[0]
        while parent not in seen:
            seen.add(parent)
            entry = self.container.find(parent)
            if entry is not None:
                yield entry
            parent = parent.rpartition("/")[0]

    def _info(self, entry: IndexEntry, name: str, is_walking: bool) -> dict[str, Any]:
        info = {
            "name": name,
            "size": entry.size,
            "type": _type(entry),
            "islink": entry.is_symlink(),
            "mode": entry.st_mode,
            "uid": entry.uid,
            "gid": entry.gid,
            "mtime": entry.mtime,
        }
        if entry.is_symlink():
            info["destination"] = self.container.readlink(entry.path)
            target = self._target(entry)
            if target is not None and not (is_walking and target.is_dir()):
                info.update(size=target.size, type=_type(target))
        return info

    def _target(self, entry: IndexEntry) -> Optional[IndexEntry]:
        return self.container.follow(entry.path) if self.container.exists(entry.path) else None

    # fsspec must report damage instead of missing files.

    def walk(
        self,
        path: str,
        maxdepth: Optional[int] = None,
        topdown: bool = True,
        on_error: Any = "omit",
        **kwargs: Any,
    ) -> Any:
        on_error = _raise_damage if on_error == "omit" else on_error
        return super().walk(path, maxdepth=maxdepth, topdown=topdown, on_error=on_error, **kwargs)

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.container.exists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        path = self._strip_protocol(path)
        return self.container.exists(path) and self.container.follow(path).is_dir()

    def isfile(self, path: str) -> bool:
        path = self._strip_protocol(path)
        return self.container.exists(path) and self.container.follow(path).is_file()

    def lexists(self, path: str, **kwargs: Any) -> bool:
        return self.container.find(self._strip_protocol(path)) is not None

    def modified(self, path: str) -> datetime:
        entry = self.container.follow(self._strip_protocol(path))
        try:
            return EPOCH + timedelta(microseconds=entry.mtime_ns // 1000)
        except OverflowError:
            message = f"its mtime, {entry.mtime_ns // NANOSECONDS} seconds since 1970, is out of range of datetime"
            raise OSError(errno.EOVERFLOW, message, path) from None

    def ukey(self, path: str) -> str:
        """Changes with the content of the file."""
        entry = self.container.follow(self._strip_protocol(path))
        record = f"{entry.lane.subfile}-{entry.lane.lane}-{entry.address}-{entry.version}"
        # External content changes without a new record.
        return f"{self.container.identity:016x}-{record}-{entry.size}-{entry.mtime_ns}"

    # Content

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> ContainerFile:
        if mode not in ("r", "rb"):
            _read_only(path)
        return self.container.open(path)

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any) -> bytes:
        return _range(self.container.reader(self._strip_protocol(path)), start, end)

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: Optional[int] = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Opens a file once for consecutive ranges of it."""
        starts, ends = (some if isinstance(some, list) else [some] * len(paths) for some in (starts, ends))
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("the numbers of paths, starts and ends differ")
        ranges: list[Any] = []
        at, reader = None, None
        for path, start, end in zip(paths, starts, ends):
            try:
                if reader is None or path != at:
                    at, reader = path, self.container.reader(self._strip_protocol(path))
                ranges.append(_range(reader, start, end))
            except Exception as error:
                if on_error != "return":
                    raise
                ranges.append(error)
        return ranges

    # Changes are refused

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        _read_only(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not (exist_ok and self.isdir(path)):
            _read_only(path)

    def rmdir(self, path: str) -> None:
        _read_only(path)

    def _rm(self, path: str) -> None:
        _read_only(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        _read_only(path)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        _read_only(path2)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        _read_only(path)


def _range(reader: FileReader, start: Optional[int], end: Optional[int]) -> bytes:
    first, last, _ = slice(start, end).indices(reader.size)
    return reader.read_at(first, last - first)


def _type(entry: IndexEntry) -> str:
    if entry.is_dir():
        return "directory"
    return "file" if entry.is_file() else "other"


def _raise_damage(error: Exception) -> None:
    if isinstance(error, ContainerError):
        raise error


def _read_only(path: Any) -> NoReturn:
    raise OSError(errno.EROFS, "a container is read-only", str(path))
