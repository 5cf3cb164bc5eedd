"""Random system calls of one process and their results: two POSIX file systems print the same.

    differential.py DIRECTORY FIRST COUNT STEPS [STEP ...]

Runs COUNT programs with the seeds from FIRST on, of STEPS calls each, in new directories below DIRECTORY. With STEPs, runs only
these: each step draws its arguments independently, so that a failing program can be reduced to the relevant steps.
"""

import ctypes
import errno
import mmap
import os
import random
import socket
import stat
import sys
import zlib

NAMES = ["a", "b", "c", "d/a", "d/b", "e/x", "s", "h", "d", "e"]
SLOTS = 7
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
# A 64-bit kernel reports it, and some C libraries hide it.
O_LARGEFILE = 0o100000
RWF_APPEND = 0x10

libc = ctypes.CDLL(None, use_errno=True)


def libc_call(name, *arguments):
    """Calls a C library function that Python lacks; raises OSError."""
    result = getattr(libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def fallocate(descriptor, mode, offset, length):
    libc_call("fallocate", descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length))


def renameat2(source, target, flags):
    libc_call("renameat2", AT_FDCWD, source.encode(), AT_FDCWD, target.encode(), flags)


def linkat_of(path, target):
    libc_call("linkat", AT_FDCWD, path.encode(), AT_FDCWD, target.encode(), AT_SYMLINK_FOLLOW)


def length_of(rng):
    return rng.choice(
        [rng.randrange(10), 4096, rng.randrange(4096), rng.randrange(20000), 65536 + rng.randrange(5000), rng.randrange(200000), 8192]
    )


def offset_of(rng):
    return rng.choice(
        [0, 4096 * rng.randrange(40), rng.randrange(5000), rng.randrange(300000), 65536 * rng.randrange(4), rng.randrange(100)]
    )


def bytes_of(rng, length):
    return rng.randbytes(length)


def sum_of(content):
    return f"{len(content)} bytes {zlib.crc32(content):08x}"


class Program:
    """The open files of a process in its directory."""

    def __init__(self):
        self.files = [None] * SLOTS

    def number(self, slot):
        """The descriptor of a slot; an invalid one if it is empty."""
        return 9999 if self.files[slot] is None else self.files[slot]

    def put(self, slot, descriptor):
        if self.files[slot] is not None:
            os.close(self.files[slot])
        self.files[slot] = descriptor

    def is_file(self, slot):
        return self.files[slot] is not None and stat.S_ISREG(os.fstat(self.files[slot]).st_mode)

    def are_two_files(self, one, two):
        if not (self.is_file(one) and self.is_file(two)):
            return False
        return os.fstat(self.files[one]).st_ino != os.fstat(self.files[two]).st_ino

    # Open files.

    def open(self, rng):
        name, slot = rng.choice(NAMES), rng.randrange(SLOTS)
        flags = rng.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        for flag, one_of in [
            (os.O_CREAT, 2), (os.O_TRUNC, 6), (os.O_APPEND, 5), (os.O_EXCL, 8), (os.O_DIRECTORY, 15), (os.O_NOFOLLOW, 15), (os.O_NONBLOCK, 20),
        ]:
            if rng.randrange(one_of) == 0:
                flags |= flag
        # The combination differs between kernels.
        if not flags & os.O_CREAT:
            flags &= ~os.O_EXCL
        if flags & os.O_CREAT:
            flags &= ~os.O_DIRECTORY
        self.put(slot, None)
        self.put(slot, os.open(name, flags, 0o666 & ~rng.randrange(0o100)))
        return f"{name} {flags:o} in {slot}"

    def close(self, rng):
        slot = rng.randrange(SLOTS)
        number, self.files[slot] = self.number(slot), None
        os.close(number)

    def dup(self, rng):
        slot, other = rng.sample(range(SLOTS), 2)
        kind = rng.randrange(4)
        if kind < 2 and self.files[other] is not None:
            os.dup2(self.number(slot), self.files[other], inheritable=kind == 0)
        else:
            self.put(other, os.dup(self.number(slot)))
        return f"{slot} as {other}"

    def pass_descriptor(self, rng):
        slot, other = rng.sample(range(SLOTS), 2)
        if self.files[slot] is None:
            return "none"
        near, far = socket.socketpair()
        with near, far:
            socket.send_fds(near, [b"x"], [self.files[slot]])
            _, descriptors, _, _ = socket.recv_fds(far, 1, 1)
        self.put(other, descriptors[0])
        return f"{slot} as {other}"

    def set_flags(self, rng):
        import fcntl

        slot = rng.randrange(SLOTS)
        flags = fcntl.fcntl(self.number(slot), fcntl.F_GETFL)
        fcntl.fcntl(self.number(slot), fcntl.F_SETFL, flags ^ os.O_APPEND)
        found = fcntl.fcntl(self.number(slot), fcntl.F_GETFL)
        # A file that a preloaded program hands over to the kernel is opened again, by a name that may be a link.
        return f"{slot} {found & ~(O_LARGEFILE | os.O_NOFOLLOW):o}"

    # Bytes.

    def read(self, rng):
        return sum_of(os.read(self.number(rng.randrange(SLOTS)), length_of(rng)))

    def pread(self, rng):
        return sum_of(os.pread(self.number(rng.randrange(SLOTS)), length_of(rng), offset_of(rng)))

    def write(self, rng):
        return os.write(self.number(rng.randrange(SLOTS)), bytes_of(rng, length_of(rng)))

    def pwrite(self, rng):
        slot, offset = rng.randrange(SLOTS), offset_of(rng)
        written = os.pwrite(self.number(slot), bytes_of(rng, length_of(rng)), offset)
        return f"{slot}: {written} at {offset}"

    def write_vector(self, rng):
        slot, offset, kind, length = rng.randrange(SLOTS), offset_of(rng), rng.randrange(3), length_of(rng)
        parts = [bytes_of(rng, length // 3), b"", bytes_of(rng, length - length // 3)]
        if kind == 0:
            written = os.writev(self.number(slot), parts)
        else:
            written = os.pwritev(self.number(slot), parts, offset, RWF_APPEND if kind == 2 else 0)
        return f"{slot}: {written} by {kind} at {offset}"

    def read_vector(self, rng):
        slot, offset, kind, length = rng.randrange(SLOTS), offset_of(rng), rng.randrange(2), length_of(rng)
        parts = [bytearray(length // 3), bytearray(0), bytearray(length - length // 3)]
        if kind == 0:
            count = os.readv(self.number(slot), parts)
        else:
            count = os.preadv(self.number(slot), parts, offset)
        return sum_of(b"".join(parts)[:count])

    def seek(self, rng):
        slot, whence = rng.randrange(SLOTS), rng.randrange(3)
        if self.files[slot] is not None and not self.is_file(slot):
            return "a directory"
        return os.lseek(self.number(slot), offset_of(rng) - (1000 if whence else 0), whence)

    def find_hole(self, rng):
        slot = rng.randrange(SLOTS)
        if not self.is_file(slot):
            return "none"
        before, size = os.lseek(self.files[slot], 0, os.SEEK_CUR), os.fstat(self.files[slot]).st_size
        try:
            hole = os.lseek(self.files[slot], 0, os.SEEK_HOLE)
        finally:
            os.lseek(self.files[slot], before, os.SEEK_SET)
        return "in the file" if hole <= size else f"at {hole} of {size}"

    def ftruncate(self, rng):
        os.ftruncate(self.number(rng.randrange(SLOTS)), offset_of(rng))

    def truncate(self, rng):
        os.truncate(rng.choice(NAMES), offset_of(rng))

    def allocate(self, rng):
        slot, mode = rng.randrange(SLOTS), rng.choice([0, FALLOC_KEEP_SIZE, FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE])
        fallocate(self.number(slot), mode, offset_of(rng), 1 + length_of(rng))

    def copy_range(self, rng):
        one, two = rng.sample(range(SLOTS), 2)
        if not self.are_two_files(one, two):
            return "none"
        return os.copy_file_range(self.files[one], self.files[two], length_of(rng))

    def send_file(self, rng):
        one, two = rng.sample(range(SLOTS), 2)
        if not self.are_two_files(one, two):
            return "none"
        return os.sendfile(self.files[two], self.files[one], None, length_of(rng))

    def splice_out(self, rng):
        slot, length = rng.randrange(SLOTS), length_of(rng) % 60000
        near, far = os.pipe()
        try:
            count = os.splice(self.number(slot), far, length)
            return sum_of(os.read(near, count) if count else b"")
        finally:
            os.close(near)
            os.close(far)

    def splice_in(self, rng):
        slot, length = rng.randrange(SLOTS), 1 + length_of(rng) % 60000
        near, far = os.pipe()
        try:
            os.write(far, bytes_of(rng, length))
            count = 0
            while count < length:
                count += os.splice(near, self.number(slot), length - count)
            return f"{slot}: {count}"
        finally:
            os.close(near)
            os.close(far)

    def map(self, rng):
        import fcntl

        slot, place, syncs = rng.randrange(SLOTS), rng.random(), rng.randrange(2)
        if not self.is_file(slot) or os.fstat(self.files[slot]).st_size == 0:
            return "none"
        writes = fcntl.fcntl(self.files[slot], fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        with mmap.mmap(self.files[slot], 0, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)) as mapped:
            found = sum_of(mapped)
            if writes:
                start = int(place * len(mapped))
                end = min(start + 3000, len(mapped))
                mapped[start:end] = bytes_of(rng, end - start)
                if syncs:
                    mapped.flush()
        return f"{slot}: {found}"

    def fsync(self, rng):
        os.fsync(self.number(rng.randrange(SLOTS)))

    def in_child(self, rng):
        """A child shares the offset."""
        slot, length, kind, moves, end = rng.randrange(SLOTS), length_of(rng), rng.randrange(2), rng.randrange(2), offset_of(rng)
        content = bytes_of(rng, length)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                if kind:
                    os.write(self.number(slot), content)
                else:
                    os.read(self.number(slot), length)
                if moves:
                    os.lseek(self.number(slot), end % 1000, os.SEEK_SET)
                    os.ftruncate(self.number(slot), end)
                os._exit(0)
            except OSError as error:
                os._exit(error.errno)
        _, status = os.waitpid(child, 0)
        at = os.lseek(self.files[slot], 0, os.SEEK_CUR) if self.is_file(slot) else None
        return f"{slot}: {status}, then at {at}"

    def in_program(self, rng):
        """Another program reads or writes through an inherited descriptor."""
        slot, reads = rng.randrange(SLOTS), rng.randrange(2)
        if not self.is_file(slot):
            return "none"
        near, far = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.dup2(self.files[slot], 0 if reads else 1)
                if reads:
                    os.dup2(far, 1)
                    os.execlp("head", "head", "-c", "100")
                os.execlp("sh", "sh", "-c", "printf hello; printf world >&1")
            finally:
                os._exit(127)
        os.close(far)
        with os.fdopen(near, "rb") as pipe:
            found = pipe.read()
        _, status = os.waitpid(child, 0)
        # The number of bytes that `head` reads is unspecified.
        at = os.lseek(self.files[slot], 0, os.SEEK_SET if reads else os.SEEK_CUR)
        return f"{slot}: {'failed' if status else 'ended'}, {sum_of(found)}, then at {at}"

    def with_library(self, rng):
        name, mode, place = rng.choice(NAMES), rng.choice(["r+b", "a+b"]), rng.randrange(1000)
        with open(name, mode) as file:
            file.write(b"line\n")
            file.seek(place)
            return sum_of(file.read(500))

    def by_proc(self, rng):
        slot = rng.randrange(SLOTS)
        if not self.is_file(slot):
            return "none"
        with open(f"/proc/self/fd/{self.files[slot]}", "rb", buffering=0) as file:
            return sum_of(file.read(5000))

    # Names.

    def rename(self, rng):
        source, target, flags = rng.choice(NAMES), rng.choice(NAMES), rng.choice([0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE])
        if flags:
            renameat2(source, target, flags)
        else:
            os.rename(source, target)
        return f"{source} {target}"

    def link(self, rng):
        source, target = rng.choice(NAMES), rng.choice(NAMES)
        os.link(source, target, follow_symlinks=False)
        return f"{source} {target}"

    def link_open(self, rng):
        slot, target = rng.randrange(SLOTS), rng.choice(NAMES)
        if self.files[slot] is None:
            return "none"
        linkat_of(f"/proc/self/fd/{self.files[slot]}", target)
        return f"{slot} {target}"

    def unlink(self, rng):
        name = rng.choice(NAMES)
        try:
            os.unlink(name)
        except PermissionError:
            # For a directory, POSIX and Linux return different errors.
            raise IsADirectoryError(errno.EISDIR, "is a directory") from None
        return name

    def symlink(self, rng):
        target, name = rng.choice([(rng.choice(NAMES), "s"), ("a", "d/b")])
        os.symlink(target, name)
        return f"{name} to {target}"

    def make_directory(self, rng):
        os.mkdir(rng.choice(NAMES), 0o777)

    def remove_directory(self, rng):
        try:
            os.rmdir(rng.choice(NAMES))
        except FileExistsError:
            raise OSError(errno.ENOTEMPTY, "not empty") from None

    def list(self, rng):
        with os.scandir(rng.choice([".", "d"])) as entries:
            return sorted((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries)

    # Attributes.

    def stat(self, rng):
        return self.shown(os.stat(rng.choice(NAMES)))

    def lstat(self, rng):
        return self.shown(os.lstat(rng.choice(NAMES)))

    def fstat(self, rng):
        return self.shown(os.fstat(self.number(rng.randrange(SLOTS))))

    def fchmod(self, rng):
        os.fchmod(self.number(rng.randrange(SLOTS)), 0o600 | rng.randrange(0o200))

    @staticmethod
    def shown(found):
        # Size and links of a directory depend on the file system.
        rest = "" if stat.S_ISDIR(found.st_mode) else f" {found.st_nlink} links, {found.st_size} bytes"
        return f"{found.st_mode:o} {found.st_uid}{rest}"


CALLS = [name for name, call in vars(Program).items() if callable(call) and name not in ("__init__", "number", "put", "is_file", "are_two_files", "shown")]
# Most steps need open files.
WEIGHTS = [{"open": 8, "read": 2, "write": 3, "pwrite": 2, "map": 2}.get(name, 1) for name in CALLS]


def run(seed, steps):
    """Runs a program in the current directory."""
    umask = os.umask(random.Random(seed).choice([0o022, 0o027]))
    os.mkdir("d")
    os.mkdir("e")
    program = Program()
    for step in steps:
        rng = random.Random(f"{seed}/{step}")
        name = rng.choices(CALLS, WEIGHTS)[0]
        try:
            result = getattr(program, name)(rng)
        except OSError as error:
            result = errno.errorcode[error.errno]
        print(f"{seed}/{step} {name}: {result}")
    for slot in range(SLOTS):
        program.put(slot, None)
    for name in NAMES:
        try:
            with open(name, "rb") as file:
                print(f"{seed}/end {name}: {sum_of(file.read())}")
        except OSError as error:
            print(f"{seed}/end {name}: {errno.errorcode[error.errno]}")
    os.umask(umask)


def main():
    base = os.path.abspath(sys.argv[1])
    first, count, steps, *only = map(int, sys.argv[2:])
    for seed in range(first, first + count):
        place = os.path.join(base, str(seed))
        os.mkdir(place)
        os.chdir(place)
        run(seed, only or range(steps))
        sys.stdout.flush()


main()
