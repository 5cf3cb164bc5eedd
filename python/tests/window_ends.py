"""Tasks of window_worker.py: the ends of ranks, windows and waits."""

import errno
import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from worker import await_end_of, await_file, fails, interrupt_soon, raises, raises_interrupt

from tameike import win

PATIENCE = 60


def near_ranks(window: win.Window) -> list[int]:
    return [rank for rank in range(window.ranks) if window.is_near(rank)]


def after_detach(window: win.Window, path: str) -> None:
    word = bytearray(8)
    calls = [window.fence, window.quiet, window.barrier, window.free, window.array, window.__enter__]
    calls += [lambda: window.put(0, 0, word), lambda: window.get(0, 0, word), lambda: window.fetch_add(0, 0)]
    calls += [lambda: window.test(0, "==", 0), lambda: window.wait_until(0, "==", 1, 0), lambda: window.memory]
    calls += [lambda: window.queue(0, 0).send(b"", 0), lambda: window.create_queue(0, 1, 8)]
    calls += [lambda: window.iput(0, 0, np.zeros(0)), lambda: window.put_signal(0, 0, b"", 0, 1)]
    for call in calls:
        with fails(errno.EBADF, "has detached"):
            call()
    window.detach()
    assert "detached" in repr(window) and window.path == path


def killed(path: str, rank: int, ranks: int, how: str) -> None:
    """The last rank ends as its argument says, while the others wait for it, each in another call."""
    with win.create(path, 8192, rank, ranks) as window:
        own = window.create_queue(64, 1, 8)
        window.barrier()
        if rank == ranks - 1:
            time.sleep(1)
            if how == "signal":
                os.kill(os.getpid(), signal.SIGKILL)
            return
        if how == "signal":
            calls = [lambda: window.wait_until(0, "==", 1), own.receive, window.barrier]
            with fails(errno.EOWNERDEAD, "start all ranks again"):
                calls[rank % len(calls)]()
            with fails(errno.EOWNERDEAD, "start all ranks again"):
                window.wait_until(0, "==", 1, PATIENCE)
        number = errno.EOWNERDEAD if how == "signal" else errno.EPIPE
        for _ in range(2):
            with fails(number, "detach"):
                window.barrier()
        if not window.is_near(ranks - 1):
            with fails(errno.EPIPE, "after the last access"):
                window.put(ranks - 1, 0, b"12345678")
                window.quiet()
            with fails(errno.EPIPE, "after the last access"):
                window.fetch(ranks - 1, 0)
        # The memory of the others can be accessed.
        flags = Path(os.environ["FLAGS"])
        (flags / str(rank)).touch()
        for other in range(ranks - 1):
            await_file(flags / str(other))
        window.fetch_add((rank + 1) % (ranks - 1), 24)
        if how != "signal":
            window.wait_until(24, ">=", 1, PATIENCE)
        (flags / f"ends-{rank}").touch()
        for other in range(ranks - 1):
            await_file(flags / f"ends-{other}")


def lifetime(path: str, rank: int, ranks: int, _: str) -> None:
    """Memory stays mapped as long as it is in use."""
    window = win.create(path, 8192, rank, ranks)
    others = [at for at in near_ranks(window) if at != rank]
    data, part = window.array(dtype="i8"), window.memory[10:20]
    window.barrier()
    window.array(ranks, "u1", 4096, rank=others[0])[rank] = 9
    with raises(BufferError, "delete its arrays"):
        window.detach()
    view = window.array(rank=others[0])[4096:][::2]
    del data, part
    with raises(BufferError, "delete its arrays"):
        window.free()
    window.barrier()
    assert window.array(offset=4096)[others[0]] == 9
    # A cycle of objects that the garbage collector finds.
    cycle: list[Any] = [view]
    cycle.append(cycle)
    del view, cycle
    window.free()
    after_detach(window, path)

    # Arrays outlive the block and the window.
    with win.create(path, 8192, rank, ranks) as window:
        data = window.array(dtype="i8")
        data[5] = 50
        window.barrier()
    after_detach(window, path)
    del window
    gc.collect()
    assert data[5] == 50
    data[6] = 60
    del data
    # The process has detached: the file has space for another window.
    try:
        with win.create(path, 4096, rank, ranks) as window:
            data = window.array()
            window.barrier()
            raise KeyError
    except KeyError:
        data[0] = 1
    del data
    kept = win.create(path, 4096, rank, ranks)
    kept.barrier()
    # Detached at the end of the process.
    globals()["kept"] = kept.array()


def many(path: str, rank: int, ranks: int, _: str) -> None:
    """Windows that come and go leave no mappings and descriptors."""

    def used() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())

    begun: tuple[int, int] = (0, 0)
    for turn in range(24):
        window = win.create(path, 1 << 20, rank, ranks)
        data = window.array()
        window.barrier()
        # The other half ends with the last array.
        if turn % 2:
            del data
            window.free()
        else:
            del window, data
        if turn == 7:
            begun = used()
    descriptors, mappings = used()
    assert descriptors <= begun[0] and mappings <= begun[1] + 8, (begun, used())


def interrupt(path: str, rank: int, ranks: int, how: str) -> None:
    """A signal interrupts a wait of the main thread."""
    flags = Path(os.environ["FLAGS"])
    if how == "create":
        interrupt_create(path, rank, ranks, flags)
        return
    with win.create(path, 8192, rank, ranks) as window:
        own = window.create_queue(1024, 2, 8)
        window.barrier()
        if rank > 0:
            await_file(flags / "interrupted")
            if how == "exit":
                await_end_of((flags / "interrupted").read_text())
                with fails(errno.EPIPE, "detached"):
                    window.barrier()
                return
            finish_waits(window, how)
            return
        handled: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        interrupt_soon()
        waits = {
            "barrier": window.barrier,
            "exit": window.barrier,
            "free": window.free,
            "wait": lambda: window.wait_until(0, "==", 1),
            "receive": own.receive,
            "send": lambda: fill(window.queue(1, 1024)),
        }
        begun = time.monotonic()
        with raises_interrupt():
            waits[how]()
        assert time.monotonic() - begun < 10 and handled
        if how in ("barrier", "exit"):
            with raises(BufferError, "calls of other threads"):
                window.detach()
            # A child does not wait for the end of the call, of which it has a copy.
            child = os.fork()
            if child == 0:
                with fails(errno.EIO, "that it creates itself"):
                    window.barrier()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        (flags / "pid").write_text(str(os.getpid()))
        (flags / "pid").rename(flags / "interrupted")
        if how == "exit":
            return
        if how == "wait":
            window.wait_until(0, "==", 1, PATIENCE)
        elif how == "receive":
            assert own.receive(PATIENCE) == b"late"
        if how == "barrier":
            window.barrier()
        if how != "free":
            window.barrier()
        window.free()
    assert not os.path.exists(path)


def fill(queue: win.Queue) -> None:
    for _ in range(3):
        queue.send(b"message")


def finish_waits(window: win.Window, how: str) -> None:
    """What the interrupted rank waits for."""
    if how == "wait":
        window.put_signal(0, 8, b"", 0, 1)
    elif how == "receive":
        window.queue(0, 1024).send(b"late", PATIENCE)
    if how == "barrier":
        window.barrier()
    if how != "free":
        window.barrier()
    window.free()


def interrupt_create(path: str, rank: int, ranks: int, flags: Path) -> None:
    """A rank that is interrupted while it waits for the others detaches when they come."""
    if rank == 0:
        interrupt_soon()
        with raises_interrupt():
            win.create(path, 4096, rank, ranks)
        (flags / "interrupted").touch()
        # While the call is in progress.
        await_file(flags / "failed")
        return
    await_file(flags / "interrupted")
    window = win.create(path, 4096, rank, ranks)
    with fails(errno.EPIPE, "detached"):
        window.barrier()
    window.detach()
    (flags / "failed").touch()


def arrival(path: str, rank: int, ranks: int, _: str) -> None:
    """A message that arrives with a signal is not lost."""
    with win.create(path, 8192, rank, ranks) as window:
        own = window.create_queue(0, 8, 8)
        handler = signal.getsignal(signal.SIGINT)
        received: list[bytes] = []
        for number in range(20):

            def send(number: int = number) -> None:
                # The handler runs after the call of the library, which returns with the message.
                time.sleep(0.02)
                os.kill(os.getpid(), signal.SIGINT)
                own.send(b"%d" % number)

            thread = threading.Thread(target=send)
            thread.start()
            with raises_interrupt():
                received.append(own.receive(PATIENCE))
                time.sleep(PATIENCE)
            thread.join()
            received.append(own.receive(PATIENCE))
            assert received == [b"%d" % at for at in range(number + 1)]
        assert signal.getsignal(signal.SIGINT) == handler


def threads(path: str, rank: int, ranks: int, _: str) -> None:
    """A thread that waits lets the others run: both ranks are threads."""
    windows: list[win.Window] = []
    thread = threading.Thread(target=lambda: windows.append(win.create(path, 4096, 1, 2)))
    thread.start()
    windows.append(win.create(path, 4096, 0, 2))
    thread.join()
    one, other = sorted(windows, key=lambda window: window.rank)
    thread = threading.Thread(target=other.wait_until, args=(0, "==", 1))
    thread.start()
    one.put_signal(1, 8, b"12345678", 0, 1)
    thread.join()
    thread = threading.Thread(target=other.free)
    thread.start()
    one.free()
    thread.join()


def children(path: str, rank: int, ranks: int, _: str) -> None:
    """A child of fork() does not have the memory."""
    with win.create(path, 8192, 0, 1) as window:
        own = window.create_queue(0, 4, 8)
        own.send(b"message")
        child = os.fork()
        if child == 0:
            word = bytearray(8)
            calls = [lambda: window.put(0, 4096, b"12345678"), lambda: window.get(0, 0, word), window.array]
            calls += [window.barrier, window.quiet, window.fence, window.detach, window.free, own.receive]
            calls += [lambda: own.send(b"", 0), lambda: window.fetch(0, 0), lambda: window.wait_until(0, "==", 1, 0)]
            for call in calls:
                with fails(errno.EIO, "that it creates itself"):
                    call()
            window.__exit__(None, None, None)
            with win.create(f"{path}-child", 8) as other:
                other.put(0, 0, b"12345678")
                other.free()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert own.receive(0) == b"message" and window.fetch(0, 4096) == 0
        window.free()


def lost(path: str, rank: int, ranks: int, agent: str) -> None:
    """The agent of the last rank fails."""
    with win.create(path, 4096, rank, ranks) as window:
        window.barrier()
        if rank == ranks - 1:
            os.kill(int(agent), signal.SIGKILL)
            for call in (lambda: window.wait_until(0, "==", 1), window.barrier, lambda: window.fetch(0, 0)):
                with fails(errno.EIO, "agent of this node has failed"):
                    call()
            print("calls have failed", flush=True)
            os._exit(0)
        try:
            window.wait_until(0, "==", 1)
        except OSError as error:
            assert error.errno in (errno.EOWNERDEAD, errno.EHOSTDOWN), error
        with fails(errno.EHOSTDOWN, "the node of a rank has failed"):
            window.put(ranks - 1, 0, b"12345678")
            window.quiet()
        with fails(errno.EHOSTDOWN, "the node of a rank has failed"):
            window.fetch(ranks - 1, 0)
        print("calls have failed", flush=True)
        os._exit(0)


TASKS = [killed, lifetime, many, interrupt, arrival, threads, children, lost]
