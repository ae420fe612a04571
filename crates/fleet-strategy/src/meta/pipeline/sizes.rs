//! The sizes of micro-batches: which fed variables are divided, and the shapes of values that
//! follow from their rows.
//!
//! Fed variables whose first dimension is open (-1) are divided. If none is open, the program is
//! written for one batch size, and those with the largest first dimension are divided. All others
//! are read whole by each micro-batch.
//!
//! A stage declares the shapes of values that it receives. Open dimensions are multiples of the
//! rows of a micro-batch. These are `micro_batch_size`, or follow from what the rank is fed.

use super::flow::Member;
use crate::effective::Effective;
use fleet_base::{Error, Result};
use fleet_ir::{Program, VarId};
use fleet_ops::{Meta, Registry, meta};
use fleet_tensor::Shape;
use std::collections::{BTreeSet, HashMap};

/// The sizes of a program's micro-batches.
pub struct Sizes {
    /// Fed variables that are divided.
    pub divided: BTreeSet<VarId>,
    /// Rows of a micro-batch, if they are known.
    pub rows: Option<i64>,
    /// Number of micro-batches.
    pub micros: usize,
    /// For a program that is written for one batch size: the shapes in a micro-batch.
    shapes: HashMap<VarId, Shape>,
    /// For a program with an open batch size: the open dimensions as multiples of the rows.
    factors: HashMap<VarId, Vec<i64>>,
}

/// The shape of a received value.
pub struct Received {
    pub shape: Vec<i64>,
    /// The fed variable whose rows give the open dimensions.
    pub rows_of: Option<VarId>,
}

impl Sizes {
    pub fn of(
        main: &Program,
        registry: &Registry,
        strategy: &Effective<'_>,
        members: &[Member],
        sent: &BTreeSet<VarId>,
    ) -> Result<Sizes> {
        let configs = strategy.pipeline_configs();
        let micros = configs.accumulate_steps().max(1) as usize;
        let used: BTreeSet<VarId> = members
            .iter()
            .flat_map(|member| main.op(member.id).all_inputs())
            .filter(|var| main.var(*var).is_data)
            .collect();
        let first = |var: VarId| main.var(var).shape.first().copied();
        let is_open = used.iter().any(|var| first(*var) == Some(-1));
        let whole = match is_open {
            true => Some(-1),
            false => used.iter().filter_map(|var| first(*var)).max(),
        };
        let divided: BTreeSet<VarId> =
            used.into_iter().filter(|var| whole.is_some() && first(*var) == whole).collect();
        let ragged = divided.iter().find(|var| main.var(**var).lod_level > 0);
        if let Some(ragged) = ragged {
            return Err(Error::unsupported(format!(
                "pipeline: the rows of '{}' cannot be divided into micro-batches",
                main.var_name(*ragged)
            ))
            .expected("one row for each sample")
            .got("a ragged variable")
            .help("feed padded values"));
        }
        let rows = configs.micro_batch_size.map(i64::from);
        let mut sizes =
            Sizes { divided, rows, micros, shapes: HashMap::new(), factors: HashMap::new() };
        match whole.filter(|_| !is_open && micros > 1) {
            Some(whole) => sizes.infer_pieces(main, registry, members, whole)?,
            None => sizes.infer_factors(main, registry, members, sent)?,
        }
        Ok(sizes)
    }

    /// Returns the shape of a variable in a micro-batch.
    pub fn shape(&self, main: &Program, var: VarId) -> Shape {
        self.shapes.get(&var).copied().unwrap_or(main.var(var).shape)
    }

    /// Returns whether a value consists of the rows of micro-batches.
    pub fn has_rows(&self, main: &Program, var: VarId) -> bool {
        let whole = main.var(var).shape.first().copied();
        match self.shapes.get(&var) {
            Some(shape) => {
                shape.first().map(|rows| rows * self.micros as i64) == whole
                    && shape.first().copied() != whole
            }
            None => whole == Some(-1),
        }
    }

    /// Returns the shape of a received value, of one micro-batch or of the whole batch.
    pub fn received(&self, main: &Program, var: VarId, is_whole: bool) -> Received {
        let shape = if is_whole { main.var(var).shape } else { self.shape(main, var) };
        let Some(factors) = self.factors.get(&var) else {
            return Received { shape: shape.to_vec(), rows_of: None };
        };
        let fed = self.divided.first().copied();
        let rows = match (self.rows, is_whole) {
            (Some(rows), false) => Some(rows),
            // A rank that is fed nothing evaluates batches of this size only.
            (Some(rows), true) if fed.is_none() => Some(rows * self.micros as i64),
            _ => None,
        };
        let dims = shape.iter().zip(factors).map(|(dim, factor)| match (*dim, rows) {
            (-1, Some(rows)) => factor * rows,
            (-1, None) => -factor,
            (dim, _) => dim,
        });
        Received { shape: dims.collect(), rows_of: fed.filter(|_| rows.is_none()) }
    }

    /// Infers the shapes in a micro-batch of a program that is written for `whole` rows.
    fn infer_pieces(
        &mut self,
        main: &Program,
        registry: &Registry,
        members: &[Member],
        whole: i64,
    ) -> Result<()> {
        let micros = self.micros as i64;
        let wanted = self.rows.map_or(whole, |rows| rows * micros);
        if whole % micros != 0 || wanted != whole {
            let rows = self.rows.map_or(String::new(), |rows| format!(" of {rows} rows"));
            return Err(Error::invalid("micro-batches do not divide the rows of the batch")
                .expected(format!("{micros} micro-batches{rows}"))
                .got(format!("a program for {whole} rows"))
                .at("pipeline_configs"));
        }
        let known = infer(main, registry, members, |var, shape| {
            if self.divided.contains(&var) {
                shape.dims_mut()[0] = whole / micros;
            }
        });
        let known = known.map_err(|error| {
            error.help(
                "an op depends on the batch size of the program: declare fed variables with -1 \
                 rows, or change the op",
            )
        })?;
        let changed = known.into_iter().filter(|(var, meta)| {
            main.var(*var).shape != meta.shape && !main.var(*var).persistable
        });
        self.shapes = changed.map(|(var, meta)| (var, meta.shape)).collect();
        Ok(())
    }

    /// Finds the open dimensions of sent values as multiples of the rows of a micro-batch.
    fn infer_factors(
        &mut self,
        main: &Program,
        registry: &Registry,
        members: &[Member],
        sent: &BTreeSet<VarId>,
    ) -> Result<()> {
        let open: Vec<VarId> =
            sent.iter().copied().filter(|var| !main.var(*var).shape.is_known()).collect();
        if open.is_empty() {
            return Ok(());
        }
        let at = |rows: i64, other: i64| {
            infer(main, registry, members, |var, shape| {
                let is_divided = self.divided.contains(&var);
                for (axis, dim) in shape.dims_mut().iter_mut().enumerate().filter(|it| *it.1 < 0) {
                    *dim = if is_divided && axis == 0 { rows } else { other };
                }
            })
        };
        // Two batch sizes, and another size of all other open dimensions.
        let (small, large, longer) = (at(2, 2)?, at(4, 2)?, at(2, 4)?);
        for var in open {
            let shapes = [&small, &large, &longer].map(|known| known[&var].shape);
            let mut factors = Vec::new();
            for axis in 0..shapes[0].rank() {
                let [small, large, longer] = shapes.map(|shape| shape[axis]);
                let is_multiple = large == 2 * small && small % 2 == 0;
                let is_open = main.var(var).shape[axis] < 0;
                if is_open && (longer != small || !is_multiple) {
                    return Err(not_by_rows(main, var, axis));
                }
                factors.push(small / 2);
            }
            self.factors.insert(var, factors);
        }
        Ok(())
    }
}

fn not_by_rows(main: &Program, var: VarId, axis: usize) -> Error {
    let it = main.var(var);
    Error::unsupported(format!(
        "pipeline: the size of '{}', which goes from one stage to another, is not known",
        it.name
    ))
    .expected("open dimensions that are multiples of the rows of the batch")
    .got(format!("{}, dimension {axis}", it.shape))
    .help("give fed variables fixed sizes apart from their rows")
}

/// Infers all types and shapes, for fed variables whose shapes `set` completes.
fn infer(
    main: &Program,
    registry: &Registry,
    members: &[Member],
    set: impl Fn(VarId, &mut Shape),
) -> Result<HashMap<VarId, Meta>> {
    let mut known: HashMap<VarId, Meta> = HashMap::new();
    for (var, it) in main.vars().filter(|(_, var)| var.is_data) {
        let mut shape = it.shape;
        set(var, &mut shape);
        known.insert(var, Meta { shape, ..meta(main, var) });
    }
    for member in members {
        let op = main.op(member.id);
        let def = registry.get(op.name())?;
        let of = |var| known.get(&var).copied().unwrap_or_else(|| meta(main, var));
        let made = def.shapes(op, of).map_err(|error| error.at(main.describe_op(member.id)))?;
        for (vars, metas) in op.outputs.iter().zip(made) {
            known.extend(vars.iter().copied().zip(metas));
        }
    }
    Ok(known)
}
