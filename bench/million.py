#!/usr/bin/env python3
"""A container of a million files of 1 KiB: how fast it is made, opened and listed, what a read of one file by chance asks of the file system, and
how much memory readers take.

    bench/million.py DIRECTORY NAME [--files 1000000] [--bytes 1024] [--processes 4]

DIRECTORY is where the container lies while it is measured. Writes RUNS/NAME. Makers are ranks of Open MPI, readers one process each. "cold":
the kernel has forgotten what it had of the container; "warm": it was read just before. Every byte that is read is compared.

Needs root to have the kernel forget, `scripts/install-deps.sh bench`, and `cargo build --release -p tameike -p tameike-capi`.
"""

import argparse, json, os, platform, re, statistics, subprocess, tempfile, time
from pathlib import Path

import slow_server
from aggregate import POOL, POOL_MIB, Worker, told
from slow_server import MIB, ROOT, RUNS, TARGET, output

READS = 10_000


def forget():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


class Container:
    def __init__(self, place, options):
        self.path, self.worker, self.options = place / "container", Worker(place), options

    def make(self):
        return told(self.worker.ranks(self.options.processes, "library", "write", self.path, self.options.files // self.options.processes,
                                      self.options.bytes, 0, self.worker.place))

    def reader(self, order, count):
        """Reads `count` files by chance."""
        each = self.options.files // self.options.processes
        return [self.worker.place / "aggregate", "library", "random", self.path, self.options.processes, each, self.options.bytes, 0, POOL,
                self.worker.place, count, order]

    def reads_of(self, order):
        """Calls of one process that opens the container and reads one file: how many reads of its files, and of how many bytes."""
        with tempfile.NamedTemporaryFile("r") as log:
            output(["strace", "-f", "-y", "-e", "trace=pread64,preadv,read,openat,openat2,getdents64", "-o", log.name, *self.reader(order, 1)])
            lines = [line for line in log if f"<{self.path}" in line]
        reads = [(match[1], int(match[2])) for line in lines if (match := re.search(r"pread64\(\d+<[^>]*/([^/>]+)>.* = (\d+)$", line))]
        data = [size for name, size in reads if name.endswith(".data")]
        return {"index_reads": sum(name == "index" for name, _ in reads), "index_bytes": sum(size for name, size in reads if name == "index"),
                "data_reads": len(data), "data_bytes": sum(data), "last_data_bytes": data[-1] if data else 0, "all_reads": len(reads),
                "all_bytes": sum(size for _, size in reads), "opens": sum("openat" in line for line in lines)}

    def listed(self):
        """Names a second of `tameike agg ls`, and the most memory that it had."""
        began = time.monotonic()
        with subprocess.Popen([TARGET / "tameike", "agg", "ls", "-r", self.path], stdout=subprocess.PIPE) as process:
            names = sum(chunk.count(b"\n") for chunk in iter(lambda: process.stdout.read(MIB), b""))
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0 and names >= self.options.files, names
        return {"seconds": time.monotonic() - began, "names": names, "most_kib": used.ru_maxrss}


def one(container, seed):
    found = {}
    for state in ["cold", "warm"]:
        if state == "cold":
            forget()
        read = told(container.reader(seed, 1))
        found[state] = {"opened": read["opened"], "first_file": read["files"], "most_kib": read["most_kib"]}
    for state in ["cold", "warm"]:
        if state == "cold":
            forget()
        found[f"list_{state}"] = container.listed()
    for state in ["cold", "warm"]:
        if state == "cold":
            forget()
        found[f"random_{state}"] = told(container.reader(seed, READS))
    return found | {"calls": container.reads_of(seed)}


def report(made, size, runs, options):
    median = lambda of: statistics.median(of(run) for run in runs)
    lines = ["| | cold | warm |", "|---|---:|---:|"]
    row = lambda title, form, of: lines.append(f"| {title} | {form.format(median(lambda run: of(run, 'cold')))} | {form.format(median(lambda run: of(run, 'warm')))} |")
    row("opened, ms", "{:.2f}", lambda run, state: run[state]["opened"] * 1e3)
    row("one random file after that, ms", "{:.2f}", lambda run, state: run[state]["first_file"] * 1e3)
    row("names listed (`tameike agg ls -r`), 1/s", "{:,.0f}", lambda run, state: run[f"list_{state}"]["names"] / run[f"list_{state}"]["seconds"])
    row(f"files read in random order, {READS} of them, 1/s", "{:,.0f}", lambda run, state: READS / run[f"random_{state}"]["files"])
    lines += ["", "| most memory of a process, MiB | |", "|---|---:|"]
    memory = lambda title, of: lines.append(f"| {title} | {median(of) / 1024:.1f} |")
    memory("lists all names", lambda run: run["list_warm"]["most_kib"])
    memory(f"opens it and reads one file (of that {POOL_MIB} are what it compares with)", lambda run: run["warm"]["most_kib"])
    memory(f"opens it and reads {READS} (the same)", lambda run: run["random_warm"]["most_kib"])
    lines += ["", "| a process opens it and reads one random file | reads | bytes |", "|---|---:|---:|"]
    for title, reads, size_of in [("the index", "index_reads", "index_bytes"), ("files with data", "data_reads", "data_bytes"),
                                  ("all files of the container", "all_reads", "all_bytes")]:
        lines.append(f"| {title} | {median(lambda run: run['calls'][reads]):.0f} | {median(lambda run: run['calls'][size_of]):,.0f} |")
    seconds = made["opened"] + made["files"] + made["ended"]
    lines += ["", f"Made by {options.processes} processes in {seconds:.1f} s, {options.files / seconds:,.0f} files a second, index and sync in it; "
                  f"{size / MIB:.0f} MiB in all, of which {options.files * options.bytes / MIB:.0f} are content."]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the container lies")
    parser.add_argument("name", help="of the run: DATE-NAME")
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1024, help="of each file")
    parser.add_argument("--processes", type=int, default=4, help="that make it")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the run's directory is made")
    options = parser.parse_args()
    out = options.runs / options.name
    out.mkdir()
    # Programs in memory are not forgotten.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, tempfile.TemporaryDirectory(dir=options.directory) as place:
        container = Container(Path(memory), options)
        container.path = Path(place) / "container"
        try:
            made = container.make()
            size = sum(path.stat().st_blocks * 512 for path in container.path.iterdir())
            runs = []
            for repetition in range(options.repetitions):
                runs.append(one(container, repetition))
                print(json.dumps(runs[-1]), flush=True)
        finally:
            POOL.unlink(missing_ok=True)
    about = {"commit": output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]).strip(), "kernel": platform.release(),
             "processors": os.cpu_count(), "load": os.getloadavg(), "command": slow_server.command(options)}
    about |= {name: value for name, value in vars(options).items() if name not in ["directory", "name", "runs"]}
    (out / "result.json").write_text(json.dumps({"about": about, "made": made, "size": size, "runs": runs}, indent=1) + "\n")
    told_about = ", ".join(f"{name} {value}" for name, value in about.items())
    (out / "report.md").write_text(f"# A million files in a container\n\n{told_about}; medians.\n\n{report(made, size, runs, options)}\n")
    print((out / "report.md").read_text())


if __name__ == "__main__":
    main()
