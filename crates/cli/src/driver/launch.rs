//! Prepares a command inside a node: through `tameike enter`, on this host or over ssh.

use super::protocol::Launch;
use crate::node::enter::write_variables;
use crate::place::base::node_dir;
use crate::place::record::JobRecord;
use crate::settings::hostfile::HostSpec;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{detach, random_bytes};

/// A command that is ready to start.
pub struct Prepared {
    /// The command; the caller sets standard input, output and error.
    pub command: Command,
    /// The name by which the node's agent can signal it.
    pub name: String,
    /// True on another host: signals then go through the agent.
    pub is_remote: bool,
}

/// Prepares `launch` for a node of the job. `terminal` is true if input and output are a terminal.
pub fn prepare(record: &JobRecord, job_dir: &Path, launch: &Launch, terminal: bool) -> Result<Prepared> {
    let count = record.plan.nodes.len();
    let host = record.plan.nodes.get(launch.node as usize).ok_or_else(|| {
        Fault::new(
            Errno::EINVAL,
            format!("the job has nodes 0 to {}, and no node {}", count - 1, launch.node),
        )
    })?;
    if record.gone.contains(&launch.node) {
        return Err(Fault::new(Errno::EINVAL, format!("node {} has left the job", launch.node)));
    }
    let name: String = random_bytes::<8>()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let words = enter_words(job_dir, launch, &name);
    keep_variables(record, host, job_dir, (launch, &name))?;
    if host.is_here() {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tameike").args(&words);
        command.env_clear().envs(
            launch
                .environment
                .iter()
                .cloned()
                .map(|(name, value)| (OsString::from(name), OsString::from(value))),
        );
        return Ok(Prepared { command, name, is_remote: false });
    }
    let mut command = over_ssh(record, host, &words, terminal);
    // Ctrl-C must reach the remote program, and not end the ssh that carries its output.
    detach(&mut command);
    Ok(Prepared { command, name, is_remote: true })
}

/// Returns a command that runs `tameike` with these words on another host.
pub fn over_ssh(record: &JobRecord, host: &HostSpec, words: &[OsString], terminal: bool) -> Command {
    let mut command = Command::new(&record.plan.ssh[0]);
    command.args(&record.plan.ssh[1..]).args(terminal.then_some("-t")).arg(&host.host);
    let program = record.plan.remote_program.as_os_str();
    command.arg(remote_line(std::iter::once(program).chain(words.iter().map(OsString::as_os_str))));
    command
}

fn place_words(job_dir: &Path, node: u32, name: &str) -> [OsString; 6] {
    let node = node.to_string();
    ["--job-dir".into(), job_dir.into(), "--node".into(), node.into(), "--name".into(), name.into()]
}

fn enter_words(job_dir: &Path, launch: &Launch, name: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["enter".into()];
    words.extend(place_words(job_dir, launch.node, name));
    words.extend(["--cwd".into(), launch.cwd.clone().into_os_string()]);
    words.extend((!launch.variables.is_empty()).then(|| "--variables".into()));
    words.extend(launch.preload.then(|| "--preload".into()));
    words.push("--".into());
    words.extend(launch.command.iter().cloned().map(OsString::from));
    words
}

/// Passes the command's variables in a file. Their values must not appear on a command line, which other users can read.
fn keep_variables(
    record: &JobRecord,
    host: &HostSpec,
    job_dir: &Path,
    (launch, name): (&Launch, &str),
) -> Result<()> {
    if launch.variables.is_empty() {
        return Ok(());
    }
    let doing = format!("sending variables to node {}", launch.node);
    let failed = |error| Fault::from_os(&doing, &error);
    let text = serde_json::to_string(&launch.variables).map_err(|error| failed(error.into()))?;
    if host.is_here() {
        return write_variables(&node_dir(job_dir, launch.node), name, &text);
    }
    let mut words = vec!["keep-variables".into()];
    words.extend(place_words(job_dir, launch.node, name));
    let mut command = over_ssh(record, host, &words, false);
    detach(&mut command);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        return Err(Fault::io(format!("{doing}: {}: {status}", record.plan.ssh[0])));
    }
    written.map_err(failed)
}

/// Quotes words for the shell of another host.
pub fn remote_line<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> OsString {
    let mut line = Vec::new();
    for word in words {
        if !line.is_empty() {
            line.push(b' ');
        }
        line.push(b'\'');
        for &byte in word.as_bytes() {
            if byte == b'\'' { line.extend(br"'\''") } else { line.push(byte) }
        }
        line.push(b'\'');
    }
    OsString::from_vec(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_pass_through_a_remote_shell() {
        let words = ["printf", "%s|", "a b", "it's", "$HOME", "", "\"x\"\n", "*"].map(OsStr::new);
        let output = Command::new("sh").arg("-c").arg(remote_line(words)).output().expect("a shell");
        assert_eq!(output.stdout, b"a b|it's|$HOME||\"x\"\n|*|");
    }
}
