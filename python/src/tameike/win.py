"""Remote memory windows: memory of each process that all others read and write, while it computes.

    from tameike import win

    with win.create(path, 1 << 20, rank=rank, ranks=ranks) as window:
        window.put_signal((rank + 1) % ranks, 8, row, signal_offset=0, signal=step)
        window.wait_until(0, ">=", step)  # the row of the rank before is at byte 8
        ghost = window.array(row.shape, row.dtype, offset=8)
        window.barrier()  # before ranks detach, whose memory others cannot access any more

Names and rules are those of OpenSHMEM 1.5, with offsets in the memory of a rank in place of addresses. Ranks of the
same node access each other's memory directly, those of other nodes through the agents. All calls release the GIL.
NumPy is needed for arrays only.

Wrong arguments raise `TypeError` or `ValueError`, and the end of a timeout raises `TimeoutError`. All other failures
raise `OSError`, whose message says what to do.
"""

import ctypes
import errno
import functools
import operator
import os
from collections import deque
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, Callable, Literal, NoReturn, Optional

from . import arrays, waiting
from .arrays import Layout, Shape, unsigned, word
from .attached import JOB, Attached, Kind, Path, encoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

Comparison = Literal["==", "!=", ">", ">=", "<", "<="]
Operation = Literal["set", "add"]

#: ``TAMEIKE_WIN_EQ`` and the others of tameike.h.
_COMPARISONS = {"==": 0, "!=": 1, ">": 2, ">=": 3, "<": 4, "<=": 5}
#: ``TAMEIKE_WIN_SET`` and ``TAMEIKE_WIN_ADD``.
_OPERATIONS = {"set": 0, "add": 1}
_WORD_SIZE = 8

#: What to do about failed calls, by errno.
_ADVICE = {
    errno.EHOSTDOWN: f"the node of a rank has failed, or cannot be reached: {JOB}",
    errno.EINVAL: "there is no queue at this offset: its rank creates it, and the others send after a barrier",
    errno.EIO: f"the agent of this node has failed: {JOB}",
    errno.EMSGSIZE: "the message is larger than those of the queue, or than 1 MiB for a rank of another node",
    errno.ENOTCONN: f"the agent of this node has failed: {JOB}",
    errno.EOWNERDEAD: ("a rank has ended without detaching, or its node has failed: detach, and start all ranks again"),
    errno.EPIPE: (
        "a rank has detached from the window: all ranks must call barrier() equally often, "
        "and detach after the last access to their memory"
    ),
}
#: What to do about failed creations.
_AT_FIRST = {
    errno.EEXIST: "another process has the same rank, or the file is not empty: pass each rank once, or remove it",
    errno.EINVAL: "all ranks must pass the same size and number of ranks",
    errno.ENOENT: "the directory of the file is missing: create it first",
    errno.ENOMEM: "this node does not have so much memory: use a smaller size, or fewer ranks for each node",
    errno.ENOSPC: "this node does not have so much memory: use a smaller size, or fewer ranks for each node",
    errno.EOWNERDEAD: "another rank has failed to create it: start all ranks again",
    errno.EPIPE: "another rank has failed to create it: start all ranks again",
}
_KIND = Kind("window", "tameike_win_", "a child is a rank of windows that it creates itself", _ADVICE, _AT_FIRST)


def create(
    path: Path, size: int, rank: Optional[int] = None, ranks: Optional[int] = None, *, comm: Any = None
) -> "Window":
    """Creates a window of ``size`` bytes for each rank, and waits until all ranks have called it.

    All ranks pass the same path in the job-shared view, whose file is empty or missing, and the same size. The memory
    contains zeros. ``ranks`` is the number of ranks, and ``rank`` that of this process, below it. ``comm``, a
    communicator of mpi4py, gives both instead. Without them, they are those in the environment of Open MPI, MPICH, PMIx
    or Slurm, or else there is one rank.

    If a signal handler raises an exception (Ctrl-C) meanwhile, the process detaches when the window is there.
    """
    own, count = _numbers(rank, ranks, comm)
    size = unsigned("size", size, 64)
    if size == 0:
        raise ValueError("size is 0: a window has at least 1 byte")
    name = encoded(path)
    pointer = ctypes.c_void_p()
    call = functools.partial(_KIND.function("create"), name, size, own, count, 0, ctypes.byref(pointer))

    def abandon(result: int) -> None:
        if result == 0:
            _KIND.function("detach")(pointer)

    result = waiting.made(call, abandon)
    shown = os.fsdecode(name)
    if result < 0:
        raise _KIND.attach_error(result, shown)
    assert pointer.value is not None
    return Window(pointer.value, shown)


def queue_size(slots: int, message_size: int) -> int:
    """Size in bytes of a queue of so many messages of up to ``message_size`` bytes."""
    slots, message_size = unsigned("slots", slots, 64), unsigned("message_size", message_size, 64)
    size: int = _KIND.function("queue_size")(slots, message_size)
    if slots == 0 or size == 0:
        raise ValueError(f"a queue of {slots} messages of {message_size} bytes: it has 1 message to 2^64 bytes")
    return size


def _numbers(rank: Optional[int], ranks: Optional[int], comm: Any) -> tuple[int, int]:
    """Rank and number of ranks; the latter is 0 if the environment gives them."""
    if comm is not None:
        if rank is not None or ranks is not None:
            raise ValueError("`comm` gives the rank and the number of ranks: pass it, or both numbers")
        return int(comm.Get_rank()), int(comm.Get_size())
    if rank is None and ranks is None:
        return 0, 0
    if rank is None or ranks is None:
        raise ValueError("one of `rank` and `ranks`: pass both, or none in a program of MPI or Slurm")
    own, count = unsigned("rank", rank, 32), unsigned("ranks", ranks, 32)
    if own >= count:
        raise ValueError(f"rank {own}: it must be less than the number of ranks, {count}")
    return own, count


class Window(Attached):
    """A remote memory window, made by `create`.

    Offsets are those in the memory of the rank that is accessed, in bytes. Memory stays mapped as long as arrays or
    memoryviews of it exist. Leaving a ``with`` block completes puts and detaches; if arrays exist, the process detaches
    when the last one is gone. Processes detach when they end, except by a signal or os._exit().
    """

    _KIND = _KIND

    def __init__(self, pointer: int, path: str) -> None:
        #: Size of the memory of each rank in bytes.
        self.size: int = _KIND.function("size")(pointer)
        #: The rank of this process.
        self.rank: int = _KIND.function("rank")(pointer)
        #: Number of ranks.
        self.ranks: int = _KIND.function("ranks")(pointer)
        address = _KIND.function("address")
        addresses = {rank: address(pointer, rank) for rank in range(self.ranks)}
        #: Addresses of the memory of ranks on this node.
        self._near = {rank: found for rank, found in addresses.items() if found is not None}
        self._layout = Layout((self.size,), "u1", 1)
        super().__init__(pointer, path, _Memory())

    def __repr__(self) -> str:
        state = "detached" if self._memory is None else f"rank {self.rank} of {self.ranks}, {self.size} bytes"
        return f"<tameike.win.Window {self.path!r}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a window belongs to its process: pass the path on, and call tameike.win.create() in all ranks")

    # Memory

    def is_near(self, rank: int) -> bool:
        """Returns true if a rank is a process of this node, whose memory `array` gives."""
        return self._rank(rank) in self._near

    def array(
        self, shape: Optional[Shape] = None, dtype: Any = None, offset: int = 0, *, rank: Optional[int] = None
    ) -> "NDArray[Any]":
        """A NumPy array over the memory of a rank of this node from byte ``offset`` on, without a copy.

        The rank is by default the own one. Without a shape, the array is over the rest of the memory. Without a dtype,
        it has bytes. For words that several processes change, use `fetch`, `fetch_add` and the other functions.
        """
        offset = unsigned("offset", offset, 64)
        layout = self._layout.part(self.size, shape, dtype, offset)
        self._range(offset, layout.size)
        return layout.over(self._bytes_of(self.rank if rank is None else rank), offset)

    @property
    def memory(self) -> memoryview:
        """All bytes of the own memory, as a memoryview."""
        return PickleBuffer(self._bytes_of(self.rank)).raw()

    def _bytes_of(self, rank: int) -> Any:
        rank = self._rank(rank)
        if rank not in self._near:
            raise ValueError(f"rank {rank} is a process of another node: use put() and get()")
        memory = (ctypes.c_ubyte * self.size).from_address(self._near[rank])
        # Arrays refer to the bytes, and so to the memory of all ranks, which is unmapped at once.
        memory.window_memory = self._held()  # type: ignore[attr-defined]
        return memory

    # Transfers

    def put(self, rank: int, offset: int, data: Any) -> None:
        """Stores the bytes of an array or a buffer in the memory of a rank.

        Items of arrays have the order of their indices. When it returns, the data may change. It is in the memory of
        the rank after `quiet` or `barrier`, which also raise the error of a put that has failed later. Aligned words
        of 8 bytes change as a whole. Data in the memory of the window must not overlap its target.
        """
        found = arrays.source(data)
        rank, offset = self._rank(rank), self._range(offset, found.size)
        self._call("put", rank, offset, found.start, found.size)

    def get(self, rank: int, offset: int, into: Any) -> None:
        """Fills an array or a buffer with bytes from the memory of a rank."""
        found = arrays.target(into)
        rank, offset = self._rank(rank), self._range(offset, found.size)
        self._call("get", rank, offset, found.start, found.size)
        found.store()

    def iput(self, rank: int, offset: int, data: Any, stride: int = 1) -> None:
        """Stores the elements of an array's first dimension, as `put`, with gaps between them.

        Their starts in the memory of the rank are ``stride`` elements apart. The array may have gaps itself, as columns
        of a table: ``window.iput(rank, offset, table[:, 0], columns)`` stores a column in the same table of the rank.
        """
        self._transfer_elements("iput", rank, offset, arrays.strided(data), stride)

    def iget(self, rank: int, offset: int, into: Any, stride: int = 1) -> None:
        """Loads the elements of an array's first dimension, which are as `iput` stores them."""
        found = arrays.strided(into, is_target=True)
        self._transfer_elements("iget", rank, offset, found, stride)
        found.store()

    def _transfer_elements(self, name: str, rank: int, offset: int, found: arrays.Elements, stride: int) -> None:
        rank, stride = self._rank(rank), unsigned("stride", stride, 64)
        if stride == 0:
            raise ValueError("stride is 0: elements are at least 1 element apart")
        extent = ((found.count - 1) * stride + 1) * found.size if found.count > 0 else 0
        offset = self._range(offset, extent)
        if extent > 0:
            self._call(name, rank, offset, stride, found.start, found.stride, found.size, found.count)
        else:
            self._held()

    def put_signal(
        self, rank: int, offset: int, data: Any, signal_offset: int, signal: int, operation: Operation = "set"
    ) -> None:
        """Stores data as `put`, and then stores ``signal`` in the 64-bit word at ``signal_offset`` of the same rank.

        With the operation ``"add"`` it adds the signal to the word. A process that sees the signal sees the data.
        """
        if operation not in _OPERATIONS:
            raise ValueError(f"operation {operation!r}: it must be one of {', '.join(_OPERATIONS)}")
        signal = word("signal", signal) if operation == "add" else unsigned("signal", signal, 64)
        found = arrays.source(data)
        rank, offset, signal_offset = self._rank(rank), self._range(offset, found.size), self._word(signal_offset)
        self._call("put_signal", rank, offset, found.start, found.size, signal_offset, signal, _OPERATIONS[operation])

    # Order and waits

    def fence(self) -> None:
        """Makes what this process stores in the memory of a rank later visible after what it has stored there before.

        Does not wait. Raises the error of an earlier put.
        """
        self._call("fence")

    def quiet(self) -> None:
        """Waits until all that this process has stored is in the memory of its rank, and visible to all."""
        if len(self._near) == self.ranks:
            self._call("quiet")
            return
        if "quiet" in self._in_progress:
            # One that was interrupted, which does not wait for later puts.
            self._wait("quiet")
        self._wait("quiet")

    def barrier(self) -> None:
        """As `quiet`, and waits until all ranks have called it.

        If a signal handler raises an exception (Ctrl-C) meanwhile, the process stays in the barrier: the next call
        waits for its end.
        """
        self._wait("barrier")

    def wait_until(self, offset: int, comparison: Comparison, value: int, timeout: Optional[float] = None) -> None:
        """Waits until the 64-bit word at ``offset`` in the own memory compares to ``value``, without a sign.

        What its writer has stored before is visible then. ``timeout`` is in seconds; after it, `TimeoutError` is
        raised.
        """
        arguments = self._compared(offset, comparison, value)
        self._repeat("wait_until", self._use("wait_until", *arguments), timeout)

    def test(self, offset: int, comparison: Comparison, value: int) -> bool:
        """Returns true if the 64-bit word at ``offset`` in the own memory compares to ``value``."""
        return self._call("test", *self._compared(offset, comparison, value)) == 1

    def _compared(self, offset: int, comparison: Comparison, value: int) -> tuple[int, int, int]:
        if comparison not in _COMPARISONS:
            raise ValueError(f"comparison {comparison!r}: it must be one of {' '.join(_COMPARISONS)}")
        return self._word(offset), _COMPARISONS[comparison], unsigned("value", value, 64)

    def _repeat(self, name: str, call: Callable[[int], int], timeout: Optional[float]) -> int:
        """Makes a call that takes a limit of its time."""
        try:
            result = waiting.repeated(call, timeout)
        finally:
            # As the traceback of an exception would keep the memory in use.
            del call
        if result == -errno.EAGAIN:
            raise TimeoutError(errno.ETIMEDOUT, f"{name}: nothing within {timeout} seconds", self.path)
        return self._check(name, result)

    # Words

    def fetch(self, rank: int, offset: int) -> int:
        """The unsigned 64-bit number at ``offset`` in the memory of a rank, read as a whole."""
        return self._change("fetch", rank, offset)

    def fetch_add(self, rank: int, offset: int, addend: int = 1) -> int:
        """Adds to the unsigned 64-bit number at ``offset`` in the memory of a rank; returns the number before.

        Additions, swaps and signals of all processes are atomic with respect to each other.
        """
        return self._change("fetch_add", rank, offset, word("addend", addend))

    def swap(self, rank: int, offset: int, value: int) -> int:
        """As `fetch_add`, and stores ``value``."""
        return self._change("swap", rank, offset, unsigned("value", value, 64))

    def compare_swap(self, rank: int, offset: int, expected: int, value: int) -> int:
        """As `fetch_add`, and stores ``value`` if the number before is ``expected``."""
        numbers = unsigned("expected", expected, 64), unsigned("value", value, 64)
        return self._change("compare_swap", rank, offset, *numbers)

    def _change(self, name: str, rank: int, offset: int, *numbers: int) -> int:
        previous = ctypes.c_uint64()
        self._call(name, self._rank(rank), self._word(offset), *numbers, ctypes.byref(previous))
        return previous.value

    # Queues

    def create_queue(self, offset: int, slots: int, message_size: int) -> "OwnQueue":
        """Creates an empty queue of messages in the own memory at ``offset``, a multiple of 8.

        It has `queue_size` bytes. Others may send after a barrier, or another sign that it is there.
        """
        offset = self._range(self._word(offset), queue_size(slots, message_size))
        self._call("queue_init", offset, operator.index(slots), operator.index(message_size))
        return OwnQueue(self, offset, message_size)

    def queue(self, rank: int, offset: int) -> "Queue":
        """The queue that a rank has created at ``offset`` in its memory, to send to."""
        return Queue(self, self._rank(rank), self._word(offset))

    # End

    def free(self) -> None:
        """As `barrier` and then `detach`, and removes the file. All ranks call it together.

        Detaches also if the barrier fails.
        """
        self._wait("free", self._last)

    def _complete(self) -> None:
        self.quiet()

    # Arguments

    def _rank(self, rank: int) -> int:
        rank = operator.index(rank)
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank {rank}: the window {self.path!r} has {self.ranks} ranks")
        return rank

    def _range(self, offset: int, size: int) -> int:
        offset = operator.index(offset)
        if not 0 <= offset <= self.size - size:
            accessed = f"{size} bytes from byte {offset} on"
            raise ValueError(f"{accessed}: the memory of a rank of {self.path!r} has {self.size} bytes")
        return offset

    def _word(self, offset: int) -> int:
        if operator.index(offset) % _WORD_SIZE != 0:
            raise ValueError(f"byte {offset}: words are at multiples of 8")
        return self._range(offset, _WORD_SIZE)


class Queue:
    """A queue of messages in the memory of a rank, to which any number of processes and threads send.

    Messages of one thread arrive in their order.
    """

    def __init__(self, window: Window, rank: int, offset: int) -> None:
        #: The window in whose memory it is.
        self.window = window
        #: The rank that receives the messages.
        self.rank = rank
        #: Where it is in the memory of the rank.
        self.offset = offset

    def send(self, message: Any, timeout: Optional[float] = None) -> None:
        """Appends the bytes of an array or a buffer as a message, and waits while the queue is full.

        ``timeout`` is in seconds; after it, `TimeoutError` is raised. After ``EHOSTDOWN``, or if a signal handler
        raises an exception meanwhile, the message may have arrived.
        """
        found = arrays.source(message)
        call = self.window._use("send", self.rank, self.offset, found.start, found.size)
        self.window._repeat("send", call, timeout)


class OwnQueue(Queue):
    """A queue of messages in the own memory, made by `Window.create_queue`."""

    def __init__(self, window: Window, offset: int, message_size: int) -> None:
        super().__init__(window, window.rank, offset)
        #: Largest size of a message.
        self.message_size = message_size
        self._arrival = _Arrival(message_size)

    def receive(self, timeout: Optional[float] = None) -> bytes:
        """Takes the oldest message, and waits while the queue is empty.

        ``timeout`` is in seconds; after it, `TimeoutError` is raised. If a signal handler raises an exception (Ctrl-C)
        meanwhile, no message is lost: the next call of the main thread returns it.
        """
        # Signal handlers run in the main thread.
        arrival = self._arrival if waiting.is_main_thread() else _Arrival(self.message_size)
        use = functools.partial(arrival.take, self.window._held(), self.window._pointer, self.offset)
        try:
            if arrival.size is None:
                self.window._repeat("receive", use, timeout)
        finally:
            del use
        return arrival.message()


class _Arrival:
    """A message that the library has received, until the program gets it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._bytes = (ctypes.c_char * max(capacity, 1))()
        self._receive = _KIND.function("receive")
        #: The last result.
        self._result: deque[int] = deque(maxlen=1)

    @property
    def size(self) -> Optional[int]:
        """Size of the message, if it is there."""
        return self._result[0] if self._result and self._result[0] >= 0 else None

    def take(self, memory: Any, pointer: int, queue: int, milliseconds: int) -> int:
        """Receives a message. Returns its size or a negative errno."""
        call = functools.partial(self._receive, pointer, queue, self._bytes, self._capacity)
        # Handlers of signals run between calls of Python: this one receives the message and stores its size.
        self._result.extend(map(call, (milliseconds,)))
        return self._result[0]

    def message(self) -> bytes:
        """Returns the message, which is not there any more."""
        message = ctypes.string_at(self._bytes, self._result[0])
        self._result.clear()
        return message


class _Memory:
    """The memory of all ranks of this node, which is mapped as long as this object has references."""
