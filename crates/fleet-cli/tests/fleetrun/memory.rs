//! A worker that the kernel kills because memory ran out. Uses a control group with a small limit,
//! if one can be created.

use crate::Place;
use std::path::{Path, PathBuf};

/// A control group with little memory; removed at the end.
struct Group {
    folder: PathBuf,
}

impl Group {
    /// Returns `None` and prints the reason if the process may not create one.
    fn new(name: &str) -> Option<Group> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = |start: fn(&str) -> bool| -> Option<&str> {
            let mut lines =
                groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
            lines.find(|(controllers, _)| start(controllers)).map(|(_, path)| path)
        };
        let version_1 = own(|controllers| controllers.split(',').any(|it| it == "memory"));
        let candidates = match (version_1, own(str::is_empty)) {
            (Some(path), _) => {
                vec![format!("/sys/fs/cgroup/memory{path}"), "/sys/fs/cgroup/memory".into()]
            }
            // A version 2 group that has processes cannot delegate controllers to child groups.
            (None, Some(path)) => {
                let above = Path::new(path).parent().unwrap_or(Path::new("/"));
                vec![format!("/sys/fs/cgroup{}", above.display()), "/sys/fs/cgroup".into()]
            }
            (None, None) => Vec::new(),
        };
        let name = format!("fleet-test-{}-{name}", std::process::id());
        let mut tried = String::from("no groups that count memory");
        for parent in candidates {
            let group = Group { folder: Path::new(&parent).join(&name) };
            match std::fs::create_dir(&group.folder).and_then(|()| group.limit()) {
                Ok(()) => return Some(group),
                Err(error) => tried = format!("{}: {error}", group.folder.display()),
            }
        }
        eprintln!("skipped: no control group can be made here ({tried})");
        None
    }

    fn limit(&self) -> std::io::Result<()> {
        let write = |name: &str, value: &str| {
            let mut options = std::fs::File::options();
            let mut file = options.write(true).open(self.folder.join(name))?;
            std::io::Write::write_all(&mut file, value.as_bytes())
        };
        // Swap would only delay the kill, and is not counted everywhere.
        match self.folder.join("memory.max").exists() {
            true => {
                let _ = write("memory.swap.max", "0");
                write("memory.max", LIMIT)
            }
            false => write("memory.limit_in_bytes", LIMIT)
                .inspect(|()| drop(write("memory.memsw.limit_in_bytes", LIMIT))),
        }
    }

    fn procs(&self) -> String {
        self.folder.join("cgroup.procs").display().to_string()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may still belong to the group.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

const LIMIT: &str = "67108864";
/// `tail` keeps all of an endless line. Without a group limit, the ulimit ends it.
const EAT: &str = "ulimit -v 4000000\nexec tail -n 1 < /dev/zero";
const SAID: [&str; 2] = ["worker 0 on 127.0.0.1 (pid ", "was killed by SIGKILL (9) after "];

/// The worker starts in the group, so that the group's own counter shows the kill.
#[test]
fn a_worker_that_its_group_kills_for_memory() {
    let Some(group) = Group::new("all") else { return };
    let place = Place::new("memory", EAT);
    let launcher = place.command("job.py");
    let mut inside = std::process::Command::new("sh");
    inside.args(["-c", &format!("echo $$ > {} && exec \"$0\" \"$@\"", group.procs())]);
    inside.arg(launcher.get_program()).args(launcher.get_args()).current_dir(&place.folder);
    for (name, value) in launcher.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    let said = crate::Said::new(inside.output().unwrap());
    said.check(137, &SAID);
    let version_1 = group.folder.join("memory.oom_control");
    let counter = if version_1.exists() { version_1 } else { group.folder.join("memory.events") };
    let want = format!(
        "likely out of memory (the kernel says so: oom_kill in {} went up)",
        counter.display()
    );
    assert!(said.err.contains(&want), "'{want}' is not in:\n{}", said.err);
}

/// The worker moves to a group of its own.
#[test]
fn a_worker_in_a_nested_group() {
    let Some(group) = Group::new("own") else { return };
    let place = Place::new("memory_nested", &format!("echo $$ > {}\n{EAT}", group.procs()));
    let said = place.run("job.py");
    said.check(137, &SAID);
    said.check(137, &["likely out of memory (the kernel says so"]);
}
