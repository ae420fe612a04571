//! The source of a strategy: its file, and the positions of its fields. Later errors, when the
//! strategy does not match a program or a cluster, can then name the line.

use crate::fields::value_at;
use crate::problem::{Place, Problem};
use crate::schema::DistributedStrategy;
use fleet_base::Error;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file of a strategy; see [`DistributedStrategy::load_with_source`].
///
/// ```
/// use fleet_config::DistributedStrategy;
/// # let folder = std::env::temp_dir().join(format!("fleet-source-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let file = folder.join("job.prototxt");
/// std::fs::write(&file, "amp: true\ndgc: true\n")?;
/// let mut strategy = DistributedStrategy::new();
/// let (source, warnings) = strategy.load_with_source(&file)?;
/// assert!(warnings.is_empty());
/// assert_eq!(source.place_of("dgc"), format!("{}:2:6", file.display()));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategySource {
    file: PathBuf,
    /// Position of the last assignment to each path.
    places: BTreeMap<String, Place>,
}

impl StrategySource {
    pub(crate) fn new(file: &Path, places: BTreeMap<String, Place>) -> StrategySource {
        StrategySource { file: file.to_path_buf(), places }
    }

    /// Returns the file that the strategy was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns `FILE:LINE:COLUMN` of a field or the nearest enclosing message, or else the file.
    pub fn place_of(&self, path: &str) -> String {
        let file = self.file.display();
        nearest(path, &self.places).map_or(file.to_string(), |place| format!("{file}:{place}"))
    }
}

/// Returns the position of a field, or of the nearest enclosing message.
pub(crate) fn nearest(path: &str, places: &BTreeMap<String, Place>) -> Option<Place> {
    let mut path = path;
    while !path.is_empty() {
        if let Some(place) = places.get(path) {
            return Some(*place);
        }
        path = &path[..path.rfind(['.', '[']).unwrap_or(0)];
    }
    None
}

/// A strategy as the user wrote it, and its source. The strategy in effect may differ:
/// `auto` chooses one.
///
/// ```
/// use fleet_config::{Written, DistributedStrategy};
/// let strategy = DistributedStrategy::new().with_dgc(true);
/// let written = Written::from(&strategy);
/// assert_eq!(written.place_of("dgc"), "dgc: true");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// The strategy.
    pub strategy: &'a DistributedStrategy,
    /// The file that it was read from, if any.
    pub source: Option<&'a StrategySource>,
}

impl<'a> From<&'a DistributedStrategy> for Written<'a> {
    fn from(strategy: &'a DistributedStrategy) -> Written<'a> {
        Written { strategy, source: None }
    }
}

impl Written<'_> {
    /// Adds the position in the file to a problem.
    pub fn placed(&self, problem: Problem) -> Problem {
        let Some(source) = self.source else { return problem };
        let place = problem.place.or_else(|| nearest(&problem.path, &source.places));
        Problem { place, file: Some(source.file.clone()), ..problem }
    }

    /// Returns a field, with its value if it is assigned, after its position if that is known.
    pub fn place_of(&self, path: &str) -> String {
        let field = match value_at(self.strategy, path) {
            Some(value) => format!("{path}: {value}"),
            None => path.to_string(),
        };
        match self.source {
            Some(source) => format!("{}: {field}", source.place_of(path)),
            None => field,
        }
    }

    /// Adds the strategy's file to an error that the strategy caused, unless the error already
    /// names the file.
    pub fn blame(&self, error: Error) -> Error {
        let Some(source) = self.source else { return error };
        error.at_line(&source.file.display().to_string())
    }
}
