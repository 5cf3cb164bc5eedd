"""Programs that run on the nodes of a job, for the tests of SEMANTICS.md. They synchronize by files outside of the views."""

import errno
import mmap
import os
import random
import signal
import sys
import time

UNIT = 1 << 20


def say(mark):
    open(mark, "w").close()


def wait_for(mark):
    while not os.path.exists(mark):
        time.sleep(0.005)


def within(path):
    """Two processes write to an open file, a third one reads: each sees acknowledged writes."""
    size = 3 * UNIT
    os.close(os.open(path, os.O_RDWR | os.O_CREAT))
    to_writers, from_writers = [os.pipe(), os.pipe()], os.pipe()
    for seed in range(2):
        if os.fork() == 0:
            file, rng = os.open(path, os.O_RDWR), random.Random(seed)
            while True:
                offset, length = map(int, os.read(to_writers[seed][0], 100).split())
                if length == 0:
                    os._exit(0)
                data = rng.randbytes(length)
                assert os.pwrite(file, data, offset) == length
                os.write(from_writers[1], b"x")
    model, file = bytearray(size), os.open(path, os.O_RDONLY)
    rngs, choose = [random.Random(0), random.Random(1)], random.Random(2)
    end = 0
    for _ in range(300):
        writer, offset = choose.randrange(2), choose.randrange(size - 70_000)
        length = choose.choice([1, 100, 4096, 70_000])
        os.write(to_writers[writer][1], b"%d %d" % (offset, length))
        assert os.read(from_writers[0], 1) == b"x"
        model[offset:offset + length] = rngs[writer].randbytes(length)
        end = max(end, offset + length)
        assert os.fstat(file).st_size == end
        start = max(0, offset - 1000)
        assert os.pread(file, length + 2000, start) == model[start:min(end, start + length + 2000)]
    for writer in range(2):
        os.write(to_writers[writer][1], b"0 0")
        assert os.wait()[1] == 0


def read_on(path, keeps):
    """Reads a file until its parent exits, with one descriptor or always new ones."""
    kept = os.open(path, os.O_RDONLY)
    while os.getppid() != 1:
        file = kept if keeps else os.open(path, os.O_RDONLY)
        for offset in range(0, os.fstat(file).st_size, 4096):
            os.pread(file, 4096, offset)
        keeps or os.close(file)
    os._exit(0)


def past_pages(path):
    """A process writes through write-only descriptors, which bypass the page cache, while others read the same bytes,
    with one descriptor and always new ones: each write is visible at once, also through a mapping."""
    size = UNIT
    with open(path, "wb") as file:
        file.truncate(size)
    readers = []
    for keeps in (True, False, True):
        readers.append(os.fork())
        if readers[-1] == 0:
            read_on(path, keeps)
    try:
        kept, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
        appender = os.open(path, os.O_WRONLY | os.O_APPEND)
        mapped = mmap.mmap(kept, size, prot=mmap.PROT_READ)
        for number in range(300):
            data = bytes([number % 256]) * size
            assert os.pwrite(writer, data, 0) == size
            offsets = range(0, size, 4096)
            assert all(mapped[offset] == data[0] for offset in offsets), number
            assert os.pread(kept, size, 0) == data, number
            end = os.fstat(kept).st_size
            assert os.write(appender, data[:5000]) == 5000
            assert os.pread(kept, size, end) == data[:5000], number
            os.ftruncate(writer, size)
    finally:
        for reader in readers:
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)


def replace(path, times, node):
    """Replaces a file repeatedly."""
    for number in range(int(times)):
        with open(f"{path}.{node}", "w") as file:
            file.write(f"{node}-{number}\n" * (1 + number % 5000))
        os.rename(f"{path}.{node}", path)


def look(path, ended):
    """The name always exists, with the complete content of one of the files. A file beside `ended` reports that this runs."""
    looks = 0
    while True:
        last = os.path.exists(ended)
        with open(path) as file:
            lines = file.read().split("\n")
        assert lines.pop() == "" and len(set(lines)) == 1, (looks, lines[:2], lines[-2:])
        number = int(lines[0].split("-")[1])
        assert len(lines) == 1 + number % 5000, (lines[0], len(lines))
        looks += 1
        if looks == 1:
            open(f"{ended}-not-{os.getpid()}", "w").close()
        if last:
            break
    assert looks > 20, looks


def use_removed(path, ready, removed):
    """Uses an open file that another node removes."""
    file = os.open(path, os.O_RDWR)
    twin = os.dup(file)
    before = os.pread(file, 100, UNIT)
    say(ready)
    wait_for(removed)
    assert not os.path.exists(path)
    data = random.Random(1).randbytes(5 * UNIT)
    for offset in range(0, len(data), 50_000):
        piece = data[offset:offset + 50_000]
        assert os.pwrite(file, piece, offset + 2 * UNIT) == len(piece)
    os.fsync(file)
    os.close(file)
    assert os.pread(twin, 100, UNIT) == before
    got = b"".join(os.pread(twin, UNIT, offset + 2 * UNIT) for offset in range(0, len(data), UNIT))
    assert got == data
    assert os.fstat(twin).st_size == len(data) + 2 * UNIT and os.fstat(twin).st_nlink == 0
    os.ftruncate(twin, 10)
    assert os.fstat(twin).st_size == 10
    os.close(twin)


def follow(path, ready, rounds):
    """After an fsync, an open descriptor returns data that another node has written and synced."""
    file = os.open(path, os.O_RDWR)
    for number in range(int(rounds)):
        os.pread(file, 3 * UNIT, 0)
        say(f"{ready}-{number}")
        wait_for(f"{ready}-{number}-written")
        os.fsync(file)
        size = os.fstat(file).st_size
        data = os.pread(file, 4 * UNIT, 0)
        assert size == len(data) == 2 * UNIT + number * 1000, (number, size, len(data))
        assert data == lead_data(number), number


def lead(path, ready, rounds):
    file = os.open(path, os.O_RDWR)
    for number in range(int(rounds)):
        wait_for(f"{ready}-{number}")
        data = lead_data(number)
        assert os.pwrite(file, data, 0) == len(data)
        os.fsync(file)
        say(f"{ready}-{number}-written")


def lead_data(number):
    return random.Random(number).randbytes(2 * UNIT + number * 1000)


def free(view):
    room = os.statvfs(view)
    return room.f_bavail * room.f_frsize


def print_free(view):
    print(free(view))


def await_free(view, wanted):
    """Space is freed in the background; waits until it is."""
    deadline = time.monotonic() + 60
    while free(view) < int(wanted):
        assert time.monotonic() < deadline, (free(view), wanted)
        time.sleep(0.02)


def watch(path, ready, changed, limit):
    """An open descriptor shows changes of another node within the limit after their notification."""
    file = os.open(path, os.O_RDONLY)
    before = os.fstat(file)
    say(ready)
    while not os.path.exists(changed):
        os.fstat(file)
        time.sleep(0.005)
    time.sleep(float(limit))
    after, named = os.fstat(file), os.stat(path)
    assert (after.st_mode, after.st_size, after.st_mtime_ns) == (named.st_mode, named.st_size, named.st_mtime_ns)
    assert (after.st_mode, after.st_size) != (before.st_mode, before.st_size)


def synced(path, size):
    """Writes and syncs, and leaves the file open while all agents are killed."""
    data = random.Random(7).randbytes(int(size))
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    assert os.write(file, data) == len(data)
    os.fsync(file)
    for pid in sys.argv[4:]:
        os.kill(int(pid), 9)


def use_each(names):
    """Writes to a file in each directory; prints the outcomes, and that they took no longer than the limit."""
    for name in names.split(","):
        begin = time.monotonic()
        try:
            with open(name, "w") as file:
                file.write("x" * 10_000)
            print("done")
        except OSError as error:
            print(errno.errorcode[error.errno])
        assert time.monotonic() - begin < 15, name


if __name__ == "__main__":
    arguments = sys.argv[2:4] if sys.argv[1] == "synced" else sys.argv[2:]
    globals()[sys.argv[1]](*arguments)
