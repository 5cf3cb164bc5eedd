//! `tameike layout`: reads and sets the layout of a path of the shared view through its extended attribute.

use crate::arguments::{AggregateWord, LayoutAction};
use crate::report;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use std::path::Path;
use tameike_core::{Fault, Layout, Result};

/// The extended attribute with the layout.
pub const ATTRIBUTE: &str = "user.tameike.layout";
/// The extended attribute of a directory that turns packing on or off.
const AGGREGATE_ATTRIBUTE: &str = "user.tameike.aggregate";
/// Longest text of a layout, in bytes.
const LAYOUT_SIZE_MAX: usize = 64;

/// Shows or sets a layout. Returns the exit code.
pub fn layout(action: &LayoutAction) -> u8 {
    let outcome = match action {
        LayoutAction::Get { path } => get(path).map(|layout| println!("{layout}")),
        LayoutAction::Set { layout: Some(layout), path, .. } => set(*layout, path),
        LayoutAction::Set { aggregate, path, .. } => {
            aggregate_at(path, *aggregate != Some(AggregateWord::Off))
        }
    };
    report::exit_code(outcome.map(|()| 0))
}

fn get(path: &Path) -> Result<String> {
    let mut bytes = [0; LAYOUT_SIZE_MAX];
    let length = getxattr(path, ATTRIBUTE, &mut bytes).map_err(|error| failed("reading", path, error))?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

fn set(layout: Layout, path: &Path) -> Result<()> {
    setxattr(path, ATTRIBUTE, layout.to_string().as_bytes(), XattrFlags::empty())
        .map_err(|error| failed("setting", path, error))
}

/// Turns packing of new files on or off for a directory of the cache view.
fn aggregate_at(path: &Path, packs: bool) -> Result<()> {
    let word: &[u8] = if packs { b"on" } else { b"off" };
    setxattr(path, AGGREGATE_ATTRIBUTE, word, XattrFlags::empty()).map_err(|error| {
        let fault = Fault::from_os(
            format_args!("turning packing on or off for {}", path.display()),
            &error.into(),
        );
        let hint = "is the path in the cache view, $TAMEIKE_CACHE, of a job with --aggregate=on or --aggregate=auto?";
        Fault::new(fault.errno, format!("{fault} ({hint})"))
    })
}

fn failed(doing: &str, path: &Path, error: rustix::io::Errno) -> Fault {
    use rustix::io::Errno;
    let fault = Fault::from_os(format_args!("{doing} the layout of {}", path.display()), &error.into());
    if matches!(error, Errno::NODATA | Errno::NOTSUP) {
        return Fault::new(
            fault.errno,
            format!("{fault} (is the path in the shared view, $TAMEIKE_SHARED?)"),
        );
    }
    fault
}
