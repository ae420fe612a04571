//! Output of `fleet rewrite`, compared with `golden/rewrite-*.out` (`FLEET_BLESS=1` rewrites these
//! files).

use std::path::Path;
use std::process::Command;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

fn check(name: &str, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
    let output = command.args(args).current_dir(GOLDEN).output().expect("the tool can be started");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let mut found = format!("$ fleet {}\n{}", args.join(" "), text(&output.stdout));
    if !output.stderr.is_empty() {
        found += &format!("--- stderr\n{}", text(&output.stderr));
    }
    found += &format!("--- exit code {}\n", output.status.code().expect("no signal"));
    let path = Path::new(GOLDEN).join(format!("rewrite-{name}.out"));
    if std::env::var_os("FLEET_BLESS").is_some() {
        std::fs::write(&path, found).expect("the tests' folder can be written");
        return;
    }
    assert_eq!(found, std::fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
}

#[test]
fn programs() {
    let ranks = ["--ranks", "8", "--rank", "3"];
    let with = |more: &[&'static str]| [&["rewrite", "net.fleet"], &ranks[..], more].concat();
    check("plain", &with(&[]));
    check("diff", &with(&["--strategy", "merged.prototxt", "--diff", "--optimizer", "sgd,lr=0.5"]));
    check("diff-one-thread", &with(&["--diff", "--threads", "1"]));
    check("diff-servers", &with(&["--strategy", "ps.prototxt", "--servers", "2", "--diff"]));
    check("servers-program", &with(&["--strategy", "ps.prototxt", "--servers", "2"]));
    check("cost", &with(&["--strategy", "merged.prototxt", "--cost"]));
    check("explain", &with(&["--strategy", "merged.prototxt", "--explain"]));
    check("explain-refused", &with(&["--strategy", "both.prototxt", "--explain"]));
}

/// The whole text of sharded programs, whatever the number of ranks.
#[test]
fn sharded_programs() {
    for stage in ["stage-1", "stage-3", "unset"] {
        for ranks in ["2", "8", "1024"] {
            let file = format!("sharding-{stage}.prototxt");
            let args = ["rewrite", "net.fleet", "--ranks", ranks, "--rank", "1", "--strategy"];
            check(&format!("sharding-{stage}-{ranks}"), &[&args[..], &[&file]].concat());
        }
        let file = format!("sharding-{stage}.prototxt");
        let args = ["rewrite", "net.fleet", "--ranks", "8", "--cost", "--strategy", &file];
        check(&format!("sharding-{stage}-cost"), &args);
    }
}

/// A stage of a pipeline whose state two ranks divide.
#[test]
fn programs_of_sharded_stages() {
    for ranks in ["4", "1024"] {
        let args = ["rewrite", "net.fleet", "--ranks", ranks, "--rank", "1", "--strategy"];
        let args = [&args[..], &["sharded-stages.prototxt"]].concat();
        check(&format!("sharded-stages-{ranks}"), &args);
        check(&format!("sharded-stages-{ranks}-cost"), &[&args[..], &["--cost"]].concat());
    }
}

#[test]
fn resnet_50_at_1024_ranks() {
    let args = ["rewrite", "model:resnet50", "--ranks", "1024", "--ranks-per-node", "8", "--cost"];
    check("resnet50", &args);
}

/// Layouts of a training, compared for given speeds.
#[test]
fn layouts_are_planned() {
    let speeds = ["--flops", "100Gflop/s", "--memory-bandwidth", "10GB/s"];
    let plan = |program: &'static str, more: &[&'static str]| {
        [&["plan", program], &speeds[..], more].concat()
    };
    check("plan", &plan("net.fleet", &["--ranks", "4", "--bandwidth", "1GB/s", "--batch", "64"]));
    let far = ["--ranks", "4", "--ranks-per-node", "2", "--memory", "4MiB", "--batch", "256"];
    check("plan-memory", &plan("model:lenet", &far));
    let tight = ["--ranks", "2", "--memory", "1kB", "--bandwidth", "1GB/s"];
    check("plan-nothing-fits", &plan("model:lenet", &tight));
    check("plan-units", &plan("net.fleet", &["--ranks", "4", "--bandwidth", "10"]));
    check("plan-layout", &plan("net.fleet", &["--ranks", "2", "--strategy", "auto.prototxt"]));
}

/// The strategy of the best layout is one that a job takes.
#[test]
fn the_planned_strategy_can_be_used() {
    let file = std::env::temp_dir().join(format!("fleet-plan-{}.toml", std::process::id()));
    let path = file.to_str().expect("a name in UTF-8");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
        let output = command.args(args).output().expect("the tool can be started");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{text}");
        text
    };
    let speeds = ["--flops", "1Gflop/s", "--memory-bandwidth", "1GB/s", "--bandwidth", "1GB/s"];
    let job = ["plan", "model:lenet", "--ranks", "2", "--memory", "2MiB", "-o", path];
    let planned = run(&[&job[..], &speeds].concat());
    assert!(planned.contains("best: pp 2, "), "{planned}");
    let rewritten = run(&["rewrite", "model:lenet", "--ranks", "2", "--cost", "--strategy", path]);
    assert!(rewritten.contains("chain: Pipeline -> momentum"), "{rewritten}");
    std::fs::remove_file(&file).expect("the strategy was written");
}

/// `auto` and unsupported strategies, explained for a cluster.
#[test]
fn strategies_are_explained() {
    let explain = |file: &'static str, more: &[&'static str]| {
        [&["strategy", "explain", file, "--ranks", "16", "--ranks-per-node", "8"], more].concat()
    };
    let resnet = ["--program", "model:resnet50"];
    check("auto", &explain("auto.prototxt", &resnet));
    let given = ["--gflops", "2000", "--memory", "200", "--bandwidth", "0.2", "--batch", "64"];
    check("auto-given", &explain("auto.prototxt", &[&resnet[..], &given].concat()));
    check("not-there", &explain("sharded.prototxt", &["--program", "net.fleet"]));
    check("all", &explain("all.prototxt", &["--program", "net.fleet"]));
    check("auto-fixed", &explain("auto.prototxt", &["--program", "fixed.fleet", "--batch", "64"]));
    let servers = ["--program", "model:wide_deep", "--servers", "2"];
    check("servers", &explain("ps.prototxt", &servers));
    check("no-servers", &explain("ps.prototxt", &servers[..2]));
    check(
        "servers-refused",
        &explain("all.prototxt", &["--program", "net.fleet", "--servers", "2"]),
    );
    check(
        "no-bandwidth",
        &explain("auto.prototxt", &["--program", "net.fleet", "--bandwidth", "0"]),
    );
}

/// `fleet strategy check` with a program prints the report of the job, and finds errors that only a
/// rewrite shows.
#[test]
fn strategies_are_checked_for_a_program() {
    let check_with = |name: &str, file: &str, more: &[&str]| {
        let program = ["--program", "net.fleet", "--ranks", "4"];
        check(name, &[&["strategy", "check", file], &program[..], more].concat());
    };
    check_with("check", "all.prototxt", &[]);
    check_with("check-dropped", "all.prototxt", &["--optimizer", "adam"]);
    check_with("check-refused", "all.prototxt", &["--servers", "1"]);
    check_with("check-servers", "sums.prototxt", &["--servers", "1"]);
    check_with("check-geo", "geo.prototxt", &["--servers", "1"]);
    check("check-open", &["strategy", "check", "all.prototxt", "merged.prototxt"]);
    check("check-no-program", &["strategy", "check", "all.prototxt", "--ranks", "4"]);
}

#[test]
fn mistakes() {
    check("rank", &["rewrite", "net.fleet", "--ranks", "2", "--rank", "2"]);
    check("model", &["rewrite", "model:resnet51"]);
    check("optimizer", &["rewrite", "net.fleet", "--optimizer", "momentun"]);
    check("number", &["rewrite", "net.fleet", "--optimizer", "sgd,mu=0.9"]);
    check("loss", &["rewrite", "net.fleet", "--loss", "los"]);
    check("no-loss", &["rewrite", "net.fleet", "--loss", "cost", "--strategy", "job.prototxt"]);
    check("servers-cost", &["rewrite", "net.fleet", "--servers", "2", "--cost"]);
    check("negative", &["rewrite", "net.fleet", "--rank", "-1"]);
    check("refused", &["rewrite", "net.fleet", "--strategy", "both.prototxt", "--ranks", "2"]);
    check("twice", &["rewrite", "linear.fleet", "--ranks", "2"]);
}
