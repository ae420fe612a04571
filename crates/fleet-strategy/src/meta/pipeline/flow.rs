//! The values that cross parts of a program, and the order in which they are sent.
//!
//! Values go from part to part: a value of part 0 that part 2 reads is sent to part 1, which sends
//! it on. A stage that has the value already, for another of its parts, does not receive it again.
//! Every rank computes the lists of all parts from the whole program, so sender and receiver agree.

use super::schedule::Pass;
use super::stages::Place;
use crate::pipeline::Size;
use fleet_base::{Error, Result};
use fleet_ir::{OpId, Program, VarId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// An op of the program before it is repeated for micro-batches.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub id: OpId,
    pub pass: Pass,
    pub place: Place,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub pass: Pass,
    pub place: Place,
    /// Position of its last write among all members.
    pub at: usize,
}

/// The ops of a training program and the values between its parts.
pub struct Flow {
    pub members: Vec<Member>,
    /// Variables that an op writes and that no step keeps.
    pub origins: HashMap<VarId, Origin>,
    /// By part: the values sent to the next part after a forward pass, in order.
    pub forward: Vec<Vec<VarId>>,
    /// By part: the values sent to the part before after a backward pass, in order.
    pub backward: Vec<Vec<VarId>>,
}

impl Flow {
    /// Follows the values of the root block, whose forward ops are labelled.
    pub fn of(main: &Program, size: Size) -> Result<Flow> {
        let members = members(main)?;
        let origins = origins(main, &members)?;
        let mut flow = Flow {
            members,
            origins,
            forward: vec![Vec::new(); size.parts],
            backward: vec![Vec::new(); size.parts],
        };
        flow.check_state(main, size)?;
        flow.route(main, size)?;
        Ok(flow)
    }

    /// Returns the values that a pass of a part sends.
    pub fn sent(&self, pass: Pass, part: usize) -> &[VarId] {
        match pass {
            Pass::Forward => &self.forward[part],
            Pass::Backward => &self.backward[part],
            Pass::Weights => &[],
        }
    }

    /// Returns the values that a pass of a part receives, and the part that sends them.
    pub fn received(&self, pass: Pass, part: usize) -> Option<(&[VarId], usize)> {
        let from = match pass {
            Pass::Forward => part.checked_sub(1)?,
            Pass::Backward => part + 1,
            Pass::Weights => return None,
        };
        (from < self.forward.len()).then(|| (self.sent(pass, from), from))
    }

    /// Lists the values that each part sends.
    fn route(&mut self, main: &Program, size: Size) -> Result<()> {
        let mut readers: BTreeMap<VarId, BTreeSet<(Pass, usize)>> = BTreeMap::new();
        for member in &self.members {
            for var in main.op(member.id).all_inputs() {
                let Some(origin) = self.origins.get(&var) else { continue };
                let Place::Part(from) = origin.place else { continue };
                let Place::Part(to) = member.place else {
                    return Err(runs_everywhere(main, member.id, var, from));
                };
                if from == to {
                    continue;
                }
                let is_back = match (origin.pass, member.pass) {
                    (Pass::Forward, Pass::Forward) => to < from,
                    (Pass::Forward, Pass::Backward) => false,
                    (_, _) => to > from,
                };
                if is_back {
                    return Err(goes_back(main, member.id, var, (from, to)));
                }
                readers.entry(var).or_default().insert((member.pass, to));
            }
        }
        let mut routed: Vec<(usize, VarId, BTreeSet<usize>)> = Vec::new();
        for (var, readers) in readers {
            let origin = self.origins[&var];
            routed.push((origin.at, var, readers.into_iter().map(|(_, part)| part).collect()));
        }
        routed.sort_by_key(|(at, ..)| *at);
        // Values that a part only passes on are sent before those that it computes.
        let mut sent: Vec<(Pass, usize, usize, VarId)> = Vec::new();
        for (at, var, readers) in routed {
            let origin = self.origins[&var];
            let Place::Part(from) = origin.place else { continue };
            let mut holders = HashSet::from([size.stage_of(from)]);
            let mut hops = |pass: Pass| {
                let ahead = |part: usize, than: usize| match pass {
                    Pass::Forward => part > than,
                    _ => part < than,
                };
                let mut part = from;
                while readers
                    .iter()
                    .any(|to| ahead(*to, part) && !holders.contains(&size.stage_of(*to)))
                {
                    sent.push((pass, part, if part == from { at + 1 } else { 0 }, var));
                    part = if pass == Pass::Forward { part + 1 } else { part - 1 };
                    holders.insert(size.stage_of(part));
                }
            };
            if origin.pass == Pass::Forward {
                hops(Pass::Forward);
            }
            hops(Pass::Backward);
        }
        // A stable sort: values that are passed on keep the order in which they arrive.
        sent.sort_by_key(|(.., at, _)| *at);
        for (pass, part, _, var) in sent {
            match pass {
                Pass::Forward => self.forward[part].push(var),
                _ => self.backward[part].push(var),
            }
        }
        Ok(())
    }

    /// Rejects state that ops of two stages use and one of them changes.
    fn check_state(&self, main: &Program, size: Size) -> Result<()> {
        let mut users: BTreeMap<VarId, BTreeSet<usize>> = BTreeMap::new();
        let mut written: BTreeMap<VarId, OpId> = BTreeMap::new();
        for member in &self.members {
            let Place::Part(part) = member.place else { continue };
            let op = main.op(member.id);
            for var in op.all_inputs().chain(op.all_outputs()) {
                if main.var(var).persistable {
                    users.entry(var).or_default().insert(size.stage_of(part));
                }
            }
            let kept = op.all_outputs().filter(|var| main.var(*var).persistable);
            written.extend(kept.map(|var| (var, member.id)));
        }
        for (var, writer) in written {
            if users[&var].len() > 1 {
                return Err(Error::invalid(format!(
                    "stages of the pipeline share '{}', which the forward pass changes",
                    main.var_name(var)
                ))
                .expected("one stage that uses it")
                .got(format!("stages {}", list(&users[&var])))
                .help("give the ops that use it the same stage")
                .at(main.describe_op(writer)));
            }
        }
        Ok(())
    }
}

/// Returns `0, 1 and 3`.
fn list(numbers: &BTreeSet<usize>) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    match &numbers[..] {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => numbers.join(", "),
    }
}

/// Lists the ops with their passes and places. Backward ops have the labels of their forward ops.
/// One without a label runs where its inputs come from: the seed at the loss, for example.
pub fn members(main: &Program) -> Result<Vec<Member>> {
    let mut made: HashMap<VarId, usize> = HashMap::new();
    let mut of_loss = 0;
    let mut members = Vec::new();
    for (id, op) in main.root_ops() {
        let pass = match op.role {
            role if role.is_forward() => Pass::Forward,
            role if role.is_backward() => Pass::Backward,
            _ => {
                return Err(Error::unsupported("pipeline: the program has updates already")
                    .expected("a forward pass and its gradients")
                    .at(main.describe_op(id)));
            }
        };
        let from = || op.all_inputs().filter_map(|var| made.get(&var)).copied();
        let near = match pass {
            Pass::Forward => from().max(),
            _ => from().min(),
        };
        let place = Place::of(op).unwrap_or(Place::Part(near.unwrap_or(of_loss)));
        if pass == Pass::Backward && place == Place::All {
            return Err(Error::unsupported(
                "pipeline: a gradient flows through an op that runs on all stages",
            )
            .help("give its forward op the label of one stage")
            .at(main.describe_op(id)));
        }
        if let Place::Part(part) = place {
            made.extend(op.all_outputs().map(|var| (var, part)));
            if pass == Pass::Forward && op.role.is_loss() {
                of_loss = part;
            }
        }
        members.push(Member { id, pass, place });
    }
    Ok(members)
}

pub fn origins(main: &Program, members: &[Member]) -> Result<HashMap<VarId, Origin>> {
    let mut origins: HashMap<VarId, Origin> = HashMap::new();
    for (at, member) in members.iter().enumerate() {
        let Member { id, pass, place } = *member;
        for var in main.op(id).all_outputs().filter(|var| !main.var(*var).persistable) {
            let origin = origins.entry(var).or_insert(Origin { pass, place, at });
            if (origin.pass, origin.place) != (pass, place) {
                return Err(Error::unsupported(format!(
                    "pipeline: '{}' is written on two stages",
                    main.var_name(var)
                ))
                .help("let each op write its own variable")
                .at(main.describe_op(id)));
            }
            origin.at = at;
        }
    }
    Ok(origins)
}

fn goes_back(main: &Program, id: OpId, var: VarId, (from, to): (usize, usize)) -> Error {
    Error::invalid(format!(
        "stage {to} of the pipeline reads '{}', which stage {from} computes",
        main.var_name(var)
    ))
    .expected("stages in the order in which data flows")
    .help("give the op that reads it the same or a later stage")
    .at(main.describe_op(id))
}

fn runs_everywhere(main: &Program, id: OpId, var: VarId, from: usize) -> Error {
    Error::invalid(format!(
        "an op that runs on all stages reads '{}', which stage {from} computes",
        main.var_name(var)
    ))
    .expected("fed variables, parameters, and results of ops that run on all stages")
    .help("give the op the label of one stage")
    .at(main.describe_op(id))
}
