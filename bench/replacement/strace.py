"""Records which bytes of which files programs read and write, with strace, as a trace that `tameike-sim replacement` replays.

A line of a trace is NODE FILE OFFSET LENGTH r|w, in the order in which the calls ended. Files are numbered; what lies outside of the
directory that is recorded is left out. Programs are of node 0, but those that were started by `tameike exec --node N`, which are of
that node; while traces are recorded that command is a stand-in which runs the program here. What is mapped counts as read from its
start to its end in steps of READ_AHEAD, as nobody sees which pages of it are touched.
"""

import os, re, subprocess, sys
from pathlib import Path

READ_AHEAD = 128 << 10
CALLS = ("open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,read,readv,pread64,preadv,write,writev,pwrite64,pwritev,mmap,sendfile,"
         "copy_file_range,ftruncate,truncate,rename,renameat,renameat2,unlink,unlinkat,clone,clone3,fork,vfork,execve")
STAND_IN = '#!/bin/sh\n# exec --node N -- COMMAND\nshift 4\nexec "$@"\n'

LINE = re.compile(r"^(\d+) +(.*)$")
ENDED = re.compile(r"^(\w+)\((.*)\) += (-?\d+)(?:<(.*?)>)?")
RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$")
DESCRIPTOR = re.compile(r"^(\d+)<(.*?)>")
PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
NODE = re.compile(r'"exec", "--node", "(\d+)"')


def record(directory, command, environment):
    """Runs a command; the lines of its trace on files below `directory`."""
    stand_ins = directory.parent / "stand-ins"
    stand_ins.mkdir(exist_ok=True)
    (stand_ins / "tameike").write_text(STAND_IN)
    (stand_ins / "tameike").chmod(0o755)
    log = directory.parent / "strace.log"
    environment = os.environ | {"PATH": f"{stand_ins}:{os.environ['PATH']}"} | environment
    words = ["strace", "-f", "--seccomp-bpf", "-y", "-s", "4096", "-e", f"trace={CALLS}", "-e", "signal=none", "-e", "abbrev=none",
             "-e", "write=none", "-e", "read=none", "-qq", "-o", log, *command]
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed ({done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    with open(log, errors="replace") as lines:
        trace = Reader(directory).read(lines)
    log.unlink()
    return trace


class Process:
    def __init__(self, node=0, places=None):
        # Offsets by descriptor. Threads share the table; children of a fork have the same offsets at first.
        self.node, self.places = node, {} if places is None else places


class Reader:
    """From lines of strace to lines of a trace."""

    def __init__(self, directory):
        self.root = str(directory) + "/"
        self.processes, self.unfinished, self.files, self.sizes, self.trace = {}, {}, {}, {}, []

    def read(self, lines):
        for line in lines:
            parts = LINE.match(line)
            if not parts:
                continue
            pid, text = int(parts[1]), parts[2]
            if text.endswith("<unfinished ...>"):
                self.unfinished[pid] = text[: -len("<unfinished ...>")]
                continue
            if resumed := RESUMED.match(text):
                text = self.unfinished.pop(pid, "") + resumed[2]
            ended = ENDED.match(text)
            if ended and int(ended[3]) >= 0:
                self.call(self.processes.setdefault(pid, Process()), ended[1], ended[2], int(ended[3]), ended[4])
        return self.trace

    def call(self, process, name, arguments, result, path):
        if name in ("clone", "clone3", "fork", "vfork"):
            shares = "CLONE_FILES" in arguments
            child = Process(process.node, process.places if shares else dict(process.places))
            # It may have made calls before the one that made it has ended.
            early = self.processes.get(result)
            if early is None:
                self.processes[result] = child
            else:
                early.node = max(early.node, child.node)
        elif name == "execve":
            if node := NODE.search(arguments):
                process.node = int(node[1])
        elif name in ("open", "openat", "creat"):
            process.places[result] = 0
            if "O_TRUNC" in arguments or name == "creat":
                self.forget(path)
        elif name in ("rename", "renameat", "renameat2"):
            old, new = [os.path.normpath(self.root + path) if not path.startswith("/") else path for path in PATH.findall(arguments)[:2]]
            if old in self.files:
                self.files[new], self.sizes[new] = self.files.pop(old), self.sizes.pop(old, 0)
        elif descriptor := DESCRIPTOR.match(arguments):
            self.on_descriptor(process, name, int(descriptor[1]), descriptor[2], arguments, result)
        elif name == "mmap" and (descriptor := re.search(r", (\d+)<(.*?)>, (0x[0-9a-f]+|0)$", arguments)):
            length = int(arguments.split(", ")[1], 0)
            self.mapped(process, descriptor[2], int(descriptor[3], 0), length)

    def on_descriptor(self, process, name, number, path, arguments, result):
        places, words = process.places, arguments.split(", ")
        if name == "close":
            places.pop(number, None)
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in arguments):
            places[result] = places.get(number, 0)
        elif name == "lseek":
            places[number] = result
        elif name in ("read", "readv"):
            self.on_bytes(process, path, places.get(number, 0), result, "r")
            places[number] = places.get(number, 0) + result
        elif name in ("write", "writev"):
            start = places.get(number, 0)
            self.on_bytes(process, path, start, result, "w")
            places[number] = start + result
        elif name in ("pread64", "preadv"):
            self.on_bytes(process, path, int(words[-1], 0), result, "r")
        elif name in ("pwrite64", "pwritev"):
            self.on_bytes(process, path, int(words[-1], 0), result, "w")
        elif name == "sendfile":
            source = DESCRIPTOR.match(words[1])
            self.copied(process, int(source[1]), source[2], number, path, result)
        elif name == "copy_file_range":
            target = DESCRIPTOR.match(words[2])
            self.copied(process, number, path, int(target[1]), target[2], result)
        elif name == "ftruncate":
            self.sizes[path] = int(words[-1], 0)

    def copied(self, process, source, source_path, target, target_path, count):
        for number, path, kind in [(source, source_path, "r"), (target, target_path, "w")]:
            start = process.places.get(number, 0)
            self.on_bytes(process, path, start, count, kind)
            process.places[number] = start + count

    def mapped(self, process, path, start, length):
        end = min(start + length, self.sizes.get(path, self.known_size(path)))
        for step in range(start, end, READ_AHEAD):
            self.on_bytes(process, path, step, min(READ_AHEAD, end - step), "r")

    def known_size(self, path):
        try:
            return os.stat(path).st_size
        except OSError:
            return 0

    def forget(self, path):
        self.sizes[path] = 0

    def on_bytes(self, process, path, start, count, kind):
        if count > 0 and path.startswith(self.root):
            path = path.removesuffix(" (deleted)")
            number = self.files.setdefault(path, len(self.files))
            self.sizes[path] = max(self.sizes.get(path, 0), start + count)
            self.trace.append(f"{process.node} {number} {start} {count} {kind}\n")
