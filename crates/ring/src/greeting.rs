//! The first message of each side on the socket.

/// Magic number with the version of the ring; every change of layout or messages changes it.
const MAGIC: [u8; 8] = *b"TMKRING7";
/// Size of a hello, in bytes.
pub(crate) const HELLO_SIZE: usize = MAGIC.len();
/// Maximum size of a welcome, in bytes: there are few views, and paths are limited.
pub(crate) const WELCOME_SIZE_MAX: usize = 64 << 10;

/// The first message of a program.
pub(crate) fn hello() -> [u8; HELLO_SIZE] {
    MAGIC
}

/// Returns true for a hello of this version.
pub(crate) fn is_hello(bytes: &[u8]) -> bool {
    bytes == MAGIC
}

/// The first message of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    /// The program is accepted.
    Views {
        /// Mount points of the views.
        mounts: Vec<Vec<u8>>,
        /// Number of frames of the slab; 0 if frames are never granted.
        frames: u32,
    },
    /// The maximum number of programs is connected.
    Full,
    /// The hello is invalid, the user is not served, or user 0 lacks capabilities.
    Refused,
}

const VIEWS: u8 = 1;
const FULL: u8 = 2;
const REFUSED: u8 = 3;

impl Welcome {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            Self::Views { mounts, frames } => {
                bytes.extend([VIEWS, mounts.len() as u8]);
                for mount in mounts {
                    bytes.extend((mount.len() as u32).to_ne_bytes());
                    bytes.extend(mount);
                }
                bytes.extend(frames.to_ne_bytes());
            }
            Self::Full => bytes.push(FULL),
            Self::Refused => bytes.push(REFUSED),
        }
        bytes
    }

    /// Decodes a welcome; `None` for other bytes or versions.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (verdict, mut rest) = bytes.strip_prefix(&MAGIC)?.split_first()?;
        match *verdict {
            VIEWS => {
                let (count, views) = rest.split_first()?;
                rest = views;
                let mut mounts = Vec::new();
                for _ in 0..*count {
                    let (size, after) = rest.split_first_chunk()?;
                    let (mount, after) = after.split_at_checked(u32::from_ne_bytes(*size) as usize)?;
                    mounts.push(mount.to_vec());
                    rest = after;
                }
                let frames = u32::from_ne_bytes(rest.try_into().ok()?);
                Some(Self::Views { mounts, frames })
            }
            FULL if rest.is_empty() => Some(Self::Full),
            REFUSED if rest.is_empty() => Some(Self::Refused),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn welcomes_round_trip() {
        let mounts = vec![b"/a/shared".to_vec(), Vec::new(), vec![0xff; 300]];
        let views = Welcome::Views { mounts, frames: 56 };
        for welcome in [views.clone(), Welcome::Full, Welcome::Refused] {
            assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        }
        let whole = views.encode();
        assert!((0..whole.len()).all(|size| Welcome::decode(&whole[..size]).is_none()));
        assert_eq!(Welcome::decode(b"TMKRING0\x02"), None);
        assert!(is_hello(&hello()) && !is_hello(&hello()[1..]));
    }
}
