//! `tameike mirror` and `tameike receive`.

use crate::mirror::target::MirrorTarget;
use clap::Args;
use std::path::PathBuf;

/// `tameike mirror`
#[derive(Debug, Args)]
pub struct MirrorArguments {
    /// The directory that is mirrored
    #[arg(value_name = "DIR")]
    pub source: PathBuf,
    /// The mirror: a directory on another host, or another one here. Names that DIR lacks are removed there
    #[arg(value_name = "HOST:DIR2")]
    pub target: MirrorTarget,
    /// Compare files with the same size and time by checksum
    #[arg(long)]
    pub verify: bool,
    /// Also write what is missing to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
    /// Read the keys ssh and remote-program from FILE (TOML)
    #[arg(long, value_name = "FILE", env = "TAMEIKE_CONFIG")]
    pub config: Option<PathBuf>,
}

/// `tameike receive`
#[derive(Debug, Args)]
pub struct ReceiveArguments {
    /// The directory of the mirror; created if it is missing, but not the one above
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Below the options in `tameike mirror --help`.
pub(super) const MIRROR_LONG_HELP: &str = "\
Compares the two trees by names, types, sizes, times, permissions and user.* attributes,
sends what differs, and removes names at the mirror that DIR lacks. Of large files only
the blocks are sent that differ. A broken connection is made again.

A job with --mirror does this at its start, and `tameike recover` for its job. Use the
command if a job has ended with an incomplete mirror, if its driver was killed, or if
other programs have changed DIR.

The other host needs the same version of tameike, at the path of this one or at that of
the key remote-program. The variable TAMEIKE_SSH, or the key ssh, is the ssh command.

Examples:
  tameike mirror /scratch/results site-b:/archive/results
  tameike mirror --verify results /mnt/backup/results

Exit code: 0 if the mirror is equal, 75 if it lacks something, 71 if the command could
not run.";

/// Below the options in `tameike receive --help`.
pub(super) const RECEIVE_LONG_HELP: &str = "\
Reads orders from standard input and changes only files below DIR, which it locks. It
needs no privileges; without them, files get the owner of the process. For an ssh key
that may do nothing else, use in authorized_keys:

  restrict,command=\"tameike receive /archive/results\" ssh-ed25519 ...";
