# Parts of the scripts in this directory. Needs repository= and work=, a temporary directory.

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

# region NODES FABRIC PROGRAM ARGUMENT...: one process for each node, in a new job. Each gets its rank and NODES
# after the arguments, and then ${options:-}.
region() {
    # The job's shell expands its own variables.
    # shellcheck disable=SC2016
    tameike run --local "$1" --fabric "$2" --shared "$work/shared" -- bash -c '
        nodes=$1 program=$2 processes=()
        shift 2
        for ((rank = 0; rank < nodes; rank++)); do
            tameike exec --node "$rank" -- taskset -c "$rank" "$program" "$TAMEIKE_SHARED/region" "$@" "$rank" "$nodes" ${options:-} &
            processes+=($!)
        done
        for process in "${processes[@]}"; do wait "$process" || exit; done' bash "$1" "${@:3}" 2>>"$work/errors"
}
