"""Writes files in the cache view, and logs outside of it what was acknowledged.

usage: writer.py DIRECTORY LOG SEED OPERATIONS

The program writes a line of the log before each operation and after its acknowledgement. ../support/promises.rs
describes and reads the lines.
"""

import hashlib
import os
import random
import sys

directory, log_path, seed, operations = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
node = os.environ["TAMEIKE_NODE"]
choose = random.Random(f"{seed}/{node}")
log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
contents = {}
count = 0


def say(*words):
    os.write(log, (" ".join(map(str, words)) + "\n").encode())


def path(name):
    return os.path.join(directory, name)


def done(name):
    say("whole", name, len(contents[name]), hashlib.sha256(contents[name]).hexdigest())


def write_all(file, content, piece):
    for start in range(0, len(content), piece):
        rest = content[start : start + piece]
        while rest:
            rest = rest[os.write(file, rest) :]


def size():
    return choose.randrange(1, 6000) if choose.random() < 0.7 else choose.randrange(1 << 20, 6 << 20)


def create():
    global count
    count += 1
    name, content = f"n{node}-f{count}", choose.randbytes(size())
    say("begin", name)
    file = os.open(path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    if choose.random() < 0.3:
        # Data that fsync has acknowledged must survive any failure of the rest.
        half = len(content) // 2
        contents[name] = content[:half]
        write_all(file, content[:half], 1 << 17)
        os.fsync(file)
        say("prefix", name, half, hashlib.sha256(content[:half]).hexdigest())
        content, contents[name] = content[half:], content
        write_all(file, content, 1 << 17)
    else:
        contents[name] = content
        write_all(file, content, 300_000)
    os.close(file)
    done(name)


def append(name):
    old, more = contents[name], choose.randbytes(size())
    say("prefix", name, len(old), hashlib.sha256(old).hexdigest())
    file = os.open(path(name), os.O_WRONLY | os.O_APPEND)
    write_all(file, more, 1 << 18)
    contents[name] = old + more
    os.close(file)
    done(name)


def overwrite(name):
    contents[name] = choose.randbytes(size())
    say("begin", name)
    file = os.open(path(name), os.O_WRONLY | os.O_TRUNC)
    write_all(file, contents[name], 1 << 20)
    os.close(file)
    done(name)


def overwrite_inside(name):
    old = contents[name]
    start = choose.randrange(len(old))
    new = choose.randbytes(min(len(old) - start, 100_000))
    say("begin", name)
    file = os.open(path(name), os.O_WRONLY)
    os.lseek(file, start, os.SEEK_SET)
    write_all(file, new, 10_000)
    contents[name] = old[:start] + new + old[start + len(new) :]
    os.close(file)
    done(name)


def cut(name):
    length = choose.randrange(len(contents[name])) + 1
    say("begin", name)
    os.truncate(path(name), length)
    contents[name] = contents[name][:length]
    done(name)


def rename(name):
    global count
    if len(contents) > 3 and choose.random() < 0.5:
        to = choose.choice([other for other in contents if other != name])
    else:
        count += 1
        to = f"n{node}-f{count}"
    say("rename", name, to)
    os.rename(path(name), path(to))
    contents[to] = contents.pop(name)
    say("renamed", name, to)


def remove(name):
    say("remove", name)
    os.unlink(path(name))
    del contents[name]
    say("removed", name)


def add_line(number):
    file = os.open(path("together"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"node {node} line {number}\n".encode())
    os.close(file)
    say("line", number)


CHANGES = [append, append, overwrite, overwrite_inside, cut, rename, rename, remove]
try:
    for number in range(operations):
        add_line(number)
        if len(contents) < 3 or choose.random() < 0.5:
            create()
        else:
            choose.choice(CHANGES)(choose.choice(sorted(contents)))
except OSError as error:
    # The agent was killed: only acknowledged operations are promised.
    say("error", str(error).replace(" ", "_"))
    sys.exit(3)
say("end")
