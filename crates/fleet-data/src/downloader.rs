//! Downloads of data sets in the documented layout: a folder with a list of files and their MD5
//! sums. Each worker downloads its shard.

use crate::tar::{broken, members};
use fleet_base::fs::{FileSystem, joined};
use fleet_base::{Error, Result, text};
use md5::{Digest, Md5};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

/// Downloads the files of a data set, of which `filelist.txt` has a line `NAME MD5` each.
///
/// File i of the list belongs to shard i mod n. A file that is there with the right sum is kept, so
/// an interrupted download continues. Archives (`*.tar`) are unpacked.
///
/// ```
/// use fleet_base::fs::LocalFs;
/// use fleet_data::Downloader;
/// let folder = std::env::temp_dir().join(format!("fleet-download-{}", std::process::id()));
/// let remote = folder.join("remote");
/// std::fs::create_dir_all(&remote).unwrap();
/// std::fs::write(remote.join("part-0"), "1 7\n").unwrap();
/// let list = "part-0 e80f90c9cbfd6f77cf10aa677ab48265\n";
/// std::fs::write(remote.join("filelist.txt"), list).unwrap();
///
/// let local = folder.join("local");
/// let files = Downloader::new(&LocalFs).fetch(remote.to_str().unwrap(), &local, 1, 0)?;
/// assert_eq!(files, [local.join("part-0")]);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Downloader<'f> {
    fs: &'f dyn FileSystem,
}

/// Name of the list of files.
const LIST: &str = "filelist.txt";
/// Limit of the list: a million names with sums.
const LIST_BYTES_MAX: u64 = 256 << 20;
/// Length of an MD5 sum in hexadecimal digits.
const SUM_DIGITS: usize = 32;
const ARCHIVE: &str = ".tar";
const READ_BYTES: usize = 1 << 16;

/// A line of the list.
struct Listed {
    name: String,
    sum: String,
}

impl<'f> Downloader<'f> {
    /// Creates a downloader from a file system.
    pub fn new(fs: &'f dyn FileSystem) -> Downloader<'f> {
        Downloader { fs }
    }

    /// Downloads shard `shard_id` of `shard_num` of a data set to a local folder. Returns the local
    /// files, in the order of the list; for an archive, the files in it.
    pub fn fetch(
        &self,
        folder: &str,
        local: impl AsRef<Path>,
        shard_num: usize,
        shard_id: usize,
    ) -> Result<Vec<PathBuf>> {
        if shard_id >= shard_num {
            return Err(Error::invalid("shard is out of range")
                .expected(format!("0 to {}", shard_num.saturating_sub(1)))
                .got(shard_id));
        }
        let local = local.as_ref();
        make_folder(local)?;
        let listed = self.list(folder, local, shard_id)?.into_iter().enumerate();
        let own = listed.filter(|(index, _)| index % shard_num == shard_id);
        let own: Vec<Listed> = own.map(|(_, listed)| listed).collect();
        let mut missing = Vec::new();
        for listed in &own {
            let path = local.join(&listed.name);
            if !path.exists() || md5_of(&path)? != listed.sum {
                missing.push(joined(folder, &listed.name));
            }
        }
        let names: Vec<&str> = missing.iter().map(String::as_str).collect();
        self.fs.download(&names, local)?;
        let mut files = Vec::new();
        for Listed { name, sum } in own {
            let path = local.join(&name);
            let found = md5_of(&path)?;
            if found != sum {
                return Err(Error::unavailable(format!("download of {name} is damaged"))
                    .expected(format!("MD5 {sum}"))
                    .got(found)
                    .at(folder)
                    .help("run again: the file is downloaded anew; or correct its list"));
            }
            match name.ends_with(ARCHIVE) {
                true => files.extend(unpack(&path, local)?),
                false => files.push(path),
            }
        }
        Ok(files)
    }

    /// Downloads and reads the list of files. Workers on one machine may do so at the same time.
    fn list(&self, folder: &str, local: &Path, shard_id: usize) -> Result<Vec<Listed>> {
        let own = local.join(format!(".list-{shard_id}"));
        make_folder(&own)?;
        self.fs.download(&[&joined(folder, LIST)], &own)?;
        let path = own.join(LIST);
        let read = |error: io::Error| Error::io("read", &path, &error);
        let mut text = String::new();
        let file = File::open(&path).map_err(read)?;
        file.take(LIST_BYTES_MAX + 1).read_to_string(&mut text).map_err(read)?;
        if text.len() as u64 > LIST_BYTES_MAX {
            return Err(Error::exhausted("list of files is too long")
                .expected(format!("at most {}", text::bytes(LIST_BYTES_MAX)))
                .at(joined(folder, LIST)));
        }
        std::fs::remove_dir_all(&own).map_err(|error| Error::io("remove", &own, &error))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines
            .map(|(number, line)| {
                parse(line).ok_or_else(|| {
                    Error::invalid("invalid line of a list of files")
                        .expected("NAME MD5, with a name that has no folder")
                        .got(format!("'{line}'"))
                        .at(format!("{}:{}", joined(folder, LIST), number + 1))
                })
            })
            .collect()
    }
}

fn parse(line: &str) -> Option<Listed> {
    let (name, sum) = line.trim().rsplit_once([' ', '\t'])?;
    let name = name.trim_end();
    let is_sum = sum.len() == SUM_DIGITS && sum.bytes().all(|digit| digit.is_ascii_hexdigit());
    let mut parts = Path::new(name).components();
    let is_plain = matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none();
    (is_sum && is_plain && !name.starts_with('.'))
        .then(|| Listed { name: name.to_string(), sum: sum.to_ascii_lowercase() })
}

/// Returns the MD5 sum of a file in hexadecimal digits.
fn md5_of(path: &Path) -> Result<String> {
    let read = |error: io::Error| Error::io("read", path, &error);
    let mut file = File::open(path).map_err(read)?;
    let (mut sum, mut buffer) = (Md5::new(), vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buffer).map_err(read)? {
            0 => break,
            count => sum.update(&buffer[..count]),
        }
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Unpacks an archive into a folder. Files that are there with the right size are kept.
fn unpack(archive: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut file = File::open(archive).map_err(|error| Error::io("open", archive, &error))?;
    let mut files = Vec::new();
    for member in members(&mut file).map_err(|error| error.at(archive.display()))? {
        let name = Path::new(&member.name);
        let is_inside =
            |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !name.components().all(is_inside) || name.file_name().is_none() {
            return Err(Error::invalid(
                "a file of a tar archive is outside of the archive's folder",
            )
            .got(format!("'{}'", member.name))
            .at(archive.display()));
        }
        let path = folder.join(name);
        let is_there = path.metadata().is_ok_and(|it| it.is_file() && it.len() == member.bytes);
        if !is_there {
            path.parent().map_or(Ok(()), make_folder)?;
            file.seek(SeekFrom::Start(member.start)).map_err(|error| broken(&error))?;
            let write = |error: io::Error| Error::io("write", &path, &error);
            let mut to = File::create(&path).map_err(write)?;
            let copied = io::copy(&mut (&mut file).take(member.bytes), &mut to).map_err(write)?;
            if copied != member.bytes {
                return Err(Error::unavailable("the tar archive ends early").at(archive.display()));
            }
        }
        files.push(path);
    }
    Ok(files)
}

fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::fs::LocalFs;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let name = format!("fleet-downloader-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::remove_dir_all(&folder).ok();
            std::fs::create_dir_all(folder.join("remote")).unwrap();
            Place(folder)
        }

        fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
            std::fs::write(self.0.join("remote").join(name), bytes).unwrap();
        }

        /// Writes the list of the files in the folder.
        fn list(&self, names: &[&str]) {
            let line = |name: &&str| {
                format!("{name} {}\n", md5_of(&self.0.join("remote").join(name)).unwrap())
            };
            self.write(LIST, names.iter().map(line).collect::<String>());
        }

        fn fetch(&self, shards: usize, shard: usize) -> Result<Vec<String>> {
            let (remote, local) = (self.0.join("remote"), self.0.join("local"));
            let files =
                Downloader::new(&LocalFs).fetch(remote.to_str().unwrap(), &local, shards, shard)?;
            let name = |path: PathBuf| path.strip_prefix(&local).unwrap().display().to_string();
            Ok(files.into_iter().map(name).collect())
        }

        fn local(&self, name: &str) -> String {
            std::fs::read_to_string(self.0.join("local").join(name)).unwrap()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    /// A tar archive of small files.
    fn tar(files: &[(&str, &str)]) -> Vec<u8> {
        let mut archive = Vec::new();
        for (name, content) in files {
            let mut header = [0u8; 512];
            header[..name.len()].copy_from_slice(name.as_bytes());
            let size = format!("{:011o}", content.len());
            header[124..135].copy_from_slice(size.as_bytes());
            header[156] = b'0';
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            archive.extend(header);
            archive.extend(content.as_bytes());
            archive.resize(archive.len().next_multiple_of(512), 0);
        }
        archive.resize(archive.len() + 1024, 0);
        archive
    }

    #[test]
    fn a_shard_has_every_nth_file_and_archives_are_unpacked() {
        let place = Place::new("shards");
        let names = ["part-0", "part-1", "part-2", "images.tar"];
        for name in &names[..3] {
            place.write(name, format!("1 {name}\n"));
        }
        place.write("images.tar", tar(&[("a/0.jpg", "zero"), ("a/1.jpg", "")]));
        place.list(&names);
        assert_eq!(place.fetch(2, 0).unwrap(), ["part-0", "part-2"]);
        assert_eq!(place.fetch(2, 1).unwrap(), ["part-1", "a/0.jpg", "a/1.jpg"]);
        assert_eq!(
            (place.local("part-2"), place.local("a/0.jpg")),
            ("1 part-2\n".into(), "zero".into())
        );
        // A file with the right sum is kept, and another one is downloaded again.
        std::fs::remove_file(place.0.join("remote/part-0")).unwrap();
        std::fs::write(place.0.join("local/part-2"), "torn").unwrap();
        assert_eq!(place.fetch(2, 0).unwrap(), ["part-0", "part-2"]);
        assert_eq!(place.local("part-2"), "1 part-2\n");
    }

    #[test]
    fn damage_and_bad_lists_are_refused() {
        let place = Place::new("damage");
        place.write("part-0", "1 7\n");
        place.list(&["part-0"]);
        place.write("part-0", "1 8\n");
        let error = place.fetch(1, 0).unwrap_err().to_string();
        assert!(error.contains("download of part-0 is damaged: expected MD5 "), "{error}");
        let sum = "e80f90c9cbfd6f77cf10aa677ab48265";
        for line in ["part-0", "part-0 12", &format!("../x {sum}"), &format!("/x {sum}")] {
            place.write(LIST, line);
            let error = place.fetch(1, 0).unwrap_err().to_string();
            assert!(error.contains("invalid line of a list of files"), "{line}: {error}");
            assert!(error.contains("filelist.txt:1"), "{error}");
        }
        let error = place.fetch(2, 2).unwrap_err().to_string();
        assert!(error.contains("shard is out of range: expected 0 to 1, got 2"), "{error}");
        place.write("evil.tar", tar(&[("../../evil", "x")]));
        place.list(&["evil.tar"]);
        let error = place.fetch(1, 0).unwrap_err().to_string();
        assert!(error.contains("outside of the archive's folder"), "{error}");
    }
}
