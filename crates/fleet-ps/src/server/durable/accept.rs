//! Accepts the loss of damaged data, so that servers resume from their last good state. Nothing is
//! deleted: unusable files are moved into the folder `aside`.

use super::damage::Damage;
use super::folder::{
    self, ACCEPTED, ASIDE, Files, JOB, JobFile, LOCK, LOG, LOST_ACKNOWLEDGED, SNAPSHOT,
};
use super::image::SnapshotHead;
use super::inspect::{
    ProgressVisitor, WorkerReport, check_new, life_of_others, look, server_folders,
};
use super::record::{LOG_HEADER_BYTES, LogHeader};
use super::scan::Place;
use super::{aside, log, reader};
use crate::io_error::io_error;
use fleet_base::disk::{Access, Disk, RealDisk};
use fleet_base::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Data that a server resumes without.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    /// Folder of the server.
    pub folder: PathBuf,
    /// The damage that was found.
    pub damages: Vec<Damage>,
    /// Acknowledged requests of a worker that are missing, in words.
    pub behind: Option<String>,
    /// Whole requests that are not used. Unreadable bytes may contain more.
    pub request_count: u64,
    /// Bytes of logs and snapshots that are not used.
    pub bytes: u64,
    /// Names of the files moved into the folder `aside`.
    pub moved: Vec<String>,
    /// Progress of each worker before the loss, and in what is left.
    pub workers: BTreeMap<usize, (WorkerReport, WorkerReport)>,
    /// Nothing is left: the server starts with empty tables, and rejects workers that know the old
    /// ones.
    pub is_everything: bool,
}

/// Moves damaged data aside, in the folders of all servers of a job or in that of one server, so
/// that they start from their last good states. Servers without anything to accept are not listed.
pub fn accept_loss(folder: &Path) -> Result<Vec<Loss>> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let servers = server_folders(&*disk, folder)?.0;
    let losses: Result<Vec<_>> = servers.iter().map(|it| accept(&disk, it)).collect();
    Ok(losses?.into_iter().flatten().collect())
}

struct Repair<'a> {
    disk: &'a Arc<dyn Disk>,
    folder: &'a Path,
    loss: Loss,
    lost: ProgressVisitor,
}

/// Accepts the loss of one server; none if there is nothing to accept.
pub(super) fn accept(disk: &Arc<dyn Disk>, path: &Path) -> Result<Option<Loss>> {
    let lock = path.join(LOCK);
    // Checked before anything is changed.
    aside::check(&**disk, path)?;
    let held = disk.lock(&lock).map_err(io_error("lock", &lock))?;
    let Some(_held) = held else {
        return Err(Error::unavailable(format!("{} is in use by another process", path.display()))
            .help("end its server first"));
    };
    let loss = Loss { folder: path.to_path_buf(), ..Loss::default() };
    let mut repair = Repair { disk, folder: path, loss, lost: ProgressVisitor::default() };
    let behind = folder::mark(&**disk, path, LOST_ACKNOWLEDGED)?;
    repair.job()?;
    repair.all()?;
    if behind.is_none() && repair.loss.damages.is_empty() {
        return Ok(None);
    }
    if behind.is_some() {
        repair.aside(LOST_ACKNOWLEDGED)?;
    }
    repair.loss.behind = behind;
    if !repair.loss.is_everything {
        let text = "an operator has accepted the loss of requests";
        folder::set_mark(disk, path, ACCEPTED, text)?;
        repair.compare()?;
    }
    repair.loss.request_count = repair.lost.request_count;
    Ok(Some(repair.loss))
}

impl Repair<'_> {
    /// Repairs a file `job` that is damaged or missing: other files supply the life, and the next
    /// start the tables.
    fn job(&mut self) -> Result<()> {
        let files = Files::list(&**self.disk, self.folder)?;
        let damage = match JobFile::read(&**self.disk, self.folder)? {
            Some(Ok(_)) => return Ok(()),
            Some(Err(damage)) => damage,
            None if check_new(&**self.disk, self.folder, &files)?.is_ok() => {
                // Nothing is left, or nothing was ever here.
                self.loss.is_everything = true;
                return Ok(());
            }
            None => Damage::missing(self.folder.join(JOB), "it is missing"),
        };
        let life = life_of_others(&**self.disk, self.folder, &files)?;
        self.loss.damages.push(damage);
        if files.has(JOB) {
            self.aside(JOB)?;
        }
        match life {
            Some(life) => JobFile { life, text: String::new() }.write(self.disk, self.folder),
            None => self.everything(),
        }
    }

    /// Repairs one damage after another, until a server would start.
    fn all(&mut self) -> Result<()> {
        // Each repair removes or cuts a file, which bounds their number.
        let files = Files::list(&**self.disk, self.folder)?;
        for _ in 0..=2 * (files.logs.len() + files.snapshots.len() + 1) {
            let Some(Ok(job)) = JobFile::read(&**self.disk, self.folder)? else { return Ok(()) };
            let files = Files::list(&**self.disk, self.folder)?;
            let place = Place { disk: &**self.disk, folder: self.folder, life: job.life };
            let mut seen = ProgressVisitor::default();
            let scan = place.scan(&files, &mut seen)?;
            let Some(damage) = scan.damage else { return Ok(()) };
            let name = damage.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.loss.damages.push(damage.clone());
            match name.strip_prefix(LOG).and_then(|number| number.parse().ok()) {
                Some(number) => self.log(number, &damage, &files)?,
                None if files.has(&name) => self.aside(&name)?,
                // A snapshot that is missing, and none before it.
                None => self.everything()?,
            }
        }
        Err(Error::internal("repair of a folder does not terminate").at(self.folder.display()))
    }

    /// Repairs a log that is damaged or missing. The data before it is good.
    fn log(&mut self, number: u64, damage: &Damage, files: &Files) -> Result<()> {
        let is_there = files.logs.contains(&number);
        let is_cut = is_there && damage.offset >= LOG_HEADER_BYTES as u64;
        for later in files.logs.iter().filter(|it| **it > number || (**it == number && !is_cut)) {
            let path = log::path(self.folder, *later);
            let lost = &mut self.lost;
            let mut note = |record: &reader::Record<'_>| {
                lost.note(record.caller.worker, record.method, record.request);
                Ok(())
            };
            // An unreadable log adds nothing to the count of lost requests.
            let _ = reader::read(&**self.disk, &path, &mut note)?;
            self.aside(&format!("{LOG}{later}"))?;
        }
        if is_cut {
            return self.cut(number, damage.offset);
        }
        match files.snapshots.last() {
            Some(snapshot) if *snapshot == number => self.follow(number),
            None if number == 0 => self.everything(),
            _ => self.reopen(number),
        }
    }

    /// Makes an empty log for a snapshot that has lost its own.
    fn follow(&mut self, number: u64) -> Result<()> {
        let path = folder::snapshot_path(self.folder, number);
        let Ok(head) = SnapshotHead::of(&**self.disk, &path) else {
            return self.aside(&format!("{SNAPSHOT}{number}"));
        };
        let header = LogHeader {
            life: head.life,
            number,
            first: head.first,
            epoch: head.epochs.next_id()?,
            boot: self.disk.boot(),
            accepts_loss: true,
        };
        log::create(self.disk, self.folder, &header).map(drop)
    }

    /// Cuts the announcement of a missing log off the one before it.
    fn reopen(&mut self, number: u64) -> Result<()> {
        let before = log::path(self.folder, number - 1);
        let scan = reader::read(&**self.disk, &before, &mut |_| Ok(()))?;
        match scan {
            Ok(scan) if scan.is_closed => {
                let end = scan.good - super::record::RECORD_HEADER_BYTES as u64;
                self.shorten(&before, end)
            }
            _ => Ok(()),
        }
    }

    /// Copies a log to `aside`, and keeps the good records in place.
    fn cut(&mut self, number: u64, offset: u64) -> Result<()> {
        let path = log::path(self.folder, number);
        let lost = &mut self.lost;
        reader::read_later(&**self.disk, &path, &mut |record| {
            lost.note(record.caller.worker, record.method, record.request);
            Ok(())
        })?;
        let file = self.disk.open(&path, Access::Read).map_err(io_error("open", &path))?;
        let total = file.len().map_err(io_error("read", &path))?;
        let name = format!("{LOG}{number}");
        let copy = self.free_name(&name)?;
        aside::copy(self.disk, (&*file, &path), 0..total, &copy)?;
        self.loss.moved.push(name);
        self.loss.bytes += total.saturating_sub(offset);
        self.shorten(&path, offset)
    }

    fn shorten(&mut self, path: &Path, len: u64) -> Result<()> {
        let cut = self.disk.open(path, Access::Write).and_then(|file| {
            file.set_len(len)?;
            file.sync()
        });
        cut.map_err(io_error("shorten", path))
    }

    /// Moves everything aside: no state is left from which a server could resume.
    fn everything(&mut self) -> Result<()> {
        self.loss.is_everything = true;
        let files = Files::list(&**self.disk, self.folder)?;
        for name in &files.names {
            let is_number = name.starts_with(LOG) || name.starts_with(SNAPSHOT);
            if is_number || [JOB, folder::FINISHED, ACCEPTED].contains(&&name[..]) {
                self.aside(name)?;
            }
        }
        Ok(())
    }

    /// Returns an unused path in the folder `aside`.
    fn free_name(&self, name: &str) -> Result<PathBuf> {
        let aside = aside::folder(&**self.disk, self.folder)?;
        let names = self.disk.list(&aside).map_err(io_error("list", &aside))?;
        let free = (0..=names.len())
            .map(|number| match number {
                0 => name.to_string(),
                number => format!("{name}.{number}"),
            })
            .find(|name| !names.contains(name));
        Ok(aside.join(free.unwrap_or_else(|| name.to_string())))
    }

    fn aside(&mut self, name: &str) -> Result<()> {
        let (from, to) = (self.folder.join(name), self.free_name(name)?);
        let bytes = self.disk.open(&from, Access::Read).and_then(|file| file.len());
        self.disk.rename(&from, &to).map_err(io_error("move", &from))?;
        for folder in [&self.folder.join(ASIDE), self.folder] {
            self.disk.sync_folder(folder).map_err(io_error("flush", folder))?;
        }
        if name.starts_with(LOG) || name.starts_with(SNAPSHOT) {
            self.loss.bytes += bytes.unwrap_or(0);
        }
        self.loss.moved.push(name.to_string());
        Ok(())
    }

    /// Compares the progress of the workers before the loss with what is left.
    fn compare(&mut self) -> Result<()> {
        let left = look(self.disk, self.folder)?.workers;
        for (worker, lost) in &self.lost.workers {
            let left = left.get(worker).copied().unwrap_or_default();
            let had = WorkerReport {
                step: lost.step.max(left.step),
                complete: lost.complete.max(left.complete),
                sequence: lost.sequence,
            };
            self.loss.workers.insert(*worker, (had, left));
        }
        Ok(())
    }
}
