# Parts of the scripts in this directory, which set output= to a directory.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$output"
output=$(cd "$output" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/shared"
export PYTHONPATH=$repository/bench/dsm PYTHONDONTWRITEBYTECODE=1

# compile SOURCE PROGRAM: compiles a C program of the repository with the library.
compile() {
    local flags
    if [ -n "${LIBRARY_DIR:-}" ]; then
        flags=(-I"$repository/crates/capi/include" -L"$LIBRARY_DIR" -Wl,-rpath,"$LIBRARY_DIR" -ltameike)
    else
        read -ra flags <<<"$(pkg-config --cflags --libs tameike)"
    fi
    cc -O3 "$repository/$1" -o "$2" "${flags[@]}"
}

# on_all_nodes NODES PROGRAM ARGUMENT...: one process on each node of the job that runs this shell. Each gets its rank and NODES after the
# arguments, and then ${options:-}.
on_all_nodes() {
    local nodes=$1 rank processes=()
    shift
    for ((rank = 0; rank < nodes; rank++)); do
        # shellcheck disable=SC2086
        tameike exec --node "$rank" -- taskset -c "$rank" "$@" "$rank" "$nodes" ${options:-} &
        processes+=($!)
    done
    for rank in "${processes[@]}"; do wait "$rank" || return; done
}
export -f on_all_nodes

# region NODES FABRIC PROGRAM ARGUMENT...: one process on each node of a new job, on a region of it.
region() {
    # The job's shell expands its own variables.
    # shellcheck disable=SC2016
    tameike run --local "$1" --fabric "$2" --shared "$work/shared" -- \
        bash -c 'on_all_nodes "$1" "$2" "$TAMEIKE_SHARED/region" "${@:3}"' bash "$1" "${@:3}" 2>>"$work/errors"
}
