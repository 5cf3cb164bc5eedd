"""Programs that lock files, for the tests of locks. Each creates marks in another directory to report its progress."""

import errno
import fcntl
import mmap
import os
import signal
import sqlite3
import struct
import sys
import time

EXCLUSIVE, SHARED = fcntl.LOCK_EX, fcntl.LOCK_SH
F_OFD_SETLK, F_OFD_SETLKW = 37, 38


def say(mark):
    open(mark, "w").close()


def wait_for(mark):
    while not os.path.exists(mark):
        time.sleep(0.01)


def lock(kind, file, operation, *span):
    """Takes a lock of a kind: flock, posix (of a span: length, start), or ofd."""
    if kind == "flock":
        fcntl.flock(file, operation)
    elif kind == "posix":
        fcntl.lockf(file, operation, *span)
    else:
        wait = not operation & fcntl.LOCK_NB
        exclusive = operation & EXCLUSIVE
        type_ = fcntl.F_UNLCK if operation & fcntl.LOCK_UN else fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
        wanted = struct.pack("hhqqi4x", type_, 0, 0, 0, 0)
        fcntl.fcntl(file, F_OFD_SETLKW if wait else F_OFD_SETLK, wanted)


def can_lock(kind, path, operation=EXCLUSIVE, *span):
    with open(path, "r+") as file:
        try:
            lock(kind, file, operation | fcntl.LOCK_NB, *span)
            return True
        except OSError as error:
            assert error.errno in (errno.EAGAIN, errno.EACCES), error
            return False


def hold(kind, path, ready, go):
    """Holds a lock until the test requests the end."""
    with open(path, "a+") as file:
        lock(kind, file, EXCLUSIVE)
        say(ready)
        wait_for(go)


def excluded(kind, path):
    assert not can_lock(kind, path), "two nodes have the lock"


def free(kind, path):
    assert can_lock(kind, path), "another process still has the lock"


def wait(kind, path, ready):
    """Waits for a lock, acquires it, and releases it."""
    with open(path, "a+") as file:
        say(ready)
        lock(kind, file, EXCLUSIVE)


def count(kind, path, times):
    """Increments the number in a file under a lock, with one descriptor or through a mapping."""
    with open(path, "r+b", buffering=0) as file:
        for _ in range(int(times)):
            lock("flock" if kind == "mapped" else kind, file, EXCLUSIVE)
            if kind == "mapped":
                with mmap.mmap(file.fileno(), 20) as mapped:
                    mapped[:] = b"%020d" % (int(mapped[:]) + 1)
                    mapped.flush()
            else:
                number = int(os.pread(file.fileno(), 20, 0))
                os.pwrite(file.fileno(), b"%020d" % (number + 1), 0)
            lock("flock" if kind == "mapped" else kind, file, fcntl.LOCK_UN)


def ranges(path, ready, go):
    """Holds write locks on bytes 0-9 and 20-29 and a read lock on 40-49; has released 25-26."""
    with open(path, "r+") as file:
        lock("posix", file, EXCLUSIVE, 30, 0)
        lock("posix", file, fcntl.LOCK_UN, 10, 10)
        lock("posix", file, fcntl.LOCK_UN, 2, 25)
        lock("posix", file, SHARED, 10, 40)
        say(ready)
        wait_for(go)


def get_lock(path, type_, start, length):
    with open(path, "r+") as file:
        asked = struct.pack("hhqqi4x", type_, 0, start, length, 0)
        return struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))


def other_ranges(path, pid):
    for start, length, is_free in [
        (0, 1, False), (9, 1, False), (10, 10, True), (20, 5, False), (25, 2, True), (27, 3, False), (30, 10, True),
        (45, 1, False), (50, 0, True),
    ]:
        assert can_lock("posix", path, EXCLUSIVE, length, start) == is_free, (start, length)
    assert can_lock("posix", path, SHARED, 10, 40), "readers exclude each other"
    assert get_lock(path, fcntl.F_WRLCK, 3, 100) == (fcntl.F_WRLCK, 0, 0, 10, int(pid))
    assert get_lock(path, fcntl.F_WRLCK, 35, 100) == (fcntl.F_RDLCK, 0, 40, 10, int(pid))
    assert get_lock(path, fcntl.F_RDLCK, 35, 100)[0] == fcntl.F_UNLCK


def deadlock(first, second, ready, other, said):
    """Locks one file, then, when another process has locked the other one, that one; prints the outcome."""
    with open(first, "r+") as one, open(second, "r+") as two:
        lock("posix", one, EXCLUSIVE)
        say(ready)
        wait_for(other)
        outcome = outcome_of_lock("posix", two)
    with open(said, "a") as file:
        file.write(outcome + "\n")


def upgrade(path, ready, other, said):
    """Two processes hold a shared lock, then both upgrade it; prints the outcome."""
    with open(path, "r+") as file:
        lock("flock", file, SHARED)
        say(ready)
        wait_for(other)
        outcome = outcome_of_lock("flock", file)
    with open(said, "a") as file:
        file.write(outcome + "\n")


def outcome_of_lock(kind, file):
    try:
        lock(kind, file, EXCLUSIVE)
        return "locked"
    except OSError as error:
        return "EDEADLK" if error.errno == errno.EDEADLK else str(error)


def interrupted(path):
    """A signal handler that raises ends a wait; one that returns does not."""

    class Late(Exception):
        pass

    def too_late(*_):
        raise Late

    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(1) or signal.signal(signal.SIGALRM, too_late))
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.5)
    try:
        with open(path, "r+") as file:
            lock("posix", file, EXCLUSIVE)
    except Late:
        assert rung == [1]
        return
    raise AssertionError("the wait was not interrupted")


def closes(path):
    """Any close of the file releases the locks of a process, also of a read-only descriptor; a close in a child does not."""
    with open(path, "r+") as file:
        lock("posix", file, SHARED, 10, 0)
        if os.fork() == 0:
            file.close()
            os._exit(0)
        os.wait()
        assert probe(path) == "held", "the close of a child"
        os.close(os.open(path, os.O_RDONLY))
        assert probe(path) == "free", "the close of a descriptor for reading"


def probe(path):
    """Returns true if another process can lock the whole file."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, b"free" if can_lock("posix", path) else b"held")
        os._exit(0)
    os.wait()
    return os.read(reader, 4).decode()


def descriptions(path):
    """Locks of an open file description stay until its last descriptor is closed."""
    for kind in ("flock", "ofd"):
        file = os.open(path, os.O_RDWR)
        lock(kind, file, EXCLUSIVE)
        twin = os.dup(file)
        os.close(file)
        assert not can_lock(kind, path), kind
        os.close(twin)
        deadline = time.monotonic() + 10
        while not can_lock(kind, path):
            assert time.monotonic() < deadline, kind


def lock_all(names, ready, go):
    """Locks many files, then waits."""
    files = [open(name, "a+") for name in names.split(",")]
    for file in files:
        lock("posix", file, EXCLUSIVE)
    say(ready)
    wait_for(go)


def lock_each(names):
    """Locks each file with waiting; prints the outcomes."""
    for name in names.split(","):
        try:
            with open(name, "r+") as file:
                lock("posix", file, EXCLUSIVE)
            print("locked")
        except OSError as error:
            print(errno.errorcode[error.errno])


def database(path, writer, transactions):
    """Adds rows to a database, one per transaction."""
    base = sqlite3.connect(path, timeout=120, isolation_level=None)
    assert base.execute("pragma journal_mode").fetchone() == ("delete",)
    for number in range(int(transactions)):
        base.execute("begin immediate")
        (count,) = base.execute("select count(*) from log").fetchone()
        base.execute("insert into log values (?, ?, ?)", (writer, number, count))
        base.execute("commit")
    base.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
