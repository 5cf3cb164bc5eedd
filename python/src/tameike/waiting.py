"""Calls that wait for other processes, during which Python handles signals.

A function of the C library continues to wait when a signal arrives, and Python runs signal handlers in the main thread
only. Hence another thread makes such a call for the main thread, which waits for its end. If a handler raises an
exception (Ctrl-C: `KeyboardInterrupt`), the main thread continues with that, and the call remains in progress.

Calls that take a limit of their time need no other thread: the main thread makes them in parts, and handles signals in
between.
"""

import errno
import math
import os
import signal
import threading
import time
from queue import SimpleQueue
from typing import Any, Callable, Optional

#: Signals of faulty accesses: a thread that blocks them is killed by one.
_FAULTS = {signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}


#: Longest part of a wait in the main thread: signals are handled after it.
_PART_MS = 100
_LONGEST_MS = (1 << 31) - 1


def is_main_thread() -> bool:
    """Returns true in the thread that handles signals."""
    return threading.current_thread() is threading.main_thread()


def made(function: Callable[[], int], at_interruption: Callable[[int], Any]) -> int:
    """Makes a call, and returns its result.

    If a signal handler raises an exception meanwhile, ``at_interruption`` gets the result when the call ends.
    """
    if not is_main_thread():
        return function()
    call = Call(function)
    # What the function refers to must not live longer than the call.
    del function
    try:
        return call.wait()
    except BaseException:
        call.abandon(at_interruption)
        raise


def repeated(call: Callable[[int], int], timeout: Optional[float]) -> int:
    """Makes a call that returns ``-EAGAIN`` after a number of milliseconds, for as many seconds, or without a limit."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout {timeout}: it must be a number of seconds, or None")
    until = math.inf if timeout is None else time.monotonic() + timeout
    longest = _PART_MS if is_main_thread() else _LONGEST_MS
    try:
        while True:
            left_ms = (until - time.monotonic()) * 1000
            result = call(max(math.ceil(min(left_ms, longest)), 0))
            if result != -errno.EAGAIN or left_ms <= longest:
                return result
    finally:
        # The traceback of an exception must not keep what the call refers to.
        del call


class Call:
    """A call of the main thread, made by another one."""

    def __init__(self, function: Callable[[], int]) -> None:
        self._mutex = threading.Lock()
        self._function: Optional[Callable[[], int]] = function
        self._is_started = False
        self._ended = threading.Event()
        self._result = 0
        self._at_end: Optional[Callable[[int], Any]] = None

    def wait(self) -> int:
        """Makes the call, and returns its result. After an interruption, it waits for the call in progress."""
        global _worker
        try:
            if not self._is_started:
                _pass_on(self)
                self._is_started = True
            self._ended.wait()
        except BaseException:
            # The thread may wait for long: the next call gets another one.
            _worker = None
            raise
        return self._result

    def abandon(self, at_end: Callable[[int], Any]) -> None:
        """Has ``at_end`` called with the result when the call ends, or at once."""
        with self._mutex:
            if not self._ended.is_set():
                self._at_end = at_end
                return
        at_end(self._result)

    def run(self) -> None:
        """Makes the call, in the other thread."""
        with self._mutex:
            function, self._function = self._function, None
        if function is None:
            # An interruption has passed the call on twice.
            return
        result = function()
        # What the function refers to must not live longer than the call.
        del function
        with self._mutex:
            self._result = result
            self._ended.set()
        if self._at_end is not None:
            self._at_end(result)


class _Worker:
    """A thread that makes calls, until its last reference is gone."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.calls: SimpleQueue[Optional[Call]] = SimpleQueue()
        threading.Thread(target=_make, args=(self.calls,), name="tameike-waiting", daemon=True).start()

    def __del__(self) -> None:
        self.calls.put(None)


_worker: Optional[_Worker] = None


def _make(calls: "SimpleQueue[Optional[Call]]") -> None:
    # Signals are for the main thread, which they wake.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    while True:
        call = calls.get()
        if call is None:
            return
        call.run()
        del call


def _pass_on(call: Call) -> None:
    global _worker
    # A child of fork() has no copy of the thread.
    if _worker is None or _worker.process != os.getpid():
        _worker = _Worker()
    _worker.calls.put(call)
