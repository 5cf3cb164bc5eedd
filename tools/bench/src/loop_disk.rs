//! XFS file systems on loop devices, whose images are sparse files without a name.

use crate::outcome::{Context, Outcome, output_of};
use crate::wait;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Time for the processes of a killed namespace to end, and its mounts with them.
const DETACH_LIMIT: Duration = Duration::from_secs(30);

/// A loop device with an XFS file system, which is detached when this value is dropped.
#[derive(Debug)]
pub struct LoopDisk {
    device: String,
}

impl LoopDisk {
    /// Makes one of this size, whose image is in `directory`. `name` is unique among the images of this process.
    pub fn new(directory: &Path, name: &str, size_gib: u64) -> Outcome<Self> {
        let image = directory.join(format!("tameike-bench-{}{name}.image", std::process::id()));
        let doing = || format!("make {}", image.display());
        File::create_new(&image).and_then(|file| file.set_len(size_gib << 30)).context(doing)?;
        let path = image.display().to_string();
        let losetup = ["losetup", "--find", "--show", "--direct-io=on", &path];
        let made = output(&["mkfs.xfs", "-q", &path]).and_then(|_| output(&losetup));
        // The loop device holds the image open.
        fs::remove_file(&image).context(|| format!("remove {path}"))?;
        Ok(Self { device: made? })
    }

    /// The path of the device.
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // The kernel detaches it when its last mount has ended.
        let state = Path::new("/sys/block").join(self.device.trim_start_matches("/dev/")).join("loop");
        let ended =
            || wait::until(&format!("the end of {}", self.device), DETACH_LIMIT, || Ok(!state.exists()));
        if let Err(message) = output(&["losetup", "--detach", &self.device]).and_then(|_| ended()) {
            eprintln!("tameike-bench: {message}");
        }
    }
}

/// Runs a program to its end, and returns its output.
pub fn output(words: &[&str]) -> Outcome<String> {
    let output = output_of(Command::new(words[0]).args(&words[1..]), " (is it installed?)")?;
    Ok(output.trim().to_owned())
}
