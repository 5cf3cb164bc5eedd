//! S19: "A view that is full fails writes with ENOSPC, at the write or at the close; what was acknowledged by an
//! earlier close stays." Here others take the space of the disk below before the view is full: the disk refuses, and the programs
//! that write are told so.

#[path = "support/mounts.rs"]
mod mounts;
mod support;

use mounts::Mounts;
use std::fs;
use support::{Site, shown};

/// Size of the disk.
const DISK_MIB: u32 = 160;
/// What somebody else takes of it.
const BALLAST_MIB: u32 = 80;
const CAPACITY_MIB: u32 = 96;

/// Fills the view with files of 3 MB until one fails: on a disk with too little space, and when that has its space back. `DISK`, `BALLAST` and `CAPACITY` are given as arguments.
const FILL: &str = r#"
import errno, os, sys

disk, ballast, capacity = sys.argv[1], int(sys.argv[2]) << 20, int(sys.argv[3]) << 20
content = bytes(range(256)) * 12000

def fill(step):
    kept = []
    for number in range(200):
        name = f"{step}-{number}"
        try:
            with open(name, "wb") as file:
                file.write(content)
                os.fsync(file.fileno())
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            break
        kept.append(name)
    else:
        raise AssertionError("the view takes more than there is")
    for name in kept:
        with open(name, "rb") as file: assert file.read() == content, name
    return len(kept) * len(content)

with open(f"{disk}/ballast", "wb") as file: os.posix_fallocate(file.fileno(), 0, ballast)
found = os.statvfs(disk)
# Of what is set aside for root, too, whose test this is.
left = found.f_bfree * found.f_bsize
# Little of the disk is lost to what is set aside ahead of writes.
filled = fill("full")
assert left * 3 // 4 < filled <= left, (filled, left)
os.unlink(f"{disk}/ballast")
for name in os.listdir("."): os.unlink(name)
os.sync()
filled = fill("roomy")
assert capacity * 9 // 10 < filled <= capacity, (filled, capacity)
"#;

#[test]
fn a_full_disk_says_so_and_keeps_what_it_has() {
    let site = Site::new();
    let Some(mounts) = Mounts::new() else { return };
    let disk = site.plain().join("disk");
    fs::create_dir(&disk).expect("a directory");
    let image = site.plain().join("image");
    let made = mounts.shell(&format!(
        "truncate -s {DISK_MIB}M {0}; mkfs.ext4 -q {0}; mount -o loop {0} {1}",
        image.display(),
        disk.display()
    ));
    if !made.status.success() {
        return println!("not tested: a file system on a loop device: {}", shown(&made));
    }
    let device = disk.to_str().expect("plain path");
    let program = site.plain().join("fill.py");
    fs::write(&program, FILL).expect("the program");
    let capacity = format!("shared={CAPACITY_MIB}M");
    let options = ["--device", device, "--capacity", &capacity, "--memory", "64MiB"];
    let script = format!(
        r#"cd "$TAMEIKE_SHARED"; python3 {} {device} {BALLAST_MIB} {CAPACITY_MIB}"#,
        program.display()
    );
    let output = mounts.inside(&site.job(1, &options, &script)).output().expect("nsenter is installed");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(mounts.must(&format!("ls -A {device}")).trim(), "lost+found");
    site.assert_clean();
}
