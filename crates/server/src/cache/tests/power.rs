//! Loss of a coordinator's records by power loss.

use super::bed::{Bed, bytes};
use tameike_core::limits::UNIT_SIZE;

/// Regression: a coordinator lost the record of a removed file. Other nodes, where the file had been opened since, kept its dirty bytes.
/// The next file with the inode number contained them.
#[test]
fn a_removed_file_without_a_record_leaves_no_bytes() {
    for is_opened in [false, true] {
        let bed = Bed::new(16, 2);
        let client = bed.client(0);
        bed.create("file", &bytes(1, 2 * UNIT_SIZE));
        let opened = bed.run(client.open(b"file", false)).expect("open");
        bed.lose_power(bed.cluster.primary(bed.cluster.inode_home(opened.inode)));
        assert!(bed.dirty_bytes() > 0, "the other node keeps its dirty bytes");
        if is_opened {
            bed.run(client.open(b"file", false)).expect("open");
        }
        bed.run(client.unlink(b"file")).expect("unlink");
        assert_eq!(bed.dirty_bytes(), 0, "opened: {is_opened}");
    }
}
