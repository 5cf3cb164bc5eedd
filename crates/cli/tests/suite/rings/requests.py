"""Requests of one core: more pending ones than its ring has entries, and large ones; prints how they arrived."""

import fcntl
import json
import os
import subprocess
import sys
import time

MIB = 1 << 20
WAITERS = 24
FILES = 100
LARGE_MIB = 48


def agents(thing):
    """Process ids of all agents in a job's status."""
    if isinstance(thing, dict):
        if "resident_bytes" in thing:
            yield thing["pid"]
        thing = list(thing.values())
    if isinstance(thing, list):
        for part in thing:
            yield from agents(part)


def rings(agent):
    """Threads of an agent that serve rings."""
    threads = [f"/proc/{agent}/task/{thread}/comm" for thread in os.listdir(f"/proc/{agent}/task")]
    return sum(name_of(thread).startswith("tameike-ring-") for thread in threads)


def name_of(thread):
    """The name of a thread; empty if the thread has ended since it was listed."""
    try:
        with open(thread) as name:
            return name.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def state(child):
    return open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[0]


def wait_for_lock(lock):
    file = os.open(lock, os.O_RDWR)
    os.write(ready[1], b"r")
    fcntl.flock(file, fcntl.LOCK_EX)
    os.pwrite(file, b"x", os.fstat(file).st_size)
    os._exit(0)


def block(number):
    return number.to_bytes(4, "little") * (MIB // 4)


view = os.environ["TAMEIKE_SHARED"]
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
status = json.loads(subprocess.check_output(["tameike", "status", "--json"]))
print("rings", sum(rings(agent) for agent in agents(status)))

ready = os.pipe()
lock = f"{view}/lock"
held = os.open(lock, os.O_RDWR | os.O_CREAT)
fcntl.flock(held, fcntl.LOCK_EX)
children = []
for _ in range(WAITERS):
    child = os.fork()
    if child == 0:
        try:
            os.close(held)
            wait_for_lock(lock)
        finally:
            os._exit(1)
    children.append(child)
ready_count = 0
while ready_count < WAITERS:
    ready_count += len(os.read(ready[0], WAITERS))
while any(state(child) not in "SD" for child in children):
    time.sleep(0.01)
# All other requests continue, and the lock can be released.
for number in range(FILES):
    with open(f"{view}/file-{number}", "w") as file:
        file.write(str(number))
assert all(open(f"{view}/file-{number}").read() == str(number) for number in range(FILES))
fcntl.flock(held, fcntl.LOCK_UN)
assert all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
assert open(lock).read() == "x" * WAITERS

large = os.open(f"{view}/large", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
for number in range(LARGE_MIB):
    assert os.pwrite(large, block(number), number * MIB) == MIB
os.fsync(large)
assert all(os.pread(large, MIB, number * MIB) == block(number) for number in range(LARGE_MIB))
with open(f"{view}/large", "rb") as file:
    assert all(file.read(MIB) == block(number) for number in range(LARGE_MIB))
assert len(os.listdir(view)) == FILES + 2
assert subprocess.call(["ls", f"{view}/nothing"], stderr=subprocess.DEVNULL) != 0
sys.stdout.flush()
