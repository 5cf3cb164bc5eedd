//! S25a, S25b.

use crate::support::{Site, is_soak, succeed};

#[test]
fn large_directories_are_listed_correctly_while_they_change() {
    let site = Site::new();
    let program = site.python(include_str!("listing/readers.py"));
    // More than a page, and sharded in the job-shared view.
    let script = format!(
        r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE" "$TAMEIKE_NODE_LOCAL"; do {program} alone "$view" 3000; done"#
    );
    succeed(&mut site.job(2, &[], &script));
}

/// As many entries as careless programs create: more than fit into one home's pages, its unsharded directory and its reply.
#[test]
fn a_hundred_thousand_entries_are_listed_correctly_while_two_nodes_change_them() {
    let site = Site::new();
    let script = format!(
        r#"readers() {{ node=$1; shift; timeout 500 tameike exec --node $node -- {program} "$@"; }}
           for view in $TAMEIKE_SHARED $TAMEIKE_CACHE; do
               dir=$view/directory; mkdir $dir
               quarter=$(({count} / 4)); fillers=
               for part in 0 1 2 3; do
                   readers $((part % 2)) fill $dir $((part * quarter)) $((part * quarter + quarter)) & fillers="$fillers $!"
               done
               for filler in $fillers; do wait $filler; done
               readers 1 change $dir far {ended} & far=$!
               readers 0 change $dir near {ended} & near=$!
               until [ -e {ended}-far ] && [ -e {ended}-near ]; do sleep 0.01; done
               readers 0 watch $dir {count} {ended}
               wait $far; wait $near
               rm {ended} {ended}-far {ended}-near
               readers 1 watch $dir {count} {ended}
               rm {ended}
           done"#,
        program = site.python(include_str!("listing/readers.py")),
        ended = site.plain().join("ended").display(),
        count = if is_soak() { 100_000 } else { 20_000 },
    );
    succeed(&mut site.job(2, &[], &script));
}
