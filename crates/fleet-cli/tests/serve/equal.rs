//! A row has one score: the report's, that of `fleet predict`, and those of `fleet serve` over HTTP
//! and gRPC are equal bit for bit, for the models and tasks with inputs or scores of their own.

use super::*;

/// Trains a job on generated rows, with a file of its own for the test.
pub fn trained(name: &str, columns: &str, rest: &str) -> (Place, Vec<Row>) {
    let folder: PathBuf = [env!("CARGO_TARGET_TMPDIR"), "serve", name].iter().collect();
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let place = Place { folder };
    let test = known_rows(7, 300);
    fs::write(place.folder.join("train.csv"), csv(&known_rows(1, 1500))).unwrap();
    fs::write(place.folder.join("test.csv"), csv(&test)).unwrap();
    let job = format!(
        "version = 1\n[data]\ntrain = \"train.csv\"\ntest = {{ files = [\"test.csv\"] }}\n\
         missing = [\"?\"]\n[columns]\n{columns}\n{rest}\n\
         [train]\nbatch = 64\nepochs = 1\noptimizer = {{ rate = 0.01 }}\n"
    );
    fs::write(place.folder.join("job.toml"), job).unwrap();
    place.run("job train job.toml --threads 2");
    (place, test)
}

/// Rows whose city is known: a retrieval needs it.
pub fn known_rows(seed: u64, count: usize) -> Vec<Row> {
    rows(seed, count).into_iter().filter(|row| text_of(row, "city") != "?").collect()
}

/// Returns rows with the columns that a model reads.
fn requested(rows: &[Row], model: &serde_json::Value) -> Vec<Row> {
    let names: Vec<&str> = model["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    let of = |row: &Row| row.iter().filter(|it| names.contains(&it.0)).cloned().collect();
    rows.iter().map(of).collect()
}

/// Checks that all ways give the same scores, and returns those of `fleet predict`, row after row.
fn check_ways(place: &Place, rows: &[Row], width: usize) -> Vec<Vec<f32>> {
    place.run("predict model --data test.csv --out scores.csv --threads 2");
    let scores = fs::read_to_string(place.folder.join("scores.csv")).unwrap();
    let lines = scores.lines().skip(1).map(|line| line.split(',').map(|it| it.parse().unwrap()));
    let expected: Vec<Vec<f32>> = lines.map(Iterator::collect).collect();
    assert!(expected.len() == rows.len() && expected.iter().all(|row| row.len() == width));
    let serving = place.serve(if cfg!(feature = "grpc") { "--grpc 127.0.0.1:0" } else { "" });
    let mut connection = serving.connect();
    let rows = requested(rows, &connection.get("/v1/model").json());
    for size in [1, 7, 65, rows.len()] {
        for (at, part) in rows.chunks(size).enumerate().take(40) {
            let body = if at % 2 == 0 { json_rows(part) } else { json_columns(part) };
            let got = served(&connection.post(&body), width);
            let expected = expected[at * size..][..part.len()].concat();
            assert_eq!(bits(&got), bits(&expected), "{size} rows, part {at}");
        }
    }
    #[cfg(feature = "grpc")]
    {
        let mut client = fleet_serve::client::PredictClient::connect(&serving.grpc, None).unwrap();
        let answer = client.predict(grpc::request(&rows, true)).unwrap();
        assert_eq!(answer.scores_per_row as usize, width);
        assert_eq!(bits(&answer.scores), bits(&expected.concat()), "gRPC");
    }
    drop(connection);
    serving.stop();
    expected
}

/// Reads the scores of an answer: numbers, or lists of several.
fn served(answer: &Answer, width: usize) -> Vec<f32> {
    assert_eq!(answer.code, 200, "{}", answer.body);
    if width == 1 {
        return answer.scores();
    }
    let json = answer.json();
    let rows = json["scores"].as_array().unwrap().iter();
    let number = |it: &serde_json::Value| it.to_string().parse().unwrap();
    rows.flat_map(|row| row.as_array().unwrap().iter().map(number)).collect()
}

fn report(place: &Place) -> serde_json::Value {
    let text = fs::read_to_string(place.folder.join("model/report.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["report"].clone()
}

/// The log-loss has all bits of all scores in it.
fn log_loss(scores: impl Iterator<Item = f32>, labels: impl Iterator<Item = bool>) -> f64 {
    let chance = |(score, label)| if label { f64::from(score) } else { 1.0 - f64::from(score) };
    let losses: Vec<f64> = scores.zip(labels).map(|it| -chance(it).max(1e-7).ln()).collect();
    losses.iter().sum::<f64>() / losses.len() as f64
}

fn text_of<'r>(row: &'r Row, name: &str) -> &'r str {
    &row.iter().find(|(known, _)| *known == name).unwrap().1
}

fn is_yes(row: &Row) -> bool {
    text_of(row, "y") == "yes"
}

#[test]
fn din_has_one_score() {
    let columns = "y = { role = \"label\", positive = \"yes\" }\nage = { kind = \"number\" }\n\
        city = { kind = \"category\" }\nword = { kind = \"category\", name = \"user\" }\n\
        words = { kind = \"categories\", history_of = \"word\" }";
    let model = "[model]\nkind = \"din\"\nhidden = [16]\ndim = 8";
    let (place, rows) = trained("equal_din", columns, model);
    let scores = check_ways(&place, &rows, 1).concat();
    let loss = report(&place)["all"]["loss"].as_f64().unwrap();
    assert_eq!(loss, log_loss(scores.into_iter(), rows.iter().map(is_yes)));
}

#[test]
fn several_labels_have_one_score_each() {
    let columns = "y = { role = \"label\", positive = \"yes\" }\n\
        tall = { role = \"label\", name = \"height\", at_least = 1.75 }\n\
        age = { kind = \"number\", embed = \"piecewise\", bins = 8 }\n\
        city = { kind = \"category\" }\ntags = { kind = \"categories\" }";
    let model = "[model]\nkind = \"mmoe\"\nhidden = [32, 16]\ntower = [8]\ndim = 8";
    let (place, rows) = trained("equal_mmoe", columns, model);
    let scores = check_ways(&place, &rows, 2);
    let head = fs::read_to_string(place.folder.join("scores.csv")).unwrap();
    assert!(head.starts_with("score_y,score_tall\n"), "{head:.40}");
    let is_tall = |row: &Row| text_of(row, "height").parse::<f32>().unwrap() >= 1.75;
    let losses = [
        log_loss(scores.iter().map(|it| it[0]), rows.iter().map(is_yes)),
        log_loss(scores.iter().map(|it| it[1]), rows.iter().map(is_tall)),
    ];
    let measured = report(&place);
    let table = measured["tables"].as_array().unwrap().iter().find(|it| it["key"] == "labels");
    let table = table.unwrap();
    let at = table["columns"].as_array().unwrap().iter().position(|it| it == "log-loss").unwrap();
    for (row, loss) in table["rows"].as_array().unwrap().iter().zip(losses) {
        assert_eq!(row[at].as_f64(), Some(loss));
    }
    let serving = place.serve("");
    let model = serving.connect().get("/v1/model").json();
    assert_eq!(model["labels"], serde_json::json!(["y", "tall"]));
    assert!(model["label"].is_null() && model["task"] == "binary", "{model}");
    let answer = serving.connect().post(&json_rows(&requested(&rows[..1], &model))).json();
    assert_eq!(answer["labels"], serde_json::json!(["y", "tall"]));
    serving.stop();
}

#[test]
fn a_ranking_has_one_score() {
    let columns = "y = { role = \"label\", positive = \"yes\" }\nage = { kind = \"number\" }\n\
        city = { kind = \"category\" }\ntags = { kind = \"categories\" }\n\
        user = { role = \"group\" }";
    let task = "[task]\nkind = \"ranking\"\ngroup = \"user\"";
    let (place, rows) = trained("equal_ranking", columns, task);
    let scores = check_ways(&place, &rows, 1).concat();
    let mut ranking = fleet_metrics::Ranking::default();
    let groups: Vec<u64> = rows.iter().map(|row| text_of(row, "user").parse().unwrap()).collect();
    let grades: Vec<f32> = rows.iter().map(|row| f32::from(u8::from(is_yes(row)))).collect();
    ranking.add(&groups, &scores, &grades).unwrap();
    let (all, means) = (&report(&place)["all"], ranking.means(10));
    for (key, value) in [("ndcg", means.ndcg), ("mrr", means.mrr), ("recall", means.recall)] {
        assert!((all[key].as_f64().unwrap() - value).abs() < 1e-12, "{key}");
    }
    let serving = place.serve("");
    assert_eq!(serving.connect().get("/v1/model").json()["task"], "ranking");
    serving.stop();
}

/// The score of a retrieval is the product of the vectors, which `fleet recommend` computes in
/// another order.
#[test]
fn a_retrieval_has_one_score() {
    let columns = "user = { kind = \"category\", side = \"user\" }\n\
        age = { kind = \"number\", side = \"user\" }\n\
        city = { kind = \"category\", side = \"item\" }\n\
        tags = { kind = \"categories\", side = \"item\" }";
    let rest =
        "[task]\nkind = \"retrieval\"\n[model]\nkind = \"two_tower\"\nhidden = [16]\ndim = 8";
    let (place, rows) = trained("equal_retrieval", columns, rest);
    let scores = check_ways(&place, &rows, 1).concat();
    // The vector of an item is that of its first training row: take the tags of that row.
    let first = rows_of_items();
    let users: Vec<Row> = rows[..5].to_vec();
    fs::write(place.folder.join("users.csv"), csv(&users)).unwrap();
    place.run("recommend model --users users.csv -k 20 --out best.csv");
    let best = fs::read_to_string(place.folder.join("best.csv")).unwrap();
    let pairs: Vec<(Row, f32)> = users
        .iter()
        .zip(best.lines().skip(1).collect::<Vec<_>>().chunks(first.len()))
        .flat_map(|(user, lines)| {
            lines.iter().map(|line| {
                let (rest, score) = line.rsplit_once(',').unwrap();
                let item =
                    rest.splitn(3, ',').nth(2).unwrap().trim_matches('"').replace("\"\"", "\"");
                let mut row = user.clone();
                for (name, value) in &mut row {
                    if ["city", "tags"].contains(name) {
                        *value = text_of(&first[&item], name).to_string();
                    }
                }
                (row, score.parse().unwrap())
            })
        })
        .collect();
    assert_eq!(pairs.len(), 5 * first.len());
    let rows: Vec<Row> = pairs.iter().map(|(row, _)| row.clone()).collect();
    for (predicted, (row, score)) in place.predict(&rows).iter().zip(&pairs) {
        assert!((predicted - score).abs() < 1e-5, "{row:?}: {predicted}, {score}");
    }
    assert!(scores.iter().all(|score| score.is_finite()));
}

/// The first training row of each item.
fn rows_of_items() -> HashMap<String, Row> {
    let mut first = HashMap::new();
    for row in known_rows(1, 1500) {
        first.entry(text_of(&row, "city").to_string()).or_insert(row);
    }
    first
}
