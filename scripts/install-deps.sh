#!/usr/bin/env bash
# Installs the packages that a purpose needs and this machine lacks: install-deps.sh build|test|python|run|bench|fuzz
#
# On Debian and derived systems only; elsewhere it lists the packages. Asks no questions, and upgrades nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-}
compiler=(gcc libc6-dev)
case $purpose in
    build) packages=("${compiler[@]}") ;;
    test) packages=("${compiler[@]}" attr binutils-source e2fsprogs fio fuse3 gfortran git iproute2 libfabric1 libopenmpi-dev make mergerfs montage openmpi-bin procps
        python-drizzle-testdata python3 python3-h5py python3-mpi4py python3-venv rsync sqlite3 tar util-linux xfsprogs xz-utils) ;;
    python) packages=("${compiler[@]}" fuse3 python3 python3-venv) ;;
    run) packages=("${compiler[@]}" fuse3 montage python-drizzle-testdata python3) ;;
    fuzz) packages=("${compiler[@]}" g++) ;;
    bench) packages=("${compiler[@]}" fio fuse3 gfarm-client gfarm2fs gfmd gfsd glusterfs-client glusterfs-server iproute2 linux-perf
        moosefs-chunkserver moosefs-client moosefs-master openmpi-bin util-linux xfsprogs) ;;
    *)
        echo "usage: install-deps.sh build|test|python|run|bench|fuzz" >&2
        exit 2
        ;;
esac

fail() {
    echo "install-deps: $*" >&2
    exit 1
}

# Rust comes from rustup: Debian's compiler is too old for this code.
command -v cargo >/dev/null || fail "Rust is missing: install it from https://rustup.rs, then retry"
if [ "$purpose" = test ] && ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
    command -v rustup >/dev/null || fail "cargo fmt or cargo clippy is missing: install rustfmt and clippy"
    rustup component add rustfmt clippy || fail "rustup could not add rustfmt and clippy: see above"
fi

if [ "$purpose" = fuzz ] && ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install --locked cargo-fuzz || fail "cargo could not install cargo-fuzz: see above"
fi

# Test suites from crates.io: NAME VERSION. Without optimization: they compile in a third of the time, and the tests take as long.
suites=()
[ "$purpose" != test ] || suites=("pjdfstest 0.2.2" "fsx 0.3.2")
tools=${CARGO_TARGET_DIR:-$PWD/target}/tools

install_suites() {
    local suite name version
    for suite in "${suites[@]}"; do
        read -r name version <<<"$suite"
        [ "$("$tools/bin/$name" --version 2>/dev/null)" != "$suite" ] || continue
        echo "install-deps: building $suite"
        # --locked: with the dependencies that the authors tested. --quiet: without cargo's advice about PATH.
        CARGO_PROFILE_DEV_DEBUG=false CARGO_TARGET_DIR=$tools/build cargo install --debug --quiet --locked --root "$tools" --version "$version" "$name" ||
            fail "could not build $suite from crates.io: see cargo's error above"
    done
}

# The tests start Python hundreds of times: this link, first in PATH, avoids wrappers such as pyenv's, which take longer than the programs.
link_python() {
    [ "$purpose" = test ] || return 0
    mkdir -p "$tools/bin"
    ln --symbolic --force /usr/bin/python3 "$tools/bin/python3"
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "install-deps: not a Debian system; install these yourself (names of Debian packages): ${packages[*]}" >&2
    install_suites
    exit 0
fi

missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    install_suites
    link_python
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    by_hand="ask the administrator for: apt-get install ${missing[*]}"
    command -v sudo >/dev/null || fail "not root, and sudo is missing; $by_hand"
    sudo --non-interactive true 2>/dev/null || fail "not root, and sudo wants a password; $by_hand"
    as_root=(sudo --non-interactive)
fi

apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 --quiet)
echo "install-deps: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    "${apt[@]}" install --yes --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1
}
# The package lists may be missing or old: update them only if the first attempt fails.
if ! install; then
    if ! { "${apt[@]}" update </dev/null >"$log" 2>&1 && install; }; then
        tail -n 20 "$log" >&2
        fail "could not install ${missing[*]}: see apt-get's error above; correct it, or install them by hand"
    fi
fi
install_suites
link_python
