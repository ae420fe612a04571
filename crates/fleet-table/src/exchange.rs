//! How the workers of a job with servers exchange their results.

/// How workers and servers synchronise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Workers push gradients, and servers update the parameters.
    Pushes(PushMode),
    /// Workers train locally, and exchange differences every `k_steps` steps.
    Geo {
        /// Number of steps between two exchanges.
        k_steps: usize,
    },
}

/// When a worker that pushes gradients continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushMode {
    /// When the gradients of all workers are applied.
    Sync,
    /// When its own gradients are applied.
    HalfAsync,
    /// At once.
    Async,
}

impl Exchange {
    /// Returns the name of the mode: `sync`, `half-async`, `async` or `geo`.
    pub fn name(self) -> &'static str {
        match self {
            Exchange::Pushes(PushMode::Sync) => "sync",
            Exchange::Pushes(PushMode::HalfAsync) => "half-async",
            Exchange::Pushes(PushMode::Async) => "async",
            Exchange::Geo { .. } => "geo",
        }
    }

    /// Returns whether a step waits for the gradients of all workers.
    pub fn is_sync(self) -> bool {
        self == Exchange::Pushes(PushMode::Sync)
    }

    /// Returns whether workers train locally and exchange differences.
    pub fn is_geo(self) -> bool {
        matches!(self, Exchange::Geo { .. })
    }
}
