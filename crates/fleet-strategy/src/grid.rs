//! The grid of a job's ranks: how many ranks divide the work in each of several ways.

use crate::effective::Effective;

/// A way to divide work among ranks, innermost first: neighbouring ranks share layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Ranks hold parts of the same layers.
    Tensor,
    /// Ranks own parts of one copy of the training state.
    Sharding,
    /// Ranks run consecutive stages of the program.
    Pipeline,
    /// Ranks train copies of the model with different samples.
    Data,
}

impl Axis {
    /// All axes, innermost first.
    pub const ALL: [Axis; 4] = [Axis::Tensor, Axis::Sharding, Axis::Pipeline, Axis::Data];

    /// Returns the name of the axis's degree in a strategy.
    pub const fn degree(self) -> &'static str {
        ["mp_degree", "sharding_degree", "pp_degree", "dp_degree"][self as usize]
    }
}

/// The number of ranks along each axis; one rank by default. Ranks are numbered along the innermost
/// axis first.
///
/// ```
/// use fleet_strategy::{Axis, Grid};
/// let grid = Grid::new([2, 1, 3, 4]);
/// assert_eq!(grid.ranks(), 24);
/// assert_eq!(grid.place(Axis::Pipeline, 9), 1);
/// // Rank 9 is the second of ranks 7, 9 and 11, which run the stages of one copy.
/// assert_eq!((grid.first(Axis::Pipeline, 9), grid.stride(Axis::Pipeline)), (7, 2));
/// assert!(grid.ranks_at(Axis::Pipeline, 1).eq([2, 3, 8, 9, 14, 15, 20, 21]));
/// // It is the second of the 4 copies of the model.
/// assert_eq!(grid.copy(9), (1, 4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    degrees: [usize; 4],
}

impl Default for Grid {
    fn default() -> Grid {
        Grid::new([1; 4])
    }
}

impl Grid {
    /// Returns the grid with these degrees, in the order of [`Axis::ALL`]; each is at least 1.
    pub const fn new(degrees: [usize; 4]) -> Grid {
        Grid { degrees }
    }

    /// Returns the number of ranks along an axis.
    pub const fn degree(&self, axis: Axis) -> usize {
        self.degrees[axis as usize]
    }

    /// Returns the number of all ranks.
    pub fn ranks(&self) -> usize {
        product(self.degrees)
    }

    /// Returns the distance between neighbours along an axis, in ranks of the job.
    pub fn stride(&self, axis: Axis) -> usize {
        self.degrees[..axis as usize].iter().product()
    }

    /// Returns the position of a rank along an axis.
    pub fn place(&self, axis: Axis, rank: usize) -> usize {
        rank / self.stride(axis) % self.degree(axis)
    }

    /// Returns the first of the ranks that differ from `rank` in their place along `axis` only.
    pub fn first(&self, axis: Axis, rank: usize) -> usize {
        rank - self.place(axis, rank) * self.stride(axis)
    }

    /// Returns the place of a rank among those that train the same part of the model with other
    /// samples, and their number. They are the ranks along the axes of sharding and of data.
    pub fn copy(&self, rank: usize) -> (usize, usize) {
        let shards = self.degree(Axis::Sharding);
        let place = self.place(Axis::Data, rank) * shards + self.place(Axis::Sharding, rank);
        (place, shards * self.degree(Axis::Data))
    }

    /// Returns the ranks of [`Grid::copy`] as (first, distance, number). With stages between the
    /// two axes, they are not at equal distances.
    pub(crate) fn copies(&self, rank: usize) -> Option<(usize, usize, usize)> {
        let has = |axis: Axis| self.degree(axis) > 1;
        if has(Axis::Sharding) && has(Axis::Pipeline) && has(Axis::Data) {
            return None;
        }
        let axis = if has(Axis::Sharding) { Axis::Sharding } else { Axis::Data };
        let first = self.first(axis, self.first(Axis::Data, rank));
        Some((first, self.stride(axis), self.copy(rank).1))
    }

    /// Returns the ranks with this number along an axis.
    pub fn ranks_at(&self, axis: Axis, place: usize) -> impl Iterator<Item = usize> + use<> {
        let grid = *self;
        (0..self.ranks()).filter(move |rank| grid.place(axis, *rank) == place)
    }

    /// Returns the degree that a strategy assigns to an axis, with its field.
    pub(crate) fn field(strategy: &Effective<'_>, axis: Axis) -> Option<(String, usize)> {
        assigned(strategy, axis).into_iter().next()
    }

    /// Returns the grid that a strategy gives `ranks` ranks. `stages` is the number of stages if
    /// the program has it. An error is the field at fault, and the reason.
    pub(crate) fn of(
        strategy: &Effective<'_>,
        ranks: usize,
        stages: Option<usize>,
    ) -> Result<Grid, (String, String)> {
        let mut assigned = Axis::ALL.map(|axis| assigned(strategy, axis));
        if let Some(stages) = stages.filter(|_| assigned[Axis::Pipeline as usize].is_empty()) {
            assigned[Axis::Pipeline as usize].push(("pipeline".into(), stages));
        }
        let mut fields = Vec::new();
        for (axis, found) in Axis::ALL.iter().zip(&assigned) {
            let Some((first, degree)) = found.first() else { continue };
            if let Some((field, other)) = found.iter().find(|(_, other)| other != degree) {
                let message = first.split('.').next().unwrap_or_default();
                let name = axis.degree();
                let reason = format!("{name} is {degree} in {message}, but {other} here");
                return Err((field.clone(), reason));
            }
            fields.push((*axis, first.clone(), *degree));
        }
        let given = |axis: Axis| fields.iter().find(|it| it.0 == axis).map(|it| it.2);
        let fixed = product(fields.iter().map(|(_, _, degree)| *degree));
        // One axis takes the ranks that the assigned degrees leave.
        let own = strategy.sharding_configs();
        let is_one_group = own.sharding_degree.is_some() && !own.hybrid_dp();
        let open = match (given(Axis::Sharding), given(Axis::Data)) {
            (None, _) if strategy.sharding() => Some(Axis::Sharding),
            (Some(_), None) if strategy.sharding() && is_one_group => None,
            (_, None) => Some(Axis::Data),
            _ => None,
        };
        let degrees = Axis::ALL.map(|axis| match open == Some(axis) {
            true => ranks / fixed.max(1),
            false => given(axis).unwrap_or(1),
        });
        let grid = Grid::new(degrees);
        if grid.ranks() == ranks {
            return Ok(grid);
        }
        let shown = fields.iter().map(|(axis, field, degree)| match field.as_str() {
            "pipeline" => format!("pipelines of {degree} stages"),
            _ => format!("{} {degree}", axis.degree()),
        });
        let shown: Vec<String> = shown.collect();
        let help = match strategy.sharding() && given(Axis::Data).is_none() && open.is_none() {
            true => "; set hybrid_dp for several groups",
            false => "",
        };
        let reason = format!(
            "the degrees do not multiply to the job's {ranks} ranks: got {}{help}",
            shown.join(" x ")
        );
        let field = fields.into_iter().next().map(|(_, field, _)| field);
        Err((field.unwrap_or_else(|| "hybrid_configs".into()), reason))
    }
}

/// Returns the product of degrees, which a strategy may state as large as it likes.
fn product(degrees: impl IntoIterator<Item = usize>) -> usize {
    degrees.into_iter().fold(1, usize::saturating_mul)
}

/// Returns the degrees that a strategy assigns to an axis, with their fields: that of
/// `sharding_configs`, if sharding is on, that of `hybrid_configs`, and for layers that of
/// `tensor_parallel_configs`, if `tensor_parallel` is on.
fn assigned(strategy: &Effective<'_>, axis: Axis) -> Vec<(String, usize)> {
    let (own, hybrid) = (strategy.sharding_configs(), strategy.hybrid_configs());
    let (own, hybrid) = match axis {
        Axis::Tensor => (own.mp_degree, hybrid.mp_degree),
        Axis::Sharding => (own.sharding_degree, hybrid.sharding_degree),
        Axis::Pipeline => (own.pp_degree, hybrid.pp_degree),
        Axis::Data => (own.dp_degree, hybrid.dp_degree),
    };
    let own = own.filter(|_| strategy.sharding());
    let is_of_layers = axis == Axis::Tensor && strategy.tensor_parallel();
    let layers = strategy.tensor_parallel_configs().tensor_parallel_degree;
    let name = axis.degree();
    let all = [
        (format!("sharding_configs.{name}"), own),
        (format!("hybrid_configs.{name}"), hybrid),
        (LAYER_DEGREE.to_string(), layers.filter(|_| is_of_layers)),
    ];
    // A degree of -1 stands for the ranks that the others leave.
    let number = |(field, value): (String, Option<i32>)| {
        let degree = usize::try_from(value?).ok()?.max(1);
        Some((field, degree))
    };
    all.into_iter().filter_map(number).collect()
}

/// The documented field of tensor parallelism alone.
const LAYER_DEGREE: &str = "tensor_parallel_configs.tensor_parallel_degree";
