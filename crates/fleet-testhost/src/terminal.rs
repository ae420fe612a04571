//! A terminal without a window: runs a command in it, and knows the contents of its screen.

use rustix::fs::{Mode, OFlags};
use rustix::pty::{self, OpenptFlags};
use rustix::termios::Winsize;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Opens the end of a new terminal that reads its output. Other child processes do not inherit it;
/// on Linux, not even those that are started at the same moment.
fn open_master() -> std::io::Result<OwnedFd> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    #[cfg(target_os = "linux")]
    let flags = flags | OpenptFlags::CLOEXEC;
    let master = pty::openpt(flags)?;
    rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC)?;
    Ok(master)
}

/// A command that runs in a terminal.
pub struct Terminal {
    child: Child,
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    end: OwnedFd,
}

impl Terminal {
    /// Starts a command in a terminal of this many columns and 24 rows.
    pub fn start(command: &mut Command, columns: u16) -> std::io::Result<Terminal> {
        let master = open_master()?;
        pty::grantpt(&master)?;
        pty::unlockpt(&master)?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let end = rustix::fs::open(pty::ptsname(&master, Vec::new())?, flags, Mode::empty())?;
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&end, size)?;
        command.stdin(end.try_clone()?).stdout(end.try_clone()?).stderr(end.try_clone()?);
        let child = command.spawn()?;
        // The command holds copies of the terminal's end, which would keep the reader waiting.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (kept, mut master) = (Arc::clone(&bytes), File::from(master));
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // A terminal whose writers are all closed ends with an error.
            while let Ok(count @ 1..) = master.read(&mut piece) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend(&piece[..count]);
            }
        });
        Ok(Terminal { child, bytes, reader, end })
    }

    /// Returns the output so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the number of columns.
    pub fn resize(&self, columns: u16) -> std::io::Result<()> {
        let mut stty = Command::new("stty");
        stty.args(["cols", &columns.to_string()]).stdin(self.end.try_clone()?).status().map(drop)
    }

    /// Waits for the command to end; returns its whole output.
    pub fn finish(mut self) -> std::io::Result<Vec<u8>> {
        let ended = self.child.wait();
        drop(self.end);
        let _ = self.reader.join();
        ended?;
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *bytes))
    }
}

/// Style of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether the text is dim.
    pub dim: bool,
    /// 1 red to 6 cyan; 0 is none.
    pub colour: u8,
}

/// The cells of a terminal, including everything that has scrolled away. It supports the output of
/// Fleet's commands: text, returns, colours, moves up, and erasing.
pub struct Screen {
    columns: usize,
    rows: Vec<Vec<(char, Style)>>,
    row: usize,
    column: usize,
    style: Style,
}

impl Screen {
    /// Returns the screen after this output.
    pub fn of(bytes: &[u8], columns: usize) -> Screen {
        let (rows, style) = (vec![Vec::new()], Style::default());
        let mut screen = Screen { columns, rows, row: 0, column: 0, style };
        let text = String::from_utf8_lossy(bytes);
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '\x1b' => screen.sequence(&mut rest),
                '\r' => screen.column = 0,
                '\n' => screen.down(),
                c if c.is_control() => {}
                c => screen.put(c),
            }
        }
        screen
    }

    /// Returns the lines without trailing blanks.
    pub fn lines(&self) -> Vec<String> {
        let text = |row: &Vec<(char, Style)>| row.iter().map(|cell| cell.0).collect::<String>();
        let mut lines: Vec<String> =
            self.rows.iter().map(|row| text(row).trim_end().to_string()).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    /// Returns the cells, row by row.
    pub fn rows(&self) -> &[Vec<(char, Style)>] {
        &self.rows
    }

    fn put(&mut self, c: char) {
        if self.column == self.columns {
            self.down();
            self.column = 0;
        }
        let row = &mut self.rows[self.row];
        if row.len() <= self.column {
            row.resize(self.column + 1, (' ', Style::default()));
        }
        row[self.column] = (c, self.style);
        self.column += 1;
    }

    fn down(&mut self) {
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push(Vec::new());
        }
    }

    fn sequence(&mut self, rest: &mut std::str::Chars<'_>) {
        if rest.next() != Some('[') {
            return;
        }
        let mut text = String::new();
        for c in rest {
            if c.is_ascii_alphabetic() {
                return self.apply(c, &text);
            }
            text.push(c);
        }
    }

    fn apply(&mut self, command: char, text: &str) {
        let numbers = text.split(';').map(|number| number.parse::<u8>().unwrap_or(0));
        match command {
            'A' => self.row = self.row.saturating_sub(numbers.sum::<u8>().max(1).into()),
            'K' => self.rows[self.row].truncate(self.column),
            'J' => {
                self.rows[self.row].truncate(self.column);
                self.rows.truncate(self.row + 1);
            }
            'm' => numbers.for_each(|number| match number {
                0 => self.style = Style::default(),
                2 => self.style.dim = true,
                30..=37 => self.style.colour = number - 30,
                39 => self.style.colour = 0,
                _ => {}
            }),
            _ => {}
        }
    }
}
