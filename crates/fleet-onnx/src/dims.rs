//! Names of unknown dimensions.
//!
//! Two dimensions get the same name only if the network requires them to be equal: runtimes plan
//! memory by these names. Shape rules decide. Each unknown dimension of an input in turn gets a
//! size of its own. If that does not fit, it must equal an earlier one.

use fleet_ir::{Program, VarId};
use fleet_ops::{Meta, Registry, meta};
use std::collections::HashMap;

/// Names of the unknown dimensions of inputs and results.
pub(crate) struct DimNames {
    names: HashMap<(VarId, usize), String>,
}

/// Sizes for trial, by class: primes far from usual sizes, so that no sum or product of others
/// equals one of them.
const TRIALS: [i64; 12] = [
    1_000_003, 1_300_021, 1_700_021, 2_100_001, 2_500_009, 2_900_017, 3_300_001, 3_700_001,
    4_100_011, 4_500_007, 4_900_001, 5_300_003,
];

impl DimNames {
    pub fn of(program: &Program, targets: &[VarId]) -> DimNames {
        let feeds: Vec<(VarId, usize)> = program
            .vars()
            .filter(|(_, var)| var.is_data)
            .flat_map(|(id, var)| {
                let dims = var.shape.to_vec().into_iter().enumerate();
                dims.filter(|(_, dim)| *dim < 0).map(move |(axis, _)| (id, axis))
            })
            .collect();
        let mut sizes: HashMap<(VarId, usize), i64> = HashMap::new();
        let mut names = HashMap::new();
        let mut class_names: Vec<String> = Vec::new();
        for place in feeds {
            let fresh = TRIALS.get(class_names.len()).copied();
            let known = &TRIALS[..class_names.len().min(TRIALS.len())];
            let fits = |size: &i64| {
                let mut sizes = sizes.clone();
                sizes.insert(place, *size);
                shapes(program, &sizes).is_some()
            };
            let size = match fresh {
                Some(fresh) if fits(&fresh) => Some(fresh),
                Some(_) => known.iter().copied().find(fits),
                None => None,
            };
            let Some(size) = size else {
                names.insert(place, own_name(program, place));
                continue;
            };
            if Some(size) == fresh {
                class_names.push(name_of(program, place, &class_names));
            }
            sizes.insert(place, size);
        }
        let name = |size: i64| {
            let class = TRIALS.iter().position(|it| *it == size)?;
            class_names.get(class).cloned()
        };
        names.extend(sizes.iter().filter_map(|(place, size)| Some((*place, name(*size)?))));
        let made = shapes(program, &sizes).unwrap_or_default();
        for target in targets {
            let Some(meta) = made.get(target) else { continue };
            let named = meta.shape.iter().enumerate();
            names.extend(named.filter_map(|(axis, dim)| Some(((*target, axis), name(*dim)?))));
        }
        DimNames { names }
    }

    /// Returns the name of a dimension; `None` if it equals none of an input.
    pub fn name(&self, var: VarId, axis: usize) -> Option<String> {
        self.names.get(&(var, axis)).cloned()
    }
}

/// Returns a new name for a dimension: `batch` for the first one of an input's first dimension.
fn name_of(program: &Program, (id, axis): (VarId, usize), taken: &[String]) -> String {
    match axis == 0 && !taken.iter().any(|name| name == BATCH) {
        true => BATCH.to_string(),
        false => own_name(program, (id, axis)),
    }
}

fn own_name(program: &Program, (id, axis): (VarId, usize)) -> String {
    format!("{}_dim_{axis}", program.var_name(id))
}

const BATCH: &str = "batch";

/// Infers all shapes of the root block for known dimensions of inputs; `None` if they do not fit.
fn shapes(program: &Program, sizes: &HashMap<(VarId, usize), i64>) -> Option<HashMap<VarId, Meta>> {
    let mut metas: HashMap<VarId, Meta> = HashMap::new();
    for (id, _) in program.vars() {
        let mut meta = meta(program, id);
        for (axis, dim) in meta.shape.dims_mut().iter_mut().enumerate() {
            *dim = sizes.get(&(id, axis)).copied().unwrap_or(*dim);
        }
        metas.insert(id, meta);
    }
    for (_, op) in program.root_ops() {
        let def = Registry::standard().find(op.name())?;
        let made = def.shapes(op, |var| metas[&var]).ok()?;
        for (var, meta) in op.outputs.iter().flatten().zip(made.into_iter().flatten()) {
            metas.insert(*var, meta);
        }
    }
    Some(metas)
}
