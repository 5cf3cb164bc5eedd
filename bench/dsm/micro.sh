#!/usr/bin/env bash
# Measures single accesses to shared memory regions and remote memory windows: micro.sh OUTPUT [ROUNDS]
#
# Runs bench/dsm/micro.c as one process, and as two processes on two nodes, with ordinary shared memory in the same rounds (5). The process
# that measures has core 0, the other one core 1. Writes into the directory OUTPUT:
#
#   raw.csv       nodes, operation, round, microseconds
#   report.md     medians and ranges
#
# Needs tameike on PATH, and its library for pkg-config (or in LIBRARY_DIR=, with the header of this repository).
#
#   PAGES=8192    pages of the region
set -euo pipefail

output=${1:?usage: micro.sh OUTPUT [ROUNDS]}
rounds=${2:-5}
pages=${PAGES:-8192}
# shellcheck source=bench/dsm/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compile bench/dsm/micro.c "$work/micro"
echo nodes,operation,round,microseconds >"$output/raw.csv"
for nodes in 1 2; do
    if ! region "$nodes" auto "$work/micro" "$pages" "$rounds" >"$work/lines"; then
        cat "$work/errors" >&2
        echo "micro.sh: failed on $nodes nodes" >&2
        exit 1
    fi
    sed "s/^/$nodes,/" "$work/lines" >>"$output/raw.csv"
done

python3 - "$output" "$pages" <<'PYTHON'
import sys
import report

output, pages = sys.argv[1:]
times = {}
for row in report.rows(output):
    times.setdefault((row["operation"], row["nodes"]), []).append(float(row["microseconds"]))
lines = [f"{report.machine()}; a region of {pages} pages of 4096 bytes", "",
         "| operation | nodes | median us | range us | rounds |", "|---|---|---|---|---|"]
lines += [f"| {operation} | {nodes} | {report.columns(measured, 2)} |" for (operation, nodes), measured in times.items()]
report.write(output, lines)
PYTHON
