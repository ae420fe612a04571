//! A training loop for any program: [`Trainer`].
//!
//! A trainer passes over a [`Source`] of batches, epoch by epoch. It trains a [`Model`], which is a
//! session or a worker of parameter servers, and validates it with an [`Evaluation`]. Between steps
//! its whole state is that of the model and a few numbers, which checkpoints keep: a resumed
//! training computes the same bits as one that never stopped.
//!
//! Workers that make their steps together agree on the number of batches once an epoch. They agree
//! on stops and on saves by time about twice a second, at steps that are fixed beforehand. No step
//! has a collective of its own, unless the length of the data is unknown.

mod ahead;
mod builder;
mod evaluate;
mod event;
mod model;
mod progress;
mod run;
mod saves;
mod scalars;
mod server_barriers;
mod server_progress;
mod server_saves;
mod settings;
mod source;
mod state;
mod stop;

pub use ahead::Ahead;
pub use builder::Trainer;
pub use evaluate::{Evaluated, Evaluation};
pub use event::Event;
pub use model::Model;
pub use progress::Progress;
pub use run::Trained;
pub use settings::{Every, Goal};
pub use source::{Feeds, FromFn, Pass, Position, Source, from_fn};
pub use state::Best;
pub use stop::{Ended, StopFlag};
