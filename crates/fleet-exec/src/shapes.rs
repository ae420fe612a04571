//! Types and shapes of all variables of a program, for known feeds.
//!
//! One walk over the ops, in execution order, infers all shapes from the fed ones. A variable has
//! one type and one shape in the whole program. A second write with another type or shape is an
//! error, even in another block. Memory, arguments and kernels all use this table, so a kernel, its
//! arguments and their memory always have the same length.

use crate::flat::Flat;
use fleet_base::{Error, Result, SecondaryMap};
use fleet_ir::{OpId, Program, VarId, VarKind};
use fleet_ops::verify::two_sizes;
use fleet_ops::{Meta, OpDef};
use fleet_tensor::{DType, Shape};

/// The known types and shapes from which the others are inferred.
pub(crate) struct KnownShapes<'a> {
    pub feeds: &'a [(VarId, Meta)],
    /// Returns the type and shape of a variable in the scope.
    pub scope_meta: &'a dyn Fn(&str) -> Option<(DType, Shape)>,
}

/// The shapes of a program. Each variable's shape is fixed by its feed, by the scope, or by its
/// first write.
pub(crate) struct Shapes<'a> {
    program: &'a Program,
    metas: SecondaryMap<VarId, Meta>,
    /// The first op that writes each variable.
    first_writers: SecondaryMap<VarId, OpId>,
}

impl<'a> Shapes<'a> {
    /// Infers the shapes of the ops in `flat`.
    pub fn infer(
        program: &'a Program,
        flat: &[Flat],
        known: &KnownShapes<'_>,
    ) -> Result<Shapes<'a>> {
        let mut shapes = Shapes::of_inputs(program, known)?;
        for step in flat {
            match step {
                Flat::Op(id, def) => shapes.add_op(*id, def),
                Flat::Jump { op, condition, .. } => shapes.check_condition(*op, *condition),
            }?;
        }
        Ok(shapes)
    }

    /// Returns the type and shape of a variable that an op of the program reads or writes.
    pub fn of(&self, var: VarId) -> Meta {
        self.metas[var]
    }

    pub fn of_slots(&self, slots: &[Vec<VarId>]) -> Vec<Vec<Meta>> {
        slots.iter().map(|vars| vars.iter().map(|var| self.of(*var)).collect()).collect()
    }

    /// Returns an error if the shape of a variable is not known.
    pub fn check_known(&self, id: VarId) -> Result<()> {
        let var = self.program.var(id);
        match self.metas.get(id) {
            Some(meta) if meta.shape.is_known() => Ok(()),
            Some(meta) => Err(Error::invalid(format!("unknown shape of '{}'", var.name))
                .got(meta.shape)
                .help("run the startup program, or load the variable, before this program")),
            None if var.is_data => {
                Err(Error::invalid(format!("no value was fed for '{}'", var.name))
                    .expected(format!("{}{}", var.dtype, var.shape)))
            }
            None => Err(Error::invalid(format!("'{}' is read before it is written", var.name))),
        }
    }

    fn of_inputs(program: &'a Program, known: &KnownShapes<'_>) -> Result<Shapes<'a>> {
        let mut metas: SecondaryMap<VarId, Meta> = known.feeds.iter().copied().collect();
        for (id, var) in program.vars().filter(|(_, var)| var.persistable) {
            if var.is_data {
                return Err(Error::invalid(format!(
                    "variable '{}' is both fed and kept between runs",
                    var.name
                )));
            }
            let meta = match (known.scope_meta)(&var.name) {
                Some((dtype, shape)) => {
                    if dtype != var.dtype || !shape.agrees(&var.shape) {
                        return Err(Error::invalid(format!(
                            "variable '{}' in the scope does not match its declaration",
                            var.name
                        ))
                        .expected(format!("{}{}", var.dtype, var.shape))
                        .got(format!("{dtype}{shape}")));
                    }
                    Meta::dense(dtype, shape)
                }
                None => Meta::dense(var.dtype, var.shape),
            };
            metas.insert(id, meta);
        }
        Ok(Shapes { program, metas, first_writers: SecondaryMap::new() })
    }

    fn add_op(&mut self, id: OpId, def: &OpDef) -> Result<()> {
        let op = self.program.op(id);
        let place = |error: Error| error.at(self.program.describe_op(id));
        for var in op.all_inputs() {
            self.check_known(var).map_err(place)?;
        }
        let made = def.shapes(op, |var| self.metas[var]).map_err(place)?;
        for (vars, metas) in op.outputs.iter().zip(made) {
            for (index, var) in vars.iter().enumerate() {
                let made = metas.get(index).ok_or_else(|| {
                    place(
                        Error::internal("shape rule sets no shape for an output")
                            .got(self.program.var_name(*var)),
                    )
                })?;
                self.check_write(*var, *made).map_err(place)?;
                self.metas.insert(*var, *made);
                self.first_writers.get_or_insert_with(*var, || id);
            }
        }
        Ok(())
    }

    /// Returns an error if a variable cannot hold an op's output.
    fn check_write(&self, id: VarId, made: Meta) -> Result<()> {
        let var = self.program.var(id);
        // A fed tensor belongs to the caller, so no op may write it.
        if var.is_data {
            return Err(Error::invalid(format!("the op writes '{}', a fed variable", var.name))
                .help("write to another variable"));
        }
        let stated = Meta { dtype: var.dtype, shape: var.shape, kind: var.kind, rows: made.rows };
        let fits = stated.dtype == made.dtype
            && stated.kind == made.kind
            && stated.shape.agrees(&made.shape);
        if !fits {
            return Err(Error::invalid(format!(
                "output '{}' does not match its declared type or shape",
                var.name
            ))
            .expected(stated.describe())
            .got(made.describe()));
        }
        if !made.shape.is_known() {
            return Err(Error::invalid(format!("cannot infer the shape of '{}'", var.name))
                .expected("a shape that follows from the feeds")
                .got(made.shape));
        }
        if var.persistable && made.kind != VarKind::Dense {
            return Err(Error::invalid(format!("'{}' cannot be persistable", var.name))
                .expected("a dense tensor")
                .got(made.describe())
                .help("remove 'persistable'"));
        }
        match self.metas.get(id) {
            Some(held) if held.shape.is_known() && *held != made => {
                Err(self.size_conflict(id, *held, made))
            }
            _ => Ok(()),
        }
    }

    fn size_conflict(&self, id: VarId, held: Meta, made: Meta) -> Error {
        match self.first_writers.get(id) {
            Some(first) => two_sizes(self.program, id, (held, *first), made),
            None => Error::invalid(format!(
                "output '{}' does not match its shape in the scope",
                self.program.var_name(id)
            ))
            .expected(held.describe())
            .got(made.describe()),
        }
    }

    /// Checks that a condition is one bool. The executor reads only one byte of it.
    fn check_condition(&self, op: OpId, condition: VarId) -> Result<()> {
        let place = |error: Error| error.at(self.program.describe_op(op));
        self.check_known(condition).map_err(place)?;
        let meta = self.of(condition);
        let fits = meta.dtype == DType::Bool && meta.kind == VarKind::Dense && meta.numel() == 1;
        if !fits {
            let name = self.program.var_name(condition);
            return Err(place(
                Error::invalid(format!("'{name}' is not a condition"))
                    .expected("bool of one element")
                    .got(meta.describe()),
            ));
        }
        Ok(())
    }
}
