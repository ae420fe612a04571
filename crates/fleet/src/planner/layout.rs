//! Layouts: the ways to divide a training among the ranks of a job, and their strategies.

use fleet_strategy::{
    Axis, DistributedStrategy, Grid, HybridConfig, PipelineConfig, ShardingConfig,
};
use std::fmt;

/// A way to divide a training among the ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of ranks along each axis.
    pub grid: Grid,
    /// The `stage` of sharding: 1 divides optimizer state, 3 also parameters.
    pub sharding_stage: i32,
    /// How stages run their micro-batches, in a pipeline.
    pub schedule: Schedule,
}

/// How the stages of a pipeline run their micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Number of micro-batches in a step.
    pub micro_batches: usize,
    /// The order of the passes.
    pub order: Order,
    /// Number of parts of the program that each stage runs.
    pub virtual_stages: usize,
}

/// The order of the passes of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One forward and one backward pass in turn.
    OneForwardOneBackward,
    /// All forward passes, then all backward passes.
    ForwardThenBackward,
    /// One forward and one backward pass in turn, with gradients of weights while a stage would
    /// wait.
    ZeroBubble,
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 3] =
        [Order::OneForwardOneBackward, Order::ForwardThenBackward, Order::ZeroBubble];

    /// Returns the name in a strategy.
    pub fn name(self) -> &'static str {
        match self {
            Order::OneForwardOneBackward => "1F1B",
            Order::ForwardThenBackward => "F-then-B",
            Order::ZeroBubble => "ZBH1",
        }
    }
}

impl Schedule {
    /// Returns the documented default order for a number of micro-batches.
    pub fn new(micro_batches: usize) -> Schedule {
        Schedule { micro_batches, order: Order::OneForwardOneBackward, virtual_stages: 1 }
    }
}

impl Layout {
    /// Returns the layout of a grid without schedule and stage.
    pub fn new(grid: Grid) -> Layout {
        Layout { grid, sharding_stage: 1, schedule: Schedule::new(1) }
    }

    /// Returns the number of ranks that share layers.
    pub fn tensor(&self) -> usize {
        self.grid.degree(Axis::Tensor)
    }

    /// Returns the number of ranks that divide the state of one copy.
    pub fn shards(&self) -> usize {
        self.grid.degree(Axis::Sharding)
    }

    /// Returns the number of stages of a pipeline.
    pub fn stages(&self) -> usize {
        self.grid.degree(Axis::Pipeline)
    }

    /// Returns the number of ranks, or groups of ranks, with samples of their own.
    pub fn copies(&self) -> usize {
        self.shards() * self.grid.degree(Axis::Data)
    }

    /// Returns whether every rank has samples of its own, as in data parallelism.
    pub fn keeps_samples(&self) -> bool {
        self.tensor() == 1 && self.stages() == 1
    }

    /// Returns whether each rank has all of the model and its state.
    pub fn is_data_parallel(&self) -> bool {
        self.keeps_samples() && self.shards() == 1
    }

    /// Returns the strategy `base` with this layout, for batches of `batch` rows in each copy.
    pub fn strategy(&self, base: &DistributedStrategy, batch: usize) -> DistributedStrategy {
        let mut strategy = base.clone();
        let mut hybrid = HybridConfig::default();
        let copies = self.grid.degree(Axis::Data) as i32;
        if self.tensor() > 1 {
            hybrid.mp_degree = Some(self.tensor() as i32);
        }
        if self.shards() > 1 {
            let mut sharding = ShardingConfig::default().with_stage(self.sharding_stage);
            sharding.sharding_degree = Some(self.shards() as i32);
            if copies > 1 {
                sharding.hybrid_dp = Some(true);
                sharding.dp_degree = Some(copies);
            }
            strategy = strategy.use_sharding(sharding);
        }
        if self.stages() > 1 {
            let Schedule { micro_batches, order, virtual_stages } = self.schedule;
            let mut pipeline =
                PipelineConfig::default().with_accumulate_steps(micro_batches as i32);
            pipeline.micro_batch_size = Some((batch / micro_batches.max(1)).max(1) as i32);
            pipeline.schedule_mode = Some(order.name().to_string());
            if virtual_stages > 1 {
                pipeline.virtual_stages = Some(virtual_stages as i32);
            }
            strategy = strategy.use_pipeline(pipeline);
            hybrid.pp_degree = Some(self.stages() as i32);
            hybrid.dp_degree = Some(copies);
        }
        if hybrid != HybridConfig::default() {
            strategy.hybrid_configs = Some(hybrid);
        }
        strategy
    }

    /// Returns the layouts of `ranks` ranks to compare first, the simplest before others. Pipelines
    /// have the number of micro-batches that `micros` returns for their stages and copies. Ranks of
    /// equal stages are copies, or all of them divide the optimizer state.
    pub fn list(
        ranks: usize,
        tensor_max: usize,
        has_stage_2: bool,
        micros: impl Fn(usize, usize) -> usize,
    ) -> Vec<Layout> {
        let mut layouts = Vec::new();
        for tensor in divisors(ranks).filter(|degree| *degree <= tensor_max) {
            let rest = ranks / tensor;
            for shards in divisors(rest) {
                let grid = Grid::new([tensor, shards, 1, rest / shards]);
                let layout = Layout::new(grid);
                let stages: &[i32] = match (shards > 1, has_stage_2) {
                    (false, _) => &[1],
                    (true, false) => &[1, 3],
                    (true, true) => &[1, 2, 3],
                };
                let of_stage = |stage: &i32| Layout { sharding_stage: *stage, ..layout };
                layouts.extend(stages.iter().map(of_stage));
            }
            for stages in divisors(rest).filter(|stages| (2..=STAGES_MAX).contains(stages)) {
                let copies = rest / stages;
                let schedule = Schedule::new(micros(stages, copies));
                let shards = if copies > 1 { &[1, copies][..] } else { &[1] };
                let grids = shards.iter().map(|it| Grid::new([tensor, *it, stages, copies / it]));
                layouts.extend(grids.map(|grid| Layout { schedule, ..Layout::new(grid) }));
            }
        }
        layouts.sort_by_key(Layout::complexity);
        layouts
    }

    /// Returns numbers that are smaller for simpler layouts.
    pub fn complexity(&self) -> (usize, usize) {
        (self.stages() * self.tensor(), self.shards())
    }

    /// Returns the layout that also divides the parameters, if this one divides the optimizer state
    /// of the stages of a pipeline only.
    pub fn with_divided_parameters(&self) -> Option<Layout> {
        let divides_state = self.stages() > 1 && self.shards() > 1 && self.sharding_stage < 3;
        divides_state.then_some(Layout { sharding_stage: 3, ..*self })
    }

    /// Returns other schedules of a pipeline, for batches of `batch` rows.
    pub fn schedules(&self, batch: usize) -> Vec<Layout> {
        let stages = self.stages();
        let counts = [2, 4, 8].map(|factor| micro_batches(batch, factor * stages));
        let mut schedules: Vec<Schedule> = counts.into_iter().map(Schedule::new).collect();
        for order in [Order::ForwardThenBackward, Order::ZeroBubble] {
            schedules.push(Schedule { order, ..self.schedule });
        }
        let in_groups = |it: &Schedule| it.micro_batches.is_multiple_of(stages);
        let parted = |it: Schedule| Schedule { virtual_stages: 2, ..it };
        let parts: Vec<Schedule> = schedules[..3].iter().copied().filter(in_groups).collect();
        schedules.extend(parts.into_iter().map(parted));
        let mut found: Vec<Layout> = Vec::new();
        for schedule in schedules {
            let layout = Layout { schedule, ..*self };
            if layout != *self && !found.contains(&layout) {
                found.push(layout);
            }
        }
        found
    }
}

/// Limit of the stages to consider. Every stage is compiled, and a step of deeper pipelines needs
/// hundreds of micro-batches.
const STAGES_MAX: usize = 16;

/// Returns the largest number of micro-batches up to `most` that divides a batch.
pub fn micro_batches(batch: usize, most: usize) -> usize {
    (1..=most.min(batch)).rev().find(|count| batch.is_multiple_of(*count)).unwrap_or(1)
}

fn divisors(number: usize) -> impl Iterator<Item = usize> {
    (1..=number).filter(move |degree| number.is_multiple_of(*degree))
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Axis::Data, "dp"), (Axis::Pipeline, "pp"), (Axis::Sharding, "sharding")];
        let names = names.into_iter().chain([(Axis::Tensor, "mp")]);
        let degrees = names.map(|(axis, name)| (name, self.grid.degree(axis)));
        let parts: Vec<String> = degrees
            .filter(|(_, degree)| *degree > 1)
            .map(|(name, degree)| match name {
                "sharding" => format!("sharding {degree} (stage {})", self.sharding_stage),
                _ => format!("{name} {degree}"),
            })
            .collect();
        f.write_str(&if parts.is_empty() { "one rank".into() } else { parts.join(" x ") })?;
        if self.stages() > 1 {
            let Schedule { micro_batches, order, virtual_stages } = self.schedule;
            write!(f, ", {micro_batches} micro-batches {}", order.name())?;
            if virtual_stages > 1 {
                write!(f, " of {virtual_stages} parts")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(layouts: &[Layout]) -> Vec<String> {
        layouts.iter().map(Layout::to_string).collect()
    }

    #[test]
    fn the_simplest_layouts_come_first() {
        let layouts = Layout::list(4, 4, false, |stages, copies| stages * copies);
        let expected = [
            "dp 4",
            "dp 2 x sharding 2 (stage 1)",
            "dp 2 x sharding 2 (stage 3)",
            "sharding 4 (stage 1)",
            "sharding 4 (stage 3)",
            "dp 2 x mp 2",
            "dp 2 x pp 2, 4 micro-batches 1F1B",
            "pp 2 x sharding 2 (stage 1), 4 micro-batches 1F1B",
            "sharding 2 (stage 1) x mp 2",
            "sharding 2 (stage 3) x mp 2",
            "pp 4, 4 micro-batches 1F1B",
            "pp 2 x mp 2, 2 micro-batches 1F1B",
            "mp 4",
        ];
        let mut found = texts(&layouts);
        assert_eq!(found[..5], expected[..5]);
        let mut expected = expected.map(String::from).to_vec();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn schedules_divide_the_batch() {
        assert_eq!(
            [(32, 8), (12, 8), (7, 4), (1, 8)].map(|(b, m)| micro_batches(b, m)),
            [8, 6, 1, 1]
        );
        let grid = Grid::new([1, 1, 2, 1]);
        let layout = Layout { schedule: Schedule::new(8), ..Layout::new(grid) };
        let expected = [
            "pp 2, 4 micro-batches 1F1B",
            "pp 2, 16 micro-batches 1F1B",
            "pp 2, 8 micro-batches F-then-B",
            "pp 2, 8 micro-batches ZBH1",
            "pp 2, 4 micro-batches 1F1B of 2 parts",
            "pp 2, 8 micro-batches 1F1B of 2 parts",
            "pp 2, 16 micro-batches 1F1B of 2 parts",
        ];
        assert_eq!(texts(&layout.schedules(32)), expected);
    }

    #[test]
    fn strategies_have_the_degrees() {
        let base = DistributedStrategy::new().with_amp(true);
        let text = |layout: Layout| layout.strategy(&base, 16).to_prototxt();
        let pipeline =
            Layout { schedule: Schedule::new(8), ..Layout::new(Grid::new([2, 1, 2, 3])) };
        let text_of_pipeline = text(pipeline);
        for part in ["amp: true", "pipeline: true", "accumulate_steps: 8", "micro_batch_size: 2"] {
            assert!(text_of_pipeline.contains(part), "{text_of_pipeline}");
        }
        for part in ["mp_degree: 2", "pp_degree: 2", "dp_degree: 3"] {
            assert!(text_of_pipeline.contains(part), "{text_of_pipeline}");
        }
        let sharding = text(Layout { sharding_stage: 3, ..Layout::new(Grid::new([1, 4, 1, 2])) });
        for part in ["stage: 3", "sharding_degree: 4", "hybrid_dp: true", "dp_degree: 2"] {
            assert!(sharding.contains(part), "{sharding}");
        }
        assert_eq!(text(Layout::new(Grid::new([1, 1, 1, 8]))), base.to_prototxt());
    }
}
