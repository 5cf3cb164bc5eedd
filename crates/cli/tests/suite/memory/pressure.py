"""Writes of four threads wait for frames of a stopped node; the view serves a reader at the same time."""

import json
import os
import signal
import subprocess
import threading
import time

WRITERS = 4
SMALL = 32
FILE_MIB = 64
MIB = 1 << 20


def agents(thing):
    """Process ids of all agents in a job's status."""
    if isinstance(thing, dict):
        if "resident_bytes" in thing:
            yield thing["node"], thing["pid"]
        thing = list(thing.values())
    if isinstance(thing, list):
        for part in thing:
            yield from agents(part)


def small_files(view):
    """Files of one unit each, half of which this node stores, open for reads that bypass the page cache."""
    for number in range(SMALL):
        path = f"{view}/small-{number}"
        with open(path, "wb") as file:
            file.write(bytes([number]) * MIB)
        yield number, os.open(path, os.O_RDONLY | os.O_DIRECT)


def main(view):
    other = dict(agents(json.loads(subprocess.check_output(["tameike", "status", "--json"]))))[1]
    small = list(small_files(view))
    files = [os.open(f"{view}/large-{k}", os.O_WRONLY | os.O_CREAT) for k in range(WRITERS)]
    for k in range(WRITERS):
        os.pwrite(files[k], bytes([k]) * MIB, 0)
    done = [1] * WRITERS

    def write(k):
        for part in range(1, FILE_MIB):
            os.pwrite(files[k], bytes([k]) * MIB, part * MIB)
            done[k] = part + 1

    os.kill(other, signal.SIGSTOP)
    try:
        threads = [threading.Thread(target=write, args=(k,)) for k in range(WRITERS)]
        for thread in threads:
            thread.start()
        before = None
        while before != done:
            before = list(done)
            time.sleep(0.5)
        assert max(before) < FILE_MIB, f"no write waits: {before}"
        # Reads of data on this node need no other node.
        read = []

        def reader(number, descriptor):
            if os.pread(descriptor, MIB, 0) == bytes([number]) * MIB:
                read.append(number)

        readers = [threading.Thread(target=reader, args=each, daemon=True) for each in small]
        for thread in readers:
            thread.start()
        until = time.monotonic() + 4
        while len(read) < SMALL // 8 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(read) >= SMALL // 8, f"only {len(read)} files could be read"
        assert before == done, f"the writes did not wait: {before} {done}"
        print("read while", before, "of", FILE_MIB, "were written")
    finally:
        os.kill(other, signal.SIGCONT)
    for thread in threads + readers:
        thread.join()
    for k, file in enumerate(files):
        os.close(file)
        with open(f"{view}/large-{k}", "rb") as back:
            assert all(back.read(MIB) == bytes([k]) * MIB for _ in range(FILE_MIB)), "other bytes"
        os.unlink(f"{view}/large-{k}")
    for number, descriptor in small:
        os.close(descriptor)
        os.unlink(f"{view}/small-{number}")


for name in ("TAMEIKE_SHARED", "TAMEIKE_CACHE"):
    main(os.environ[name])
