#!/usr/bin/env python3
"""Thousands of agents in the simulator: connections and memory of each, looks into the cache table, spread of load.

    bench/scale.py NAME [--agents 10,100,1000,10000] [--connections 128] [--program target/debug/tameike-sim]

NAME is of the run, as DATE-NAME. Each size is a process of its own, so that its memory is its own. Counts follow from the seed and are
the same each time; memory is the system's word.
"""

import argparse, json, math, subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = [
    ("agents", "agents", "{}"),
    ("most peers at a time", "peers_most", "{}"),
    ("at the end", "peers_at_the_end", "{}"),
    ("connections opened, of an agent", "connections_opened_per_agent", "{:.1f}"),
    ("heap of an agent, KiB", "heap_bytes_per_agent", None),
    ("looks of a read, all nodes", "many_table_per_read", None),
    ("busiest node", "many_table_per_read", None),
    ("busiest sender, of the mean", "many_busiest_by_mean", "{:.2f}"),
    ("one file: looks of a read", "hot_table_per_read", None),
    ("sent by others than homes", "hot", None),
    ("busiest sender, of the mean", "hot_busiest_by_mean", "{:.1f}"),
]


def cell(place, key, form, figures):
    value = figures[key]
    if form: return form.format(value)
    if key == "heap_bytes_per_agent": return f"{value / 1024:.0f}"
    if key == "hot": return f"{value['of_holders'] / value['units_read']:.0%}"
    return f"{value[0] if place == 5 or key.startswith('hot') else value[1]:.5f}"


def picture(runs):
    """Each line on an axis of its own, as agents grow: both logarithmic."""
    lines = [("most peers at a time", "#b03a2e", lambda f: f["peers_most"]),
             ("peers at the end", "#1f618d", lambda f: f["peers_at_the_end"]),
             ("heap of an agent, KiB", "#117864", lambda f: f["heap_bytes_per_agent"] / 1024),
             ("looks at the busiest node, of a million reads", "#6c3483", lambda f: f["many_table_per_read"][1] * 1e6)]
    width, height, left, bottom, top = 640, 360, 60, 320, 20
    x = lambda agents: left + (math.log10(agents) - 1) * 150
    y = lambda value: bottom - math.log10(max(value, 1)) * 55
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for power in range(6):
        parts.append(f'<line x1="{left}" x2="{left + 460}" y1="{y(10**power)}" y2="{y(10**power)}" stroke="#ddd"/>'
                     f'<text x="{left - 8}" y="{y(10**power) + 4}" text-anchor="end">{10**power:,}</text>')
    for figures in runs:
        parts.append(f'<text x="{x(figures["agents"])}" y="{bottom + 18}" text-anchor="middle">{figures["agents"]:,} agents</text>')
    for place, (name, color, of) in enumerate(lines):
        points = " ".join(f'{x(figures["agents"]):.1f},{y(of(figures)):.1f}' for figures in runs)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
                     f'<text x="{left + 180}" y="{top + 14 * place}" fill="{color}">{name}</text>')
    return "\n".join(parts + ["</svg>\n"])


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("name")
    options.add_argument("--agents", default="10,100,1000,10000")
    options.add_argument("--connections", type=int, default=128)
    options.add_argument("--program", default=str(ROOT / "target/debug/tameike-sim"))
    options = options.parse_args()
    runs = []
    for agents in options.agents.split(","):
        command = [options.program, "scale", "--agents", agents, "--connections", str(options.connections), "--json"]
        runs += json.loads(subprocess.check_output(command))
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    out = ROOT / "bench/runs" / options.name
    out.mkdir(parents=True, exist_ok=True)
    command = f"bench/scale.py {options.name} --agents {options.agents} --connections {options.connections}"
    (out / "result.json").write_text(json.dumps({"command": command, "commit": commit, "runs": runs}, indent=1) + "\n")
    (out / "scale.svg").write_text(picture(runs))
    table = ["| " + " | ".join(name for name, _, _ in COLUMNS) + " |", "|" + "---:|" * len(COLUMNS)]
    for figures in runs:
        cells = (cell(place, key, form, figures) for place, (_, key, form) in enumerate(COLUMNS))
        table.append("| " + " | ".join(cells) + " |")
    (out / "report.md").write_text(f"""# Up to {runs[-1]['agents']:,} agents in the simulator

`{command}`, commit {commit}. Each agent has the product's requests and replies, data engine and cache table over the simulated network, and
a model of its connections; no store. Each reads one file of 8 units, beginning within 50 ms of the others, and then 4 of as many files of
2 units as there are agents. "Looks" are looks into the cache table, one for each open, and no other message is; of the many files but
where said. The heap is all memory but frames, both ends of the simulated network included.

{chr(10).join(table)}

![picture](scale.svg)
""")
    print("\n".join(table))


if __name__ == "__main__":
    main()
