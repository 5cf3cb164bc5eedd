#!/usr/bin/env bash
# Repeats end-to-end tests over the other frontends: suites.sh [--locked]
#
# - FUSE over io_uring (needs root and kernel support).
# - Every program preloaded.
# - As an unprivileged user, in namespaces (needs root).
#
# Prints which variant is skipped and why, and fails if a test fails. TAMEIKE_SOAK=1 selects the long tests, and more of them. No other
# jobs may run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly parameter=/sys/module/fuse/parameters/enable_uring
readonly nobody=65534
suites=(posix names)
preloaded_suites=(semantics)
ring_suites=(pjdfstest)
if [ "${TAMEIKE_SOAK:-}" = 1 ]; then
    suites+=(semantics locks crash capacity)
    preloaded_suites=(parallel workloads)
    ring_suites+=(fsx)
fi
cargo_options=("$@")

program=$(scripts/end-to-end-program.sh "${cargo_options[@]}")

# tests MODULE...: runs the tests of modules
tests() {
    (cd crates/cli && ../../scripts/test-modules.sh "$program" "$*")
}

over_uring() {
    if [ ! -w "$parameter" ]; then
        echo "suites: skipped io_uring: $parameter is not writable"
        return
    fi
    local before
    before=$(cat "$parameter")
    # shellcheck disable=SC2064 # expand the current value
    trap "echo $before >$parameter" EXIT
    echo Y >"$parameter"
    echo "suites: FUSE over io_uring"
    tests "${suites[@]}" "${ring_suites[@]}"
    echo "$before" >"$parameter"
}

preloaded() {
    echo "suites: preloaded"
    TAMEIKE_TEST_PRELOAD=1 tests "${suites[@]}" "${preloaded_suites[@]}"
}

# plain PROGRAM MODULE...: runs tests in a separate mount namespace, in which every user may use FUSE
plain() {
    mount -t tmpfs none "$TMPDIR"
    chmod 1777 "$TMPDIR"
    mknod -m 666 "$TMPDIR/fuse" c 10 229
    mount --bind "$TMPDIR/fuse" /dev/fuse
    cd crates/cli
    setpriv --reuid="$nobody" --regid="$nobody" --clear-groups --inh-caps=-all \
        env HOME="$TMPDIR" ../../scripts/test-modules.sh "$1" "${*:2}"
}

as_plain_user() {
    if [ "$(id -u)" != 0 ]; then
        echo "suites: skipped the unprivileged user: needs root"
        return
    fi
    if ! setpriv --reuid="$nobody" --regid="$nobody" --clear-groups test -x "$program"; then
        echo "suites: skipped the unprivileged user: user $nobody cannot execute $program"
        return
    fi
    echo "suites: as an unprivileged user"
    local directory
    directory=$(mktemp --directory)
    TMPDIR=$directory unshare --mount bash -euo pipefail -c "$(declare -f plain); readonly nobody=$nobody; plain \"\$@\"" plain "$program" "${suites[@]}"
    rmdir "$directory"
}

over_uring
preloaded
as_plain_user
