//! The flags that the launchers of a job must have in common. Each launcher publishes its own in
//! `node/ID`. Machines that differ are refused when they meet, since their processes would wait in
//! vain.

use crate::options::{ElasticLevel, Mode, Nodes};
use fleet_base::Error;
use serde_json::{Value, json};

/// Returns the flags of a launcher that must agree, as a part of `node/ID`.
pub(crate) fn terms(mode: Mode, nodes: Nodes, level: ElasticLevel, job_id: &str) -> Value {
    let nodes = match nodes.min == nodes.max {
        true => nodes.max.to_string(),
        false => format!("{}:{}", nodes.min, nodes.max),
    };
    json!({
        "protocol": PROTOCOL.to_string(),
        "mode": mode_name(mode),
        "nnodes": nodes,
        "elastic_level": (level as u8).to_string(),
        "job_id": job_id,
    })
}

/// Returns the name of a mode as `--run_mode` takes it.
fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Collective => "collective",
        Mode::Ps => "ps",
        Mode::PsHeter => "ps-heter",
    }
}

/// Returns an error if two machines differ. A machine is given as its host and its flags.
pub(crate) fn difference(first: (&str, &Value), second: (&str, &Value)) -> Option<Error> {
    let differs = |(field, ..): &&(&str, &str, &str)| first.1[*field] != second.1[*field];
    let found: Vec<_> = FIELDS.iter().filter(differs).collect();
    let (.., help) = found.first()?;
    let shown = |terms: &Value, field: &str| terms[field].as_str().unwrap_or("unknown").to_string();
    let each = found.iter().map(|(field, title, _)| {
        let (one, other) = (shown(first.1, field), shown(second.1, field));
        format!("{title} is {one} on {} and {other} on {}", first.0, second.0)
    });
    let each = each.collect::<Vec<String>>().join("; ");
    Some(
        Error::invalid(format!("the machines of the job were started differently: {each}"))
            .help(*help),
    )
}

/// Version of the keys and values that launchers exchange. Changes when launchers of two versions
/// cannot work together.
const PROTOCOL: u32 = 1;

/// Each field with its title, and the help for the case that it is the first that differs.
const FIELDS: [(&str, &str, &str); 5] = [
    ("protocol", "the version of the launcher protocol", "run the same version of fleetrun"),
    (
        "mode",
        "the mode",
        "give every machine the flags of one mode: --nproc_per_node for collective, --server_num \
         and --worker_num for ps",
    ),
    ("nnodes", "--nnodes", "give every machine the same --nnodes"),
    ("elastic_level", "--elastic_level", "give every machine the same --elastic_level"),
    ("job_id", "--job_id", "give every machine the same --job_id"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_differ_are_named_with_what_differs() {
        let of = |mode, max| terms(mode, Nodes { min: 2, max }, ElasticLevel::Off, "ads");
        let check = |other: Value, wanted: Option<&str>| {
            let found = difference(("a", &of(Mode::Collective, 2)), ("b", &other));
            let wanted =
                wanted.map(|it| format!("the machines of the job were started differently: {it}"));
            assert_eq!(found.as_ref().map(Error::message), wanted.as_deref());
        };
        check(of(Mode::Collective, 2), None);
        check(of(Mode::Ps, 2), Some("the mode is collective on a and ps on b"));
        check(of(Mode::Collective, 4), Some("--nnodes is 2 on a and 2:4 on b"));
        let other = terms(Mode::Ps, Nodes { min: 2, max: 2 }, ElasticLevel::Same, "news");
        check(
            other,
            Some(
                "the mode is collective on a and ps on b; --elastic_level is 0 on a and 1 on b; \
                 --job_id is ads on a and news on b",
            ),
        );
        let unknown = difference(("a", &of(Mode::Ps, 2)), ("b", &Value::Null)).unwrap().to_string();
        assert!(unknown.contains("launcher protocol is 1 on a and unknown on b"), "{unknown}");
        assert!(unknown.ends_with("help: run the same version of fleetrun"), "{unknown}");
    }
}
