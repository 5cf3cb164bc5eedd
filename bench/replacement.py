#!/usr/bin/env python3
"""What stays in the memory of nodes: traces of programs, replayed on policies of replacement.

    bench/replacement.py NAME [--record DIRECTORY]

NAME is of the run, as DATE-NAME. Replays the traces that lie in bench/replacement, or, with --record, first records them anew in
DIRECTORY, which needs strace, Montage with its test data, git, SQLite and Debian's binutils-source (`scripts/install-deps.sh` run, test),
and takes about six minutes. Needs `cargo build --release -p tameike-sim`. Writes bench/runs/NAME.
"""

import argparse, json, lzma, math, os, platform, subprocess, sys, tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "replacement"))
import strace, workloads

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "bench/replacement"
SIM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/tameike-sim"
MIB = 1 << 20
# Memory of a node, as a part of the units that the node with the most of them uses, and the fewest frames that an agent has for a view.
PARTS, FRAMES_MIN = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2], 12
POLICIES = "lru,fifo,clock,sieve,two-queue,arc,s3-fifo,s3-fifo-once,product,product-twice,bound"
LARGE = 1_000_000


def record(directory):
    for name, make in workloads.WORKLOADS.items():
        with tempfile.TemporaryDirectory(dir=directory) as place:
            files = Path(place).resolve() / "files"
            files.mkdir()
            command, environment = make(files)
            lines = strace.record(files, command, environment)
        (TRACES / f"{name}.trace.xz").write_bytes(lzma.compress("".join(lines).encode()))
        print(name, len(lines), "reads and writes", flush=True)


def about_trace(lines):
    """Reads and writes, bytes, nodes, units, and the most units that one node uses."""
    used, count = {}, 0
    for line in lines:
        node, file, offset, length, _ = line.split()
        first, last = int(offset) // MIB, (int(offset) + int(length) - 1) // MIB
        used.setdefault(node, set()).update((file, unit) for unit in range(first, last + 1))
        count += 1
    return {"accesses": count, "nodes": len(used), "units": len(set().union(*used.values())), "most": max(map(len, used.values()))}


def replay(path, *options):
    words = [str(word) for word in [SIM, "replacement", "--trace", path, *options]]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return [one | {"seconds": round(one["seconds"], 4)} for one in map(json.loads, done.stdout.splitlines())]


def replay_all(path, frames):
    """All that the report tells of one trace."""
    outcomes = []
    for count in frames:
        one = ["--frames", count]
        outcomes += replay(path, *one, "--policy", POLICIES, "--uses", "each,passes")
        outcomes += replay(path, *one, "--policy", "product-twice", "--knowledge", "learned")
        areas = f"{LARGE},{count},{max(count // 2, 1)}"
        outcomes += replay(path, *one, "--area", areas, "--policy", "lru,product")
        outcomes += replay(path, *one, "--area", areas, "--policy", "lru,product", "--knowledge", "learned,exact",
                           "--last", "stays,moves", "--rounds", "1,2")
        outcomes += replay(path, *one, "--area", f"{count},{2 * count},{4 * count}", "--policy", "product", "--knowledge", "learned",
                           "--area-policy", "lru,clock,sieve,two-queue,arc,s3-fifo,s3-fifo-once,product")
    return outcomes


def misses(one):
    """Passes through units that were neither in the node's memory nor on its own device."""
    return one["passes"] - one["own"] - one["own_device"]


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def ratios(outcomes, is_base, key):
    """Of outcomes of one trace and memory: each key's figures over those of the base, as geometric means, and the worst time."""
    groups, found = {}, {}
    for one in outcomes:
        groups.setdefault((one["trace"], one["frames"]), []).append(one)
    for members in groups.values():
        base = next(one for one in members if is_base(one))
        for one in members:
            # Where there is nothing of it in either.
            figures = [max(figure(one), 1) / max(figure(base), 1) for figure in COUNTS.values()] + [one["seconds"] / base["seconds"]]
            found.setdefault(key(one), []).append(figures)
    return {name: [mean(column) for column in zip(*rows)] + [max(row[-1] for row in rows)] for name, rows in found.items()}


COUNTS = {"not on the node": misses, "from devices or shared": lambda one: one["devices"] + one["shared"]}


def table(title, names, found):
    lines = [f"| {title} | " + " | ".join([*COUNTS, "time", "longest time"]) + " |", "|---|" + "---:|" * (len(COUNTS) + 2)]
    return lines + [f"| {name} | " + " | ".join(f"{value:.3f}" for value in found[key]) + " |" for key, name in names.items() if key in found]


def counts(outcomes, policies):
    """Misses of each policy on each trace and memory."""
    rows = by_memory(outcomes)
    lines = ["| trace | frames | " + " | ".join(policies) + " |", "|---|---:|" + "---:|" * len(policies)]
    return lines + [f"| {trace} | {frames} | " + " | ".join(str(row[policy]) for policy in policies) + " |" for (trace, frames), row in rows.items()]


def by_memory(outcomes):
    rows = {}
    for one in outcomes:
        rows.setdefault((one["trace"], one["frames"]), {})[one["policy"]] = misses(one)
    return rows


def left(outcomes, blind, policies):
    """Misses that the bound has not, all memories together, as a part of those of LRU that knows nothing: the mean of the traces that have any."""
    rows, base, parts = by_memory(outcomes), by_memory(blind), {policy: [] for policy in policies}
    for trace in dict.fromkeys(trace for trace, _ in base):
        keys = [key for key in base if key[0] == trace]
        avoidable = sum(base[key]["lru"] - base[key]["bound"] for key in keys)
        for policy in policies:
            if avoidable > 0:
                parts[policy].append(sum(rows[key][policy] - base[key]["bound"] for key in keys) / avoidable)
    return [f"{sum(part) / len(part):.2f}" for part in parts.values()]


AREA_NAMES = {LARGE: "all", 1: "as many units as memory", 0.5: "half as many"}
KNOWN = {("none", "stays", 1): "nothing", ("learned", "stays", 1): "what it has learned; a last copy stays one round more",
         ("learned", "stays", 2): "the same, two rounds", ("exact", "stays", 1): "all; a last copy stays one round more",
         ("exact", "stays", 2): "the same, two rounds", ("learned", "moves", 1): "what it has learned; a last copy is sent to another node, once",
         ("learned", "moves", 2): "the same, twice", ("exact", "moves", 1): "all; a last copy is sent to another node, once",
         ("exact", "moves", 2): "the same, twice"}


def report(traces, outcomes):
    lines = ["| trace | nodes | reads and writes | units | most of one node | frames of a node |", "|---|---:|---:|---:|---:|---|"]
    lines += [f"| {name} | {one['nodes']} | {one['accesses']} | {one['units']} | {one['most']} | {', '.join(map(str, one['frames']))} |"
              for name, one in traces.items()]
    blind = [one for one in outcomes if one["area"] == LARGE and one["knowledge"] == "none" and one["area_policy"] == "lru"]
    names = {policy: policy for policy in POLICIES.split(",")}
    for uses, words in [("each", "each call counts"), ("passes", "what goes on in a unit is no use of its own")]:
        rows = [one for one in blind if one["uses"] == uses]
        lines += ["", f"Passes through units that were not on the node, where it knows nothing of others and {words}:", "", *counts(rows, list(names))]
        lines.append("| over the bound, of LRU | | " + " | ".join(left(rows, rows, list(names))) + " |")
        found = ratios(rows, lambda one: one["policy"] == "lru", lambda one: one["policy"])
        lines += ["", "The same over LRU:", "", *table("policy", names, found)]
    learned = [one for one in outcomes if one["area"] == LARGE and one["area_policy"] == "lru"
               and (one["knowledge"], one["last"], one["rounds"]) == ("learned", "stays", 1)]
    found = left(learned, [one for one in blind if one["uses"] == "passes"], ["product", "product-twice"])
    lines += ["", f"Over the bound, of LRU, with what nodes have learned of others: product {found[0]}, product-twice {found[1]}."]
    for area, words in AREA_NAMES.items():
        is_area = lambda one: one["area"] == (LARGE if area == LARGE else max(int(one["frames"] * area), 1)) and one["area_policy"] == "lru"
        rows = [one for one in outcomes if one["uses"] == "passes" and one["policy"] in ("lru", "product") and is_area(one)]
        found = ratios(rows, lambda one: one["policy"] == "lru" and one["knowledge"] == "none",
                       lambda one: (one["policy"], one["knowledge"], one["last"], one["rounds"]))
        for policy in ["lru", "product"]:
            lines += ["", f"`{policy}`, devices hold {words}; over LRU that knows nothing:", ""]
            lines += table("a node knows", KNOWN, {key[1:]: figures for key, figures in found.items() if key[0] == policy})
    for times in [1, 2, 4]:
        rows = [one for one in outcomes if one["knowledge"] == "learned" and one["last"] == "stays" and one["rounds"] == 1
                and one["policy"] == "product" and one["area"] == times * one["frames"]]
        found = ratios(rows, lambda one: one["area_policy"] == "lru", lambda one: one["area_policy"])
        lines += ["", f"Clean units on devices, {times} times as many as in memory; over LRU there:", ""]
        lines += table("policy of the device", names, found)
    return "\n".join(lines)


COLOURS = {"own": "#2f6f4f", "own_device": "#8fbf9f", "other": "#4f7fbf", "devices": "#d9a441", "shared": "#b04a3a"}
WORDS = {"own": "own memory", "own_device": "own device", "other": "another node's memory", "devices": "another node's device", "shared": "shared file system"}
SHOWN = [("lru", "none", "LRU"), ("product", "none", "product, knowing nothing"), ("product", "learned", "product"), ("bound", "none", "bound")]


def picture(traces, outcomes):
    """A bar for each policy: where passes through units found them, at a quarter of what the node with the most units uses."""
    rows, top = [], 60
    for name, about in traces.items():
        frames = about["frames"][min(2, len(about["frames"]) - 1)]
        rows.append(f'<text x="20" y="{top + 12}" font-weight="bold">{name}, {frames} frames a node</text>')
        for policy, knowledge, label in SHOWN:
            top += 20
            one = next(one for one in outcomes if (one["trace"], one["frames"], one["area"], one["policy"], one["knowledge"], one["last"], one["rounds"],
                       one["uses"], one["area_policy"]) == (name, frames, LARGE, policy, knowledge, "stays", 1, "passes", "lru"))
            total, left = sum(one[key] for key in COLOURS), 190.0
            rows.append(f'<text x="180" y="{top + 12}" text-anchor="end">{label}</text>')
            for key, colour in COLOURS.items():
                width = 560 * one[key] / total
                rows.append(f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="15" fill="{colour}"/>')
                left += width
            rows.append(f'<text x="760" y="{top + 12}">{one["seconds"]:.2f} s</text>')
        top += 32
    keys = "".join(f'<rect x="{20 + 165 * place}" y="30" width="12" height="12" fill="{COLOURS[key]}"/><text x="{36 + 165 * place}" y="41">{word}</text>'
                   for place, (key, word) in enumerate(WORDS.items()))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="860" height="{top}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="860" height="{top}" fill="white"/>\n<text x="20" y="20" font-size="15">Where units were found, and the time that it takes one '
            f'after another</text>\n{keys}\n' + "\n".join(rows) + "\n</svg>\n")


def output(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the run: DATE-NAME")
    parser.add_argument("--record", type=Path, metavar="DIRECTORY", help="record the traces anew, with files in DIRECTORY")
    options = parser.parse_args()
    if options.record:
        record(options.record)
    traces, outcomes = {}, []
    with tempfile.TemporaryDirectory() as place:
        for packed in sorted(TRACES.glob("*.trace.xz")):
            path = Path(place) / packed.name.removesuffix(".xz")
            path.write_bytes(lzma.decompress(packed.read_bytes()))
            about = about_trace(path.read_text().splitlines())
            about["frames"] = sorted({max(int(about["most"] * part), FRAMES_MIN) for part in PARTS})
            traces[path.stem] = about
            outcomes += replay_all(path, about["frames"])
    kept = ROOT / "bench/runs" / options.name
    kept.mkdir(parents=True, exist_ok=True)
    about = {"commit": output("git", "-C", ROOT, "rev-parse", "--short", "HEAD"), "kernel": platform.release(), "command": " ".join(sys.argv)}
    text = json.dumps({"about": about, "traces": traces, "outcomes": "OUTCOMES"}, indent=1)
    rows = ",\n  ".join(json.dumps(one, separators=(",", ":")) for one in outcomes)
    (kept / "result.json").write_text(text.replace('"OUTCOMES"', f"[\n  {rows}\n ]") + "\n")
    told = ", ".join(f"{name} {value}" for name, value in about.items())
    (kept / "report.md").write_text(f"# What stays in memory, by traces of programs\n\n{told}.\n\n{report(traces, outcomes)}\n")
    (kept / "found.svg").write_text(picture(traces, outcomes))
    print((kept / "report.md").read_text())


if __name__ == "__main__":
    main()
