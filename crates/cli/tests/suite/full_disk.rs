//! S19a. Other programs take the space of the disk before the view is full: the disk refuses, and writers get the error.

use crate::support::mounts::Mounts;
use crate::support::{Run, Site, shown, utf8};
use std::fs;

/// A disk, sizes in MiB.
struct Disk {
    make: &'static str,
    size: u32,
    /// Space that another program takes.
    ballast: u32,
    /// Capacity of the view.
    capacity: u32,
}

const DISKS: [Disk; 2] = [
    Disk { make: "mkfs.ext4 -q", size: 160, ballast: 80, capacity: 96 },
    Disk { make: "mkfs.xfs -q -K", size: 320, ballast: 160, capacity: 160 },
];

/// Fills the view with files of 3 MB until one fails: on a disk with too little space, and when it has its space again.
/// `DISK`, `BALLAST` and `CAPACITY` are arguments.
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
left = found.f_bfree * found.f_frsize
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
fn a_full_disk_returns_enospc_and_keeps_its_files() {
    DISKS.iter().for_each(fill);
}

fn fill(disk: &Disk) {
    let Disk { make, size, ballast, capacity } = disk;
    let site = Site::new();
    let Some(mounts) = Mounts::new() else { return };
    let mounted = site.plain().join("disk");
    fs::create_dir(&mounted).expect("a directory");
    let image = site.plain().join("image");
    let made = mounts.shell(&format!(
        "truncate -s {size}M {0}; {make} {0}; mount -o loop {0} {1}",
        image.display(),
        mounted.display()
    ));
    if !made.status.success() {
        return println!("not tested: {make} on a loop device: {}", shown(&made));
    }
    let device = utf8(&mounted);
    let of_view = format!("shared={capacity}M");
    let options = ["--device", device, "--capacity", &of_view, "--memory", "64MiB"];
    let script = format!(r#"cd "$TAMEIKE_SHARED"; {} {device} {ballast} {capacity}"#, site.python(FILL));
    mounts.inside(&site.job(1, &options, &script)).exits(0);
    assert_eq!(mounts.must(&format!("ls -AI lost+found {device}")), "");
}
