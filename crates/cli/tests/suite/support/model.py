"""Random operations on one file against a model: model.py FILE SEED TURN.

Each turn continues with the content that the previous turn, possibly on another node, has closed.
"""

import mmap
import os
import random
import sys

LARGEST = 3 * 1024 * 1024 + 777
UNIT = 1024 * 1024
STEPS = 150
OPERATIONS = ["write", "write", "write", "append", "read", "read", "cut", "grow", "map", "sync", "reopen", "stat"]

name, seed, turn = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed * 1000 + turn)
model = bytearray(open(name + ".model", "rb").read()) if turn else bytearray()
done = []


def check(got, offset, end):
    want = model[offset:end]
    if got != want:
        at = next((i for i in range(min(len(got), len(want))) if got[i] != want[i]), min(len(got), len(want)))
        sys.exit(f"seed {seed}, turn {turn}: byte {offset + at} differs, {len(got)} bytes instead of {len(want)}; after {done[-12:]}")


def put(offset, data):
    if offset > len(model):
        model.extend(bytes(offset - len(model)))
    model[offset:offset + len(data)] = data


file = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
second = os.open(name, os.O_RDWR)
for _ in range(STEPS):
    size = rng.choice([1, 100, 3000, 4096, 5000, 70000, UNIT])
    offset = rng.choice([0, 1, 4000, 4096, UNIT - 10, rng.randrange(LARGEST)])
    operation = rng.choice(OPERATIONS)
    done.append((operation, offset, size, len(model)))
    if operation == "write":
        data = rng.randbytes(size)
        assert os.pwrite(rng.choice([file, second]), data, offset) == size
        put(offset, data)
    elif operation == "append":
        data = rng.randbytes(min(size, 5000))
        end = os.open(name, os.O_WRONLY | os.O_APPEND)
        assert os.write(end, data) == len(data)
        os.close(end)
        put(len(model), data)
    elif operation == "read":
        check(os.pread(rng.choice([file, second]), size, offset), offset, offset + size)
    elif operation == "cut":
        to = rng.randrange(len(model) + 1)
        os.ftruncate(file, to)
        del model[to:]
    elif operation == "grow":
        to = min(len(model) + size, 2 * LARGEST)
        if to > len(model):
            os.ftruncate(second, to)
            put(to, b"")
    elif operation == "map" and model:
        with mmap.mmap(file, len(model)) as mapped:
            check(mapped[:], 0, len(model))
            at = min(offset, len(model) - 1)
            data = rng.randbytes(min(size, len(model) - at))
            mapped[at:at + len(data)] = data
            put(at, data)
    elif operation == "sync":
        os.fsync(file)
    elif operation == "reopen":
        os.close(file)
        file = os.open(name, os.O_RDWR)
    elif operation == "stat":
        sizes = os.fstat(second).st_size, os.stat(name).st_size
        assert sizes == (len(model), len(model)), f"seed {seed}, turn {turn}: sizes {sizes}; after {done[-12:]}"
os.close(file)
os.close(second)
with open(name + ".model", "wb") as kept:
    kept.write(model)
with open(name, "rb") as whole:
    check(whole.read(), 0, None)
