"""Reads a directory with opendir, readdir, telldir, seekdir and rewinddir while it changes."""

import ctypes
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)


class Dirent(ctypes.Structure):
    _fields_ = [
        ("inode", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_uint16),
        ("kind", ctypes.c_uint8),
        ("name", ctypes.c_char * 256),
    ]


libc.opendir.restype = ctypes.c_void_p
libc.opendir.argtypes = [ctypes.c_char_p]
libc.readdir.restype = ctypes.POINTER(Dirent)
libc.readdir.argtypes = libc.rewinddir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.telldir.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


class Directory:
    def __init__(self, path):
        self.stream = libc.opendir(path.encode())
        assert self.stream, os.strerror(ctypes.get_errno())

    def read(self, most=None):
        """The next names."""
        names = []
        while most is None or len(names) < most:
            ctypes.set_errno(0)
            entry = libc.readdir(self.stream)
            if not entry:
                assert ctypes.get_errno() == 0, os.strerror(ctypes.get_errno())
                break
            names.append(entry.contents.name.decode())
        return names

    def tell(self):
        return libc.telldir(self.stream)

    def seek(self, position):
        libc.seekdir(self.stream, position)

    def rewind(self):
        libc.rewinddir(self.stream)

    def close(self):
        libc.closedir(self.stream)


def name(number):
    return f"{number:05}-" + "x" * (number % 40)


def once(names, expected, doing):
    assert len(names) == len(set(names)), f"{doing}: returned twice: {sorted(n for n in names if names.count(n) > 1)[:9]}"
    assert set(names) >= set(expected), f"{doing}: never returned: {sorted(set(expected) - set(names))[:9]}"


def alone(parent, count):
    """One node and one directory that is small enough for all combinations."""
    count = int(count)
    path = f"{parent}/directory"
    os.mkdir(path)
    for number in range(count):
        os.close(os.open(f"{path}/{name(number)}", os.O_CREAT | os.O_WRONLY))
    whole = [".", ".."] + [name(number) for number in range(count)]

    # Unchanged: completely, twice, and from any position.
    directory = Directory(path)
    positions, names = [], []
    while True:
        positions.append(directory.tell())
        part = directory.read(1)
        if not part:
            break
        names += part
    assert sorted(names) == sorted(whole), "not what is there"
    for at in (0, 1, 2, count // 7, count // 2, count - 1, count + 1):
        directory.seek(positions[at])
        assert directory.read(1000) == names[at : at + 1000], f"from position {at}"
    directory.rewind()
    assert directory.read() == names, "rewound"

    # While other processes change entries before and behind the reader, each entry that stays is returned once.
    directory.rewind()
    seen, number, kept = [], 0, [n for n in range(count) if n % 3]
    while True:
        part = directory.read(97)
        if not part:
            break
        seen += part
        for _ in range(40):
            if number < count:
                os.unlink(f"{path}/{name(number)}")
                number += 3
        os.close(os.open(f"{path}/new-{len(seen)}", os.O_CREAT | os.O_WRONLY))
    once(seen, [".", ".."] + [name(n) for n in kept], "while it changed")

    # Other processes do not disturb a reader in the middle, and rewinddir shows the changes.
    directory.rewind()
    others = [Directory(path) for _ in range(50)]
    first = directory.read(count // 2)
    for other in others:
        once(other.read(), [name(n) for n in kept], "another reader")
        other.close()
    os.rename(f"{path}/{first[5]}", f"{path}/renamed")
    once(first + directory.read(), [name(n) for n in kept if name(n) != first[5]], "beside others")
    directory.rewind()
    names = directory.read()
    assert "renamed" in names and first[5] not in names, "rewound after a change"
    assert sorted(names) == sorted([".", ".."] + os.listdir(path)), "another than a new reader"
    directory.close()
    for left in os.listdir(path):
        os.unlink(f"{path}/{left}")
    os.rmdir(path)


def fill(path, first, end):
    for number in range(int(first), int(end)):
        os.close(os.open(f"{path}/{name(number)}", os.O_CREAT | os.O_WRONLY))


def change(path, who, ended):
    """Creates, renames and removes temporary names until a file reports the end of the reader. Another file reports the start."""
    changes = 0
    while not os.path.exists(ended):
        for number in range(50):
            os.close(os.open(f"{path}/passing-{who}-{number}", os.O_CREAT | os.O_WRONLY))
        for number in range(0, 50, 2):
            os.rename(f"{path}/passing-{who}-{number}", f"{path}/passing-{who}-moved-{changes}-{number}")
        for number in range(50):
            passing = f"moved-{changes}-{number}" if number % 2 == 0 else f"{number}"
            os.unlink(f"{path}/passing-{who}-{passing}")
        changes += 1
        open(f"{ended}-{who}", "w").close()
    assert changes > 0


def stays(names):
    return [n for n in names if not n.startswith("passing-")]


def watch(path, count, ended):
    """Reads a directory that other processes change: completely, from positions in it, and completely again."""
    count = int(count)
    expected = {".", ".."} | {name(number) for number in range(count)}
    directory = Directory(path)
    positions, names = [], []
    while True:
        positions.append((directory.tell(), len(names)))
        part = directory.read(1009)
        if not part:
            break
        names += stays(part)
    assert len(names) == len(set(names)), "returned twice"
    assert set(names) == expected, sorted(expected ^ set(names))[:9]
    for position, at in positions[:: max(1, len(positions) // 20)]:
        directory.seek(position)
        again = stays(directory.read(3000))
        assert again == names[at : at + len(again)] and len(again) >= min(2000, len(names) - at) // 2, position
    directory.rewind()
    assert stays(directory.read()) == names, "rewound"
    directory.close()
    open(ended, "w").close()


globals()[sys.argv[1]](*sys.argv[2:])
