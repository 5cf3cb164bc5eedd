//! A file system on a disk that has no room for what is written to files: the kernel takes each write into memory,
//! the disk refuses it later, and only fsync tells.
//!
//! The disk is a loop device on an image in memory. Its room for everything but the content of files is there
//! from the beginning, so that nothing else can fail. Each request to the device is one page: of a longer one that
//! the image has room for in part, the kernel's loop device loses the rest and reports success, which no program can
//! see.

use crate::support::mounts::Mounts;
use crate::support::shown;
use std::fs;
use std::path::{Path, PathBuf};

/// Pages are what the loop device writes, blocks what the file systems do.
const PAGE_KIB: u32 = 4;

/// How the file system is made, and how large its image must be.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    make: &'static str,
    image_mib: u32,
    /// Size of the files to write.
    pub file_bytes: u32,
}

/// File systems with other ways to write back and to report what failed.
///
/// ext2, which has no journal, tells an indirect block that it could not write to one of several fsyncs at the same
/// time: its files are of one unit, so that one agent writes each.
pub const KINDS: [Kind; 3] = [
    Kind { make: "mkfs.ext2 -q -b 4096", image_mib: 80, file_bytes: 900_000 },
    Kind { make: "mkfs.ext4 -q -b 4096 -J size=4", image_mib: 80, file_bytes: 1_050_000 },
    Kind { make: "mkfs.xfs -q -K", image_mib: 300, file_bytes: 1_050_000 },
];

impl Kind {
    /// Whether what it tells of files is whole after a loss of power.
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
    /// Makes the disk in the empty directory `dir`, and mounts it on `mounted` with files 1 to `files` on it. For
    /// content it has `room_kib` of room. `None`, with a line that says why, where this cannot be had.
    pub fn new(
        mounts: &'a Mounts,
        kind: Kind,
        (dir, mounted): (&Path, &Path),
        files: u32,
        room_kib: u32,
    ) -> Option<Self> {
        let image_mib = kind.image_mib;
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
        let device = String::from_utf8_lossy(&made.stdout).trim().trim_start_matches("/dev/").to_owned();
        let request_kib = fs::read_to_string(Self::limit_file(&device)).unwrap_or_default();
        let disk = Self { mounts, kind, image, mounted: mounted.to_owned(), device, request_kib };
        if let Err(error) = fs::write(Self::limit_file(&disk.device), PAGE_KIB.to_string()) {
            println!("not tested: requests to a loop device cannot be limited: {error}");
            return None;
        }
        disk.mount();
        disk.take_room_away(files, room_kib);
        Some(disk)
    }

    fn limit_file(device: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/{device}/queue/max_sectors_kb"))
    }

    fn mount(&self) {
        self.mounts.must(&format!("mount /dev/{} {}", self.device, self.mounted.display()));
    }

    /// Takes from the image the blocks of the files and of others like them, which are removed. Blocks of the
    /// file system's own stay.
    fn take_room_away(&self, files: u32, room_kib: u32) {
        let size_bytes = self.kind.file_bytes;
        let (image, mounted) = (self.image.display(), self.mounted.display());
        let dir = self.image.parent().expect("it lies in a directory").display();
        self.mounts.must(&format!(
            r#"cd {mounted}
               for i in $(seq {files}); do head -c {size_bytes} /dev/zero > $i; head -c {size_bytes} /dev/zero > no-$i; done
               # The image is full when the file system has no more room.
               head -c 1G /dev/zero > no-rest 2>/dev/null || true
               sync -f .
               for i in *; do test -d $i || filefrag -b4096 -v $i; done | tr .: '  ' |
                   awk '$1 ~ /^[0-9]+$/ && NF > 5 {{ print $4 * 4096, $6 * 4096 }}' > {dir}/extents
               rm no-*; cd /; umount {mounted}
               while read -r offset length; do
                   fallocate --punch-hole --offset $offset --length $length {image}
               done < {dir}/extents
               rm {dir}/extents
               mount -o remount,size=$(($(du -k {image} | cut -f1) + {room_kib}))k {dir}"#
        ));
        self.mount();
    }

    /// Gives the disk room for everything.
    pub fn give_room(&self) {
        let dir = self.image.parent().expect("it lies in a directory").display();
        self.mounts.must(&format!("mount -o remount,size={}m {dir}", self.kind.image_mib + 4));
    }

    /// Leaves room for this much beside what was written so far.
    pub fn take_room(&self, room_kib: u32) {
        let dir = self.image.parent().expect("it lies in a directory").display();
        let image = self.image.display();
        self.mounts.must(&format!(
            "sync -f {}; mount -o remount,size=$(($(du -k {image} | cut -f1) + {room_kib}))k {dir}",
            self.mounted.display()
        ));
    }

    /// Copies what the disk has now, as a failure of power would leave it.
    pub fn copy_to(&self, copy: &Path) {
        self.mounts.must(&format!("cp --sparse=always {} {}", self.image.display(), copy.display()));
    }

    /// Forgets what is in memory only, and has room for everything when that is done: to read a journal may take room.
    pub fn forget_and_give_room(&self) {
        self.mounts.must(&format!("umount {}", self.mounted.display()));
        self.give_room();
        self.mount();
    }

    /// Forgets what is in memory only: what is read from now on is what the disk has.
    pub fn forget(&self) {
        self.mounts.must(&format!("umount {}", self.mounted.display()));
        self.mount();
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // The device goes when its file system is unmounted, with the namespace at the latest.
        let _ = fs::write(Self::limit_file(&self.device), &self.request_kib);
        let _ = self.mounts.shell(&format!("losetup --detach /dev/{}", self.device));
    }
}
