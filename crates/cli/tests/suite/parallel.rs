//! Programs of several nodes that use the same files at the same time: git, HDF5, and MPI-IO.

use crate::support::{Site, is_soak};

/// Debian's interpreter, for which `scripts/install-deps.sh test` installs modules.
const PYTHON: &str = "/usr/bin/python3";

/// Runs a script in both shared views, in a job of two nodes. `$view` is the view, `$marks` a directory outside of the views
/// that all nodes see.
fn run(script: &str) {
    let site = Site::new();
    site.run(
        2,
        &format!(
            r#"marks={marks}
               on() {{ node=$1; shift; timeout {limit} tameike exec --node $node -- "$@"; }}
               until_there() {{ while [ ! -e $1 ]; do sleep 0.02; done; }}
               for view in $TAMEIKE_SHARED $TAMEIKE_CACHE; do
                   cd $view
                   {script}
                   rm -f $marks/*
               done"#,
            marks = site.plain().display(),
            limit = if is_soak() { 1500 } else { 200 },
        ),
    );
}

/// Both nodes push to one bare repository, each to its own branch and both to a common one, as fast as they can; the loser
/// merges and retries.
#[test]
fn two_nodes_push_to_one_repository() {
    let commits = if is_soak() { 60 } else { 3 };
    run(&format!(
        r#"
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
        # A flush changes the ctime (S14c).
        export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.trustctime GIT_CONFIG_VALUE_0=false
        git init --quiet --bare --initial-branch=main hub.git
        git clone --quiet hub.git first 2>/dev/null
        (cd first; echo first > first; git add .; git commit --quiet --message=first; git push --quiet origin HEAD:main)
        cat > $marks/work <<'END'
            set -eu
            git clone --quiet hub.git clone-$TAMEIKE_NODE
            cd clone-$TAMEIKE_NODE
            for i in $(seq {commits}); do
                seq $((i * 300)) > node-$TAMEIKE_NODE-$i
                git add .
                git commit --quiet --message="node $TAMEIKE_NODE, $i"
                tries=0
                until git push --quiet origin HEAD:main 2>$0-text-$TAMEIKE_NODE; do
                    grep -qE 'fetch first|non-fast-forward|cannot lock ref|failed to update ref|incorrect old value|reference already exists' $0-text-$TAMEIKE_NODE || {{ cat $0-text-$TAMEIKE_NODE >&2; exit 1; }}
                    tries=$((tries + 1)); test $tries -lt 500
                    git pull --quiet --rebase origin main
                done
                git push --quiet --force origin HEAD:node-$TAMEIKE_NODE
            done
END
        on 0 sh $marks/work & one=$!
        on 1 sh $marks/work & two=$!
        wait $one; wait $two
        for node in 0 1; do
            on $node git -C hub.git fsck --full --strict > $marks/fsck 2>&1 || {{ cat $marks/fsck; exit 1; }}
            ! grep -E 'error|missing|broken' $marks/fsck
            test $(on $node git -C hub.git rev-list --count main) = {all}
            test $(on $node git -C hub.git ls-tree --name-only main | wc -l) = {all}
        done
        on 1 git -C hub.git gc --quiet --prune=now
        on 0 git -C hub.git fsck --full --strict
        on 0 git clone --quiet hub.git last
        test "$(cat last/node-1-{commits} | wc -l)" = {lines}
        rm -r hub.git first clone-0 clone-1 last
        "#,
        all = 2 * commits + 1,
        lines = commits * 300,
    ));
}

/// HDF5 locks a file while it is open: one writer, or many readers.
#[test]
fn hdf5_files_are_shared_with_its_locks_on() {
    let times = if is_soak() { 100 } else { 3 };
    run(&format!(
        r#"
        export HDF5_USE_FILE_LOCKING=TRUE
        hdf() {{ node=$1; shift; on $node {PYTHON} {hdf} "$@"; }}
        hdf 0 make file.h5
        hdf 0 hold file.h5 r+ $marks/ready $marks/go & holder=$!
        until_there $marks/ready
        hdf 1 excluded file.h5 r; hdf 1 excluded file.h5 r+
        touch $marks/go; wait $holder; rm $marks/*
        hdf 1 hold file.h5 r $marks/ready $marks/go & holder=$!
        until_there $marks/ready
        hdf 0 excluded file.h5 r+; hdf 0 allowed file.h5 r
        touch $marks/go; wait $holder; rm $marks/*
        writers=
        for writer in 0 1 2 3; do hdf $((writer % 2)) work file.h5 $writer {times} & writers="$writers $!"; done
        for writer in $writers; do wait $writer; done
        hdf 0 check file.h5 4 {times}; hdf 1 check file.h5 4 {times}
        "#,
        hdf = crate::suites::file("hdf.py"),
    ));
}

/// Four ranks on two nodes write interleaved unaligned records into one file, with collective and independent calls, and read
/// those of other ranks; with both MPI-IO implementations of Open MPI.
#[test]
fn mpi_ranks_write_interleaved_records_into_one_file() {
    let rounds = if is_soak() { 400 } else { 6 };
    run(&format!(
        r#"
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        # An allocation of Slurm has other names for its hosts.
        slurm="SLURM_JOBID=1 SLURM_NODELIST=host[1-2] SLURM_TASKS_PER_NODE=2(x2) SLURM_NNODES=2"
        # Nodes of one machine: they are found apart, but have only its loopback between them.
        for io in ompio romio321; do
            on 0 env $slurm mpirun --mca io $io --mca plm rsh --mca plm_rsh_agent {agent} --mca ras ^slurm --leave-session-attached \
                --mca btl tcp,self --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo \
                --host node-0:2,node-1:2 {PYTHON} {records} $view/$io {rounds} > $marks/text-$io
            grep -qx 'exact on 4 ranks' $marks/text-$io || {{ cat $marks/text-$io; exit 1; }}
            rm $view/$io-*
        done
        "#,
        agent = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/mpi/on-node"),
        records = crate::suites::file("records.py"),
    ));
}
