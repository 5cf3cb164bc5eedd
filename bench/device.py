#!/usr/bin/env python3
"""Measures the device of a node beside what its disk gives by itself, all in turn on one directory.

    bench/device.py DIRECTORY NAME [--repetitions 5] [--mib 1024]

needs fio, and `cargo build --release -p tameike -p tameike-store --example device --bins`. Writes bench/runs/NAME. Per repetition:

fio     a file of its own, O_DIRECT, io_uring, 1 MiB, 8 calls at the same time
store   the store of a node (crates/store/examples/device.rs): units of 1 MiB, 8 at the same time, checked when they are read
job     a job of one node: a program writes and reads a file of the job-shared view in calls of 1 MiB, past its kernel's cache,
        and checks it; --passes times over, of which the last one is told, and the agent's memory over the last --flat, once the
        allocator has what it keeps

Each write ends with a sync, whose time counts.
"""

import argparse, json, os, platform, shutil, statistics, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
GB = 1e9
TARGETS, STEPS = ["fio", "store", "job"], ["write", "read"]
IN_FLIGHT = "8"

# Runs in the job: writes and reads a file, and tells what that took, of the agent's processor time, too.
PROGRAM = r"""
import json, mmap, os, subprocess, sys, time

def agents(thing):
    if isinstance(thing, dict):
        if "resident_bytes" in thing: yield thing["pid"]
        thing = list(thing.values())
    if isinstance(thing, list):
        for part in thing: yield from agents(part)

[agent] = agents(json.loads(subprocess.check_output(["tameike", "status", "--json"])))

def processors():
    with open(f"/proc/{agent}/stat") as file: fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

def resident():
    with open(f"/proc/{agent}/status") as file: fields = dict(line.split(":", 1) for line in file)
    return sum(int(fields.get(name, "0").split()[0]) << 10 for name in ("VmRSS", "HugetlbPages"))

UNIT, units, passes, flat = 1 << 20, *(int(argument) for argument in sys.argv[1:4])
buffer = mmap.mmap(-1, UNIT)
buffer.write(os.urandom(UNIT))

def stamp(index): return index.to_bytes(8, "little")

def write(file, index):
    buffer[:8] = stamp(index)
    assert os.pwrite(file, buffer, index * UNIT) == UNIT

def read(file, index):
    assert os.preadv(file, [buffer], index * UNIT) == UNIT and buffer[:8] == stamp(index), index

found, seen, first, steps = {}, [], None, [("write", os.O_WRONLY | os.O_CREAT, write), ("read", os.O_RDONLY, read)]
for number, (name, flags, work) in [(number, step) for number in range(passes) for step in steps]:
    began, processor_seconds = time.monotonic(), processors()
    if (number, name) == (passes - flat, "write"): seen = []
    file = os.open("file", flags | os.O_DIRECT)
    for index in range(units):
        work(file, index)
        if index % 64 == 32: seen.append(resident())
        if first is None and seen: first = seen[0]
    if name == "write": os.fsync(file)
    os.close(file)
    found[name] = {"seconds": time.monotonic() - began, "processor_seconds": processors() - processor_seconds,
                   "resident": [min(seen), max(seen)], "resident_first": first}
print(json.dumps(found))
"""


def output(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def fio(place, mib):
    found = {}
    for step in STEPS:
        job = json.loads(output([
            "fio", "--name=device", f"--filename={place / 'fio'}", f"--rw={step}", f"--size={mib}M", "--bs=1M", "--direct=1",
            "--ioengine=io_uring", f"--iodepth={IN_FLIGHT}", "--end_fsync=1", "--output-format=json"]))["jobs"][0]
        seconds = max(job["job_runtime"], job[step]["runtime"]) / 1000
        found[step] = {"seconds": seconds, "processor_seconds": seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100}
    return found


def store(place, mib):
    return json.loads(output([TARGET / "examples/device", place / "store", str(mib), IN_FLIGHT]))


def job(place, mib, passes, flat):
    for name in ["shared", "device", "tmp"]:
        (place / name).mkdir()
    environment = os.environ | {"TMPDIR": str(place / "tmp"), "PATH": f"{TARGET}:{os.environ['PATH']}"}
    command = ["tameike", "run", "--local", "1", "--shared", place / "shared", "--device", place / "device", "--capacity",
               f"shared={mib + 64}M", "--", "sh", "-euc", 'cd "$TAMEIKE_SHARED"; exec python3 -c "$0" "$@"', PROGRAM, str(mib), str(passes), str(flat)]
    return json.loads(output(command, env=environment))


def measure(directory, repetitions, mib, passes, flat):
    runs = []
    for repetition in range(repetitions):
        for target in TARGETS:
            place = directory / f"tameike-device-{os.getpid()}"
            place.mkdir()
            try:
                found = job(place, mib, passes, flat) if target == "job" else globals()[target](place, mib)
            finally:
                shutil.rmtree(place)
            os.sync()
            print(repetition, target, json.dumps(found), flush=True)
            runs.append({"target": target, "repetition": repetition, **found})
    return runs


def report(runs, mib):
    bytes_moved = mib << 20

    def median(target, step, figure):
        return statistics.median(figure(run[step]) for run in runs if run["target"] == target)

    lines = ["| | " + " | ".join(f"{step}, {unit}" for step in STEPS for unit in ["GB/s", "of fio", "core-s/GB"]) + " | resident, MiB |",
             "|---|" + "---:|" * 7]
    for target in TARGETS:
        cells = []
        for step in STEPS:
            rate = lambda one: bytes_moved / one["seconds"] / GB
            # Side by side: of the same repetition.
            base = {run["repetition"]: rate(run[step]) for run in runs if run["target"] == "fio"}
            ratio = statistics.median(
                rate(run[step]) / base[run["repetition"]] for run in runs if run["target"] == target)
            cells += [f"{median(target, step, rate):.2f}", f"{ratio:.2f}",
                      f"{median(target, step, lambda one: one['processor_seconds'] / bytes_moved * GB):.3f}"]
        # Of the repetition where it changed most.
        seen = [[bound for step in STEPS for bound in run[step].get("resident", [])] for run in runs if run["target"] == target]
        first = [run["read"].get("resident_first") for run in runs if run["target"] == target]
        change, bounds, first = max((max(bounds) - min(bounds) if bounds else 0, bounds, first) for bounds, first in zip(seen, first))
        mib = lambda count: f"{count / 2**20:.1f}"
        cells.append((f"{mib(first)}, then " if first else "") + f"{mib(min(bounds))} to {mib(max(bounds))}" if bounds else "")
        lines.append(f"| {target} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="on the disk to measure")
    parser.add_argument("name", help="of the run: DATE-NAME")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024, help="size of each file")
    parser.add_argument("--passes", type=int, default=1, help="how often the job's program writes and reads its file")
    parser.add_argument("--flat", type=int, default=1, help="over how many of the last passes its agent's memory is looked at")
    options = parser.parse_args()
    runs = measure(options.directory, options.repetitions, options.mib, options.passes, options.flat)
    kept = ROOT / "bench/runs" / options.name
    kept.mkdir(parents=True, exist_ok=True)
    commit = output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]).strip()
    about = {"commit": commit, "kernel": platform.release(), "processors": os.cpu_count(), "fio": output(["fio", "--version"]).strip(),
             "mib": options.mib, "repetitions": options.repetitions, "passes": options.passes, "flat": options.flat}
    (kept / "result.json").write_text(json.dumps({"about": about, "runs": runs}, indent=1) + "\n")
    told = ", ".join(f"{name} {value}" for name, value in about.items())
    (kept / "report.md").write_text(f"# The device of a node beside fio\n\n{told}; medians.\n\n{report(runs, options.mib)}\n")
    print((kept / "report.md").read_text())


if __name__ == "__main__":
    main()
