//! Arguments of `tameike bench`.

use super::JobChoice;
use crate::settings::size;
use clap::{Args, Subcommand};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::measure::{REPETITION_MS_MAX, REPETITIONS_MAX, WINDOW_MAX};

/// The subcommands of `tameike bench`.
#[derive(Debug, Subcommand)]
pub enum BenchAction {
    /// Measure latency and bandwidth between the agents of two nodes, over message sizes
    #[command(after_long_help = NET_LONG_HELP)]
    Net(NetArguments),
}

/// `tameike bench net`
#[derive(Debug, Args)]
pub struct NetArguments {
    #[command(flatten)]
    pub job: JobChoice,
    /// Two nodes of a running job [default: 0,1]
    #[arg(long, value_name = "A,B", value_parser = parse_nodes)]
    pub nodes: Option<[u32; 2]>,
    /// Start a job of two nodes on this machine for each of these fabrics (see `tameike run --help`) [default, when no job
    /// is running: auto,tcp]
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["job", "nodes"])]
    pub fabric: Vec<String>,
    /// Message sizes, each up to 1MiB [default: the powers of two from 1 to 1MiB]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub sizes: Vec<u32>,
    /// Repetitions of each measurement; the median is shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=REPETITIONS_MAX as i64))]
    pub repetitions: u32,
    /// Duration of one repetition in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=REPETITION_MS_MAX as i64))]
    pub time: u32,
    /// Messages in flight, for bandwidth
    #[arg(long, value_name = "N", default_value_t = WINDOW_MAX, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX as i64))]
    pub window: u32,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Print CSV: a line with the median of each fabric, quantity and size
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

fn parse_nodes(text: &str) -> Result<[u32; 2], String> {
    let nodes: Option<Vec<u32>> = text.split(',').map(|node| node.trim().parse().ok()).collect();
    match nodes.as_deref() {
        Some(&[one, other]) if one != other => Ok([one, other]),
        _ => Err("expected two different node numbers, like 0,3".to_owned()),
    }
}

fn parse_size(text: &str) -> Result<u32, String> {
    let size = size::parse(text).map_err(|fault| fault.to_string())?;
    match u32::try_from(size) {
        Ok(size) if (1..=UNIT_SIZE as u32).contains(&size) => Ok(size),
        _ => Err("a message is 1 byte to 1MiB".to_owned()),
    }
}

const NET_LONG_HELP: &str = "\
The agent of the first node measures with that of the second, over the network of
the job. The figures are those of the OSU micro-benchmarks:

  latency    half the round-trip time (osu_latency): median and 99th percentile
  one way    the first node sends a window of messages, and the next window when
             all are answered (osu_bw)
  both ways  both nodes do so at the same time (osu_bibw)
  put        the second node puts bytes into frames of the first (osu_put_bw)
  get        the first node gets bytes from a frame of the second (osu_get_bw)

Bandwidths are medians of the repetitions; MB/s are 10^6 bytes per second. The
receiver compares the data with what was sent: a difference ends the measurement
with an error. Programs of the job continue, and share network and cores with it.

Examples:
  tameike bench net                               two nodes on this machine, auto and tcp
  tameike bench net --job demo --nodes 0,3 --csv > net.csv
  tameike bench net --sizes 8,64KiB,1MiB --json

Exit code: 0 if everything was measured, 71 if not.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_two_and_sizes_fit_a_frame() {
        assert_eq!(parse_nodes("0, 3"), Ok([0, 3]));
        for wrong in ["", "1", "1,1", "0,1,2", "a,b"] {
            assert!(parse_nodes(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_size("1"), parse_size("1MiB")), (Ok(1), Ok(1 << 20)));
        for wrong in ["0", "1048577", "2MiB", "much"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
