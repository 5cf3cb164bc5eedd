#!/usr/bin/env python3
"""Many small files of many processes, as files of a file system and kept in a few: processes make, write and read files of their own on a
server (slow_server.py and peers.py say what it is and what it needs).

    bench/aggregate.py DIRECTORY NAME [--base glusterfs|gfarm|moosefs|xfs|tmpfs] [--processes 1,8,32] [--files 128] [--sizes 0,1,16]

DIRECTORY is where the image of the server's disk lies. Writes RUNS/NAME. The ways:

    direct    each process makes its files on the mount, in a directory of its own
    library   the same in one container, by libtameike.so
    only      the direct program in `tameike run --aggregate-only`
    view      the direct program in the cache view of `tameike run --aggregate`
    sionlib   SIONlib, where its sionconfig is in PATH: the first files of all processes in one of its containers, the second ones in another
    parts     no files, but their bytes in 8 plain files, by plain calls: what no aggregation into 8 files could be faster than
    tar, zip, sqlite, hdf5   one process puts the same files into one file of that format

Besides, one process writes and reads one large file. Processes are ranks of Open MPI on one client. A phase is from a moment that all of them
begin at until the last one has ended: all of it with opening and ending the container, and, for what is written, until the disk of the
server was synced, too, for all ways alike; and "files alone", from when all have the container open, or a directory of their own, until all
files are closed. Files of 0 MiB are only made and closed. Before a read the
client is mounted anew and all kernels on the way have forgotten what they had. A process reads the files of the next one in their order, and
after that every process its share of all, in an order of chance. Every byte that is read is compared. What one file system has for all
processes of a size is at most --most MiB, with fewer files where that is too little.
"""

import json, os, re, shlex, shutil, statistics, subprocess, time
from pathlib import Path

import peers, picture, slow_server
from slow_server import MIB, ROOT, TARGET, output

CHILDREN = Path(__file__).resolve().parent
POOL = Path("/dev/shm/pool")
POOL_MIB = 32
SONAME = "libtameike.so.0"
PACKED = ["tar", "zip", "sqlite", "hdf5"]
METHODS = ["direct", "library", "only", "view", "parts", *PACKED, *(["sionlib"] if shutil.which("sionconfig") else [])]
# Options of `tameike run` that a way needs.
NEEDED = {"only": "--aggregate-only", "view": "--aggregate"}
LARGE = "one large file"
PHASES = {"write": "written", "read": "read", "random": "read in random order"}
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader", "--mca", "oob_tcp_if_include", "lo", "-np"]


class Failure(Exception):
    """Of a way: the report tells of it."""


def told(command, **options):
    """What a program says at its end, as JSON."""
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise Failure(f"{shlex.join(command)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


class Worker:
    """The programs, in memory, where nobody has them forgotten."""

    def __init__(self, place):
        self.place = place / "worker"
        self.place.mkdir()
        shutil.copy(TARGET / "libtameike_capi.so", self.place / SONAME)
        sionlib = lambda what: output(["sionconfig", what, "--mpi", "--64"]).split() if "sionlib" in METHODS else []
        output(["mpicc", "-O2", "-Wall", "-I", ROOT / "crates/capi/include", *sionlib("--cflags"), CHILDREN / "aggregate.c", "-o",
                self.place / "aggregate", self.place / SONAME, f"-Wl,-rpath,{self.place}", *sionlib("--libs")])
        shutil.copy(CHILDREN / "packed.py", self.place)
        with open(POOL, "wb") as file:
            for _ in range(POOL_MIB):
                file.write(os.urandom(MIB))

    def ranks(self, count, how, phase, directory, files, size, seed, spool, *more):
        return [*MPIRUN, count, self.place / "aggregate", how, phase, directory, count, files, size, seed, POOL, spool, *more]

    def packed(self, how, phase, path, count, size, seed, spool):
        # Debian's, for which Debian's h5py is.
        return ["/usr/bin/python3", self.place / "packed.py", how, phase, path, count, size, seed, POOL, spool]


class Series:
    """All ways for some processes and a size, on `base`."""

    def __init__(self, job, base, worker, processes, mib, options):
        self.job, self.base, self.worker, self.processes, self.mib = job, base, worker, processes, mib
        self.files = min(options.files, options.most // (processes * mib)) if mib else options.files
        self.size = mib * MIB
        self.large_mib = max(min(self.files * processes * mib, options.large), 1)

    def measured(self, way, repetition):
        """Seconds of each phase."""
        seed = repetition * self.processes * self.files
        place = self.base.mount / f"{way.replace(' ', '-')}-{self.processes}-{self.mib}-{repetition}"
        phases = {}
        try:
            for phase in ["write", "read", "random"] if way != LARGE else ["write", "read"]:
                if phase == "write" and way in ["direct", "only", "view"]:
                    self.at_client("mkdir", place)
                phases[phase] = self.phase(way, phase, place, seed)
                self.base.renew()
        except Failure as failure:
            print(failure, flush=True)
            phases["failed"] = str(failure)
        self.at_client("rm", "-rf", place)
        os.sync()
        return phases

    def at_client(self, *words):
        return output([*self.base.user(0), *words])

    def phase(self, way, phase, place, seed):
        spool = self.base.spool
        if way in PACKED:
            return told([*self.base.user(0), *self.worker.packed(way, phase, place, self.processes * self.files, self.size, seed, spool)])
        if way == LARGE:
            if phase == "write":
                self.at_client("mkdir", place)
            return told([*self.base.user(0), *self.worker.ranks(1, "direct", phase, place, 1, self.large_mib * MIB, seed, spool)])
        if way in NEEDED:
            return self.in_job(way, phase, place, seed)
        return told([*self.base.user(0), *self.worker.ranks(self.processes, way, phase, place, self.files, self.size, seed, spool)])

    def in_job(self, way, phase, place, seed):
        """The direct program in a job. What it has written is safe when the job has ended."""
        options = ["--aggregate-only", place] if way == "only" else ["--device", "ram", "--shared", place, "--aggregate"]
        run = [TARGET / "tameike", "run", *options]
        directory = place if way == "only" else '"$TAMEIKE_CACHE"'
        ranks = self.worker.ranks(self.processes, "direct", phase, "DIRECTORY", self.files, self.size, seed, self.base.spool)
        line = shlex.join(str(word) for word in ranks).replace("DIRECTORY", str(directory))
        found = told([*self.base.user(0), *run, "--", "sh", "-c", f"exec {line}"], env=self.job.environment)
        if phase == "write":
            output(["sync", "--file-system", self.base.spool])
            found["ended"] += time.monotonic() - found["finished"]
        return found


def seconds(runs, way, phase, parts=("opened", "files", "ended")):
    found = [sum(run[way][phase][part] for part in parts) for run in runs if phase in run.get(way, {})]
    return found if len(found) == len(runs) else None


def balanced(ways, repetition):
    """An order in which, over the repetitions, each way comes after each other one alike: the design of E. J. Williams (1949). What one leaves to
    be done is not always the same one's loss."""
    count = len(ways)
    steps = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    if count % 2 and repetition % 2:
        steps.reverse()
    return [ways[(step + repetition) % count] for step in steps]


def times(own, other):
    """How many times as fast: the median of what it was in the same repetition."""
    return f"{statistics.median(of / one for one, of in zip(own, other)):.2f}" if own and other else "-"


def row(series, way, phase):
    runs, count = series["runs"], series["processes"] * series["files"]
    own, large = seconds(runs, way, phase), seconds(runs, LARGE, "write" if phase == "write" else "read")
    cells = [str(series["processes"]), str(series["mib"]), str(series["files"]), way]
    if own is None:
        return f"| {' | '.join(cells)} | failed |" + " - |" * 7
    median = statistics.median(own)
    cells += [f"{median:.3f}", f"{count / median:,.0f}", f"{count * series['mib'] / median:,.0f}" if series["mib"] else "-"]
    cells += [times(own, seconds(runs, "direct", phase))]
    # Of as many bytes.
    share = count * series["mib"] / series["large_mib"]
    cells += [times(own, [one * share for one in large]) if large and series["mib"] else "-"]
    files = seconds(runs, way, phase, ["files"])
    cells += [f"{statistics.median(files):.3f}", f"{count / statistics.median(files):,.0f}", times(files, seconds(runs, "direct", phase, ["files"]))]
    return f"| {' | '.join(cells)} |"


def report(found, skipped):
    columns = ["processes", "MiB", "files each", "way", "all, s", "files/s", "MiB/s", "x direct", "x one large file", "files alone, s", "files/s", "x direct"]
    lines = ["\"x direct\", \"x one large file\": how many times as fast as the direct way, and as one process with one large file of as many bytes."]
    for phase, title in PHASES.items():
        lines += ["", f"## {title.capitalize()}", "", f"| {' | '.join(columns)} |", "|---:|---:|---:|---|" + "---:|" * (len(columns) - 4)]
        lines += [row(series, way, phase) for series in found for way in series["runs"][0] if way != LARGE]
    lines += ["", "## One large file", "", "| processes | MiB | MiB of the large file | written, MiB/s | read, MiB/s |", "|---:|---:|---:|---:|---:|"]
    for series in found:
        if rates := [[series["large_mib"] / one for one in own] for phase in ["write", "read"] if (own := seconds(series["runs"], LARGE, phase))]:
            lines.append(f"| {series['processes']} | {series['mib']} | {series['large_mib']} | "
                         f"{' | '.join(f'{statistics.median(rate):.0f}' for rate in rates)} |")
    lines += ["", *[f"- {way}: left out, as this `tameike run` has no {NEEDED[way]}." for way in skipped]]
    return "\n".join(lines)


def picture_of(found):
    groups = {}
    for series in found:
        for phase, title in PHASES.items():
            rates = {way: series["processes"] * series["files"] / statistics.median(own)
                     for way in series["runs"][0] if way != LARGE and (own := seconds(series["runs"], way, phase))}
            if rates:
                groups[f"{series['processes']} processes, {series['mib']} MiB, {title}"] = rates
    return picture.bars("Files a second, higher is better", "1/s", groups)


def measure(options):
    numbers = lambda text: [int(number) for number in text.split(",")]
    known = re.findall(r"^ +(--[a-z-]+)", output([TARGET / "tameike", "run", "--help"]), re.MULTILINE)
    methods = options.methods.split(",")
    if wrong := set(methods) - set(METHODS):
        raise SystemExit(f"no such way: {', '.join(sorted(wrong))}")
    if any(processes * mib > options.most for processes in numbers(options.processes) for mib in numbers(options.sizes)):
        raise SystemExit(f"--most {options.most}: not every process could write one file of each size")
    skipped = [way for way in methods if way in NEEDED and NEEDED[way] not in known]
    ways = [way for way in methods if way not in skipped]

    def small(job, base, out):
        worker, found = Worker(job.place), []
        for mib in numbers(options.sizes):
            for processes in numbers(options.processes):
                series, runs = Series(job, base, worker, processes, mib, options), []
                turns = [*ways, *([LARGE] if mib else [])]
                for repetition in range(options.repetitions):
                    measured = {way: series.measured(way, repetition) for way in balanced(turns, repetition)}
                    run = {way: measured[way] for way in turns}
                    runs.append(run)
                    for way, phases in run.items():
                        print(f"{processes} x {series.files} x {mib} MiB, {way}: " + ", ".join(
                            f"{phase} {one['opened']:.3f} {one['files']:.3f} {one['ended']:.3f}" for phase, one in phases.items() if phase != "failed"), flush=True)
                found.append({"processes": processes, "mib": mib, "files": series.files, "large_mib": series.large_mib, "runs": runs})
        (out / "rates.svg").write_text(picture_of(found))
        return {"series": found, "left_out": skipped}, report(found, skipped)

    most = max(options.most, 1024)
    slow_server.run(options, most * 4 + 4096, "Many small files of many processes", small)


if __name__ == "__main__":
    slow_server.BASES.update(peers.BASES)
    parser = slow_server.options(__doc__, clients=1, base="glusterfs", server_memory=1024)
    parser.add_argument("--processes", default="1,8,32", help="how many write and read at the same time")
    parser.add_argument("--files", type=int, default=128, help="of each process")
    parser.add_argument("--sizes", default="0,1,16", help="MiB of each file")
    parser.add_argument("--most", type=int, default=8192, help="MiB of all files of a size together")
    parser.add_argument("--large", type=int, default=1024, help="MiB of the one large file, at most")
    parser.add_argument("--methods", default=",".join(METHODS), help="the ways, see above")
    asked = parser.parse_args()
    if asked.base in ["xfs", "tmpfs"]:
        # The processes themselves would share it.
        asked.server_memory = 0
    measure(asked)
