//! Many small files, which `tar` unpacks on a host and later compares.

use super::hosts::Hosts;
use super::sample::Measured;
use crate::clock::Stopwatch;
use crate::outcome::{Context, Outcome};
use std::fs;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a file.
const SIZE: usize = 4096;
/// Files of a directory, at most.
const PER_DIRECTORY: u32 = 1000;
/// Arguments: the archive, and the directory.
const UNPACK: &str = "tar --extract --file \"$0\" --directory \"$1\"";
const COMPARE: &str = "tar --compare --file \"$0\" --directory \"$1\"";
const PACK: &str = "tar --create --file \"$0\" --directory \"$1\" . && rm -r \"$1\"";

/// A tree of files.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    pub files: u32,
    /// A number of the content, different for each pass.
    pub pass: u32,
}

impl Tree {
    /// Bytes of all files.
    pub fn bytes(self) -> u64 {
        u64::from(self.files) * SIZE as u64
    }

    /// Unpacks it in `directory` of a host.
    pub fn unpack(self, hosts: &Hosts, host: usize, directory: &str) -> Outcome<Measured> {
        let archive = self.archive(hosts)?;
        let watch = Stopwatch::start();
        hosts.shell(host, UNPACK, &[&archive, directory])?;
        Ok(Measured {
            seconds: watch.elapsed().as_secs_f64(),
            operations: self.files.into(),
            bytes: self.bytes() as f64,
            latency_us: None,
            programs_seconds: None,
        })
    }

    /// Compares all names, attributes and bytes, and removes the archive.
    pub fn compare(self, hosts: &Hosts, host: usize, directory: &str) -> Outcome<()> {
        let archive = hosts.text("tree.tar");
        hosts.shell(host, COMPARE, &[&archive, directory])?;
        fs::remove_file(&archive).context(|| format!("remove {archive}"))
    }

    /// Makes the archive, which all hosts see.
    fn archive(self, hosts: &Hosts) -> Outcome<String> {
        let (tree, archive) = (hosts.path("tree"), hosts.text("tree.tar"));
        for number in 0..self.files {
            let directory = tree.join((number / PER_DIRECTORY).to_string());
            if number % PER_DIRECTORY == 0 {
                fs::create_dir_all(&directory).context(|| format!("make {}", directory.display()))?;
            }
            let path = directory.join(number.to_string());
            fs::write(&path, self.content(number)).context(|| format!("write {}", path.display()))?;
        }
        hosts.shell(0, PACK, &[&archive, &hosts.text("tree")])?;
        Ok(archive)
    }

    fn content(self, number: u32) -> Vec<u8> {
        let word = |place: usize| xxh3_64(format!("{}/{number}/{place}", self.pass).as_bytes());
        (0..SIZE / 8).flat_map(|place| word(place).to_le_bytes()).collect()
    }
}
