//! Saves of whole jobs in remote folders, through a client whose HDFS is a folder of this machine.

use crate::common::SPARSE;
use crate::saves::{CLICK, look, tables, train};
use fleet_base::fs::CommandFs;
use fleet_base::{ErrorKind, Result};
use fleet_ps::{
    LocalServers, SaveFormat, SaveFs, SaveMode, Saved, ServerTables, TableAdmin, Tables,
};
use fleet_testhost::hadoop::Hadoop;
use std::ops::Range;
use std::path::Path;

const URL: &str = "hdfs://host:9000/save";
/// More commands than any save or load has.
const MANY: usize = 1000;

fn hadoop(name: &str) -> Hadoop {
    Hadoop::new(std::env::temp_dir().join(format!("fleet-ps-hdfs-{name}-{}", std::process::id())))
}

/// Servers that save with a client.
fn start(hadoop: &Hadoop, server_count: usize) -> LocalServers {
    let fs = CommandFs::new(&hadoop.program()).uri("hdfs://host:9000").user("me", "secret");
    let fs = SaveFs::new(fs, hadoop.temporary());
    let servers = ServerTables::all(&tables(server_count)).unwrap();
    servers.iter().for_each(|server| server.set_save_fs(fs.clone()));
    LocalServers::new(&servers, 0).unwrap()
}

fn trained(hadoop: &Hadoop, steps: u64) -> LocalServers {
    let servers = start(hadoop, 2);
    (0..steps).for_each(|step| train(&servers, step));
    servers
}

fn save(servers: &LocalServers) -> Result<Saved> {
    servers.save(Tables::All, URL.as_ref(), SaveMode::All, SaveFormat::Binary)
}

fn has_no_copies(hadoop: &Hadoop) -> bool {
    hadoop.temporary().read_dir().unwrap().next().is_none()
}

/// Names without the numbers of saves and rounds.
fn kinds(hadoop: &Hadoop) -> Vec<String> {
    let files = hadoop.files();
    files.iter().map(|path| path.split('.').next().unwrap_or_default().to_string()).collect()
}

/// A remote save has the files of a local one, so that either may be copied.
#[test]
fn a_remote_save_is_loaded_by_any_number_of_servers() {
    let hadoop = hadoop("load");
    let old = trained(&hadoop, 3);
    let saved = save(&old).unwrap();
    let files = hadoop.files();
    for name in ["/save/tables.txt", "/save/saved-000.1", "/save/saved-001.1"] {
        assert!(files.iter().any(|path| path == name), "{name} is not in {files:?}");
    }
    for server_count in [2, 1, 3] {
        let new = start(&hadoop, server_count);
        assert_eq!(new.load(Tables::All, URL.as_ref()).unwrap(), saved.row_count);
        assert_eq!(look(&new), look(&old), "{server_count} servers");
    }
    let local = start(&hadoop, 2);
    local.load(Tables::All, &hadoop.file("/save")).unwrap();
    assert_eq!(look(&local), look(&old));
    // A local save whose parts have numbers of rounds, and the next remote one.
    train(&local, 3);
    (0..3).for_each(|_| {
        let (dir, mode) = (hadoop.file("/save"), SaveMode::All);
        local.save(Tables::All, &dir, mode, SaveFormat::Text).unwrap();
    });
    let kinds_of_local = kinds(&hadoop);
    let new = start(&hadoop, 2);
    new.load(Tables::All, URL.as_ref()).unwrap();
    assert_eq!(look(&new), look(&local));
    save(&new).unwrap();
    assert_eq!(kinds(&hadoop), kinds_of_local, "the saves before are deleted");
    assert!(hadoop.file("/save/saved-001.5").exists() && has_no_copies(&hadoop));
}

#[test]
fn one_table_is_saved_and_loaded_alone() {
    let hadoop = hadoop("one");
    let old = trained(&hadoop, 3);
    save(&old).unwrap();
    let one = Path::new("hdfs://host:9000/one");
    let (mode, format) = (SaveMode::All, SaveFormat::Text);
    old.save(Tables::One(CLICK), one, mode, format).unwrap();
    hadoop.recover();
    for dir in [one, URL.as_ref()] {
        let new = start(&hadoop, 1);
        new.load(Tables::One(CLICK), dir).unwrap();
        let (sparse, _, click, ..) = look(&new);
        assert_eq!(click, look(&old).2);
        assert_ne!(sparse, look(&old).0, "the other tables are not loaded");
    }
    let gets = hadoop.commands().iter().filter(|line| line.starts_with("-get")).count();
    assert_eq!(gets, 4, "the marks, and one table");
    let error = old.save(Tables::One(SPARSE), URL.as_ref(), mode, format).unwrap_err().to_string();
    assert!(error.contains("the folder has saves of other tables"), "{error}");
    let error = start(&hadoop, 1).load(Tables::All, Path::new("hdfs://host:9000/none"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no save in hdfs://host:9000/none"), "{error}");
}

/// Saves over an older save while commands fail. Returns the outcome, and the steps of the save
/// that loads afterwards.
fn save_while_failing(hadoop: &Hadoop, fails: Range<usize>) -> (Result<Saved>, u64) {
    let first = trained(hadoop, 2);
    save(&first).unwrap();
    let second = trained(hadoop, 3);
    hadoop.fail(fails);
    let outcome = save(&second);
    hadoop.recover();
    let new = start(hadoop, 1);
    new.load(Tables::All, URL.as_ref()).unwrap();
    let steps = match look(&new) {
        found if found == look(&first) => 2,
        found if found == look(&second) => 3,
        found => panic!("the tables are those of no save: {found:?}"),
    };
    (outcome, steps)
}

/// Whichever command fails, alone or with all later ones, a load takes one whole save.
#[test]
fn a_client_that_fails_leaves_a_whole_save() {
    let clean = hadoop("clean");
    save(&trained(&clean, 2)).unwrap();
    clean.recover();
    save(&trained(&clean, 3)).unwrap();
    let (kinds_of_save, commands) = (kinds(&clean), clean.commands().len());
    for lasts in [1, MANY] {
        let mut failures = 0;
        for at in 1..=commands {
            let hadoop = hadoop("fails");
            let (outcome, steps) = save_while_failing(&hadoop, at..at + lasts);
            let Err(error) = outcome else {
                assert_eq!(steps, 3, "a deletion of the older save fails, command {at}");
                continue;
            };
            failures += 1;
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            let text = error.to_string();
            for part in [&*hadoop.program(), " fs -", " failed (exit status: 1)", "refused", URL] {
                assert!(text.contains(part), "'{part}' is not in: {text}");
            }
            assert!(!text.contains("secret"), "{text}");
            // A mark may be uploaded although its command fails. It stays if HDFS is down.
            assert!(steps == 2 || lasts == MANY, "command {at}: {steps}");
            // The next save deletes what the failed one has left.
            save(&trained(&hadoop, 4)).unwrap();
            assert_eq!(kinds(&hadoop), kinds_of_save, "command {at}");
            assert!(has_no_copies(&hadoop));
        }
        // Each of two servers lists twice, makes a folder, and uploads parts, manifests and mark.
        assert_eq!(failures, 2 * 6, "{lasts}");
    }
}

#[test]
fn a_load_that_fails_changes_nothing() {
    let hadoop = hadoop("get");
    let old = trained(&hadoop, 3);
    save(&old).unwrap();
    let check = |words: &[&str]| {
        let new = start(&hadoop, 1);
        let error = new.load(Tables::All, URL.as_ref()).unwrap_err().to_string();
        assert!(words.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(look(&new), look(&start(&hadoop, 1)));
        assert!(has_no_copies(&hadoop));
    };
    // It lists, and downloads marks and tables.
    for at in 1..=3 {
        hadoop.fail(at..MANY);
        check(&["refused", "exit status: 1"]);
    }
    hadoop.recover();
    let part = hadoop.file("/save/000/part-001-00000");
    let bytes = std::fs::read(&part).unwrap();
    std::fs::write(&part, &bytes[1..]).unwrap();
    check(&[&format!("{URL}/000/part-001-00000 has the wrong size")]);
    std::fs::remove_file(&part).unwrap();
    check(&[&format!("{URL}/000/part-001-00000 is missing")]);
    std::fs::remove_file(hadoop.file("/save/saved-001.1")).unwrap();
    check(&[&format!("incomplete save in {URL}"), "no parts of servers [1]"]);
}

#[test]
fn remote_folders_need_a_client_and_a_known_scheme() {
    let servers = LocalServers::new(&ServerTables::all(&tables(1)).unwrap(), 0).unwrap();
    let check = |url: &str, words: &str| {
        let saved = servers.save(Tables::All, url.as_ref(), SaveMode::All, SaveFormat::Text);
        let loaded = servers.load(Tables::All, url.as_ref());
        for error in [saved.unwrap_err().to_string(), loaded.unwrap_err().to_string()] {
            assert!(error.contains(words) && error.contains(url), "{error}");
        }
    };
    check(URL, "this server has no client for remote folders");
    check("s3://bucket/save", "unknown file system 's3:'");
    check("hdfs://host/save*", "invalid path of a remote folder");
}
