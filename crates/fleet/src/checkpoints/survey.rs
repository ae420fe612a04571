//! The variables of a checkpoint: which ranks hold which parts of them, and whether the parts are
//! all of each variable.

use super::parts::Parts;
use fleet_base::Error;
use fleet_format::{Damage, SavedTensor};
use fleet_ir::Division;
use fleet_strategy::Spread;
use fleet_tensor::{DType, Shape};
use std::collections::{BTreeMap, BTreeSet};

/// A variable of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedVar {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The shape of the whole variable.
    pub shape: Shape,
    /// The bytes of its values in the files of all ranks.
    pub bytes: u64,
    /// The ranks that hold it.
    pub held: Held,
}

/// The ranks that hold a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// All ranks have the same value, which the checkpoint has once.
    Common,
    /// These ranks have the whole variable, with the same value.
    Owners(Vec<usize>),
    /// Every rank has a value of its own.
    Each(Spread),
    /// Ranks have parts.
    Parts {
        /// How the variable is divided: the first part.
        division: Division,
        /// The ranks that have each part.
        ranks: Vec<Vec<usize>>,
        /// How values of different ranks for one part are combined; `None` if they are the same.
        spread: Option<Spread>,
    },
}

/// Returns the variables by name, and the faults by which they cannot be put together. Tensors are
/// not read: equal values are recognized by their checksums.
pub(super) fn survey(parts: &Parts) -> (Vec<SavedVar>, Vec<Damage>) {
    let (mut vars, mut faults) = (Vec::new(), Vec::new());
    // By name, so that variables and faults have a fixed order.
    let mut by_name: BTreeMap<&str, Vec<(usize, SavedTensor<'_>)>> = BTreeMap::new();
    for (rank, part) in parts.ranks.iter().enumerate() {
        for tensor in part.index.tensors() {
            by_name.entry(tensor.name()).or_default().push((rank, tensor));
        }
    }
    for tensor in parts.common.tensors() {
        if let Some((rank, own)) = by_name.remove(tensor.name()).and_then(|it| it.first().copied())
        {
            let what = format!("the variable is in the common part and in that of rank {rank}");
            faults.push(fault(&own, Error::invalid(what)));
        }
        vars.push(var(&[(0, tensor)], *tensor.shape(), Held::Common));
    }
    for var in &parts.head.local {
        if !by_name.contains_key(&*var.name) {
            faults.push(missing(parts, format!("no rank's part has the variable '{}'", var.name)));
        }
    }
    for (rank, part) in parts.ranks.iter().enumerate() {
        for name in part.divided.keys().filter(|name| part.index.find(name).is_none()) {
            faults.push(missing(parts, format!("rank {rank} lacks its part of '{name}'")));
        }
    }
    for held in by_name.values() {
        match own(parts, held) {
            Ok(var) => vars.push(var),
            Err(fault) => faults.push(*fault),
        }
    }
    vars.sort_by(|a, b| a.name.cmp(&b.name));
    (vars, faults)
}

type Holders<'i> = [(usize, SavedTensor<'i>)];

/// Describes a variable that ranks hold.
fn own(parts: &Parts, held: &Holders<'_>) -> Result<SavedVar, Box<Damage>> {
    let (first_rank, first) = held[0];
    for (rank, other) in &held[1..] {
        let described = |it: &SavedTensor<'_>| format!("{}{}", it.info().dtype, it.info().shape);
        if described(other) != described(&first) {
            let error = Error::invalid("ranks saved different types or shapes")
                .expected(format!("{} as on rank {first_rank}", described(&first)))
                .got(format!("{} on rank {rank}", described(other)));
            return Err(Box::new(fault(other, error)));
        }
    }
    let name = first.name();
    let spread = parts.head.spread(name);
    if held.iter().any(|(rank, _)| parts.ranks[*rank].divided.contains_key(name)) {
        return divided(parts, held, spread);
    }
    let ranks: Vec<usize> = held.iter().map(|(rank, _)| *rank).collect();
    match spread {
        // Values may differ: each pipeline has statistics of its own for a stage.
        None => Ok(var(held, *first.shape(), Held::Owners(ranks))),
        Some(spread) if ranks.len() == parts.head.ranks => {
            Ok(var(held, *first.shape(), Held::Each(spread)))
        }
        Some(_) => {
            let lacks: Vec<usize> =
                (0..parts.head.ranks).filter(|rank| !ranks.contains(rank)).collect();
            let error = Error::invalid("not every rank has its own value of the variable")
                .expected(format!("{} values", parts.head.ranks))
                .got(format!("none on ranks {lacks:?}"));
            Err(Box::new(fault(&first, error)))
        }
    }
}

/// Describes a variable of which ranks hold parts.
fn divided(
    parts: &Parts,
    held: &Holders<'_>,
    spread: Option<Spread>,
) -> Result<SavedVar, Box<Damage>> {
    let (first_rank, first) = held[0];
    let name = first.name();
    let wrong = |tensor: &SavedTensor<'_>, error: Error| Err(Box::new(fault(tensor, error)));
    let division_of = |rank: usize| parts.ranks[rank].divided.get(name).copied();
    let Some(division) = division_of(first_rank) else {
        let what = format!("rank {first_rank} has all of a variable of which others have parts");
        return wrong(&first, Error::invalid(what));
    };
    let Some(whole) = division.whole(first.shape()).filter(|_| division.fits(first.shape())) else {
        let error = Error::invalid("the shape is not that of a part of a variable");
        return wrong(&first, error.got(first.shape()));
    };
    if division.parts > parts.head.ranks {
        let error = Error::invalid("a variable has more parts than there are ranks");
        return wrong(&first, error.expected(parts.head.ranks).got(division.parts));
    }
    let mut ranks = vec![Vec::new(); division.parts];
    for (rank, tensor) in held {
        let own = division_of(*rank);
        let Some(own) = own.filter(|own| Division { part: division.part, ..*own } == division)
        else {
            let error = Error::invalid("ranks divide a variable in different ways")
                .expected(format!("{} as on rank {first_rank}", division_text(Some(division))))
                .got(format!("{} on rank {rank}", division_text(division_of(*rank))));
            return wrong(tensor, error);
        };
        ranks[own.part].push(*rank);
    }
    if let Some(part) = ranks.iter().position(Vec::is_empty) {
        let error = Error::invalid("no rank has a part of a divided variable")
            .expected(format!("{} parts", division.parts))
            .got(format!("no part {part}"));
        return wrong(&first, error);
    }
    for ranks in ranks.iter().filter(|_| spread.is_none()) {
        let copies: BTreeSet<usize> = ranks.iter().copied().collect();
        let copies: Vec<_> = held.iter().copied().filter(|(it, _)| copies.contains(it)).collect();
        check_equal(&copies)?;
    }
    let division = Division { part: 0, ..division };
    Ok(var(held, whole, Held::Parts { division, ranks, spread }))
}

/// Checks that all ranks have the same value.
fn check_equal(held: &Holders<'_>) -> Result<(), Box<Damage>> {
    let (first_rank, first) = held[0];
    match held.iter().find(|(_, tensor)| tensor.crc32() != first.crc32()) {
        None => Ok(()),
        Some((rank, tensor)) => {
            let sum = |it: &SavedTensor<'_>| format!("{:08x}", it.crc32().unwrap_or(0));
            let error = Error::invalid("copies of a variable differ")
                .expected(format!("checksum {} as on rank {first_rank}", sum(&first)))
                .got(format!("{} on rank {rank}", sum(tensor)));
            Err(Box::new(fault(tensor, error)))
        }
    }
}

fn division_text(division: Option<Division>) -> String {
    match division {
        None => "all of it".to_string(),
        Some(Division { axis, groups, parts, .. }) => {
            format!("axis {axis}, {groups} blocks, {parts} parts")
        }
    }
}

fn var(held: &Holders<'_>, shape: Shape, how: Held) -> SavedVar {
    let info = held[0].1.info();
    let bytes = held.iter().map(|(_, tensor)| tensor.bytes()).sum();
    SavedVar { name: info.name, dtype: info.dtype, shape, bytes, held: how }
}

fn fault(tensor: &SavedTensor<'_>, error: Error) -> Damage {
    let place = (tensor.name().to_string(), tensor.offset(), tensor.bytes());
    Damage { file: tensor.file().to_path_buf(), tensor: Some(place), error }
}

fn missing(parts: &Parts, what: String) -> Damage {
    Damage { file: parts.path.clone(), tensor: None, error: Error::invalid(what) }
}

#[cfg(test)]
mod tests {
    use super::super::parts::Part;
    use super::*;
    use fleet_base::disk::RealDisk;
    use fleet_format::Meta;
    use fleet_strategy::LocalVar;
    use fleet_tensor::Tensor;

    type Ranks<'a> = &'a [(&'a [(&'a str, f32)], &'a [(&'a str, Division)])];

    /// Writes the parts of ranks, each with its variables and the parts that they are. `each` has
    /// a value of its own on every rank. Returns the variables and the faults.
    fn check(ranks: Ranks<'_>) -> (Vec<Held>, Vec<String>) {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("fleet-survey-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let tensor = |value: f32| Tensor::from_slice(&[value; 4], [2, 2]).unwrap();
        let named = |(name, value): &(&str, f32)| (name.to_string(), tensor(*value));
        for (rank, (vars, divided)) in ranks.iter().enumerate() {
            let part = Part {
                place: (rank, ranks.len()),
                run: "1".into(),
                job_step: 5,
                common: if rank == 0 { vec![named(&("common", 1.0))] } else { Vec::new() },
                own: vars.iter().map(named).collect(),
                local: vec![LocalVar { name: "each".into(), spread: Spread::Mean }],
                divided: divided.iter().map(|(name, it)| (name.to_string(), *it)).collect(),
                layers: divided.iter().map(|(_, it)| it.parts).max().unwrap_or(1),
                meta: Meta::default(),
            };
            part.write(&RealDisk::handle(), &path).unwrap();
        }
        let (vars, faults) = survey(&Parts::open(&RealDisk, &path).unwrap());
        std::fs::remove_dir_all(&path).unwrap();
        let told = faults.into_iter().map(|it| format!("{:?} {}", it.tensor, it.error));
        (vars.into_iter().map(|var| var.held).collect(), told.collect())
    }

    fn half(part: usize) -> Division {
        Division { part, parts: 2, ..Division::along(0) }
    }

    #[test]
    fn holders_of_variables_are_found() {
        let (held, faults) = check(&[
            (&[("each", 1.0), ("owned", 2.0), ("w", 3.0)], &[("w", half(0))]),
            (&[("each", 4.0), ("w", 5.0)], &[("w", half(1))]),
            (&[("each", 4.0), ("owned", 2.0), ("w", 3.0)], &[("w", half(0))]),
            (&[("each", 4.0), ("w", 5.0)], &[("w", half(1))]),
        ]);
        assert!(faults.is_empty(), "{faults:?}");
        let ranks = vec![vec![0, 2], vec![1, 3]];
        let parts = Held::Parts { division: half(0), ranks, spread: None };
        let owned = Held::Owners(vec![0, 2]);
        assert_eq!(held, [Held::Common, Held::Each(Spread::Mean), owned, parts]);
    }

    #[test]
    fn every_variable_is_there_once() {
        let fault = |ranks: Ranks<'_>, part: &str| {
            let (_, faults) = check(ranks);
            assert!(faults.len() == 1 && faults[0].contains(part), "no '{part}' in {faults:?}");
        };
        let none: &[(&str, Division)] = &[];
        let each = ("each", 1.0);
        fault(&[(&[each], none), (&[], none)], "expected 2 values, got none on ranks [1]");
        fault(&[(&[], none), (&[], none)], "no rank's part has the variable 'each'");
        let (own, other) = ([each, ("w", 1.0)], [each, ("w", 2.0)]);
        let parts = [half(0), half(1)].map(|it| [("w", it)]);
        let [first, second] = [&parts[0][..], &parts[1][..]];
        let held = [(&own, first), (&own, second), (&other, first), (&own, second)];
        fault(&held.map(|(vars, divided)| (&vars[..], divided)), "copies of a variable");
        fault(&[(&[each, ("common", 1.0)], none), (&[each], none)], "in that of rank 0");
        let w: &[(&str, f32)] = &[each, ("w", 1.0)];
        fault(&[(w, &[("w", half(0))]), (w, &[("w", half(0))])], "2 parts, got no part 1");
        fault(&[(w, &[("w", half(0))]), (w, none)], "got all of it on rank 1");
        fault(&[(w, none), (w, &[("w", half(0))])], "rank 0 has all of a variable");
        let (_, faults) = check(&[(w, &[("w", half(0))]), (&[each], &[("w", half(1))])]);
        let told = ["rank 1 lacks its part of 'w'", "expected 2 parts, got no part 1"];
        for (fault, part) in faults.iter().zip(told) {
            assert!(fault.contains(part), "{fault}");
        }
        assert_eq!(faults.len(), 2);
        let third = Division { part: 2, parts: 3, ..Division::along(0) };
        fault(&[(w, &[("w", half(0))]), (w, &[("w", third)])], "axis 0, 1 blocks, 3 parts on rank");
        // Rank 0 would list three ranks that share layers, which is refused earlier.
        fault(&[(&[each], none), (w, &[("w", third)])], "more parts than there are ranks");
        let fourth = Division { axis: 4, ..half(0) };
        fault(&[(w, &[("w", fourth)]), (w, none)], "not that of a part of a variable");
    }
}
