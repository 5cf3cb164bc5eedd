//! Programs in C that use the library, in jobs.

use crate::kit::Kit;
use crate::support::{Site, is_root, preload, succeed};
use std::process::Command;

/// The program has the same output and files in each view as in a plain directory, and other nodes and programs see the files.
/// Returns the job's status.
fn run_in_all_views(options: &[&str]) -> String {
    let kit = Kit::new();
    let program = kit.build("calls");
    let site = Site::new();
    let sums = "find . -type f -print0 | sort -z | xargs -0 sha256sum";
    let script = format!("{}; {sums}", program.display());
    let expected = succeed(Command::new("bash").args(["-euc", &script]).current_dir(site.plain()));
    let inner = format!(
        r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_NODE_LOCAL" "$TAMEIKE_CACHE"; do
               mkdir "$view/here"; cd "$view/here"; {script}; echo ---
           done
           cd "$TAMEIKE_SHARED/here"; {sums} > /dev/shm/$TAMEIKE_JOB.sums
           tameike exec --node 1 --cwd "$TAMEIKE_SHARED/here" -- sha256sum --quiet -c /dev/shm/$TAMEIKE_JOB.sums
           rm /dev/shm/$TAMEIKE_JOB.sums
           tameike status --json"#
    );
    let text = succeed(&mut site.job(2, options, &inner));
    preload::assert_equal_in_all_views(&text, &expected).to_owned()
}

#[test]
fn a_program_with_the_library_gives_the_same_results_in_each_view() {
    let status = run_in_all_views(&[]);
    assert!(preload::answered(&status) > 200, "requests went through the kernel: {status}");
}

#[test]
fn a_program_with_the_library_works_without_a_ring() {
    let status = run_in_all_views(&["--no-ring"]);
    assert!(!status.contains("ring_answered"), "the job has a ring: {status}");
}

/// A read-only mount also binds ring calls, which the agent would execute.
#[test]
fn a_view_that_is_mounted_read_only_is_not_changed() {
    let kit = Kit::new();
    let site = Site::new();
    let script = format!(r#"{} "$TAMEIKE_SHARED""#, kit.build("mounts").display());
    succeed(&mut site.job(1, &[], &script));
}

/// After a change of user, the permissions of the new user apply.
#[test]
fn a_program_that_changes_its_user_has_the_permissions_of_the_new_user() {
    if !is_root() {
        return;
    }
    let kit = Kit::new();
    let site = Site::new();
    let script = format!(
        r#"dir=$TAMEIKE_SHARED; while [ "$dir" != / ]; do chmod a+x "$dir"; dir=$(dirname "$dir"); done
        {} "$TAMEIKE_SHARED""#,
        kit.build("users").display()
    );
    succeed(&mut site.job(1, &[], &script));
}
