//! Searches over the fields of a job.

use super::*;

const TUNE: &str = "[train]\nbatch = 64\nepochs = 3\n[model]\nkind = \"mlp\"\nhidden = [16]\n\
    [tune]\n\
    \"train.optimizer.rate\" = { log = [1e-6, 3e-2] }\n\"model.dim\" = { choice = [4, 8] }\n\
    \"train.batch\" = { choice = [32, 64] }\n";

fn job(name: &str) -> Place {
    let place = binary_job(name, TUNE);
    let text = place.read("job.toml").replace(", dim = 4", "");
    fs::write(place.0.join("job.toml"), text).unwrap();
    place
}

/// Returns results without the times: number, state, steps, best step, value, fields.
fn results(place: &Place, name: &str) -> Vec<Vec<String>> {
    let text = place.read(name);
    let mut lines = text.lines();
    let fields = "train.optimizer.rate,model.dim,train.batch,error";
    let head = format!("trial,state,steps,best_step,seconds,auc,{fields}");
    assert_eq!(lines.next(), Some(head.as_str()));
    let row = |line: &str| {
        let mut cells: Vec<String> = line.split(',').map(String::from).collect();
        cells.remove(4);
        cells
    };
    lines.map(row).collect()
}

#[test]
fn a_search_finds_a_good_job() {
    let place = job("tune");
    let said = place.run("fleet tune job:job.toml --trials 9 --seed 3 --threads 2");
    assert!(said.contains("9 trials over 3 fields, in stages of 9, 3, 1"), "{said}");
    let found = results(&place, "results.csv");
    assert_eq!(found.len(), 9);
    let states: Vec<&str> = found.iter().map(|row| row[1].as_str()).collect();
    assert_eq!(states[0], "finished");
    assert!(states[1..].iter().all(|state| *state == "halved"), "{said}");
    // The best one has trained for all epochs, the others for less.
    let steps = |row: &Vec<String>| row[2].parse::<u64>().unwrap();
    assert!(found[1..].iter().all(|row| steps(row) < steps(&found[0])));
    let rate: f64 = found[0][5].parse().unwrap();
    assert!(rate > 1e-3, "{said}");
    assert!(place.measure("auc") > 0.85, "{said}");

    // The best job is a job file, whose training makes the same model again.
    let best = place.read("best.toml");
    assert!(
        best.contains(&format!("rate = {}", found[0][5])) && !best.contains("[tune]"),
        "{best}"
    );
    let said = place.run("fleet job check best.toml");
    assert!(!said.contains("error:"), "{said}");
    assert_eq!(place.read("model/job.toml"), best);
    let scores = place.predict("test.csv");
    assert_eq!(scores.len(), 1000);
    assert!(!place.0.join("model-tune").exists());
    // A plain training ignores the table.
    place.run("fleet job train job.toml --threads 2 --output plain");
}

/// A search that was interrupted resumes: it comes to the same results.
#[test]
fn an_interrupted_search_resumes() {
    let line = "fleet tune job.toml --trials 6 --seed 5 --threads 1";
    let whole = job("tune_whole");
    whole.run(line);
    let killed = job("tune_killed");
    let mut words = line.split_whitespace();
    let mut command = Command::new(Place::binary(words.next().unwrap()));
    let mut child = command
        .current_dir(&killed.0)
        .args(words)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Whenever it is killed after the first results, the outcome is the same.
    let has_results = || {
        let text = fs::read_to_string(killed.0.join("results.csv")).unwrap_or_default();
        text.lines().count() > 2
    };
    let begin = std::time::Instant::now();
    while !has_results() {
        assert!(begin.elapsed().as_secs() < 120, "no results in 120 s");
        assert!(child.try_wait().unwrap().is_none(), "the search ended without results");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let said = killed.fail("fleet tune job.toml --trials 7 --seed 5");
    assert!(said.contains("another search was interrupted"), "{said}");
    let said = killed.run(line);
    assert!(said.contains("resumed with"), "{said}");
    assert_eq!(results(&killed, "results.csv"), results(&whole, "results.csv"));
    assert_eq!(killed.read("best.toml"), whole.read("best.toml"));
    assert_eq!(killed.measure("auc"), whole.measure("auc"));
}

/// Trials that are trained at the same time have the results of those that are not, also after an
/// interruption.
#[test]
fn parallel_trials_have_the_same_results() {
    let line = "fleet tune job.toml --trials 6 --seed 5 --threads 2";
    let (one, three) = (job("tune_one"), job("tune_three"));
    one.run(line);
    let said = three.run(&format!("{line} --parallel 3"));
    assert!(said.contains("in stages of 6, 2; 3 at the same time"), "{said}");
    let stopped = job("tune_stopped");
    let mut words = line.split_whitespace();
    let mut command = Command::new(Place::binary(words.next().unwrap()));
    let command = command.current_dir(&stopped.0).args(words).args(["--parallel", "2"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    // It is asked to stop after the first result.
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("trial ") || !text.ends_with('\n') {
        assert!(std::io::BufRead::read_line(&mut out, &mut text).unwrap() > 0, "{text}");
        text = text.lines().last().map(|line| format!("{line}\n")).unwrap_or_default();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    drop(out);
    child.wait().unwrap();
    if stopped.0.join("model-tune").exists() {
        stopped.run(&format!("{line} --parallel 3"));
    }
    for other in [&three, &stopped] {
        assert_eq!(results(other, "results.csv"), results(&one, "results.csv"));
        assert_eq!(other.read("best.toml"), one.read("best.toml"));
        assert_eq!(other.measure("auc"), one.measure("auc"));
    }
}

/// A trial that fails is a row with its reason, and the others go on.
#[test]
fn a_trial_that_fails_is_a_result() {
    let place = job("tune_fails");
    let text = place.read("job.toml");
    // Features are hashed into tables: one is too large for any memory.
    let text = text.replace(
        "\"model.dim\" = { choice = [4, 8] }",
        "\"columns.user.buckets\" = { choice = [50, 1000000000000] }",
    );
    fs::write(place.0.join("job.toml"), text).unwrap();
    let said = place.run("fleet tune job.toml --trials 6 --seed 5 --threads 2 --parallel 2");
    let rows = place.read("results.csv");
    let failed: Vec<&str> = rows.lines().filter(|row| row.contains(",failed,")).collect();
    assert!(!failed.is_empty() && failed.len() < 6, "{rows}");
    assert!(said.contains("failed: "), "{said}");
    assert!(failed.iter().all(|row| !row.ends_with(',')), "{rows}");
    assert!(rows.lines().nth(1).unwrap().contains(",finished,"), "{rows}");
    assert!(place.measure("auc") > 0.8, "{said}");
}

#[test]
fn searches_that_cannot_be_are_refused() {
    let place = binary_job("tune_refused", SHORT);
    let said = place.fail("fleet tune job.toml");
    assert!(said.contains("the job file has no fields to search"), "{said}");
    let text = place.read("job.toml");
    fs::write(place.0.join("job.toml"), text + "[tune]\n\"model.dims\" = { choice = [1] }\n")
        .unwrap();
    let said = place.fail("fleet tune job.toml");
    assert!(said.contains("tune.\"model.dims\": no field 'dims'; did you mean 'dim'?"), "{said}");
    assert!(said.contains("job.toml:"), "{said}");
}
