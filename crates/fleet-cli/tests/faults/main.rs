//! Table of faults: one process of a job fails. The launcher's terminal must name that process, the
//! reason and the end of its log in time, and the job must end as its mode requires. Some of the
//! jobs run on two machines: two launchers with addresses of the loopback network.
//!
//! `cargo test -p fleet-cli --test faults` runs some cases, `cargo xtask faults` runs all.
//! Arguments select cases by name: `cargo xtask faults collective kill`.
//!
//! The processes of a job run this binary without the test harness, so that a panic, an exit code
//! and a log are those of an ordinary program.

mod job;

use job::{
    CASE, Case, DIVIDED, FAULTS, FOLDER, Fault, MARK, MODES, Mode, OVER, PHASES, Phase, Role,
};
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

/// Variable that is set to run all cases.
const ALL: &str = "FLEET_FAULTS";
/// Limit on concurrent jobs. They spend more time waiting than computing.
const JOBS_AT_ONCE: usize = 4;

/// Every case.
fn table() -> Vec<Case> {
    let mut cases = Vec::new();
    for &mode in MODES.iter().chain(DIVIDED) {
        for &fault in FAULTS {
            for &phase in phases(mode, fault) {
                // If two workers differ, either may be the faulty one; of three, the one that
                // differs from the other two is.
                let is_difference =
                    matches!(fault, Fault::Strategy | Fault::Rings | Fault::Network | Fault::Fetch);
                let workers = match mode {
                    Mode::ShardedPipeline => 4,
                    Mode::Pipeline => 3,
                    _ if is_difference => 3,
                    _ => 2,
                };
                let of = |rank, machines| {
                    let role = Role::Worker;
                    Case { mode, fault, phase, role, rank, workers, machines }
                };
                cases.extend([of(0, 1), of(workers - 1, 1)]);
                if workers % 2 == 0 {
                    cases.push(of(workers - 1, 2));
                }
            }
            for (role, phase) in server_phases(mode, fault) {
                for machines in [1, 2] {
                    cases.push(Case { mode, fault, phase, role, rank: 0, workers: 2, machines });
                }
            }
        }
    }
    cases
}

/// Returns the servers and phases in which a fault of a server can happen.
fn server_phases(mode: Mode, fault: Fault) -> Vec<(Role, Phase)> {
    let (start, step) = ((Role::Server, Phase::Start), (Role::Server, Phase::Step));
    let durable = [(Role::Durable, Phase::Start), (Role::Durable, Phase::Step)];
    match fault {
        _ if !mode.has_servers() => vec![],
        Fault::Leave | Fault::Exit | Fault::Kill => [&[start, step], &durable[..]].concat(),
        // While the stack trace is printed a server keeps serving, so the job might finish before
        // the server ends.
        Fault::Panic => vec![start, step, durable[0]],
        Fault::Stop => vec![start, step],
        Fault::Hang => vec![start],
        _ => vec![],
    }
}

/// Returns the phases in which a fault of a worker can happen.
fn phases(mode: Mode, fault: Fault) -> &'static [Phase] {
    match fault {
        Fault::Leave | Fault::Exit | Fault::Panic | Fault::Kill | Fault::Stop => PHASES,
        _ if DIVIDED.contains(&mode) => &[],
        Fault::Strategy | Fault::Network | Fault::Hang => &[Phase::Start],
        Fault::Fetch => &[Phase::Step],
        Fault::Rings if mode == Mode::Collective => &[Phase::Start],
        Fault::Extra if mode == Mode::Collective => &[Phase::Step, Phase::Finish],
        // In modes whose workers wait for each other, the others cannot finish before this one.
        Fault::Late if !matches!(mode, Mode::Collective | Mode::Sync) => &[Phase::Step],
        Fault::Rings | Fault::Extra | Fault::Late => &[],
    }
}

/// Returns the cases of an ordinary test run: each fault in each mode, with phases and workers in
/// turn. Faults of servers and faults on two machines run in one mode each.
fn chosen() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, &mode) in DIVIDED.iter().enumerate() {
        for (at, &fault) in FAULTS.iter().enumerate() {
            let of_this = |it: &Case| it.mode == mode && it.fault == fault && it.machines == 1;
            let of_this: Vec<Case> = table().into_iter().filter(of_this).collect();
            cases.extend((!of_this.is_empty()).then(|| of_this[(3 * at + number) % of_this.len()]));
        }
    }
    for (number, &mode) in MODES.iter().enumerate() {
        for (at, &fault) in FAULTS.iter().enumerate() {
            let of_kind = |role: Option<Role>, machines: usize| -> Vec<Case> {
                let is_role = |it: &Case| match role {
                    Some(role) => it.role == role,
                    None => it.role != Role::Worker,
                };
                let is_of = |it: &Case| it.mode == mode && it.fault == fault && is_role(it);
                table().into_iter().filter(|it| is_of(it) && it.machines == machines).collect()
            };
            let pick = |of_this: Vec<Case>, turn: usize| match of_this.len() {
                0 => None,
                count => Some(of_this[turn % count]),
            };
            // A hang takes seconds and is the same in all modes.
            if fault != Fault::Hang || at % MODES.len() == number {
                cases.extend(pick(of_kind(Some(Role::Worker), 1), 3 * at + 5 * number));
            }
            if at % MODES.len() == number {
                cases.extend(pick(of_kind(Some(Role::Worker), 2), at + 1));
                cases.extend(pick(of_kind(None, 2), at + 1));
            }
            if (at + 2) % MODES.len() == number {
                cases.extend(pick(of_kind(None, 1), at));
            }
        }
    }
    cases
}

/// Expected output on the terminal, and exit code.
struct Expected {
    code: i32,
    /// Parts of the line that names the cause.
    line: Vec<String>,
    /// Texts that appear on the terminal exactly once.
    once: Vec<String>,
    /// Text that appears on the terminal, possibly in the logs of several workers.
    says: Option<&'static str>,
    /// Limit on the time from the fault to that line.
    within: Duration,
}

/// Returns `None` if the fault does not change the exit code.
fn expected(case: &Case) -> Option<Expected> {
    let (code, reason) = match case.fault {
        // Restarted servers have no fault: this one has not served yet, the durable one resumes.
        Fault::Kill if case.role == Role::Server && case.phase == Phase::Start => return None,
        _ if case.role == Role::Durable => return None,
        Fault::Leave => (1, "exited with code 0"),
        Fault::Exit => (3, "exited with code 3"),
        Fault::Panic => (101, "exited with code 101"),
        Fault::Kill => (137, "was killed by SIGKILL (9)"),
        Fault::Stop => (124, "is stopped (SIGSTOP or a debugger)"),
        Fault::Hang if case.role == Role::Worker => (124, "has not joined the job"),
        Fault::Hang => (124, "does not serve yet"),
        Fault::Fetch if case.mode != Mode::Collective => return None,
        Fault::Strategy
        | Fault::Rings
        | Fault::Network
        | Fault::Fetch
        | Fault::Extra
        | Fault::Late => (1, "exited with code 1"),
    };
    let mut once = vec![format!("last words of {}", case.title())];
    if case.fault == Fault::Extra {
        // Both workers may log what they wait for.
        once.clear();
    }
    if case.fault == Fault::Panic {
        if case.role != Role::Worker {
            // The stack trace alone fills the end of the log that is shown.
            once.clear();
        }
        once.push(format!("planned panic of {}", case.title()));
    }
    let within = match case.fault {
        Fault::Stop => SILENCE + Duration::from_secs(10),
        Fault::Leave | Fault::Exit | Fault::Panic | Fault::Kill => Duration::from_secs(5),
        _ => Duration::from_secs(10),
    };
    // If the workers' calls differ, any worker may be named.
    let named = match case.fault {
        Fault::Extra => "worker ".to_string(),
        _ => format!("{} on ", case.title()),
    };
    Some(Expected { code, line: vec![named, reason.into()], once, says: difference(case), within })
}

/// Returns the text in the log of a worker that differs from the others.
fn difference(case: &Case) -> Option<&'static str> {
    let text = match (case.mode, case.fault) {
        (Mode::Collective, Fault::Strategy) => "got 'gradient_merge: true'",
        (Mode::Collective, Fault::Rings) => "got 'nccl_comm_num: 2'",
        (Mode::Collective, Fault::Network) => "ranks train different networks",
        (Mode::Collective, Fault::Fetch) => "ranks fetch different variables",
        (Mode::HalfAsync | Mode::Geo, Fault::Strategy) => "different strategies",
        (_, Fault::Late) => "the job has ended: its servers finished",
        (_, Fault::Extra) => "ranks wait for each other in different groups",
        (_, Fault::Strategy) => "worker's tables differ from this server's",
        _ => return None,
    };
    Some(text)
}

/// Heartbeat timeout passed to the launcher. The documented times are for the default of 30 s and
/// shrink accordingly.
const SILENCE: Duration = Duration::from_secs(2);

/// Result of a case.
struct Outcome {
    case: Case,
    /// Time from the fault to the line that names the cause.
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
                    outcomes.lock().expect("no thread panics while it holds this").push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no thread panics while it holds this");
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
    let all = Lines::of(case, &folder);
    let fault = std::fs::metadata(folder.join(MARK)).and_then(|it| it.modified()).ok();
    // The fault is on the last machine; the others must report why they end.
    let (last, others) = all.split_last().expect("a job has a machine");
    let (named, mut wrong) = match expected(case) {
        None => (None, all.iter().find_map(|lines| lines.check_code(0).err())),
        Some(expected) => {
            let named = last.named(&expected, fault);
            let on_others = || others.iter().find_map(|it| it.check_other(&expected).err());
            (named, last.check(case, &expected, named).err().or_else(on_others))
        }
    };
    let says = |text: &str| last.lines.iter().any(|(_, line)| line.contains(text));
    if case.role == Role::Durable && !says("server 0 is started again (1 of 3)") {
        wrong = wrong.or(Some("the server was not started again".to_string()));
    }
    let text = || all.iter().map(Lines::text).collect::<Vec<_>>().join("  ----\n");
    let wrong = wrong.map(|wrong| format!("{wrong}\n{}", text()));
    Outcome { case: *case, named, wrong }
}

/// A launcher and the output on its terminal.
struct Terminal {
    launcher: Child,
    shown: mpsc::Receiver<(SystemTime, String)>,
    lines: Vec<(SystemTime, String)>,
}

impl Terminal {
    fn start(mut command: Command, mark: &str) -> Terminal {
        // One pipe for both streams, like a terminal.
        let (reader, out) = std::io::pipe().expect("a pipe");
        let err = out.try_clone().expect("a second end of the pipe");
        command.env(PLACE, mark).stdin(Stdio::null()).stdout(out).stderr(err);
        let launcher = command.spawn().expect("fleetrun starts");
        // The command keeps this process's ends of the pipe open until it is dropped.
        drop(command);
        let (sender, shown) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                if sender.send((SystemTime::now(), line)).is_err() {
                    return;
                }
            }
        });
        Terminal { launcher, shown, lines: Vec::new() }
    }

    /// Returns the address at which the first machine reports that machines meet.
    fn master(&mut self) -> String {
        loop {
            let shown = self.shown.recv_timeout(JOB_TIME).expect("machines say where they meet");
            let meets = shown.1.split_once("machines meet at ").map(|(_, at)| at.to_string());
            self.lines.push(shown);
            if let Some((at, _)) = meets.as_deref().and_then(|at| at.split_once(',')) {
                return at.to_string();
            }
        }
    }
}

/// Lines of a terminal with their times, and the end of the job.
struct Lines {
    lines: Vec<(SystemTime, String)>,
    /// Exit code; `None` if the job did not end in time and was killed.
    code: Option<i32>,
    /// Processes of the job that outlived it.
    left: Vec<u32>,
}

impl Lines {
    /// Runs a job to its end and returns the lines of each machine's terminal.
    fn of(case: &Case, folder: &Path) -> Vec<Lines> {
        let mark = format!("{} {}", std::process::id(), folder.display());
        let mut terminals = vec![Terminal::start(command(case, folder, 0, None), &mark)];
        for machine in 1..case.machines {
            let master = terminals[0].master();
            let command = command(case, folder, machine, Some(&master));
            terminals.push(Terminal::start(command, &mark));
        }
        let mut launchers: Vec<&mut Child> =
            terminals.iter_mut().map(|terminal| &mut terminal.launcher).collect();
        let codes = ended(&mut launchers, || continue_late(case, folder));
        let left = left_running(&mark);
        // All processes that could write have ended, so every channel is closed.
        let lines = |terminal: Terminal| -> Vec<(SystemTime, String)> {
            terminal.lines.into_iter().chain(terminal.shown).collect()
        };
        let all = terminals.into_iter().zip(codes);
        all.map(|(it, code)| Lines { lines: lines(it), code, left: left.clone() }).collect()
    }

    fn text(&self) -> String {
        self.lines.iter().map(|(_, line)| format!("  {line}\n")).collect()
    }

    /// Returns the time from the fault until the terminal named its cause.
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
            .filter(|line| {
                ["error: worker ", "error: server "].iter().any(|it| line.starts_with(it))
            })
            .filter(|line| line.contains(" (pid "))
            .collect();
        let own = format!("error: {} on ", case.title());
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

    /// Checks the terminal of a machine other than that of the fault.
    fn check_other(&self, expected: &Expected) -> Result<(), String> {
        let names = |line: &str| expected.line.iter().all(|part| line.contains(part));
        if !self.lines.iter().any(|(_, line)| names(line)) {
            return Err(format!("another machine has no line with all of {:?}", expected.line));
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

/// Returns the command of a machine's launcher. The faulty process is on the last machine. With
/// several machines, the server of a faulty worker is on another machine.
fn command(case: &Case, folder: &Path, machine: usize, master: Option<&str>) -> Command {
    let own = folder.join(format!("machine{machine}"));
    std::fs::create_dir_all(&own).expect("a folder for a machine");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetrun"));
    command.current_dir(&own);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["PADDLE_", "FLAGS_", "FLEET_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&*name);
        }
    }
    let seconds = SILENCE.as_secs().to_string();
    command.args(["--silence_timeout", &seconds, "--leave_timeout", &seconds]);
    if case.fault == Fault::Hang {
        command.args(["--start_timeout", &(SILENCE.as_secs() + 1).to_string()]);
    }
    if case.machines > 1 {
        let (master, count) = (master.unwrap_or("127.0.0.1:0"), case.machines.to_string());
        let host = format!("127.0.0.{}", machine + 1);
        command.args(["--master", master, "--nnodes", &count, "--host", &host]);
        command.env("FLEET_TOKEN", TOKEN).env("PADDLE_ELASTIC_TTL", "5");
    }
    let workers = (case.workers / case.machines).to_string();
    let has_server = (machine + 1 == case.machines) == (case.role != Role::Worker);
    match case.mode {
        mode if mode.has_servers() => command.args(["--worker_num", &workers]),
        _ => command.args(["--nproc_per_node", &workers]),
    };
    if case.mode.has_servers() && (case.machines == 1 || has_server) {
        command.args(["--server_num", "1"]);
    }
    if case.role != Role::Worker && case.fault == Fault::Stop {
        // Workers wait for a stopped server in case it is continued, but not as long as by default.
        command.env("FLAGS_rpc_deadline", (2 * SILENCE).as_millis().to_string());
    }
    command.arg(std::env::current_exe().expect("this binary"));
    command.env(CASE, case.name()).env(FOLDER, folder).env("RUST_BACKTRACE", "1");
    command
}

/// Secret of jobs on several machines.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Waits for launchers and returns their exit codes; kills those that do not end in time.
fn ended(launchers: &mut [&mut Child], meanwhile: impl Fn()) -> Vec<Option<i32>> {
    let begun = Instant::now();
    let mut codes = vec![None; launchers.len()];
    while begun.elapsed() < JOB_TIME && codes.contains(&None) {
        for (launcher, code) in launchers.iter_mut().zip(&mut codes) {
            if let Some(status) = launcher.try_wait().expect("a child can be waited for") {
                *code = status.code();
            }
        }
        meanwhile();
        std::thread::sleep(Duration::from_millis(10));
    }
    // Their guards kill the remaining processes.
    for launcher in launchers {
        let _ = launcher.kill();
        let _ = launcher.wait();
    }
    codes
}

/// Continues a late worker once the servers have exited.
fn continue_late(case: &Case, folder: &Path) {
    if case.fault != Fault::Late || !folder.join(OVER).exists() {
        return;
    }
    let pid = std::fs::read_to_string(folder.join(MARK)).ok().and_then(|text| text.parse().ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        // The process may have ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
    }
}

/// Waits for processes that carry the mark to end, and returns those that do not.
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

/// Returns the processes with this variable in their environment. Empty on systems without `/proc`.
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

/// Variable that marks all processes that run in a folder.
const PLACE: &str = "TEST_PLACE";
/// Limit on a job; much longer than any of them takes.
const JOB_TIME: Duration = Duration::from_secs(60);
/// Time for processes to end after the launcher: its guard ends a moment later.
const LEFT_TIME: Duration = Duration::from_secs(10);
