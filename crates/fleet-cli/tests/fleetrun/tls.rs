//! Jobs whose token requires TLS train as usual. That nothing is sent in clear text is tested in
//! `fleet-net`.

use crate::Place;
use crate::combinations;

const TOKEN: &str = "tls:6f1d2c3b4a5968778695a4b3c2d1e0f00123456789abcdef0123456789abcdef";

fn demo(place: &Place, line: &str, token: Option<&str>) -> crate::Said {
    let mut command = place.command(line);
    // Ranks of one machine would otherwise use shared memory.
    command.env("FLEET_SHARED_MEMORY", "0");
    if let Some(token) = token {
        std::fs::write(place.path("job.token"), token).unwrap();
        command.env("FLEET_TOKEN_FILE", "job.token");
    }
    crate::Said::new(command.output().unwrap())
}

/// Returns the loss in the last line of progress.
fn loss(said: &crate::Said) -> String {
    let line = said.out.lines().find(|line| line.contains("100 %")).expect("the last line");
    let after = line.split_once("loss ").expect("a loss").1;
    after.split_whitespace().next().expect("a number").to_string()
}

#[test]
fn workers_train_the_same() {
    let place = Place::new("tls_workers", "");
    let line = "--nproc_per_node 2 --log_overwrite demo:lenet --samples 320 --threads 1";
    let (plain, under) = (demo(&place, line, None), demo(&place, line, Some(TOKEN)));
    plain.check(0, &[]);
    under.check(0, &["collective, 2 workers"]);
    assert_eq!(loss(&plain), loss(&under));
}

#[test]
fn servers_and_their_workers_train_the_same_in_every_mode() {
    let place = Place::new("tls_token", "");
    let file = place.path("job.token");
    std::fs::write(&file, TOKEN).unwrap();
    let flags = format!("--token_file {}", file.display());
    for index in combinations::each_mode() {
        assert_eq!(combinations::run(index, "tls", &flags), None);
    }
}
