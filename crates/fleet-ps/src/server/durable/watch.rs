//! Detects that files of a running server were removed or moved away.
//!
//! Writes to an unlinked file succeed, and so do syncs: the server would acknowledge updates that
//! no restart finds. So it checks its folder at intervals, in every flush mode.

use super::folder::{JOB, LOCK, LOG, SNAPSHOT, numbered, snapshot_path};
use super::{Keeper, ServerTables};
use crate::thread::Thread;
use fleet_base::sync::{lock, wait_while};
use fleet_base::{Error, Result};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval between checks, as long as the time that a power cut can undo (`Flush::Kernel`).
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl Keeper {
    /// Makes the log reject everything from now on if a file that the next start needs is gone.
    pub fn check_files(&self) -> Result<()> {
        self.check()?;
        match self.missing() {
            None => Ok(()),
            Some((file, got)) => Err(self.log.state().poison(self.vanished(&file, got))),
        }
    }

    /// Returns a file that is gone, and what is in its place. An unreadable folder proves nothing.
    fn missing(&self) -> Option<(String, &'static str)> {
        let (file, path, number) = self.log.place();
        let is_gone = matches!(file.is_at(&path), Ok(false));
        if is_gone && self.log.place().2 == number {
            let got = match self.disk.kind(&path) {
                Ok(_) => "another file with this name",
                Err(_) => MISSING_FILE,
            };
            return Some((name_of(&path), got));
        }
        let names = match self.disk.list(&self.folder) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Some((name_of(&path), MISSING_FILE));
            }
            Err(_) => return None,
        };
        // Loaded after the files are listed: a file counts as replaced before this server removes
        // it.
        let first = self.snapshot.load(SeqCst);
        let mut known = lock(&self.known);
        known.retain(|name| !is_replaced(name, first));
        let gone = known.iter().find(|name| !names.contains(name)).cloned();
        let is_needed = |name: &String| {
            let log = numbered(name, LOG).is_some_and(|log| log <= number);
            let is_other = [JOB, LOCK].contains(&&name[..]) || numbered(name, SNAPSHOT).is_some();
            (log || is_other) && !is_replaced(name, first)
        };
        known.extend(names.into_iter().filter(is_needed));
        gone.map(|name| (name, MISSING_FILE))
    }

    fn vanished(&self, file: &str, got: &str) -> Error {
        let number = self.snapshot.load(SeqCst);
        let since = match self.disk.kind(&snapshot_path(&self.folder, number)) {
            Ok(_) => format!("snapshot {number}"),
            Err(_) => "the start of the job".to_string(),
        };
        Error::invalid("durable folder was changed while its server runs")
            .expected(self.folder.join(file).display())
            .got(got)
            .help(format!(
                "if its files were moved, move them back and restart the job; otherwise restart it \
                 in another folder from a save; acknowledged updates since {since} are not on disk \
                 in this folder"
            ))
            .at(self.folder.display())
    }
}

/// Returns whether a snapshot of this number has replaced a file.
fn is_replaced(name: &str, snapshot: u64) -> bool {
    [LOG, SNAPSHOT].iter().any(|kind| numbered(name, kind).is_some_and(|it| it < snapshot))
}

const MISSING_FILE: &str = "no such file";

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Starts a thread that checks the files until the tables are dropped. On a simulated disk the
/// tests check them.
pub(super) fn start(tables: &Arc<ServerTables>) -> Result<()> {
    let Some(keeper) = tables.keeper.clone() else { return Ok(()) };
    keeper.check_files()?;
    if keeper.log.place().0.system_file().is_none() {
        return Ok(());
    }
    let weak: Weak<ServerTables> = Arc::downgrade(tables);
    let run = move || {
        loop {
            let state = lock(&keeper.state);
            let (state, _) =
                wait_while(&keeper.changed, state, CHECK_INTERVAL, |state| !state.closed);
            if state.closed {
                return;
            }
            if keeper.check_files().is_err() {
                // Serving ends with this error.
                weak.upgrade().iter().for_each(|tables| tables.stop());
                return;
            }
        }
    };
    Thread::start("fleet-watch", run).map(Thread::detach)
}
