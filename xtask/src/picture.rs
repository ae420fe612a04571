//! `cargo xtask picture FILE [--columns N] [--shown TEXT] -- COMMAND`: runs a command in a terminal
//! and draws its last screen as SVG.

use fleet_testhost::terminal::{Screen, Style, Terminal};
use std::fmt::Write;
use std::process::Command;

#[derive(clap::Args)]
pub struct Options {
    /// The SVG file to write
    file: String,
    /// Width of the terminal
    #[arg(long, value_name = "N", default_value_t = 100)]
    columns: u16,
    /// The command line to show instead of the real one
    #[arg(long, value_name = "TEXT")]
    shown: Option<String>,
    /// The command to run and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub fn run(options: &Options) -> Result<(), String> {
    let (file, columns) = (&options.file, options.columns);
    let shown = options.shown.clone().unwrap_or_else(|| options.command.join(" "));
    let (program, arguments) = options.command.split_first().ok_or("missing command")?;
    let mut command = Command::new(program);
    command.args(arguments).env("TERM", "xterm").env_remove("NO_COLOR");
    let bytes = Terminal::start(&mut command, columns)
        .and_then(Terminal::finish)
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    let screen = Screen::of(&bytes, usize::from(columns));
    std::fs::write(file, svg(&screen, &shown, usize::from(columns)))
        .map_err(|error| format!("cannot write {file}: {error}"))
}

fn svg(screen: &Screen, shown: &str, columns: usize) -> String {
    let mut rows: Vec<&[(char, Style)]> = screen.rows().iter().map(Vec::as_slice).collect();
    while rows.last().is_some_and(|row| row.is_empty()) {
        rows.pop();
    }
    let width = 2 * MARGIN + (columns as f64 * CELL).ceil() as usize;
    let height = TOP + (rows.len() + 1) * LINE + MARGIN / 2;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#101418\"/>\n\
         <g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" \
         font-size=\"14\" xml:space=\"preserve\">\n",
        escaped(shown)
    );
    line(&mut text, 0, "#7ee787", &format!("$ {}", escaped(shown)));
    for (index, row) in rows.iter().enumerate() {
        // Runs of one style.
        let mut spans = String::new();
        for run in row.chunk_by(|a, b| a.1 == b.1) {
            let part = escaped(&run.iter().map(|cell| cell.0).collect::<String>());
            match fill(run[0].1) {
                PLAIN => spans += &part,
                fill => spans += &format!("<tspan fill=\"{fill}\">{part}</tspan>"),
            }
        }
        line(&mut text, index + 1, PLAIN, &spans);
    }
    text + "</g>\n</svg>\n"
}

fn line(text: &mut String, row: usize, fill: &str, content: &str) {
    let y = TOP + row * LINE + LINE / 2;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "<text x=\"{MARGIN}\" y=\"{y}\" fill=\"{fill}\">{content}</text>");
}

fn fill(style: Style) -> &'static str {
    match (style.colour, style.dim) {
        (1, _) => "#ff7b72",
        (2, _) => "#7ee787",
        (3, _) => "#ffd866",
        (4, _) => "#79c0ff",
        (5, _) => "#d2a8ff",
        (6, _) => "#a5d6ff",
        (_, true) => "#8b949e",
        _ => PLAIN,
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const PLAIN: &str = "#e6edf3";
/// In pixels.
const MARGIN: usize = 18;
const TOP: usize = 20;
const LINE: usize = 20;
/// Width of a character of 14 pixels.
const CELL: f64 = 8.43;
