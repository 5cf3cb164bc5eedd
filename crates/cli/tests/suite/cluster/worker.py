"""Writes and reads files of known content in the views of a job, times every call, and logs results.

  worker.py work ACCOUNT     until ACCOUNT/stop exists; prints a line for each complete file and each error
  worker.py check ACCOUNT    reads every file that was written completely, and compares
  worker.py check ACCOUNT DIRECTORY    the same for the cache view's files, in the directory behind it

ACCOUNT is a plain directory that all nodes share. Each node lists in its own file there the files whose write,
close and rename have all succeeded ("whole"), and those whose rename failed ("doubt"), which must be complete
under the old name or the new one.
"""

import errno
import os
import random
import sys
import time

CHUNK = 1 << 20
SIZE = 2 * CHUNK + 345_678


def content(name):
    return random.Random(name).randbytes(SIZE)


class Call(Exception):
    """A call that failed."""


def timed(what, function, *arguments):
    """Calls a function, and prints the duration if it was long or the call failed."""
    begin = time.monotonic()
    try:
        return function(*arguments)
    except OSError as error:
        seconds = time.monotonic() - begin
        print(f"failed {errno.errorcode[error.errno]} {what} {seconds:.1f}", flush=True)
        raise Call from error
    finally:
        seconds = time.monotonic() - begin
        if seconds > 1:
            print(f"slow {what} {seconds:.1f}", flush=True)


def write_whole(path, data):
    file = timed("open", os.open, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for start in range(0, len(data), CHUNK):
            timed("write", os.write, file, data[start : start + CHUNK])
    except Call:
        try:
            timed("close", os.close, file)
        except Call:
            pass
        raise
    timed("close", os.close, file)


def wrong_bytes(path, expected):
    """Compares a file with its expected content. An unreadable file is not wrong."""
    file = timed("open", os.open, path, os.O_RDONLY)
    try:
        position = 0
        while piece := timed("read", os.read, file, CHUNK):
            if piece != expected[position : position + len(piece)]:
                return f"other bytes in {position}+{len(piece)}"
            position += len(piece)
        return None if position == len(expected) else f"it ends at {position}"
    finally:
        os.close(file)


def note(account, kind, node, line):
    with open(f"{account}/{kind}-{node}", "a") as notes:
        notes.write(line + "\n")


def notes(account, kind):
    lines = []
    for name in sorted(os.listdir(account)):
        if name.startswith(kind + "-"):
            with open(f"{account}/{name}") as file:
                lines += file.read().splitlines()
    return lines


def path_of(name, behind=None):
    variable, rest = name.split("/", 1)
    return f"{behind or os.environ[variable]}/{rest}"


def work(account):
    node = os.environ["TAMEIKE_NODE"]
    choice = random.Random(node)
    count = 0
    while not os.path.exists(f"{account}/stop"):
        count += 1
        view = ["TAMEIKE_SHARED", "TAMEIKE_CACHE"][count % 2]
        name = f"{view}/file-{node}-{count}"
        path = path_of(name)
        try:
            write_whole(path + ".part", content(name))
            try:
                timed("rename", os.rename, path + ".part", path)
            except Call:
                note(account, "doubt", node, name)
                raise
            note(account, "whole", node, name)
            print("whole", flush=True)
        except Call:
            pass
        try:
            chosen = choice.choice(notes(account, "whole") or [name])
            if wrong := wrong_bytes(path_of(chosen), content(chosen)):
                print(f"WRONG {chosen}: {wrong}", flush=True)
        except Call:
            pass


def check(account, behind=None):
    wrongs = 0

    def judge(path, name):
        nonlocal wrongs
        if wrong := wrong_bytes(path, content(name)):
            wrongs += 1
            print(f"WRONG {name}: {wrong}", flush=True)

    def chosen(kind):
        return [name for name in notes(account, kind) if not behind or name.startswith("TAMEIKE_CACHE/")]

    whole, doubt = chosen("whole"), chosen("doubt")
    for name in whole:
        judge(path_of(name, behind), name)
    for name in doubt:
        path = path_of(name, behind)
        names = [path for path in (path, path + ".part") if os.path.exists(path)]
        if len(names) != 1:
            wrongs += 1
            print(f"WRONG {name}: renamed to {names}", flush=True)
        for path in names:
            judge(path, name)
    print(f"checked {len(whole)} whole, {len(doubt)} in doubt", flush=True)
    return wrongs


def main():
    task, account, *behind = sys.argv[1:]
    try:
        sys.exit({"work": work, "check": check}[task](account, *behind))
    except Call:
        sys.exit("a file could not be read")


main()
