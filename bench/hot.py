#!/usr/bin/env python3
"""Many nodes read one file of the shared directory at the same moment.

    bench/hot.py DIRECTORY NAME [--mib 1024] [--agents 1,8,16] [--fabric auto]

DIRECTORY is where the shared directory lies; NAME is of the run, as DATE-NAME. The shared file system's pages are dropped before each
run (which needs root). One process on each node reads the whole file in calls of 1 MiB from the moment when all are ready, and compares
what it reads. Times are from that moment to the end of the last one; bytes are those that agents count themselves.
"""

import argparse, json, os, platform, statistics, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20

# On node 0: starts the readers, tells them to begin, and prints what they found and what the agents have counted.
PROGRAM = r"""
import json, os, subprocess, sys, time

MIB = 1 << 20
units, name, shared = int(sys.argv[1]), sys.argv[2], os.environ["TAMEIKE_SHARED"]

def processors(pid):
    with open(f"/proc/{pid}/stat") as file: fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

if sys.argv[3:]:
    node = os.environ["TAMEIKE_NODE"]
    tail, file = open(sys.argv[3], "rb").read(), os.open(f"{os.environ['TAMEIKE_CACHE']}/{name.replace('NODE', node)}", os.O_RDONLY)
    open(f"{shared}/ready-{node}", "w").close()
    while not os.path.exists(f"{shared}/go"): time.sleep(0.01)
    began = time.monotonic()
    for unit in range(units):
        bytes = os.pread(file, MIB, unit * MIB)
        assert bytes[:8] == unit.to_bytes(8, "little") and bytes[8:] == tail[8:], unit
    print(began, time.monotonic(), sum(os.times()[:2]))
    sys.exit()

nodes = range(int(os.environ["TAMEIKE_NODES"]))
readers = [subprocess.Popen(["tameike", "exec", "--node", str(node), "--", "python3", sys.argv[0], sys.argv[1], name,
                             os.path.dirname(sys.argv[0]) + "/unit"], stdout=subprocess.PIPE, text=True) for node in nodes]
while any(not os.path.exists(f"{shared}/ready-{node}") for node in nodes): time.sleep(0.01)
def status():
    [job] = json.loads(subprocess.check_output(["tameike", "cache", "stat", "--json"]))
    return [line["status"] for line in job["running"]["nodes"]]
before = sum(processors(one["pid"]) for one in status())
open(f"{shared}/go", "w").close()
times = [list(map(float, reader.communicate()[0].split())) for reader in readers]
assert all(reader.returncode == 0 for reader in readers)
after = status()
counted = [{counter["name"]: counter["value"] for counter in one["counters"]} for one in after]
print(json.dumps({"seconds": max(end for _, end, _ in times) - min(began for began, _, _ in times),
                  "agents_processor_seconds": sum(processors(one["pid"]) for one in after) - before,
                  "readers_processor_seconds": sum(used for _, _, used in times), "nodes": counted}))
"""


def output(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def make(shared, names, units):
    """The program that reads, and files for it."""
    unit = os.urandom(MIB)
    (shared / "unit").write_bytes(unit)
    (shared / "program.py").write_text(PROGRAM)
    for name in names:
        with open(shared / name, "wb") as file:
            for index in range(units):
                file.write(index.to_bytes(8, "little") + unit[8:])
            os.fsync(file.fileno())


def read(shared, name, units, job):
    """What a job of these options found when each of its nodes read the file of this name, in which NODE is its number."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1\n")
    program = ["python3", shared / "program.py", str(units), name]
    return json.loads(output(["tameike", "run", "--shared", shared, "--memory", "128MiB", *job, "--", *program]))


def measure(directory, options):
    runs, agents = [], [int(count) for count in options.agents.split(",")]
    with tempfile.TemporaryDirectory(dir=directory) as shared:
        make(Path(shared), ["hot"], options.mib)
        for repetition in range(options.repetitions):
            for count in agents:
                found = read(Path(shared), "hot", options.mib, ["--local", str(count), "--fabric", options.fabric])
                runs.append({"agents": count, "repetition": repetition, **found})
                print(count, f"{found['seconds']:.2f} s", flush=True)
    return runs


def report(runs, mib):
    lines = ["| agents | s | times one | GiB/s to readers | read of the shared directory | busiest sender, of the mean | agents, core-s a GiB | readers |",
             "|---:|---:|---:|---:|---:|---:|---:|---:|"]
    counts = sorted({run["agents"] for run in runs})
    median = lambda count, figure: statistics.median(figure(run) for run in runs if run["agents"] == count)
    one = median(counts[0], lambda run: run["seconds"])
    for count in counts:
        gib = count * mib / 1024
        loaded = median(count, lambda run: sum(node["loaded_shared_bytes"] for node in run["nodes"]) / MIB / mib)
        sent = lambda run: [node["sent_bytes"] for node in run["nodes"]]
        busiest = "-" if count == 1 else f"{median(count, lambda run: max(sent(run)) / statistics.mean(sent(run))):.2f}"
        seconds = median(count, lambda run: run["seconds"])
        lines.append(f"| {count} | {seconds:.2f} | {seconds / one:.1f} | {gib / seconds:.2f} | {loaded:.3f} | {busiest} | "
                     f"{median(count, lambda run: run['agents_processor_seconds']) / gib:.2f} | "
                     f"{median(count, lambda run: run['readers_processor_seconds']) / gib:.2f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the shared directory lies")
    parser.add_argument("name", help="of the run: DATE-NAME")
    parser.add_argument("--agents", default="1,8,16", help="numbers of agents to compare")
    parser.add_argument("--fabric", default="auto", help="as of tameike run")
    parser.add_argument("--mib", type=int, default=1024, help="size of the file")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    runs = measure(options.directory, options)
    keep(options, "One file that all nodes read at the same moment", runs, report(runs, options.mib))


def keep(options, title, runs, table):
    """Writes the figures of a run, and its report."""
    kept = ROOT / "bench/runs" / options.name
    kept.mkdir(parents=True, exist_ok=True)
    commit = output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]).strip()
    about = {"commit": commit, "kernel": platform.release(), "processors": os.cpu_count(), "load": os.getloadavg()}
    about |= {name: value for name, value in vars(options).items() if name not in ["directory", "name"]}
    (kept / "result.json").write_text(json.dumps({"about": about, "runs": runs}, indent=1) + "\n")
    told = ", ".join(f"{name} {value}" for name, value in about.items())
    (kept / "report.md").write_text(f"# {title}\n\n{told}; medians.\n\n{table}\n")
    print((kept / "report.md").read_text())


if __name__ == "__main__":
    main()
