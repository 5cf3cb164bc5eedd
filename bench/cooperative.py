#!/usr/bin/env python3
"""Six clients write a file each and read what another one wrote, as IOR does with -F -C -e: a slow server alone (slow_server.py says
what it is and needs), and the cache view of a job on the same mounts.

    bench/cooperative.py DIRECTORY NAME [--base gfarm|xfs] [--sizes 16,64,256] [--clients 6]

DIRECTORY is where the image of the server's disk lies. Writes bench/runs/NAME. "drained": the next client reads once all is on the server,
as it is without a job; without that, while the job brings it there. Clients drop their own kernel's pages before they read; with --base
xfs these are the server's.
"""

import json, os, statistics, subprocess, sys, time

import picture, slow_server
from slow_server import MIB, TARGET, output


def compare(job, base, options, mib, out):
    """Writes and reads on the mounts themselves and in a job over them, turn by turn. Returns what the job's agents have counted, and seconds of
    writing until all is on the server."""
    targets = {
        base.name: (base.mount, f"{job.place}/enter {{node}}"),
    } | {
        f"tameike{kind}{when}": ("$TAMEIKE_CACHE", " ".join(job.on_node("{node}", *words)))
        for when in ["", "-drained"] for kind, words in [("", []), ("-preload", ["--preload"])]
    }
    command = [TARGET / "tameike-bench", "run", "--workloads", "neighbour", "--ranks", options.clients, "--nodes", options.clients, "--size-mib", mib,
               "--repetitions", options.repetitions, "--targets", "tmpfs", "--base", base.name, "--out", out, "--name", f"{mib}-mib"]
    for name, (directory, launcher) in targets.items():
        command += ["--also", f"{name}={directory}", "--launcher", f"{name}={launcher}"]
        if "drained" in name:
            command += ["--settle", f"{name}={TARGET}/tameike drain --job pool"]
    job.call("up", "--job", "pool", *job.options)
    try:
        if subprocess.run([str(word) for word in command], env=job.environment).returncode != 0:
            sys.exit("the benchmark failed: see above")
        [made] = out.glob(f"*-{mib}-mib")
        made.rename(out / f"{mib}-mib")
        counted = job.counters()
        return {"counted": counted, "whole": [write_all(job, base, options, mib, repetition) for repetition in range(options.repetitions)]}
    finally:
        job.call("down", "--job", "pool")


def write_all(job, base, options, mib, repetition):
    """Seconds until what all clients write is on the server, without a job and with one, with its receipt."""
    starts = {base.name: lambda node: [job.place / "enter", str(node)],
              "tameike": job.on_node}
    seconds = {}
    for name, start in starts.items():
        # A mount of Gfarm's shows for a second what another has removed: each turn has names of its own.
        names = [f"whole-{name}-{repetition}-{node}" for node in range(options.clients)]
        directory = base.mount if name == base.name else '"$TAMEIKE_CACHE"'
        os.sync()
        began = time.monotonic()
        writers = [subprocess.Popen([*start(node), "sh", "-c", f"dd if=/dev/shm/bytes of={directory}/{name} bs=1M count={mib} conv=fsync status=none"])
                   for node, name in enumerate(names)]
        assert all([writer.wait() == 0 for writer in writers])
        if name == "tameike":
            job.call("drain", "--job", "pool")
        seconds[name] = time.monotonic() - began
        for node, name in enumerate(names):
            output([*starts[base.name](node), "cmp", "-n", mib * MIB, "/dev/shm/bytes", base.mount / name])
            output([*start(node), "sh", "-c", f"rm {directory}/{name}"])
    return seconds


def rates(result, base):
    """Of the figures of one size: the median MiB/s of each target and step, and the median of what it is of `base` in the same repetition."""
    found = {}
    for sample in result["samples"]:
        rate = sum(rank["bytes"] for rank in sample["ranks"]) / MIB / max(rank["seconds"] for rank in sample["ranks"])
        found.setdefault((sample["target"], sample["step"]), []).append(rate)
    return {key: (statistics.median(values), statistics.median(value / of for value, of in zip(values, found[base, key[1]])))
            for key, values in found.items()}


def report(runs, base, out):
    lines = ["| MiB a client | target | write, fsync, MiB/s | of the base | read by the next client, MiB/s | of the base | all on the server, s | of the base |",
             "|---:|---|---:|---:|---:|---:|---:|---:|"]
    for mib, run in runs.items():
        found = rates(json.loads((out / f"{mib}-mib/result.json").read_text()), base.name)
        for target in dict.fromkeys(target for target, _ in found):
            cells = [f"{figure:.{digits}f}" for step in ["write", "read-other"] for figure, digits in zip(found[target, step], [0, 2])]
            whole = [one[target] for one in run["whole"] if target in one]
            of = [one[target] / one[base.name] for one in run["whole"] if target in one]
            cells += [f"{statistics.median(whole):.1f}", f"{statistics.median(of):.2f}"] if whole else ["-", "-"]
            lines.append(f"| {mib} | {target} | " + " | ".join(cells) + " |")
    lines += ["", "| MiB a client | read by programs, GiB | from memory of their node | of other nodes | from homes | read of the server | pages that some node held, found |",
              "|---:|---:|---:|---:|---:|---:|---:|"]
    for mib, run in runs.items():
        counted = run["counted"]
        read = sum(counted[f"read_{tier}_bytes"] for tier in ["own_memory", "other_memory", "home"])
        parts = [counted[f"read_{tier}_bytes"] / read for tier in ["own_memory", "other_memory", "home"]]
        loaded = counted["loaded_shared_bytes"]
        lines.append(f"| {mib} | {read / 2**30:.2f} | " + " | ".join(f"{part:.1%}" for part in parts) + f" | {loaded} B | {1 - loaded / read:.2%} |")
    return "\n".join(lines)


def picture_of(runs, base, out):
    """Rates of each step, size by size."""
    titles = {"write": "written, fsync", "read-other": "read by the next client"}
    found = {mib: rates(json.loads((out / f"{mib}-mib/result.json").read_text()), base) for mib in runs}
    groups = {f"{mib} MiB a client, {title}": {target: rate for (target, which), (rate, _) in found[mib].items() if which == step}
              for step, title in titles.items() for mib in runs}
    return picture.bars("Rates of all clients together, higher is better", "MiB/s", groups)


def measure(options):
    """All sizes, in turn."""
    sizes = [int(size) for size in options.sizes.split(",")]

    def sized(job, base, out):
        with open("/dev/shm/bytes", "wb") as file:
            for _ in range(max(sizes)):
                file.write(os.urandom(MIB))
        runs = {}
        for mib in sizes:
            runs[mib] = compare(job, base, options, mib, out)
        (out / "rates.svg").write_text(picture_of(runs, base.name, out))
        return {"runs": runs}, report(runs, base, out)

    slow_server.run(options, options.clients * max(sizes) * 2 + 1024, "Files that the next client reads", sized)


if __name__ == "__main__":
    parser = slow_server.options(__doc__)
    parser.add_argument("--sizes", default="16,64,256", help="MiB of each client's file")
    told = parser.parse_args()
    if told.base == "xfs":
        # Who writes with all of its memory beside it needs more, and reads find nothing there anyway.
        told.server_memory = 0
    measure(told)
