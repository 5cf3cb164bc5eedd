//! `tameike bench net`: requests network measurements from agents of a job, one at a time.

use super::connection::Connection;
use crate::arguments::NetArguments;
use crate::driver::protocol::{ClientRequest, DriverReply};
use crate::place::base::{self, Base};
use crate::place::record::JobRecord;
use crate::report;
use crate::report::network::{Network, Series};
use crate::report::progress::{self, Display};
use std::path::Path;
use std::process::{Command, Stdio};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::measure::{Order, Quantity};
use tameike_core::{Errno, Fault, NodeId, Result};

/// Default fabrics when no job runs.
const FABRICS: [&str; 2] = ["auto", "tcp"];
/// Memory and capacity of each node of a job that is started for measurements.
const MEMORY: &str = "256MiB";
const CAPACITY: &str = "64MiB";

/// Measures, and prints the outcomes. Returns the exit code.
pub fn bench_net(arguments: &NetArguments) -> u8 {
    let delivered = measure(arguments).and_then(|network| deliver(&network, arguments));
    report::exit_code(delivered.map(|()| 0))
}

fn measure(arguments: &NetArguments) -> Result<Network> {
    let mut fabrics = arguments.fabric.clone();
    if fabrics.is_empty() && arguments.job.job.is_none() && arguments.nodes.is_none() {
        let base = Base::open(&base::path())?;
        if JobRecord::all(&base)?.is_empty() {
            fabrics = FABRICS.map(str::to_owned).into();
        }
    }
    if fabrics.is_empty() {
        return measure_job(arguments);
    }
    let mut network = Network::default();
    for fabric in fabrics {
        let measured = measure_new_job(arguments, &fabric)?;
        network
            .series
            .extend(measured.series.into_iter().map(|one| Series { fabric: fabric.clone(), ..one }));
    }
    Ok(network)
}

fn sizes(arguments: &NetArguments) -> Vec<u32> {
    let mut sizes = arguments.sizes.clone();
    if sizes.is_empty() {
        sizes.extend((0..=UNIT_SIZE.ilog2()).map(|power| 1 << power));
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Runs this program as the command of a job of two nodes, so that the job ends with it in every case.
fn measure_new_job(arguments: &NetArguments, fabric: &str) -> Result<Network> {
    let doing = format!("measuring a job of two nodes with the fabric {fabric}");
    let failed = |error| Fault::from_os(&doing, &error);
    let program = std::env::current_exe().map_err(failed)?;
    let sizes: Vec<_> = sizes(arguments).iter().map(u32::to_string).collect();
    let mut command = Command::new(&program);
    command.args(["run", "--local", "2", "--memory", MEMORY, "--capacity", CAPACITY, "--fabric", fabric]);
    command.arg("--").arg(&program).args(["bench", "net", "--json", "--nodes", "0,1"]);
    command.args(["--repetitions", &arguments.repetitions.to_string()]);
    command.args(["--time", &arguments.time.to_string(), "--window", &arguments.window.to_string()]);
    command.args(["--sizes", &sizes.join(",")]);
    // The new job must not inherit settings.
    command.env_remove("TAMEIKE_CONFIG").env_remove("TAMEIKE_JOB").stdout(Stdio::piped());
    let output = command.spawn().and_then(std::process::Child::wait_with_output).map_err(failed)?;
    if !output.status.success() {
        return Err(Fault::io(format!("{doing}: it exited with {}; see the messages above", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.into()))
}

fn measure_job(arguments: &NetArguments) -> Result<Network> {
    let (job_dir, record) = JobRecord::find(arguments.job.job.as_ref())?;
    let nodes = arguments.nodes.unwrap_or([0, 1]);
    let count = record.plan.nodes.len();
    let host = |node: u32| {
        let spec = record.plan.nodes.get(node as usize);
        let none = || {
            Fault::new(Errno::EINVAL, format!("the job has no node {node}: it has nodes 0 to {}", count - 1))
        };
        spec.map(|spec| spec.host.clone()).ok_or_else(none)
    };
    let mut series = Series {
        job: record.plan.job.clone(),
        fabric: fabric_of(&record)?,
        nodes,
        hosts: [host(nodes[0])?, host(nodes[1])?],
        outcomes: Vec::new(),
    };
    let sizes = sizes(arguments);
    let mut display = Display::new(progress::BENCH);
    let count = (Quantity::ALL.len() * sizes.len()) as u64;
    for quantity in Quantity::ALL {
        for &size in &sizes {
            let number = series.outcomes.len() as u64 + 1;
            let what = report::network::name(quantity);
            display.measuring(number, count, format!("{what} of {size} bytes over {}", series.fabric));
            let order = Order {
                quantity,
                with: NodeId(nodes[1]),
                size,
                window: arguments.window,
                repetitions: arguments.repetitions,
                repetition_ms: arguments.time,
            };
            series.outcomes.push(ask(&job_dir, nodes[0], order)?);
        }
    }
    display.finish();
    Ok(Network { series: vec![series] })
}

/// Returns the value of `--fabric`.
fn fabric_of(record: &JobRecord) -> Result<String> {
    let fabric = &record.plan.fabric;
    let value = serde_json::to_value(fabric).map_err(|error| Fault::io(error.to_string()))?;
    Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn ask(job_dir: &Path, node: u32, order: Order) -> Result<tameike_core::wire::measure::Outcome> {
    let mut connection = Connection::ask(job_dir, &ClientRequest::Measure { node, order }, &[])?;
    match connection.must_next()? {
        DriverReply::Measured(outcome) => Ok(outcome),
        other => Err(other.out_of_turn()),
    }
}

fn deliver(network: &Network, arguments: &NetArguments) -> Result<()> {
    let out = &mut std::io::stdout().lock();
    let printed = match (arguments.json, arguments.csv) {
        (true, _) => network.write_json(out),
        (_, true) => network.write_csv(out),
        _ => network.write(out),
    };
    printed.map_err(|error| Fault::from_os("printing the measurements", &error))
}
