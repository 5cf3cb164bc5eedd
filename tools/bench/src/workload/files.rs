//! Many files of one size, 0 bytes included: their creator and another rank stat and read them, as mdtest does.

use super::container::Container;
use super::{Measured, Site, open};
use crate::outcome::{Context, Outcome};
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;

/// Creates, writes in one call and closes this rank's files, which must not be there.
pub fn create(site: &Site) -> Outcome<Measured> {
    let (paths, size) = (paths(site, &site.files_of(site.rank)), site.plan.file_bytes);
    let mut bytes = vec![0; paths.len() * size];
    let mut contents: Vec<&[u8]> = vec![&[]; paths.len()];
    if size > 0 {
        for (index, content) in (0..).zip(bytes.chunks_mut(size)) {
            site.pattern.fill(site.content(site.rank, Some(index)), 0, content);
        }
        contents = bytes.chunks(size).collect();
    }
    Measured::of(|laps| {
        let container = site.plan.in_container.then(|| Container::open(site, true)).transpose()?;
        laps.pass();
        for (index, (path, content)) in (0..).zip(paths.iter().zip(&contents)) {
            if let Some(container) = &container {
                container.write((site.rank, index), content)?;
                laps.done(content.len());
                continue;
            }
            let mut file = File::create_new(path).context(|| format!("create {}", path.display()))?;
            if !content.is_empty() {
                file.write_all(content).context(|| format!("write {}", path.display()))?;
            }
            drop(file);
            laps.done(content.len());
        }
        container.map_or(Ok(()), Container::finish)
    })
}

/// Stats each file of `rank`, which must be a file of the right size.
pub fn stat(site: &Site, rank: u32) -> Outcome<Measured> {
    let (paths, size) = (paths(site, &site.files_of(rank)), site.plan.file_bytes);
    Measured::of(|laps| {
        for path in &paths {
            let metadata = std::fs::symlink_metadata(path).context(|| format!("stat {}", path.display()))?;
            if !metadata.is_file() || metadata.len() != size as u64 {
                return Err(format!("WRONG ATTRIBUTES of {}: not a file of {size} bytes", path.display()));
            }
            laps.done(0);
        }
        Ok(())
    })
}

/// Opens, reads and closes `files`, and checks them.
pub fn read(site: &Site, files: &[(u32, u32)]) -> Outcome<Measured> {
    let (paths, size) = (paths(site, files), site.plan.file_bytes);
    // One byte more detects a file that is too long.
    let mut bytes = vec![1; paths.len() * (size + 1)];
    let mut sizes = Vec::with_capacity(paths.len());
    let measured = Measured::of(|laps| {
        let container = site.plan.in_container.then(|| Container::open(site, false)).transpose()?;
        laps.pass();
        for ((path, &file), content) in paths.iter().zip(files).zip(bytes.chunks_mut(size + 1)) {
            let found = match &container {
                Some(container) => container.read(file, content)?,
                None => {
                    read_whole(&mut open(path)?, content).context(|| format!("read {}", path.display()))?
                }
            };
            sizes.push(found);
            laps.done(found);
        }
        Ok(())
    })?;
    let read = bytes.chunks(size + 1).zip(paths.iter().zip(sizes));
    for (&(rank, index), (content, (path, found))) in files.iter().zip(read) {
        if found != size {
            return Err(format!("WRONG SIZE of {}: not {size} bytes", path.display()));
        }
        site.check(path, site.content(rank, Some(index)), 0, &content[..size])?;
    }
    Ok(measured)
}

/// Removes this rank's files; afterwards none of them may be listed.
pub fn unlink(site: &Site) -> Outcome<Measured> {
    let paths = paths(site, &site.files_of(site.rank));
    let measured = Measured::of(|laps| {
        for path in &paths {
            std::fs::remove_file(path).context(|| format!("unlink {}", path.display()))?;
            laps.done(0);
        }
        Ok(())
    })?;
    let (directory, prefix) = (site.directory(site.rank), format!("file-{}-", site.rank));
    let doing = || format!("list {}", directory.display());
    for entry in std::fs::read_dir(&directory).context(doing)? {
        let name = entry.context(doing)?.file_name();
        if name.as_encoded_bytes().starts_with(prefix.as_bytes()) {
            return Err(format!("WRONG LISTING of {}: {} was unlinked", directory.display(), name.display()));
        }
    }
    Ok(measured)
}

fn paths(site: &Site, files: &[(u32, u32)]) -> Vec<PathBuf> {
    files.iter().map(|&(rank, index)| site.file(rank, index)).collect()
}

/// Reads until the end of the file or of `content`; returns the number of bytes.
fn read_whole(file: &mut File, content: &mut [u8]) -> std::io::Result<usize> {
    let mut size = 0;
    while size < content.len() {
        match file.read(&mut content[size..])? {
            0 => break,
            count => size += count,
        }
    }
    Ok(size)
}
