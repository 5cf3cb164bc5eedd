//! Many files of 3,901 bytes each: less than a page, and no round number.

use super::{Site, Work, open, timed};
use crate::outcome::{Context, Outcome};
use std::fs::File;
use std::io::{Read, Write};

const FILE_BYTES: usize = 3901;

/// Creates, writes and closes this rank's files.
pub fn write(site: &Site) -> Outcome<Work> {
    let mut bytes = vec![0; site.plan.files as usize * FILE_BYTES];
    for (index, content) in (0..).zip(bytes.chunks_mut(FILE_BYTES)) {
        site.pattern.fill(site.content(site.rank, Some(index)), 0, content);
    }
    let (seconds, ()) = timed(|| {
        for (index, content) in (0..).zip(bytes.chunks(FILE_BYTES)) {
            let path = site.file(site.rank, index);
            let mut file = File::create_new(&path).context(|| format!("create {}", path.display()))?;
            file.write_all(content).context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    })?;
    Ok(Work { seconds, operations: u64::from(site.plan.files), bytes: bytes.len() as u64 })
}

/// Opens, reads and closes the files of `rank`, and checks them.
pub fn read(site: &Site, rank: u32) -> Outcome<Work> {
    // One byte more each, so that a file that is too long is seen.
    let mut bytes = vec![1; site.plan.files as usize * (FILE_BYTES + 1)];
    let (seconds, sizes) = timed(|| {
        let mut sizes = Vec::with_capacity(site.plan.files as usize);
        for (index, content) in (0..).zip(bytes.chunks_mut(FILE_BYTES + 1)) {
            let path = site.file(rank, index);
            sizes
                .push(read_whole(&mut open(&path)?, content).context(|| format!("read {}", path.display()))?);
        }
        Ok(sizes)
    })?;
    for (index, (content, size)) in (0..).zip(bytes.chunks(FILE_BYTES + 1).zip(sizes)) {
        let path = site.file(rank, index);
        if size != FILE_BYTES {
            return Err(format!("WRONG SIZE of {}: not {FILE_BYTES} bytes", path.display()));
        }
        site.check(&path, site.content(rank, Some(index)), 0, &content[..size])?;
    }
    let operations = u64::from(site.plan.files);
    Ok(Work { seconds, operations, bytes: operations * FILE_BYTES as u64 })
}

/// Reads until the end of the file or of `content`; how many bytes.
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
