//! The arguments of `transpile`: a trainer and its job.

use fleet_base::{Error, Result};

/// The trainer to transpile for, and its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transpile<'a> {
    /// Rank of the trainer, from 0.
    pub trainer_id: usize,
    /// Mode pserver: endpoints of the servers, separated by commas.
    pub pservers: &'a str,
    /// The trainers of the job: their number, or their endpoints.
    pub trainers: Trainers<'a>,
    /// Mode pserver: overrides the switch of that name.
    pub sync_mode: Option<bool>,
    /// Modes nccl2 and collective: the endpoint of this trainer, number `trainer_id` of `trainers`.
    pub current_endpoint: &'a str,
}

impl Default for Transpile<'_> {
    fn default() -> Self {
        Transpile {
            trainer_id: 0,
            pservers: DEFAULT_ENDPOINT,
            trainers: Trainers::Count(1),
            sync_mode: None,
            current_endpoint: DEFAULT_ENDPOINT,
        }
    }
}

/// The documented default of `pservers` and `current_endpoint`.
const DEFAULT_ENDPOINT: &str = "127.0.0.1:6174";

/// The trainers of a job: a number in mode pserver, endpoints in the others.
///
/// ```
/// use fleet_strategy::servers::transpiler::Trainers;
/// assert_eq!(Trainers::from(2), Trainers::Count(2));
/// assert_eq!(Trainers::from("10.0.0.1:6174"), Trainers::Endpoints("10.0.0.1:6174"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trainers<'a> {
    /// Number of trainers.
    Count(usize),
    /// Separated by commas.
    Endpoints(&'a str),
}

impl From<usize> for Trainers<'_> {
    fn from(count: usize) -> Self {
        Trainers::Count(count)
    }
}

impl<'a> From<&'a str> for Trainers<'a> {
    fn from(endpoints: &'a str) -> Self {
        Trainers::Endpoints(endpoints)
    }
}

impl Trainers<'_> {
    pub(super) fn count(&self) -> Result<usize> {
        match self {
            Trainers::Count(count) => Ok(*count),
            Trainers::Endpoints(endpoints) => {
                Err(Error::invalid("mode pserver takes the number of trainers")
                    .expected("a number")
                    .got(format!("'{endpoints}'")))
            }
        }
    }

    pub(super) fn endpoints(&self) -> Result<Vec<String>> {
        match self {
            Trainers::Endpoints(text) => endpoints("trainers", text),
            Trainers::Count(count) => {
                Err(Error::invalid("modes nccl2 and collective take the endpoints of trainers")
                    .expected("trainers as a text: HOST:PORT,HOST:PORT,...")
                    .got(count))
            }
        }
    }
}

/// Returns the endpoints of a list.
pub(super) fn endpoints(what: &str, text: &str) -> Result<Vec<String>> {
    let endpoints: Vec<String> =
        text.split(',').map(|it| it.trim().to_string()).filter(|it| !it.is_empty()).collect();
    let mut sorted = endpoints.clone();
    sorted.sort();
    sorted.dedup();
    if endpoints.is_empty() || sorted.len() < endpoints.len() {
        return Err(Error::invalid(format!("invalid list of endpoints in {what}"))
            .expected("HOST:PORT,HOST:PORT,... each once")
            .got(format!("'{text}'")));
    }
    Ok(endpoints)
}
