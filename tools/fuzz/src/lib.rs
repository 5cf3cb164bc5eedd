//! Everything that decodes bytes from outside, as functions that take any bytes.
//!
//! A target panics when a decoder does, when what it gives is encoded to something else, or takes more room than the
//! bytes can mean. `fuzz/` runs each under libFuzzer; the tests of this crate replay the corpus, and change it at
//! random, on every run.
#![forbid(unsafe_code)]

pub mod mutation;
pub mod seeds;

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::path::PathBuf;
use tameike::driver::protocol::{ClientRequest, DriverReply};
use tameike::place::record::{DeviceOwner, JobRecord, NodeState};
use tameike_agent::control::{AgentAnswer, AgentCommand, AgentStart};
use tameike_core::wire::call::{ReplyHeader, RequestHeader};
use tameike_core::wire::endpoint::Endpoint;
use tameike_core::wire::{Reply, Request, codec};

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// All targets by name; each has a directory in `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 25] = [
    ("request", request),
    ("reply", reply),
    ("frame_header", tameike_fabric::fuzz::frame_header),
    ("hello", tameike_fabric::fuzz::hello),
    ("endpoint", endpoint),
    ("ring_request", tameike_ring::fuzz::request),
    ("ring_reply", tameike_ring::fuzz::reply),
    ("ring_greeting", tameike_ring::fuzz::greeting),
    ("ring_placed", tameike_ring::fuzz::placed),
    ("fuse_request", tameike_fuse::fuzz::fuse_request),
    ("log", tameike_store::fuzz::log),
    ("log_command", tameike_store::fuzz::log_command),
    ("unit_record", tameike_store::fuzz::unit_record),
    ("table_values", tameike_store::fuzz::table_values),
    ("store_format", tameike_store::fuzz::format),
    ("container_header", tameike_container::fuzz::header),
    ("container_record", tameike_container::fuzz::record),
    ("container_lane", tameike_container::fuzz::lane),
    ("container_page", tameike_container::fuzz::page),
    ("journal_record", tameike_server::fuzz::journal_record),
    ("journal", journal),
    ("config", config),
    ("hostfile", hostfile),
    ("control", control),
    ("records", records),
];

/// Runs the target of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target of this name");
    target(bytes);
}

/// Where the corpus is.
pub fn corpus() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"))
}

/// What one byte of a message can mean, in bytes: an empty list element, or a number.
const EXPANSION_MAX: usize = 16;

/// A decoded message is encoded to one that decodes to the same, and that is not much larger.
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = codec::decode::<T>(bytes) {
        let again = codec::encode(&message).expect("it was no larger than this");
        assert!(again.len() <= bytes.len().saturating_mul(EXPANSION_MAX));
        assert_eq!(codec::decode::<T>(&again).as_ref(), Ok(&message));
    }
}

/// The body of a message with a request.
pub fn request(bytes: &[u8]) {
    if let Ok((header, rest)) = codec::decode_first::<RequestHeader>(bytes) {
        let again = codec::encode(&header).expect("small");
        assert_eq!(codec::decode::<RequestHeader>(&again), Ok(header));
        round_trip::<Request>(rest);
        if let Ok(request) = codec::decode::<Request>(rest) {
            assert!(!request.expects_payload() || request.is_read_only(), "a payload may be asked for twice");
        }
    }
}

/// The body of a message with a reply.
pub fn reply(bytes: &[u8]) {
    if let Ok((header, rest)) = codec::decode_first::<ReplyHeader>(bytes) {
        let again = codec::encode(&header).expect("small");
        assert_eq!(codec::decode::<ReplyHeader>(&again), Ok(header));
        round_trip::<Reply>(rest);
    }
}

/// What an agent tells of its endpoint.
pub fn endpoint(bytes: &[u8]) {
    round_trip::<Endpoint>(bytes);
}

/// The journal of the cache view: what the log says of it, and what the table has.
pub fn journal(bytes: &[u8]) {
    tameike_server::fuzz::journal_log(bytes);
    tameike_server::fuzz::journal(bytes);
}

/// A configuration file.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(fault) = tameike::settings::config::parse(text) {
        assert!(fault.has_message(), "a wrong line is told");
    }
}

/// A hostfile, and a list of hosts.
pub fn hostfile(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match tameike::settings::hostfile::parse(text) {
        Ok(hosts) => assert!(hosts.iter().all(|host| !host.host.is_empty() && !host.host.starts_with('-'))),
        Err(fault) => assert!(fault.to_string().contains("line "), "{fault}"),
    }
    if let Ok(hosts) = tameike::settings::hostfile::parse_list(text) {
        assert!(hosts.iter().all(|host| !host.host.starts_with('-')));
    }
}

fn json<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(bytes) {
        // Paths that are not text cannot be written as JSON, and are never read from it either.
        let again = serde_json::to_vec(&value).expect("it was JSON");
        assert_eq!(serde_json::from_slice::<T>(&again).expect("as written"), value);
    }
}

/// Lines between driver and agents, and between commands and driver.
pub fn control(bytes: &[u8]) {
    json::<AgentStart>(bytes);
    json::<AgentCommand>(bytes);
    json::<AgentAnswer>(bytes);
    json::<ClientRequest>(bytes);
    json::<DriverReply>(bytes);
}

/// Records that jobs, nodes and devices leave for who comes later.
pub fn records(bytes: &[u8]) {
    json::<JobRecord>(bytes);
    json::<NodeState>(bytes);
    json::<DeviceOwner>(bytes);
}
