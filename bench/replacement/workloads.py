"""Programs whose reads and writes are recorded, each on several nodes: each makes its input, then is the command of a trace."""

import os, random, shlex, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MONTAGE = ROOT / "examples/workflow"
KIB, MIB = 1 << 10, 1 << 20


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", **options)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed ({done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def on(node, command):
    return f"tameike exec --node {node} -- {command}"


def fill(path, size):
    with open(path, "wb") as file:
        for start in range(0, size, MIB):
            file.write(os.urandom(min(MIB, size - start)))


def shell(text):
    return ["sh", "-ec", text], {}


def montage(place):
    """The mosaic of `make run`, of 100 tiles, on four nodes."""
    (place / "shared").mkdir()
    run(MONTAGE / "prepare.py", place / "shared", "--tiles", "100")
    job = {"TAMEIKE_JOB": "trace", "TAMEIKE_NODES": "4", "TAMEIKE_NODE": "0", "PYTHONDONTWRITEBYTECODE": "1",
           "TAMEIKE_CACHE": str(place / "shared"), "TAMEIKE_SHARED": str(place / "between")}
    (place / "between").mkdir()
    return [sys.executable, MONTAGE / "mosaic.py"], job


READER = """
import random, sys
directory, files, node, nodes, epochs = sys.argv[1], *map(int, sys.argv[2:])
for epoch in range(epochs):
    order = random.Random(epoch).sample(range(files), files)
    for number in order[node::nodes]:
        with open(f"{directory}/{number}", "rb", buffering=0) as file: file.read()
"""


def epochs(place):
    """Four nodes read 600 files of 100 KiB five times, each time in another order, a quarter each, as training reads a data set."""
    files = 600
    for number in range(files):
        fill(place / str(number), 100 * KIB)
    (place.parent / "reader.py").write_text(READER)
    readers = [on(node, f"{sys.executable} {place.parent}/reader.py {place} {files} {node} 4 5") for node in range(4)]
    return shell(" & ".join(readers) + " & wait")


def ior(place):
    """Six nodes write a file of 48 MiB each, then read the next one's, twice over, as IOR does with -F -C -e."""
    phases = []
    for repetition in range(2):
        for kind in ["write", "read"]:
            programs = []
            for node in range(6):
                own, other = f"{place}/file-{repetition}-{node}", f"{place}/file-{repetition}-{(node + 1) % 6}"
                words = f"if=/dev/zero of={own} count=192 conv=fsync" if kind == "write" else f"if={other} of=/dev/null"
                programs.append(on(node, f"dd bs=256k status=none {words}"))
            phases.append(" & ".join(programs) + " & wait")
    return shell("\n".join(phases))


def scan(place):
    """Four nodes look up records of a table of 24 MiB again and again, while tar on two of them reads 160 MiB of files once."""
    fill(place / "table", 24 * MIB)
    (place / "tree").mkdir()
    sizes = random.Random(47)
    left, number = 160 * MIB, 0
    while left > 0:
        size = min(left, int(sizes.lognormvariate(12.5, 1.6)) + 1)
        fill(place / "tree" / str(number), size)
        left, number = left - size, number + 1
    lookups = """
import os, random, sys, time
chance, file = random.Random(int(sys.argv[2])), os.open(sys.argv[1], os.O_RDONLY)
for turn in range(1500):
    os.pread(file, 8192, min(int(chance.paretovariate(0.7) * 65536), (24 << 20) - 8192)); time.sleep(0.002)
"""
    (place.parent / "lookups.py").write_text(lookups)
    programs = [on(node, f"{sys.executable} {place.parent}/lookups.py {place}/table {node}") for node in range(4)]
    programs += [on(node, f"tar -C {place} -cf {place.parent}/archive-{node}.tar tree") for node in [0, 1]]
    return shell(" & ".join(programs) + " & wait")


def git(place):
    """Git on a clone of this repository: log with changes, search, switching between commits, packing; nodes take turns."""
    run("git", "clone", "--quiet", "--no-local", ROOT, place / "clone")
    here = f"git -C {place}/clone -c gc.auto=0"
    steps = [f"{here} log -p --stat", f"{here} grep -c frame", f"{here} checkout -q HEAD~40", f"{here} status", f"{here} checkout -q -",
             f"{here} log --oneline -S generation", f"{here} repack -adq", f"{here} fsck", f"{here} grep -c unit", f"{here} blame ARCHITECTURE.md"]
    return shell("\n".join(on(turn % 4, step) + " >/dev/null" for turn, step in enumerate(steps)))


def sqlite(place):
    """A table of 40 MiB: made on one node, looked up by index on all four, summed up whole on one, looked up again."""
    table = place / "table.db"
    make = ("create table t(id integer primary key, word text, body blob); "
            "with recursive n(i) as (select 1 union all select i+1 from n where i<20000) "
            "insert into t select i, printf('%08x', i*2654435761 % 4294967296), randomblob(1900) from n; create index w on t(word);")
    chance = random.Random(3)
    def lookups(count):
        ids = [min(int(chance.paretovariate(0.5)), 20000) for _ in range(count)]
        return " ".join(f"select length(body) from t where word=printf('%08x',{number}*2654435761 % 4294967296);" for number in ids)
    sql = {"make": make, "sum": "select sum(length(hex(body))) from t;"} | {f"look{part}": lookups(400) for part in range(8)}
    for name, text in sql.items():
        (place.parent / f"{name}.sql").write_text(text)
    ask = lambda node, name: on(node, f"sqlite3 {table} '.read {place.parent}/{name}.sql'") + " >/dev/null"
    lines = [ask(0, "make"), " & ".join(ask(node, f"look{node}") for node in range(4)) + " & wait"]
    lines += [" & ".join([ask(1, "sum")] + [ask(node, f"look{4 + node}") for node in range(4)]) + " & wait"]
    return shell("\n".join(lines))


def compile(place):
    """libiberty of Debian's binutils-source, configured on one node and compiled on four."""
    [source] = Path("/usr/src/binutils").glob("binutils-*.tar.xz")
    parts = ["libiberty", "include", "config", "config-ml.in", "config.guess", "config.sub", "install-sh", "move-if-change", "mkinstalldirs"]
    run("tar", "-C", place, "--strip-components=1", "-xf", source, "--wildcards", *(f"binutils-*/{part}" for part in parts))
    compiler = place.parent / "compiler"
    # Each object on a node by its name.
    compiler.write_text('#!/bin/sh\nnode=$(( $(printf %s "$*" | cksum | cut -d" " -f1) % 4 ))\nexec tameike exec --node $node -- gcc "$@"\n')
    compiler.chmod(0o755)
    build = place / "build"
    build.mkdir()
    return shell(f"cd {build} && CC={compiler} ../libiberty/configure -q >/dev/null 2>&1 && make -j3 >/dev/null 2>&1 && make clean >/dev/null && make -j3 >/dev/null 2>&1")


WORKLOADS = {make.__name__: make for make in [montage, epochs, ior, scan, git, sqlite, compile]}
