//! `tameike agg`: commands on containers.

mod copy;
mod list;
mod mount;
mod only;

pub use only::run;

use crate::arguments::{
    AggregateAction, ArchiveFormat, CatArguments, CompactArguments, Compress, CreateArguments,
    ExportArguments, ExtractArguments, VerifyArguments,
};
use crate::exit;
use crate::report::{exit_code, plural, printable, say};
use crate::settings::size::show;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use tameike_container::format::superblock;
use tameike_container::session::{SUBFILES_MAX, block_size_of};
use tameike_container::{Codec, Container, IndexEntry, shown};
use tameike_container::{Format, PackOptions, Preserve, Tally};
use tameike_core::{Errno, Fault, FaultKind, Result};
use tameike_io::os::process::{random_bytes, wall_seconds};
use tameike_io::shared::{PosixTree, SharedFs};

/// Default number of threads.
const THREADS_MAX: usize = 16;
const CAT_SIZE: usize = 1 << 20;

pub fn aggregate(action: &AggregateAction) -> u8 {
    let done = match action {
        AggregateAction::Create(arguments) => create(arguments),
        AggregateAction::Ls(arguments) => list::list(arguments),
        AggregateAction::Cat(arguments) => cat(arguments),
        AggregateAction::Cp(arguments) => copy::copy(arguments),
        AggregateAction::Extract(arguments) => extract(arguments),
        AggregateAction::Export(arguments) => export(arguments),
        AggregateAction::Verify(arguments) => verify(arguments),
        AggregateAction::Compact(arguments) => compact(arguments),
        AggregateAction::Mount(arguments) => mount::mount(arguments),
    };
    exit_code(done)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(THREADS_MAX))
}

fn tree(path: &Path) -> Result<Arc<dyn SharedFs>> {
    let tree = PosixTree::open(path).map_err(|fault| of_path(path, &fault))?;
    Ok(Arc::new(tree))
}

fn open(path: &Path) -> Result<Container> {
    let tree = tree(path)?;
    let container = Container::open(tree).map_err(|fault| of_path(path, &fault))?;
    if !container.has_index() {
        warn_of_missing_index(path);
    }
    let outside = container.count_external();
    if outside > 0 {
        say(format_args!(
            "{}: {outside} files, too large to be packed, are external and will be promoted to the shared directory; only written data is visible. \
             They are promoted when their job ends, or by `tameike recover`",
            path.display()
        ));
    }
    Ok(container)
}

/// Reports parts of a container whose files are unknown because of damage. Returns the exit code, or `code` without damage.
fn report_damage(path: &Path, container: &Container, code: u8) -> Result<u8> {
    let path = path.display();
    for damage in container.damage() {
        say(format_args!("{path}: {}, at {}: {}", damage.lane, damage.address, damage.why));
    }
    if container.is_interrupted()? {
        say(format_args!(
            "{path}: the writer was killed before it finished: only files that it had written exist"
        ));
        return Ok(exit::DRAIN_INCOMPLETE);
    }
    if container.damage().is_empty() {
        return Ok(code);
    }
    say(format_args!(
        "{path}: the container is damaged, and files may be missing. `tameike agg verify` checks all of it"
    ));
    Ok(exit::DAMAGED)
}

fn warn_of_missing_index(path: &Path) {
    say(format_args!(
        "{}: it has no index. Its writer may not have finished: only files that it had written exist",
        path.display()
    ));
}

fn of_path(path: &Path, fault: &Fault) -> Fault {
    Fault::new(fault.errno, format!("{}: {fault}", shown(path.as_os_str().as_bytes())))
}

/// Normalizes a path in a container from the command line.
fn inner(path: &Path) -> &[u8] {
    let bytes = path.as_os_str().as_bytes();
    let start = bytes.iter().position(|&byte| byte != b'/').unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|&byte| byte != b'/').map_or(start, |last| last + 1);
    match &bytes[start..end] {
        b"." => b"",
        path => path.strip_prefix(b"./").unwrap_or(path),
    }
}

fn create(arguments: &CreateArguments) -> Result<u8> {
    let source = tree(&arguments.source)?;
    refuse_within(&arguments.source, &arguments.container)?;
    let made = std::fs::create_dir(&arguments.container);
    if let Err(error) = made.as_ref().map_err(|error| error.kind())
        && error != std::io::ErrorKind::AlreadyExists
    {
        return Err(cannot_make(&arguments.container, made));
    }
    let is_empty = std::fs::read_dir(&arguments.container).is_ok_and(|mut names| names.next().is_none());
    if !is_empty {
        let message = format!("{}: exists, and is not an empty directory", arguments.container.display());
        return Err(Fault::new(Errno::EEXIST, message));
    }
    let writers = arguments.writers.unwrap_or(threads() as u32);
    let subfiles = arguments.subfiles.unwrap_or(writers.min(SUBFILES_MAX)).min(writers);
    let options = PackOptions {
        container: u64::from_le_bytes(random_bytes()?),
        version: u64::try_from(wall_seconds()).unwrap_or(0) * 1_000_000_000,
        block_size: block_size(arguments, writers > subfiles)?,
        writers,
        codec: codec(arguments.compress),
        subfiles,
    };
    let tally = Tally::default();
    tameike_container::pack(&*source, tree(&arguments.container)?, &options, &tally)
        .map_err(|fault| of_path(&arguments.container, &fault))?;
    Ok(report_tally(&tally, "packed"))
}

/// Refuses a container inside the source tree, which would be packed into itself without end.
fn refuse_within(source: &Path, container: &Path) -> Result<()> {
    let parent = container.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_within = match (source.canonicalize(), container.canonicalize().or_else(|_| parent.canonicalize()))
    {
        (Ok(source), Ok(place)) => place.starts_with(source),
        _ => false,
    };
    if !is_within {
        return Ok(());
    }
    let message = format!(
        "{}: the container is inside {}, the directory to pack",
        container.display(),
        source.display()
    );
    Err(Fault::new(Errno::EINVAL, message))
}

fn cannot_make(path: &Path, made: std::io::Result<()>) -> Fault {
    let error = made.err().map_or_else(String::new, |error| error.to_string());
    Fault::new(Errno::EIO, format!("creating {}: {error}", path.display()))
}

/// Returns the requested block size, or one that suits the file system.
fn block_size(arguments: &CreateArguments, are_round_robin: bool) -> Result<u32> {
    let (least, most) = (u64::from(superblock::BLOCK_SIZE_MIN), u64::from(superblock::BLOCK_SIZE_MAX));
    let size =
        arguments.block_size.unwrap_or_else(|| block_size_of(&arguments.container, are_round_robin).into());
    if size.is_power_of_two() && (least..=most).contains(&size) {
        return Ok(size as u32);
    }
    let message = format!(
        "invalid block size {}: expected a power of two from {} to {}",
        show(size),
        show(least),
        show(most)
    );
    Err(Fault::new(Errno::EINVAL, message))
}

fn codec(compress: Compress) -> Codec {
    match compress {
        Compress::None => Codec::None,
        Compress::Zstd => Codec::Zstd,
    }
}

fn compact(arguments: &CompactArguments) -> Result<u8> {
    let tally = Tally::default();
    let fs = tree(&arguments.container)?;
    let done = tameike_container::compact(&fs, codec(arguments.compress), threads(), &tally)
        .map_err(|fault| of_path(&arguments.container, &fault))?;
    let code = report_tally(&tally, "kept");
    say(format_args!("its size is now {} instead of {}", show(done.after), show(done.before)));
    Ok(code)
}

/// Prints a summary. Returns the exit code.
fn report_tally(tally: &Tally, done: &str) -> u8 {
    let faults = tally.faults();
    report_faults(&faults);
    let files = tally.files();
    say(format_args!("{done} {files} {}, {}", plural(files as usize, "path"), show(tally.bytes())));
    let losses = tally.losses();
    for (what, count) in &losses {
        say(format_args!("{done} {} {what}", plural_of(*count as usize, "path")));
    }
    if !faults.is_empty() {
        say(format_args!("{} could not be {done}: see above", plural_of(faults.len(), "path")));
    }
    if faults.is_empty() && losses.is_empty() { 0 } else { exit::DRAIN_INCOMPLETE }
}

/// Prints faults. A full file system is reported once, not for each path.
fn report_faults(faults: &[Fault]) {
    let is_full = |fault: &&Fault| fault.kind() == FaultKind::Full;
    faults.iter().filter(|fault| !is_full(fault)).for_each(|fault| say(format_args!("{fault}")));
    let full: Vec<_> = faults.iter().filter(is_full).collect();
    match full[..] {
        [] => {}
        [first] => say(format_args!("{first}")),
        [first, ..] => say(format_args!("{first}; the same for {}", plural_of(full.len() - 1, "more path"))),
    }
}

fn plural_of(count: usize, what: &str) -> String {
    format!("{count} {}", plural(count, what))
}

fn cat(arguments: &CatArguments) -> Result<u8> {
    let container = open(&arguments.container)?;
    let mut out = std::io::stdout().lock();
    for path in &arguments.paths {
        let followed = container.follow(inner(path)).map_err(|fault| of_path(path, &fault))?;
        let mut file = container.file(&followed)?;
        let size = file.node().size;
        let mut buffer = vec![0; CAT_SIZE.min(size as usize).max(1)];
        let mut at = 0;
        loop {
            let count = file.read_at(&mut buffer, at).map_err(|fault| of_path(path, &fault))?;
            if count == 0 {
                break;
            }
            out.write_all(&buffer[..count]).map_err(|error| printing(&error))?;
            at += count as u64;
        }
    }
    out.flush().map_err(|error| printing(&error))?;
    Ok(0)
}

fn printing(error: &std::io::Error) -> Fault {
    Fault::new(Errno::EIO, format!("printing: {error}"))
}

fn preserve(same_permissions: bool) -> Preserve {
    if same_permissions { Preserve::all() } else { Preserve::safe() }
}

fn extract(arguments: &ExtractArguments) -> Result<u8> {
    let container = open(&arguments.container)?;
    let entries = match arguments.paths.is_empty() {
        true => container.walk()?.collect::<Result<Vec<_>>>()?,
        false => chosen(&container, &arguments.paths)?,
    };
    let made = std::fs::create_dir(&arguments.into);
    if made.as_ref().is_err_and(|error| error.kind() != std::io::ErrorKind::AlreadyExists) {
        return Err(cannot_make(&arguments.into, made));
    }
    let tally = Tally::default();
    let preserve = preserve(arguments.same_permissions);
    tameike_container::extract(&container, entries, &*tree(&arguments.into)?, threads(), preserve, &tally);
    report_damage(&arguments.container, &container, report_tally(&tally, "extracted"))
}

fn export(arguments: &ExportArguments) -> Result<u8> {
    let container = open(&arguments.container)?;
    let tally = Tally::default();
    let is_named_zip =
        arguments.archive.as_ref().and_then(|archive| archive.extension()).is_some_and(|end| end == "zip");
    let format = match arguments.format {
        Some(ArchiveFormat::Zip) => Format::Zip,
        None if is_named_zip => Format::Zip,
        _ => Format::Tar,
    };
    match arguments.archive.as_ref().filter(|archive| archive.as_os_str() != "-") {
        Some(archive) => {
            let made = std::fs::File::create_new(archive);
            let file = made.map_err(|error| {
                Fault::new(Errno::EIO, format!("creating {}: {error}", archive.display()))
            })?;
            let out = BufWriter::with_capacity(CAT_SIZE, file);
            tameike_container::export(&container, out, format, threads(), &tally)?;
        }
        None => {
            let out = BufWriter::with_capacity(CAT_SIZE, std::io::stdout().lock());
            tameike_container::export(&container, out, format, threads(), &tally)?;
        }
    }
    report_damage(&arguments.container, &container, report_tally(&tally, "exported"))
}

/// Returns the entries at these paths and below them.
fn chosen(container: &Container, paths: &[std::path::PathBuf]) -> Result<Vec<IndexEntry>> {
    let mut all = Vec::new();
    for path in paths {
        let wanted = inner(path);
        let found = container.find(wanted)?;
        let is_found = found.is_some();
        all.extend(found);
        let below: Vec<_> = container.below(wanted)?.collect::<Result<_>>()?;
        if !is_found && below.is_empty() {
            return Err(Fault::new(Errno::ENOENT, format!("{}: it is not in the container", path.display())));
        }
        all.extend(below);
    }
    all.sort_by(|one, other| one.path.cmp(&other.path));
    all.dedup_by(|one, other| one.path == other.path);
    Ok(all)
}

fn verify(arguments: &VerifyArguments) -> Result<u8> {
    let fs = tree(&arguments.container)?;
    let tally = Tally::default();
    let found = tameike_container::verify(&fs, threads(), arguments.rebuild, &tally)
        .map_err(|fault| of_path(&arguments.container, &fault))?;
    if !found.has_index {
        warn_of_missing_index(&arguments.container);
    }
    let mut out = std::io::stdout().lock();
    let mut print =
        |what: &str, words: &str| writeln!(out, "{what:<7}  {words}").map_err(|error| printing(&error));
    if !found.has_header {
        print("header", "the file `container` is lost or damaged; the data files have its content")?;
    }
    for words in &found.damage {
        print("damage", words)?;
    }
    for (what, faults) in [("DAMAGED", &found.files), ("index", &found.index)] {
        for (path, why) in faults {
            print(what, &format!("{}: {}", shown(path), printable(&why.to_string())))?;
        }
    }
    let files = tally.files();
    writeln!(out, "verified {} {}, {}", files, plural(files as usize, "path"), show(tally.bytes()))
        .map_err(|error| printing(&error))?;
    if arguments.rebuild {
        writeln!(out, "the index is rebuilt").map_err(|error| printing(&error))?;
    }
    let is_repaired = found.damage.is_empty() && found.files.is_empty() && arguments.rebuild;
    Ok(if found.is_whole() {
        0
    } else if is_repaired {
        exit::REPAIRED
    } else {
        exit::DAMAGED
    })
}
