#!/usr/bin/env bash
# Runs every fuzz target under libFuzzer: fuzz.sh SECONDS [TARGET...]
#
# Inputs that reach new code stay in target/fuzz between runs; inputs that crash go to fuzz/artifacts. Prints the targets that failed.
# Needs no nightly compiler: it uses coverage, but no sanitizers.
set -euo pipefail

seconds=${1:?usage: fuzz.sh SECONDS [TARGET...]}
shift
cd "$(dirname "$0")/.."
found=$(realpath "${CARGO_TARGET_DIR:-target}")/fuzz
export CARGO_TARGET_DIR=$found/build
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo fuzz list)

cargo fuzz build --sanitizer none
failed=()
for target in "${targets[@]}"; do
    mkdir -p "$found/inputs/$target"
    # No decoder may take more than 64 MiB or 10 seconds for an input of 4 KiB.
    cargo fuzz run --sanitizer none "$target" "$found/inputs/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=4096 -malloc_limit_mb=64 -timeout=10 -verbosity=0 -print_final_stats=1 ||
        failed+=("$target")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzz: FAILED: ${failed[*]}; the inputs are in fuzz/artifacts: correct the decoder, and add them to fuzz/corpus"
    exit 1
fi
echo "fuzz: ${#targets[@]} targets ran $seconds s each without a crash"
