//! The options that describe a job, shared by `run` and `up`, and the long help texts of job commands.

use crate::mirror::target::MirrorTarget;
use crate::settings::capacity::Capacity;
use crate::settings::size;
use crate::settings::volume::OwnedVolume;
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
    /// Start a node on each of these hosts over ssh; the first is node 0. A host that is listed twice gets two nodes
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
    /// Also mount the volume NAME of this user, or of OWNER, at $TAMEIKE_VOLUME on each node. An agent of the volume runs on each host
    #[arg(long, value_name = "[OWNER:]NAME", help_heading = "Views")]
    pub volume: Option<OwnedVolume>,
    /// Which new files of the cache view are packed in a container of the shared directory: all (`on`), those of directories
    /// in which many files are created within seconds (`auto`), or none (`off`). `tameike layout set --aggregate` sets it for a
    /// directory [default: off; without a value: on]
    #[arg(
        long,
        value_name = "on|auto|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        help_heading = "Views"
    )]
    pub aggregate: Option<AggregateChoice>,
    /// When the job ends, promote packed files that are larger than SIZE to files of their own [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Views")]
    pub aggregate_max: Option<u64>,
    /// Also show files that other users packed in DIR, and trust their content. Without this, containers of other users are ignored
    #[arg(long, help_heading = "Views")]
    pub packed_by_others: bool,
    /// Keep a mapping and write calls coherent that modify the same 4 KiB of a file at the same time. Writes are then slower to
    /// files that are open for reading and writing
    #[arg(long, help_heading = "Views")]
    pub coherent_mmap: bool,
    /// Also bring what the job changes in DIR to a second place: a directory on another host, over ssh, or another one here. It
    /// becomes equal to DIR first
    #[arg(long, value_name = "HOST:DIR", help_heading = "Views")]
    pub mirror: Option<MirrorTarget>,
    /// Also write the receipt of the mirror to FILE, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Views")]
    pub mirror_receipt: Option<PathBuf>,
    /// Capacity of each node: SIZE for all views together, or VIEW=SIZE,... with the views node-local, shared and cache
    /// [default: half of the free memory, or 4/5 of the free disk space]
    #[arg(long, value_name = "SIZE", help_heading = "Views")]
    pub capacity: Option<Capacity>,
    /// Where the nodes store data: `ram`, or a directory of each node's local disk [default: ram]
    #[arg(long, value_name = "ram|DIR", help_heading = "Views")]
    pub device: Option<DeviceChoice>,
    /// Memory of each agent for buffers, in addition to the device [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Views")]
    pub memory: Option<u64>,
    /// Memory of each agent for pages of shared memory regions; beyond it, pages are evicted to their homes [default: half of the
    /// free memory, or a quarter if the device is in memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "Views")]
    pub region_memory: Option<u64>,
    /// Transport between nodes: `auto` (shared memory within a host, TCP between hosts), `tcp`, or `ofi` (libfabric with the
    /// provider PROVIDER, or with the first that the machine supports; `tameike doctor` lists them) [default: auto]
    #[arg(long, value_name = "auto|tcp|ofi[:PROVIDER]", help_heading = "Nodes")]
    pub fabric: Option<FabricChoice>,
    /// Connections that each node keeps open at a time; beyond that, it closes those that are idle longest [default: 128, or
    /// one for each 16 files that an agent may have open]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Nodes")]
    pub connections: Option<u32>,
    /// Keep each file and name of the job on N nodes, 1 to 3. If one of them fails or hangs, the others serve its data, and the job
    /// continues. Writes take longer, and data takes N times the space [default: 1]
    #[arg(long, value_name = "N", help_heading = "Nodes")]
    pub replicas: Option<u32>,
    /// Read data of other nodes from its home only, and not from the memory of other nodes that have read it
    #[arg(long, help_heading = "Nodes")]
    pub no_peer_reads: bool,
    /// Bind each agent to these cores of its host, like `0,2-3`, and leave the other cores to programs [default: no binding]
    #[arg(long, value_name = "LIST", help_heading = "Nodes")]
    pub cores: Option<CoreSet>,
    /// Serve programs through FUSE only: `--preload` is refused, and libtameike uses FUSE
    #[arg(long, help_heading = "Nodes")]
    pub no_ring: bool,
    /// Name of the job: 1 to 32 of a-z, 0-9 and '-' [default: a random one]
    #[arg(long, value_name = "NAME", value_parser = parse_job, help_heading = "Job")]
    pub job: Option<JobId>,
    /// Read every drained file back from the shared file system and compare
    #[arg(long, help_heading = "Job")]
    pub verify: bool,
    /// After Ctrl-C or SIGTERM, drain for at most this long; the rest stays in the journals [default: 20]
    #[arg(long, value_name = "SECONDS", help_heading = "Job")]
    pub grace: Option<u64>,
    /// Read options from FILE (TOML)
    #[arg(long, value_name = "FILE", env = "TAMEIKE_CONFIG", help_heading = "Job")]
    pub config: Option<PathBuf>,
}

/// The devices of nodes.
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

/// Parses a job name.
pub(super) fn parse_job(text: &str) -> Result<JobId, String> {
    JobId::new(text)
}

/// Parses `NAME=VALUE`, or `NAME` for the value in the environment.
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
CMD runs on node 0 as if started directly: same directory, terminal, input,
output, signals and exit code. These variables name the views:

  TAMEIKE_SHARED      the tree that all nodes of the job share
  TAMEIKE_NODE_LOCAL  the node's own tree
  TAMEIKE_CACHE       the tree of --shared DIR (only with --shared)
  TAMEIKE_VOLUME      the tree of --volume NAME (only with --volume)
  TAMEIKE_JOB         the job's name
  TAMEIKE_NODE        the node's number (here 0)
  TAMEIKE_NODES       how many nodes there are

The views are mounted in private namespaces: only the job's programs see them,
at the same paths on every node, and they end with the job. `tameike exec` runs
programs on the other nodes. When CMD exits, the job ends all its programs.

When CMD has exited, everything written in the cache view is drained to DIR. The
receipt proves each file: path, size, BLAKE3 checksum (as `b3sum` prints it), and
whether the file was synced, or read back and compared (--verify). A checksum
that begins with units: covers the 1 MiB units that the job wrote, of a file that
it did not write completely. Files that were created and stayed empty are in DIR
from the start; the receipt does not list them.

With --mirror, the job also waits until the second place has everything, and compares
the checksums of all files that it has changed. If that fails, the exit code is 75, and
`tameike mirror` completes it.

Ctrl-C and SIGTERM go to CMD. When CMD has exited, the job drains for at most the
grace time. The rest stays in journals; `tameike recover` drains it. A second
Ctrl-C within two seconds, or during the drain, ends the job at once and leaves
the journals.

Environment:
  TAMEIKE_SSH     the ssh command for other hosts [ssh -o BatchMode=yes -o ConnectTimeout=30
                  -o ServerAliveInterval=15 -o ServerAliveCountMax=3]
  TAMEIKE_CONFIG  a configuration file, as --config
  TAMEIKE_LOG     log level of agents: error, warn, info, debug or trace
  TMPDIR          directory of jobs' sockets and logs, in tameike-UID [/tmp]

Examples:
  tameike run --local 4 --shared ~/results -- ./workflow.sh
  tameike run --hostfile $PBS_NODEFILE --device /scratch --shared $PWD/out -- mpirun ./app
  tameike run --capacity shared=20G,node-local=4G -- sh -c 'cp -r data $TAMEIKE_SHARED; ./app'";

/// Below the options in `tameike up --help`.
pub(super) const UP_LONG_HELP: &str = "\
Prints the job's name and the paths of its views when the job is ready. The job
keeps running after logout; its messages go to supervisor.log in its directory.

Examples:
  tameike up --local 2 --shared ~/results --job demo
  tameike exec --job demo -- bash          a shell that sees the views
  tameike exec --job demo --all -- df -h
  tameike down --job demo --verify";

/// Below the options in `tameike mount --help`.
pub(super) const MOUNT_LONG_HELP: &str = "\
A job's views are mounted in private namespaces, which need no root and leave
nothing behind. Programs reach them by

  tameike exec --job NAME -- CMD      at the paths of the first column
  the path of the second column       from any program of yours on the node's
                                      host, while the job runs

Any other program sees an empty directory at the path of the first column. It
refuses writes; what root writes there is kept and reported when the job ends.

Where namespaces are refused, both columns are the same path.";

/// Below the options in `tameike cache warm --help`.
pub(super) const WARM_LONG_HELP: &str = "\
One node lists the directories, and each node of the job reads its part of the
files: each byte once, without those that the job has already. Programs then read
from the nodes. Holes are not read, and symbolic links are not followed.

Loading evicts older data that no program has used since. Files that do not fit
the cache area (see `tameike status`) are skipped and reported. Programs have
priority over loading. Ctrl-C stops the loading; data that is loaded stays.

Examples, inside a job:
  tameike cache warm \"$TAMEIKE_CACHE/training\"
  tameike cache warm weights.bin           in the shared directory

Exit code: 0 if all files are loaded, 71 if some could not be read or did not fit.";

/// Below the options in `tameike cache --help`.
pub(super) const CACHE_LONG_HELP: &str = "\
Reads of programs in the shared and the cache view are served by the first of
these that has the data. One line per node, with sums since the node started:

  own memory       frames of the node; reads that the kernel or a preloaded
                   program served without the agent are not counted
  peer memory      another node that had it in memory
  homes            the node that stores that part of the file

  requested, delivered, hit rate
                   pages of 4 KiB that other nodes requested from this node's
                   memory, and those that it had and sent
  sent             bytes sent to readers on other nodes, from device or memory

  from peers, from shared dir
                   bytes that this node, as the home, lacked and read from the
                   memory of other nodes, or from files of the shared directory

With --files or PATH, one line per file:

  generation       version of the content, once a node has opened it
  requests, delivered, hit rate
                   requests to nodes that may cache it, and those that had it;
                   each node updates its counts at its next open or close
  in memory        bytes in memory of all nodes together
  on devices       bytes on the devices of its homes; >= if a home has more than
                   the 1,024 units that were counted
  cache holders    nodes that may have it in memory, with (requests/delivered)

With --files, files of the shared view are listed by inode number:
find \"$TAMEIKE_SHARED\" -inum NUMBER finds the path.

--json prints exact numbers in bytes, for files also per node.

Examples:
  tameike cache stat                       all jobs of yours on this host
  tameike cache stat --job demo --files 5
  tameike cache stat \"$TAMEIKE_CACHE/weights.bin\"";

/// Below the options in `tameike grow --help`.
pub(super) const GROW_LONG_HELP: &str = "\
`grow` starts agents on the new nodes, with the settings of the job, and waits until
each node has an even share of the data. Programs go on; requests to a node wait for
some milliseconds when another node takes a part of its data over. Programs run on
the new nodes with `tameike exec --node K`. The data of a job moves only if it has
replicas: start the job with --replicas 2 or 3. Nodes on other hosts can be added
only to a job that was started with --hosts or --hostfile.";
pub(super) const RESTART_LONG_HELP: &str = "\
The data of each node first moves to the other nodes, as with `shrink`, if these
are enough for all replicas; otherwise it has a replica less until the new agent has
it again. Then the agent ends, and the program at the same path, or --program, starts
in its place. It must have the same version of the protocol between agents. Views of
the node are not mounted meanwhile, and programs that run there are terminated: use
it for nodes that serve data to others.";
pub(super) const RECOVER_LONG_HELP: &str = "\
A job that was killed, or whose drain was incomplete (exit code 75), leaves its
dirty data in journals on its nodes' devices: in memory (/dev/shm, lost at
reboot) or in the directory of --device. `recover` starts agents on the same
nodes, finishes the drain, prints the receipt, and removes the journals when
everything is on the shared file system.

`recover` finds jobs by their directories in TMPDIR, and by their journals in
/dev/shm, in the device directory of the configuration (TAMEIKE_CONFIG) and in
each --device DIR. It thus also finds jobs that had another TMPDIR, and jobs whose
directory was removed.

A file that a program had open for writing when the job was killed is INTERRUPTED: the
shared file system has what was written of it, and the receipt says how much.

If another program has removed or replaced a file of the shared directory, its
journal stays. --to DIR writes the journaled data of such a file to a file below
DIR, with zeros for the rest, and then removes it from the journal.

--discard removes the journals on this host in any case, and files that the
receipt calls MISSING are lost. Use it for files that are not needed any more,
and for damaged journals.

A restart of a machine loses what was only in its memory: `recover` then names the
nodes that lost data, and drains what the other nodes have.

The mirror of a job with --mirror is compared with the shared directory and completed.

Exit code: 0 if everything is on the shared file system, or if there was nothing
to do; 75 if something is missing (the journals stay), lost or interrupted; 71 if a
node could not be reached or the receipt not be written.";

/// Below the options in `tameike check --help`.
pub(super) const CHECK_LONG_HELP: &str = "\
Reads the whole store that a node left on its device: the log, the table of
names, units and journal records, and all file data, and compares all checksums.
Each finding is one of

  LOST   bytes or names that are gone, with the file and the range
  wrong  derived data that contradicts the rest; nothing is lost
  note   not an error; explains something unusual

Without --repair nothing is changed. --repair corrects what is wrong and detaches
what is lost, so that `tameike recover` can drain the rest. Copies of what was
detached go to DIR/lost+found: file data at its offsets in a file named after the
inode number, records in hexadecimal in `records`, a description in `lost.txt`.
All later receipts of the job report losses of the cache view, and are incomplete.

The check covers this store only, not the parts of files that other nodes store.

Exit code: 0 if nothing is wrong; 1 if everything wrong has been repaired; 4 if
something is wrong and nothing was changed; 71 if the store could not be examined
or the repair failed.

With --replicas, the nodes of a running job compare all copies of its data by
checksum, while programs continue. Damaged bytes are replaced by those of another
copy. If the names or records of a copy differ, another copy is made of them. Bytes
of the cache view that the shared directory has are not compared.

Exit code: 0 if all copies are equal, or equal again; 4 if differences are left,
or not all copies were compared; 71 if the job could not be reached.";
