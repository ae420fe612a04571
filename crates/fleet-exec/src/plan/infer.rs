//! First phase: the steps of a program in order, with the lane of each and all shapes.

use super::PlanRequest;
use crate::flat::{self, Flat, LaneAssignment, LaneKey};
use crate::shapes::{KnownShapes, Shapes};
use fleet_base::{Error, Result, SecondaryMap};
use fleet_ir::{Program, VarId, VarKind};
use fleet_ops::Meta;
use fleet_tensor::{Arg, Layout};

pub(super) struct Inferred<'a> {
    pub program: &'a Program,
    pub flat: Vec<Flat>,
    /// The lane of each entry of `flat`.
    pub lanes: Vec<LaneKey>,
    pub communicates: bool,
    /// The source of all sizes: memory, arguments and kernels are made from these.
    pub shapes: Shapes<'a>,
}

impl<'a> Inferred<'a> {
    pub fn new(request: &'a PlanRequest<'a>) -> Result<Inferred<'a>> {
        let program = &request.program;
        let one_lane = request.options.build.enable_sequential_execution;
        let assignment = LaneAssignment::new(program, request.registry, one_lane)?;
        let flat = flat::flatten(program, request.registry, &assignment)?;
        let known = KnownShapes { feeds: request.feeds, scope_meta: request.scope_meta };
        let shapes = Shapes::infer(program, &flat, &known)?;
        let lane = |step: &Flat| match step {
            Flat::Op(id, def) => assignment.lane(program.op(*id), def),
            Flat::Jump { lane, .. } => *lane,
        };
        let lanes = flat.iter().map(lane).collect();
        Ok(Inferred { program, flat, lanes, communicates: assignment.communicates, shapes })
    }

    pub fn meta(&self, var: VarId) -> Meta {
        self.shapes.of(var)
    }

    pub fn layout(&self, var: VarId) -> Layout {
        self.program.var(var).layout
    }

    /// Returns the size of a variable's values.
    pub fn bytes(&self, var: VarId) -> usize {
        let meta = self.meta(var);
        match meta.kind {
            VarKind::SparseRows => meta.bytes(),
            _ => self.layout(var).physical_len(&meta.shape) * meta.dtype.size(),
        }
    }

    /// Returns an argument without addresses; binding fills them in.
    pub fn arg(&self, var: VarId) -> Arg {
        self.meta(var).arg(self.layout(var))
    }

    /// Rejects fetches of variables that have no value in some steps.
    pub fn check_fetches(&self, fetches: &[VarId]) -> Result<()> {
        if fetches.is_empty() {
            return Ok(());
        }
        let always_written = self.always_written();
        fetches.iter().try_for_each(|id| {
            self.shapes.check_known(*id)?;
            let var = self.program.var(*id);
            if var.persistable || var.is_data || always_written.get(*id) != Some(&false) {
                return Ok(());
            }
            Err(Error::invalid(format!("'{}' cannot be fetched", var.name))
                .expected("a variable that is written in every step")
                .got("a variable that only a conditional block writes")
                .help("fetch the result of cond, or a persistable variable"))
        })
    }

    /// Returns whether each written variable is written outside of conditional parts. Another one
    /// has no value in runs that skip these parts. (A persistable one has the value of an earlier
    /// run then.)
    fn always_written(&self) -> SecondaryMap<VarId, bool> {
        let (mut behind, mut always) = (0, SecondaryMap::new());
        for (at, step) in self.flat.iter().enumerate() {
            match step {
                Flat::Jump { to, .. } => behind = behind.max(*to),
                Flat::Op(op, _) => self.program.op(*op).all_outputs().for_each(|var| {
                    *always.get_or_insert_with(var, || false) |= at >= behind;
                }),
            }
        }
        always
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Planned;

    const BRANCH: &str = "fleet program 1
        block0 {
          %x: f32[4] data
          %go: bool[1] data
          %y: f32[4]
          %z: f32[4]
          () = conditional_block(Cond: %go) {sub_block: block1}
          (Out: %z) = relu(X: %x)
        }
        block1 in block0 {
          (Out: %y) = relu(X: %x)
          (Out: %z) = tanh(X: %x)
        }";

    #[test]
    fn a_fetched_variable_has_a_value_in_every_run() {
        let check = |fetch: &str| {
            let planned = Planned::new(BRANCH);
            planned.with(|inferred| inferred.check_fetches(&[planned.var(fetch)]))
        };
        assert!(check("x").is_ok() && check("z").is_ok());
        assert_eq!(check("y").unwrap_err().message(), "'y' cannot be fetched");
    }

    #[test]
    fn sizes_follow_from_the_feeds() {
        let planned = Planned::new(BRANCH);
        planned.with(|inferred| {
            assert_eq!((inferred.flat.len(), inferred.lanes.len()), (4, 4));
            assert_eq!(["x", "go", "z"].map(|name| inferred.bytes(planned.var(name))), [16, 1, 16]);
            assert!(!inferred.communicates);
        });
    }
}
