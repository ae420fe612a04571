//! File systems by name: that of this machine, and those that a command reaches (`hadoop fs`, for
//! HDFS). They move whole files, for saves and downloads; the durable state of servers goes through
//! [`disk`](crate::disk).

use crate::disk::{PathKind, RealDisk, remove_folder_all};
use crate::file::AtomicFile;
use crate::{Error, Result};
use std::fmt::Debug;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A file system, with the operations of the documented file clients. Paths are those of the file
/// system; for HDFS they may be URLs (`hdfs://host:9000/data`).
pub trait FileSystem: Debug + Send + Sync {
    /// Returns the entries of a folder, by name.
    fn ls(&self, folder: &str) -> Result<Vec<Entry>>;

    /// Returns the files in a folder and in all folders below it, by name. The name of a file is
    /// its path within the folder.
    fn walk(&self, folder: &str) -> Result<Vec<Entry>> {
        let (mut files, mut folders) = (Vec::new(), vec![String::new()]);
        while let Some(below) = folders.pop() {
            let listed = if below.is_empty() { folder.to_string() } else { joined(folder, &below) };
            for entry in self.ls(&listed)? {
                let name = match below.is_empty() {
                    true => entry.name,
                    false => joined(&below, &entry.name),
                };
                match entry.is_folder {
                    true => folders.push(name),
                    false => files.push(Entry { name, ..entry }),
                }
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    /// Returns whether a file or folder exists.
    fn exists(&self, path: &str) -> Result<bool>;

    /// Creates a folder and those above it. One that exists is no error.
    fn mkdirs(&self, folder: &str) -> Result<()>;

    /// Copies local files, and folders with all in them, into an existing folder. Files of the same
    /// name are replaced. A file appears whole.
    fn upload(&self, local: &[&Path], folder: &str) -> Result<()>;

    /// Copies files, and folders with all in them, into an existing local folder. Files of the same
    /// name are replaced.
    fn download(&self, paths: &[&str], local_folder: &Path) -> Result<()>;

    /// Removes a file, or a folder with all in it. One that does not exist is no error.
    fn delete(&self, path: &str) -> Result<()>;

    /// As [`FileSystem::delete`], for several files and folders.
    fn delete_all(&self, paths: &[&str]) -> Result<()> {
        paths.iter().try_for_each(|path| self.delete(path))
    }

    /// Renames a file or folder. The new name must be free.
    fn mv(&self, from: &str, to: &str) -> Result<()>;
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name within the folder.
    pub name: String,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// Size of a file in bytes; 0 for a folder.
    pub bytes: u64,
}

/// Returns a path within a folder.
///
/// ```
/// use fleet_base::fs::joined;
/// assert_eq!(joined("hdfs://host:9000/data/", "part-0"), "hdfs://host:9000/data/part-0");
/// assert_eq!(joined("/", "data"), "/data");
/// ```
pub fn joined(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

/// Schemes of paths that a Hadoop client reaches, as documented.
const HADOOP_SCHEMES: [&str; 2] = ["hdfs", "afs"];
/// Characters of patterns, which the client would match with other names.
const PATTERN_CHARS: [char; 7] = ['*', '?', '[', ']', '{', '}', '\\'];

/// Returns whether a path is on a file system that a Hadoop client reaches: `hdfs://host/folder` or
/// `afs://host/folder`. A path without a scheme is one of this machine. Other schemes are an error,
/// and so is a remote path that may match other names.
///
/// ```
/// use fleet_base::fs::is_remote;
/// assert!(is_remote("hdfs://host:9000/save")? && !is_remote("/shared/save")?);
/// assert!(is_remote("s3://bucket/save").is_err() && is_remote("hdfs://host/*").is_err());
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn is_remote(path: &str) -> Result<bool> {
    let Some((scheme, rest)) = split_scheme(path) else { return Ok(false) };
    if !HADOOP_SCHEMES.contains(&scheme) {
        // `C:/save` is a path of this machine.
        return match rest.starts_with("//") {
            true => Err(Error::unsupported(format!("unknown file system '{scheme}:' of a folder"))
                .expected("a folder of this machine, hdfs:// or afs://")
                .got(path)),
            false => Ok(false),
        };
    }
    let is_plain = !path.contains(PATTERN_CHARS) && !path.contains(char::is_control);
    match is_plain && path.split('/').all(|part| part != "..") {
        true => Ok(true),
        false => Err(Error::invalid("invalid path of a remote folder")
            .expected("a path without .., control characters and any of * ? [ ] { } \\")
            .got(path)),
    }
}

/// Splits a path into its scheme and the rest, which begins with a slash.
fn split_scheme(path: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = path.split_once(':')?;
    let is_scheme = !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric());
    (is_scheme && rest.starts_with('/')).then_some((scheme, rest))
}

/// Returns the names in a path, without scheme and host.
fn names_in(path: &str) -> impl Iterator<Item = &str> {
    let path = match split_scheme(path) {
        Some((_, rest)) => match rest.strip_prefix("//") {
            Some(rest) => rest.split_once('/').map_or("", |(_host, path)| path),
            None => rest,
        },
        None => path,
    };
    path.split('/').filter(|name| !name.is_empty())
}

/// The file system of this machine.
///
/// ```
/// use fleet_base::fs::{FileSystem, LocalFs, joined};
/// let folder = std::env::temp_dir().join(format!("fleet-local-fs-{}", std::process::id()));
/// let folder = folder.to_str().unwrap();
/// LocalFs.mkdirs(&joined(folder, "day"))?;
/// assert_eq!(LocalFs.ls(folder)?[0].name, "day");
/// LocalFs.delete(folder)?;
/// assert!(!LocalFs.exists(folder)?);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFs;

impl FileSystem for LocalFs {
    fn ls(&self, folder: &str) -> Result<Vec<Entry>> {
        let listed = |error: io::Error| Error::io("list", Path::new(folder), &error);
        let mut all = Vec::new();
        for entry in fs::read_dir(folder).map_err(listed)? {
            let entry = entry.map_err(listed)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                return Err(Error::invalid("the name of a file is not UTF-8")
                    .got(format!("{name:?}"))
                    .at(folder));
            };
            // Follows links. One that leads nowhere counts as an empty file.
            let about = fs::metadata(entry.path()).ok();
            let is_folder = about.as_ref().is_some_and(fs::Metadata::is_dir);
            let bytes = about.filter(fs::Metadata::is_file).map_or(0, |about| about.len());
            all.push(Entry { name: name.to_string(), is_folder, bytes });
        }
        all.sort_unstable();
        Ok(all)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        fs::exists(path).map_err(|error| Error::io("find", Path::new(path), &error))
    }

    fn mkdirs(&self, folder: &str) -> Result<()> {
        fs::create_dir_all(folder).map_err(|error| Error::io("create", Path::new(folder), &error))
    }

    fn upload(&self, local: &[&Path], folder: &str) -> Result<()> {
        local.iter().try_for_each(|from| copy_into(from, Path::new(folder)))
    }

    fn download(&self, paths: &[&str], local_folder: &Path) -> Result<()> {
        paths.iter().try_for_each(|from| copy_into(Path::new(from), local_folder))
    }

    fn delete(&self, path: &str) -> Result<()> {
        let path = Path::new(path);
        let removed = match fs::symlink_metadata(path) {
            Ok(about) if about.is_dir() => remove_folder_all(&RealDisk, path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove", path, &error))
            }
            _ => Ok(()),
        }
    }

    fn mv(&self, from: &str, to: &str) -> Result<()> {
        if self.exists(to)? {
            return Err(name_taken(from, to));
        }
        fs::rename(from, to).map_err(|error| Error::io("rename", Path::new(from), &error))
    }
}

/// Copies a file or a folder into a folder, under its own name.
fn copy_into(from: &Path, folder: &Path) -> Result<()> {
    let Some(name) = from.file_name() else {
        return Err(Error::invalid("cannot copy a path without a name").got(from.display()));
    };
    let to = folder.join(name);
    let read = |error: io::Error| Error::io("read", from, &error);
    let kind = crate::disk::Disk::kind(&RealDisk, from).map_err(read)?;
    if kind == PathKind::Folder {
        match fs::create_dir(&to) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create", &to, &error));
            }
            _ => {}
        }
        for entry in fs::read_dir(from).map_err(read)? {
            copy_into(&entry.map_err(read)?.path(), &to)?;
        }
        return Ok(());
    }
    let mut source = fs::File::open(from).map_err(read)?;
    let mut target = AtomicFile::create(&to)?;
    io::copy(&mut source, &mut target)
        .map_err(|error| target.error("write", &error).at(format!("copy of {}", from.display())))?;
    target.commit()
}

fn name_taken(from: &str, to: &str) -> Error {
    Error::invalid(format!("cannot rename {from}")).expected("a name that is free").got(to)
}

/// A file system that a Hadoop client reaches: `hadoop fs -ls PATH`. Any program that takes the
/// same arguments serves as well.
///
/// Each operation starts the program once, for up to 256 paths. There is no timeout: the client has
/// its own, for connections, and a large file may take hours.
///
/// ```
/// use fleet_base::fs::CommandFs;
/// let fs = CommandFs::new("/opt/hadoop/bin/hadoop").uri("hdfs://host:9000").user("me", "secret");
/// assert!(!format!("{fs:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct CommandFs {
    program: String,
    /// Options with their values.
    options: Vec<String>,
    /// Not shown in errors.
    password: String,
}

/// Shows the program only, since options may contain a password.
impl Debug for CommandFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandFs").field("program", &self.program).finish_non_exhaustive()
    }
}

impl CommandFs {
    /// Creates a client with a program, such as `hadoop`.
    pub fn new(program: &str) -> CommandFs {
        CommandFs { program: program.to_string(), options: Vec::new(), password: String::new() }
    }

    /// Sets the file system of paths that are not URLs.
    pub fn uri(self, uri: &str) -> CommandFs {
        self.option(format!("fs.defaultFS={uri}"))
    }

    /// Sets the user and the password. Other users of this machine can see both in the arguments of
    /// the program while it runs.
    pub fn user(mut self, user: &str, password: &str) -> CommandFs {
        self.password = password.to_string();
        self.option(format!("hadoop.job.ugi={user},{password}"))
    }

    fn option(mut self, option: String) -> CommandFs {
        self.options.extend(["-D".to_string(), option]);
        self
    }

    /// Runs a command of the client.
    fn run<'s>(&self, action: &str, args: impl IntoIterator<Item = &'s str>) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.arg("fs").args(&self.options).arg(action).args(args);
        without_secrets(&mut command);
        command.stdin(Stdio::null()).output().map_err(|error| {
            let text = format!("cannot start {}: {error}", self.program);
            Error::unavailable(text).help("install a Hadoop client, or give the program's path")
        })
    }

    /// Runs a command that must succeed. Returns its output.
    fn succeed<'s>(
        &self,
        action: &str,
        args: impl IntoIterator<Item = &'s str> + Clone,
    ) -> Result<Vec<u8>> {
        let output = self.run(action, args.clone())?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(self.failed(action, args, &output)),
        }
    }

    fn failed<'s>(
        &self,
        action: &str,
        args: impl IntoIterator<Item = &'s str>,
        output: &Output,
    ) -> Error {
        let args: Vec<&str> = args.into_iter().collect();
        let mut stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if !self.password.is_empty() {
            stderr = stderr.replace(&self.password, "***");
        }
        let start = stderr.len().saturating_sub(STDERR_BYTES_MAX);
        let start = (start..).find(|at| stderr.is_char_boundary(*at)).unwrap_or(start);
        let text = match stderr[start..].trim() {
            "" => "standard error is empty".to_string(),
            text => format!("standard error:\n{text}"),
        };
        let args = match &args[..] {
            [first @ .., last] if args.len() > ARGS_SHOWN => {
                let shown = first[..ARGS_SHOWN - 1].join(" ");
                format!("{shown} ... {last} ({} paths)", args.len())
            }
            _ => args.join(" "),
        };
        let command = format!("{} fs {action} {args}", self.program);
        Error::unavailable(format!("{command} failed ({}); {text}", output.status))
    }

    /// Lists a folder, or all below it. `name` returns the name of an entry, given its path.
    fn listed(
        &self,
        folder: &str,
        is_recursive: bool,
        name: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Entry>> {
        let args = ["-R", folder];
        let output = self.succeed("-ls", args[usize::from(!is_recursive)..].iter().copied())?;
        let text = String::from_utf8_lossy(&output);
        let mut all = Vec::new();
        for line in text.lines() {
            let line = line.trim_end();
            // The head, "Found 3 items", and an empty line.
            if !line.starts_with(['-', 'd']) {
                continue;
            }
            let entry = parse_ls(line, &name).ok_or_else(|| {
                let text = format!("cannot read a line of {} fs -ls {folder}", self.program);
                let form = "permissions, replicas, owner, group, size, date, time, path";
                Error::unavailable(text).expected(form).got(format!("{line:?}"))
            })?;
            all.push(entry);
        }
        all.sort_unstable();
        Ok(all)
    }
}

/// Bytes of a command's standard error in an error: a stack trace of Java.
const STDERR_BYTES_MAX: usize = 4096;
/// Limit on the arguments that an error shows.
const ARGS_SHOWN: usize = 6;
/// Paths of one command: they take some tens of kilobytes, and arguments are limited.
const PATHS_AT_ONCE: usize = 256;
/// Fields before the path in a line of `hadoop fs -ls`: permissions, replicas, owner, group, size,
/// date and time.
const LS_FIELDS: usize = 7;
/// Exit code of `hadoop fs -test` for no.
const TEST_NO: i32 = 1;

impl FileSystem for CommandFs {
    fn ls(&self, folder: &str) -> Result<Vec<Entry>> {
        self.listed(folder, false, |path| path.rsplit('/').next().map(str::to_string))
    }

    fn walk(&self, folder: &str) -> Result<Vec<Entry>> {
        let own: Vec<&str> = names_in(folder).collect();
        let mut all = self.listed(folder, true, |path| {
            let names: Vec<&str> = names_in(path).collect();
            names.strip_prefix(&own[..]).map(|below| below.join("/"))
        })?;
        all.retain(|entry| !entry.is_folder);
        Ok(all)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let output = self.run("-test", ["-e", path])?;
        // The client also exits with 1 if it cannot reach the file system, but then says why.
        let is_error =
            |line: &str| line.starts_with("test: ") && !line.contains("No such file or directory");
        match output.status.code() {
            Some(0) => Ok(true),
            Some(TEST_NO) if !String::from_utf8_lossy(&output.stderr).lines().any(is_error) => {
                Ok(false)
            }
            _ => Err(self.failed("-test", ["-e", path], &output)),
        }
    }

    fn mkdirs(&self, folder: &str) -> Result<()> {
        self.succeed("-mkdir", ["-p", folder]).map(drop)
    }

    fn upload(&self, local: &[&Path], folder: &str) -> Result<()> {
        if local.is_empty() {
            return Ok(());
        }
        let names = local.iter().map(|path| utf8(path)).collect::<Result<Vec<&str>>>()?;
        // The slash makes a folder that does not exist an error, and not the name of a file.
        let target = joined(folder, "");
        let args: Vec<&str> = ["-f"].into_iter().chain(names).chain([&*target]).collect();
        self.succeed("-put", args).map(drop)
    }

    fn download(&self, paths: &[&str], local_folder: &Path) -> Result<()> {
        // Old clients cannot replace a file.
        for path in paths {
            let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
            let target = local_folder.join(name);
            if target.is_file() {
                fs::remove_file(&target).map_err(|error| Error::io("remove", &target, &error))?;
            }
        }
        let target = joined(utf8(local_folder)?, "");
        for paths in paths.chunks(PATHS_AT_ONCE) {
            let args: Vec<&str> = paths.iter().copied().chain([&*target]).collect();
            self.succeed("-get", args)?;
        }
        Ok(())
    }

    fn delete(&self, path: &str) -> Result<()> {
        self.delete_all(&[path])
    }

    fn delete_all(&self, paths: &[&str]) -> Result<()> {
        for paths in paths.chunks(PATHS_AT_ONCE) {
            let args: Vec<&str> = ["-r", "-f"].iter().chain(paths).copied().collect();
            self.succeed("-rm", args)?;
        }
        Ok(())
    }

    fn mv(&self, from: &str, to: &str) -> Result<()> {
        // The client would move it into a folder of this name.
        if self.exists(to)? {
            return Err(name_taken(from, to));
        }
        self.succeed("-mv", [from, to]).map(drop)
    }
}

/// Parses a line of `hadoop fs -ls`, whose path may contain spaces. `name` returns the name of the
/// entry, given its path.
fn parse_ls(line: &str, name: impl Fn(&str) -> Option<String>) -> Option<Entry> {
    let (mut rest, mut fields) = (line, [""; LS_FIELDS]);
    for field in &mut fields {
        let (first, others) = rest.split_once(' ')?;
        (*field, rest) = (first, others.trim_start());
    }
    let name = name(rest).filter(|name| !name.is_empty())?;
    let is_folder = fields[0].starts_with('d');
    let bytes = if is_folder { 0 } else { fields[4].parse().ok()? };
    Some(Entry { name, is_folder, bytes })
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Error::invalid("the name of a file is not UTF-8").got(format!("{}", path.display()))
    })
}

/// Removes the job's secret from the environment of a command: a program that moves or reads data
/// needs no access to the job.
pub fn without_secrets(command: &mut Command) {
    for name in SECRETS {
        command.env_remove(name);
    }
}

/// Variables with the job's secret, and with the paths of files of secrets
/// (`fleet_topology::names`).
pub const SECRETS: [&str; 4] =
    ["FLEET_TOKEN", "FLEET_TOKEN_FILE", "FLEET_ETCD_PASSWORD_FILE", "FLEET_ETCD_KEY"];

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    fn temporary(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("fleet-fs-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// A client as Hadoop's, whose files are in the folder `$ROOT`.
    const HADOOP: &str = r#"#!/bin/sh
test "$1" = fs || exit 9; shift
test -z "$FLEET_TOKEN" || exit 8
while test "$1" = -D; do
  case "$2" in fs.defaultFS=hdfs://host:9000|hadoop.job.ugi=me,secret) ;; *) exit 7;; esac
  shift 2
done
action=$1; shift
case $action in
-ls) depth=1; if test "$1" = -R; then depth=99; shift; fi
  test -d "$1" || { echo "ls: \`$1': No such file or directory" >&2; exit 1; }
  test $depth = 99 || echo "Found some items"
  find "$1" -mindepth 1 -maxdepth $depth | while read -r f; do
    if test -d "$f"; then echo "drwxr-xr-x   - me group          0 2021-02-22 10:00 $f"
    elif test -e "$f"; then
      echo "-rw-r--r--   3 me group $(wc -c < "$f") 2021-02-22 10:00 $f"; fi
  done;;
-test) test "$2" = /unreachable && { echo "test: Connection refused (me,secret)" >&2; exit 1; }
  echo "WARN util.NativeCodeLoader" >&2; test -e "$2";;
-mkdir) shift; exec mkdir -p "$1";;
-put) shift; exec cp -r "$@";;
-get) exec cp -r "$@";;
-rm) test $# -lt 260 || exit 5; exec rm "$@";;
-mv) exec mv "$@";;
*) exit 6;;
esac
"#;

    fn hadoop(folder: &Path) -> CommandFs {
        let program = folder.join("hadoop");
        fs::write(&program, HADOOP).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        CommandFs::new(program.to_str().unwrap()).uri("hdfs://host:9000").user("me", "secret")
    }

    fn check(it: &dyn FileSystem, folder: &Path) {
        let remote = folder.join("remote").to_str().unwrap().to_string();
        let local = folder.join("local");
        fs::create_dir_all(local.join("part/inner")).unwrap();
        fs::write(local.join("a b.txt"), "one").unwrap();
        fs::write(local.join("part/inner/x"), "four").unwrap();

        let day = joined(&remote, "20210222/0");
        it.mkdirs(&day).unwrap();
        it.mkdirs(&day).unwrap();
        it.upload(&[&local.join("a b.txt"), &local.join("part")], &day).unwrap();
        fs::write(local.join("a b.txt"), "three").unwrap();
        it.upload(&[&local.join("a b.txt")], &day).unwrap();
        let entry = |name: &str, is_folder, bytes| Entry { name: name.into(), is_folder, bytes };
        assert_eq!(it.ls(&day).unwrap(), [entry("a b.txt", false, 5), entry("part", true, 0)]);
        assert_eq!(it.ls(&joined(&day, "part/inner")).unwrap(), [entry("x", false, 4)]);
        let files =
            [entry("20210222/0/a b.txt", false, 5), entry("20210222/0/part/inner/x", false, 4)];
        assert_eq!(it.walk(&remote).unwrap(), files);
        // A folder that exists gets what it lacks.
        fs::write(local.join("part/y"), "").unwrap();
        it.upload(&[&local.join("part")], &day).unwrap();
        assert_eq!(it.walk(&joined(&day, "part")).unwrap().len(), 2);

        let back = folder.join("back");
        fs::create_dir_all(&back).unwrap();
        for _ in 0..2 {
            it.download(&[&joined(&day, "a b.txt")], &back).unwrap();
        }
        it.download(&[&joined(&day, "part")], &back).unwrap();
        assert_eq!(fs::read_to_string(back.join("a b.txt")).unwrap(), "three");
        assert_eq!(fs::read_to_string(back.join("part/inner/x")).unwrap(), "four");

        let moved = joined(&remote, "kept");
        it.mv(&day, &moved).unwrap();
        assert!(it.exists(&joined(&moved, "a b.txt")).unwrap() && !it.exists(&day).unwrap());
        let error = it.mv(&moved, &remote).unwrap_err().to_string();
        assert!(error.contains("expected a name that is free"), "{error}");
        it.ls(&joined(&remote, "none")).unwrap_err();
        it.download(&[&joined(&remote, "none")], &back).unwrap_err();
        it.delete(&moved).unwrap();
        it.delete(&moved).unwrap();
        assert!(!it.exists(&moved).unwrap());
        let many: Vec<String> = (0..300).map(|at| joined(&remote, &at.to_string())).collect();
        fs::write(&many[299], "").unwrap();
        it.delete_all(&many.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert!(!it.exists(&many[299]).unwrap());
        assert!(it.upload(&[&local.join("a b.txt")], &joined(&remote, "none")).is_err());
    }

    #[test]
    fn both_file_systems_do_the_same() {
        for (name, is_command) in [("local", false), ("command", true)] {
            let folder = temporary(name);
            match is_command {
                true => check(&hadoop(&folder), &folder),
                false => check(&LocalFs, &folder),
            }
            fs::remove_dir_all(&folder).unwrap();
        }
    }

    #[test]
    fn errors_of_the_command_are_shown_without_the_password() {
        let folder = temporary("errors");
        let it = hadoop(&folder);
        let error = it.exists("/unreachable").unwrap_err().to_string();
        assert!(error.contains("test: Connection refused (me,***)"), "{error}");
        let error = it.ls("/nowhere").unwrap_err().to_string();
        assert!(error.contains("-ls /nowhere failed"), "{error}");
        assert!(error.contains("No such file") && !error.contains("secret"), "{error}");
        let paths = ["/0", "/1", "/2", "/3", "/4", "/5", "/6", "/7"];
        let error = it.download(&paths, &folder).unwrap_err().to_string();
        assert!(
            error.contains("-get /0 /1 /2 /3 /4 ... ") && error.contains("(9 paths)"),
            "{error}"
        );
        assert!(error.contains(" failed (exit status: 1)"), "{error}");
        let error = CommandFs::new("/no/hadoop").ls("/").unwrap_err().to_string();
        assert!(error.contains("cannot start /no/hadoop") && error.contains("help: "), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn lines_of_a_listing() {
        let last = |path: &str| path.rsplit('/').next().map(str::to_string);
        let line = "-rw-r--r--   3 me my-group  12 2021-02-22 10:00 hdfs://h:9/d/a  b";
        let expected = Entry { name: "a  b".into(), is_folder: false, bytes: 12 };
        assert_eq!(parse_ls(line, last), Some(expected));
        for line in ["-rw", "-rw-r--r-- 3 me g x 2021-02-22 10:00 /d/a", "drwx - me g 0 d t /"] {
            assert_eq!(parse_ls(line, last), None, "{line}");
        }
    }

    #[test]
    fn which_paths_are_remote() {
        for path in ["hdfs://host:9000/a", "hdfs:/a", "afs://host/a b", "hdfs:///a/.b"] {
            assert!(is_remote(path).unwrap(), "{path}");
        }
        for path in ["/a", "a/b://c", "hdfs", "C:/a", "a:b", "", "./hdfs://a"] {
            assert!(!is_remote(path).unwrap(), "{path}");
        }
        for path in ["s3://a/b", "file:///a", "hdfs://h/a*", "hdfs://h/a/../b", "afs://h/a\n"] {
            let error = is_remote(path).unwrap_err().to_string();
            assert!(error.contains("expected") && error.contains("got"), "{error}");
        }
        let names = |path: &str| names_in(path).collect::<Vec<_>>().join(",");
        assert_eq!(names("hdfs://host:9000/a//b/"), "a,b");
        assert_eq!(["hdfs:/a/b", "/a/b", "a/b"].map(names), ["a,b"; 3]);
    }
}
