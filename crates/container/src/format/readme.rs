//! A notice for people in the directory of each container. No program reads it.

use tameike_core::Result;
use tameike_io::shared::SharedFs;

pub(crate) const NAME: &[u8] = b"README-tameike.txt";
const TEXT: &str = "\
This directory is a Tameike container: a few large files that hold any number of small ones.
Copy, move and remove it as a whole. Its files are of no use alone, and must not be changed.

    tameike agg ls -r DIRECTORY          lists what is in it
    tameike agg extract DIRECTORY INTO   brings it back as files
    tameike agg verify DIRECTORY         names what is damaged

The Python package `tameike` reads it, too. The format is described in the file DESIGN.md of Tameike, section Containers.
";

/// Writes the notice with the permissions of the file `like`. A failure is only logged: containers are complete without it.
pub(crate) fn put(fs: &dyn SharedFs, like: &[u8]) {
    let put = || -> Result<()> {
        let mode = fs.stat(like)?.mode & 0o777;
        fs.create(NAME, mode)?.write_at(TEXT.as_bytes(), 0)
    };
    if let Err(fault) = put() {
        log::debug!("cannot write README-tameike.txt to a container: {fault}");
    }
}
