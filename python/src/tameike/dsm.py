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
import operator
import os
from dataclasses import dataclass
from pickle import PickleBuffer
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Optional

from . import library, waiting
from .arrays import Layout, Shape, extent_of, unsigned, word
from .attached import JOB, Attached, Kind, Path, encoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: ``TAMEIKE_DSM_MPROTECT`` and ``TAMEIKE_DSM_ONE_WRITER`` of tameike.h.
_MPROTECT = 1
_ONE_WRITER = 2
_MECHANISMS = {0: "userfaultfd", _MPROTECT: "mprotect", _ONE_WRITER: "pagemap"}
_SIZE_MAX = 1 << 44

#: What to do about failed calls, by errno.
_ADVICE = {
    errno.EHOSTDOWN: f"a node of the job has failed, or cannot be reached: {JOB}",
    errno.EIO: f"the agent of this node has failed, or data on a device is damaged: {JOB}",
    errno.ENOLCK: "the region has too many locks: use fewer numbers",
    errno.ENOSPC: "the devices of the job are full: start it with a larger --capacity",
    errno.ENOTCONN: f"the agent of this node has failed: {JOB}",
    errno.EOPNOTSUPP: f"the agent of this node does not serve the region any more: {JOB}",
    errno.EOWNERDEAD: (
        "a process of the region has ended without detaching, or its node has failed: "
        "detach, and start all processes again"
    ),
    errno.EPIPE: "a process has detached from the region: all processes must call barrier() equally often",
}
#: What to do about failed attaches.
_AT_FIRST = {
    errno.EEXIST: "the file exists with another size: remove it, or attach to it as it is",
    errno.EINVAL: "all processes must pass the same number of processes, and the file must not be empty",
    errno.EBUSY: "all its processes are attached, or the kernel of this node has the file open: detach or close it",
    errno.ENOSPC: "the devices of the job have no space for it: start the job with a larger --capacity",
    errno.ENOENT: "the file or its directory is missing: a process must create it first",
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

    All processes of a program may call it at the same time. The file has space for an array of this shape and dtype, in
    whole pages; a number is a shape of one dimension, and no dtype means bytes. An existing file of that size is used
    with its content.

    ``processes`` is the number of processes that take part in barriers; all must pass the same. ``comm``, a
    communicator of mpi4py, gives its size instead. Without both it is the number of ranks according to the environment
    of Open MPI, MPICH, PMIx or Slurm, or else 1. ``mprotect`` detects accesses by mprotect(2) instead of
    userfaultfd(2): each process then has memory of its own. ``one_writer``, which all processes must pass or none,
    promises that two nodes never store to the same page of 4096 bytes without a barrier, or a flush and an update, in
    between: stores cost less then (``TAMEIKE_DSM_ONE_WRITER`` of tameike.h).
    """
    layout = Layout.of(shape, dtype)
    if not 0 < layout.size <= _SIZE_MAX:
        raise ValueError(f"an array of {layout.size} bytes: a region has 1 byte to 16 TiB")
    joining = _processes(processes, comm), _flags(mprotect, one_writer)
    return _attach("create", path, (layout.size, *joining), layout)


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
    layout = Layout.of(0 if shape is None else shape, dtype)
    joining = _processes(processes, comm), _flags(mprotect, one_writer)
    region = _attach("attach", path, joining, layout)
    if shape is None:
        layout.shape = (region.size // layout.itemsize,)
    elif layout.size > region.size:
        region.detach()
        raise ValueError(f"an array of {layout.size} bytes: the region {region.path!r} has {region.size} bytes")
    return region


def _flags(mprotect: bool, one_writer: bool) -> int:
    return (_MPROTECT if mprotect else 0) | (_ONE_WRITER if one_writer else 0)


class Region(Attached):
    """A shared memory region, made by `create` or `attach`.

    Memory stays mapped as long as arrays or memoryviews of it exist. Leaving a ``with`` block flushes and detaches; if
    arrays exist, the process detaches when the last one is gone. So does a region without other references. Processes
    detach when they end, except by a signal or os._exit().
    """

    _KIND = Kind("region", "tameike_dsm_", "call tameike.dsm.attach() in the child", _ADVICE, _AT_FIRST)

    def __init__(self, pointer: int, path: str, layout: Layout) -> None:
        #: Size in bytes, in whole pages.
        self.size: int = self._KIND.function("size")(pointer)
        self._layout = layout
        self._address: int = self._KIND.function("address")(pointer)
        super().__init__(pointer, path, (ctypes.c_ubyte * self.size).from_address(self._address))

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
        offset = unsigned("offset", offset, 64)
        layout = self._layout.part(self.size, shape, dtype, offset)
        if offset + layout.size > self.size:
            size = f"{layout.size} bytes from byte {offset} on"
            raise ValueError(f"an array of {size}: the region {self.path!r} has {self.size} bytes")
        return layout.over(self._held(), offset)

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
        start, size = (self._address, self.size) if part is None else extent_of(part)
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
        self._wait("barrier")

    def lock(self, number: int = 0, *, robust: bool = False) -> "Lock":
        """A lock of the region, for ``with``: one thread of all processes can hold it at a time.

        The block sees all stores that earlier owners made. If a process has ended without detaching, perhaps in its
        block, the lock raises `OSError` (``EOWNERDEAD``); with ``robust`` it sets `Lock.process_failed` instead.
        """
        return Lock(self, unsigned("number", number, 32), robust)

    def fetch_add(self, offset: int, addend: int = 1) -> int:
        """Adds to the unsigned 64-bit number at byte ``offset``, and returns the number before.

        Additions of all processes are atomic. Loads see the sum after a barrier, update or lock.
        """
        offset = operator.index(offset)
        if offset % 8 or not 0 <= offset <= self.size - 8:
            raise ValueError(f"byte {offset}: numbers are at multiples of 8 in the region's {self.size} bytes")
        previous = ctypes.c_uint64()
        self._call("fetch_add", offset, word("addend", addend), ctypes.byref(previous))
        return previous.value

    def allocate(self, size: int, alignment: int = 64) -> int:
        """Allocates ``size`` bytes of the region for any process; returns their offset, a multiple of ``alignment``.

        `array` makes an array of them. Blocks are forgotten when all processes have detached.
        """
        block = ctypes.c_uint64()
        size, alignment = unsigned("size", size, 64), unsigned("alignment", alignment, 64)
        self._call("allocate", size, alignment, ctypes.byref(block))
        return block.value

    def deallocate(self, offset: int) -> None:
        """Frees the block that `allocate` has returned, in any process."""
        self._call("deallocate", unsigned("offset", offset, 64))

    def stats(self) -> Counters:
        """Counts of page faults, fetched pages and sent bytes."""
        found = library.RegionCounters()
        self._call("stats", ctypes.byref(found))
        counts = {name: getattr(found, name) for name, _ in found._fields_}
        counts["mechanism"] = _MECHANISMS[found.mechanism]
        return Counters(**counts)

    # End

    def free(self) -> None:
        """Detaches, and removes the file. Other processes can use the region until they detach. All may call it."""
        self._check("free", self._last("free")())

    def _complete(self) -> None:
        self.flush()


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
        return waiting.made(self._region._use("lock", self._number), self._release_if_taken)

    def _release(self) -> None:
        self._region._call("unlock", self._number)

    def _release_if_taken(self, result: int) -> None:
        if result in (0, -errno.EOWNERDEAD):
            # The process may have detached, which releases its locks. No thread waits for a report.
            with contextlib.suppress(OSError):
                self._release()


def _attach(name: str, path: Path, arguments: tuple[int, ...], layout: Layout) -> Region:
    name_of_file = encoded(path)
    pointer = ctypes.c_void_p()
    result = Region._KIND.function(name)(name_of_file, *arguments, ctypes.byref(pointer))
    shown = os.fsdecode(name_of_file)
    if result < 0:
        raise Region._KIND.attach_error(result, shown)
    assert pointer.value is not None
    return Region(pointer.value, shown, layout)


def _processes(processes: int, comm: Any) -> int:
    if comm is None:
        return unsigned("processes", processes, 32)
    if processes:
        raise ValueError("`processes` and `comm` both give the number of processes: pass one of them")
    return int(comm.Get_size())
