"""Shared memory regions: arrays that processes on all nodes of a job share.

    from tameike import dsm

    with dsm.create(path, (rows, columns), float, processes=ranks) as region:
        table = region.array()
        table[rank::ranks] = compute(rank)
        region.barrier()  # each process now sees the whole table

The content of a region is a file of the job-shared view. A page of 4 KiB is fetched at its first access; between
barriers a process works on the memory of its node. All calls release the GIL. NumPy is needed for arrays only.

Wrong arguments raise `TypeError` or `ValueError`. All other failures raise `OSError`, whose message says what to do.
"""

import contextlib
import ctypes
import errno
import functools
import gc
import math
import operator
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Optional, Union

from . import library, waiting

if TYPE_CHECKING:
    from numpy.typing import NDArray

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Shape = Union[int, Sequence[int]]

#: ``TAMEIKE_DSM_MPROTECT`` and ``TAMEIKE_DSM_ONE_WRITER`` of tameike.h.
_MPROTECT = 1
_ONE_WRITER = 2
_MECHANISMS = {0: "userfaultfd", _MPROTECT: "mprotect", _ONE_WRITER: "pagemap"}
_SIZE_MAX = 1 << 44

_JOB = "`tameike status` shows the nodes of the job"
#: What to do about failed calls, by errno.
_ADVICE = {
    errno.EHOSTDOWN: f"a node of the job has failed, or cannot be reached: {_JOB}",
    errno.EIO: f"the agent of this node has failed, or data on a device is damaged: {_JOB}",
    errno.ENOLCK: "the region has too many locks: use fewer numbers",
    errno.ENOSPC: "the devices of the job are full: start it with a larger --capacity",
    errno.ENOTCONN: f"the agent of this node has failed: {_JOB}",
    errno.EOPNOTSUPP: f"the agent of this node does not serve the region any more: {_JOB}",
    errno.EOWNERDEAD: (
        "a process of the region has ended without detaching, or its node has failed: "
        "detach, and start all processes again"
    ),
    errno.EPIPE: "a process has detached from the region: all processes must call barrier() equally often",
}


@dataclass(frozen=True)
class Counters:
    """Counts of a region, of all processes of the node together; with mprotect, of this process."""

    #: Accesses to pages that the node did not have.
    read_faults: int
    #: First writes to pages after they were fetched.
    write_faults: int
    #: Pages fetched from other nodes or the device.
    pages_fetched: int
    #: Changed pages that were sent to their homes.
    pages_flushed: int
    #: Changed bytes that were sent to their homes.
    bytes_flushed: int
    #: Pages that were dropped because another node had changed them.
    pages_dropped: int
    #: Written pages into which changes of other nodes were merged.
    pages_merged: int
    #: Barriers.
    barriers: int
    #: Pages that were removed from memory, because the regions of the node exceeded their memory.
    pages_evicted: int
    #: Number of pages of the region.
    pages: int
    #: How accesses are detected: "userfaultfd", "mprotect", or "pagemap" if the kernel records written pages.
    mechanism: str


def create(
    path: Path,
    shape: Shape,
    dtype: Any = None,
    *,
    processes: int = 0,
    comm: Any = None,
    mprotect: bool = False,
    one_writer: bool = False,
) -> "Region":
    """Creates a region in the file ``path`` of the job-shared view, and attaches to it.

    All processes of a program may call it at the same time. The file has room for an array of this shape and dtype, in
    whole pages; a number is a shape of one dimension, and no dtype means bytes. An existing file of that size is used
    with its content.

    ``processes`` is the number of processes that take part in barriers; all must pass the same. ``comm``, a
    communicator of mpi4py, gives its size instead. Without both it is the number of ranks according to the environment
    of Open MPI, MPICH, PMIx or Slurm, or else 1. ``mprotect`` detects accesses by mprotect(2) instead of
    userfaultfd(2): each process then has memory of its own. ``one_writer``, which all processes must pass or none,
    promises that two nodes never store to the same page of 4096 bytes without a barrier, or a flush and an update, in
    between: stores cost less then (``TAMEIKE_DSM_ONE_WRITER`` of tameike.h).
    """
    layout = _Layout.of(shape, dtype)
    if not 0 < layout.size <= _SIZE_MAX:
        raise ValueError(f"an array of {layout.size} bytes: a region has 1 byte to 16 TiB")
    joining = _processes(processes, comm), _flags(mprotect, one_writer)
    return _attach("tameike_dsm_create", path, (layout.size, *joining), layout)


def attach(
    path: Path,
    shape: Optional[Shape] = None,
    dtype: Any = None,
    *,
    processes: int = 0,
    comm: Any = None,
    mprotect: bool = False,
    one_writer: bool = False,
) -> "Region":
    """Attaches to the region of an existing file; the arguments are those of `create`.

    Without a shape, the array of the region is as long as the region.
    """
    layout = _Layout.of(0 if shape is None else shape, dtype)
    joining = _processes(processes, comm), _flags(mprotect, one_writer)
    region = _attach("tameike_dsm_attach", path, joining, layout)
    if shape is None:
        layout.shape = (region.size // layout.itemsize,)
    elif layout.size > region.size:
        region.detach()
        raise ValueError(f"an array of {layout.size} bytes: the region {region.path!r} has {region.size} bytes")
    return region


def _flags(mprotect: bool, one_writer: bool) -> int:
    return (_MPROTECT if mprotect else 0) | (_ONE_WRITER if one_writer else 0)


@dataclass
class _Layout:
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: Any
    itemsize: int

    @classmethod
    def of(cls, shape: Shape, dtype: Any) -> "_Layout":
        lengths = shape if isinstance(shape, Sequence) else (shape,)
        checked = tuple(_unsigned("a length of the shape", length, 64) for length in lengths)
        if dtype is None:
            return cls(checked, "u1", 1)
        import numpy as np

        dtype = np.dtype(dtype)
        if dtype.hasobject or dtype.itemsize == 0:
            raise ValueError(f"items of {dtype!r}: those of a region are numbers, text and records of a fixed size")
        # An item that is itself an array adds dimensions.
        return cls(checked + dtype.shape, dtype.base, dtype.base.itemsize)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.itemsize


class Region:
    """A shared memory region, made by `create` or `attach`.

    Memory stays mapped as long as arrays or memoryviews of it exist. Leaving a ``with`` block flushes and detaches; if
    arrays exist, the process detaches when the last one is gone. So does a region without other references. Processes
    detach when they end, except by a signal or os._exit().
    """

    def __init__(self, pointer: int, path: str, layout: _Layout) -> None:
        functions = library.load()
        self._pointer = pointer
        self._process = os.getpid()
        #: Path of the file.
        self.path = path
        #: Size in bytes, in whole pages.
        self.size: int = functions.tameike_dsm_size(pointer)
        self._layout = layout
        self._address: int = functions.tameike_dsm_address(pointer)
        # Arrays, memoryviews and calls in progress refer to this object. When the last reference is gone, nobody uses
        # the memory, and the process detaches.
        self._memory: Any = (ctypes.c_ubyte * self.size).from_address(self._address)
        self._finalizer = self._watched(self._memory)
        # A thread that waits for it may collect garbage, and so end another region.
        self._mutex = threading.RLock()
        #: A barrier that a signal has interrupted.
        self._barrier: Optional[waiting.Call] = None

    def __repr__(self) -> str:
        state = "detached" if self._memory is None else f"{self.size} bytes"
        return f"<tameike.dsm.Region {self.path!r}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a region belongs to its process: pass the path on, and call tameike.dsm.attach() there")

    # Memory

    def array(self, shape: Optional[Shape] = None, dtype: Any = None, offset: int = 0) -> "NDArray[Any]":
        """A NumPy array over the memory from byte ``offset`` on, without a copy.

        Without a shape, it is that of the region, or the rest of the region if a dtype or an offset is given. Without a
        dtype, it is that of the region.
        """
        import numpy as np

        layout = self._layout
        offset = _unsigned("offset", offset, 64)
        if shape is not None or dtype is not None or offset > 0:
            layout = _Layout.of(0 if shape is None else shape, self._layout.dtype if dtype is None else dtype)
            if shape is None:
                layout.shape = (max(self.size - offset, 0) // layout.itemsize,)
        if offset + layout.size > self.size:
            size = f"{layout.size} bytes from byte {offset} on"
            raise ValueError(f"an array of {size}: the region {self.path!r} has {self.size} bytes")
        count = math.prod(layout.shape)
        return np.frombuffer(self._held(), layout.dtype, count, offset).reshape(layout.shape)

    @property
    def memory(self) -> memoryview:
        """All bytes, as a memoryview."""
        return PickleBuffer(self._held()).raw()

    def __buffer__(self, flags: int) -> memoryview:
        return self.memory

    def touch(self, part: Any = None, *, write: bool = False) -> None:
        """Makes memory accessible to system calls until the next barrier, update or lock; with ``write`` to calls that
        store to it (``readinto``, ``recv_into``). Such calls fail with ``EFAULT`` on pages that are not there. A region
        that exceeds the memory of the node for regions may lose pages earlier.

        ``part`` is an array or another buffer in the region; by default all of it. Also fetches pages in advance.
        """
        start, size = (self._address, self.size) if part is None else _extent_of(part)
        offset = start - self._address
        if size > 0 and not 0 <= offset <= self.size - size:
            raise ValueError(f"the buffer is not in the region {self.path!r}; it may be a copy")
        self._call("touch", offset if size > 0 else 0, size, int(write))

    # Calls

    def flush(self) -> None:
        """Sends all stores of this node's processes to the file; other nodes see them after `update`."""
        self._call("flush")

    def update(self) -> None:
        """Makes changes visible that other nodes have flushed."""
        self._call("update")

    def barrier(self) -> None:
        """Waits until all processes have called it; each then sees what the others stored before.

        If a signal handler raises an exception (Ctrl-C) meanwhile, the process stays in the barrier: the next call
        waits for its end.
        """
        if not waiting.is_main_thread():
            self._call("barrier")
            return
        if self._barrier is None:
            self._barrier = waiting.Call(self._use("barrier"))
        result = self._barrier.wait()
        self._barrier = None
        self._check("barrier", result)

    def lock(self, number: int = 0, *, robust: bool = False) -> "Lock":
        """A lock of the region, for ``with``: one thread of all processes can hold it at a time.

        The block sees all stores that earlier owners made. If a process has ended without detaching, perhaps in its
        block, the lock raises `OSError` (``EOWNERDEAD``); with ``robust`` it sets `Lock.process_failed` instead.
        """
        return Lock(self, _unsigned("number", number, 32), robust)

    def fetch_add(self, offset: int, addend: int = 1) -> int:
        """Adds to the unsigned 64-bit number at byte ``offset``, and returns the number before.

        Additions of all processes are atomic. Loads see the sum after a barrier, update or lock.
        """
        offset, addend = operator.index(offset), operator.index(addend)
        if offset % 8 or not 0 <= offset <= self.size - 8:
            raise ValueError(f"byte {offset}: numbers are at multiples of 8 in the region's {self.size} bytes")
        if not -(1 << 63) <= addend < 1 << 64:
            raise ValueError(f"addend {addend}: it must have 64 bits")
        previous = ctypes.c_uint64()
        self._call("fetch_add", offset, addend % (1 << 64), ctypes.byref(previous))
        return previous.value

    def allocate(self, size: int, alignment: int = 64) -> int:
        """Allocates ``size`` bytes of the region for any process; returns their offset, a multiple of ``alignment``.

        `array` makes an array of them. Blocks are forgotten when all processes have detached.
        """
        block = ctypes.c_uint64()
        size, alignment = _unsigned("size", size, 64), _unsigned("alignment", alignment, 64)
        self._call("allocate", size, alignment, ctypes.byref(block))
        return block.value

    def deallocate(self, offset: int) -> None:
        """Frees the block that `allocate` has returned, in any process."""
        self._call("deallocate", _unsigned("offset", offset, 64))

    def stats(self) -> Counters:
        """Counts of page faults, fetched pages and sent bytes."""
        found = library.RegionCounters()
        self._call("stats", ctypes.byref(found))
        counts = {name: getattr(found, name) for name, _ in found._fields_}
        counts["mechanism"] = _MECHANISMS[found.mechanism]
        return Counters(**counts)

    # End

    def detach(self) -> None:
        """Flushes, and detaches from the region. Does nothing the second time.

        Raises `BufferError` if arrays or memoryviews of the region exist, or other threads are in calls on it.
        """
        if self._memory is not None:
            self._end("detach")

    def free(self) -> None:
        """Detaches, and removes the file. Other processes can use the region until they detach. All may call it."""
        self._end("free")

    def __enter__(self) -> "Region":
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
                self._end("detach", collect=False)
            except BufferError:
                self.flush()
                self._memory = None

    def _end(self, name: str, collect: bool = True) -> None:
        """Detaches by a function of the library, if nobody uses the memory."""
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
                    f"the region {self.path!r} is in use: delete its arrays and memoryviews (`del name`), "
                    "and wait for calls of other threads"
                )
        self._check(name, _function(name)(self._pointer))

    def _watched(self, memory: Any) -> Any:
        finalizer = weakref.finalize(memory, _detach, self._pointer, self.path, self._process)
        # The library detaches when the process ends; threads may use the memory until then.
        finalizer.atexit = False
        return finalizer

    def _held(self) -> Any:
        """The memory, which is in use as long as the result has references."""
        if self._process != os.getpid():
            message = "the region is that of the parent process: call tameike.dsm.attach() in the child"
            raise OSError(errno.EIO, message, self.path)
        with self._mutex:
            memory = self._memory
        if memory is None:
            raise OSError(errno.EBADF, "the process has detached from the region", self.path)
        return memory

    def _use(self, name: str, *arguments: Any) -> Callable[[], int]:
        """A call that keeps the memory in use as long as the result has references."""
        return functools.partial(_call_with, self._held(), name, self._pointer, *arguments)

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, self._use(name, *arguments)())

    def _check(self, name: str, result: int) -> None:
        if result < 0:
            advice = _ADVICE.get(-result, os.strerror(-result))
            raise OSError(-result, f"{name}: {advice}", self.path)


class Lock:
    """A lock of a region, held in a ``with`` block."""

    def __init__(self, region: Region, number: int, robust: bool) -> None:
        self._region = region
        self._number = number
        self._robust = robust
        #: A process of the region has ended without detaching: what the lock protects may be inconsistent.
        self.process_failed = False

    def __enter__(self) -> "Lock":
        result = self._take()
        self.process_failed = result == -errno.EOWNERDEAD
        if not self.process_failed:
            self._region._check("lock", result)
        elif not self._robust:
            self._release()
            self._region._check("lock", result)
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], value: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        self._release()

    def _take(self) -> int:
        take = self._region._use("lock", self._number)
        if not waiting.is_main_thread():
            return take()
        call = waiting.Call(take)
        del take
        try:
            return call.wait()
        except BaseException:
            call.abandon(self._release_if_taken)
            raise

    def _release(self) -> None:
        self._region._call("unlock", self._number)

    def _release_if_taken(self, result: int) -> None:
        if result in (0, -errno.EOWNERDEAD):
            # The process may have detached, which releases its locks. Nobody waits for a report.
            with contextlib.suppress(OSError):
                self._release()


def _function(name: str) -> Any:
    return getattr(library.load(), f"tameike_dsm_{name}")


def _call_with(memory: Any, name: str, *arguments: Any) -> int:
    """Calls a function that needs ``memory``."""
    result: int = _function(name)(*arguments)
    return result


def _detach(pointer: int, path: str, process: int) -> None:
    """Detaches after the last use of the memory."""
    # The child of a fork has nothing to detach from.
    if process == os.getpid():
        result = _function("detach")(pointer)
        if result < 0:
            raise OSError(-result, f"detach: {_ADVICE.get(-result, os.strerror(-result))}", path)


def _attach(name: str, path: Path, arguments: tuple[int, ...], layout: _Layout) -> Region:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("a path with a NUL character")
    pointer = ctypes.c_void_p()
    result = getattr(library.load(), name)(encoded, *arguments, ctypes.byref(pointer))
    shown = os.fsdecode(encoded)
    if result < 0:
        message = f"cannot attach to the region: {_reason(-result, shown)}"
        raise OSError(-result, message, shown)
    assert pointer.value is not None
    return Region(pointer.value, shown, layout)


def _reason(number: int, path: str) -> str:
    """Why an attach has failed, and what to do."""
    if number == errno.EOPNOTSUPP:
        shared = os.environ.get("TAMEIKE_SHARED")
        if shared is None:
            return "the process is not in a job: start it with `tameike run` or `tameike exec`"
        if not os.environ.get("TAMEIKE_RING"):
            return "the job has no ring, which regions need: start it without --no-ring"
        if os.path.commonpath([os.path.realpath(path), os.path.realpath(shared)]) != os.path.realpath(shared):
            return f"the path is not in the job-shared view: use one below TAMEIKE_SHARED, {shared}"
        return f"the agent of this node does not serve regions to this process: {_JOB}"
    reasons = {
        errno.EEXIST: "the file exists with another size: remove it, or attach to it as it is",
        errno.EINVAL: "all processes must pass the same number of processes, and the file must not be empty",
        errno.EBUSY: "all its processes are attached, or the kernel of this node has the file open: detach or close it",
        errno.ENOSPC: "the devices of the job have no space for it: start the job with a larger --capacity",
        errno.ENOENT: "the file or its directory is missing: a process must create it first",
    }
    return reasons.get(number) or _ADVICE.get(number) or os.strerror(number)


def _processes(processes: int, comm: Any) -> int:
    if comm is None:
        return _unsigned("processes", processes, 32)
    if processes:
        raise ValueError("`processes` and `comm` both give the number of processes: pass one of them")
    return int(comm.Get_size())


def _unsigned(name: str, value: Any, bits: int) -> int:
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{name} is {number}: it must be at least 0 and less than 2^{bits}")
    return number


def _extent_of(part: Any) -> tuple[int, int]:
    """Address and size of the memory from the first to the last byte of an array or a buffer."""
    interface = getattr(part, "__array_interface__", None)
    if interface is None:
        view = memoryview(part)
        return (ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes) if view.nbytes else (0, 0)
    if part.size == 0:
        return 0, 0
    start = end = interface["data"][0]
    for length, stride in zip(part.shape, part.strides):
        if stride < 0:
            start += (length - 1) * stride
        else:
            end += (length - 1) * stride
    return start, end - start + part.itemsize
