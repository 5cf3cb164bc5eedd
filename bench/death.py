#!/usr/bin/env python3
"""How long until a node knows that another one has died, by each fabric.

    bench/death.py DIRECTORY NAME [--fabrics auto,tcp,ofi:tcp,ofi:shm] [--repetitions 5]

NAME is of the run, as DATE-NAME; DIRECTORY is where a job has its shared directory. A job of three nodes has a file that node 1 wrote, a third of
which lies on node 2. Node 0 reads a MiB of it that nobody there has read, each 5 ms; the agent of node 2 is killed. Told is the time from
the signal to the first read that fails, the longest read, and how many of the dead node's units then failed at once.
"""

import argparse, json, statistics, subprocess, sys, tempfile
from pathlib import Path

import hot

# On node 0. What is read must neither be at hand nor read ahead.
PROGRAM = r"""
import json, os, random, signal, subprocess, sys, time

MIB, UNITS = 1 << 20, 600
path = os.environ["TAMEIKE_SHARED"] + "/units"
write = f"dd if=/dev/urandom of={path} bs=1M count={UNITS} status=none"
subprocess.run(["tameike", "exec", "--node", "1", "--", "sh", "-c", write], check=True)
agent = json.load(open(os.environ["TAMEIKE_JOB_DIR"] + "/node-2/node.json"))["record"]["pid"]
order = random.sample(range(UNITS), UNITS)
file = os.open(path, os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
died, failed, longest, after, lost = None, None, 0, 0, 0
for number, unit in enumerate(order):
    if number == UNITS // 4:
        os.kill(agent, signal.SIGKILL)
        died = time.monotonic()
    began = time.monotonic()
    try:
        is_lost = len(os.pread(file, MIB, unit * MIB)) != MIB
        assert not is_lost, "a read came back short"
    except OSError:
        assert died, "a read failed before anybody had died"
        is_lost = True
        failed = failed or time.monotonic()
    if died:
        longest = max(longest, time.monotonic() - began)
        after, lost = after + 1, lost + is_lost
    time.sleep(0.005)
print(json.dumps({"noticed_s": failed and failed - died, "longest_s": longest, "reads_after": after, "failed": lost}))
"""


def measure(options):
    runs = []
    with tempfile.TemporaryDirectory(dir=options.directory) as shared:
        for repetition in range(options.repetitions):
            for fabric in options.fabrics.split(","):
                command = ["tameike", "run", "--local", "3", "--no-peer-reads", "--keep-going", "--shared", shared, "--fabric", fabric, "--",
                           "python3", "-c", PROGRAM]
                # A job that has lost a node ends with a failure of its own, though its program did not.
                done = subprocess.run(command, capture_output=True, text=True)
                if not done.stdout.startswith("{"):
                    sys.exit(f"with {fabric}:\n{done.stdout}{done.stderr}")
                found = json.loads(done.stdout)
                if found["noticed_s"] is None:
                    sys.exit(f"with {fabric} no read failed")
                runs.append({"fabric": fabric, "repetition": repetition, **found})
                print(fabric, f"{found['noticed_s'] * 1000:.1f} ms", flush=True)
                subprocess.run(["tameike", "recover"], capture_output=True)
    return runs


def report(runs):
    lines = ["| fabric | first failed read after, ms | at most | longest read, ms, at most | reads after it that failed |", "|---|---:|---:|---:|---:|"]
    for fabric in dict.fromkeys(run["fabric"] for run in runs):
        some = [run for run in runs if run["fabric"] == fabric]
        noticed, longest = ([1000 * run[name] for run in some] for name in ["noticed_s", "longest_s"])
        failed = statistics.median(run["failed"] / run["reads_after"] for run in some)
        lines.append(f"| {fabric} | {statistics.median(noticed):.1f} | {max(noticed):.1f} | {max(longest):.1f} | {failed:.0%} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where a job has its shared directory")
    parser.add_argument("name", help="of the run: DATE-NAME")
    parser.add_argument("--fabrics", default="auto,tcp,ofi:tcp,ofi:shm", help="as of tameike run")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    runs = measure(options)
    hot.keep(options, "Time until a node failure is detected", runs, report(runs))


if __name__ == "__main__":
    main()
