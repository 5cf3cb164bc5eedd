#!/usr/bin/env bash
# Measures queries of the Wisconsin benchmark on shared memory regions and on a disk: wisconsin.sh OUTPUT DISK [REPETITIONS]
#
# DISK is a directory on the disk to compare with. Runs examples/dsm/wisconsin for each query, interleaved, for REPETITIONS (5), and
# writes into the directory OUTPUT:
#
#   raw.csv       query, variant, repetition, seconds
#   report.md     medians, ranges, and ratios to the disk
#
# Variants: disk (a file read with O_DIRECT), disk-cached (a file read from a cold page cache), and N-first and N-again for regions on
# N nodes. In N-first the processes have just attached, and fetch the pages that they read. N-again is the next run by the same processes.
# Needs tameike on PATH, and its library for pkg-config (or in LIBRARY_DIR=, with the header of this repository).
#
#   ROWS=1000000  tuples of 208 bytes in each of two tables
#   NODES="1 2"   numbers of nodes
set -euo pipefail

output=${1:?usage: wisconsin.sh OUTPUT DISK [REPETITIONS]}
disk=${2:?usage: wisconsin.sh OUTPUT DISK [REPETITIONS]}
repetitions=${3:-5}
export rows=${ROWS:-1000000} queries="Q1 Q3 Q4 Q6 Q7"
read -ra nodes <<<"${NODES:-1 2}"

# shellcheck source=bench/dsm/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tables=$(mktemp "$disk/wisconsin-XXXXXX")
trap 'rm -rf "$work" "$tables"' EXIT
export program=$work/wisconsin

compile examples/dsm/wisconsin.c "$program"

# Reads lines of the program, and adds them to raw.csv: record REPETITION VARIANT...; the runs of a query have these variants in turn.
record() {
    local repetition=$1 query seconds result last="" at
    shift
    while read -r query _ seconds result; do
        if [ "$query" = load ]; then
            continue
        elif [ "$result" != ok ]; then
            echo "wisconsin.sh: $query of ${*:1:1} has a wrong result" >&2
            return 1
        fi
        if [ "$query" = "$last" ]; then at=$((at + 1)); else at=1; fi
        last=$query
        echo "$query,${!at},$repetition,$seconds" | tee -a "$output/raw.csv"
    done
}

# Loads the tables, and then runs each query twice in new processes; for the shell of a job of count nodes.
in_job() {
    local query tables=$TAMEIKE_SHARED/tables
    on_all_nodes "$count" "$program" --rows "$rows" --queries Q7 "$tables"
    for query in $queries; do
        on_all_nodes "$count" "$program" --rows "$rows" --reuse --repetitions 2 --queries "$query" "$tables"
    done | sed 's/^/measured /'
}
export -f in_job

# into_lines COMMAND...: its output, which names a query with a wrong result, goes into a file, and is printed if it fails.
into_lines() {
    "$@" >"$work/lines" && return
    cat "$work/lines" >&2
    echo "wisconsin.sh: failed: $*" >&2
    return 1
}

# Loads the file.
into_lines "$program" --rows "$rows" --queries Q7 --file "$tables"
echo query,variant,repetition,seconds >"$output/raw.csv"
for ((repetition = 1; repetition <= repetitions; repetition++)); do
    into_lines taskset -c 0 "$program" --rows "$rows" --reuse --direct --file "$tables"
    record "$repetition" disk <"$work/lines"
    into_lines taskset -c 0 "$program" --rows "$rows" --reuse --file "$tables"
    record "$repetition" disk-cached <"$work/lines"
    for count in "${nodes[@]}"; do
        export count
        into_lines tameike run --local "$count" --shared "$work/shared" -- bash -o pipefail -ec in_job
        sed -n 's/^measured //p' "$work/lines" | record "$repetition" "$count-first" "$count-again"
    done
done

python3 - "$output" "$rows" <<'PYTHON'
import statistics, sys
import report

output, rows = sys.argv[1:]
times = {}
for row in report.rows(output):
    times.setdefault(row["query"], {}).setdefault(row["variant"], []).append(float(row["seconds"]))
lines = [f"{report.machine()}; tables of {rows} rows", "",
         "| query | variant | median s | range s | runs | disk / this |", "|---|---|---|---|---|---|"]
for query, variants in times.items():
    disk = statistics.median(variants["disk"])
    for variant, measured in variants.items():
        lines.append(f"| {query} | {variant} | {report.columns(measured, 4)} | {disk / statistics.median(measured):.2f} |")
report.write(output, lines)
PYTHON
