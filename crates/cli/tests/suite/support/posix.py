"""Small programs for the tests of POSIX: each is one function, run on one node, and fails by an assertion."""

import ctypes
import errno
import mmap
import os
import socket
import stat
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE = 1, 2, 8, 16
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
MIB = 1 << 20
# Bytes 1 to 255 but "/": the last name is as long as names can be.
LONG_NAME = bytes(byte for byte in range(1, 256) if byte != 47) + b"x"


def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def fallocate(file, mode, offset, length):
    checked(LIBC.fallocate(file, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))


def renameat2(old, new, flags):
    checked(LIBC.renameat2(-100, old.encode(), -100, new.encode(), flags))


def refused(expected, function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        assert error.errno == expected, (function, arguments, errno.errorcode[error.errno])
    else:
        raise AssertionError(f"{function} {arguments} was not refused")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


def data_of(file):
    """The extents that SEEK_DATA and SEEK_HOLE report."""
    pieces, at = [], 0
    while True:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            return pieces
        at = os.lseek(file, start, os.SEEK_HOLE)
        pieces.append((start, at))


def blocks_of(path):
    return os.stat(path).st_blocks * 512


def takes(path, least, most):
    # While a cached file is flushed, a part of it may count twice.
    for _ in range(100):
        if blocks_of(path) <= most:
            break
        time.sleep(0.1)
    assert least <= blocks_of(path) <= most, (path, blocks_of(path))


def renames(root):
    os.chdir(root)
    for number in range(8):
        os.mkdir(f"d{number}")
        write(f"d{number}/file", str(number))
    for number in range(0, 8, 2):
        one, other = f"d{number}/file", f"d{number + 1}/file"
        refused(errno.EEXIST, renameat2, one, other, NOREPLACE)
        refused(errno.ENOENT, renameat2, one, f"d{number}/none", EXCHANGE)
        before = [os.stat(name).st_ctime_ns for name in (one, other)]
        time.sleep(0.02)
        renameat2(one, other, EXCHANGE)
        after = [os.stat(name).st_ctime_ns for name in (other, one)]
        assert after[0] > before[0] and after[1] > before[1], (before, after)
        renameat2(one, f"d{number}/new", NOREPLACE)
    # A directory and a file, in different directories.
    os.mkdir("d0/sub")
    write("d0/sub/below", "below")
    renameat2("d0/sub", "d1/file", EXCHANGE)
    refused(errno.EINVAL, renameat2, "d1", "d1/file/below", 0)
    for name in ("d2", "d3/file"):
        before = os.stat(name).st_ctime_ns
        time.sleep(0.02)
        os.rename(name, name + "-moved")
        # Times of directories may be stale for a moment.
        time.sleep(0.3)
        assert os.stat(name + "-moved").st_ctime_ns > before, name
    os.rename("d2-moved", "d2")


def renamed(root):
    os.chdir(root)
    assert read("d0/sub") == "0" and read("d1/file/below") == "below"
    assert read("d2/new") == "3" and read("d3/file-moved") == "2"
    assert read("d4/new") == "5" and read("d5/file") == "4"
    refused(errno.ENOENT, os.stat, "d4/file")


# Data of the file that `make_holes` makes, in pieces of whole blocks.
PIECES = [(0, 8192), (3 * MIB, 3 * MIB + 4096), (5 * MIB - 4096, 6 * MIB)]


def make_holes(root):
    os.chdir(root)
    file = os.open("sparse", os.O_RDWR | os.O_CREAT)
    for start, end in PIECES:
        os.pwrite(file, b"x" * (end - start), start)
    os.ftruncate(file, 9 * MIB)
    see_open(file, PIECES, 9 * MIB)
    refused(errno.ENXIO, os.lseek, file, 9 * MIB, os.SEEK_HOLE)
    assert os.lseek(file, 8 * MIB, os.SEEK_HOLE) == 8 * MIB
    os.close(file)
    # Without holes, and small.
    write("dense", "y" * (2 * MIB))
    write("small", "z" * 100)
    # fallocate below and beyond the end, and unsupported modes.
    file = os.open("set-aside", os.O_RDWR | os.O_CREAT)
    fallocate(file, KEEP_SIZE, 0, 2 * MIB)
    assert os.fstat(file).st_size == 0
    fallocate(file, 0, MIB, MIB + 1)
    assert os.fstat(file).st_size == 2 * MIB + 1
    refused(errno.EOPNOTSUPP, fallocate, file, COLLAPSE_RANGE, 0, 4096)
    refused(errno.EINVAL, fallocate, file, 0, 0, 0)
    os.close(file)
    # Punched, zeroed.
    file = os.open("punched", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, b"p" * (4 * MIB), 0)
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, 4096, 2 * MIB)
    os.pwrite(file, b"q" * 4096, MIB)
    fallocate(file, ZERO_RANGE | KEEP_SIZE, 3 * MIB, 8 * MIB)
    assert os.fstat(file).st_size == 4 * MIB
    fallocate(file, ZERO_RANGE, 4 * MIB, MIB + 5)
    assert os.fstat(file).st_size == 5 * MIB + 5
    os.close(file)
    see_holes(".")


def seek(file, offset, whence):
    try:
        return os.lseek(file, offset, whence)
    except OSError as error:
        assert error.errno == errno.ENXIO, (offset, whence, error)
        return None


def seek_everywhere(root, finest="4096"):
    # Like lseek11 of the Linux Test Project: short extents, a hole behind each, and a hole at the end.
    file = os.open(f"{root}/sought", os.O_RDWR | os.O_CREAT)
    for step in (2049, 4096, 65536, MIB):
        os.ftruncate(file, 0)
        size = 6 * step
        os.ftruncate(file, size)
        starts = [2 * step * piece for piece in range(3)]
        for piece, start in enumerate(starts):
            os.pwrite(file, b"data-%d" % piece, start)
        os.fsync(file)
        seek_in(file, starts, step, int(finest))
        # Flushed parts have the holes of the underlying file system.
        os.close(file)
        time.sleep(0.3)
        file = os.open(f"{root}/sought", os.O_RDWR)
        seek_in(file, starts, step, 4096)
    os.close(file)


def seek_in(file, starts, step, block):
    size = 6 * step
    # No written byte is reported as a hole, and no more than its block as data.
    for offset in sorted({base + more for base in range(0, size, step) for more in (0, 3, 6, 7, step - 1)}):
        ends = [start + 6 for start in starts]
        piece = next((place for place, end in enumerate(ends) if end > offset), None)
        data, hole = seek(file, offset, os.SEEK_DATA), seek(file, offset, os.SEEK_HOLE)
        whole = lambda end: -(-end // block) * block
        in_block = any(start // block * block <= offset < whole(start + 6) for start in starts)
        if piece is None:
            assert data is None or (data == offset and in_block), (offset, data)
        else:
            start = max(offset, starts[piece])
            assert data == offset and in_block or max(offset, start // block * block) <= data <= start, (offset, data)
        assert hole is not None and offset <= hole <= size, (offset, hole)
        assert not any(start <= hole < start + 6 for start in starts), (offset, hole)
        assert hole == offset or in_block and (hole <= whole(offset + 6) or block > step), (offset, hole)
    for whence in (os.SEEK_DATA, os.SEEK_HOLE):
        assert seek(file, size, whence) is None and seek(file, size + 1, whence) is None


def see_open(file, pieces, size):
    found = data_of(file)
    assert found == pieces, found
    for start, end in pieces:
        assert os.pread(file, end - start, start) == b"x" * (end - start)
    for (_, end), (start, _) in zip(pieces, pieces[1:] + [(size, 0)]):
        assert os.pread(file, 100, end) == bytes(100) and os.pread(file, 100, start - 100) == bytes(100)


def see_holes(root):
    os.chdir(root)
    file = os.open("sparse", os.O_RDONLY)
    see_open(file, PIECES, 9 * MIB)
    os.close(file)
    space = sum(end - start for start, end in PIECES)
    takes("sparse", space, space + 65536)
    takes("dense", 2 * MIB, 2 * MIB + 65536)
    takes("small", 100, 65536)
    takes("set-aside", 2 * MIB, 3 * MIB)
    assert read("set-aside") == "\0" * (2 * MIB + 1)
    file = os.open("punched", os.O_RDONLY)
    expected = b"p" * 4096 + bytes(MIB - 4096) + b"q" * 4096 + bytes(MIB)
    expected += b"p" * (3 * MIB - len(expected)) + bytes(2 * MIB + 5)
    assert os.read(file, 6 * MIB) == expected
    pieces = data_of(file)
    if not os.getcwd().endswith("/shared/shared"):
        # Some file systems report allocated space without data as data.
        pieces = [(start, min(end, 3 * MIB)) for start, end in pieces if start < 3 * MIB]
    assert pieces == [(0, 4096), (MIB, MIB + 4096), (2 * MIB + 4096, 3 * MIB)], pieces
    os.close(file)


def punch_far(root):
    """Another node has read the open file, and punches holes into data of this one."""
    os.chdir(root)
    file = os.open("sparse", os.O_RDWR)
    assert os.pread(file, 8192, 0) == b"x" * 8192
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, 1, 8190)
    assert os.pread(file, 8192, 0) == b"x" + bytes(8190) + b"x"
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, 3 * MIB - 5, 4 * MIB)
    os.pwrite(file, b"n" * 4096, 4 * MIB)
    os.close(file)


def see_punched(root):
    os.chdir(root)
    content = read("sparse")
    expected = "x" + "\0" * 8190 + "x"
    expected += "\0" * (4 * MIB - len(expected)) + "n" * 4096
    assert content == expected + "\0" * (9 * MIB - len(expected))
    takes("sparse", 0, 65536)
    os.unlink("set-aside")


def space_is_kept(root):
    os.chdir(root)
    free = lambda: os.statvfs(".").f_bavail * 4096
    file = os.open("kept", os.O_RDWR | os.O_CREAT)
    fallocate(file, 0, 0, 6 * MIB)
    refused(errno.ENOSPC, fallocate, file, 0, 0, 1 << 40)
    # Another program takes all free space.
    with open("greedy", "wb", buffering=0) as greedy:
        try:
            for _ in range(64):
                greedy.write(bytes([7]) * MIB)
                os.fsync(greedy.fileno())
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        else:
            raise AssertionError("the view is larger than its capacity")
    for number in range(6):
        os.pwrite(file, bytes([number + 1]) * MIB, number * MIB)
    os.fsync(file)
    os.close(file)
    with open("kept", "rb") as whole:
        assert whole.read() == b"".join(bytes([number + 1]) * MIB for number in range(6))
    os.unlink("greedy")
    before = free()
    os.unlink("kept")
    for _ in range(500):
        if free() >= before + 6 * MIB:
            return
        time.sleep(0.02)
    raise AssertionError(f"{free()} bytes are free after {before}")


def refusals(root, *kinds):
    os.chdir(root)
    if not root.endswith("local"):
        refused(errno.EOPNOTSUPP, os.open, ".", os.O_TMPFILE | os.O_RDWR)
        write("file", "x")
        refused(errno.EINVAL, renameat2, "file", "white", WHITEOUT)
    if "acl" in kinds:
        entries = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
        refused(errno.EOPNOTSUPP, os.setxattr, "file", "system.posix_acl_access", entries)
        refused(errno.EOPNOTSUPP, os.getxattr, "file", "system.posix_acl_access")
    else:
        # Root may name any user, other users only themselves: their namespace maps no other users.
        named = (os.getuid() or 1234).to_bytes(4, "little").hex()
        entries = bytes.fromhex(
            f"02000000 01000600ffffffff 02000700{named} 04000400ffffffff 10000700ffffffff 20000000ffffffff"
        )
        write("listed", "x")
        os.setxattr("listed", "system.posix_acl_access", entries)
        assert os.getxattr("listed", "system.posix_acl_access") == entries
        assert stat.S_IMODE(os.stat("listed").st_mode) == 0o670
    write("named", "x")
    os.setxattr("named", "user.name", b"value")
    assert os.getxattr("named", "user.name") == b"value"


def groups(root):
    os.chdir(root)
    os.chmod(".", 0o777)
    write("file", "x")
    os.chown("file", 1234, 100)
    os.chmod("file", 0o2775)
    os.mkdir("group-only")
    os.chown("group-only", 0, 200)
    os.chmod("group-only", 0o2770)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([100, 200])
            os.setgid(100)
            os.setuid(1234)
            os.chown("file", -1, 200)
            after = os.stat("file")
            assert (after.st_gid, stat.S_IMODE(after.st_mode)) == (200, 0o775), after
            refused(errno.EPERM, os.chown, "file", -1, 300)
            write("group-only/file", "y")
            assert os.stat("group-only/file").st_gid == 200
            os.mkdir("group-only/sub")
            assert stat.S_IMODE(os.stat("group-only/sub").st_mode) & 0o2000
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "the other user failed"


def odds(root):
    os.chdir(root)
    assert len(LONG_NAME) == 255
    open(LONG_NAME, "w").close()
    refused(errno.ENAMETOOLONG, open, LONG_NAME + b"x", "w")
    write("times", "x")
    os.utime("times", ns=(1234567890123456789, 987654321987654321))
    if root.endswith("shared"):
        os.truncate("times", 2**63 - 1)
        assert os.stat("times").st_size == 2**63 - 1
        takes("times", 0, 65536)
        os.utime("times", ns=(1234567890123456789, 987654321987654321))
    os.mkfifo("fifo")
    said = []
    reader = threading.Thread(target=lambda: said.append(read("fifo")))
    reader.start()
    write("fifo", "through")
    reader.join()
    assert said == ["through"]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("socket")
    listener.listen()
    socket.socket(socket.AF_UNIX).connect("socket")
    if os.geteuid() == 0:
        os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    with open("source", "wb") as source:
        source.write(os.urandom(3 * MIB + 17))
    source, target = os.open("source", os.O_RDONLY), os.open("copy", os.O_RDWR | os.O_CREAT)
    left = 3 * MIB + 17
    while left:
        left -= os.copy_file_range(source, target, left)
    os.close(target)


def odds_seen(root):
    os.chdir(root)
    assert LONG_NAME in os.listdir(b".")
    times = os.stat("times")
    assert (times.st_atime_ns, times.st_mtime_ns) == (1234567890123456789, 987654321987654321)
    assert stat.S_ISFIFO(os.stat("fifo").st_mode) and stat.S_ISSOCK(os.stat("socket").st_mode)
    if os.geteuid() == 0:
        assert os.stat("device").st_rdev == os.makedev(1, 3)
    with open("source", "rb") as source, open("copy", "rb") as copy:
        assert source.read() == copy.read()


FAR = 9 << 40


def large(root):
    os.chdir(root)
    file = os.open("large", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, b"begin", 0)
    os.pwrite(file, b"end", FAR)
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, MIB, 5 << 40)
    os.close(file)


def large_seen(root):
    os.chdir(root)
    file = os.open("large", os.O_RDONLY)
    assert os.fstat(file).st_size == FAR + 3
    takes("large", 0, MIB)
    assert os.pread(file, 9, FAR) == b"end" and os.pread(file, 9, 8 << 40) == bytes(9)
    assert os.lseek(file, 65536, os.SEEK_DATA) // 65536 == FAR // 65536
    assert os.lseek(file, 0, os.SEEK_HOLE) <= 65536


LONG_AGO = 1_000_000_000 * 10**9


def accessed(path):
    return os.stat(path).st_atime_ns


def set_accessed(path, time_ns):
    os.utime(path, ns=(time_ns, os.stat(path).st_mtime_ns))


def read_through(path, flags=0):
    file = os.open(path, os.O_RDONLY | flags)
    try:
        return os.read(file, 100)
    finally:
        os.close(file)


def until(what, *arguments):
    for _ in range(1000):
        if what(*arguments):
            return
        time.sleep(0.01)
    raise AssertionError(f"not so after 10 seconds: {what.__name__}{arguments}")


def until_there(path):
    until(os.path.exists, path)


def tell_closes(name):
    """Sends a later close to each home, so that homes know of earlier reads, for which the other node waits."""
    for number in range(16):
        path = f"notified-{name}-{number}"
        write(path, "x")
        set_accessed(path, LONG_AGO)
        read_through(path)
    write(f"notified-{name}", "")


def until_told(name):
    until_there(f"notified-{name}")
    until(lambda: all(accessed(f"notified-{name}-{number}") > LONG_AGO for number in range(16)))


def reads_count(root):
    os.chdir(root)
    write("file", "text")
    born = os.stat("file")
    file = os.open("file", os.O_RDWR)
    assert os.read(file, 10) == b"text"
    first = os.fstat(file)
    assert first.st_atime_ns > born.st_mtime_ns and accessed("file") == first.st_atime_ns
    assert (first.st_mtime_ns, first.st_ctime_ns) == (born.st_mtime_ns, born.st_ctime_ns)
    # No further update without a change.
    assert os.pread(file, 10, 0) == b"text" and read_through("file") == b"text"
    assert accessed("file") == first.st_atime_ns
    # The first read after each change; reads through the page cache are visible with the next open.
    os.pwrite(file, b"more", 0)
    assert read_through("file") == b"more"
    assert accessed("file") > os.stat("file").st_mtime_ns
    os.close(file)
    # Once a day, and not while the last access time is in the future.
    now = time.time_ns()
    set_accessed("file", now - 25 * 3600 * 10**9)
    read_through("file")
    assert accessed("file") > now
    set_accessed("file", now + 3600 * 10**9)
    read_through("file")
    assert accessed("file") == now + 3600 * 10**9
    # Reads through a mapping and executions count as reads.
    for use in (map_file, run_file):
        set_accessed("file", LONG_AGO)
        use("file")
        assert accessed("file") > now, use
    set_accessed("file", LONG_AGO)
    read_through("file", os.O_NOATIME)
    assert accessed("file") == LONG_AGO
    for kept in ("link", "dir"):
        os.mkdir(kept) if kept == "dir" else os.symlink("file", kept)
        times = os.lstat(kept)
        os.listdir(kept) if kept == "dir" else os.readlink(kept)
        assert os.lstat(kept).st_atime_ns == times.st_atime_ns, kept
    tell_closes("first")
    assert accessed("file") == LONG_AGO
    read_through("file")
    write("last", str(accessed("file")))
    tell_closes("last")


def map_file(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert mapping[:4] == b"more"


def run_file(path):
    write(path, "#!/bin/sh\n")
    os.chmod(path, 0o755)
    set_accessed(path, LONG_AGO)
    assert os.spawnl(os.P_WAIT, path, path) == 0


def reads_seen(root):
    os.chdir(root)
    until_told("first")
    until_told("last")
    assert accessed("file") == int(read("last")), (accessed("file"), read("last"))


def read_and_hold(root):
    """Reads a file, and closes it when the other node has set its access time back."""
    os.chdir(root)
    write("held", "text")
    file = os.open("held", os.O_RDONLY)
    assert os.read(file, 10) == b"text" and accessed("held") > LONG_AGO
    write("is-read", "")
    until_there("is-set")
    os.close(file)
    tell_closes("held")
    assert accessed("held") == LONG_AGO


def set_back(root):
    os.chdir(root)
    until_there("is-read")
    set_accessed("held", LONG_AGO)
    write("is-set", "")
    until_told("held")
    assert accessed("held") == LONG_AGO


def rights(root):
    """An unprivileged write clears set-user-ID bits and capabilities, on every write path, and also if they were set after the
    open."""
    above, other = os.open(root, os.O_PATH), 65534
    os.chmod(root, 0o777)
    for number, flags in enumerate((os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND)):
        for late in (False, True):
            path = f"{root}/rights-{number}-{late}"
            write(path, "text")
            os.chmod(path, 0o777 if late else 0o6777)
            (to_parent, tell), (heard, to_child) = os.pipe(), os.pipe()
            if os.fork() == 0:
                if os.getuid() == 0:
                    os.setgroups([])
                    os.setresgid(other, other, other)
                    os.setresuid(other, other, other)
                file = os.open(os.path.basename(path), flags, dir_fd=above)
                os.write(tell, b"x")
                os.read(heard, 1)
                os.write(file, b"x")
                os._exit(0 if stat.S_IMODE(os.fstat(file).st_mode) == 0o777 else 1)
            assert os.read(to_parent, 1) == b"x"
            if late:
                os.chmod(path, 0o6777)
            os.write(to_child, b"x")
            assert os.wait()[1] == 0, (flags, late)
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o777, (flags, late)


def reused_number(root):
    """A file that is held by its node id is replaced; another file gets its inode number, and is removed while open."""
    path = f"{root}/reused"
    write(path, "first")
    held = os.open(path, os.O_PATH)
    number = os.fstat(held).st_ino
    write(f"{path}.next", "second")
    os.rename(f"{path}.next", path)
    # A reused number differs only in its highest bits.
    same = lambda other: (os.stat(other).st_ino ^ number) & ((1 << 48) - 1) == 0
    for count in range(100):
        other = f"{path}.{count}"
        write(other, "the third one")
        if same(other):
            break
    else:
        print("this file system does not reuse inode numbers")
        return
    file = os.open(other, os.O_RDWR)
    os.unlink(other)
    by_number = f"/proc/self/fd/{held}"
    try:
        assert read(by_number) == "first", "another file is read"
    except OSError as error:
        assert error.errno in (errno.ESTALE, errno.ENOENT), error
    # By then the kernel's attributes have expired, so fstat sends a request to the agent.
    time.sleep(0.3)
    try:
        assert os.fstat(held).st_size == 5, "these are attributes of another file"
    except OSError as error:
        assert error.errno in (errno.ESTALE, errno.ENOENT), error
    for change in (lambda: os.truncate(by_number, 1), lambda: os.chmod(by_number, 0o600)):
        try:
            change()
        except OSError as error:
            assert error.errno in (errno.ESTALE, errno.ENOENT), error
    assert os.pread(file, 100, 0) == b"the third one", "another file was changed"
    assert stat.S_IMODE(os.fstat(file).st_mode) != 0o600
    os.close(file)
    os.close(held)


def read_there(path):
    read_through(path)
    print(accessed(path) > LONG_AGO)


def store_and_sync(root):
    """Writes a file through a direct handle while another handle uses the page cache, stores through a mapping, and syncs."""
    path = f"{root}/stored"
    for count in range(20):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.write(file, bytes(20000))
        reader = os.open(path, os.O_RDONLY)
        assert len(os.pread(reader, 30000, 0)) == 20000
        with mmap.mmap(file, 20000) as mapping:
            mapping[5000:5004] = b"abcd"
            mapping.flush()
            os.pwrite(file, b"efgh", 12000)
            mapping[17000:17004] = b"ijkl"
            mapping.flush()
        found = os.pread(reader, 20000, 0)
        assert (found[5000:5004], found[12000:12004], found[17000:17004]) == (b"abcd", b"efgh", b"ijkl")
        os.close(reader)
        os.close(file)
        os.unlink(path)


def store_beside_writes(root):
    """Stores to pages of a file through a mapping while another process writes to other bytes of the same pages."""
    path, pages = f"{root}/beside", 64
    for count in range(30):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, pages * 4096)
        with mmap.mmap(file, pages * 4096) as mapping:
            writer = os.fork()
            if writer == 0:
                for turn in range(1, 5):
                    for page in range(pages):
                        os.pwrite(file, bytes([turn]) * 8, page * 4096 + 3072)
                os._exit(0)
            stored, is_writing = 0, True
            while is_writing:
                is_writing = os.waitpid(writer, os.WNOHANG) == (0, 0)
                stored += 1
                for page in range(pages):
                    mapping[page * 4096 + 1024 : page * 4096 + 1032] = stored.to_bytes(8, "little")
            for page in range(pages):
                for offset_in_page, expected in (1024, stored.to_bytes(8, "little")), (3072, bytes([4]) * 8):
                    start = page * 4096 + offset_in_page
                    found = mapping[start : start + 8], os.pread(file, 8, start)
                    assert found == (expected, expected), (count, page, offset_in_page, expected, found)
        os.close(file)
        os.unlink(path)


globals()[sys.argv[1]](*sys.argv[2:])
