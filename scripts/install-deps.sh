#!/usr/bin/env bash
# Installs what a purpose needs and this machine lacks: install-deps.sh build|test|python|run|bench|fuzz
#
# Debian and its kin only; elsewhere it names what is missing. Asks nothing, changes nothing that is there.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-}
compiler=(gcc libc6-dev)
case $purpose in
    build) packages=("${compiler[@]}") ;;
    test) packages=("${compiler[@]}" attr binutils-source e2fsprogs fio fuse3 gfortran git iproute2 libfabric1 libopenmpi-dev make mergerfs montage openmpi-bin procps
        python-drizzle-testdata python3 python3-h5py python3-mpi4py python3-venv rsync sqlite3 tar util-linux xfsprogs xz-utils) ;;
    python) packages=("${compiler[@]}" python3 python3-venv) ;;
    run) packages=("${compiler[@]}" fuse3 montage python-drizzle-testdata python3) ;;
    fuzz) packages=("${compiler[@]}" g++) ;;
    bench) packages=("${compiler[@]}" fuse3 gfarm-client gfarm2fs gfmd gfsd glusterfs-client glusterfs-server iproute2 linux-perf
        moosefs-chunkserver moosefs-client moosefs-master util-linux xfsprogs) ;;
    *)
        echo "usage: install-deps.sh build|test|python|run|bench|fuzz" >&2
        exit 2
        ;;
esac

fail() {
    echo "install-deps: $*" >&2
    exit 1
}

# The Rust tools come from rustup, never from Debian, whose compiler is older than this code.
command -v cargo >/dev/null || fail "no Rust here: install it from https://rustup.rs, then try again"
if [ "$purpose" = test ] && ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
    command -v rustup >/dev/null || fail "no cargo fmt or no cargo clippy here: install rustfmt and clippy"
    rustup component add rustfmt clippy || fail "rustup could not add rustfmt and clippy: see above"
fi

if [ "$purpose" = fuzz ] && ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install --locked cargo-fuzz || fail "cargo could not install cargo-fuzz: see above"
fi

# Suites that tests run, beside the build: NAME VERSION, from crates.io.
suites=()
[ "$purpose" != test ] || suites=("pjdfstest 0.2.2" "fsx 0.3.2")

install_suites() {
    local suite name version tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
    for suite in "${suites[@]}"; do
        read -r name version <<<"$suite"
        [ "$("$tools/bin/$name" --version 2>/dev/null)" != "$suite" ] || continue
        echo "install-deps: building $suite"
        # Their dependencies are what their authors tested with. cargo's advice about PATH is not for us.
        cargo install --quiet --locked --root "$tools" --version "$version" "$name" ||
            fail "could not build $suite from crates.io: cargo says why above"
    done
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "install-deps: not a Debian system; these must be there already (Debian's names): ${packages[*]}" >&2
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
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    by_hand="ask for it: apt-get install ${missing[*]}"
    command -v sudo >/dev/null || fail "not root, and no sudo here; $by_hand"
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
# The lists of packages may be absent or old: fetch them only when the first try fails.
if ! install; then
    if ! { "${apt[@]}" update </dev/null >"$log" 2>&1 && install; }; then
        tail -n 20 "$log" >&2
        fail "could not install ${missing[*]}: apt-get says why above; mend that, or install them by hand"
    fi
fi
install_suites
