"""Memory of the library that a process has attached to, common to regions and windows.

Memory stays mapped as long as arrays, memoryviews and calls in progress use it. The process detaches after the last
use. A child of ``fork()`` has nothing attached. Failed calls raise `OSError` with the path, and with advice.
"""

import contextlib
import errno
import functools
import gc
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, ClassVar, Optional, TypeVar, Union

from . import library, waiting

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Self = TypeVar("Self", bound="Attached")

JOB = "`tameike status` shows the nodes of the job"


@dataclass(frozen=True)
class Kind:
    """A kind of shared memory."""

    #: "region" or "window".
    noun: str
    #: What the names of its functions begin with.
    prefix: str
    #: What a child of the process does instead of using its parent's memory.
    in_child: str
    #: What to do about failed calls, by errno.
    advice: Mapping[int, str]
    #: What to do about failed attaches, by errno; otherwise what `advice` says.
    at_first: Mapping[int, str]

    def function(self, name: str) -> Any:
        """A function of the library."""
        return getattr(library.load(), self.prefix + name)

    def error(self, name: str, result: int, path: str) -> OSError:
        """The error of a call that has returned ``result``."""
        return OSError(-result, f"{name}: {self.advice.get(-result, os.strerror(-result))}", path)

    def attach_error(self, result: int, path: str) -> OSError:
        """The error of an attach that has returned ``result``."""
        number = -result
        if number == errno.EOPNOTSUPP:
            reason = self._not_served(path)
        else:
            reason = self.at_first.get(number) or self.advice.get(number) or os.strerror(number)
        return OSError(number, f"cannot attach to the {self.noun}: {reason}", path)

    def _not_served(self, path: str) -> str:
        shared = os.environ.get("TAMEIKE_SHARED")
        if shared is None:
            return "the process is not in a job: start it with `tameike run` or `tameike exec`"
        if not os.environ.get("TAMEIKE_RING"):
            return f"the job has no ring, which {self.noun}s need: start it without --no-ring"
        if os.path.commonpath([os.path.realpath(path), os.path.realpath(shared)]) != os.path.realpath(shared):
            return f"the path is not in the job-shared view: use one below TAMEIKE_SHARED, {shared}"
        return f"the agent of this node does not serve {self.noun}s to this process: {JOB}"


def encoded(path: Path) -> bytes:
    """A path as the library gets it."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("a path with a NUL character")
    return name


class Attached:
    """Base class of regions and windows."""

    _KIND: ClassVar[Kind]

    def __init__(self, pointer: int, path: str, memory: Any) -> None:
        self._pointer = pointer
        self._process = os.getpid()
        #: Path of the file.
        self.path = path
        # Arrays, memoryviews and calls in progress refer to this object. When the last reference is gone, no code uses
        # the memory, and the process detaches.
        self._memory: Any = memory
        self._finalizer = self._watched(memory)
        # A thread that waits for it may collect garbage, and so end another region or window.
        self._mutex = threading.RLock()
        #: Calls of the main thread that wait, also those that a signal has interrupted.
        self._in_progress: dict[str, waiting.Call] = {}

    def detach(self) -> None:
        """Completes all stores of this process, and detaches. Does nothing the second time.

        Raises `BufferError` if arrays or memoryviews of the memory exist, or other threads are in calls on it.
        """
        if self._memory is not None:
            self._detach()

    def __enter__(self: Self) -> Self:
        self._held()
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], value: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        if self._memory is None or self._process != os.getpid():
            return
        # An exception of the block comes first.
        errors = () if kind is None else (OSError,)
        with contextlib.suppress(*errors):
            try:
                self._detach(collect=False)
            except BufferError:
                self._complete()
                self._memory = None

    def _complete(self) -> None:
        """Completes all stores of this process."""
        raise NotImplementedError

    def _detach(self, collect: bool = True) -> None:
        self._check("detach", self._last("detach", collect)())

    def _last(self, name: str, collect: bool = True) -> Callable[[], int]:
        """The call that detaches, after the end of all use of the memory."""
        self._held()
        with self._mutex:
            reference = weakref.ref(self._held())
            self._finalizer.detach()
            self._memory = None
            if collect and reference() is not None:
                gc.collect()
            memory = reference()
            if memory is not None:
                self._memory, self._finalizer = memory, self._watched(memory)
                raise BufferError(
                    f"the {self._KIND.noun} {self.path!r} is in use: delete its arrays and memoryviews (`del name`), "
                    "and wait for calls of other threads"
                )
        return functools.partial(self._KIND.function(name), self._pointer)

    def _watched(self, memory: Any) -> Any:
        finalizer = weakref.finalize(memory, _detach_unused, self._KIND, self._pointer, self.path, self._process)
        # The library detaches when the process ends; threads may use the memory until then.
        finalizer.atexit = False
        return finalizer

    def _check_process(self) -> None:
        if self._process != os.getpid():
            message = f"the {self._KIND.noun} is that of the parent process: {self._KIND.in_child}"
            raise OSError(errno.EIO, message, self.path)

    def _held(self) -> Any:
        """The memory, which is in use as long as the result has references."""
        self._check_process()
        with self._mutex:
            memory = self._memory
        if memory is None:
            raise OSError(errno.EBADF, f"the process has detached from the {self._KIND.noun}", self.path)
        return memory

    def _use(self, name: str, *arguments: Any) -> Callable[..., int]:
        """A call that keeps the memory in use as long as the result has references."""
        return functools.partial(_call_with, self._held(), self._KIND.function(name), self._pointer, *arguments)

    def _call(self, name: str, *arguments: Any) -> int:
        return self._check(name, self._use(name, *arguments)())

    def _wait(self, name: str, begin: Optional[Callable[[str], Callable[[], int]]] = None) -> None:
        """Makes a call that waits for other processes, by default one that uses the memory.

        If a signal handler raises an exception meanwhile, the call remains in progress: the next one waits for its end.
        """
        begin = begin or self._use
        if not waiting.is_main_thread():
            self._check(name, begin(name)())
            return
        # A child has a copy of the call in progress, without its end.
        self._check_process()
        if name not in self._in_progress:
            self._in_progress[name] = waiting.Call(begin(name))
        result = self._in_progress[name].wait()
        del self._in_progress[name]
        self._check(name, result)

    def _check(self, name: str, result: int) -> int:
        if result < 0:
            raise self._KIND.error(name, result, self.path)
        return result


def _call_with(memory: Any, function: Any, *arguments: Any) -> int:
    """Calls a function that needs ``memory``."""
    result: int = function(*arguments)
    return result


def _detach_unused(kind: Kind, pointer: int, path: str, process: int) -> None:
    """Detaches after the last use of the memory."""
    # The child of a fork has nothing to detach from.
    if process == os.getpid():
        result = kind.function("detach")(pointer)
        if result < 0:
            raise kind.error("detach", result, path)
