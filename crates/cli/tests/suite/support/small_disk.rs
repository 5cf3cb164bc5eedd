//! A file system on a disk without space for file data: the kernel buffers each write, the disk refuses it later, and only fsync
//! fails.
//!
//! The disk is a loop device on an image in memory. Space for everything except file data is allocated from the beginning, so that
//! nothing else can fail. Each request to the device is one page: if the image has space for only a part of a longer one, the
//! kernel's loop device loses the rest and reports success, which no program can detect.

use crate::support::mounts::Mounts;
use crate::support::{Site, out, shown};
use std::fs;
use std::path::{Path, PathBuf};

/// The loop device writes pages, file systems write blocks.
const PAGE_KIB: u32 = 4;

/// The command that creates the file system, and the size of its image.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    make: &'static str,
    image_mib: u32,
    /// Size of the files to write.
    pub file_bytes: u32,
}

/// File systems with different write-back and error reporting.
///
/// ext2, which has no journal, reports a failed indirect block to only one of several concurrent fsyncs: its files are of one
/// unit, so that one agent writes each.
pub const KINDS: [Kind; 3] = [
    Kind { make: "mkfs.ext2 -q -b 4096", image_mib: 80, file_bytes: 900_000 },
    Kind { make: "mkfs.ext4 -q -b 4096 -J size=4", image_mib: 80, file_bytes: 1_050_000 },
    Kind { make: "mkfs.xfs -q -K", image_mib: 300, file_bytes: 1_050_000 },
];

impl Kind {
    /// Returns true if its metadata is consistent after a power failure.
    pub fn has_journal(&self) -> bool {
        !self.make.contains("ext2")
    }
}

/// The disk, with its file system mounted.
pub struct SmallDisk<'a> {
    mounts: &'a Mounts,
    kind: Kind,
    image: PathBuf,
    mounted: PathBuf,
    device: String,
    request_kib: String,
}

impl<'a> SmallDisk<'a> {
    /// Creates the disk in the disk directory of the site, and mounts it on its shared directory with files 1 to `files`. It has
    /// `space_kib` of space for file data. `None`, with a message, if this is not possible.
    pub fn new(mounts: &'a Mounts, site: &Site, kind: Kind, files: u32, space_kib: u32) -> Option<Self> {
        let (dir, mounted, image_mib) = (site.disk(), site.shared(), kind.image_mib);
        mounts.mount_memory(dir, &format!("{}m", image_mib + 4));
        let image = dir.join("image");
        let made = mounts.shell(&format!(
            "truncate -s {image_mib}M {0}; {1} {0}; fallocate -l {image_mib}M {0}; losetup --find --show {0}",
            image.display(),
            kind.make
        ));
        if !made.status.success() {
            println!("not tested: {} on a loop device: {}", kind.make, shown(&made));
            return None;
        }
        let device = out(&made).trim().trim_start_matches("/dev/").to_owned();
        let request_kib = fs::read_to_string(Self::limit_file(&device)).unwrap_or_default();
        let disk = Self { mounts, kind, image, mounted: mounted.to_owned(), device, request_kib };
        if let Err(error) = fs::write(Self::limit_file(&disk.device), PAGE_KIB.to_string()) {
            println!("not tested: requests to a loop device cannot be limited: {error}");
            return None;
        }
        disk.mount();
        disk.take_space_away(files, space_kib);
        Some(disk)
    }

    fn limit_file(device: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/{device}/queue/max_sectors_kb"))
    }

    fn mount(&self) {
        self.mounts.must(&format!("mount /dev/{} {}", self.device, self.mounted.display()));
    }

    fn unmount(&self) {
        self.mounts.must(&format!("umount {}", self.mounted.display()));
    }

    /// Frees the blocks of the files, and of similar ones that are removed, from the image. Metadata blocks of the file system
    /// stay.
    fn take_space_away(&self, files: u32, space_kib: u32) {
        let size_bytes = self.kind.file_bytes;
        let (image, mounted) = (self.image.display(), self.mounted.display());
        let dir = self.image.parent().expect("it has a parent").display();
        self.mounts.must(&format!(
            r#"cd {mounted}
               for i in $(seq {files}); do head -c {size_bytes} /dev/zero > $i; head -c {size_bytes} /dev/zero > no-$i; done
               # The image is full when the file system has no space left.
               head -c 1G /dev/zero > no-rest 2>/dev/null || true
               sync -f .
               for i in *; do test -d $i || filefrag -b4096 -v $i; done | tr .: '  ' |
                   awk '$1 ~ /^[0-9]+$/ && NF > 5 {{ print $4 * 4096, $6 * 4096 }}' > {dir}/extents
               rm no-*; cd /; umount {mounted}
               while read -r offset length; do
                   fallocate --punch-hole --offset $offset --length $length {image}
               done < {dir}/extents
               rm {dir}/extents
               mount -o remount,size=$(($(du -k {image} | cut -f1) + {space_kib}))k {dir}"#
        ));
        self.mount();
    }

    /// Gives the disk space for everything.
    pub fn give_space(&self) {
        let dir = self.image.parent().expect("it has a parent");
        self.mounts.resize(dir, &format!("{}m", self.kind.image_mib + 4));
    }

    /// Leaves this much space beyond the data written so far.
    pub fn limit_space(&self, space_kib: u32) {
        let dir = self.image.parent().expect("it has a parent").display();
        let image = self.image.display();
        self.mounts.must(&format!(
            "sync -f {}; mount -o remount,size=$(($(du -k {image} | cut -f1) + {space_kib}))k {dir}",
            self.mounted.display()
        ));
    }

    /// Copies the disk as a power failure would leave it.
    pub fn copy_to(&self, copy: &Path) {
        self.mounts.must(&format!("cp --sparse=always {} {}", self.image.display(), copy.display()));
    }

    /// Like [`Self::forget`], with space for everything before the mount, because the replay of a journal may need space.
    pub fn forget_and_give_space(&self) {
        self.unmount();
        self.give_space();
        self.mount();
    }

    /// Drops all cached data: later reads return the data of the disk.
    pub fn forget(&self) {
        self.unmount();
        self.mount();
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // The device is released when its file system is unmounted, at the latest with the namespace.
        let _ = fs::write(Self::limit_file(&self.device), &self.request_kib);
        let _ = self.mounts.shell(&format!("losetup --detach /dev/{}", self.device));
    }
}
