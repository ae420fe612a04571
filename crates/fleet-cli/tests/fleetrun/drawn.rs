//! Contents of the terminal's screen, cell by cell, after all redraws.

use crate::{Place, until};
use fleet_testhost::terminal::{Screen, Terminal};

/// Prints a line, shows progress, and continues when the file `go` exists.
const SCRIPT: &str = r#"echo hello
printf '[==  ]  50 %%  9 s left  26 k samples/s  loss 0.4500  AUC 0.7000' > $FLEET_PROGRESS
until [ -e go ]; do sleep 0.05; done
: > $FLEET_PROGRESS
echo bye"#;

/// Returns a line without its leading time.
fn without_clock(line: &str) -> &str {
    match line.split_once("  ") {
        Some((clock, rest)) if clock.len() == 8 && clock.as_bytes()[2] == b':' => rest,
        _ => line,
    }
}

/// Returns the progress line, the final screen, and all bytes written, at some terminal width.
fn shown(name: &str, columns: u16, env: &[(&str, &str)]) -> (String, String, Vec<u8>) {
    let place = Place::new(&format!("drawn/{name}"), SCRIPT);
    let mut command = place.command("job.py");
    command.env("TERM", "xterm").envs(env.iter().copied()).env_remove("NO_COLOR");
    command.envs(env.iter().copied());
    let terminal = Terminal::start(&mut command, columns).unwrap();
    let screen = |bytes: &[u8]| Screen::of(bytes, usize::from(columns)).lines();
    let last = || screen(&terminal.bytes()).last().cloned().unwrap_or_default();
    until("a line of progress", || without_clock(&last()).starts_with("[=="));
    let line = last();
    std::fs::write(place.path("go"), "").unwrap();
    let bytes = terminal.finish().unwrap();
    (line, screen(&bytes).join("\n"), bytes)
}

#[test]
fn a_line_of_progress_fits_its_terminal() {
    let (line, end, bytes) = shown("wide", 100, &[]);
    let whole = "[==  ]  50 %  9 s left  26 k samples/s  loss 0.4500  AUC 0.7000";
    assert_eq!(without_clock(&line), whole);
    assert_eq!(line.len(), whole.len() + 10, "the clock is before it: {line}");
    assert!(bytes.windows(4).any(|it| it == b"\x1b[2m"), "it is dim");
    let lines: Vec<&str> = end.lines().collect();
    assert_eq!(
        lines[0],
        "fleetrun: job.py: collective, 1 worker; logs in log, the first worker's is shown"
    );
    let output = lines.iter().position(|line| *line == "hello").expect("the job's output");
    assert_eq!(lines[output + 1], "bye", "the line is gone at the end: {end}");
    let last = output + 2;
    assert!(lines[last].starts_with("fleetrun: done in ") && lines.len() == last + 1, "{end}");
    let (line, ..) = shown("usual", 70, &[]);
    assert_eq!(line, whole, "the clock goes first");
    let (line, end, _) = shown("narrow", 40, &[]);
    assert_eq!(line, "[==  ]  50 %  9 s left  26 k samples/s", "then what matters least");
    assert!(!end.contains("[=="), "{end}");
}

#[test]
fn without_colours() {
    let (line, _, bytes) = shown("no_color", 100, &[("NO_COLOR", "1")]);
    assert!(line.contains("50 %"), "{line}");
    assert!(!bytes.windows(3).any(|it| it == b"\x1b[2"), "{}", String::from_utf8_lossy(&bytes));
}

#[test]
fn a_terminal_that_can_draw_nothing() {
    let place = Place::new("drawn/dumb", "[ -z \"${FLEET_PROGRESS-}\" ] && echo not visible");
    let mut command = place.command("job.py");
    let bytes = Terminal::start(command.env("TERM", "dumb"), 80).unwrap().finish().unwrap();
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("not visible") && !text.contains('\x1b'), "{text}");
}

#[test]
fn the_line_of_progress_is_that_of_the_first_worker_that_runs() {
    let script = "[ $TRAINING_ROLE = PSERVER ] && sleep 600\n: > $FLEET_EXPENDABLE\n\
                  printf \"[==  ] of $PADDLE_TRAINER_ID\" > $FLEET_PROGRESS\n\
                  [ $PADDLE_TRAINER_ID = 0 ] && { until [ -e end ]; do sleep 0.05; done\n\
                  exit 3; }\n\
                  until [ -e go ]; do sleep 0.05; done";
    let place = Place::new("drawn/lost", script);
    let mut command = place.command("--server_num 1 --worker_num 2 job.py");
    let terminal = Terminal::start(command.env("TERM", "xterm"), 100).unwrap();
    let drawn = |part: &str| String::from_utf8_lossy(&terminal.bytes()).contains(part);
    until("the line of worker 0", || drawn("[==  ] of 0"));
    assert!(!drawn("[==  ] of 1"));
    std::fs::write(place.path("end"), "").unwrap();
    until("the line of worker 1", || drawn("[==  ] of 1"));
    std::fs::write(place.path("go"), "").unwrap();
    terminal.finish().unwrap();
}

#[test]
fn a_terminal_that_becomes_narrow() {
    let place = Place::new("drawn/resized", SCRIPT);
    let mut command = place.command("job.py");
    let terminal = Terminal::start(command.env("TERM", "xterm"), 100).unwrap();
    let drawn = |part: &str| String::from_utf8_lossy(&terminal.bytes()).contains(part);
    until("a wide line", || drawn("AUC 0.7000"));
    terminal.resize(40).unwrap();
    // The line now wraps to two rows, and both are cleared before it is redrawn.
    until("a narrow line", || {
        drawn("\x1b[1A\r\x1b[J\r\x1b[2m[==  ]  50 %  9 s left  26 k samples/s\x1b[0m\x1b[K")
    });
    std::fs::write(place.path("go"), "").unwrap();
    terminal.finish().unwrap();
}
