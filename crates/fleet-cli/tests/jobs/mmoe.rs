//! Several labels in one job, by a mixture of experts.

use super::*;

/// Labels that share `age` and `city`: `click` falls with age, `buy` rises with it.
const LABELS: &str = r#"
[columns]
click = { role = "label", positive = "yes" }
buy = { role = "label", name = "amount", at_least = 10 }
age = { kind = "number" }
city = { kind = "category" }
tags = { kind = "categories" }
[model]
kind = "mmoe"
dim = 8
hidden = [16]
tower = [8]
experts = 3
"#;

fn labelled(seed: u64, count: usize) -> String {
    let mut state = seed;
    let mut unit = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let mut text = "age,city,tags,click,amount\n".to_string();
    for _ in 0..count {
        let (age, city, tag) =
            (20.0 + 60.0 * unit(), (unit() * 10.0) as u32, (unit() * 3.0) as u32);
        let town = if city % 2 == 0 { 1.0 } else { -1.0 };
        let click = (50.0 - age) / 8.0 + town;
        let buy = (age - 55.0) / 8.0 + 2.0 * town;
        let mut is = |logit: f64| unit() < 1.0 / (1.0 + (-logit).exp());
        let click = if is(click) { "yes" } else { "no" };
        let amount = if is(buy) { 25 } else { 3 };
        let _ = writeln!(text, "{age:.2},city {city},t{tag}|x,{click},{amount}");
    }
    text
}

pub fn mmoe_job(name: &str, rest: &str) -> Place {
    let place = Place::new(name, LABELS, rest);
    fs::write(place.0.join("train.csv"), labelled(1, 3000)).unwrap();
    fs::write(place.0.join("test.csv"), labelled(2, 1000)).unwrap();
    place
}

/// Checks that the model has learned both labels, and that scores are those of the report.
fn check_learned(place: &Place) {
    place.run("fleet predict model --data test.csv --out scores.csv");
    let scores = place.read("scores.csv");
    let mut lines = scores.lines();
    assert_eq!(lines.next(), Some("score_click,score_buy"));
    let scores: Vec<Vec<f32>> =
        lines.map(|line| line.split(',').map(|it| it.parse().unwrap()).collect()).collect();
    let text = labelled(2, 1000);
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|it| it.split(',').collect()).collect();
    let areas = [("click", 3, "yes"), ("buy", 4, "25")].iter().enumerate().map(|(at, it)| {
        let (label, column, positive) = it;
        let labels: Vec<bool> = rows.iter().map(|row| row[*column] == *positive).collect();
        let scores: Vec<f32> = scores.iter().map(|row| row[at]).collect();
        let area = auc(&scores, &labels);
        assert!(area > 0.85, "{label}: {area}");
        let reported = place.measure(&format!("auc.{label}"));
        assert!((area - reported).abs() < 1e-12, "{label}: {area}, {reported}");
        area
    });
    let mean = areas.sum::<f64>() / 2.0;
    assert!((mean - place.measure("auc")).abs() < 1e-12);
}

#[test]
fn two_labels_are_learned() {
    let rest = format!("{SHORT}[evaluation]\nslices = [\"city\"]\n");
    let place = mmoe_job("mmoe", &rest);
    let said = place.run("fleet job check job.toml");
    assert!(said.contains("no problems"), "{said}");
    let said = place.run("fleet job train job.toml --threads 2");
    for part in ["mmoe with", "auc.click", "auc.buy", "label ", "By city", "column "] {
        let is_there = said.contains(part) || place.read("model/report.html").contains(part);
        assert!(is_there, "'{part}' is not in:\n{said}");
    }
    check_learned(&place);
    let report: serde_json::Value = serde_json::from_str(&place.read("model/report.json")).unwrap();
    assert_eq!(report["label"], "click, buy");
    let table = |key: &str| {
        let tables = report["report"]["tables"].as_array().unwrap();
        tables
            .iter()
            .find(|table| table["key"] == key)
            .unwrap_or_else(|| panic!("no {key}"))
            .clone()
    };
    assert_eq!(table("labels")["rows"][1][0], "buy");
    assert_eq!(table("deciles.click")["rows"].as_array().unwrap().len(), 10);
    // Age and city matter to both labels.
    assert!(table("importance")["rows"][1][1].as_f64().unwrap() > 0.02);
    let scalars = place.read("model/scalars.csv");
    assert!(scalars.lines().next().unwrap().contains("valid/auc.click,valid/auc.buy,valid/auc"));
    // The report on other rows is the same.
    let said = place.run("fleet job report model --data test.csv");
    let auc = format!("{:.4}", place.measure("auc.buy"));
    assert!(said.contains(&auc), "{auc}: {said}");
    let said = place.run("fleet export --onnx model/program model.onnx");
    assert!(place.0.join("model.onnx").is_file(), "{said}");
}

/// The best of the validations is kept by the mean of the areas, and training stops early.
#[test]
fn the_mean_of_the_areas_decides() {
    let rest = "[train]\nbatch = 64\nepochs = 60\nearly_stop = 2\noptimizer = { rate = 0.05 }\n";
    let place = mmoe_job("mmoe_stop", rest);
    place.run("fleet job train job.toml --threads 2");
    let scalars = place.read("model/scalars.csv");
    let head: Vec<&str> = scalars.lines().next().unwrap().split(',').collect();
    let at = |name: &str| head.iter().position(|it| *it == name).unwrap();
    let areas: Vec<(u64, [f64; 3])> = scalars
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect::<Vec<_>>())
        .filter(|fields| !fields[at("valid/auc")].is_empty())
        .map(|fields| {
            let value = |name: &str| fields[at(name)].parse::<f64>().unwrap();
            let names = ["valid/auc.click", "valid/auc.buy", "valid/auc"];
            (fields[0].parse().unwrap(), names.map(value))
        })
        .collect();
    let best = areas.iter().max_by(|a, b| a.1[2].total_cmp(&b.1[2])).unwrap();
    let report: serde_json::Value = serde_json::from_str(&place.read("model/report.json")).unwrap();
    assert_eq!(report["best_step"].as_u64(), Some(best.0));
    for (_, [click, buy, mean]) in &areas {
        assert!((f64::midpoint(*click, *buy) - mean).abs() < 1e-9);
    }
    // The best, and two after it that were not better.
    assert_eq!(areas.last().unwrap().0, areas[areas.len() - 3].0 + 2 * areas[0].0);
    assert_eq!(areas[areas.len() - 3].0, best.0);
    assert!(areas.len() < 60);
}

#[test]
fn two_labels_are_learned_on_ranks_and_servers() {
    let place = mmoe_job("mmoe_ranks", SHORT);
    for line in [
        "fleetrun --nproc_per_node 2 job:job.toml",
        "fleetrun --server_num 1 --worker_num 2 job:job.toml",
    ] {
        place.run(line);
        check_learned(&place);
    }
    // A save of servers is exported with its tables.
    place.run("fleet export --onnx model/program model.onnx");
}

#[test]
fn a_warm_start_needs_the_same_labels() {
    let place = mmoe_job("mmoe_warm", SHORT);
    place.run("fleet job train job.toml --threads 2");
    let trained = place.measure("auc");
    let job = place.read("job.toml");
    let job = job.replace("[train]", "[train]\nwarm_start = \"model\"").replace("0.01", "0.0001");
    let job = job.replace("epochs = 4", "epochs = 1");
    fs::write(place.0.join("next.toml"), &job).unwrap();
    place.run("fleet job train next.toml --threads 2 --output next");
    fs::copy(place.0.join("next/report.json"), place.0.join("model/report.json")).unwrap();
    assert!((place.measure("auc") - trained).abs() < 0.01, "{trained}, {}", place.measure("auc"));
    // In another order, each label would begin with the tower of the other.
    let buy = "buy = { role = \"label\", name = \"amount\", at_least = 10 }\n";
    let job = job.replace(buy, "").replace("[columns]\n", &format!("[columns]\n{buy}"));
    fs::write(place.0.join("next.toml"), job).unwrap();
    let said = place.fail("fleet job train next.toml");
    assert!(said.contains("the model of train.warm_start has other labels"), "{said}");
    assert!(said.contains("expected: buy, click") || said.contains("buy, click"), "{said}");
}

/// A row needs all labels; the error names the one that is missing.
#[test]
fn labels_that_cannot_be_used_are_named() {
    let place = mmoe_job("mmoe_bad", SHORT);
    let text = place.read("train.csv");
    let (head, rest) = text.split_once('\n').unwrap();
    fs::write(place.0.join("train.csv"), format!("{head}\n30,city 1,t1,yes,\n{rest}")).unwrap();
    let said = place.fail("fleet job train job.toml");
    assert!(said.contains("the label is missing") && said.contains("columns.buy"), "{said}");
    assert!(said.contains("train.csv, row 1"), "{said}");
    fs::write(place.0.join("train.csv"), text.replace(",25\n", ",3\n")).unwrap();
    let said = place.fail("fleet job check job.toml");
    assert!(said.contains("columns.buy: the label is the same in all training rows"), "{said}");
    // A feature that has one of the labels in it.
    let lines = text.lines().map(|line| match line.ends_with(",25") {
        true => format!("{line},paid"),
        false => format!("{line},{}", if line.ends_with("amount") { "after" } else { "not" }),
    });
    fs::write(place.0.join("train.csv"), lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
    let job = place.read("job.toml").replace("city =", "after = { kind = \"category\" }\ncity =");
    fs::write(place.0.join("job.toml"), job).unwrap();
    let said = place.run("fleet job check job.toml");
    assert!(said.contains("the feature alone predicts the label 'buy' (AUC 1.0000)"), "{said}");
}
