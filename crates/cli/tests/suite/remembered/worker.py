"""Replaces, removes and reads files for some seconds, while another node does the same; then reads all existing files.

A replaced file stays open only as far as the mount of the shared directory supports it, and that of node 1 does not:
node 1 reads after all have finished.
"""

import collections, os, random, sys, time

seconds, me = float(sys.argv[1]), os.environ["TAMEIKE_NODE"]
os.chdir(os.environ["TAMEIKE_CACHE"])
random.seed(me)
done = collections.Counter()


def read(name):
    """A file consists of one repeated mark; a missing name is also correct."""
    try:
        with open(name, "rb") as file:
            found = file.read()
    except FileNotFoundError:
        return
    assert found, f"{name} is empty"
    assert found == found[:16] * (len(found) // 16), f"{name} has bytes of several files"
    done["read"] += 1


def replace(name):
    mark = b"%s%015d" % (me.encode(), done["replaced"])
    with open(f"new-{me}", "wb") as file:
        file.write(mark * (random.choice([100, 5_000, 300_000, 1_500_000]) // 16))
    os.rename(f"new-{me}", name)
    done["replaced"] += 1


def remove(name):
    try:
        os.unlink(name)
        done["removed"] += 1
    except FileNotFoundError:
        pass


end = time.monotonic() + seconds
while time.monotonic() < end:
    random.choices([replace, remove, read], [6, 2, 0 if me == "1" else 2])[0](f"file-{random.randrange(6)}")
if not seconds:
    for name in os.listdir():
        read(name)
assert done["replaced" if seconds else "read"], done
print("no file lost or mixed:", dict(done))
