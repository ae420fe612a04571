//! The flags that the launchers of a job must have in common. Each launcher publishes its own in
//! its entry. Machines that differ are refused when they meet, since their processes would wait in
//! vain.

use crate::options::{ElasticLevel, Mode, Nodes, Options};
use crate::protocol::{Node, PROTOCOL, Terms};
use fleet_base::Error;

/// Returns the terms of a launcher for a number of machines.
pub(crate) fn of_options(options: &Options, nodes: Nodes) -> Terms {
    terms(options.mode, nodes, options.elastic_level, &options.job_id)
}

pub(crate) fn terms(mode: Mode, nodes: Nodes, level: ElasticLevel, job_id: &str) -> Terms {
    Terms {
        protocol: PROTOCOL.to_string(),
        mode: mode_name(mode).to_string(),
        nnodes: match nodes.min == nodes.max {
            true => nodes.max.to_string(),
            false => format!("{}:{}", nodes.min, nodes.max),
        },
        elastic_level: (level as u8).to_string(),
        job_id: job_id.to_string(),
    }
}

/// Returns the name of a mode as `--run_mode` takes it.
fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Collective => "collective",
        Mode::Ps => "ps",
        Mode::PsHeter => "ps-heter",
    }
}

/// Returns an error if two machines differ.
pub(crate) fn difference(first: &Node, second: &Node) -> Option<Error> {
    let values = fields(&first.terms).into_iter().zip(fields(&second.terms));
    let found: Vec<_> =
        FIELDS.iter().zip(values).filter(|(_, (one, other))| one != other).collect();
    let ((_, help), _) = found.first()?;
    let each = found.iter().map(|((title, _), (one, other))| {
        format!("{title} is {one} on {} and {other} on {}", first.host, second.host)
    });
    let each = each.collect::<Vec<String>>().join("; ");
    Some(
        Error::invalid(format!("the machines of the job were started differently: {each}"))
            .help(*help),
    )
}

/// Returns the fields in the order of [`FIELDS`].
fn fields(terms: &Terms) -> [&str; 5] {
    let Terms { protocol, mode, nnodes, elastic_level, job_id } = terms;
    [protocol, mode, nnodes, elastic_level, job_id]
}

/// The title of each field, and the help for the case that it is the first that differs.
const FIELDS: [(&str, &str); 5] = [
    ("the version of the launcher protocol", "run the same version of fleetrun"),
    (
        "the mode",
        "give every machine the flags of one mode: --nproc_per_node for collective, --server_num \
         and --worker_num for ps",
    ),
    ("--nnodes", "give every machine the same --nnodes"),
    ("--elastic_level", "give every machine the same --elastic_level"),
    ("--job_id", "give every machine the same --job_id"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_machines_are_named_with_their_differences() {
        let of = |mode, max| terms(mode, Nodes { min: 2, max }, ElasticLevel::Off, "ads");
        let node = |host: &str, terms: Terms| Node {
            host: host.into(),
            rank: None,
            gloo: 0,
            workers: Vec::new(),
            servers: Vec::new(),
            listed: None,
            terms,
        };
        let check = |other: Terms, wanted: Option<&str>, help: &str| {
            let found = difference(&node("a", of(Mode::Collective, 2)), &node("b", other));
            let wanted =
                wanted.map(|it| format!("the machines of the job were started differently: {it}"));
            assert_eq!(found.as_ref().map(Error::message), wanted.as_deref());
            assert!(found.is_none_or(|error| error.to_string().ends_with(help)));
        };
        check(of(Mode::Collective, 2), None, "");
        let help = "--server_num and --worker_num for ps";
        check(of(Mode::Ps, 2), Some("the mode is collective on a and ps on b"), help);
        let help = "help: give every machine the same --nnodes";
        check(of(Mode::Collective, 4), Some("--nnodes is 2 on a and 2:4 on b"), help);
        let other = terms(Mode::Ps, Nodes { min: 2, max: 2 }, ElasticLevel::Same, "news");
        check(
            other,
            Some(
                "the mode is collective on a and ps on b; --elastic_level is 0 on a and 1 on b; \
                 --job_id is ads on a and news on b",
            ),
            "for ps",
        );
        let older = Terms { protocol: "1".into(), ..of(Mode::Collective, 2) };
        let wanted = "the version of the launcher protocol is 2 on a and 1 on b";
        check(older, Some(wanted), "help: run the same version of fleetrun");
    }
}
