#!/usr/bin/env bash
# The end-to-end tests once more, in the other ways in which programs reach a job: suites.sh [--locked]
#
# By FUSE over io_uring (as root, where the kernel has it), with every program preloaded, and as a plain user, in namespaces
# (as root, who can become one). Says which way is not run, and why; fails when a test does. With TAMEIKE_SOAK=1 the tests
# are the long ones, and there are more of them. No other jobs may run on the machine meanwhile.
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

# tests MODULE...: runs the tests of these modules
tests() {
    (cd crates/cli && ../../scripts/test-modules.sh "$program" "$*")
}

by_rings() {
    if [ ! -w "$parameter" ]; then
        echo "suites: not run by rings: $parameter cannot be written"
        return
    fi
    local before
    before=$(cat "$parameter")
    # shellcheck disable=SC2064 # what it is now
    trap "echo $before >$parameter" EXIT
    echo Y >"$parameter"
    echo "suites: by rings"
    tests "${suites[@]}" "${ring_suites[@]}"
    echo "$before" >"$parameter"
}

preloaded() {
    echo "suites: preloaded"
    TAMEIKE_TEST_PRELOAD=1 tests "${suites[@]}" "${preloaded_suites[@]}"
}

# plain PROGRAM MODULE...: runs tests in a mount namespace of its own, where every user may use FUSE
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
        echo "suites: not run as another user: that takes root"
        return
    fi
    if ! setpriv --reuid="$nobody" --regid="$nobody" --clear-groups test -x "$program"; then
        echo "suites: not run as a plain user: user $nobody may not execute $program"
        return
    fi
    echo "suites: as a plain user"
    local place
    place=$(mktemp --directory)
    TMPDIR=$place unshare --mount bash -euo pipefail -c "$(declare -f plain); readonly nobody=$nobody; plain \"\$@\"" plain "$program" "${suites[@]}"
    rmdir "$place"
}

by_rings
preloaded
as_plain_user
