//! The first words of either end on the socket.

/// What the ring of this version begins with; every change of layout or messages changes it.
const MAGIC: [u8; 8] = *b"TMKRING6";
/// Size of a hello.
pub(crate) const HELLO_SIZE: usize = MAGIC.len();
/// Most bytes of a welcome: views are few, and their paths bounded.
pub(crate) const WELCOME_SIZE_MAX: usize = 64 << 10;

/// What a program says first.
pub(crate) fn hello() -> [u8; HELLO_SIZE] {
    MAGIC
}

/// Whether these bytes are a hello of this version.
pub(crate) fn is_hello(bytes: &[u8]) -> bool {
    bytes == MAGIC
}

/// What the agent says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    /// Come in.
    Views {
        /// Their mount points.
        mounts: Vec<Vec<u8>>,
        /// Frames of the slab, of which some may be lent; 0 where none ever are.
        frames: u32,
    },
    /// There is no room for another.
    Full,
    /// This user is not served, or user 0 without a superuser's capabilities, or the hello was none.
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

    /// What these bytes say; none when they are not of this version.
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
    fn a_welcome_is_read_as_it_was_written() {
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
