//! Reads a file through a command: the command gets the file on its standard input, and its
//! standard output is read. Its standard error is copied to that of this process, as in a shell. If
//! the command fails, the error contains its exit code and the end of its standard error. Files
//! that are read without a command are decompressed.

use crate::decompress::{Compression, MAGIC_BYTES};
use crate::files::{is_url, object_name_error};
use fleet_base::fs::without_secrets;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Opens a file directly, or through a shell command (`zcat`, `python reader.py`).
///
/// An empty command or `cat` reads the file directly.
///
/// ```
/// # #[cfg(unix)] {
/// use std::io::Read;
/// let path = std::env::temp_dir().join(format!("pipe-example-{}", std::process::id()));
/// std::fs::write(&path, "1 7\n").unwrap();
/// let mut text = String::new();
/// fleet_data::open_piped(&path, "tr 7 8")?.read_to_string(&mut text).unwrap();
/// assert_eq!(text, "1 8\n");
/// std::fs::remove_file(&path).unwrap();
/// # }
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn open_piped(path: &Path, command: &str) -> Result<Box<dyn Read + Send>> {
    FileSource { pipe_command: command.to_string(), ..FileSource::default() }.open(path)
}

/// The way from a file to its reader: downloads and pipe commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileSource {
    /// Gets a file's name as its last argument and writes the file's content (`hadoop fs -cat`,
    /// `aws s3 cp --quiet`). Empty or `cat`: files are local, or in an object store.
    pub download_command: String,
    #[cfg(feature = "object-store")]
    pub stores: Option<crate::ObjectStores>,
    pub pipe_command: String,
    /// Names of the slots in the order of a line, which the pipe command gets in [`SLOTS`].
    pub slots: Vec<String>,
    /// The commands that run for open files.
    pub running: Running,
}

/// Environment variable of a pipe command with the names of the slots, one per line. A program
/// that makes samples with names can check their order by it.
const SLOTS: &str = "FLEET_SLOTS";

/// Process groups of running commands, until they are ended together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running {
    state: Arc<Mutex<Groups>>,
}

#[derive(Debug, Default)]
struct Groups {
    running: Vec<u32>,
    ended: bool,
}

impl Running {
    /// Adds a group. It is ended at once if the others were ended before.
    fn add(&self, group: u32) {
        let mut state = lock(&self.state);
        state.running.push(group);
        if state.ended {
            end_group(group);
        }
    }

    /// Forgets a group, before its number may belong to another process.
    fn remove(&self, group: u32) {
        lock(&self.state).running.retain(|other| *other != group);
    }

    /// Ends all commands, also those that start later, so that reads of their output return.
    pub fn end_all(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        state.running.iter().for_each(|group| end_group(*group));
    }
}

impl FileSource {
    /// Returns the same source for one pass or load, with commands of its own.
    pub fn for_pass(&self) -> FileSource {
        FileSource { running: Running::default(), ..self.clone() }
    }

    pub fn open(&self, path: &Path) -> Result<Box<dyn Read + Send>> {
        let command = self.pipe_command.trim();
        let is_plain = is_plain(command);
        if !self::is_plain(&self.download_command) {
            // The path is an argument of the shell, so that none of it is interpreted as a command.
            let whole = format!("{} \"$1\"", self.download_command.trim());
            let shell = shell(&whole, path);
            let mut from = Piped::start(
                shell,
                Stdio::null(),
                path,
                &whole,
                "download command",
                &self.running,
            )?;
            if is_plain {
                return plain(from, path);
            }
            let input = from.stdout.take().map_or_else(Stdio::null, Stdio::from);
            let mut piped = self.start(input, path, command)?;
            piped.from = Some(Box::new(from));
            return Ok(Box::new(piped));
        }
        if is_url(path) {
            let from = self.object(path)?;
            return match is_plain {
                true => plain(from, path),
                false => Ok(Box::new(self.start(Stdio::piped(), path, command)?.fed_by(from))),
            };
        }
        let file = open_file(path)?;
        match is_plain {
            true => plain(file, path),
            false => Ok(Box::new(self.start(Stdio::from(file), path, command)?)),
        }
    }

    /// Starts the pipe command.
    fn start(&self, input: Stdio, path: &Path, command: &str) -> Result<Piped> {
        let mut shell = shell(command, path);
        if !self.slots.is_empty() {
            shell.env(SLOTS, self.slots.join("\n"));
        }
        Piped::start(shell, input, path, command, "pipe command", &self.running)
    }

    /// Returns the name of the input for errors. With a pipe command, line numbers are those of the
    /// command's output, so the name mentions the command.
    pub fn name(&self, path: &Path) -> String {
        match self.pipe_command.trim() {
            command if is_plain(command) => path.display().to_string(),
            command => format!("{} (through '{command}')", path.display()),
        }
    }

    /// Returns whether files are in the local file system.
    pub fn is_local(&self) -> bool {
        #[cfg(feature = "object-store")]
        if self.stores.is_some() {
            return false;
        }
        is_plain(&self.download_command)
    }

    #[cfg(feature = "object-store")]
    fn object(&self, path: &Path) -> Result<Box<dyn Read + Send>> {
        match (&self.stores, path.to_str()) {
            (Some(stores), Some(url)) => stores.open(url),
            _ => Err(object_name_error(path.display())),
        }
    }

    #[cfg(not(feature = "object-store"))]
    fn object(&self, path: &Path) -> Result<Box<dyn Read + Send>> {
        Err(object_name_error(path.display()))
    }
}

/// Opens a local file.
pub(crate) fn open_file(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|error| Error::io("open", path, &error))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(Error::invalid("expected a file of records, got a folder")
            .help(format!("list its files with glob(\"{}/*\")", path.display()))
            .at(path.display()));
    }
    Ok(file)
}

/// Returns whether a command changes nothing.
pub(crate) fn is_plain(command: &str) -> bool {
    matches!(command.trim(), "" | "cat")
}

/// Reads a file without a command, and decompresses it if its first bytes say so.
fn plain(mut file: impl Read + Send + 'static, path: &Path) -> Result<Box<dyn Read + Send>> {
    let mut start = Vec::new();
    let read = file.by_ref().take(MAGIC_BYTES).read_to_end(&mut start);
    read.map_err(|error| Error::io("read", path, &error))?;
    let compression = Compression::of_start(&start);
    let whole = Cursor::new(start).chain(file);
    match compression {
        None => Ok(Box::new(whole)),
        Some(compression) => {
            compression.decompress(whole).map_err(|error| error.at(path.display()))
        }
    }
}

/// The output of a running command.
struct Piped {
    child: Child,
    /// `None` if another command reads it.
    stdout: Option<ChildStdout>,
    /// The command whose output is the input of this one.
    from: Option<Box<Piped>>,
    /// Writes its input.
    feeder: Option<JoinHandle<std::io::Result<()>>>,
    /// Collects the end of the standard error.
    stderr: Option<JoinHandle<Vec<u8>>>,
    /// Purpose of the command, for errors.
    role: &'static str,
    command: String,
    path: String,
    running: Running,
    ended: bool,
}

/// Builds a shell command without the job's secret, because a program that reads data needs no
/// access to the job.
fn shell(command: &str, path: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command, "sh"]).arg(path);
    without_secrets(&mut shell);
    shell
}

impl Piped {
    fn start(
        mut shell: Command,
        input: Stdio,
        path: &Path,
        command: &str,
        role: &'static str,
        running: &Running,
    ) -> Result<Piped> {
        let unstarted = |error: std::io::Error| {
            Error::unavailable(format!("cannot start the {role} '{command}': {error}"))
                .at(path.display())
        };
        // A process group of its own, so that all its descendants can be killed with it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        let mut child = shell
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(unstarted)?;
        running.add(child.id());
        let stdout = child.stdout.take();
        let stderr = child.stderr.take().map(|it| std::thread::spawn(move || tail(it)));
        let (command, path) = (command.to_string(), path.display().to_string());
        Ok(Piped {
            child,
            stdout,
            from: None,
            feeder: None,
            stderr,
            role,
            command,
            path,
            running: running.clone(),
            ended: false,
        })
    }

    /// Writes what is read from `from` to the input of the command.
    fn fed_by(mut self, mut from: Box<dyn Read + Send>) -> Piped {
        let mut input = self.child.stdin.take();
        self.feeder = Some(std::thread::spawn(move || {
            let Some(input) = &mut input else { return Ok(()) };
            match std::io::copy(&mut from, input) {
                // The program needed no more input.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
                outcome => outcome.map(drop),
            }
        }));
        self
    }

    /// Waits for the exit status after the end of the output.
    fn end(&mut self) -> std::io::Result<()> {
        self.ended = true;
        self.running.remove(self.child.id());
        let status = self.child.wait()?;
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if let Some(feeder) = self.feeder.take() {
            feeder.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")))?;
        }
        if status.success() {
            return self.from.as_mut().map_or(Ok(()), |from| from.end());
        }
        if self.stdout.is_none() && is_broken_pipe(status) {
            return Ok(());
        }
        // The command that feeds this one may have failed first; its error is then the cause.
        if let Some(from) = &mut self.from
            && from.child.try_wait()?.is_some()
        {
            from.end()?;
        }
        let stderr = String::from_utf8_lossy(&stderr);
        let stderr = match stderr.trim() {
            "" => "standard error is empty".to_string(),
            text => format!("standard error:\n{text}"),
        };
        Err(std::io::Error::other(format!(
            "the {} '{}' failed on {} ({status}); {stderr}",
            self.role, self.command, self.path
        )))
    }
}

impl Read for Piped {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        let Some(stdout) = &mut self.stdout else { return Ok(0) };
        let count = stdout.read(buffer)?;
        if count == 0 {
            self.end()?;
        }
        Ok(count)
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        if !self.ended {
            self.running.remove(self.child.id());
            end_group(self.child.id());
            let _ = self.child.kill();
            // The program was killed because its output is not needed; its status does not matter.
            let _ = self.child.wait();
        }
    }
}

/// Returns whether a program ended because its output was closed, as with `head`.
fn is_broken_pipe(status: ExitStatus) -> bool {
    // Shells report a signal that ended their command as 128 plus its number.
    #[cfg(unix)]
    if std::os::unix::process::ExitStatusExt::signal(&status) == Some(SIGPIPE) {
        return true;
    }
    status.code() == Some(128 + SIGPIPE)
}

/// Kills a process group, where there are any. Its first process must not have been waited for, so
/// that its id cannot belong to another process yet. It may have ended already.
#[cfg(unix)]
fn end_group(group: u32) {
    if let Some(group) = i32::try_from(group).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

#[cfg(not(unix))]
fn end_group(_group: u32) {}

/// Copies everything to the standard error, and returns the last bytes.
fn tail(mut from: impl Read) -> Vec<u8> {
    let mut kept = VecDeque::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        // If the standard error is closed, the output is lost.
        let _ = std::io::stderr().write_all(&buffer[..count]);
        kept.extend(&buffer[..count]);
        let excess = kept.len().saturating_sub(STDERR_BYTES_MAX);
        kept.drain(..excess);
    }
    kept.into()
}

const SIGPIPE: i32 = 13;
/// Bytes of a command's standard error in an error: a stack trace of a script.
const STDERR_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn commands_end_together_also_those_that_start_later() {
        let path = std::env::temp_dir().join(format!("fleet-end-all-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let command = "sleep 1000".to_string();
        let source = FileSource { pipe_command: command, ..FileSource::default() };
        let mut before = source.open(&path).unwrap();
        source.running.end_all();
        let mut after = source.open(&path).unwrap();
        for piped in [&mut before, &mut after] {
            let error = piped.read(&mut [0]).unwrap_err().to_string();
            assert!(error.contains("'sleep 1000' failed") && error.contains("signal"), "{error}");
        }
        assert!(lock(&source.running.state).running.is_empty());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn commands_do_not_get_the_secret_of_the_job() {
        let shell = shell("cat", Path::new("part-0"));
        for name in fleet_base::fs::SECRETS {
            assert!(shell.get_envs().any(|it| it == (name.as_ref(), None)), "{name}");
        }
    }
}
