"""Changes files in the job-shared and the cache view, and checks all that it sees, while nodes of the job fail.

usage: checker.py run SEED DIRECTORY    until DIRECTORY/stop exists; then it writes what must be there to DIRECTORY
       checker.py verify NODES DIRECTORY  checks what `run` has left on all of these nodes, separated by commas

DIRECTORY is outside of the views. `run` has one process for each view, and ends at the first error and at the first wrong byte.
Each view has a directory `two` that node 2 has made, which fails.
"""

import errno
import fcntl
import hashlib
import json
import os
import random
import re
import sys
import time

VARIABLES = {"shared": "TAMEIKE_SHARED", "cache": "TAMEIKE_CACHE"}
VIEWS = {view: os.environ[variable] for view, variable in VARIABLES.items() if variable in os.environ}
NODE = os.environ["TAMEIKE_NODE"]
# A node that is excluded may lose locks, and files that it has open and that are removed.
IS_EXCLUDED = NODE == "2"
# The cache view packs files, which have no hard links.
PACKS = os.environ.get("CHECKER_PACKS") == "1"
FILES_MAX = 24
COUNTERS = ["flock", "posix"]
SLOW_SECONDS = 0.005
SLOW = []  # Begin and seconds of calls, except those that wait for locks.


def timed(function):
    def call(*arguments):
        begin = time.monotonic()
        try:
            return function(*arguments)
        finally:
            seconds = time.monotonic() - begin
            if seconds > SLOW_SECONDS:
                SLOW.append([begin, seconds])

    call.__name__ = function.__name__
    return call


def time_calls():
    for name in "open close pread pwrite write fsync ftruncate truncate rename unlink link symlink readlink".split():
        setattr(os, name, timed(getattr(os, name)))
    for name in "mkdir rmdir listdir stat chmod".split():
        setattr(os, name, timed(getattr(os, name)))


def write_all(file, content, at):
    while content:
        count = os.pwrite(file, content, at)
        content, at = content[count:], at + count


def read_all(file):
    parts = []
    at = 0
    while part := os.pread(file, 1 << 20, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def read_path(path):
    file = os.open(path, os.O_RDONLY)
    content = read_all(file)
    os.close(file)
    return content


def must_fail(wanted, function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        assert error.errno == wanted, f"{error} instead of {errno.errorcode[wanted]}"
    else:
        raise AssertionError(f"{function.__name__}{arguments} did not fail")


class Checker:
    def __init__(self, view, seed, directory):
        self.view, self.root, self.directory = view, VIEWS[view], directory
        self.random = random.Random(f"{seed}/{view}/{NODE}")
        self.count = 0
        self.files = {}  # name: content
        self.open = {}  # name: descriptor
        self.unlinked = []  # descriptor, content
        self.directories = {}  # name: names in it
        self.lines = 0
        self.added = dict.fromkeys(COUNTERS, 0)
        self.sent = 0
        self.published = 0
        self.received = -1
        self.operations = 0
        os.mkdir(self.path(f"own-{NODE}"))

    def path(self, name):
        return os.path.join(self.root, name)

    def new_name(self):
        self.count += 1
        # By different nodes: the root, a directory of node 2, and one of this node.
        place = self.random.choice(["", "two/", f"own-{NODE}/"])
        return f"{place}n{NODE}-{self.count}"

    def content(self):
        choice = self.random.random()
        if choice < 0.6:
            size = self.random.randrange(0, 6000)
        elif choice < 0.95:
            size = self.random.randrange(6000, 200_000)
        else:
            size = self.random.randrange(1 << 20, 3 << 20)
        return self.random.randbytes(size)

    def some(self, names=None):
        return self.random.choice(sorted(self.files if names is None else names))

    def close(self, name):
        if name in self.open:
            os.close(self.open.pop(name))

    def check(self, name):
        found, wanted = read_path(self.path(name)), self.files[name]
        if found != wanted:
            at = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
            raise AssertionError(f"{name}: {len(found)} bytes, wanted {len(wanted)}; they differ at {at}")

    def create(self):
        name, content = self.new_name(), self.content()
        file = os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
        self.files[name] = content
        write_all(file, content, 0)
        if self.random.random() < 0.3:
            os.fsync(file)
        if self.random.random() < 0.3 and len(self.open) < 4:
            self.open[name] = file
            return
        os.close(file)
        self.check(name)

    def write_inside(self):
        name = self.some()
        old, new = self.files[name], self.random.randbytes(self.random.randrange(1, 50_000))
        at = self.random.randrange(0, len(old) + 1)
        file = self.open.get(name)
        mine = os.open(self.path(name), os.O_RDWR) if file is None else file
        write_all(mine, new, at)
        self.files[name] = content = old[:at] + new + old[at + len(new) :]
        if file is None:
            os.close(mine)
        elif self.random.random() < 0.5:
            os.fsync(mine)
        else:
            assert read_all(mine) == content, f"{name}: read of an open file"
            return
        self.check(name)

    def append_own(self):
        name, more = self.some(), self.random.randbytes(300)
        file = os.open(self.path(name), os.O_WRONLY | os.O_APPEND)
        assert os.write(file, more) == len(more)
        os.close(file)
        self.files[name] += more
        self.check(name)

    def truncate(self):
        name = self.some()
        size = self.random.randrange(0, len(self.files[name]) + 5000)
        if name in self.open:
            os.ftruncate(self.open[name], size)
        else:
            os.truncate(self.path(name), size)
        self.files[name] = self.files[name][:size].ljust(size, b"\0")
        assert os.stat(self.path(name)).st_size == size, name
        self.check(name)

    def rename(self):
        name = self.some()
        to = self.some() if self.random.random() < 0.3 else self.new_name()
        if to == name:
            return
        if to in self.files:
            self.close(to)
        os.rename(self.path(name), self.path(to))
        self.files[to] = self.files.pop(name)
        if name in self.open:
            self.open[to] = self.open.pop(name)
        must_fail(errno.ENOENT, os.stat, self.path(name))
        self.check(to)

    def unlink(self):
        name = self.some()
        if self.random.random() < 0.5 and len(self.unlinked) < 4 and not IS_EXCLUDED:
            file = self.open.pop(name, None)
            if file is None:
                file = os.open(self.path(name), os.O_RDWR)
            self.unlinked.append([file, self.files[name]])
        else:
            self.close(name)
        os.unlink(self.path(name))
        del self.files[name]
        must_fail(errno.ENOENT, os.open, self.path(name), os.O_RDONLY)

    def use_unlinked(self):
        if not self.unlinked:
            return
        number = self.random.randrange(len(self.unlinked))
        file, content = self.unlinked[number]
        assert read_all(file) == content, "read of a removed file"
        more = self.random.randbytes(100)
        write_all(file, more, len(content))
        self.unlinked[number][1] = content + more
        if self.random.random() < 0.4:
            assert read_all(file) == content + more, "read of a removed file"
            os.close(file)
            del self.unlinked[number]

    def link(self):
        name, to = self.some(), self.new_name()
        os.link(self.path(name), self.path(to))
        assert os.stat(self.path(to)).st_ino == os.stat(self.path(name)).st_ino
        assert os.stat(self.path(to)).st_nlink == 2
        must_fail(errno.EEXIST, os.link, self.path(name), self.path(to))
        os.unlink(self.path(name))
        self.files[to] = self.files.pop(name)
        if name in self.open:
            self.open[to] = self.open.pop(name)
        assert os.stat(self.path(to)).st_nlink == 1
        self.check(to)

    def symlink(self):
        name, target = self.new_name(), f"to-{self.count}"
        os.symlink(target, self.path(name))
        must_fail(errno.EEXIST, os.symlink, target, self.path(name))
        assert os.readlink(self.path(name)) == target
        os.unlink(self.path(name))

    def change_mode(self):
        name, mode = self.some(), self.random.choice([0o600, 0o640, 0o644])
        os.chmod(self.path(name), mode)
        assert os.stat(self.path(name)).st_mode & 0o777 == mode

    def make_directory(self):
        name = self.new_name()
        os.mkdir(self.path(name))
        names = set()
        for number in range(self.random.randrange(4)):
            inner = f"{name}/f{number}"
            file = os.open(self.path(inner), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            write_all(file, inner.encode(), 0)
            os.close(file)
            names.add(f"f{number}")
        self.directories[name] = [names, name]
        must_fail(errno.EEXIST, os.mkdir, self.path(name))

    def use_directory(self):
        if not self.directories:
            return
        name = self.some(self.directories)
        names, first = self.directories[name]
        assert set(os.listdir(self.path(name))) == names, name
        if self.random.random() < 0.4:
            to = self.new_name()
            os.rename(self.path(name), self.path(to))
            self.directories[to] = self.directories.pop(name)
            must_fail(errno.ENOENT, os.stat, self.path(name))
            name = to
        for inner in names:
            assert read_path(self.path(f"{name}/{inner}")) == f"{first}/{inner}".encode()
        if names and self.random.random() < 0.5:
            must_fail(errno.ENOTEMPTY, os.rmdir, self.path(name))
            for inner in names:
                os.unlink(self.path(f"{name}/{inner}"))
            os.rmdir(self.path(name))
            del self.directories[name]
            must_fail(errno.ENOENT, os.stat, self.path(name))

    def add_line(self):
        """Appends a line to a file of all nodes."""
        file = os.open(self.path("two/log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        line = f"{NODE} {self.lines}\n".encode()
        assert os.write(file, line) == len(line)
        os.close(file)
        self.lines += 1
        if self.lines % 10 == 0:
            # Another node may have reserved the place of a line, and not have written it yet.
            text = read_path(self.path("two/log")).replace(b"\0", b"")
            check_lines(text, NODE, self.lines)

    def add(self):
        """Adds 1 to the number in a file of all nodes, under a lock."""
        kind = self.random.choice(COUNTERS)
        file = os.open(self.path(f"two/{kind}"), os.O_RDWR | os.O_CREAT, 0o644)
        lock = fcntl.flock if kind == "flock" else fcntl.lockf
        lock(file, fcntl.LOCK_EX)
        number = int(os.pread(file, 40, 0).split(b"/")[0] or b"0")
        assert number >= self.added[kind], f"{kind}: {number} after {self.added[kind]} own additions"
        mine = f"{number + 1:016}/{NODE}-{self.added[kind]:08}\n".encode()
        write_all(file, mine, 0)
        if self.random.random() < 0.3:
            time.sleep(0.002)
        assert os.pread(file, 40, 0) == mine, f"{kind}: changed under the lock"
        lock(file, fcntl.LOCK_UN)
        os.close(file)
        self.added[kind] += 1

    def send(self):
        """Replaces a file that the other node reads: it is always there, whole, and never older than before."""
        body = self.random.randbytes(self.random.randrange(1, 9000))
        content = f"{self.sent} {hashlib.sha256(body).hexdigest()} ".encode() + body
        path = self.path(f"two/box-{NODE}")
        file = os.open(f"{path}-new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        write_all(file, content, 0)
        os.close(file)
        os.rename(f"{path}-new", path)
        self.sent += 1

    def receive(self):
        other = "1" if NODE == "0" else "0"
        try:
            content = read_path(self.path(f"two/box-{other}"))
        except FileNotFoundError:
            assert self.received < 0, "the file of the other node is missing"
            return
        except OSError as error:
            # The other node has replaced the file, which this excluded one had open (S52f).
            if IS_EXCLUDED and error.errno == errno.ESTALE:
                return
            raise
        number, digest, body = content.split(b" ", 2)
        assert hashlib.sha256(body).hexdigest().encode() == digest, "a part of the other node's file"
        assert int(number) >= self.received, f"file {int(number)} of the other node after {self.received}"
        self.received = int(number)

    def publish(self):
        """Overwrites a number that programs on other nodes read, and notes outside of the views that this was acknowledged."""
        self.published += 1
        file = os.open(self.path(f"two/number-{NODE}"), os.O_WRONLY | os.O_CREAT, 0o644)
        write_all(file, f"{self.published:016}".encode(), 0)
        os.close(file)
        self.acknowledged(NODE, self.published)

    def acknowledged(self, node, number=None):
        """Sets or returns the last number of a node that was acknowledged."""
        file = os.open(os.path.join(self.directory, f"acknowledged-{self.view}-{node}"), os.O_RDWR | os.O_CREAT, 0o644)
        if number is not None:
            write_all(file, f"{number:016}".encode(), 0)
        found = os.pread(file, 16, 0)
        os.close(file)
        return int(found or b"0")

    def observe(self):
        """An open after an acknowledged write sees it, whichever node served the write and serves the open."""
        for node in ["0", "1", "2"]:
            known = self.acknowledged(node)
            if known:
                found = int(read_path(self.path(f"two/number-{node}")))
                assert found >= known, f"{found} of node {node}, although {known} was acknowledged"

    def list(self):
        own = f"own-{NODE}/"
        wanted = {name[len(own) :] for name in [*self.files, *self.directories] if name.startswith(own)}
        assert set(os.listdir(self.path(own))) == wanted, own

    CHANGES = [write_inside, append_own, truncate, rename, unlink, link, change_mode]
    OTHERS = [use_unlinked, symlink, make_directory, use_directory, add_line, add, add, send, receive]
    OTHERS += [publish, observe, observe, list]

    def choose(self):
        """An operation."""
        if len(self.files) < 4 or len(self.files) < FILES_MAX and self.random.random() < 0.25:
            return Checker.create
        operation = self.random.choice(Checker.CHANGES if self.random.random() < 0.5 else Checker.OTHERS)
        is_refused = IS_EXCLUDED and operation is Checker.add
        is_refused |= PACKS and self.view == "cache" and operation is Checker.link
        return Checker.list if is_refused else operation

    def run(self):
        stop = os.path.join(self.directory, "stop")
        begun = os.path.join(self.directory, f"begun-{self.view}-{NODE}")
        while not os.path.exists(stop):
            operation = self.choose()
            begin = time.monotonic()
            try:
                operation(self)
            except Exception:
                seconds = time.monotonic() - begin
                print(f"{self.view} view of node {NODE}: {operation.__name__}, {seconds:.2f} s", file=sys.stderr)
                open(stop, "w").close()
                raise
            self.operations += 1
            if self.operations == 30:
                open(begun, "w").close()
        for name in list(self.open):
            self.close(name)
        for file, content in self.unlinked:
            assert read_all(file) == content, "read of a removed file"
            os.close(file)
        self.leave()

    def leave(self):
        files = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in self.files.items()}
        for name, (names, first) in self.directories.items():
            for inner in names:
                data = f"{first}/{inner}".encode()
                files[f"{name}/{inner}"] = [len(data), hashlib.sha256(data).hexdigest()]
        left = {
            "files": files,
            "lines": self.lines,
            "added": self.added,
            "operations": self.operations,
            "slow": SLOW,
        }
        with open(os.path.join(self.directory, f"left-{self.view}-{NODE}"), "w") as out:
            json.dump(left, out)


def check_lines(text, node, count):
    mine = [line for line in text.decode().splitlines() if line.startswith(f"{node} ")]
    wanted = [f"{node} {number}" for number in range(count)]
    if mine != wanted:
        missing, more = set(wanted) - set(mine), len(mine) - len(set(mine))
        problem = f"lines of node {node}: {len(mine)} of {count}, missing {missing}, {more} twice"
        raise AssertionError(f"{problem}, in {text}")


def left(directory, view, node):
    with open(os.path.join(directory, f"left-{view}-{node}")) as file:
        return json.load(file)


def read_shared(root, name):
    """Content of a file that the programs of all nodes change. Without any change, it does not exist."""
    path = os.path.join(root, f"two/{name}")
    return read_path(path) if os.path.exists(path) else b""


def verify(view, root, node, wanted):
    for name, (size, digest) in wanted["files"].items():
        found = read_path(os.path.join(root, name))
        assert len(found) == size, f"{view}: {name} has {len(found)} bytes, not {size}"
        assert hashlib.sha256(found).hexdigest() == digest, f"{view}: {name} differs"
    own = f"own-{node}/"
    names = {name[len(own) :].split("/")[0] for name in wanted["files"] if name.startswith(own)}
    found = set(os.listdir(os.path.join(root, own)))
    assert names <= found, f"{view}: {names - found} missing"
    check_lines(read_shared(root, "log"), node, wanted["lines"])


def check_names(root, of_all):
    """The cache view has no other files of the checkers. Other programs of a test use other names."""
    wanted = {name for one in of_all.values() for name in one["files"]}
    common = {f"two/{name}" for name in ["log", *COUNTERS, *(f"{name}-{node}" for name in ["box", "number"] for node in of_all)]}
    found = {os.path.relpath(os.path.join(base, name), root) for base, _, names in os.walk(root) for name in names}
    others = {name for name in found - wanted - common if re.match(r"n\d+-|own-|two/", name)}
    assert wanted <= found and not others, f"missing {wanted - found}, others {others}"


def verify_all(nodes, directory):
    for view, root in VIEWS.items():
        of_all = {node: left(directory, view, node) for node in nodes}
        if view == "cache":
            check_names(root, of_all)
        for node, wanted in of_all.items():
            verify(view, root, node, wanted)
        for kind in COUNTERS:
            wanted = sum(one["added"][kind] for one in of_all.values())
            found = int(read_shared(root, kind).split(b"/")[0] or b"0")
            assert found == wanted, f"{view}: {kind} is {found}, not {wanted}"
        wanted = sum(one["lines"] for one in of_all.values())
        found = len(read_shared(root, "log").splitlines())
        assert found == wanted, f"{view}: {found} lines, not {wanted}"


def main():
    action, argument, directory = sys.argv[1:]
    if action == "verify":
        return verify_all(argument.split(","), directory)
    time_calls()
    children = []
    for view in VIEWS:
        child = os.fork()
        if child == 0:
            Checker(view, argument, directory).run()
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
