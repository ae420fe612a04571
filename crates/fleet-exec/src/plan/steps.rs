//! Fifth phase: prepared kernels with their arguments, distributed among lanes.

use super::arena::Places;
use super::infer::Inferred;
use super::{Instr, LanePlan, Place, PlanRequest, Step, StepKind};
use crate::flat::{Flat, LaneKey, only_communicates};
use crate::options::{Device, Memory};
use fleet_base::{Error, Result};
use fleet_ir::{Op, OpId, OpSpec, VarId};
use fleet_ops::{Cost, CostCtx, Kernel, Meta, OpDef, PrepareCtx, Traffic};
use fleet_tensor::{Arg, ArgList, Layout, Shape};
use std::collections::HashMap;

/// Limit on the lanes of a plan. Ops name their lane by a small number.
const LANES_MAX: usize = 16;

/// The steps of a plan, which do not yet wait for each other.
pub(super) struct Steps {
    pub steps: Vec<Step>,
    pub lanes: Vec<LanePlan>,
    pub scratch: Scratch,
    pub costs: Costs,
}

/// The scratch memory of the lanes.
#[derive(Default)]
pub(super) struct Scratch {
    /// Sum of the lanes' scratch memory.
    pub bytes: usize,
    /// Size of the block that holds the arena and the scratch memory.
    pub block_bytes: usize,
    /// Size of each allocation of [`Memory::Separate`]. These follow those of the variables.
    pub separate_bytes: Vec<usize>,
}

/// The costs of a run, according to the ops' definitions.
#[derive(Default)]
pub(super) struct Costs {
    pub flops: f64,
    pub bytes_moved: f64,
    pub offload_bytes: usize,
}

pub(super) fn make(
    request: &PlanRequest<'_>,
    inferred: &Inferred<'_>,
    places: &Places,
) -> Result<Steps> {
    let mut maker = Maker { request, inferred, places, costs: Costs::default() };
    let mut numbers = HashMap::from([(LaneKey::Compute, 0)]);
    let mut steps = Vec::with_capacity(inferred.flat.len());
    for (flat, key) in inferred.flat.iter().zip(&inferred.lanes) {
        let lane = number(*key, &mut numbers)?;
        let waits = Vec::new();
        steps.push(match flat {
            Flat::Jump { op, condition, to, .. } => {
                let (condition, _) = places.of(*condition);
                let kind = StepKind::JumpUnless { condition, to: *to };
                let (cost, traffic) = Default::default();
                Step { kind, op: *op, lane, only_communicates: false, cost, traffic, waits }
            }
            Flat::Op(id, def) => {
                let only_communicates = only_communicates(inferred.program.op(*id), def);
                let (cost, traffic) = maker.costs_of(*id, def);
                let kind = StepKind::Run(maker.instr(*id, def)?);
                Step { kind, op: *id, lane, only_communicates, cost, traffic, waits }
            }
        });
    }
    let mut lanes = list_lanes(&steps);
    for lane in &mut lanes {
        let spec = |step: &usize| inferred.program.op(steps[*step].op).spec;
        lane.passes_messages = lane.steps.iter().any(|step| is_message(spec(step)));
    }
    let scratch = place_scratch(&mut steps, &lanes, places, request.options.memory);
    Ok(Steps { steps, lanes, scratch, costs: maker.costs })
}

/// Returns whether an op sends a message to a single rank, or receives one.
pub(super) fn is_message(spec: &OpSpec) -> bool {
    spec.attr_index("peer").is_some()
}

/// Returns the number of a lane; lanes are numbered in the order of their first steps.
fn number(key: LaneKey, numbers: &mut HashMap<LaneKey, usize>) -> Result<usize> {
    let next = numbers.len();
    let lane = *numbers.entry(key).or_insert(next);
    if lane >= LANES_MAX {
        return Err(Error::exhausted("too many lanes").expected(LANES_MAX).got(lane + 1));
    }
    Ok(lane)
}

fn list_lanes(steps: &[Step]) -> Vec<LanePlan> {
    let count = steps.iter().map(|step| step.lane + 1).max().unwrap_or(1);
    let empty = |_| LanePlan { steps: Vec::new(), passes_messages: false };
    let mut lanes: Vec<LanePlan> = (0..count).map(empty).collect();
    for (position, step) in steps.iter().enumerate() {
        lanes[step.lane].steps.push(position);
    }
    lanes
}

/// Places the scratch memory of each lane after the arena. The steps of a lane share it.
fn place_scratch(
    steps: &mut [Step],
    lanes: &[LanePlan],
    places: &Places,
    memory: Memory,
) -> Scratch {
    let mut scratch = Scratch::default();
    for lane in lanes {
        let mut lane_bytes = 0;
        for position in &lane.steps {
            let StepKind::Run(instr) = &mut steps[*position].kind else { continue };
            lane_bytes = lane_bytes.max(instr.scratch_bytes.next_multiple_of(64));
            instr.scratch_place = match memory {
                Memory::Packed => Place::Arena { offset: places.arena.bytes + scratch.bytes },
                Memory::Separate => {
                    scratch.separate_bytes.push(instr.scratch_bytes);
                    let index = places.separate_bytes.len() + scratch.separate_bytes.len() - 1;
                    Place::Separate { index }
                }
            };
        }
        scratch.bytes += lane_bytes;
    }
    scratch.block_bytes = match memory {
        Memory::Packed => places.arena.bytes + scratch.bytes,
        Memory::Separate => 0,
    };
    scratch
}

struct Maker<'a> {
    request: &'a PlanRequest<'a>,
    inferred: &'a Inferred<'a>,
    places: &'a Places,
    costs: Costs,
}

impl Maker<'_> {
    fn instr(&mut self, id: OpId, def: &OpDef) -> Result<Instr> {
        let op = self.inferred.program.op(id);
        let shapes = &self.inferred.shapes;
        let (inputs, outputs) = (shapes.of_slots(&op.inputs), shapes.of_slots(&op.outputs));
        self.check_layouts(id, def)?;
        let kernel = self.prepare(id, def, &inputs, &outputs)?;
        // A view of memory is there already, and its memory may be in use by other lanes.
        let kernel = if self.is_shared_view(op, def) { Kernel::new(|_| Ok(())) } else { kernel };
        let mut arg_places = Vec::new();
        let inputs = self.args(&op.inputs, &mut arg_places)?;
        let outputs = self.args(&op.outputs, &mut arg_places)?;
        let mut args = ArgList::new(inputs, outputs);
        def.shape_only_slots().for_each(|slot| args.hide(slot));
        Ok(Instr {
            run: kernel.run,
            scratch_bytes: kernel.scratch_bytes,
            scratch_place: Place::Arena { offset: 0 },
            scratch: 0,
            args,
            arg_places,
        })
    }

    fn is_shared_view(&self, op: &Op, def: &OpDef) -> bool {
        def.traits.view.is_some_and(|(out, input)| {
            let (out, input) = (op.output(out).first(), op.input(input).first());
            out.zip(input)
                .is_some_and(|(out, input)| self.places.of(*out) == self.places.of(*input))
        })
    }

    /// Returns the arguments of some slots, and appends their places.
    fn args(
        &self,
        slots: &[Vec<VarId>],
        arg_places: &mut Vec<(usize, Option<usize>)>,
    ) -> Result<Vec<Vec<Arg>>> {
        let mut arg = |var: &VarId| {
            let (arg, at) = (self.inferred.arg(*var), self.places.of(*var));
            let name = || self.inferred.program.var_name(*var);
            self.places.check(&arg, at).map_err(|error| error.at(name()))?;
            arg_places.push(at);
            Ok(arg)
        };
        slots.iter().map(|vars| vars.iter().map(&mut arg).collect()).collect()
    }

    fn prepare(
        &self,
        id: OpId,
        def: &OpDef,
        inputs: &[Vec<Meta>],
        outputs: &[Vec<Meta>],
    ) -> Result<Kernel> {
        let program = self.inferred.program;
        let op = program.op(id);
        let layouts = |slots: &[Vec<VarId>]| -> Vec<Vec<Layout>> {
            let of_slot =
                |vars: &Vec<VarId>| vars.iter().map(|var| self.inferred.layout(*var)).collect();
            slots.iter().map(of_slot).collect()
        };
        let prepare = PrepareCtx {
            op,
            inputs,
            outputs,
            input_layouts: &layouts(&op.inputs),
            output_layouts: &layouts(&op.outputs),
            threads: self.request.options.thread_count(),
            seed: program.seed(),
            services: self.request.services,
        };
        match self.request.options.device {
            Device::Cpu => (def.cpu)(&prepare).map_err(|error| error.at(program.describe_op(id))),
            Device::Null => Ok(self.without_device(&prepare, def)),
        }
    }

    /// Returns a kernel that computes nothing, with the scratch memory of the real one if that is
    /// needed. Ops that communicate cannot be prepared without connections.
    fn without_device(&self, prepare: &PrepareCtx<'_>, def: &OpDef) -> Kernel {
        let null = Kernel::new(|_| Ok(()));
        if !self.request.counts_scratch || def.traits.effect {
            return null;
        }
        let scratch_bytes = (def.cpu)(prepare).map_or(0, |kernel| kernel.scratch_bytes);
        Kernel { scratch_bytes, ..null }
    }

    /// Returns the work of an op and what it sends, and adds the work to the sum.
    fn costs_of(&mut self, id: OpId, def: &OpDef) -> (Cost, Option<Traffic>) {
        let op = self.inferred.program.op(id);
        let shapes = &self.inferred.shapes;
        let (inputs, outputs) = (shapes.of_slots(&op.inputs), shapes.of_slots(&op.outputs));
        let context = CostCtx { op, inputs: &inputs, outputs: &outputs };
        let cost = (def.traits.cost)(&context);
        self.costs.flops += cost.flops;
        self.costs.bytes_moved += cost.bytes;
        if def.traits.offloads {
            self.costs.offload_bytes += inputs.iter().flatten().map(Meta::bytes).sum::<usize>();
        }
        (cost, (def.traits.traffic)(&context))
    }

    /// Checks that operands of one shape have one layout. Elementwise kernels take their length
    /// from one operand, and layouts differ in padding.
    fn check_layouts(&self, id: OpId, def: &OpDef) -> Result<()> {
        if !def.traits.elementwise {
            return Ok(());
        }
        let program = self.inferred.program;
        let op = program.op(id);
        let mut of_shape: HashMap<Shape, Layout> = HashMap::new();
        for var in op.all_inputs().chain(op.all_outputs()) {
            let (shape, layout) = (self.inferred.meta(var).shape, self.inferred.layout(var));
            let first = *of_shape.entry(shape).or_insert(layout);
            if first != layout {
                return Err(Error::internal("operands of one shape have two layouts")
                    .expected(first)
                    .got(format!("{layout} of '{}'", program.var_name(var)))
                    .at(program.describe_op(id)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Planned;
    use super::*;

    fn step(lane: usize, scratch_bytes: usize) -> Step {
        let kind = StepKind::Run(Instr {
            run: Kernel::new(|_| Ok(())).run,
            scratch_bytes,
            scratch_place: Place::Arena { offset: 0 },
            scratch: 0,
            args: ArgList::new(Vec::new(), Vec::new()),
            arg_places: Vec::new(),
        });
        let op = fleet_base::EntityRef::from_index(0);
        let (cost, traffic, waits) = Default::default();
        Step { kind, op, lane, only_communicates: false, cost, traffic, waits }
    }

    fn scratch_places(steps: &[Step]) -> Vec<Place> {
        let place = |step: &Step| match &step.kind {
            StepKind::Run(instr) => Some(instr.scratch_place),
            StepKind::JumpUnless { .. } => None,
        };
        steps.iter().filter_map(place).collect()
    }

    #[test]
    fn steps_of_a_lane_share_scratch_memory() {
        let mut places = Places::default();
        places.arena.bytes = 128;
        places.separate_bytes = vec![8, 8];
        let mut steps = [step(0, 10), step(1, 100), step(0, 70)];
        let lanes = list_lanes(&steps);
        assert_eq!(
            lanes.iter().map(|lane| &lane.steps[..]).collect::<Vec<_>>(),
            [&[0, 2][..], &[1]]
        );
        let scratch = place_scratch(&mut steps, &lanes, &places, Memory::Packed);
        let arena = |offset| Place::Arena { offset };
        assert_eq!(scratch_places(&steps), [arena(128), arena(256), arena(128)]);
        assert_eq!((scratch.bytes, scratch.block_bytes), (256, 384));

        let scratch = place_scratch(&mut steps, &lanes, &places, Memory::Separate);
        let separate = |index| Place::Separate { index };
        assert_eq!(scratch_places(&steps), [separate(2), separate(4), separate(3)]);
        assert_eq!((scratch.separate_bytes, scratch.block_bytes), (vec![10, 70, 100], 0));
    }

    #[test]
    fn lanes_are_few() {
        let mut numbers = HashMap::from([(LaneKey::Compute, 0)]);
        let lanes: Vec<_> = (0..16).map(|ring| number(LaneKey::Ring(ring), &mut numbers)).collect();
        assert!(lanes[..15].iter().map(|lane| lane.clone().unwrap()).eq(1..16));
        assert!(lanes[15].is_err());
    }

    #[test]
    fn arguments_are_in_the_order_of_the_slots() {
        let plan = Planned::new(
            "fleet program 1
            block0 {
              %x: f32[4] data
              %y: f32[4] data
              %z: f32[4]
              (Out: %z) = elementwise_add(X: %x, Y: %y)
            }",
        )
        .plan(&["z"]);
        let [Step { kind: StepKind::Run(instr), .. }] = &plan.steps[..] else {
            panic!("one step expected");
        };
        assert_eq!((instr.args.input_count(), instr.arg_places.len()), (2, 3));
        assert_eq!(instr.arg_places[2], plan.fetches[0].places);
        assert_eq!((plan.summary.op_count, plan.lanes.len()), (1, 1));
    }
}
