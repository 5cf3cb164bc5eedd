//! S25: "What is in a directory from opendir or rewinddir until its end is read is listed once, whatever else comes and
//! goes meanwhile; seekdir leads back to where telldir was."

mod support;

use std::fs;
use support::{Site, succeed};

#[test]
fn large_directories_are_listed_right_while_they_change() {
    let site = Site::new();
    let program = site.plain().join("readers.py");
    fs::write(&program, include_str!("listing/readers.py")).expect("the program");
    let program = program.display();
    // More than a page, and wide in the job-shared view.
    let script = format!(
        r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE" "$TAMEIKE_NODE_LOCAL"; do python3 {program} "$view" 3000; done"#
    );
    succeed(&mut site.job(2, &[], &script));
    site.assert_clean();
}
