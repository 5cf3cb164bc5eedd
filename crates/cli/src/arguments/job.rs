//! The options that describe a job: those of `run` and `up`.

use crate::settings::capacity::Capacity;
use crate::settings::size;
use clap::Args;
use serde::Deserialize;
use std::ffi::OsString;
use std::path::PathBuf;
use tameike_agent::control::{AggregateChoice, FabricChoice};
use tameike_core::{CoreSet, JobId};

/// Nodes, views and limits of a job. Each option has a key of the same name in the configuration file; the
/// command line wins.
#[derive(Clone, Debug, Default, Args)]
pub struct JobOptions {
    /// Start N nodes, all on this machine [default: 1]
    #[arg(long, value_name = "N", group = "nodes", help_heading = "Nodes")]
    pub local: Option<u32>,
    /// Start a node on each of these hosts, over ssh; the first is node 0. A host that is named twice gets two nodes
    #[arg(long, value_name = "A,B,...", group = "nodes", help_heading = "Nodes")]
    pub hosts: Option<String>,
    /// Start a node on each host listed in FILE, one per line
    ///
    /// Words after the host: `device=no` (the node uses the devices of its group), `group=NUMBER`,
    /// `address=ADDRESS` (how the other nodes reach it); `slots=` and `# comments` are ignored. A host gets one
    /// node, however many lines it has, so that `$PBS_NODEFILE` and `<(scontrol show hostnames)` are hostfiles.
    #[arg(long, value_name = "FILE", group = "nodes", help_heading = "Nodes")]
    pub hostfile: Option<PathBuf>,
    /// Directory of the shared file system behind the cache view; without it there is no cache view
    #[arg(long, value_name = "DIR", help_heading = "Views")]
    pub shared: Option<PathBuf>,
    /// Which new files of the cache view go to the shared directory packed in a container: all (`on`), those of directories in
    /// which many are made fast (`auto`), or none (`off`); by directory with `tameike layout set --aggregate` [default: off; without
    /// a word: on]
    #[arg(
        long,
        value_name = "on|auto|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        help_heading = "Views"
    )]
    pub aggregate: Option<AggregateChoice>,
    /// Packed files that are larger when the job ends become files of their own [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Views")]
    pub aggregate_max: Option<u64>,
    /// Show files that other users have packed in DIR: trust them with what DIR shows. Without it their container is ignored
    #[arg(long, help_heading = "Views")]
    pub packed_by_others: bool,
    /// Keep mappings and writes to the same 4 KiB of a file coherent also when they write at the same time. Files that are opened
    /// for reading and writing are then written more slowly
    #[arg(long, help_heading = "Views")]
    pub coherent_mmap: bool,
    /// Space on each node: SIZE for all views together, or VIEW=SIZE,... with the views node-local, shared,
    /// cache [default: half of free memory, or 4/5 of the free disk]
    #[arg(long, value_name = "SIZE", help_heading = "Views")]
    pub capacity: Option<Capacity>,
    /// Where the nodes keep data: `ram`, or a directory of their local disks [default: ram]
    #[arg(long, value_name = "ram|DIR", help_heading = "Views")]
    pub device: Option<DeviceChoice>,
    /// Memory of each agent for buffers, beside the device [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Views")]
    pub memory: Option<u64>,
    /// How nodes speak with each other: `auto` (through memory within a host, over TCP between hosts), `tcp`, or `ofi`
    /// (through the site's libfabric, by its provider PROVIDER or the first that the machine has; `tameike doctor` lists
    /// them) [default: auto]
    #[arg(long, value_name = "auto|tcp|ofi[:PROVIDER]", help_heading = "Nodes")]
    pub fabric: Option<FabricChoice>,
    /// Nodes that each node stays connected with at a time: beyond that, connections that were idle for longest are closed
    /// [default: 128, or one for each 16 files that an agent may have open]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Nodes")]
    pub connections: Option<u32>,
    /// Read the bytes of other nodes from where they belong alone, and not from the memory of nodes that have read them
    #[arg(long, help_heading = "Nodes")]
    pub no_holders: bool,
    /// Bind each agent to these cores of its host, like `0,2-3`, and leave the others to programs [default: the system
    /// chooses among all]
    #[arg(long, value_name = "LIST", help_heading = "Nodes")]
    pub cores: Option<CoreSet>,
    /// Have agents serve programs through the kernel alone: no `--preload`, and libtameike goes through the kernel, too
    #[arg(long, help_heading = "Nodes")]
    pub no_ring: bool,
    /// Name of the job: 1 to 32 of a-z, 0-9 and '-' [default: a random one]
    #[arg(long, value_name = "NAME", value_parser = parse_job, help_heading = "Job")]
    pub job: Option<JobId>,
    /// Read every drained file back from the shared file system and compare
    #[arg(long, help_heading = "Job")]
    pub verify: bool,
    /// After Ctrl-C or SIGTERM, drain for this long at most; the rest stays in a journal [default: 20]
    #[arg(long, value_name = "SECONDS", help_heading = "Job")]
    pub grace: Option<u64>,
    /// Read options from FILE (TOML)
    #[arg(long, value_name = "FILE", env = "TAMEIKE_CONFIG", help_heading = "Job")]
    pub config: Option<PathBuf>,
}

/// Where nodes keep data.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum DeviceChoice {
    /// In memory.
    Ram,
    /// In a directory on each node's disk.
    Directory(PathBuf),
}

impl From<String> for DeviceChoice {
    fn from(text: String) -> Self {
        if text == "ram" { Self::Ram } else { Self::Directory(text.into()) }
    }
}

impl std::str::FromStr for DeviceChoice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.to_owned().into())
    }
}

/// Reads a job's name.
pub(super) fn parse_job(text: &str) -> Result<JobId, String> {
    JobId::new(text)
}

/// Reads `NAME=VALUE`, or `NAME` for the value in the environment.
pub(super) fn parse_variable(text: &str) -> Result<(String, OsString), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, OsString::from(value)),
        None => (text, std::env::var_os(text).ok_or_else(|| format!("{text} is not set here"))?),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!("{name:?} is not the name of a variable"));
    }
    Ok((name.to_owned(), value))
}

/// Below the options in `tameike run --help`.
pub(super) const RUN_LONG_HELP: &str = "\
CMD runs on node 0, as if you had typed it: same directory, terminal, input and
output, signals, exit code. It finds the views in these variables:

  TAMEIKE_SHARED      the tree that all nodes of the job share
  TAMEIKE_NODE_LOCAL  the node's own tree
  TAMEIKE_CACHE       the tree of --shared DIR (only with --shared)
  TAMEIKE_JOB         the job's name
  TAMEIKE_NODE        the node's number (here 0)
  TAMEIKE_NODES       how many nodes there are

The views are mounted in private namespaces: only the job's programs see them,
at the same paths on every node, and they end with the job. `tameike exec` runs
programs on the other nodes. Programs that CMD leaves running when it ends are
ended with the job.

When CMD has ended, everything written in the cache view is drained to DIR and
proven by the receipt: path, size, BLAKE3 checksum (as `b3sum` prints it), and
whether the file was synced or read back and compared (--verify). A checksum that
begins with units: is of those parts of 1 MiB that the job wrote into, where it
did not write the whole file. Files that were only made, and are empty, are in DIR
from the start and not listed.

Ctrl-C and SIGTERM go to CMD; when it has ended, what can be drained within the
grace time is. What cannot stays in a journal, which `tameike recover` finishes.
A second Ctrl-C within two seconds, or while draining, ends at once and leaves
the journal.

Environment:
  TAMEIKE_SSH     how to reach other hosts [ssh -o BatchMode=yes -o ConnectTimeout=30
                  -o ServerAliveInterval=15 -o ServerAliveCountMax=3]
  TAMEIKE_CONFIG  a configuration file, as --config
  TAMEIKE_LOG     error, warn, info, debug or trace: how much agents log
  TMPDIR          where jobs keep sockets and logs, in tameike-UID [/tmp]

Examples:
  tameike run --local 4 --shared ~/results -- ./workflow.sh
  tameike run --hostfile $PBS_NODEFILE --device /scratch --shared $PWD/out -- mpirun ./app
  tameike run --capacity shared=20G,node-local=4G -- sh -c 'cp -r data $TAMEIKE_SHARED; ./app'";

/// Below the options in `tameike up --help`.
pub(super) const UP_LONG_HELP: &str = "\
Prints the job's name and the paths of its views when the job is ready. The job
outlives the terminal; its messages go to supervisor.log in the job's directory.

Examples:
  tameike up --local 2 --shared ~/results --job demo
  tameike exec --job demo -- bash          a shell that sees the views
  tameike exec --job demo --all -- df -h
  tameike down --job demo --verify";

/// Below the options in `tameike mount --help`.
pub(super) const MOUNT_LONG_HELP: &str = "\
A job's views are mounted in private namespaces, which is why they need no root
and leave nothing behind. Programs reach them by

  tameike exec --job NAME -- CMD      at the paths of the first column
  the path of the second column       from any program of yours on the node's
                                      host, as long as the job runs

Any other program finds an empty directory at the path of the first column. It
refuses writes; what root writes there is kept, and named when the job ends.

Where namespaces are refused, both columns are the same path.";

/// Below the options in `tameike cache warm --help`.
pub(super) const WARM_LONG_HELP: &str = "\
One node looks through the directories, and every node of the job reads its own
part of the files: all together, each byte once, and none that the job has
already. Programs then read from the nodes. Holes of files are not read, and
symbolic links are not followed.

What the job held before, and nobody has used since, makes room. What does not
fit the cache area then (see `tameike status`) is left out and told. Nodes give
way to programs that read and write meanwhile. Ctrl-C ends it: what is loaded
stays.

Examples, inside a job:
  tameike cache warm \"$TAMEIKE_CACHE/training\"
  tameike cache warm weights.bin           in the shared directory

Exit code: 0 when all files are loaded, 71 when some could not be read or did
not fit.";

/// Below the options in `tameike cache --help`.
pub(super) const CACHE_LONG_HELP: &str = "\
What programs read in the shared and the cache view comes from the first of
these that has it; one line for each node, sums since it was started:

  own memory       the node's own; not counted is what the kernel, or a
                   preloaded program, had and did not ask the agent for
  others' memory   brought by a node that had it in memory
  homes            brought by the node where that part of the file lies

  requested, delivered, hit rate
                   pages of 4 KiB that other nodes asked this one for, as it
                   may have them in memory, and those that it had and sent
  sent             what it sent to others who read, as a home or from memory

  got from memory, from shared dir
                   what this node, as the home of parts of cached files, did
                   not hold: from memory of other nodes, or from the files of
                   the shared directory

With --files or PATH, one line for each file:

  generation       version of its content, once a node has opened it
  requests, delivered, hit rate
                   how often nodes that may hold it were asked, and had it; the
                   latest counts of each node come with its next open or close
  in memory        bytes that nodes have in memory, all together
  on devices       bytes that the homes of its parts have; of each at least
                   (>=) what 1,024 parts have
  may be held by   nodes, with (requests/delivered) of each

Files of the shared view have their inode numbers for names with --files:
find \"$TAMEIKE_SHARED\" -inum NUMBER finds one.

Whole numbers, in bytes, come with --json, for files also node by node.

Examples:
  tameike cache stat                       all jobs of yours on this host
  tameike cache stat --job demo --files 5
  tameike cache stat \"$TAMEIKE_CACHE/weights.bin\"";

/// Below the options in `tameike recover --help`.
pub(super) const RECOVER_LONG_HELP: &str = "\
A job that was killed, or whose drain was incomplete (exit code 75), leaves what
is not yet on the shared file system in a journal on its nodes' devices: in
memory (/dev/shm, lost at reboot) or in the directory of --device. `recover`
starts agents on the same nodes, finishes the drain, prints the receipt, and
removes the journal when everything is on the shared file system.

Jobs are found by their directories in TMPDIR, and by their journals: those in
/dev/shm, in the device directory of the configuration (TAMEIKE_CONFIG) and in
each --device DIR. So a job that had another TMPDIR is recovered, and one whose
directory was removed, too.

A file that a program had open for writing when the job was killed is CUT OFF: what
there is of it is on the shared file system, and the receipt says how much.

A file that another program has removed from the shared directory, or replaced,
has no place any more, and its journal stays. --to DIR writes what the journal
holds of it to a file below DIR, zeros for the rest, and then forgets it.

With --discard the journals on this host go in any case: what the receipt calls
MISSING is then lost. That is for files that nobody wants any more, and for
journals that are damaged.

What was only in memory is lost when the machine restarts: `recover` then says
which nodes' data that was, and drains what the others have.

Exit code: 0 when everything is, or when there was nothing to do; 75 when
something is still missing (the journal stays), lost or cut off; 71 when a node
could not be reached, or the receipt not be written.";

/// Below the options in `tameike check --help`.
pub(super) const CHECK_LONG_HELP: &str = "\
Reads everything that a node has left on its device: the log, the table of
names, units and journal records, and all file data, which is compared with its
checksums. Every finding is one of

  LOST   bytes or names that are gone, with the file and the range
  wrong  something that follows from the rest and does not; nothing is lost
  note   nothing is wrong: said so that nobody wonders

Without --repair nothing is changed. With it, what is wrong is put right, and
what is lost is cut off from the rest, so that `tameike recover` can drain all
that is whole. Copies of what was cut go to DIR/lost+found: the bytes of a file
at their places in a file named after its number, records in hexadecimal in
`records`, what is lost in words in `lost.txt`. What the cache view has lost is
told by every receipt of the job from then on, which is incomplete.

A store is checked by itself: what other nodes hold of the same files is not.

Exit code: 0 when nothing is wrong; 1 when something was, and all of it is
repaired; 4 when something is, and nothing was changed; 71 when the store could
not be examined or the repair failed.";
