//! Saves of one table by several servers, loaded by others, and saves that are rejected.

use super::*;
use crate::{CtrAccessor, Entry, PullMode, Push, Rule, SparseConfig, load_sparse, rule};
use std::io::Read;

/// A folder that is deleted at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("fleet-ps-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn plain() -> SparseConfig {
    SparseConfig {
        shard_count: 5,
        rule: Rule::Adam(rule::Adam::default()),
        entry: Entry::CountFilter(1),
        ..SparseConfig::plain(7, 3)
    }
}

fn click() -> SparseConfig {
    let ctr = CtrAccessor { embedx_threshold: 3.0, ..CtrAccessor::default() };
    SparseConfig { shard_count: 3, accessor: Accessor::Ctr(ctr), ..SparseConfig::ctr(7, 2) }
}

/// A table with the ids of server `server` of `count`.
fn filled(config: SparseConfig, server: u64, count: u64) -> SparseTable {
    let table = SparseTable::new(config).unwrap();
    let ids: Vec<u64> = (0..3000).map(|i| i * i * i).filter(|id| id % count == server).collect();
    let mut rows = vec![0.0; ids.len() * table.pull_width()];
    table.pull(&ids, &mut rows, PullMode::Train).unwrap();
    let grads: Vec<f32> = (0..ids.len() * table.push_width()).map(|i| i as f32 * 1e-3).collect();
    let shows: Vec<f32> = ids.iter().map(|id| (id % 60) as f32).collect();
    table.push(Push { shows: Some(&shows), ..Push::new(&ids, &grads) }).unwrap();
    table
}

fn options(format: SaveFormat, server: u32, server_count: u32, save_id: u64) -> SaveOptions {
    SaveOptions { mode: SaveMode::All, format, server, server_count, save_id }
}

fn rows(tables: &[SparseTable]) -> std::collections::BTreeMap<u64, Vec<u32>> {
    let mut rows = std::collections::BTreeMap::new();
    for table in tables {
        let mut snapshot = table.snapshot(SaveMode::All);
        let mut visit = |record: Record<'_>| {
            if let Record::Row { id, values, .. } = record {
                rows.insert(id, values.iter().map(|value| value.to_bits()).collect());
            }
            Ok::<(), Error>(())
        };
        while snapshot.next_shard(&mut visit).unwrap() {}
    }
    rows
}

#[test]
fn a_save_of_two_servers_loads_on_three() {
    for config in [plain(), click()] {
        for format in [SaveFormat::Text, SaveFormat::Binary] {
            let folder = Folder::new("reshard");
            let old: Vec<SparseTable> = (0..2).map(|s| filled(config.clone(), s, 2)).collect();
            for (server, table) in (0..).zip(&old) {
                let saved = save_sparse(table, &folder.0, &options(format, server, 2, 9)).unwrap();
                assert_eq!(saved.row_count, table.stats().row_count);
            }
            let new: Vec<SparseTable> = (0..3)
                .map(|server| {
                    let config = SparseConfig { shard_count: 2, ..config.clone() };
                    let table = SparseTable::new(config).unwrap();
                    load_sparse(&table, &folder.0, |id| id % 3 == server).unwrap();
                    table
                })
                .collect();
            assert!(rows(&old) == rows(&new), "bit by bit, {format:?}");
            let count = |tables: &[SparseTable]| -> u64 {
                tables.iter().map(|table| table.stats().row_count).sum()
            };
            assert_eq!(count(&old), count(&new));
        }
    }
}

#[test]
fn ids_that_wait_keep_their_count() {
    let folder = Folder::new("waiting");
    let config = || SparseConfig { entry: Entry::CountFilter(3), ..plain() };
    let table = SparseTable::new(config()).unwrap();
    let mut row = [0.0; 3];
    (0..2).for_each(|_| table.pull(&[5], &mut row, PullMode::Train).unwrap());
    save_sparse(&table, &folder.0, &options(SaveFormat::Text, 0, 1, 1)).unwrap();
    let copy = SparseTable::new(config()).unwrap();
    assert_eq!(load_sparse(&copy, &folder.0, |_| true).unwrap(), 0);
    assert_eq!(copy.stats().pending_count, 1);
    copy.pull(&[5], &mut row, PullMode::Train).unwrap();
    assert_eq!(copy.stats().row_count, 1, "the third pull admits");
}

#[test]
fn a_save_over_a_save_leaves_one() {
    let folder = Folder::new("over");
    let table = filled(plain(), 0, 1);
    for save in 0..3 {
        table.push(Push::new(&[1], &[1.0; 3])).unwrap();
        save_sparse(&table, &folder.0, &options(SaveFormat::Binary, 0, 1, save)).unwrap();
        let copy = SparseTable::new(plain()).unwrap();
        load_sparse(&copy, &folder.0, |_| true).unwrap();
        assert!(rows(&[copy]) == rows(std::slice::from_ref(&table)));
    }
    let files = std::fs::read_dir(table_folder(&folder.0, 7)).unwrap().count();
    assert_eq!(files, 1 + 1, "a part and a manifest");
}

fn saver<'a>(disk: &'a Arc<dyn Disk>, dir: &'a Path, options: SaveOptions) -> Saver<'a> {
    Saver { disk, dir, options, part_bytes: PART_BYTES, round_min: 0 }
}

/// A part ends with the shard that fills it, before compression.
#[test]
fn large_saves_have_several_parts() {
    for (config, part_bytes, parts) in [
        (plain(), 1, 5),
        (SparseConfig { compress_in_save: true, ..plain() }, 40_000, 3),
        (plain(), 1 << 20, 1),
    ] {
        let (folder, table) = (Folder::new("parts"), filled(config, 0, 1));
        let (disk, options) = (RealDisk::handle(), options(SaveFormat::Binary, 0, 1, 1));
        let saver = Saver { part_bytes, ..saver(&disk, &folder.0, options) };
        let (saved, _) = saver.sparse(&table).unwrap();
        assert_eq!(saved.row_count, 3000);
        let manifest = table_folder(&folder.0, 7).join("manifest-000.1");
        let manifest = manifest::read(&RealDisk, &manifest).unwrap();
        assert_eq!(manifest.parts.len(), parts, "{part_bytes}");
        assert_eq!(manifest.parts.iter().map(|part| part.bytes).sum::<u64>(), saved.bytes);
        let copy = SparseTable::new(plain()).unwrap();
        assert_eq!(load_sparse(&copy, &folder.0, |_| true).unwrap(), 3000);
        assert!(rows(&[copy]) == rows(&[table]));
    }
}

#[test]
fn a_base_and_a_delta_make_the_table() {
    let (base, delta) = (Folder::new("base"), Folder::new("delta"));
    let table = filled(plain(), 0, 1);
    let save = |folder: &Folder, mode| {
        let options = SaveOptions { mode, ..options(SaveFormat::Text, 0, 1, 1) };
        save_sparse(&table, &folder.0, &options).unwrap().row_count
    };
    save(&base, SaveMode::Base);
    table.push(Push::new(&[0, 1, 1 << 50], &[1.0; 9])).unwrap();
    let mut row = [0.0; 3];
    table.pull(&[1 << 50], &mut row, PullMode::Train).unwrap();
    table.push(Push::new(&[1 << 50], &[1.0; 3])).unwrap();
    assert_eq!(save(&delta, SaveMode::Delta), 3);
    let copy = SparseTable::new(plain()).unwrap();
    load_sparse(&copy, &base.0, |_| true).unwrap();
    load_sparse(&copy, &delta.0, |_| true).unwrap();
    assert!(rows(&[copy]) == rows(&[table]));
}

#[test]
fn damaged_saves_are_refused_and_load_nothing() {
    let folder = Folder::new("damage");
    let tables: Vec<SparseTable> = (0..2).map(|server| filled(plain(), server, 2)).collect();
    let save = |server: u32, id: u64| {
        let options = options(SaveFormat::Binary, server, 2, id);
        save_sparse(&tables[server as usize], &folder.0, &options).unwrap();
    };
    let check = |words: &str| {
        let copy = SparseTable::new(plain()).unwrap();
        let error = load_sparse(&copy, &folder.0, |_| true).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(copy.stats().row_count, 0, "{words}");
    };
    check("no save in ");
    save(0, 1);
    check("expected the parts of 2 servers in save 1, got no parts of servers [1]");
    save(1, 2);
    check("expected the parts of 2 servers in save 2, got no parts of servers [0]");
    save(0, 2);
    let part = table_folder(&folder.0, 7).join("part-001-00000");
    let bytes = std::fs::read(&part).unwrap();
    std::fs::write(&part, &bytes[..bytes.len() - 1]).unwrap();
    check("part-001-00000 has the wrong size: expected");
    let mut changed = bytes.clone();
    changed[100] ^= 1;
    std::fs::write(&part, &changed).unwrap();
    check("part-001-00000 is damaged: its checksum");
    std::fs::remove_file(&part).unwrap();
    check("part-001-00000");
    std::fs::write(&part, &bytes).unwrap();
    let other = SparseTable::new(SparseConfig { dim: 4, ..plain() }).unwrap();
    let error = load_sparse(&other, &folder.0, |_| true).unwrap_err().to_string();
    assert!(error.contains("expected table 7, plain dim=4 rule=adam, got table 7, plain dim=3"));
    let manifest = table_folder(&folder.0, 7).join("manifest-000.2");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("server_count 2", "server_count 1")).unwrap();
    check("manifest-000.2 is damaged: its checksum is wrong");
}

#[test]
fn parsers_withstand_changed_bytes() {
    let table = filled(click(), 0, 1);
    let folder = Folder::new("fuzz");
    let mut rng = fleet_base::rng::Sequence::new(1, 2);
    for format in [SaveFormat::Text, SaveFormat::Binary] {
        save_sparse(&table, &folder.0, &options(format, 0, 1, 1)).unwrap();
        let name = std::fs::read_dir(table_folder(&folder.0, 7))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.file_name().unwrap().to_string_lossy().starts_with("part"))
            .unwrap();
        let bytes = std::fs::read(name).unwrap();
        for _ in 0..2000 {
            let mut changed = bytes[..bytes.len().min(3000)].to_vec();
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(changed.len() as u64) as usize;
                changed[at] = rng.below(256) as u8;
            }
            changed.truncate(rng.below(changed.len() as u64 + 1) as usize);
            let copy = SparseTable::new(click()).unwrap();
            let mut visit = |record: Record<'_>| copy.restore(record);
            // Any outcome but a panic.
            match format {
                SaveFormat::Binary => drop(binary::read(&changed, table.row_len(), &mut visit)),
                SaveFormat::Text => {
                    let text = String::from_utf8_lossy(&changed);
                    drop(text::read(&text, &copy, &mut visit));
                }
            }
        }
    }
}

/// A save of all rows has gzip files, and a save of some rows has not. Both load, and a file that
/// is not gzip is rejected.
#[test]
fn compressed_parts() {
    let folder = Folder::new("gzip");
    for config in [plain(), click()] {
        let config = SparseConfig { compress_in_save: true, ..config };
        let table = filled(config.clone(), 0, 1);
        for format in [SaveFormat::Text, SaveFormat::Binary] {
            let (dir, part) = (folder.0.join(format.name()), "part-000-00000.gz");
            let saved = save_sparse(&table, &dir, &options(format, 0, 1, 1)).unwrap();
            let bytes = std::fs::read(dir.join("007").join(part)).unwrap();
            assert_eq!(bytes[..2], [0x1f, 0x8b], "gzip begins so");
            let copy = SparseTable::new(plain_form(&config)).unwrap();
            assert_eq!(load_sparse(&copy, &dir, |_| true).unwrap(), saved.row_count);
            assert_eq!(rows(&[copy]), rows(std::slice::from_ref(&table)));

            let base = SaveOptions { mode: SaveMode::Base, ..options(format, 0, 1, 2) };
            save_sparse(&table, &dir, &base).unwrap();
            assert!(dir.join("007").join("part-000-00000.1").exists(), "a base is not compressed");
            assert!(!dir.join("007").join(part).exists(), "the save before goes");
            std::fs::remove_dir_all(dir).unwrap();
        }
    }
    let error = load::plain(Path::new("part-000-00000.gz"), b"no gzip".to_vec(), Some(9));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("part-000-00000.gz is not a gzip file: got "), "{error}");
}

/// A forged save: its files match its manifests, and a small one expands to a large one.
#[test]
fn a_small_file_that_unpacks_to_a_large_one() {
    let folder = Folder::new("bomb");
    let config = SparseConfig { compress_in_save: true, ..plain() };
    let table = filled(config.clone(), 0, 1);
    save_sparse(&table, &folder.0, &options(SaveFormat::Binary, 0, 1, 1)).unwrap();
    let dir = folder.0.join("007");
    let honest = manifest::read(&RealDisk, &dir.join("manifest-000.1")).unwrap();
    let check = |unpacked: u64, plain_bytes: Option<u64>, told: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        std::io::copy(&mut std::io::repeat(0).take(unpacked), &mut encoder).unwrap();
        let packed = encoder.finish().unwrap();
        let mut forged = manifest::read(&RealDisk, &dir.join("manifest-000.1")).unwrap();
        let part = &mut forged.parts[0];
        (part.bytes, part.checksum) = (packed.len() as u64, crc32fast::hash(&packed));
        part.plain_bytes = plain_bytes;
        std::fs::write(dir.join(&part.name), packed).unwrap();
        manifest::write(&RealDisk::handle(), &dir, &forged).unwrap();
        let copy = SparseTable::new(config.clone()).unwrap();
        let error = load_sparse(&copy, &folder.0, |_| true).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    };
    let said = honest.parts[0].plain_bytes;
    let wanted = fleet_base::text::bytes(said.unwrap());
    let more = format!(
        "part-000-00000.gz differs from its manifest: expected {wanted} of uncompressed data, \
         got more"
    );
    check(64 << 20, said, &more);
    check(3, said, "of uncompressed data, got 3 B");
    // Without a size nothing is decompressed.
    check(64 << 20, None, "manifest-000.1 is damaged: it has another version");
}

/// Returns the same config without compression.
fn plain_form(config: &SparseConfig) -> SparseConfig {
    SparseConfig { compress_in_save: false, ..config.clone() }
}

/// Marks of a job's save: every bit flipped, every truncation, and a mark deleted.
#[test]
fn a_changed_mark_is_refused() {
    let folder = Folder::new("marks");
    std::fs::create_dir_all(&folder.0).unwrap();
    let check = |what: &str| {
        let error =
            job::latest_complete(&RealDisk, &folder.0).map(drop).expect_err(what).to_string();
        assert!(error.contains("saved-001.7") || error.contains("save 7"), "{what}: {error}");
        assert!(error.contains("help: "), "{what}: {error}");
    };
    for server in 0..3 {
        let options = options(SaveFormat::Text, server, 3, 7);
        saver(&RealDisk::handle(), &folder.0, options).mark(&[]).unwrap();
    }
    assert_eq!(job::latest_complete(&RealDisk, &folder.0).unwrap().0.save_id, 7);
    let path = folder.0.join("saved-001.7");
    let bytes = std::fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            std::fs::write(&path, changed).unwrap();
            check(&format!("bit {bit} of byte {at}"));
        }
        std::fs::write(&path, &bytes[..at]).unwrap();
        check(&format!("{at} bytes"));
    }
    std::fs::remove_file(&path).unwrap();
    check("deleted");
    std::fs::copy(folder.0.join("saved-000.7"), &path).unwrap();
    check("the mark of another server");
    // Earlier versions wrote only the count. It must agree with the others, and be valid.
    std::fs::write(&path, "server_count 3\n").unwrap();
    assert_eq!(job::latest_complete(&RealDisk, &folder.0).unwrap().0.save_id, 7);
    (0..3).for_each(|server| {
        let path = folder.0.join(format!("saved-{server:03}.7"));
        std::fs::write(path, format!("server_count {}\n", u32::MAX)).unwrap();
    });
    check("a count that no cluster has");
}
