#!/usr/bin/env bash
# Runs the long variants of all tests: soak.sh MINUTES
#
# 1. Every module of the end-to-end tests with TAMEIKE_SOAK=1: agents killed at 50 moments, 200 kills of agents whose homes have
#    replicas, 20 GiB through two agents, 200 jobs, 28 network partitions, disks that refuse writes, a million operations of fsx on
#    each view.
# 2. The suites of suites.sh.
# 3. SOAK_SEEDS= (100000) seeds of the simulated cluster, one fifth as many of shared memory regions, and all fault countdowns.
# 4. The random tests of all crates with fresh seeds, repeated until MINUTES are over.
#
# Continues after failures, and prints one line for each part. Fails if a part failed, or if the tests left something on the machine:
# no other jobs may run there. Logs are in target/soak.
set -euo pipefail
shopt -s nullglob

minutes=${1:?usage: soak.sh MINUTES}
seeds=${SOAK_SEEDS:-100000}
cd "$(dirname "$0")/.."
logs=${CARGO_TARGET_DIR:-target}/soak
locked=()
! git ls-files --error-unmatch Cargo.lock >/dev/null 2>&1 || locked=(--locked)
PATH=${CARGO_TARGET_DIR:-$PWD/target}/tools/bin:$PATH
mkdir -p "$logs"
rm -f "$logs"/*.log

# Lists mounts, shared memory, network namespaces and loop devices of tests.
belongings() {
    grep --only-matching '/[^ ]*/tk[A-Za-z0-9]*/[^ ]*' /proc/self/mounts || true
    printf '%s\n' /dev/shm/tameike-* /dev/shm/t[0-9]*n[0-9]* /var/run/netns/t[0-9]*n[0-9]*h[0-9]*
    losetup --list --noheadings --output NAME,BACK-FILE 2>/dev/null || true
}

summary=()
failures=0

# note NAME RESULT SECONDS REMARK
note() {
    summary+=("$(printf '%-16s %-7s %5d s  %s' "$@")")
    echo "soak: ${summary[-1]}"
    [ "$2" = ok ] || failures=$((failures + 1))
}

# run NAME COMMAND...: runs a part with its output in a log
run() {
    local name=$1 begin=$SECONDS log=$logs/$1.log result=ok remark
    shift
    TAMEIKE_SOAK=1 "$@" </dev/null >"$log" 2>&1 || result=FAILED
    if [ "$result" = ok ]; then
        remark="$(awk '/^test result: ok/ { passed += $4 } END { print passed + 0 }' "$log") tests"
        ! grep -Eq '^(seeds|[0-9]+ countdowns) .* passed$' "$log" ||
            remark=$(grep -E '^(seeds|[0-9]+ countdowns) .* passed$' "$log")
    else
        remark="$log: $(grep -m1 -E '^test .* FAILED$|^error|^(seed|countdown) .* fails' "$log" || echo 'see its last lines')"
    fi
    note "$name" "$result" $((SECONDS - begin)) "$remark"
}

echo "soak: building"
cargo test --workspace "${locked[@]}" --no-run
cargo build --release --package tameike-sim "${locked[@]}"
before=$(belongings | sort)
end=$((SECONDS + 60 * minutes))

program=$(scripts/end-to-end-program.sh "${locked[@]}")
for name in $("$program" --list --format terse | sed -n 's/::.*//p' | sort -u); do
    # One test at a time: some tests count the machine's processes and memory.
    run "$name" env --chdir=crates/cli ../../scripts/test-modules.sh "$program" "$name" --nocapture --test-threads=1
done

run other-ways scripts/suites.sh "${locked[@]}"
run simulated cargo run --release --package tameike-sim "${locked[@]}" -- run --seeds "0..$seeds" --keep-going
run simulated-regions cargo run --release --package tameike-sim "${locked[@]}" -- regions --seeds "0..$((seeds / 5))" --keep-going
run countdowns cargo run --release --package tameike-sim "${locked[@]}" -- countdowns --keep-going

round=0
while [ "$round" -eq 0 ] || [ "$SECONDS" -lt "$end" ]; do
    round=$((round + 1))
    run "random-$round" env PROPTEST_CASES=2048 cargo test --workspace --exclude tameike "${locked[@]}"
done

# Only if cargo-fuzz is installed, as `make fuzz` does.
if cargo fuzz --version >/dev/null 2>&1; then
    run fuzz scripts/fuzz.sh "${FUZZ_SECONDS:-60}"
fi

left=$(comm -13 <(echo "$before") <(belongings | sort))
if [ -n "$left" ]; then
    note leftovers-check FAILED 0 "left on the machine: $(echo "$left" | paste -sd ' ')"
fi

echo
echo "soak: summary"
printf '  %s\n' "${summary[@]}"
if [ "$failures" -gt 0 ]; then
    echo "soak: $failures of ${#summary[@]} FAILED; the log of a failure gives its seed as TAMEIKE_SEED=..."
    exit 1
fi
echo "soak: all ${#summary[@]} passed"
