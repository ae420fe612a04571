//! Tables, compared character by character.

use crate::words;
use fleet_launch::flags::Given;
use fleet_launch::tables;

#[test]
fn environment_tables_are_the_originals() {
    let want = include_str!("vectors/pretty_print_envs.txt");
    let (with_header, without) = want.split_once("\n#### no header\n").unwrap();
    let endpoints: Vec<String> = (6170..6178).map(|port| format!("127.0.0.1:{port}")).collect();
    let endpoints = endpoints.join(",");
    let rows = [
        ("PADDLE_TRAINER_ID", "0"),
        ("PADDLE_CURRENT_ENDPOINT", "127.0.0.1:6170"),
        ("PADDLE_TRAINERS_NUM", "8"),
        ("PADDLE_TRAINER_ENDPOINTS", endpoints.as_str()),
        ("A_VERY_LONG_ENVIRONMENT_VARIABLE_NAME_OVER_FORTY", "x"),
        ("EMPTY", ""),
    ];
    let made = tables::environment(&rows, Some(("Distributed Envs", "Value")));
    assert_eq!(made.trim_matches('\n'), with_header.trim_matches('\n'));
    let made = tables::environment(&[("a", "1"), ("b", "2.5")], None);
    assert_eq!(made.trim_matches('\n'), without.trim_matches('\n'));
}

#[test]
fn compact_tables_are_as_wide_as_their_texts() {
    let rows = [("PADDLE_TRAINER_ID", "0"), ("PADDLE_TRAINERS_NUM", "2")];
    let made = tables::compact(&rows, tables::HEADER);
    let want = [
        "    +============================+",
        "    |    Distributed Envs  Value |",
        "    +----------------------------+",
        "    |   PADDLE_TRAINER_ID    0   |",
        "    | PADDLE_TRAINERS_NUM    2   |",
        "    +============================+",
    ];
    assert_eq!(made.lines().collect::<Vec<&str>>(), want);
    let long = "x".repeat(100);
    let made = tables::compact(&[("A", &long), ("FLEET_TOKEN", "secret")], tables::HEADER);
    let value = format!("... {}", "x".repeat(41));
    assert!(made.contains(&value) && !made.contains("secret"), "{made}");
}

#[test]
fn the_table_of_arguments() {
    let given = Given::parse(words("--gpus=0,1 -v train.py --lr 0.1")).unwrap();
    let text = tables::arguments(&given.table());
    assert!(text.starts_with("-----------  Configuration Arguments -----------\nbackend: auto\n"));
    for line in [
        "gpus: 0,1",
        "heter_worker_num: None",
        "heter_workers: ",
        "http_port: None",
        "ips: 127.0.0.1",
        "log_dir: log",
        "training_script: train.py",
        "training_script_args: ['--lr', '0.1']",
        "verbose: True",
    ] {
        assert!(text.lines().any(|it| it == line), "'{line}' is not in:\n{text}");
    }
    assert!(text.ends_with(&format!("\n{}\n", "-".repeat(48))));
    let mut names: Vec<&str> =
        text.lines().filter_map(|line| line.split_once(": ")).map(|it| it.0).collect();
    let printed = names.clone();
    names.sort_unstable();
    assert_eq!(printed, names);
    let written = tables::written_arguments(&given.written());
    let want = "Configuration Arguments: gpus: 0,1; training_script: train.py; \
                training_script_args: ['--lr', '0.1']; verbose: True";
    assert_eq!(written, want);
}
