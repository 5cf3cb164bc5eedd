"""A process of a program that shares a region: ``region_worker.py TASK PATH RANK PROCESSES [ARGUMENT]``.

It runs in a job of test_dsm.py, and ends with an exception if something is not as expected.
"""

import ctypes
import errno
import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from worker import (
    Communicator,
    await_end_of,
    await_file,
    fails,
    interrupt_soon,
    raises,
    raises_interrupt,
)

from tameike import dsm

PAGE = 4096


def share(path: str, rank: int, processes: int, _: str) -> None:
    """Each process stores to its bytes of all pages, and sees those of all."""
    pages = 40
    with dsm.create(path, pages * PAGE - 100, processes=processes) as region:
        assert region.size == pages * PAGE and repr(path) in repr(region)
        mechanism = region.stats().mechanism
        assert mechanism == "mprotect" or os.environ["TAMEIKE_DSM"] != "mprotect"
        data = region.array(region.size, "u1")
        for turn in range(3):
            expected = (np.arange(region.size) * 7 + turn * 31 + 1).astype("u1")
            data[rank::processes] = expected[rank::processes]
            region.barrier()
            np.testing.assert_array_equal(data, expected)
            assert bytes(region.memory[5:9]) == expected[5:9].tobytes()
            region.barrier()
        stats = region.stats()
        assert stats.barriers >= 6 and stats.pages == pages and stats.write_faults > 0 and stats.bytes_flushed > 0


def flush(path: str, rank: int, processes: int, _: str) -> None:
    """A store is in the file after a flush, and in the memory of others after an update."""
    with dsm.create(path, (4, 1000), ">i4", processes=processes) as region:
        table = region.array()
        assert table.shape == (4, 1000) and table.dtype == ">i4" and table.base is not None
        region.barrier()
        if rank == 0:
            table[3, 999] = 1234
            region.flush()
            Path(os.environ["FLAGS"], "flushed").touch()
        else:
            await_file(Path(os.environ["FLAGS"], "flushed"))
            region.update()
            assert table[3, 999] == 1234
            with open(path, "rb") as file:
                file.seek(4 * 3999)
                assert file.read(4) == (1234).to_bytes(4, "big")
        region.barrier()


def layouts(path: str, rank: int, processes: int, _: str) -> None:
    """Arrays of all layouts are views of the same memory."""
    with dsm.create(path, (6, 100), float) as region:
        table = region.array()
        table[:] = np.arange(600).reshape(6, 100)
        np.testing.assert_array_equal(region.array((100,), None, offset=800), table[1])
        np.testing.assert_array_equal(region.array(dtype="f8", offset=800)[:500], table.ravel()[100:])
        assert region.array(offset=region.size).shape == (0,) and region.array((3, 0)).size == 0
        assert region.array((), "i8", offset=800).view("f8") == 100
        assert region.array(6, (float, (10, 10))).shape == (6, 10, 10)
        assert region.array(dtype="u1").size == region.size == 2 * PAGE
        region.memory[0:8] = np.float64(7.5).tobytes()
        assert table[0, 0] == 7.5
        record = np.dtype([("time", "f8"), ("count", "i4")])
        records = region.array(3, record, offset=PAGE)
        records["count"] = [1, 2, 3]
        assert region.array(1, "i4", offset=PAGE + 8 + record.itemsize) == [2]
        if sys.version_info >= (3, 12):
            assert memoryview(region).nbytes == region.size
        for shape, dtype, offset in ((1025, float, 0), ((2, 513), float, 0), (1, float, region.size - 7)):
            with raises(ValueError, "the region"):
                region.array(shape, dtype, offset)
        with raises(ValueError, "at least 0"):
            region.array(offset=-1)
        with raises(ValueError, "at least 0"):
            region.array((-1, 5))
        with raises(ValueError, "fixed size"):
            region.array(1, object)
    del table, records
    with dsm.attach(path, dtype="f4") as region:
        assert region.array().shape == (2048,)
    with raises(ValueError, "16392 bytes"):
        dsm.attach(path, 2049, float)
    with dsm.attach(os.fsencode(path), (2, 512), float) as region:
        assert region.array()[0, 0] == 7.5 and region.path == path
        region.free()
    assert not os.path.exists(path)


def blocks(path: str, rank: int, processes: int, _: str) -> None:
    """Processes fill blocks that they allocate, and others read and free them."""
    with dsm.create(path, 16 * PAGE, processes=processes) as region:
        if rank == 0:
            assert region.allocate(8 * processes, 4096) == 0
        region.barrier()
        table = region.array(processes, "u8")
        block = region.allocate(1000)
        assert block % 64 == 0
        region.array(1000, "u1", block)[:] = rank + 1
        table[rank] = block
        region.barrier()
        other = (rank + 1) % processes
        assert (region.array(1000, "u1", int(table[other])) == other + 1).all()
        region.barrier()
        region.deallocate(int(table[other]))
        with fails(errno.EINVAL, "deallocate"):
            region.deallocate(int(table[other]))
        with fails(errno.ENOMEM, "allocate"):
            region.allocate(16 * PAGE)
        region.barrier()


def locked(path: str, rank: int, processes: int, _: str) -> None:
    """Numbers that all processes raise under a lock or add to are exact."""
    rounds = 20
    with dsm.create(path, 1024, "u8", processes=processes) as region:
        numbers = region.array()

        def work() -> None:
            for _ in range(rounds):
                with region.lock(3) as lock:
                    assert not lock.process_failed
                    numbers[512] += 1

        # Two threads of each process; that of the main thread waits so that signals are handled.
        thread = threading.Thread(target=work)
        thread.start()
        work()
        thread.join()
        before = [region.fetch_add(8, rank + 1) for _ in range(rounds)]
        assert before == sorted(set(before))
        assert region.fetch_add(16, -1) in [2**64 - step for step in range(1, processes)] + [0]
        region.barrier()
        assert numbers[512] == 2 * rounds * processes
        assert numbers[1] == rounds * processes * (processes + 1) // 2
        assert numbers[2] == 2**64 - processes
        region.barrier()


def killed(path: str, rank: int, processes: int, how: str) -> None:
    """The last process ends as its argument says, while the others wait for it."""
    with dsm.create(path, 100, "i8", processes=processes) as region:
        data = region.array()
        region.barrier()
        if rank == processes - 1:
            with region.lock(0):
                if how == "signal":
                    os.kill(os.getpid(), signal.SIGKILL)
            data[5] = 55
            if how == "exit":
                # Detached by the end of the process only.
                globals()["kept"] = data
            return
        number = errno.EOWNERDEAD if how == "signal" else errno.EPIPE
        with fails(number, "detach"):
            region.barrier()
        with fails(number, "detach"):
            region.barrier()
        if how != "signal":
            region.update()
            assert data[5] == 55
            return
        with fails(errno.EOWNERDEAD, "ended without detaching"), region.lock(0):
            raise AssertionError("the block must not run")
        # The failed block has released it.
        with region.lock(0, robust=True) as lock:
            assert lock.process_failed


def errors(path: str, rank: int, processes: int, _: str) -> None:
    """Wrong arguments, wrong paths and wrong sizes."""
    for shape in (0, (5, 0), (1 << 44) + 1, (1 << 40, 1 << 40)):
        with raises(ValueError, "16 TiB"):
            dsm.create(path, shape)
    with raises(ValueError, "shape"):
        dsm.create(path, -1)
    for dtype in (object, "V0"):
        with raises(ValueError, "fixed size"):
            dsm.create(path, 1, dtype)
    for wrong in (-1, 1 << 32):
        with raises(ValueError, "processes"):
            dsm.create(path, 1, processes=wrong)
    for argument in ("1", 1.5, None):
        with raises(TypeError, ""):
            dsm.create(path, argument)  # type: ignore[arg-type]
    with raises(ValueError, "NUL"):
        dsm.create(path + "\0", 1)
    with raises(ValueError, "pass one"):
        dsm.create(path, 1, processes=1, comm=Communicator())
    with fails(errno.ENOENT, "create it first"):
        dsm.attach(path)
    outside = [os.environ["FLAGS"], os.environ["TAMEIKE_CACHE"], os.environ["TAMEIKE_NODE_LOCAL"]]
    for directory in outside:
        with fails(errno.EOPNOTSUPP, "below TAMEIKE_SHARED"):
            dsm.create(os.path.join(directory, "region"), 1)
    assert not os.path.exists(path)
    region = dsm.create(path, 3 * PAGE, comm=Communicator())
    with fails(errno.EEXIST, "another size"):
        dsm.create(path, 4 * PAGE)
    with fails(errno.EINVAL, "same number of processes"):
        dsm.attach(path, processes=2)
    for offset in (-8, 4, 3 * PAGE, 1 << 64):
        with raises(ValueError, "multiples of 8"):
            region.fetch_add(offset)
    for addend in (1 << 64, -(1 << 63) - 1):
        with raises(ValueError, "64 bits"):
            region.fetch_add(0, addend)
    for number in (-1, 1 << 32):
        with raises(ValueError, "number"):
            region.lock(number)
    copy = np.zeros(5)
    for buffer in (copy, memoryview(copy), bytearray(5)):
        with raises(ValueError, "may be a copy"):
            region.touch(buffer)
    region.touch(copy[:0])
    with raises(TypeError, "call tameike.dsm.attach"):
        pickle.dumps(region)
    region.free()
    after_detach(region, path)


def after_detach(region: dsm.Region, path: str) -> None:
    calls = [region.flush, region.update, region.barrier, region.touch, region.stats, region.free, region.array]
    calls += [region.lock().__enter__, lambda: region.fetch_add(0), lambda: region.memory, region.__enter__]
    for call in calls:
        with fails(errno.EBADF, "has detached"):
            call()
    region.detach()
    assert "detached" in repr(region) and region.path == path


def lifetime(path: str, rank: int, processes: int, _: str) -> None:
    """Memory stays mapped as long as it is in use."""
    region = dsm.create(path, 5 * PAGE)
    data, part = region.array(), region.memory[10:20]
    with raises(BufferError, "delete its arrays"):
        region.detach()
    view = data[PAGE:][::2]
    data[PAGE] = 3
    del data
    with raises(BufferError, "delete its arrays"):
        region.free()
    del view
    with raises(BufferError, "delete its arrays"):
        region.detach()
    # A cycle of objects that the garbage collector finds.
    cycle: list[Any] = [part]
    cycle.append(cycle)
    del part, cycle
    region.detach()
    after_detach(region, path)

    # Arrays outlive the block and the region, and still fetch pages and report stores.
    with dsm.attach(path) as region:
        data = region.array()
        data[7] = 70
        with fails(errno.EEXIST, "another size"):
            dsm.create(path, 1)
    after_detach(region, path)
    assert Path(path).read_bytes()[7] == 70
    del region
    gc.collect()
    assert data[PAGE] == 3
    data[2 * PAGE] = 4
    del data
    with dsm.attach(path, processes=2) as region:
        # The number of processes may differ from before: the process has detached.
        assert region.memory[2 * PAGE] == 4
    # An exception keeps the variables of its frames.
    try:
        with dsm.attach(path) as region:
            data = region.array()
            raise KeyError
    except KeyError:
        data[0] = 1
    with fails(errno.EBUSY, "all its processes"):
        dsm.attach(path)
    del data
    data = dsm.attach(path).array()
    data[0] = 5
    # Detached at the end of the process, with the array.


def many(path: str, rank: int, processes: int, _: str) -> None:
    """Regions that come and go leave no mappings and descriptors."""

    def used() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("memfd")

    with dsm.create(path, 1 << 20) as region:
        region.array()[5] = 5
    begun = used()
    for turn in range(80):
        region = dsm.attach(path)
        data = region.array()
        assert data[5] == 5
        # The other half ends with the last array.
        if turn % 2:
            del data
            region.detach()
        else:
            del region, data
    assert used() == begun


def calls(path: str, rank: int, processes: int, how: str) -> None:
    """System calls use absent pages, if the program is preloaded or has touched them."""
    size = 64 * PAGE
    with dsm.create(path, size) as region:
        region.array()[:] = np.arange(size) // PAGE
    ours, other = socket.socketpair()
    with dsm.attach(path) as region, tempfile.TemporaryFile(buffering=0) as file, ours, other:
        data = region.array()
        source, target, received = data[: 16 * PAGE], data[16 * PAGE : 32 * PAGE], region.memory[32 * PAGE : 33 * PAGE]
        if how == "touched":
            for use in (lambda: file.write(source), lambda: os.readv(zeros(), [target])):
                with raises(OSError, "Bad address"):
                    use()
            region.touch(source)
            region.touch(target, write=True)
            region.touch(received, write=True)
            # Of a transposed array, and in both directions.
            region.touch(data[40 * PAGE :].reshape(24, PAGE).T[5:7, ::-2])
        source.tofile(file)
        file.seek(0)
        assert file.readinto(target) == len(target)
        np.testing.assert_array_equal(source, target)
        other.sendall(b"x" * PAGE)
        assert ours.recv_into(received, 0, socket.MSG_WAITALL) == PAGE
        assert data[33 * PAGE - 1] == ord("x") and data[33 * PAGE] == 33
        region.barrier()
        if how == "touched":
            region.touch()
        assert os.write(file.fileno(), data) == size


def zeros() -> int:
    return os.open("/dev/zero", os.O_RDONLY)


def interrupt(path: str, rank: int, processes: int, how: str) -> None:
    """A signal interrupts a barrier or a lock of the main thread."""
    flags = Path(os.environ["FLAGS"])
    with dsm.create(path, 8, "i8", processes=processes) as region:
        region.barrier()
        if rank > 0:
            if how == "lock":
                with region.lock(0):
                    (flags / "held").touch()
                    await_file(flags / "interrupted")
                # Once the interrupted call has the lock, it is released.
                with region.lock(0):
                    pass
            await_file(flags / "interrupted")
            if how == "exit":
                await_end_of((flags / "interrupted").read_text())
                with fails(errno.EPIPE, "detached"):
                    region.barrier()
                return
        elif how == "lock":
            await_file(flags / "held")
            interrupt_soon()
            with raises_interrupt(), region.lock(0):
                raise AssertionError("the other process has the lock")
            (flags / "interrupted").touch()
            with region.lock(0):
                pass
        else:
            # A handler that returns does not end the barrier.
            handled: list[int] = []
            signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            interrupt_soon()
            begun = time.monotonic()
            with raises_interrupt():
                region.barrier()
            assert time.monotonic() - begun < 10 and handled
            with raises(BufferError, "calls of other threads"):
                region.detach()
            region.flush()
            (flags / "pid").write_text(str(os.getpid()))
            (flags / "pid").rename(flags / "interrupted")
            if how == "exit":
                return
        region.barrier()
        region.barrier()


def threads(path: str, rank: int, processes: int, _: str) -> None:
    """A thread that waits lets the others run."""
    with dsm.create(path, PAGE, processes=2) as one, dsm.attach(path, processes=2) as other:
        thread = threading.Thread(target=other.barrier)
        thread.start()
        one.barrier()
        thread.join()


def faults(path: str, rank: int, processes: int, how: str) -> None:
    """Python's handler of faults shows the traceback of those that are no accesses to regions."""
    if how == "before":
        faulthandler.enable()
    with dsm.create(path, 1 << 20) as region:
        data = region.array()
        data[:] = 1
        thread = threading.Thread(target=lambda: data.fill(2))
        thread.start()
        thread.join()
        assert data.sum() == 2 << 20
        if how == "twice":
            # The handlers of a later region are before those of Python.
            faulthandler.enable()
            with dsm.create(f"{path}-2", 1 << 20) as region:
                assert region.array().sum() == 0
        print("no fault yet", flush=True)
        ctypes.string_at(8)


def child_of(method: str, path: str, rank: int, processes: int, inherited: Any) -> None:
    if inherited is not None:
        region = inherited[1]
        for call in (region.flush, region.barrier, region.array, region.detach, region.free, region.stats):
            with fails(errno.EIO, "attach() in the child"):
                call()
        region.__exit__(None, None, None)
    with dsm.attach(path, 8, "i8", processes=processes) as region:
        own = region.array()
        own[rank] = rank
        region.barrier()
        assert own[:processes].tolist() == list(range(processes))
        # Before processes detach.
        region.barrier()


def workers(path: str, rank: int, processes: int, method: str) -> None:
    """Processes of multiprocessing attach themselves."""
    context = multiprocessing.get_context(method)
    with dsm.create(path, 8, "i8", processes=4) as region:
        data = region.array()
        data[0] = 0
        region.flush()
        inherited = (data, region) if method == "fork" else None
        if method == "fork":
            child = os.fork()
            if child == 0:
                os._exit(data[0])
            assert os.waitpid(child, 0)[1] == signal.SIGBUS
        children = [context.Process(target=child_of, args=(method, path, at, 4, inherited)) for at in (1, 2, 3)]
        for child in children:
            child.start()
        region.barrier()
        assert data[:4].tolist() == [0, 1, 2, 3]
        region.barrier()
        for child in children:
            child.join()
            assert child.exitcode == 0
        region.update()


def lost(path: str, rank: int, processes: int, agent: str) -> None:
    """The agent of the last process fails; calls there return errors, and accesses to absent pages end the process."""
    pages = 600
    with dsm.create(path, pages * PAGE, processes=processes) as region:
        data = region.array()
        data[rank] = 1
        region.barrier()
        if rank < processes - 1:
            with fails(errno.EOWNERDEAD, "start all processes again"):
                region.barrier()
            print("the barrier has failed")
            return
        os.kill(int(agent), signal.SIGKILL)
        for call in (region.flush, region.barrier, region.update):
            with fails(errno.EIO, "agent of this node has failed"):
                call()
        print("calls have failed", flush=True)
        faulthandler.enable()
        data[-1]


TASKS = [
    share,
    flush,
    layouts,
    locked,
    blocks,
    killed,
    errors,
    lifetime,
    many,
    calls,
    interrupt,
    threads,
    faults,
    workers,
    lost,
]

if __name__ == "__main__":
    task, path, rank, processes, argument = sys.argv[1:]
    {function.__name__: function for function in TASKS}[task](path, int(rank), int(processes), argument)
