//! Table of faults: one worker of a job does something wrong, and the launcher's terminal must name
//! that worker, the reason and the end of its log, in time; then the job must end as its mode says.
//!
//! `cargo test -p fleet-cli --test faults` runs some cases, `cargo xtask faults` all. Words choose
//! cases by name: `cargo xtask faults collective kill`.
//!
//! The processes of a job are this binary again, without the harness of tests: a panic, an exit
//! code and a log are those of a program.

mod job;

use job::{CASE, Case, FAULTS, Fault, MARK, MODES, Mode, OVER, PHASES, Phase};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};

fn main() -> ExitCode {
    if let Ok(case) = std::env::var(CASE) {
        let case = Case::parse(&case).expect("a case, as the harness writes it");
        return match job::run(&case) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("error: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let all = std::env::var(ALL).is_ok();
    let cases = if all { table() } else { chosen() };
    let named = |case: &Case| {
        let name = case.name();
        words.iter().all(|word| name.split(' ').any(|part| part == word))
    };
    run_all(cases.into_iter().filter(named).collect())
}

/// Set where all cases are to run.
const ALL: &str = "FLEET_FAULTS";
/// Jobs at a time. They wait for each other more than they compute.
const JOBS_AT_ONCE: usize = 3;

/// Every case.
fn table() -> Vec<Case> {
    let mut cases = Vec::new();
    for &mode in MODES {
        for &fault in FAULTS {
            for &phase in phases(mode, fault) {
                // Of two that differ nobody knows which one is wrong; of three the one that is
                // alone.
                let is_difference =
                    matches!(fault, Fault::Strategy | Fault::Rings | Fault::Network | Fault::Fetch);
                let workers = if is_difference { 3 } else { 2 };
                for rank in [0, workers - 1] {
                    cases.push(Case { mode, fault, phase, rank, workers });
                }
            }
        }
    }
    cases
}

/// The phases in which a fault can happen.
fn phases(mode: Mode, fault: Fault) -> &'static [Phase] {
    match fault {
        Fault::Leave | Fault::Exit | Fault::Panic | Fault::Kill | Fault::Stop => PHASES,
        Fault::Strategy | Fault::Network => &[Phase::Start],
        Fault::Fetch => &[Phase::Step],
        Fault::Rings if mode == Mode::Collective => &[Phase::Start],
        Fault::Extra if mode == Mode::Collective => &[Phase::Step, Phase::Finish],
        // The others of a job in which all wait for each other do not end before it.
        Fault::Late if !matches!(mode, Mode::Collective | Mode::Sync) => &[Phase::Step],
        Fault::Rings | Fault::Extra | Fault::Late => &[],
    }
}

/// The cases of every run of the tests: each fault in each mode, phases and workers in turn.
fn chosen() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, &mode) in MODES.iter().enumerate() {
        for (at, &fault) in FAULTS.iter().enumerate() {
            let of_this: Vec<Case> =
                table().into_iter().filter(|it| it.mode == mode && it.fault == fault).collect();
            if !of_this.is_empty() {
                cases.push(of_this[(3 * at + 5 * number) % of_this.len()]);
            }
        }
    }
    cases
}

/// What the terminal and the exit code must be.
struct Expected {
    code: i32,
    /// The line that names the cause has all of these.
    line: Vec<String>,
    /// Is on the terminal once.
    once: Vec<String>,
    /// Is on the terminal, maybe in the logs of several workers.
    says: Option<&'static str>,
    /// From the fault to the line.
    within: Duration,
}

/// `None` where the fault changes nothing that others see.
fn expected(case: &Case) -> Option<Expected> {
    let worker = format!("worker {} on ", case.rank);
    let (code, reason) = match case.fault {
        Fault::Leave => (1, "exited with code 0"),
        Fault::Exit => (3, "exited with code 3"),
        Fault::Panic => (101, "exited with code 101"),
        Fault::Kill => (137, "was killed by SIGKILL (9)"),
        Fault::Stop => (124, "is stopped (SIGSTOP or a debugger)"),
        Fault::Fetch if case.mode != Mode::Collective => return None,
        Fault::Strategy
        | Fault::Rings
        | Fault::Network
        | Fault::Fetch
        | Fault::Extra
        | Fault::Late => (1, "exited with code 1"),
    };
    let mut once = vec![format!("last words of worker {}", case.rank)];
    if case.fault == Fault::Extra {
        // The log of either worker says what both wait for.
        once.clear();
    }
    if case.fault == Fault::Panic {
        once.push(format!("planned panic of worker {}", case.rank));
    }
    let within = match case.fault {
        Fault::Stop => SILENCE + Duration::from_secs(10),
        Fault::Leave | Fault::Exit | Fault::Panic | Fault::Kill => Duration::from_secs(5),
        _ => Duration::from_secs(10),
    };
    // Calls that do not fit are nobody's alone.
    let named = if case.fault == Fault::Extra { "worker ".to_string() } else { worker };
    Some(Expected { code, line: vec![named, reason.into()], once, says: difference(case), within })
}

/// What the log of a worker says that differs from the others.
fn difference(case: &Case) -> Option<&'static str> {
    let text = match (case.mode, case.fault) {
        (Mode::Collective, Fault::Strategy) => "got 'gradient_merge: true'",
        (Mode::Collective, Fault::Rings) => "got 'nccl_comm_num: 2'",
        (Mode::Collective, Fault::Network) => "ranks train different networks",
        (Mode::Collective, Fault::Fetch) => "ranks fetch different variables",
        (Mode::HalfAsync | Mode::Geo, Fault::Strategy) => "different strategies",
        (_, Fault::Late) => "the job is over: its servers have finished",
        (_, Fault::Extra) => "ranks wait for each other in different groups",
        (_, Fault::Strategy) => "tables are not those of this server",
        _ => return None,
    };
    Some(text)
}

/// As the launcher is told; the promises are for 30 s and are shorter by as much.
const SILENCE: Duration = Duration::from_secs(2);

/// What became of a case.
struct Outcome {
    case: Case,
    /// From the fault to the line that names the cause.
    named: Option<Duration>,
    wrong: Option<String>,
}

fn run_all(cases: Vec<Case>) -> ExitCode {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..JOBS_AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let outcome = run(case);
                    print(&outcome);
                    outcomes.lock().expect("nobody panics with it").push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("nobody panics with it");
    let failed: Vec<&Outcome> = outcomes.iter().filter(|it| it.wrong.is_some()).collect();
    for outcome in &failed {
        println!("\n--- {}: {}", outcome.case.name(), outcome.wrong.as_deref().unwrap_or_default());
    }
    let (count, seconds) = (outcomes.len(), begun.elapsed().as_secs_f64());
    println!("\n{count} cases, {} failed, {seconds:.1} s", failed.len());
    ExitCode::from(u8::from(!failed.is_empty()))
}

fn print(outcome: &Outcome) {
    let named =
        outcome.named.map_or("-".to_string(), |span| format!("{:.2} s", span.as_secs_f64()));
    let verdict = if outcome.wrong.is_some() { "FAILED" } else { "ok" };
    println!("{:<40} named after {named:>8}  {verdict}", outcome.case.name());
}

fn run(case: &Case) -> Outcome {
    let folder: PathBuf =
        [env!("CARGO_TARGET_TMPDIR"), "faults", &case.name().replace(' ', "_")].iter().collect();
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for a job");
    let lines = Lines::of(case, &folder);
    let fault = std::fs::metadata(folder.join(MARK)).and_then(|it| it.modified()).ok();
    let (named, wrong) = match expected(case) {
        None => (None, lines.check_code(0).err()),
        Some(expected) => {
            let named = lines.named(&expected, fault);
            (named, lines.check(case, &expected, named).err())
        }
    };
    let wrong = wrong.map(|wrong| format!("{wrong}\n{}", lines.text()));
    Outcome { case: *case, named, wrong }
}

/// What a terminal showed, with times, and how the job ended.
struct Lines {
    lines: Vec<(SystemTime, String)>,
    /// `None`: it did not end in time, and was killed.
    code: Option<i32>,
    /// Processes of the job that ran on after it.
    left: Vec<u32>,
}

impl Lines {
    /// Runs a job to its end.
    fn of(case: &Case, folder: &Path) -> Lines {
        // One pipe for both, as a terminal is.
        let (reader, out) = std::io::pipe().expect("a pipe");
        let err = out.try_clone().expect("a second end of the pipe");
        let mark = format!("{} {}", std::process::id(), folder.display());
        let mut command = command(case, folder);
        command.env(PLACE, &mark).stdin(Stdio::null()).stdout(out).stderr(err);
        let mut launcher = command.spawn().expect("fleetrun starts");
        // Its ends of the pipe are this process's too as long as it lives.
        drop(command);
        let (sender, lines) = mpsc::channel();
        let read = std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                if sender.send((SystemTime::now(), line)).is_err() {
                    return;
                }
            }
        });
        let code = ended(&mut launcher, || continue_late(case, folder));
        let left = left_running(&mark);
        read.join().expect("reading does not panic");
        Lines { lines: lines.into_iter().collect(), code, left }
    }

    fn text(&self) -> String {
        self.lines.iter().map(|(_, line)| format!("  {line}\n")).collect()
    }

    /// How long after the fault the terminal named its cause.
    fn named(&self, expected: &Expected, fault: Option<SystemTime>) -> Option<Duration> {
        let names = |line: &str| expected.line.iter().all(|part| line.contains(part));
        let (at, _) = self.lines.iter().find(|(_, line)| names(line))?;
        Some(at.duration_since(fault?).unwrap_or_default())
    }

    fn check(
        &self,
        case: &Case,
        expected: &Expected,
        named: Option<Duration>,
    ) -> Result<(), String> {
        let Some(named) = named else {
            return Err(format!("no line has all of {:?}", expected.line));
        };
        if named > expected.within {
            return Err(format!("named after {named:?}, expected {:?}", expected.within));
        }
        let blamed: Vec<&String> = self
            .lines
            .iter()
            .map(|(_, line)| line)
            .filter(|line| line.starts_with("error: worker ") && line.contains(" (pid "))
            .collect();
        let own = format!("error: worker {} on ", case.rank);
        let is_own = |line: &&String| line.starts_with(&own) || case.fault == Fault::Extra;
        if blamed.is_empty() || !blamed.iter().all(is_own) {
            return Err(format!("blamed: {blamed:?}"));
        }
        for text in &expected.once {
            match self.lines.iter().filter(|(_, line)| line.contains(text)).count() {
                1 => {}
                count => return Err(format!("'{text}' is there {count} times")),
            }
        }
        if let Some(says) = expected.says
            && !self.lines.iter().any(|(_, line)| line.contains(says))
        {
            return Err(format!("'{says}' is not there"));
        }
        self.check_code(expected.code)
    }

    fn check_code(&self, code: i32) -> Result<(), String> {
        match self.code {
            None => return Err(format!("the job had not ended after {JOB_TIME:?}")),
            Some(got) if got != code => return Err(format!("exit code {got}, expected {code}")),
            Some(_) => {}
        }
        match self.left.is_empty() {
            true => Ok(()),
            false => Err(format!("processes run on: {:?}", self.left)),
        }
    }
}

fn command(case: &Case, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetrun"));
    command.current_dir(folder);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["PADDLE_", "FLAGS_", "FLEET_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&*name);
        }
    }
    let seconds = SILENCE.as_secs().to_string();
    command.args(["--silence_timeout", &seconds, "--leave_timeout", &seconds]);
    let workers = case.workers.to_string();
    match case.mode {
        Mode::Collective => command.args(["--nproc_per_node", &workers]),
        _ => command.args(["--server_num", "1", "--worker_num", &workers]),
    };
    command.arg(std::env::current_exe().expect("this binary"));
    command.env(CASE, case.name()).env("RUST_BACKTRACE", "1");
    command
}

/// The exit code of a launcher that ends in time.
fn ended(launcher: &mut Child, meanwhile: impl Fn()) -> Option<i32> {
    let begun = Instant::now();
    while begun.elapsed() < JOB_TIME {
        if let Some(status) = launcher.try_wait().expect("a child can be waited for") {
            return status.code();
        }
        meanwhile();
        std::thread::sleep(Duration::from_millis(10));
    }
    // Its guard ends the rest.
    let _ = launcher.kill();
    let _ = launcher.wait();
    None
}

/// Lets a worker go on that is late, once the servers have left.
fn continue_late(case: &Case, folder: &Path) {
    if case.fault != Fault::Late || !folder.join(OVER).exists() {
        return;
    }
    let pid = std::fs::read_to_string(folder.join(MARK)).ok().and_then(|text| text.parse().ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        // It may have ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
    }
}

/// Processes that carry the mark and do not end.
fn left_running(mark: &str) -> Vec<u32> {
    let begun = Instant::now();
    loop {
        let left = carrying(PLACE, mark);
        if left.is_empty() || begun.elapsed() > LEFT_TIME {
            return left;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Processes with this in their environment. None where there is no `/proc`.
fn carrying(name: &str, value: &str) -> Vec<u32> {
    let wanted = format!("{name}={value}");
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ"));
        environ.is_ok_and(|bytes| bytes.split(|byte| *byte == 0).any(|it| it == wanted.as_bytes()))
    })
    .collect()
}

/// Names the folder in the environment of all that runs in it.
const PLACE: &str = "TEST_PLACE";
/// Much longer than any of these jobs takes.
const JOB_TIME: Duration = Duration::from_secs(60);
/// The launcher's guard ends a moment after the launcher.
const LEFT_TIME: Duration = Duration::from_secs(10);
