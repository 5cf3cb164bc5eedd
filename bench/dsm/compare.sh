#!/usr/bin/env bash
# Compares shared memory regions with MPI and ArgoDSM: compare.sh OUTPUT [REPETITIONS]
#
# Runs a matrix product and a heat equation (examples/dsm) in all variants, interleaved, for REPETITIONS (5). Process 0 has core 0,
# process 1 core 1. Checks that all variants compute the same. Writes into the directory OUTPUT:
#
#   raw.csv       kernel, variant, repetition, seconds, checksum
#   report.md     medians, ranges, and ratios to tameike-2
#
# Needs tameike on PATH, its library for pkg-config (or in LIBRARY_DIR=, with the header of this repository), and Open MPI.
#
#   ARGO=DIR      the directory where ArgoDSM is installed (README.md); without it, its variants are left out
#   VARIANTS=     some of: plain tameike-1 tameike-2 tameike-2-tcp tameike-2-twins mpi-two-sided mpi-two-sided-tcp mpi-one-sided mpi-one-sided-tcp
#                 argo argo-tcp (default: all but argo-tcp, which takes minutes)
#   SIZE=1024     columns of the matrices
#   GRID=1024 STEPS=100
#   LIMIT=120     seconds for one run
set -euo pipefail

output=${1:?usage: compare.sh OUTPUT [REPETITIONS]}
repetitions=${2:-5}
size=${SIZE:-1024} grid=${GRID:-1024} steps=${STEPS:-100} limit=${LIMIT:-120}
default="plain tameike-1 tameike-2 tameike-2-twins tameike-2-tcp mpi-two-sided mpi-two-sided-tcp mpi-one-sided mpi-one-sided-tcp ${ARGO:+argo}"
read -ra variants <<<"${VARIANTS:-$default}"

# shellcheck source=bench/dsm/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Compiles all programs with the same optimization.
build() {
    local kernel
    for kernel in matmul heat; do
        compile "examples/dsm/$kernel.c" "$work/$kernel"
        mpicc -O3 "$repository/bench/dsm/${kernel}_mpi.c" -o "$work/${kernel}_mpi"
        [ -z "${ARGO:-}" ] || mpic++ -std=c++17 -O3 -I"$ARGO/include/argo" "$repository/bench/dsm/${kernel}_argo.cpp" \
            -o "$work/${kernel}_argo" -L"$ARGO/lib" -Wl,-rpath,"$ARGO/lib" -largo -largobackend-mpi
    done
}

# mpi PROCESSES TRANSPORT PROGRAM ARGUMENT...: without the window component for shared memory, so that windows use the transport too.
mpi() {
    local transport
    case $2 in
        shared) transport=(--mca pml ob1 --mca btl vader,self --mca osc '^sm,ucx') ;;
        tcp) transport=(--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo --mca osc '^sm,ucx') ;;
        # ArgoDSM needs windows and MPI_THREAD_MULTIPLE, which Open MPI 4.1 has over TCP by UCX only.
        ucx-tcp) transport=(--mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=tcp,self) ;;
    esac
    # shellcheck disable=SC2016
    mpirun --allow-run-as-root --bind-to none -np "$1" "${transport[@]}" \
        bash -c 'exec taskset -c "$OMPI_COMM_WORLD_LOCAL_RANK" "$@"' bash "${@:3}" 2>>"$work/errors"
}

# measure KERNEL VARIANT ARGUMENT...: prints seconds and checksum.
measure() {
    local kernel=$work/$1 variant=$2
    shift 2
    case $variant in
        plain) mpi 1 shared "${kernel}_mpi" two-sided "$@" ;;
        tameike-1) region 1 auto "$kernel" "$@" ;;
        tameike-2) region 2 auto "$kernel" "$@" ;;
        tameike-2-tcp) region 2 tcp "$kernel" "$@" ;;
        tameike-2-twins) options=shared-pages region 2 auto "$kernel" "$@" ;;
        mpi-*-tcp) variant=${variant#mpi-} && mpi 2 tcp "${kernel}_mpi" "${variant%-tcp}" "$@" ;;
        mpi-*) mpi 2 shared "${kernel}_mpi" "${variant#mpi-}" "$@" ;;
        argo) mpi 2 shared "${kernel}_argo" "$@" ;;
        argo-tcp) mpi 2 ucx-tcp "${kernel}_argo" "$@" ;;
        *) echo "compare.sh: there is no variant $variant" >>"$work/errors" && return 2 ;;
    esac
}
export -f measure region mpi
export work ARGO_PRINT_STATISTICS=0

build
failures=0
echo kernel,variant,repetition,seconds,checksum >"$output/raw.csv"
for ((repetition = 1; repetition <= repetitions; repetition++)); do
    for kernel in matmul heat; do
        arguments=("$size")
        [ $kernel = matmul ] || arguments=("$grid" "$steps")
        for ((turn = 0; turn < ${#variants[@]}; turn++)); do
            # Each repetition begins with another variant.
            variant=${variants[(turn + repetition - 1) % ${#variants[@]}]}
            [ "$kernel $variant" != "matmul tameike-2-twins" ] || continue
            : >"$work/errors"
            if timeout --kill-after=20 "$limit" bash -c 'measure "$@"' bash "$kernel" "$variant" "${arguments[@]}" >"$work/line" \
                && line=$(grep -E '^[0-9.]+ [-+0-9.e]+$' "$work/line"); then
                echo "$kernel,$variant,$repetition,${line/ /,}" | tee -a "$output/raw.csv"
            else
                echo "compare.sh: $kernel $variant failed, or took longer than $limit s:" >&2
                cat "$work/errors" >&2
                echo "$kernel,$variant,$repetition,failed," >>"$output/raw.csv"
                failures=$((failures + 1))
            fi
        done
    done
done

python3 - "$output" "$size" "$grid" "$steps" <<'PYTHON' || failures=$((failures + 1))
import statistics, sys
import report

output, size, grid, steps = sys.argv[1:]
rows = report.rows(output)
lines = [report.machine("mpirun"), ""]
wrong = False
for kernel, title in [("matmul", f"Matrix product, N = {size}"), ("heat", f"Heat equation, {grid} x {grid}, {steps} steps")]:
    times, sums = {}, {}
    for row in rows:
        if row["kernel"] == kernel:
            measured = times.setdefault(row["variant"], [])
            if row["seconds"] != "failed":
                measured.append(float(row["seconds"]))
                sums.setdefault(row["checksum"], set()).add(row["variant"])
    base = statistics.median(times["tameike-2"]) if times.get("tameike-2") else None
    lines += [f"## {title}", "", "| variant | median s | range s | runs | time / tameike-2 |", "|---|---|---|---|---|"]
    for variant in sorted(times):
        measured = times[variant]
        if not measured:
            lines.append(f"| {variant} | failed | | 0 | |")
            continue
        ratio = f"{statistics.median(measured) / base:.2f}" if base else ""
        lines.append(f"| {variant} | {report.columns(measured, 4)} | {ratio} |")
    if len(sums) == 1:
        lines += ["", f"All variants have the checksum {next(iter(sums))}.", ""]
    else:
        wrong = True
        lines += ["", f"WRONG: the checksums differ: {sums}", ""]
report.write(output, lines)
sys.exit(wrong)
PYTHON

if [ $failures != 0 ]; then
    echo "compare.sh: $failures failures" >&2
    exit 1
fi
