//! Serves the requests that need the store alone.

use super::external::make_external;
use super::store::Store;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PackReply, PackRequest, PackedStat};
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::SharedFs;

/// Serves a request from a store. Content that the request makes larger than `size_max` becomes external first.
pub fn serve_from(
    store: &mut Store,
    plain: &dyn SharedFs,
    size_max: u64,
    request: PackRequest,
) -> Result<PackReply> {
    let done = |done: Result<()>| done.map(|()| PackReply::Done);
    if let Some((file, size)) = size_after(store, &request)?
        && make_external(store, plain, size_max, file, size)?
    {
        return Ok(PackReply::External { file });
    }
    match request {
        PackRequest::Stat { path } => store.stat(&path).map(PackReply::Stat),
        PackRequest::List { dir, after } => {
            let names = store.names(&dir, &after)?;
            Ok(PackReply::Names(names.into_iter().map(|(name, file)| (name.into(), file)).collect()))
        }
        PackRequest::Close { file } => done(store.close_file(file)),
        PackRequest::StatOpen { file } => store.stat_open(file).map(PackReply::Stat),
        PackRequest::Write { open, offset, bytes } => done(store.write(open.file, &bytes, offset)),
        PackRequest::Truncate { file, size } => done(store.truncate(file, size)),
        PackRequest::Expect { .. } => Ok(PackReply::Done),
        PackRequest::Forget => done(store.forget_pages()),
        PackRequest::Unlink { path, number } => {
            let is_it = |stat: PackedStat| number.is_none_or(|number| number == stat.number);
            match store.stat(&path).map(is_it) {
                Ok(false) => Ok(PackReply::Done),
                Err(fault) if fault.errno == Errno::ENOENT && number.is_some() => Ok(PackReply::Done),
                Ok(true) | Err(_) => done(store.unlink(&path)),
            }
        }
        PackRequest::Rename { number, from, to, mode } => {
            let is_at =
                |store: &mut Store, path: &[u8]| store.stat(path).is_ok_and(|stat| stat.number == number);
            match (is_at(store, &from), is_at(store, &to)) {
                (true, _) => {}
                (false, true) => return Ok(PackReply::Done),
                (false, false) => return Err(Errno::ENOENT.into()),
            }
            match mode {
                RenameMode::Exchange => return Err(Errno::EINVAL.into()),
                RenameMode::NoReplace if store.stat(&to).is_ok() => return Err(Errno::EEXIST.into()),
                RenameMode::NoReplace | RenameMode::Replace => {}
            }
            done(store.rename(&from, &to))
        }
        other => Err(unexpected(&other)),
    }
}

/// Serves a request of a job that has packed nothing. Fails with `ENOENT` for a path, and with `ESTALE` for an open file.
pub fn serve_without_store(request: &PackRequest) -> Result<PackReply> {
    match request {
        PackRequest::List { .. } => Ok(PackReply::Names(Vec::new())),
        PackRequest::Forget => Ok(PackReply::Done),
        PackRequest::Close { .. }
        | PackRequest::StatOpen { .. }
        | PackRequest::Write { .. }
        | PackRequest::Truncate { .. }
        | PackRequest::Reopen { .. }
        | PackRequest::Expect { .. } => Err(Errno::ESTALE.into()),
        PackRequest::Stat { .. }
        | PackRequest::Open { .. }
        | PackRequest::Change { .. }
        | PackRequest::Unlink { .. }
        | PackRequest::Rename { .. } => Err(Errno::ENOENT.into()),
        other => Err(unexpected(other)),
    }
}

/// Whether a request puts an entry.
pub fn puts_entry(request: &PackRequest) -> bool {
    matches!(
        request,
        PackRequest::Create { .. }
            | PackRequest::Change { .. }
            | PackRequest::Close { .. }
            | PackRequest::Truncate { .. }
            | PackRequest::Expect { .. }
            | PackRequest::Unlink { .. }
            | PackRequest::Rename { .. }
    )
}

/// The open file whose content a request changes, and the size that this needs.
fn size_after(store: &mut Store, request: &PackRequest) -> Result<Option<(u64, u64)>> {
    Ok(match request {
        PackRequest::Write { open, offset, bytes } => {
            let offset = offset.map_or_else(|| store.stat_open(open.file).map(|stat| stat.size), Ok)?;
            Some((open.file, offset.saturating_add(bytes.len() as u64)))
        }
        PackRequest::Truncate { file, size } | PackRequest::Expect { file, size } => Some((*file, *size)),
        _ => None,
    })
}

fn unexpected(request: &PackRequest) -> Fault {
    Fault::new(Errno::EPROTO, format!("the packer got a request that it does not serve here: {request:?}"))
}
