//! Job files with real processes: check, training in one process, on two ranks and on servers,
//! reports and predictions.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

#[path = "jobs/keep.rs"]
mod keep;
#[path = "jobs/made.rs"]
mod made;
#[path = "jobs/mmoe.rs"]
mod mmoe;
#[path = "jobs/objects.rs"]
mod objects;
#[path = "jobs/onnx.rs"]
mod onnx;
#[path = "jobs/report.rs"]
mod report;
#[path = "jobs/resume.rs"]
mod resume;
#[path = "jobs/tune.rs"]
mod tune;
#[path = "jobs/weights.rs"]
mod weights;

/// A folder with a job file and generated rows, and variables of the commands.
struct Place(PathBuf, Vec<(String, String)>);

/// Columns of the generated rows: `y` is `yes` with a probability that follows from the others.
const COLUMNS: &str = r#"
y = { role = "label", positive = "yes" }
age = { kind = "number", embed = "piecewise", bins = 8 }
height = { kind = "number", transform = "quantile" }
city = { kind = "category", vocabulary = { min_count = 2 } }
tags = { kind = "categories" }
user = { kind = "category", buckets = 50, dim = 4 }
"#;

impl Place {
    fn new(name: &str, head: &str, rest: &str) -> Place {
        let folder: PathBuf = [env!("CARGO_TARGET_TMPDIR"), "jobs", name].iter().collect();
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("train.csv"), rows(1, 3000)).unwrap();
        fs::write(folder.join("test.csv"), rows(2, 1000)).unwrap();
        let job = format!(
            "version = 1\n[data]\ntrain = \"train.csv\"\ntest = {{ files = [\"test.csv\"] }}\n\
             missing = [\"?\"]\n{head}\n{rest}\n"
        );
        fs::write(folder.join("job.toml"), job).unwrap();
        Place(folder, Vec::new())
    }

    /// Sets variables of the commands.
    fn with(self, variables: &[(String, String)]) -> Place {
        Place(self.0, variables.to_vec())
    }

    fn binary(name: &str) -> &'static str {
        if name == "fleet" { env!("CARGO_BIN_EXE_fleet") } else { env!("CARGO_BIN_EXE_fleetrun") }
    }

    fn output(&self, line: &str) -> Output {
        let mut words = line.split_whitespace();
        let binary = Place::binary(words.next().unwrap());
        let mut command = Command::new(binary);
        let command = command.current_dir(&self.0).args(words).envs(self.1.iter().cloned());
        command.output().expect("the command starts")
    }

    /// Runs a command that succeeds, and returns what it printed.
    fn run(&self, line: &str) -> String {
        let output = self.output(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{line}:\n{out}\n{err}");
        out + &err
    }

    /// Runs a command that fails, and returns its messages.
    fn fail(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(!output.status.success(), "{line} succeeded");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    /// Returns a measure of the report.
    fn measure(&self, key: &str) -> f64 {
        let report = self.read("model/report.json");
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        report["report"]["all"][key].as_f64().unwrap_or_else(|| panic!("no {key} in {report}"))
    }

    /// Predicts the rows of a file, and returns its scores.
    fn predict(&self, data: &str) -> Vec<f32> {
        self.run(&format!("fleet predict model --data {data} --out scores.csv"));
        let scores = self.read("scores.csv");
        let mut lines = scores.lines();
        assert_eq!(lines.next(), Some("score"));
        lines.map(|line| line.parse().unwrap()).collect()
    }
}

/// Returns generated rows as CSV.
fn rows(seed: u64, count: usize) -> String {
    let mut state = seed;
    let mut unit = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let mut text = "age,height,city,tags,user,y,z,kind\n".to_string();
    for _ in 0..count {
        let (age, height) = (20.0 + 60.0 * unit(), 1.5 + 0.5 * unit());
        let (city, tag, user) =
            ((unit() * 10.0) as u32, (unit() * 3.0) as u32, (unit() * 50.0) as u32);
        let logit = (age - 50.0) / 8.0 + if city % 2 == 0 { 1.5 } else { -1.5 };
        let logit = logit + f64::from(tag) - 1.0 + (f64::from(user) - 25.0) / 20.0;
        let y = if unit() < 1.0 / (1.0 + (-logit).exp()) { "yes" } else { "no" };
        let kind = ["a", "b", "c"][((unit() * 0.5 + f64::from(city % 3)) as usize).min(2)];
        let city = if unit() < 0.05 { "?".to_string() } else { format!("city {city}") };
        let z = logit * 3.0 + 100.0;
        let _ = writeln!(text, "{age:.2},{height:.3},{city},t{tag}|x,u{user},{y},{z:.4},{kind}");
    }
    text
}

/// Returns the exact area under the curve.
fn auc(scores: &[f32], labels: &[bool]) -> f64 {
    let (mut wins, mut pairs) = (0.0, 0.0);
    for (a, _) in scores.iter().zip(labels).filter(|(_, label)| **label) {
        for (b, _) in scores.iter().zip(labels).filter(|(_, label)| !**label) {
            wins += if a > b {
                1.0
            } else if a == b {
                0.5
            } else {
                0.0
            };
            pairs += 1.0;
        }
    }
    wins / pairs
}

fn binary_job(name: &str, rest: &str) -> Place {
    Place::new(name, &format!("[columns]{COLUMNS}"), rest)
}

const SHORT: &str = "[train]\nbatch = 64\nepochs = 4\noptimizer = { rate = 0.01 }\n";

#[test]
fn a_job_is_checked_trained_and_predicts() {
    let place = binary_job(
        "whole",
        &format!(
            "[crosses]\ncity_user = [\"city\", \"user\"]\n{SHORT}\
        [evaluation]\nslices = [\"city\"]\n"
        ),
    );
    let said = place.run("fleet job check job.toml");
    assert!(said.contains("job.toml: no problems, 3 k rows of 1 file"), "{said}");
    let said = place.run("fleet job train job.toml --threads 2");
    for part in ["rows to train on", "dcn_v2 with", "AUC", "log-loss", "calibration", "city 3"] {
        assert!(said.contains(part), "'{part}' is not in:\n{said}");
    }
    assert!(place.measure("auc") > 0.85, "{said}");
    assert!(!place.0.join("model/checkpoints").exists());
    // Predictions are those of the report, bit for bit: their exact area is the same.
    let scores = place.predict("test.csv");
    let labels: Vec<bool> =
        rows(2, 1000).lines().skip(1).map(|line| line.contains(",yes,")).collect();
    assert!((auc(&scores, &labels) - place.measure("auc")).abs() < 1e-12);
    // A row has the same score in any batch, and without the columns that are not features.
    let some: Vec<String> = place.read("test.csv").lines().take(8).map(String::from).collect();
    fs::write(place.0.join("some.csv"), some.join("\n")).unwrap();
    assert_eq!(place.predict("some.csv"), scores[..7]);
}

#[test]
fn every_model_learns() {
    for kind in ["mlp", "wide_deep", "deepfm", "dcn_v2"] {
        let columns = COLUMNS.replace(", dim = 4", "");
        let rest = format!("[model]\nkind = \"{kind}\"\ndim = 8\nhidden = [32]\n{SHORT}");
        let place = Place::new(kind, &format!("[columns]{columns}"), &rest);
        place.run("fleet job train job.toml --threads 2");
        assert!(place.measure("auc") > 0.85, "{kind}: {}", place.measure("auc"));
    }
}

/// A label that depends on whether the row's item is in the user's history: pooling cannot see it.
fn histories(seed: u64, count: usize) -> String {
    let mut state = seed;
    let mut below = |count: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % count
    };
    let mut text = "movie,watched,y\n".to_string();
    for _ in 0..count {
        let watched: Vec<u64> = (0..below(5)).map(|_| below(20)).collect();
        let movie = match watched.first() {
            Some(first) if below(2) == 0 => *first,
            _ => below(20),
        };
        let y = u8::from(watched.contains(&movie));
        let watched: Vec<String> = watched.iter().map(|it| format!("m{it}")).collect();
        let _ = writeln!(text, "m{movie},{},{y}", watched.join("|"));
    }
    text
}

#[test]
fn din_compares_an_item_with_a_history() {
    let head = "[columns]\ny = { role = \"label\" }\nmovie = { kind = \"category\" }\n\
        watched = { kind = \"categories\", history_of = \"movie\" }";
    let rest = "[model]\nkind = \"din\"\ndim = 8\nhidden = [16]\n[train]\nbatch = 64\n\
        epochs = 12\noptimizer = { rate = 0.01 }\n[tables]\ninit = 0.3\n";
    let place = Place::new("din", head, rest);
    fs::write(place.0.join("train.csv"), histories(1, 4000)).unwrap();
    fs::write(place.0.join("test.csv"), histories(2, 500)).unwrap();
    for line in ["fleet job train job.toml", "fleetrun --server_num 1 --worker_num 2 job:job.toml"]
    {
        place.run(line);
        assert!(place.measure("auc") > 0.9, "{line}: {}", place.measure("auc"));
        assert_eq!(place.predict("test.csv").len(), 500);
    }
}

/// Models of two sides, and a label whose order is learned.
fn sides_job(name: &str, model: &str) -> Place {
    let columns = COLUMNS
        .replace("buckets = 50, dim = 4", "side = \"user\"")
        .replace("min_count = 2 }", "min_count = 2 }, side = \"item\"");
    let columns = match model {
        "kind = \"mf\"" => columns.replace(", embed = \"piecewise\", bins = 8", ""),
        model if model.contains("two_tower") => columns
            .replace("tags = { ", "tags = { side = \"item\", ")
            .replace("kind = \"number\"", "side = \"user\", kind = \"number\""),
        _ => columns,
    };
    let label = "{ role = \"label\", name = \"z\", at_least = 100, levels = [90, 95, 100, 105] }";
    let columns = columns.replace("{ role = \"label\", positive = \"yes\" }", label);
    let rest = format!("[model]\n{model}\ndim = 8\n{SHORT}");
    Place::new(name, &format!("[columns]{columns}"), &rest)
}

/// Checks the report, and that predictions have its area.
fn check_sides(place: &Place, least: f64) {
    assert!(place.measure("auc") > least, "{}", place.measure("auc"));
    let scores = place.predict("test.csv");
    let labels: Vec<bool> = rows(2, 1000)
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(6).unwrap().parse::<f64>().unwrap() >= 100.0)
        .collect();
    assert!((auc(&scores, &labels) - place.measure("auc")).abs() < 1e-12);
}

const SIDES: [(&str, &str); 3] = [
    ("mf", "kind = \"mf\""),
    ("mf_hidden", "kind = \"mf\"\nhidden = [16]"),
    ("two_tower", "kind = \"two_tower\"\nhidden = [32]"),
];

#[test]
fn sides_have_products() {
    for (name, model) in SIDES {
        let place = sides_job(name, model);
        place.run("fleet job check job.toml");
        place.run("fleet job train job.toml --threads 2");
        check_sides(&place, 0.9);
    }
}

#[test]
fn sides_have_products_on_two_ranks() {
    for (name, model) in SIDES {
        let place = sides_job(&format!("{name}_ranks"), model);
        place.run("fleetrun --nproc_per_node 2 job:job.toml");
        check_sides(&place, 0.9);
    }
}

#[test]
fn sides_have_products_on_servers() {
    for (name, model) in SIDES {
        let place = sides_job(&format!("{name}_servers"), model);
        place.run("fleetrun --server_num 1 --worker_num 2 job:job.toml");
        check_sides(&place, 0.85);
    }
}

/// The columns of a ranking: the rows of a user are a group.
const RANKING: &str = r#"
[columns]
y = { role = "label", positive = "yes" }
age = { kind = "number" }
city = { kind = "category" }
tags = { kind = "categories" }
user = { role = "group" }
[task]
kind = "ranking"
group = "user"
"#;

#[test]
fn rows_of_a_group_are_ranked() {
    for loss in ["pairwise", "listwise"] {
        let head = format!("{RANKING}loss = \"{loss}\"");
        let place = Place::new(loss, &head, &format!("[evaluation]\nat = 5\n{SHORT}"));
        let said = place.run("fleet job train job.toml --threads 2");
        assert!(said.contains("ndcg") && said.contains("MRR"), "{said}");
        assert_eq!(place.measure("rankings"), 50.0);
        assert!(place.measure("ndcg") > 0.9 && place.measure("mrr") > 0.9, "{loss}: {said}");
        assert_eq!(place.predict("test.csv").len(), 1000);
    }
}

#[test]
fn groups_are_ranked_on_servers() {
    for loss in ["pairwise", "listwise"] {
        let head = format!("{RANKING}loss = \"{loss}\"");
        let place = Place::new(&format!("ranking-servers-{loss}"), &head, SHORT);
        place.run("fleetrun --server_num 1 --worker_num 2 job:job.toml");
        assert!(place.measure("ndcg") > 0.85, "{loss}: {}", place.measure("ndcg"));
        assert_eq!(place.measure("rankings"), 50.0);
        assert_eq!(place.predict("test.csv").len(), 1000);
    }
}

#[test]
fn groups_are_ranked_on_two_ranks_and_from_streams() {
    let place = Place::new("ranking-ranks", RANKING, SHORT);
    place.run("fleetrun --nproc_per_node 2 job:job.toml");
    assert!(place.measure("ndcg") > 0.85, "{}", place.measure("ndcg"));
    let job = place.read("job.toml").replace("missing", "memory = \"1KB\"\nmissing");
    fs::write(place.0.join("job.toml"), job).unwrap();
    place.run("fleet job train job.toml --threads 2");
    assert!(place.measure("ndcg") > 0.85, "{}", place.measure("ndcg"));
}

/// Choices of items: a user with number u likes items whose number has the same rest by 5.
fn choices(seed: u64, count: usize) -> String {
    let mut state = seed;
    let mut below = |count: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % count
    };
    let mut text = "user,movie,genre,liked\n".to_string();
    for _ in 0..count {
        let (user, liked) = (below(60), below(10) < 9);
        let rest = if liked { user % 5 } else { below(5) };
        // Early items are more frequent.
        let item = (below(20) * below(20) / 20) * 5 + rest;
        let _ = writeln!(text, "u{user},m {item},g{},{}", item % 5, u8::from(liked));
    }
    text
}

const CHOICES: &str = r#"
[columns]
liked = { role = "label" }
user = { kind = "category", side = "user" }
movie = { kind = "category", side = "item" }
genre = { kind = "category", side = "item" }
[task]
kind = "retrieval"
[model]
kind = "two_tower"
dim = 8
"#;

fn retrieval_job(name: &str, model: &str) -> Place {
    let place = Place::new(name, &format!("{CHOICES}{model}\n"), SHORT);
    fs::write(place.0.join("train.csv"), choices(1, 4000)).unwrap();
    fs::write(place.0.join("test.csv"), choices(2, 300)).unwrap();
    place
}

#[test]
fn items_are_retrieved_and_recommended() {
    for (name, model) in [
        ("retrieval", "hidden = [16]\nsimilarity = \"cosine\"\ntemperature = 0.1"),
        ("retrieval-plain", "hidden = []"),
    ] {
        let place = retrieval_job(name, model);
        place.run("fleet job check job.toml");
        let said = place.run("fleet job train job.toml --threads 2");
        // 20 of 100 items are of the user's genre.
        assert!(place.measure("recall") > 0.4 && place.measure("items") > 90.0, "{said}");
        fs::write(place.0.join("users.csv"), "user\nu7\nu13\n").unwrap();
        let said = place.run("fleet recommend model --users users.csv -k 5 --out best.csv");
        assert!(said.contains("2 users among"), "{said}");
        let best = place.read("best.csv");
        assert!(best.starts_with("user,rank,movie,score\nu7,1,m "), "{best}");
        let items = |text: &str| -> Vec<(String, u32)> {
            let fields = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
            fields.map(|it| (it[0].to_string(), it[2][2..].parse().unwrap())).collect()
        };
        let found = items(&best);
        assert_eq!(found.len(), 10);
        let likes =
            |(user, item): &&(String, u32)| user[1..].parse::<u32>().unwrap() % 5 == item % 5;
        assert!(found.iter().filter(likes).count() >= 8, "{best}");
        // Items that were chosen before are left out.
        let line = "fleet recommend model --users users.csv -k 5 --out rest.csv --exclude best.csv";
        place.run(line);
        let rest = items(&place.read("rest.csv"));
        assert!(rest.len() == 10 && rest.iter().all(|it| !found.contains(it)), "{rest:?}");
    }
}

/// The index of few items finds what comparing all of them does.
#[test]
fn items_are_recommended_by_an_index() {
    let place = retrieval_job("retrieval-index", "hidden = [16]");
    place.run("fleet job train job.toml --threads 2");
    fs::write(place.0.join("users.csv"), "user\nu7\nu13\nu21\n").unwrap();
    let line = "fleet recommend model --users users.csv --exclude train.csv --out";
    assert!(!place.run(&format!("{line} exact.csv")).contains("index"));
    let said = place.run(&format!("{line} index.csv --search index"));
    assert!(said.contains("items by their index"), "{said}");
    assert_eq!(place.read("exact.csv"), place.read("index.csv"));
    assert!(!place.0.join("model/vectors/items.index.safetensors").exists());
    // A file that is no index of these items.
    let vectors = place.0.join("model/vectors");
    fs::copy(vectors.join("items.safetensors"), vectors.join("items.index.safetensors")).unwrap();
    let said = place.fail(&format!("{line} index.csv"));
    assert!(said.contains("of other vectors") && said.contains("--search exact"), "{said}");
    place.run(&format!("{line} index.csv --search exact"));
}

/// The index of many items is saved with the model, and finds almost all of the best items.
#[test]
fn many_items_have_an_index() {
    let place = retrieval_job("retrieval-many", "hidden = []");
    let mut text = "user,movie,genre,liked\n".to_string();
    for at in 0..21_000 {
        let _ = writeln!(text, "u{},m {at},g{},1", at % 300, (at * 7) % 50);
    }
    fs::write(place.0.join("train.csv"), text).unwrap();
    let job = place.read("job.toml").replace("epochs = 4", "epochs = 1");
    let job = job
        .replace("batch = 64", "batch = 256")
        .replace("missing", "validation = { share = 0 }\nmissing");
    fs::write(place.0.join("job.toml"), job).unwrap();
    place.run("fleet job train job.toml --threads 2");
    let users: String = (0..100).map(|at| format!("u{at}\n")).collect();
    fs::write(place.0.join("users.csv"), format!("user\n{users}")).unwrap();
    let line = "fleet recommend model --users users.csv --out";
    assert!(place.run(&format!("{line} index.csv")).contains("21000 items by their index"));
    place.run(&format!("{line} exact.csv --search exact"));
    let pairs = |name: &str| -> std::collections::HashSet<String> {
        let text = place.read(name);
        let pair = |line: &str| {
            let fields: Vec<&str> = line.split(',').collect();
            format!("{},{},{}", fields[0], fields[2], fields[3])
        };
        text.lines().skip(1).map(pair).collect()
    };
    let (exact, found) = (pairs("exact.csv"), pairs("index.csv"));
    let recall = exact.intersection(&found).count() as f64 / exact.len() as f64;
    println!("recall@10 of 21000 items: {recall:.4}");
    assert!(exact.len() == 1000 && recall > 0.95, "{recall}");
}

/// Drawn items make as good a model as those of the batch, in one process, on ranks and on servers.
#[test]
fn items_are_retrieved_by_drawn_negatives() {
    for (name, model, line) in [
        ("drawn", "hidden = [16]\nnegatives = 40", "fleet job train job.toml --threads 2"),
        (
            "drawn-all",
            "hidden = []\nnegatives = 60\nnegatives_power = 0",
            "fleet job train job.toml",
        ),
        (
            "drawn-ranks",
            "hidden = [16]\nnegatives = 40",
            "fleetrun --nproc_per_node 2 job:job.toml",
        ),
        (
            "drawn-servers",
            "hidden = [16]\nnegatives = 40",
            "fleetrun --server_num 1 --worker_num 2 job:job.toml",
        ),
    ] {
        let place = retrieval_job(name, model);
        place.run("fleet job check job.toml");
        let said = place.run(line);
        assert!(place.measure("recall") > 0.35, "{name}: {said}");
        // The saved model has no drawn items: each row has a score.
        assert_eq!(place.predict("test.csv").len(), 300);
    }
    // Rows have weights; those of drawn items have none.
    let place = retrieval_job("drawn-weights", "hidden = [16]\nnegatives = 40");
    for name in ["train.csv", "test.csv"] {
        let text = place.read(name);
        let line = |(at, line): (usize, &str)| match at {
            0 => format!("{line},w\n"),
            at => format!("{line},{}\n", at % 3),
        };
        let text: String = text.lines().enumerate().map(line).collect();
        fs::write(place.0.join(name), text).unwrap();
    }
    let job = place.read("job.toml").replace("user =", "w = { role = \"weight\" }\nuser =");
    fs::write(place.0.join("job.toml"), job).unwrap();
    place.run("fleet job train job.toml --threads 2");
    assert!(place.measure("recall") > 0.35, "{}", place.measure("recall"));
    let place = retrieval_job("drawn-streamed", "hidden = [16]\nnegatives = 40");
    let job = place.read("job.toml").replace("missing", "memory = \"1KB\"\nmissing");
    fs::write(place.0.join("job.toml"), job).unwrap();
    place.run("fleet job train job.toml --threads 2");
    assert!(place.measure("recall") > 0.35, "{}", place.measure("recall"));
}

#[test]
fn items_are_retrieved_by_a_model_of_servers() {
    let place = retrieval_job("retrieval-servers", "hidden = [16]");
    place.run("fleetrun --server_num 1 --worker_num 2 job:job.toml");
    assert!(place.measure("recall") > 0.3, "{}", place.measure("recall"));
    fs::write(place.0.join("users.csv"), "user\nu7\nu13\n").unwrap();
    place.run("fleet recommend model --users users.csv -k 3 --out best.csv");
    assert_eq!(place.read("best.csv").lines().count(), 7);
    let said = place.fail("fleet recommend . --users users.csv --out best.csv");
    assert!(said.contains("not a model folder"), "{said}");
}

#[test]
fn numbers_are_encoded_in_every_way() {
    let head = "[columns]\nz = { role = \"label\", at_least = 100 }\n\
        age = { kind = \"number\", embed = \"periodic\", frequencies = 8 }\n\
        height = { kind = \"number\", transform = \"log\" }\n\
        city = { kind = \"category\" }\ntags = { kind = \"categories\", pooling = \"sum\" }\n\
        user = { kind = \"category\" }\n[task]\nkind = \"regression\"\n";
    let place = Place::new("regression", head, SHORT);
    let said = place.run("fleet job train job.toml --threads 2");
    assert!(place.measure("r2") > 0.8 && place.measure("auc") > 0.95, "{said}");
    let scores = place.predict("test.csv");
    let mean = scores.iter().sum::<f32>() / scores.len() as f32;
    assert!((90.0..110.0).contains(&mean), "{mean}");
}

#[test]
fn classes_have_a_score_each() {
    let head = "[columns]\nkind = { role = \"label\", kind = \"category\", \
        classes = [\"a\", \"b\", \"c\"] }\n\
        city = { kind = \"category\" }\n[task]\nkind = \"multi_class\"\n";
    let place = Place::new("classes", head, SHORT);
    place.run("fleet job train job.toml --threads 2");
    assert!(place.measure("accuracy") > 0.8, "{}", place.measure("accuracy"));
    place.run("fleet predict model --data test.csv --out scores.csv");
    let scores = place.read("scores.csv");
    assert!(scores.starts_with("score_a,score_b,score_c\n"));
    let row: Vec<f32> =
        scores.lines().nth(1).unwrap().split(',').map(|it| it.parse().unwrap()).collect();
    assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
}

#[test]
fn a_job_trains_on_two_ranks() {
    let place = binary_job("ranks", SHORT);
    place.run("fleetrun --nproc_per_node 2 job:job.toml");
    assert!(place.measure("auc") > 0.85, "{}", place.measure("auc"));
}

#[test]
fn a_job_trains_on_servers() {
    let place = binary_job("servers", SHORT);
    place.run("fleetrun --server_num 1 --worker_num 2 job:job.toml");
    assert!(place.measure("auc") > 0.85, "{}", place.measure("auc"));
    let scores = place.predict("test.csv");
    assert_eq!(scores.len(), 1000);
}

/// A job that begins with an earlier model is good after few steps.
#[test]
fn a_warm_start_continues_a_model() {
    let place = binary_job("warm", SHORT);
    place.run("fleet job train job.toml --threads 2");
    let trained = place.measure("auc");
    let job = place.read("job.toml");
    let job = job.replace("[train]", "[train]\nwarm_start = \"model\"").replace("0.01", "0.0001");
    fs::write(place.0.join("next.toml"), job.replace("epochs = 4", "epochs = 1")).unwrap();
    place.run("fleet job train next.toml --threads 2 --output next");
    fs::copy(place.0.join("next/report.json"), place.0.join("model/report.json")).unwrap();
    assert!((place.measure("auc") - trained).abs() < 0.01, "{trained}, {}", place.measure("auc"));
    // Another vocabulary is not a problem: that of the earlier model stays. Other features are.
    let job = place
        .read("next.toml")
        .replace("height =", "same = { kind = \"number\", name = \"z\" }\nheight =");
    fs::write(place.0.join("next.toml"), job).unwrap();
    let said = place.fail("fleet job train next.toml");
    assert!(said.contains("the model of train.warm_start has other features"), "{said}");
}

/// `fleet job init` writes a job that has no problems.
#[test]
fn init_writes_a_job() {
    let place = binary_job("init", "");
    let said = place.run("fleet job init --data train.csv --label y --out new.toml");
    assert!(
        said.contains("new.toml: written for 8 columns of 3 k rows; the label is 'y'"),
        "{said}"
    );
    let text = place.read("new.toml");
    assert!(text.contains("y = { role = \"label\", positive = \"yes\" }"), "{text}");
    assert!(text.contains("missing = [\"?\"]"), "{text}");
    let said = place.run("fleet job check new.toml");
    assert!(!said.contains("error:"), "{said}");
    let said = place.fail("fleet job init --data train.csv --out new.toml");
    assert!(said.contains("exists already"), "{said}");
    fs::write(place.0.join("alone.csv"), "y,same\n1,5\n0,5\n").unwrap();
    let said = place.fail("fleet job init --data alone.csv --out alone.toml");
    assert!(said.contains("no column can be a feature beside the label 'y'"), "{said}");
    assert!(said.contains("got 'same' (the same value in all rows)"), "{said}");
    fs::write(place.0.join("alone.csv"), "y,same\n1,5\n1,6\n1,7\n").unwrap();
    let said = place.fail("fleet job init --data alone.csv --out alone.toml");
    assert!(said.contains("got y (the same value in all rows), same"), "{said}");
    fs::write(place.0.join("alone.csv"), "y,same\n").unwrap();
    let said = place.fail("fleet job init --data alone.csv --out alone.toml");
    assert!(said.contains("the files have no rows"), "{said}");
    assert!(!place.0.join("alone.toml").exists());
}

#[test]
fn streamed_rows_train_as_well() {
    let place = binary_job("streamed", SHORT);
    let job = place.read("job.toml").replace("missing", "memory = \"1KB\"\nwindow = 500\nmissing");
    fs::write(place.0.join("job.toml"), job).unwrap();
    place.run("fleet job train job.toml --threads 2");
    assert!(place.measure("auc") > 0.85, "{}", place.measure("auc"));
}

#[test]
fn wrong_jobs_and_data_are_refused() {
    let place = binary_job("refused", SHORT);
    let change = |from: &str, to: &str| {
        let text = place.read("job.toml");
        assert!(text.contains(from), "{from}");
        fs::write(place.0.join("changed.toml"), text.replace(from, to)).unwrap();
        place.fail("fleet job check changed.toml") + &place.fail("fleet job train changed.toml")
    };
    let said = change("\"yes\"", "\"maybe\"");
    assert!(said.contains("changed.toml:7:1: error: columns.y: the label is the same"), "{said}");
    let said = change("age = {", "agee = {");
    assert!(said.contains("agee") && said.contains("did you mean 'age'"), "{said}");
    let said = change("train.csv", "trains-*.csv");
    assert!(said.contains("no file matches the pattern"), "{said}");
    let said = place.fail("fleet predict . --data test.csv --out scores.csv");
    assert!(said.contains("not a model folder"), "{said}");
    let said = place.fail("fleetrun job:no.toml");
    assert!(said.contains("cannot open the job file 'no.toml'"), "{said}");
}

/// A feature that has the label in it, and a constant one, are warnings.
#[test]
fn leaks_are_found() {
    let place = binary_job("leaks", SHORT);
    let text = place.read("train.csv");
    let lines = text.lines().enumerate().map(|(at, line)| match at {
        0 => format!("{line},after,same"),
        _ => format!("{line},{},7", if line.contains(",yes,") { "paid" } else { "not" }),
    });
    let text = lines.collect::<Vec<_>>().join("\n") + "\n";
    fs::write(place.0.join("train.csv"), text).unwrap();
    let job = place
        .read("job.toml")
        .replace("user =", "after = { kind = \"category\" }\nsame = { kind = \"number\" }\nuser =");
    fs::write(place.0.join("job.toml"), job).unwrap();
    let said = place.run("fleet job check job.toml");
    assert!(
        said.contains("columns.after: the feature alone predicts the label (AUC 1.0000)"),
        "{said}"
    );
    assert!(said.contains("columns.same: all values are the same"), "{said}");
}
