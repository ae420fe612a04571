//! Jobs on several machines: launchers on addresses of the loopback network.

use crate::{Place, signal, until};
use std::process::{Child, Stdio};

pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A launcher in its own folder that represents a machine.
pub struct Machine {
    pub place: Place,
    pub child: Child,
}

impl Machine {
    pub fn start(name: &str, script: &str, line: &str, token: &str) -> Machine {
        Machine::start_with(name, script, line, &[("FLEET_TOKEN", token)])
    }

    fn start_with(name: &str, script: &str, line: &str, env: &[(&str, &str)]) -> Machine {
        let place = Place::new(name, script);
        let mut command = place.command(line);
        command.env("PADDLE_ELASTIC_TTL", "2").envs(env.iter().copied());
        let file = |name: &str| std::fs::File::create(place.path(name)).unwrap();
        command.stdout(Stdio::null()).stderr(file("said"));
        let child = command.spawn().unwrap();
        Machine { place, child }
    }

    /// Returns the address at which the first machine reports that machines meet.
    fn master(&self) -> String {
        let found = || {
            let said = self.place.read("said");
            let at = said.split_once("machines meet at ")?.1;
            Some(at.split_once(',')?.0.to_string())
        };
        until("a meeting place", || found().is_some());
        found().unwrap()
    }

    fn end(mut self) -> (Option<i32>, Place, String) {
        let code = self.child.wait().unwrap().code();
        let said = self.place.read("said");
        (code, self.place, said)
    }

    #[track_caller]
    pub fn check(self, code: i32, parts: &[&str]) -> Place {
        let (found, place, said) = self.end();
        assert_eq!(found, Some(code), "{said}");
        for part in parts {
            assert!(said.contains(part), "'{part}' is not in:\n{said}");
        }
        place
    }
}

/// Starts two machines that meet at a port chosen by the system.
pub fn pair(name: &str, script: &str, line: &str) -> (Machine, Machine) {
    pair_of(name, script, [line, line], &[("FLEET_TOKEN", TOKEN)])
}

/// Starts such a pair with a command line for each machine.
fn pair_of(name: &str, script: &str, lines: [&str; 2], env: &[(&str, &str)]) -> (Machine, Machine) {
    let first = format!("--master 127.0.0.1:0 --host 127.0.0.1 {}", lines[0]);
    let first = Machine::start_with(&format!("{name}/a"), script, &first, env);
    let second = format!("--master {} --host 127.0.0.2 {}", first.master(), lines[1]);
    let second = Machine::start_with(&format!("{name}/b"), script, &second, env);
    (first, second)
}

/// Starts two machines that train. The heartbeat timeout is so long that a lost launcher is
/// detected only by its closed connection.
fn training_pair(name: &str) -> (Machine, Machine) {
    let line = "--nnodes 2 demo:lenet --samples 100000000 --threads 1";
    let env = [("FLEET_TOKEN", TOKEN), ("PADDLE_ELASTIC_TTL", "60")];
    let (first, second) = pair_of(name, "", [line, line], &env);
    let step = |machine: &Machine| machine.place.read("log/workerlog.0").contains("batches of 32");
    until("both at work", || step(&first) && step(&second));
    (first, second)
}

pub const WHO: &str = "echo $PADDLE_TRAINER_ID of $PADDLE_TRAINERS_NUM \
                       at $PADDLE_CURRENT_ENDPOINT of $PADDLE_TRAINER_ENDPOINTS";

#[test]
fn machines_meet_and_number_their_workers() {
    let (first, second) = pair("meet", WHO, "--nnodes 2 --nproc_per_node 2 job.py");
    let first = first.check(0, &["machines meet at 127.0.0.1:", "done in"]);
    let second = second.check(0, &["2 workers on this machine, number 1 of 2", "done in"]);
    let line = first.read("log/workerlog.0");
    assert!(line.starts_with("0 of 4 at 127.0.0.1:"), "{line}");
    let other = second.read("log/workerlog.1");
    assert!(other.starts_with("3 of 4 at 127.0.0.2:"), "{other}");
    let all = |line: &str| line.rsplit(' ').next().map(str::to_string);
    assert_eq!(all(&line), all(&other), "all have the same endpoints");
    for place in [first, second] {
        let said = place.read("said");
        assert!(!said.contains("dropped a connection"), "{said}");
    }
}

#[test]
fn machines_of_two_modes_refuse_each_other() {
    let lines = ["--nnodes 2 job.py", "--nnodes 2 --server_num 1 --worker_num 1 job.py"];
    let (first, second) = pair_of("meet_modes", WHO, lines, &[("FLEET_TOKEN", TOKEN)]);
    for machine in [first, second] {
        let place = machine.check(
            2,
            &[
                "error: the machines of the job were started differently: ",
                "the mode is collective on 127.0.0.1 and ps on 127.0.0.2",
                "help: give every machine the flags of one mode",
            ],
        );
        assert!(!place.path("log/workerlog.0").exists(), "nothing was started");
    }
}

/// The job continues; only the late machine is refused.
#[test]
fn a_machine_that_does_not_fit_to_a_running_job_is_refused_alone() {
    let line = "--nnodes 1:2 --elastic_timeout 0.2 --stop_timeout 5";
    let first = format!("--master 127.0.0.1:0 --host 127.0.0.1 {line} job.py");
    let first = Machine::start("misfit/a", ELASTIC, &first, TOKEN);
    until("a start alone", || first.place.path("up.0.0.of.1").exists());
    let second =
        format!("--master {} --host 127.0.0.2 {line} --worker_num 1 job.py", first.master());
    Machine::start("misfit/b", ELASTIC, &second, TOKEN)
        .check(2, &["the mode is collective on 127.0.0.1 and ps on 127.0.0.2"]);
    std::fs::write(first.place.path("go"), "").unwrap();
    let first = first.check(0, &["done in"]);
    assert!(!first.path("up.1.0.of.1").exists(), "it was not started again");
}

#[test]
fn a_death_on_one_machine_ends_the_job_on_all() {
    let script = "[ $PADDLE_TRAINER_ID = 1 ] && { echo oh no; exit 7; }\nsleep 600";
    let (first, second) = pair("meet_death", script, "--nnodes 2 job.py");
    first.check(
        7,
        &[
            "error: worker 1 on 127.0.0.2 (pid ",
            "exited with code 7",
            "the end of log/workerlog.0 on 127.0.0.2:\n  | oh no",
        ],
    );
    second.check(7, &["error: worker 1 on 127.0.0.2 (pid ", "ABORT!!! Out of all 2 trainers"]);
}

#[test]
fn restarts_are_common() {
    let script = "echo start $FLEET_RESTART_COUNT of $PADDLE_TRAINER_ID\n\
                  [ $FLEET_RESTART_COUNT = 1 ] && exit 0\n\
                  [ $PADDLE_TRAINER_ID = 1 ] && exit 7; sleep 600";
    let (first, second) = pair("meet_restart", script, "--nnodes 2 --max_restart 1 job.py");
    let first = first
        .check(0, &["restart 1 of 1", "start 1: 2 workers on 2 machines, this one is number 0"]);
    second.check(0, &[]);
    assert_eq!(first.read("log/workerlog.0"), "start 0 of 0\nstart 1 of 0\n");
}

#[test]
fn parameter_servers_on_two_machines() {
    let script = "echo $TRAINING_ROLE of $PADDLE_PSERVERS_IP_PORT_LIST\n\
                  [ $TRAINING_ROLE = PSERVER ] && sleep 600; exit 0";
    let (first, second) =
        pair("meet_ps", script, "--nnodes 2 --server_num 1 --worker_num 1 job.py");
    let first = first.check(0, &["1 server, 1 worker on this machine"]);
    second.check(0, &[]);
    let line = first.read("log/workerlog.0");
    assert!(line.starts_with("TRAINER of 127.0.0.1:") && line.contains(",127.0.0.2:"), "{line}");
}

#[test]
fn servers_stay_for_the_workers_of_other_machines() {
    // After all workers on the first machine are done, its server still serves the last worker.
    let script = "[ $TRAINING_ROLE = PSERVER ] && { until [ -e asked ]; do sleep 0.05; done\n\
                  touch answered; sleep 600; }\n\
                  [ $PADDLE_TRAINER_ID = 0 ] && exit 0\n\
                  until grep -q 'its servers still run' ../a/said; do sleep 0.05; done\n\
                  touch ../a/asked; until [ -e ../a/answered ]; do sleep 0.05; done";
    let (first, second) =
        pair("meet_uneven", script, "--nnodes 2 --server_num 1 --worker_num 1 job.py");
    first.check(0, &["done in"]);
    second.check(0, &["done in"]);
}

#[test]
fn who_does_not_come_is_missed() {
    let line = "--master 127.0.0.1:0 --nnodes 2 --join_timeout 0.5 job.py";
    let alone = Machine::start("miss/a", WHO, line, TOKEN);
    // On a busy machine even the launcher's own machine may join later than that.
    alone.check(1, &[" of 2 machines joined within 0.5 s"]);
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    let line = format!("--master 127.0.0.1:{port} --nnodes 2 --rank 1 --join_timeout 0.5 job.py");
    let lost = Machine::start("miss/b", WHO, &line, TOKEN);
    lost.check(
        1,
        &[
            "waiting for the first machine at",
            &format!("no answer at 127.0.0.1:{port}"),
            "same secret",
        ],
    );
    drop(free);
}

#[test]
fn another_secret_is_another_job() {
    let line = "--master 127.0.0.1:0 --nnodes 2 --join_timeout 20 job.py";
    let mut first = Machine::start("secret/a", WHO, line, TOKEN);
    let line = format!("--master {} --nnodes 2 --join_timeout 5 job.py", first.master());
    let (code, _, said) =
        Machine::start("secret/b", WHO, &line, "fedcba9876543210fedcba9876543210").end();
    assert!(code != Some(0) && said.contains("token"), "{said}");
    signal(first.child.id(), "INT");
    first.child.wait().unwrap();
}

#[test]
fn a_list_of_hosts_with_ports_of_the_system() {
    let script = format!("{WHO} $PADDLE_MASTER");
    let line = "--ips 127.0.0.1,127.0.0.2 --nproc_per_node 2 job.py";
    let (first, second) = pair("hosts_free", &script, line);
    let master = first.master();
    let first = first.check(0, &["2 workers on this machine, number 0 of 2", "done in"]);
    let second = second.check(0, &["number 1 of 2", "done in"]);
    let lines = [
        first.read("log/workerlog.0"),
        first.read("log/workerlog.1"),
        second.read("log/workerlog.0"),
        second.read("log/workerlog.1"),
    ];
    let words = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let all = words(&lines[0])[6].clone();
    let endpoints: Vec<&str> = all.split(',').collect();
    for (rank, line) in lines.iter().enumerate() {
        let want = format!("{rank} of 4 at {} of {all} {master}", endpoints[rank]);
        assert_eq!(words(line), words(&want));
    }
    let hosts: Vec<&str> = endpoints.iter().map(|it| it.split(':').next().unwrap()).collect();
    assert_eq!(hosts, ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]);
    assert!(endpoints.iter().all(|endpoint| !endpoint.ends_with(":0")), "{all}");
}

#[test]
fn lists_of_servers_and_workers_without_ports() {
    let script = "echo $PADDLE_TRAINER_ID of $PADDLE_PSERVERS_IP_PORT_LIST \
                  $PADDLE_TRAINER_ENDPOINTS $PADDLE_GLOO_HTTP_ENDPOINT\n\
                  [ $TRAINING_ROLE = PSERVER ] && sleep 600; exit 0";
    let line = "--servers 127.0.0.1,127.0.0.2 --workers 127.0.0.2,127.0.0.1,127.0.0.2 \
                --with_gloo 1 job.py";
    let (first, second) = pair("lists_free", script, line);
    let first = first.check(0, &["1 server, 1 worker on this machine, number 0 of 2"]);
    let second = second.check(0, &["1 server, 2 workers on this machine"]);
    let line = first.read("log/workerlog.0");
    assert!(line.starts_with("1 of 127.0.0.1:"), "the order of the list is that of ranks: {line}");
    let other = second.read("log/workerlog.1");
    assert!(other.starts_with("2 of 127.0.0.1:"), "{other}");
    assert_eq!(line[1..], other[1..], "all know the same addresses");
    assert!(!line.contains(":0,") && !line.contains(":0 ") && !line.contains(":0\n"), "{line}");
}

#[test]
fn lists_that_do_not_fit() {
    let line = "--ips 127.0.0.1,127.0.0.2";
    let first = format!("{line} --master 127.0.0.1:0 --host 127.0.0.1 job.py");
    let first = Machine::start("unfit/a", WHO, &first, TOKEN);
    let second = format!("{line} --master {} --host 127.0.0.2", first.master());
    let second =
        Machine::start("unfit/b", WHO, &format!("{second} --nproc_per_node 2 job.py"), TOKEN);
    for machine in [first, second] {
        let place = machine.check(1, &["was started with different flags", "the same on every"]);
        assert!(!place.path("log/workerlog.0").exists(), "nothing was started");
    }
}

#[test]
fn a_machine_of_the_list_that_does_not_come() {
    let line = "--ips 127.0.0.1,127.0.0.2,127.0.0.3 --join_timeout 0.5 job.py";
    let first = format!("--master 127.0.0.1:0 --host 127.0.0.1 {line}");
    Machine::start("absent/a", WHO, &first, TOKEN)
        .check(1, &["127.0.0.2, 127.0.0.3", " joined within 0.5 s"]);
    // No process listens at this address of the loopback network.
    let line = "--ips 127.31.7.9,127.0.0.2 --host 127.0.0.2 --join_timeout 0.5 job.py";
    Machine::start("absent/b", WHO, line, TOKEN).check(
        1,
        &[
            "waiting for the first machine at 127.31.7.9:29400: ",
            "no answer at 127.31.7.9:29400",
            "the first machine within 0.5 s",
        ],
    );
    let line = "--ips 127.0.0.1,127.0.0.2 --host 127.0.0.2 --master 127.0.0.1:0 job.py";
    Machine::start("absent/c", WHO, line, TOKEN).check(2, &["others cannot connect to port 0"]);
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let line =
        format!("--ips 127.0.0.1,127.0.0.2 --host 127.0.0.1 --master 127.0.0.1:{port} job.py");
    Machine::start("absent/d", WHO, &line, TOKEN).check(
        1,
        &[&format!("cannot answer at 127.0.0.1:{port}"), "another job may meet there", "--master"],
    );
}

#[test]
fn a_list_of_hosts_with_fixed_ports() {
    // Another process may have one of these fixed ports; then the test tries others.
    for _ in 0..5 {
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = free.local_addr().unwrap().port().min(60000);
        drop(free);
        let line = format!("--ips 127.0.0.1,127.0.0.2 --start_port {port} --nproc_per_node 2");
        let first =
            Machine::start("hosts/a", WHO, &format!("{line} --host 127.0.0.1 job.py"), TOKEN);
        let second = format!("{line} --join_timeout 20 --host 127.0.0.2 job.py");
        let second = Machine::start("hosts/b", WHO, &second, TOKEN);
        let (code, _, said) = first.end();
        let (other_code, place, other_said) = second.end();
        if code != Some(0) {
            let taken = ["is in use", "is taken", "cannot answer"];
            assert!(taken.iter().any(|text| said.contains(text)), "{said}");
            continue;
        }
        assert_eq!(other_code, Some(0), "{other_said}");
        let (a, b) = (port, port + 1);
        let want = format!(
            "2 of 4 at 127.0.0.2:{a} of 127.0.0.1:{a},127.0.0.1:{b},127.0.0.2:{a},127.0.0.2:{b}\n"
        );
        assert_eq!(place.read("log/workerlog.0"), want);
        return;
    }
    panic!("five times a port was taken");
}

/// Records its rank in every generation, and ends when allowed.
pub const ELASTIC: &str = "rank=$PADDLE_TRAINER_ID.of.$PADDLE_TRAINERS_NUM\n\
                       touch up.$FLEET_RESTART_COUNT.$rank\n\
                       trap 'exit 0' TERM; until [ -e go ]; do sleep 0.05; done";

#[test]
fn machines_come_and_go() {
    let line = "--nnodes 1:2 --elastic_timeout 0.2 --stop_timeout 5 job.py";
    let first = format!("--master 127.0.0.1:0 --host 127.0.0.1 {line}");
    let first = Machine::start("elastic/a", ELASTIC, &first, TOKEN);
    until("a start alone", || first.place.path("up.0.0.of.1").exists());
    let second = format!("--master {} --host 127.0.0.2 {line}", first.master());
    let mut killed = Machine::start("elastic/b", ELASTIC, &second, TOKEN);
    until("a start of two", || first.place.path("up.1.0.of.2").exists());
    until("the second", || killed.place.path("up.1.1.of.2").exists());
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    until("a start after a loss", || first.place.path("up.2.0.of.1").exists());
    let mut left = Machine::start("elastic/c", ELASTIC, &second, TOKEN);
    until("a start of two again", || left.place.path("up.3.1.of.2").exists());
    signal(left.child.id(), "INT");
    assert_eq!(left.child.wait().unwrap().code(), Some(130));
    until("a start after a farewell", || first.place.path("up.4.0.of.1").exists());
    std::fs::write(first.place.path("go"), "").unwrap();
    first.check(
        0,
        &[
            "machine 127.0.0.2 joined",
            "machine 127.0.0.2 is lost: ",
            "machine 127.0.0.2 was stopped by its user",
            "start 4: 1 worker on 1 machine, this one is number 0",
        ],
    );
}

#[test]
fn a_fixed_number_waits_for_another_machine() {
    let line = "--nnodes 2 --elastic_level 1 --stop_timeout 5 job.py";
    let (first, mut second) = pair("same", ELASTIC, line);
    until("a start", || second.place.path("up.0.1.of.2").exists());
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    let third = format!("--master {} --host 127.0.0.3 {line}", first.master());
    let third = Machine::start("same/c", ELASTIC, &third, TOKEN);
    until("a start with another", || third.place.path("up.1.1.of.2").exists());
    for machine in [&first, &third] {
        std::fs::write(machine.place.path("go"), "").unwrap();
    }
    first.check(0, &["machine 127.0.0.2 is lost: "]);
    third.check(0, &[]);
}

#[test]
fn the_end_of_the_leader_is_the_end_of_the_job() {
    let (mut first, second) = pair("leader", ELASTIC, "--nnodes 2 --stop_timeout 5 job.py");
    until("a start", || second.place.path("up.0.1.of.2").exists());
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    second.check(1, &["the machine that leads the job", "is lost"]);
    let (first, second) = pair("leader_left", ELASTIC, "--nnodes 2 --stop_timeout 5 job.py");
    until("a start", || second.place.path("up.0.1.of.2").exists());
    signal(first.child.id(), "TERM");
    first.check(143, &["stopped by SIGTERM"]);
    second.check(1, &["which leads the job, was stopped by its user"]);
}

/// Workers of other machines fail because of that death, often before its cause is reported.
#[test]
fn who_was_killed_gives_all_machines_their_code() {
    let (first, second) = training_pair("notice");
    let folder = second.place.folder.canonicalize().unwrap();
    let of_second = || crate::demos::worker(1, &folder);
    until("the second worker", || of_second().is_some());
    signal(of_second().unwrap(), "KILL");
    let first = first.check(137, &["error: worker 1 on 127.0.0.2 (pid ", "SIGKILL (9)"]);
    assert!(!first.read("said").contains("error: worker 0"), "{}", first.read("said"));
    second.check(137, &["error: worker 1 on 127.0.0.2 (pid "]);
}

/// Workers that wait for workers of a lost machine fail first; the lost machine is the cause.
#[test]
fn a_machine_whose_launcher_is_killed_is_lost() {
    let (first, mut second) = training_pair("launcher_killed");
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    let lost = "error: machine 127.0.0.2 is lost: the connection to its launcher broke";
    let first = first.check(1, &[lost]);
    let said = first.read("said");
    assert!(!said.contains("error: worker"), "{said}");
    let folder = second.place.folder.canonicalize().unwrap();
    until("the end of its worker", || crate::demos::worker(1, &folder).is_none());
}

#[test]
fn the_loss_of_the_leader_is_noticed_by_its_connection() {
    let (mut first, second) = training_pair("leader_killed");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let second = second.check(1, &["error: the machine that leads the job, at 127.0.0.1:"]);
    let said = second.read("said");
    assert!(said.contains("is lost") && !said.contains("error: worker"), "{said}");
}

/// A server leaves without a word, and is started again when a worker has joined. By then its
/// machine has reported that its servers have ended, which must not hold for the second one.
#[test]
fn a_server_that_is_started_again_is_not_done() {
    let script = "if [ $TRAINING_ROLE = PSERVER ]; then\n\
                  [ -e ../gone ] || { touch ../gone; exit 0; }; printf serving > $FLEET_REPORT\n\
                  until [ -e ../worked ]; do sleep 0.05; done\n\
                  printf finished > $FLEET_REPORT; exit 0; fi\n\
                  until [ -e ../gone ]; do sleep 0.05; done; sleep 0.5\n\
                  printf joined > $FLEET_REPORT\n\
                  [ $PADDLE_TRAINER_ID = 0 ] && { sleep 2; touch ../worked; }\n\
                  until [ -e ../worked ]; do sleep 0.05; done; printf finished > $FLEET_REPORT";
    let line = |rest: &str| format!("--nnodes 2 --worker_num 1 --leave_timeout 1 {rest} job.py");
    let first = line("--master 127.0.0.1:0 --host 127.0.0.1");
    // The files that the processes leave for each other.
    drop(Place::new("server_again", ""));
    let first = Machine::start("server_again/a", script, &first, TOKEN);
    let second = line(&format!("--master {} --host 127.0.0.2 --server_num 1", first.master()));
    let second = Machine::start("server_again/b", script, &second, TOKEN);
    second.check(0, &["server 0 is started again (1 of 3)"]);
    first.check(0, &[]);
}

/// The servers have finished on the other machine; this launcher learns it from the leader.
#[test]
fn a_worker_is_not_left_over_on_a_machine_without_servers() {
    let script = "if [ $TRAINING_ROLE = PSERVER ]; then printf serving > $FLEET_REPORT\n\
                  until [ -e served ]; do sleep 0.05; done\n\
                  printf finished > $FLEET_REPORT; exit 0; fi\n\
                  printf joined > $FLEET_REPORT; [ $PADDLE_TRAINER_ID = 1 ] && sleep 600\n\
                  touch served; printf finished > $FLEET_REPORT";
    let line = |rest: &str| format!("--nnodes 2 --worker_num 1 --leave_timeout 1 {rest} job.py");
    let first = line("--master 127.0.0.1:0 --host 127.0.0.1 --server_num 1");
    let first = Machine::start("left_over/a", script, &first, TOKEN);
    let second = line(&format!("--master {} --host 127.0.0.2", first.master()));
    let second = Machine::start("left_over/b", script, &second, TOKEN);
    let why = "was left over for 1 s when its job was done";
    second.check(124, &["error: worker 1 on 127.0.0.2 (pid ", why]);
    first.check(124, &["worker 1 on 127.0.0.2 (pid ", why]);
}
