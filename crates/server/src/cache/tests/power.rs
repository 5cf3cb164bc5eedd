//! Loss of a coordinator's records by power loss.

use super::bed::{Bed, bytes};
use tameike_core::limits::UNIT_SIZE;

/// Regression: a coordinator lost the record of a removed file. Other nodes, where the file had been opened since, kept its dirty bytes.
/// The next file with the inode number contained them.
#[test]
fn a_removed_file_without_a_record_leaves_no_bytes() {
    for is_opened in [false, true] {
        let bed = Bed::new(16, 2);
        let (client, remover) = (bed.client(0), bed.client(0));
        let opened = bed.run(async move {
            client.create(b"file", &bytes(1, 2 * UNIT_SIZE)).await?;
            client.open(b"file", false).await
        });
        bed.lose_power(bed.cluster.inode_home(opened.expect("a file").inode));
        assert!(bed.dirty_bytes() > 0, "the other node keeps its dirty bytes");
        let removed = bed.run(async move {
            if is_opened {
                remover.open(b"file", false).await?;
            }
            remover.unlink(b"file").await
        });
        assert_eq!(removed.map_err(|fault| fault.to_string()), Ok(()));
        assert_eq!(bed.dirty_bytes(), 0, "opened: {is_opened}");
    }
}
