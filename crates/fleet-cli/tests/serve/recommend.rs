//! Recommendations of a server: items and scores are those of `fleet recommend`, bit for bit.

use super::equal::{known_rows, trained};
use super::*;

const COLUMNS: &str = "user = { kind = \"category\", side = \"user\" }\n\
    age = { kind = \"number\", side = \"user\" }\n\
    city = { kind = \"category\", side = \"item\" }\n\
    tags = { kind = \"categories\", side = \"item\" }";
const MODEL: &str =
    "[task]\nkind = \"retrieval\"\n[model]\nkind = \"two_tower\"\nhidden = [16]\ndim = 8";

/// Items of users with the bits of their scores, best first.
type Found = Vec<Vec<(String, u32)>>;

/// A model, rows of users, and a file with items that some of them have.
fn place(name: &str) -> (Place, Vec<Row>) {
    let (place, rows) = trained(name, COLUMNS, MODEL);
    let users: Vec<Row> = rows[..40].to_vec();
    fs::write(place.folder.join("users.csv"), csv(&users)).unwrap();
    fs::write(place.folder.join("known.csv"), csv(&known_rows(9, 100))).unwrap();
    (place, users)
}

/// Returns what `fleet recommend` finds.
fn recommended(place: &Place, options: &str) -> Found {
    place.run(&format!("recommend model --users users.csv --out best.csv {options}"));
    let text = fs::read_to_string(place.folder.join("best.csv")).unwrap();
    let mut found: Found = Vec::new();
    for line in text.lines().skip(1) {
        let (rest, score) = line.rsplit_once(',').unwrap();
        let mut fields = rest.splitn(3, ',').skip(1);
        let (rank, item) = (fields.next().unwrap(), fields.next().unwrap());
        let item = unquoted(item).replace("\"\"", "\"");
        if rank == "1" {
            found.push(Vec::new());
        }
        found.last_mut().unwrap().push((item, score.parse::<f32>().unwrap().to_bits()));
    }
    found
}

/// Removes the quotes around a field.
fn unquoted(field: &str) -> &str {
    field.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(field)
}

/// Returns the columns of users as JSON rows, and further keys.
fn body(users: &[Row], further: &str) -> String {
    let of = |row: &Row| row.iter().filter(|it| ["user", "age"].contains(&it.0)).cloned().collect();
    let rows = json_rows(&users.iter().map(of).collect::<Vec<Row>>());
    format!("{}{further}}}", rows.strip_suffix('}').unwrap())
}

impl Connection {
    fn recommend(&mut self, body: &str) -> Answer {
        self.send("POST", "/v1/recommend", body.as_bytes());
        self.answer()
    }
}

fn found(answer: &Answer) -> Found {
    assert_eq!(answer.code, 200, "{}", answer.body);
    let json = answer.json();
    let lists = |key: &str| json[key].as_array().unwrap().clone();
    let pair = |(item, score): (&serde_json::Value, &serde_json::Value)| {
        let score: f32 = score.to_string().parse().unwrap();
        (item.as_str().unwrap().to_string(), score.to_bits())
    };
    let user = |(items, scores): (serde_json::Value, serde_json::Value)| {
        let (items, scores) = (items.as_array().unwrap(), scores.as_array().unwrap());
        assert_eq!(items.len(), scores.len());
        items.iter().zip(scores).map(pair).collect()
    };
    lists("items").into_iter().zip(lists("scores")).map(user).collect()
}

#[test]
fn items_are_those_of_the_command() {
    let (place, users) = place("recommend");
    let grpc = if cfg!(feature = "grpc") { "--grpc 127.0.0.1:0" } else { "" };
    for options in ["", "--exclude known.csv", "--exclude known.csv --search index"] {
        let expected = recommended(&place, &format!("-k 4 {options}"));
        assert!(expected.len() == 40 && expected.iter().all(|found| found.len() == 4));
        let serving = place.serve(&format!("{grpc} --threads 2 {options}"));
        let mut connection = serving.connect();
        for size in [1, 7, 40] {
            for (at, part) in users.chunks(size).enumerate() {
                let got = found(&connection.recommend(&body(part, ", \"count\": 4")));
                assert_eq!(got, expected[at * size..][..part.len()], "{options}, part {at}");
            }
        }
        // Columns, with the other keys first; scores of rows are served as well.
        let columns = "{\"count\": 4, \"columns\": {\"age\": [30, null], \"user\": [7, \"new\"]}}";
        assert_eq!(found(&connection.recommend(columns)).len(), 2);
        assert_eq!(connection.scores(&body(&users[..3], "")).1.len(), 3);
        #[cfg(feature = "grpc")]
        check_grpc(&serving, &users, &expected);
        drop(connection);
        serving.stop();
    }
}

#[cfg(feature = "grpc")]
fn check_grpc(serving: &Serving, users: &[Row], expected: &Found) {
    use fleet_serve::message::RecommendRequest;
    let mut client = fleet_serve::client::PredictClient::connect(&serving.grpc, None).unwrap();
    let mut columns = grpc::request(users, false).columns;
    columns.retain(|column| ["user", "age"].contains(&column.name.as_str()));
    let request = RecommendRequest { columns, count: 4, include_known: false };
    let answer = client.recommend(request.clone()).unwrap();
    assert!(answer.version == 1 && answer.lengths == vec![4; users.len()], "{answer:?}");
    let got: Vec<(String, u32)> =
        answer.items.into_iter().zip(answer.scores.iter().map(|it| it.to_bits())).collect();
    assert_eq!(got, expected.concat());
    let error = client.recommend(RecommendRequest { count: 1001, ..request }).unwrap_err();
    assert!(error.to_string().contains("from 1 to 1000"), "{error}");
}

#[test]
fn items_are_left_out() {
    let (place, users) = place("recommend_exclude");
    let all = recommended(&place, "-k 100");
    let known = recommended(&place, "-k 100 --exclude known.csv");
    assert!(all != known && all.iter().all(|found| found.len() == all[0].len()));
    let serving = place.serve("--exclude known.csv");
    let mut connection = serving.connect();
    let mut ask =
        |users: &[Row], further: &str| found(&connection.recommend(&body(users, further)));
    assert_eq!(ask(&users, ", \"count\": 100"), known);
    assert_eq!(ask(&users, ", \"count\": 100, \"include_known\": false"), known);
    assert_eq!(ask(&users, ", \"include_known\": true, \"count\": 100"), all);
    assert!(ask(&users, "").iter().all(|found| found.len() <= 10));
    assert!(ask(&[], "").is_empty());
    // Each user leaves out items of its own; names that are no items do not matter.
    let names: Vec<&str> = all[1][..2].iter().map(|(item, _)| item.as_str()).collect();
    let rows = serde_json::json!([
        { "user": 5, "exclude": [] },
        { "user": 5, "exclude": [names[0], "no item", 3] },
        { "user": 5, "exclude": names },
        { "user": 5, "exclude": names[0] },
    ]);
    let further = "\"include_known\": true, \"count\": 100";
    let body = format!("{{\"rows\": {rows}, {further}}}");
    let got = found(&connection.recommend(&body));
    let without = |names: &[&str]| -> Vec<(String, u32)> {
        got[0].iter().filter(|(item, _)| !names.contains(&item.as_str())).cloned().collect()
    };
    assert_eq!(got[0].len(), all[0].len());
    assert_eq!(got[1..], [without(&names[..1]), without(&names), without(&names[..1])]);
    drop(connection);
    serving.stop();
}

#[test]
fn requests_for_items_are_checked() {
    let (place, _) = place("recommend_limits");
    let serving = place.serve("--rows 2000 --body 64KiB");
    let mut connection = serving.connect();
    let model = connection.get("/v1/model").json();
    assert_eq!(model["recommends"], serde_json::json!({ "user": "user", "item": "city" }));
    let many = format!("{{\"count\": 1000, \"rows\": [{}]}}", vec!["{}"; 1001].join(","));
    let more = format!("{{\"rows\": [{}]}}", vec!["{}"; 2001].join(","));
    for (body, code, part) in [
        ("", 400, "not valid JSON"),
        ("{\"count\": 3}", 400, "no rows: expected 'rows' or 'columns'"),
        ("{\"rows\": [{}], \"counts\": 3}", 400, "'count', 'include_known', got 'counts'"),
        ("{\"rows\": [{\"users\": 3}]}", 400, "did you mean 'user'?"),
        ("{\"rows\": [{}], \"count\": 0}", 400, "from 1 to 1000"),
        ("{\"rows\": [{}], \"count\": 1001}", 400, "from 1 to 1000"),
        ("{\"rows\": [{}], \"count\": \"ten\"}", 400, "from 1 to 1000"),
        ("{\"rows\": [{}], \"include_known\": 1}", 400, "true or false"),
        ("{\"rows\": [{}, {\"age\": \"old\"}]}", 400, "'age' is not a finite"),
        (&many, 413, "too many items"),
        (&more, 413, "too many rows"),
        (&" ".repeat(70_000), 413, "body is too long"),
    ] {
        let answer = serving.connect().recommend(body);
        assert_eq!(answer.code, code, "{body:.60}: {}", answer.body);
        let message = answer.body.replace("\",\"expected\":\"", ": expected ");
        let message = message.replace("\",\"got\":\"", ", got ");
        assert!(message.contains(part), "{body:.60}: no '{part}' in {message}");
    }
    // Columns of items are ignored, and a user may be unknown.
    let answer = connection.recommend("{\"rows\": [{\"city\": \"x\", \"user\": \"new\"}]}");
    assert_eq!(found(&answer)[0].len(), 10);
    connection.send("GET", "/v1/recommend", b"");
    assert_eq!(connection.answer().code, 405);
    let metrics = connection.get("/metrics").body;
    for part in ["code=\"400\"} 9", "code=\"413\"} 3", "fleet_rows_total 1\n"] {
        assert!(metrics.contains(part), "no '{part}' in:\n{metrics}");
    }
    drop(connection);
    serving.stop();

    let other = Place::new("recommend_other", "mlp");
    let serving = other.serve("");
    let answer = serving.connect().recommend("{\"rows\": [{}]}");
    assert!(answer.code == 501 && answer.body.contains("two_tower"), "{}", answer.body);
    assert!(serving.connect().get("/v1/model").json()["recommends"].is_null());
    serving.stop();
    fs::copy(other.folder.join("train.csv"), other.folder.join("known.csv")).unwrap();
    let mut command = Command::new(FLEET);
    let command = command.current_dir(&other.folder).args(["serve", "model", "--exclude"]);
    let output = command.args(["known.csv", "--listen", "127.0.0.1:0"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("no vectors of users and items"), "{said}");
}

/// A new version is served when its vectors are written, never with those of another one.
#[test]
fn a_new_version_recommends_its_items() {
    let (place, users) = place("recommend_reload");
    let options = "-k 4 --exclude known.csv";
    let first = recommended(&place, options);
    let serving = place.serve("--exclude known.csv --watch 0");
    let mut connection = serving.connect();
    let body = body(&users, ", \"count\": 4");
    assert_eq!(found(&connection.recommend(&body)), first);
    let job = fs::read_to_string(place.folder.join("job.toml")).unwrap();
    let job = job.replace("epochs = 1", "epochs = 1\nseed = 2");
    fs::write(place.folder.join("job.toml"), job).unwrap();
    place.run("job train job.toml --threads 2");
    let vectors = place.folder.join("model/vectors/version.json");
    let version = fs::read_to_string(&vectors).unwrap();
    assert_eq!(version, "{\"version\":2}");
    let second = recommended(&place, options);
    assert_ne!(first, second);
    // As if the training had not written its vectors yet.
    fs::write(&vectors, "{\"version\":1}").unwrap();
    serving.signal(rustix::process::Signal::HUP);
    let failed = "fleet_reload_failures_total 1\n";
    wait(|| connection.get("/metrics").body.contains(failed));
    assert_eq!(found(&connection.recommend(&body)), first);
    fs::write(&vectors, version).unwrap();
    serving.signal(rustix::process::Signal::HUP);
    wait(|| connection.get("/v1/model").json()["version"] == 2);
    assert_eq!(found(&connection.recommend(&body)), second);
    drop(connection);
    let said = serving.stop();
    assert!(said.contains("the vectors are not of the version of the model"), "{said}");
}

fn wait(mut is_done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_done() {
        assert!(begin.elapsed() < Duration::from_secs(20), "not done in 20 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}
