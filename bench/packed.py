#!/usr/bin/env python3
"""One process that puts files into one file of another format, or reads them: a child of aggregate.py.

    packed.py tar|zip|sqlite|hdf5 write|read|random PATH COUNT SIZE SEED POOL SPOOL

As aggregate.c, by one process, as these formats have one writer, and by Python's own modules, h5py for HDF5. Nothing is made smaller.
"""

import ctypes, json, os, random, sys, time
from contextlib import closing
from io import BytesIO

CALL = 4 << 20


class Tar:
    def write(self, path, entries):
        with tarfile.open(path, "w") as archive:
            for name, content in entries:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, BytesIO(content))

    def read(self, path, names):
        with tarfile.open(path) as archive:
            for name in names:
                yield archive.extractfile(name).read()


class Zip:
    def write(self, path, entries):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, content in entries:
                archive.writestr(name, content)

    def read(self, path, names):
        with zipfile.ZipFile(path) as archive:
            for name in names:
                yield archive.read(name)


class Sqlite:
    def write(self, path, entries):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("create table files (name text primary key, content blob)")
            database.executemany("insert into files values (?, ?)", entries)

    def read(self, path, names):
        with closing(sqlite3.connect(path)) as database:
            for name in names:
                [content] = database.execute("select content from files where name = ?", [name]).fetchone()
                yield content


class Hdf5:
    def write(self, path, entries):
        with h5py.File(path, "w") as file:
            for name, content in entries:
                file.create_dataset(name, data=numpy.frombuffer(content, "uint8"))

    def read(self, path, names):
        with h5py.File(path, "r") as file:
            for name in names:
                yield file[name][:].tobytes()


FORMATS = {"tar": Tar, "zip": Zip, "sqlite": Sqlite, "hdf5": Hdf5}


def main():
    kind, phase, path, count, size, seed, pool, spool = sys.argv[1:]
    count, size, seed = int(count), int(size), int(seed)
    with open(pool, "rb") as file:
        pool = file.read()
    # As in aggregate.c.
    piece = lambda number, at: ((seed + number) * 8191 + at // CALL * 1000003) % (len(pool) - CALL)
    content = lambda number: b"".join(pool[(start := piece(number, at)) : start + min(CALL, size - at)] for at in range(0, size, CALL))
    order = list(range(count))
    if phase == "random":
        random.Random(seed).shuffle(order)
    format = FORMATS[kind]()
    begun = time.monotonic()
    if phase == "write":
        format.write(path, ((str(number), content(number)) for number in order))
    else:
        for number, found in zip(order, format.read(path, (str(number) for number in order)), strict=True):
            assert found == content(number), f"file {number} is not what was written"
    closed = time.monotonic()
    if phase == "write":
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
        sync_all(spool)
    finished = time.monotonic()
    print(json.dumps({"opened": 0, "files": closed - begun, "ended": finished - closed, "finished": finished}))


def sync_all(spool):
    """syncfs(2), which Python has not."""
    descriptor = os.open(spool, os.O_RDONLY)
    assert ctypes.CDLL(None).syncfs(descriptor) == 0
    os.close(descriptor)


if __name__ == "__main__":
    match sys.argv[1]:
        case "tar": import tarfile
        case "zip": import zipfile
        case "sqlite": import sqlite3
        case "hdf5": import h5py, numpy
    main()
