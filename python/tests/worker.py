"""What the programs of test_dsm.py and test_win.py expect and wait for."""

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fails(number: int, text: str) -> Iterator[None]:
    """Expects an `OSError` whose message names the cause."""
    try:
        yield
    except OSError as error:
        assert error.errno == number and text in str(error), error
        assert error.filename is not None
    else:
        raise AssertionError(f"no {errno.errorcode[number]}")


@contextmanager
def raises(kind: type[Exception], text: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def interrupt_soon() -> None:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()


@contextmanager
def raises_interrupt() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        return
    raise AssertionError("no KeyboardInterrupt")


def await_file(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"no {path}"
        time.sleep(0.01)


def await_end_of(process: str) -> None:
    until = time.monotonic() + 60
    while Path("/proc", process).exists():
        assert time.monotonic() < until, f"process {process} has not ended"
        time.sleep(0.01)


class Communicator:
    """As that of mpi4py."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def Get_rank(self) -> int:  # noqa: N802 - the name of MPI
        return self.rank

    def Get_size(self) -> int:  # noqa: N802 - the name of MPI
        return self.size
