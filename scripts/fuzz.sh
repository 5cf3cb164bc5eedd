#!/usr/bin/env bash
# Every fuzz target under libFuzzer: fuzz.sh SECONDS [TARGET...]
#
# New inputs that reach something stay in target/fuzz (kept between runs), those that crash in fuzz/artifacts. It ends with
# the names of the targets that failed. No nightly compiler: coverage needs none, sanitizers would.
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
    # An input is at most 4 KiB, of which no decoder may take more than this, nor this long.
    cargo fuzz run --sanitizer none "$target" "$found/inputs/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=4096 -malloc_limit_mb=64 -timeout=10 -verbosity=0 -print_final_stats=1 ||
        failed+=("$target")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzz: FAILED: ${failed[*]}; the inputs are in fuzz/artifacts: mend the decoder, and put them into fuzz/corpus"
    exit 1
fi
echo "fuzz: ${#targets[@]} targets ran $seconds s each without a crash"
