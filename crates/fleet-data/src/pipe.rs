//! A file through a program: the program gets the file as its standard input, and its standard output
//! is read. When it fails, its exit code and the end of what it said are in the error.

use fleet_base::{Error, Result};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

/// Opens a file as it is, or through a command of the shell (`zcat`, `python reader.py`).
///
/// An empty command and `cat` read the file itself.
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
    let file = File::open(path).map_err(|error| Error::io("open", path, &error))?;
    let is_folder = file.metadata().is_ok_and(|metadata| metadata.is_dir());
    if is_folder {
        return Err(Error::invalid("a folder is no file of records").at(path.display()));
    }
    match command.trim() {
        "" | "cat" => plain(file, path),
        command => Ok(Box::new(Piped::start(file, path, command)?)),
    }
}

/// A file as it is; one that is compressed would only be a bad first line.
fn plain(mut file: File, path: &Path) -> Result<Box<dyn Read + Send>> {
    let mut start = Vec::new();
    let read = file.by_ref().take(MAGIC_BYTES).read_to_end(&mut start);
    read.map_err(|error| Error::io("read", path, &error))?;
    let program = match &start[..] {
        [0x1f, 0x8b, ..] => "zcat",
        [0x28, 0xb5, 0x2f, 0xfd] => "zstdcat",
        [0xfd, b'7', b'z', b'X'] => "xzcat",
        _ => return Ok(Box::new(Cursor::new(start).chain(file))),
    };
    Err(Error::invalid("file of records is compressed")
        .help(format!("read it through a program: pipe_command(\"{program}\")"))
        .at(path.display()))
}

/// The output of a running command.
struct Piped {
    child: Child,
    stdout: ChildStdout,
    /// Keeps the end of the standard error.
    stderr: Option<JoinHandle<Vec<u8>>>,
    command: String,
    path: String,
    ended: bool,
}

impl Piped {
    fn start(file: File, path: &Path, command: &str) -> Result<Piped> {
        let unstarted = |error: std::io::Error| {
            Error::unavailable(format!("cannot start the pipe command '{command}': {error}"))
                .at(path.display())
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", command]);
        // A group of its own, so that it can be ended with everything that it started.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        let mut child = shell
            .stdin(Stdio::from(file))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(unstarted)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let Some(stdout) = stdout else {
            return Err(Error::internal("a started command has no standard output"));
        };
        let stderr = stderr.map(|stderr| std::thread::spawn(move || tail(stderr)));
        let (command, path) = (command.to_string(), path.display().to_string());
        Ok(Piped { child, stdout, stderr, command, path, ended: false })
    }

    /// Takes the exit status when the output has ended.
    fn end(&mut self) -> std::io::Result<()> {
        self.ended = true;
        let status = self.child.wait()?;
        let said = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&said);
        let said = match said.trim() {
            "" => "it said nothing".to_string(),
            said => format!("it said:\n{said}"),
        };
        Err(std::io::Error::other(format!(
            "the pipe command '{}' failed on {} ({status}); {said}",
            self.command, self.path
        )))
    }
}

impl Read for Piped {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        let count = self.stdout.read(buffer)?;
        if count == 0 {
            self.end()?;
        }
        Ok(count)
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        if !self.ended {
            end_group(&mut self.child);
            // Nobody is left to be told about a program that is not wanted any more.
            let _ = self.child.wait();
        }
    }
}

#[cfg(unix)]
fn end_group(child: &mut Child) {
    // The child has not been waited for, so that its id cannot belong to another process yet. It may
    // have ended already, which is as good.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

#[cfg(not(unix))]
fn end_group(child: &mut Child) {
    let _ = child.kill();
}

/// Reads to the end and keeps the last bytes.
fn tail(mut from: impl Read) -> Vec<u8> {
    let mut kept = VecDeque::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        kept.extend(&buffer[..count]);
        let excess = kept.len().saturating_sub(STDERR_BYTES_MAX);
        kept.drain(..excess);
    }
    kept.into()
}

/// By which compressed files are known.
const MAGIC_BYTES: u64 = 4;
/// What an error shows of a command's standard error: a stack trace of a script.
const STDERR_BYTES_MAX: usize = 4096;
