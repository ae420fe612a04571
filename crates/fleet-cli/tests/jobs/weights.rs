//! Weights of rows in validations and reports: a row with weight 2 counts like two rows, and one
//! with weight 0 like none.

use super::*;

/// Adds a column with weights from 0 to 3. `is_repeated` writes each row as often instead, with
/// weight 1.
fn weighted(text: &str, is_repeated: bool) -> String {
    let mut lines = text.lines();
    let mut out = format!("{},w\n", lines.next().unwrap());
    for (row, line) in lines.enumerate() {
        let weight = row * row % 7 % 4;
        match is_repeated {
            true => (0..weight).for_each(|_| out += &format!("{line},1\n")),
            false => out += &format!("{line},{weight}\n"),
        }
    }
    out
}

fn place(name: &str, columns: &str, task: &str, is_repeated: bool) -> Place {
    let head = format!(
        "validation = {{ files = \"valid.csv\" }}\n[columns]\nw = {{ role = \"weight\" }}\n\
         age = {{ kind = \"number\" }}\n{columns}\n{task}"
    );
    let rest = format!("{SHORT}[evaluation]\nslices = [\"tags\"]\n");
    let place = Place::new(name, &head, &rest);
    fs::write(place.0.join("train.csv"), weighted(&rows(1, 2000), false)).unwrap();
    fs::write(place.0.join("valid.csv"), weighted(&rows(2, 700), is_repeated)).unwrap();
    fs::write(place.0.join("test.csv"), weighted(&rows(3, 900), is_repeated)).unwrap();
    place
}

/// The measures of a report that weights change, and those of its slices.
fn measures(place: &Place) -> Vec<(String, f64)> {
    let report: serde_json::Value = serde_json::from_str(&place.read("model/report.json")).unwrap();
    let report = &report["report"];
    let all = report["all"].as_object().unwrap();
    let values = all.iter().filter(|(key, _)| *key != "rows");
    let mut found: Vec<(String, f64)> =
        values.map(|(key, value)| (key.clone(), value.as_f64().unwrap())).collect();
    for table in report["tables"].as_array().unwrap() {
        let key = table["key"].as_str().unwrap();
        for row in table["rows"].as_array().unwrap().iter().filter(|_| key.starts_with("slices")) {
            let cells = row.as_array().unwrap()[2..].iter();
            found.extend(cells.map(|cell| (key.to_string(), cell.as_f64().unwrap_or(-1.0))));
        }
    }
    found
}

/// The values of all validations.
fn validations(place: &Place) -> Vec<f64> {
    let scalars = place.read("model/scalars.csv");
    let names: Vec<&str> = scalars.lines().next().unwrap().split(',').collect();
    let fields = scalars.lines().skip(1).flat_map(|line| names.iter().zip(line.split(',')));
    let values = fields.filter(|(name, value)| name.starts_with("valid/") && !value.is_empty());
    values.map(|(_, value)| value.parse().unwrap()).collect()
}

fn same(name: &str, found: &[f64], expected: &[f64]) {
    assert!(!found.is_empty() && found.len() == expected.len(), "{name}: {found:?} {expected:?}");
    for (found, expected) in found.iter().zip(expected) {
        let limit = 1e-5 * expected.abs().max(1.0);
        assert!((found - expected).abs() < limit, "{name}: {found} instead of {expected}");
    }
}

#[test]
fn rows_count_by_their_weights() {
    let tags = "tags = { kind = \"category\" }\n";
    for (name, label, task) in [
        ("binary", "y = { role = \"label\", positive = \"yes\" }", ""),
        (
            "labels",
            "y = { role = \"label\", positive = \"yes\" }\n\
             z = { role = \"label\", at_least = 100 }",
            "[model]\nkind = \"mmoe\"\nhidden = [16]\ntower = [8]\n",
        ),
        (
            "regression",
            "z = { role = \"label\", at_least = 100 }",
            "[task]\nkind = \"regression\"\n",
        ),
        (
            "classes",
            "kind = { role = \"label\", kind = \"category\", classes = [\"a\", \"b\", \"c\"] }",
            "[task]\nkind = \"multi_class\"\n",
        ),
    ] {
        let columns = format!("{tags}{label}");
        let one = place(&format!("weights-{name}"), &columns, task, false);
        let many = place(&format!("weights-{name}-repeated"), &columns, task, true);
        for place in [&one, &many] {
            place.run("fleet job train job.toml --threads 2");
        }
        same(name, &validations(&one), &validations(&many));
        let (found, expected) = (measures(&one), measures(&many));
        let keys = |all: &[(String, f64)]| all.iter().map(|it| it.0.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&found), keys(&expected));
        let values = |all: &[(String, f64)]| all.iter().map(|it| it.1).collect::<Vec<_>>();
        same(name, &values(&found), &values(&expected));
        assert_eq!(one.measure("rows"), 900.0);
    }
}

/// Workers add up weights.
#[test]
fn ranks_and_servers_count_weights() {
    let columns = "city = { kind = \"category\" }\ntags = { kind = \"category\" }\n\
        y = { role = \"label\", positive = \"yes\" }";
    let alone = place("weights-alone", columns, "", false);
    alone.run("fleet job train job.toml --threads 1");
    for (name, line) in [
        ("weights-ranks", "fleetrun --nproc_per_node 2 job:job.toml --threads 1"),
        ("weights-servers", "fleetrun --server_num 1 --worker_num 2 job:job.toml --threads 1"),
    ] {
        let place = place(name, columns, "", false);
        place.run(line);
        let (found, expected) = (place.measure("auc"), alone.measure("auc"));
        assert!((found - expected).abs() < 0.02, "{name}: {found} instead of {expected}");
        let last = |all: Vec<f64>| all[all.len() - 1];
        let (found, expected) = (last(validations(&place)), last(validations(&alone)));
        assert!((found - expected).abs() < 0.05, "{name}: {found} instead of {expected}");
    }
    let text = "age,tags,y,w,city\n30,t1,yes,0,a\n40,t2,no,,a\n";
    fs::write(alone.0.join("valid.csv"), text).unwrap();
    let said = alone.fail("fleet job train job.toml --fresh");
    assert!(said.contains("the weights of all rows of the evaluation are 0"), "{said}");
}
