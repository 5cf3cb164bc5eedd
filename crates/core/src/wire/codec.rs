//! Encoding and decoding of messages. Decoding never panics, and never allocates more than the message's size.

use crate::errno::{Errno, Fault, Result};
use crate::limits::MESSAGE_SIZE_MAX;
use serde::{Serialize, de::DeserializeOwned};

/// Encodes a message.
///
/// # Errors
/// `EINVAL` if it exceeds [`MESSAGE_SIZE_MAX`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let bytes = postcard::to_stdvec(message)
        .map_err(|error| Fault::new(Errno::EINVAL, format!("cannot encode a message: {error}")))?;
    if bytes.len() > MESSAGE_SIZE_MAX {
        return Err(Fault::new(Errno::EINVAL, format!("a message of {} bytes is too large", bytes.len())));
    }
    Ok(bytes)
}

/// Decodes a message that must fill `bytes` exactly.
///
/// # Errors
/// `EBADMSG` if the bytes are not such a message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(Fault::new(Errno::EBADMSG, format!("{} bytes follow a message", rest.len()))),
        Err(error) => Err(Fault::new(Errno::EBADMSG, format!("cannot decode a message: {error}"))),
    }
}

/// Decodes a message from the start of `bytes`, and returns the bytes that follow.
///
/// # Errors
/// `EBADMSG` if the bytes do not begin with such a message.
pub fn decode_first<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8])> {
    postcard::take_from_bytes(bytes)
        .map_err(|error| Fault::new(Errno::EBADMSG, format!("cannot decode a message: {error}")))
}
