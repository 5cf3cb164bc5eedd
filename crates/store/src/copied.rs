//! Log records of a home that is copied to this node: keys of the table that they set or remove, whatever these mean.

use crate::table::Table;
use serde_bytes::ByteBuf;
use tameike_core::Result;
use tameike_core::wire::codec;

/// Keys to set, each with its value, or to remove.
pub type Entries = Vec<(ByteBuf, Option<ByteBuf>)>;

/// The body of a log record that makes these changes.
///
/// # Errors
/// `EINVAL` if it is too large.
pub fn encode(entries: &Entries) -> Result<Vec<u8>> {
    codec::encode(entries)
}

/// Makes the changes of a log record.
///
/// # Errors
/// `EBADMSG` if it is malformed.
pub fn apply(body: &[u8], table: &mut dyn Table) -> Result<()> {
    let entries: Entries = codec::decode(body)?;
    for (key, value) in entries {
        match value {
            Some(value) => table.put(key.into_vec(), value.into_vec()),
            None => table.delete(key.into_vec()),
        }
    }
    Ok(())
}
