#!/usr/bin/env python3
"""What it costs to look for bytes in other nodes' memory where none has them: every node reads a file of its own, once.

    bench/alone.py DIRECTORY NAME [--mib 256] [--agents 4] [--fabric auto]

DIRECTORY is where the shared directory lies: the faster, the more is seen of the cost. NAME is of the run, as DATE-NAME. In turn,
beginning with the one and with the other, a job that asks other nodes and one that does not (--no-peer-reads). The shared file system's pages are
dropped before each (which needs root). One process on each node reads and compares its file in calls of 1 MiB, as hot.py's do.
"""

import argparse, statistics, tempfile
from pathlib import Path

import hot, picture

WAYS = {"with holders": [], "without": ["--no-peer-reads"]}


def measure(options):
    pairs = []
    with tempfile.TemporaryDirectory(dir=options.directory) as shared:
        hot.make(Path(shared), [f"own-{node}" for node in range(options.agents)], options.mib)
        for repetition in range(options.repetitions):
            pair = {}
            for name in sorted(WAYS, reverse=repetition % 2 == 1):
                job = ["--local", str(options.agents), "--fabric", options.fabric, *WAYS[name]]
                pair[name] = hot.read(Path(shared), "own-NODE", options.mib, job)
            pairs.append(pair)
            print(", ".join(f"{name} {one['seconds']:.2f} s" for name, one in pair.items()), flush=True)
    return pairs


def report(pairs, options):
    lines = ["| | s | MiB/s | agents, core-s | asked of other nodes | read of the shared directory |", "|---|---:|---:|---:|---:|---:|"]
    for name in WAYS:
        median = lambda figure: statistics.median(figure(pair[name]) for pair in pairs)
        total = lambda counter: median(lambda one: sum(node[counter] for node in one["nodes"]))
        seconds, mib = median(lambda one: one["seconds"]), options.mib * options.agents
        lines.append(f"| {name} | {seconds:.3f} | {mib / seconds:.0f} | {median(lambda one: one['agents_processor_seconds']):.2f} | "
                     f"{total('held_requested'):.0f} | {total('loaded_shared_bytes') / hot.MIB / mib:.3f} |")
    ratios = [pair["with holders"]["seconds"] / pair["without"]["seconds"] for pair in pairs]
    lower, middle, upper = statistics.quantiles(ratios)
    lines.append(f"\nTime with holders, of that without in the same pair: {middle:.3f}, half of the pairs within {lower:.3f} and {upper:.3f}.")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the shared directory lies")
    parser.add_argument("name", help="of the run: DATE-NAME")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--fabric", default="auto", help="as of tameike run")
    parser.add_argument("--mib", type=int, default=256, help="size of each file")
    parser.add_argument("--repetitions", type=int, default=15, help="pairs")
    options = parser.parse_args()
    pairs = measure(options)
    hot.keep(options, "Files that one node reads once", pairs, report(pairs, options))
    seconds = {f"pair {number + 1}": {name: pair[name]["seconds"] for name in WAYS} for number, pair in enumerate(pairs)}
    (hot.ROOT / "bench/runs" / options.name / "seconds.svg").write_text(picture.bars("Files that one node reads once, less is better", "s", seconds))


if __name__ == "__main__":
    main()
