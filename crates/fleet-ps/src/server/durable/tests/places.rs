//! Folders with things in them that no server puts there: pipes, links, strays, files of other
//! versions, and files that are far too long.

use super::*;
use crate::server::durable::inspect::server_folders;
use crate::server::durable::reader::REST_BYTES_MAX;
use std::fs;

/// A durable folder on the system's disk, with a log of five steps.
struct Real(PathBuf);

impl Real {
    fn new(name: &str) -> Real {
        let folder = std::env::temp_dir().join(format!("fleet-ps-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let real = Real(folder);
        let server = real.start().unwrap();
        (1..=5).for_each(|id| push(&worker(&server, id), id).unwrap());
        drop(server);
        real
    }

    fn start(&self) -> Result<Arc<ServerTables>> {
        ServerTables::durable(&tables(), 0, Durability::in_folder(&self.0))
    }

    fn own(&self, name: &str) -> PathBuf {
        self.0.join("server-000").join(name)
    }

    /// The log that has the steps.
    fn log(&self) -> PathBuf {
        self.own("log-0")
    }

    fn resize(&self, len: u64) {
        fs::OpenOptions::new().write(true).open(self.log()).unwrap().set_len(len).unwrap();
    }

    fn damage(&self) -> String {
        inspect(&self.0).unwrap().servers[0].damage.clone().unwrap().to_string()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs something that must not wait for ever.
fn at_once<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(run()));
    receiver.recv_timeout(Duration::from_secs(300)).unwrap_or_else(|_| panic!("{what} waits"))
}

/// After `--accept-loss` of everything the folder is empty, and the next start uses it.
#[test]
fn a_folder_that_has_lost_everything_is_empty() {
    let disk = kept();
    let offset = content(&disk, "snapshot-1").len() / 2;
    disk.edit(&own("snapshot-1"), |bytes| bytes[offset] ^= 1).unwrap();
    let loss = accept(&disk.handle(), &own("")).unwrap().unwrap();
    assert!(loss.is_everything && loss.moved.len() == 4, "{loss:?}");
    let report = look(&disk.handle(), &own("")).unwrap();
    assert!(report.is_good() && report.is_empty, "{report:?}");
    for folder in ["kept", "kept/server-000"] {
        let folders = server_folders(&disk, Path::new(folder)).unwrap();
        assert_eq!(folders, (vec![PathBuf::from("kept/server-000")], vec![]));
    }
    assert!(accept(&disk.handle(), &own("")).unwrap().is_none(), "once");
    drop(open(&disk, Flush::Kernel).unwrap());
    disk.kill();
    assert!(!look(&disk.handle(), &own("")).unwrap().is_empty);
}

#[cfg(unix)]
type Make = fn(&Path);

#[cfg(unix)]
#[test]
fn pipes_devices_and_folders_are_refused_at_once() {
    let real = Real::new("pipes");
    let make: [(&str, Make); 3] = [
        ("a pipe", |path| {
            let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
            assert!(made.success());
        }),
        ("a device", |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
        ("a folder", |path| fs::create_dir(path).unwrap()),
    ];
    for (name, (what, make)) in
        ["job", "log-0", "lock", "finished"].iter().flat_map(|name| make.map(|it| (*name, it)))
    {
        let (path, away) = (real.own(name), real.0.join("away"));
        let was_there = fs::rename(&path, &away).is_ok();
        make(&path);
        let what = format!("{name} that is {what}");
        let folder = real.0.clone();
        let inspected = at_once(&what, move || inspect(&folder).map(drop).unwrap_err());
        let folder = real.0.clone();
        let started = at_once(&what, move || {
            let kept = Durability::in_folder(&folder);
            ServerTables::durable(&tables(), 0, kept).map(drop).unwrap_err()
        });
        for error in [inspected, started] {
            let text = error.to_string();
            let refused = text.contains("not a regular file") || text.contains("a symbolic link");
            assert!(refused && text.contains(&path.display().to_string()), "{what}: {text}");
        }
        fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
        if was_there {
            fs::rename(&away, &path).unwrap();
        }
    }
    assert_eq!(pushed(&real.start().unwrap(), &[5]), [1]);
}

#[test]
fn a_job_file_that_is_far_too_long_is_damage() {
    let disk = kept();
    disk.edit(&own("job"), |bytes| bytes.resize(50 << 20, b' ')).unwrap();
    let report = look(&disk.handle(), &own("")).unwrap();
    let damage = report.damage.unwrap().to_string();
    assert!(damage.contains("job is damaged at byte 8388608: it has more than"), "{damage}");
    assert!(!accept(&disk.handle(), &own("")).unwrap().unwrap().is_everything);
    assert_eq!(pushed(&open(&disk, Flush::Kernel).unwrap(), &STEPS), [1; 8]);
}

/// Zeros behind a log cost little, and a record behind them is found.
#[test]
fn records_behind_zeros_are_found() {
    let disk = kept();
    let log = content(&disk, "log-2");
    let record = log[log.len() - (log.len() - 64) / 3..].to_vec();
    for gap in [1, 43, 44, 4095, 4096, (1 << 20) - 20, 3 << 20] {
        let copy = disk.copy(0);
        copy.edit(&own("log-2"), |bytes| {
            bytes.truncate(log.len() - record.len());
            bytes.resize(bytes.len() + gap, 0);
            bytes.extend(&record);
        })
        .unwrap();
        let damage = look(&copy.handle(), &own("")).unwrap().damage.unwrap().to_string();
        let at = log.len() - record.len() + gap;
        let words = format!("1 complete ones follow from byte {at}");
        assert!(damage.contains(&words), "{gap} zeros: {damage}");
    }
}

/// Searched byte by byte, each of these takes an hour.
#[test]
fn a_sparse_rest_of_a_log_costs_nothing() {
    at_once("a sparse rest", || {
        let real = Real::new("sparse");
        let log = fs::read(real.log()).unwrap();
        // A whole record behind a hole.
        let record = &log[log.len() - (log.len() - 64) / 5..];
        let disk = RealDisk;
        let file = disk.open(&real.log(), fleet_base::disk::Access::Write).unwrap();
        file.set_len((log.len() - record.len()) as u64).unwrap();
        let at = 10 << 30;
        file.write_at(at, &mut [std::io::IoSlice::new(record)]).unwrap();
        let damage = real.damage();
        let found = damage.contains(&format!("1 complete ones follow from byte {at}"));
        assert!(found, "{damage}");
        // Nothing but a hole: the end is cut off and kept.
        let whole = (log.len() - record.len()) as u64;
        real.resize(whole);
        real.resize(10 << 30);
        let server = real.start().unwrap();
        assert_eq!(pushed(&server, &[4, 5]), [1, 0]);
        let cut = server.recovered().unwrap().cut.unwrap();
        assert_eq!((cut.offset, cut.bytes), (whole, (10 << 30) - whole));
        let aside = real.own(&format!("aside/log-0.at-{whole}"));
        assert_eq!(fs::metadata(aside).unwrap().len(), cut.bytes);
    });
}

#[test]
fn a_log_that_is_far_too_long_is_damage() {
    at_once("a long rest", || {
        let real = Real::new("long");
        let len = fs::metadata(real.log()).unwrap().len();
        real.resize(len + REST_BYTES_MAX + 1);
        let damage = real.damage();
        assert!(
            damage.contains(&format!("log-0 is damaged at byte {len}: 17179869185 bytes follow"))
        );
        let error = real.start().map(drop).unwrap_err().to_string();
        assert!(error.contains(&damage) && error.contains("--accept-loss"), "{error}");
        let losses = accept_loss(&real.0).unwrap();
        assert_eq!((losses.len(), losses[0].request_count), (1, 0));
        assert_eq!(pushed(&real.start().unwrap(), &[1, 2, 3, 4, 5]), [1; 5]);
    });
}

/// Nothing is called damaged or moved, and the error says what to do.
fn check_version(disk: &SimDisk, file: &str, ours: &str, got: &str) {
    let before = files(disk);
    let errors = [
        open(disk, Flush::Kernel).map(drop).unwrap_err(),
        look(&disk.handle(), &own("")).map(drop).unwrap_err(),
        accept(&disk.handle(), &own("")).map(drop).unwrap_err(),
    ];
    for error in errors.map(|error| error.to_string()) {
        let words =
            format!("expected version {ours}, got version {got}\n  at kept/server-000/{file}");
        assert!(error.contains(&words) && error.contains("help: resume the job"), "{error}");
        assert!(!error.contains("damaged"), "{error}");
    }
    assert_eq!(files(disk), before, "nothing is moved");
}

#[test]
fn files_of_other_versions_are_not_damaged() {
    for version in ["4", "5", "6", "60"] {
        // With a checksum as ours, and with one that is made in another way.
        for is_ours in [true, false] {
            let disk = kept();
            disk.edit(&own("job"), |bytes| {
                let text = String::from_utf8(bytes.clone()).unwrap();
                let text = text.replacen("version 7", &format!("version {version}"), 1);
                let (text, _) = text.split_at(text.rfind("crc32 ").unwrap());
                let sum = if is_ours { crc32fast::hash(text.as_bytes()) } else { 0 };
                *bytes = format!("{text}crc32 {sum:08x}\n").into_bytes();
            })
            .unwrap();
            check_version(&disk, "job", "7", version);
        }
    }
    for is_ours in [true, false] {
        let disk = kept();
        disk.edit(&own("log-2"), |bytes| {
            bytes[8] = 2;
            let sum = if is_ours { crc32fast::hash(&bytes[..60]) } else { 0 };
            bytes[60..64].copy_from_slice(&sum.to_le_bytes());
        })
        .unwrap();
        check_version(&disk, "log-2", "1", "2");
        // Not even where the file that names the life is gone.
        disk.remove(&own("job")).unwrap();
        check_version(&disk, "log-2", "1", "2");

        let disk = kept();
        disk.edit(&own("snapshot-1"), |bytes| {
            bytes[15] = b'8';
            let sum = if is_ours { blocks::sum(0, &bytes[8..8 + first_block(bytes)]) } else { 0 };
            bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        })
        .unwrap();
        check_version(&disk, "snapshot-1", "7", "8");
    }
}

fn first_block(bytes: &[u8]) -> usize {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
}

/// Files stay in the folder of their server.
#[cfg(unix)]
#[test]
fn links_in_place_of_folders_are_refused() {
    let (real, outside) = (Real::new("links"), Real::new("outside"));
    let mut bytes = fs::read(real.log()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(real.log(), &bytes).unwrap();
    let target = outside.0.join("target");
    fs::create_dir(&target).unwrap();
    std::os::unix::fs::symlink(&target, real.own("aside")).unwrap();
    let error = accept_loss(&real.0).map(drop).unwrap_err().to_string();
    assert!(error.contains("aside is not a folder: expected a folder or nothing, got a link"));
    // The end of a log, which a start cuts off, stays where it is, too.
    fs::write(real.log(), &bytes[..middle]).unwrap();
    let error = real.start().map(drop).unwrap_err().to_string();
    assert!(error.contains("aside is not a folder"), "{error}");
    assert_eq!(fs::read(real.log()).unwrap().len(), middle);
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);

    // The folder of a server.
    fs::remove_dir_all(real.own("")).unwrap();
    std::os::unix::fs::symlink(outside.own(""), real.0.join("server-000")).unwrap();
    let errors = [
        real.start().map(drop).unwrap_err(),
        inspect(&real.0).map(drop).unwrap_err(),
        accept_loss(&real.0).map(drop).unwrap_err(),
        folder_state(&real.0).map(drop).unwrap_err(),
    ];
    for error in errors.map(|error| error.to_string()) {
        assert!(error.contains("server-000 is not a folder"), "{error}");
        assert!(error.contains("got a link"), "{error}");
    }
}

/// Copies beside the folders of a job's servers are named, and nothing in them is changed.
#[test]
fn strays_are_named_and_left_alone() {
    let disk = kept();
    for stray in ["server-005", "server-000.bak", "server-1"] {
        for name in files(&disk) {
            let bytes = content(&disk, &name);
            disk.create_folder(&Path::new("kept").join(stray)).unwrap();
            let path = Path::new("kept").join(stray).join(name);
            fleet_base::file::AtomicFile::write_on(&disk.handle(), &path, &bytes).unwrap();
        }
    }
    let (servers, strays) = server_folders(&disk, Path::new("kept")).unwrap();
    assert_eq!(servers, [Path::new("kept/server-000")]);
    let names = ["kept/server-000.bak", "kept/server-005", "kept/server-1"];
    assert_eq!(strays, names.map(PathBuf::from));
    // A file in place of a folder.
    let file = Path::new("kept/server-001");
    fleet_base::file::AtomicFile::write_on(&disk.handle(), file, b"text").unwrap();
    for (path, name) in [("kept", "kept/server-001"), ("kept/server-001", "kept/server-001")] {
        let error = server_folders(&disk, Path::new(path)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name} is not a folder")), "{error}");
    }
}

#[test]
fn another_job_is_refused_with_its_table_and_field() {
    let disk = kept();
    let mut other = tables();
    other.tables.swap(0, 1);
    let error = ServerTables::durable_on(disk.handle(), &other, 0, options(Flush::Kernel));
    let error = error.map(drop).unwrap_err().to_string();
    let [id, ours] = [0, 1].map(|at: usize| other.tables[at].table_id());
    let words = format!(
        "belongs to another job: expected table_id: {id}, got table_id: {ours}\n  at table {id}\n  \
         at kept"
    );
    assert!(error.contains(&words), "{error}");
}
