//! Reports: their parts, their forms, and that they do not depend on who trained the model.

use super::*;
use serde_json::Value;

fn json(place: &Place, name: &str) -> Value {
    serde_json::from_str(&place.read(name)).unwrap()
}

/// Returns a table or a chart of a report.
fn part<'r>(report: &'r Value, list: &str, key: &str) -> &'r Value {
    let parts = report["report"][list].as_array().unwrap();
    let found = parts.iter().find(|part| part["key"] == key);
    found.unwrap_or_else(|| panic!("no {key} in {list}"))
}

const SLICES: &str = "[evaluation]\nslices = [\"city\"]\n";

#[test]
fn a_report_has_all_parts() {
    let place = binary_job("report", &format!("{SHORT}{SLICES}"));
    let said = place.run("fleet job train job.toml --threads 2");
    for part in ["decile", "lift", "importance", "report      model/report.html"] {
        assert!(said.contains(part), "'{part}' is not in:\n{said}");
    }
    let report = json(&place, "model/report.json");
    for key in ["roc", "precision_recall", "calibration", "gain", "training.loss", "training.auc"] {
        let points = part(&report, "charts", key)["series"][0]["points"].as_array().unwrap().len();
        assert!(points >= 2, "{key} has {points} points");
    }
    let deciles = part(&report, "tables", "deciles")["rows"].as_array().unwrap().clone();
    assert_eq!(deciles.len(), 10);
    let rows: u64 = deciles.iter().map(|row| row[1].as_u64().unwrap()).sum();
    assert_eq!(rows, 1000);
    assert_eq!(deciles[9][5], 1.0);
    assert!(deciles[0][4].as_f64().unwrap() > 1.5, "{:?}", deciles[0]);
    let city = part(&report, "tables", "slices.city");
    assert!(city["rows"].as_array().unwrap().len() >= 10);
    // Age decides most; height and the other columns do not.
    let importance = part(&report, "tables", "importance")["rows"].as_array().unwrap().clone();
    assert_eq!(importance[0][0], "age");
    assert!(importance[0][1].as_f64().unwrap() > 0.05);
    let height = importance.iter().find(|row| row[0] == "height").unwrap();
    assert!(height[1].as_f64().unwrap().abs() < 0.02, "{height}");

    let page = place.read("model/report.html");
    for part in ["<svg", "prefers-color-scheme: dark", "ROC curve", "By city", "age"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<script") && !page.contains("http"));
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

/// The report is the same when it is printed again, and when the same rows are measured again.
#[test]
fn a_report_is_shown_and_measured_again() {
    let place = binary_job("report_again", &format!("{SHORT}{SLICES}"));
    let said = place.run("fleet job train job.toml --threads 2");
    let again = place.run("fleet job report model");
    assert!(said.contains(again.trim_end()), "{again}\nis not in:\n{said}");
    place.run("fleet job report model --out again.html");
    assert_eq!(place.read("again.html"), place.read("model/report.html"));
    place.run("fleet job report model --data test.csv --out again.json");
    let (mut first, mut second) = (json(&place, "model/report.json"), json(&place, "again.json"));
    assert_eq!(second["report"]["part"], "data");
    first["report"]["part"] = "data".into();
    for report in [&mut first, &mut second] {
        // The curves are in one list, in the order in which they were measured.
        let charts = report["report"]["charts"].as_array_mut().unwrap();
        charts.sort_by_key(|chart| chart["key"].to_string());
    }
    assert_eq!(first, second);
    let said = place.fail("fleet job report model --out report.txt");
    assert!(said.contains("expected a file that ends in .html or .json"), "{said}");
    let said = place.fail("fleet job report .");
    assert!(said.contains("no report"), "{said}");
}

/// Ranks and servers report what one process measures with the same model.
#[test]
fn the_report_of_ranks_is_that_of_one_process() {
    for (name, launch) in [
        ("report_ranks", "--nproc_per_node 2"),
        ("report_servers", "--server_num 1 --worker_num 2"),
    ] {
        let place = binary_job(name, &format!("{SHORT}{SLICES}"));
        place.run(&format!("fleetrun {launch} job:job.toml"));
        place.run("fleet job report model --data test.csv --out again.json");
        let (first, second) = (json(&place, "model/report.json"), json(&place, "again.json"));
        assert_eq!(first["report"]["all"], second["report"]["all"], "{name}");
        assert_eq!(first["report"]["tables"], second["report"]["tables"], "{name}");
    }
}

#[test]
fn other_tasks_have_tables_of_their_own() {
    let head = "[columns]\nkind = { role = \"label\", kind = \"category\", \
        classes = [\"a\", \"b\", \"c\"] }\n\
        city = { kind = \"category\" }\n[task]\nkind = \"multi_class\"\n";
    let place = Place::new("report_classes", head, SHORT);
    let said = place.run("fleet job train job.toml --threads 2");
    assert!(said.contains("recall") && said.contains("importance"), "{said}");
    let report = json(&place, "model/report.json");
    let matrix = part(&report, "tables", "confusion")["rows"].as_array().unwrap().clone();
    let count = |row: &Value| (1..4).map(|at| row[at].as_u64().unwrap()).sum::<u64>();
    assert_eq!(matrix.iter().map(count).sum::<u64>(), 1000);
    let right: u64 = (0..3).map(|at| matrix[at][at + 1].as_u64().unwrap()).sum();
    assert!((right as f64 / 1000.0 - place.measure("accuracy")).abs() < 1e-9);

    let head = "[columns]\nz = { role = \"label\" }\nage = { kind = \"number\" }\n\
        city = { kind = \"category\" }\n[task]\nkind = \"regression\"\n";
    let place = Place::new("report_numbers", head, SHORT);
    let said = place.run("fleet job train job.toml --threads 2");
    for part in ["R2", "RMSE", "MAE", "prediction"] {
        assert!(said.contains(part), "'{part}' is not in:\n{said}");
    }
    let report = json(&place, "model/report.json");
    let deciles = part(&report, "tables", "deciles")["rows"].as_array().unwrap().clone();
    assert_eq!(deciles.len(), 10);
    assert!(deciles[0][3].as_f64().unwrap() > deciles[9][3].as_f64().unwrap());
}
