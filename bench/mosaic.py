#!/usr/bin/env python3
"""The Montage workflow of examples/workflow, enlarged, on six nodes: on a slow server alone (slow_server.py says what it is and needs), where
all files lie, and in a job whose shared directory is on the same server.

    bench/mosaic.py DIRECTORY NAME [--base gfarm|xfs] [--tiles 225] [--enlarge 3]

DIRECTORY is where the image of the server's disk lies; Montage and Hubble's exposure must be there, too (`scripts/install-deps.sh run`).
Writes bench/runs/NAME. A run begins with nothing of the input in the server's memory and ends when the mosaic is safe on the server: without a
job by fsync, with one by its drain and receipt, and then start and end of the job count, too. Pixels of all runs must be the same.
"""

import json, os, re, statistics, subprocess, sys, time
from pathlib import Path

import picture, slow_server
from slow_server import MIB, ROOT, TARGET, output

MONTAGE = ROOT / "examples/workflow"
REFERENCE = Path("/dev/shm/reference")
STEPS = 12
STEP = re.compile(r" *\d+/\d+ (.*?)  m[A-Z]\w+ .*?([\d.]+) s$")
RESULTS = ["mosaic.fits", "mosaic_area.fits", "mosaic.png"]


def directly(job, base, options):
    """Seconds without a job: the same program, whose other nodes are the server's other clients."""
    programs = job.place / "direct"
    if not programs.exists():
        programs.mkdir()
        # What the workflow asks for is `tameike exec --node NODE -- COMMAND`.
        (programs / "tameike").write_text(f'#!/bin/sh\nnode=$3\nshift 4\nexec {job.place}/enter $node "$@"\n')
        (programs / "tameike").chmod(0o755)
    where = {"TAMEIKE_JOB": "none", "TAMEIKE_NODES": str(options.clients), "TAMEIKE_NODE": "0", "TAMEIKE_CACHE": str(base.mount),
             "TAMEIKE_SHARED": str(base.mount / "work"), "PATH": f"{programs}:{os.environ['PATH']}"}
    # Gfarm has fsync refused by who only reads.
    safe = " && ".join(f"dd if=/dev/null of={base.mount}/output/{name} conv=notrunc,fsync status=none" for name in RESULTS)
    began = time.monotonic()
    told = output([*base.user(0), "sh", "-c", f"mkdir {base.mount}/work && {MONTAGE}/mosaic.py && {safe}"], env=os.environ | where)
    return time.monotonic() - began, told


def in_job(job, base, options, words):
    """Seconds with a job, and what its agents have counted."""
    counted = job.place / "counted"
    program = f"{MONTAGE}/mosaic.py && tameike cache stat --json > {counted}"
    environment = job.environment | {"PATH": f"{TARGET}:{os.environ['PATH']}"}
    began = time.monotonic()
    told = output([TARGET / "tameike", "run", *job.options, *words, "--", "sh", "-c", program], env=environment)
    seconds = time.monotonic() - began
    [found] = json.loads(counted.read_text())
    nodes = [{counter["name"]: counter["value"] for counter in line["status"]["counters"]} for line in found["running"]["nodes"]]
    return seconds, told, nodes


def check(base, is_first):
    """The mosaic, as the server has it, is that of the first run."""
    base.forget()
    copy = REFERENCE if is_first else Path("/dev/shm/found")
    output(["rm", "-rf", copy])
    output([*base.node(0), "cp", "-r", base.mount / "output", copy])
    output([*base.node(0), "rm", "-rf", base.mount / "output", base.mount / "work"])
    output([MONTAGE / "compare.py", REFERENCE, copy])


def measure(options):
    def mosaics(job, base, out):
        tiles = Path("/dev/shm/tiles")
        output([MONTAGE / "prepare.py", tiles, "--tiles", options.tiles, "--enlarge", options.enlarge])
        output([*base.user(0), "cp", "-r", tiles / "input", base.mount])
        size = sum(path.stat().st_size for path in tiles.rglob("*.fits"))
        ways = {base.name: None, "tameike": []}
        runs = []
        for repetition in range(options.repetitions):
            for name, words in ways.items():
                base.forget()
                before = slow_server.processor_seconds()
                seconds, told, *nodes = directly(job, base, options) if words is None else in_job(job, base, options, words)
                used = slow_server.processor_seconds() - before
                runs.append({"way": name, "seconds": seconds, "core_seconds": used, "told": told.splitlines(), "nodes": nodes[0] if nodes else None})
                print(f"{name}: {seconds:.1f} s, {used:.1f} core-s", flush=True)
                check(base, not REFERENCE.exists())
        medians = {name: statistics.median(run["seconds"] for run in runs if run["way"] == name) for name in ways}
        (out / "seconds.svg").write_text(picture.bars("A mosaic, less is better", "s", {f"{options.tiles} tiles": medians}))
        return {"input_bytes": size, "runs": runs}, report(runs, medians, base, size)

    slow_server.run(options, 4096 * options.enlarge, "A mosaic of many tiles", mosaics)


def report(runs, medians, base, size):
    lines = ["| | s | of the base | shorter by | core-s |", "|---|---:|---:|---:|---:|"]
    for name, seconds in medians.items():
        used = statistics.median(run["core_seconds"] for run in runs if run["way"] == name)
        lines.append(f"| {name} | {seconds:.1f} | {seconds / medians[base.name]:.2f} | {1 - seconds / medians[base.name]:.0%} | {used:.1f} |")
    lines += ["", "| step | " + " | ".join(f"{name}, s" for name in medians) + " |", "|---|" + "---:|" * len(medians)]
    for step in range(STEPS):
        told = {name: [STEP.match(run["told"][step + 1]) for run in runs if run["way"] == name] for name in medians}
        title = told[base.name][0][1].strip()
        lines.append(f"| {title} | " + " | ".join(f"{statistics.median(float(one[2]) for one in some):.1f}" for some in told.values()) + " |")
    return "\n".join([*lines, *by_node(runs[-1]["nodes"], size)])


def by_node(nodes, size):
    """What each node's programs asked for, and who had it."""
    lines = ["", f"Nodes of the last run; of {size / MIB:.0f} MiB of input:", "",
             "| node | read by programs, MiB | from its own memory | from other nodes' memory | from homes | other nodes asked | that had it "
             "| read of the server, MiB |", "|---:|---:|---:|---:|---:|---:|---:|---:|"]
    total = {name: sum(node[name] for node in nodes) for name in nodes[0]}
    for number, node in [*enumerate(nodes), ("all", total)]:
        parts = [node[f"read_{tier}_bytes"] for tier in ["own_memory", "other_memory", "home"]]
        read = max(sum(parts), 1)
        cells = [str(number), f"{sum(parts) / MIB:.0f}", *(f"{part / read:.1%}" for part in parts),
                 str(node["held_requested"]), str(node["held_delivered"]), f"{node['loaded_shared_bytes'] / MIB:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    # What was read of the server more than once had been in some node's memory.
    again = max(total["loaded_shared_bytes"] - size, 0)
    read = sum(total[f"read_{tier}_bytes"] for tier in ["own_memory", "other_memory", "home"])
    return [*lines, f"\nRead of the server though a node had it: {again} bytes. Hit rate of what some node had: {1 - again / max(read - size, 1):.2%}."]


if __name__ == "__main__":
    parser = slow_server.options(__doc__, server_memory=512)
    parser.add_argument("--tiles", type=int, default=225)
    parser.add_argument("--enlarge", type=int, default=3, help="as of prepare.py")
    measure(parser.parse_args())
