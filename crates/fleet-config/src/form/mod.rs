//! Strategies in files: the text form, the binary form, JSON and TOML. All four preserve presence:
//! they store exactly the assigned fields.

pub(crate) mod binary;
mod cursor;
pub(crate) mod document;
pub(crate) mod json;
pub(crate) mod literal;
mod prototxt;
mod toml;

use crate::problem::{Place, Problem, all_in_one};
use crate::schema::DistributedStrategy;
use crate::source::{StrategySource, nearest};
use document::FillResult;
use fleet_base::{Error, Result, file, input};
use std::collections::BTreeMap;
use std::path::Path;

/// File format of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrategyForm {
    /// Protobuf's text form: `.prototxt`, `.pbtxt`, and files with any other extension.
    Prototxt,
    /// Protobuf's binary form: `.pb`, `.bin`.
    Binary,
    /// `.json`
    Json,
    /// `.toml`
    Toml,
}

impl StrategyForm {
    /// All forms.
    pub const ALL: [StrategyForm; 4] =
        [StrategyForm::Prototxt, StrategyForm::Binary, StrategyForm::Json, StrategyForm::Toml];

    /// Returns the form for a file's extension.
    pub fn of(path: &Path) -> StrategyForm {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => StrategyForm::Json,
            Some("toml") => StrategyForm::Toml,
            Some("pb" | "bin") => StrategyForm::Binary,
            _ => StrategyForm::Prototxt,
        }
    }
}

/// Limit of a file's size. The largest realistic strategy has a few hundred tables of a kilobyte
/// each.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// A strategy read from a file, with all problems of the file.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The readable part of the strategy.
    pub strategy: DistributedStrategy,
    /// All problems, sorted by position.
    pub problems: Vec<Problem>,
    /// Position of the last assignment to each path.
    places: BTreeMap<String, Place>,
}

/// Warnings of a merge, and the positions of its assignments.
type Merged = (Vec<Problem>, BTreeMap<String, Place>);

impl DistributedStrategy {
    /// Encodes the strategy in a form. Text forms are UTF-8.
    pub fn to_bytes(&self, form: StrategyForm) -> Vec<u8> {
        match form {
            StrategyForm::Prototxt => prototxt::write(self).into_bytes(),
            StrategyForm::Binary => binary::write(self),
            StrategyForm::Json => json::write(self).into_bytes(),
            StrategyForm::Toml => toml::write(self).into_bytes(),
        }
    }

    /// Returns protobuf's text form.
    ///
    /// ```
    /// # use fleet_config::DistributedStrategy;
    /// let strategy = DistributedStrategy::new().with_dgc(true).use_recompute(["x"]);
    /// let text = "recompute: true\ndgc: true\nrecompute_configs {\n  checkpoints: \"x\"\n}\n";
    /// assert_eq!(strategy.to_prototxt(), text);
    /// assert_eq!(DistributedStrategy::parse(text)?, strategy);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn to_prototxt(&self) -> String {
        prototxt::write(self)
    }

    /// Reads protobuf's text form.
    pub fn parse(text: &str) -> Result<DistributedStrategy> {
        let mut strategy = DistributedStrategy::new();
        strategy.merge_bytes(text.as_bytes(), StrategyForm::Prototxt)?;
        Ok(strategy)
    }

    /// Merges an encoded strategy into this one: scalars are replaced, lists grow, messages merge.
    /// On an error, nothing changes. Returns warnings.
    pub fn merge_bytes(&mut self, bytes: &[u8], form: StrategyForm) -> Result<Vec<Problem>> {
        Ok(self.merge_form(bytes, form, None)?.0)
    }

    /// Like [`merge_bytes`](Self::merge_bytes); also returns the positions of assignments.
    fn merge_form(
        &mut self,
        bytes: &[u8],
        form: StrategyForm,
        file: Option<&Path>,
    ) -> Result<Merged> {
        let mut merged = self.clone();
        let filled = fill(&mut merged, bytes, form).map_err(|error| match file {
            Some(file) => error.at(file.display()),
            None => error,
        })?;
        let placed = |problem| Problem { file: file.map(Path::to_path_buf), ..problem };
        let warnings = all_in_one(filled.problems.into_iter().map(placed).collect())?;
        *self = merged;
        Ok((warnings, filled.places))
    }

    /// Writes protobuf's text form to a file, atomically.
    pub fn save_to_prototxt(&self, path: impl AsRef<Path>) -> Result<()> {
        file::write_file(path.as_ref(), self.to_prototxt().as_bytes())
    }

    /// Merges a file in protobuf's text form into this strategy; see
    /// [`merge_bytes`](Self::merge_bytes). Loading the same file twice doubles its lists.
    pub fn load_from_prototxt(&mut self, path: impl AsRef<Path>) -> Result<Vec<Problem>> {
        Ok(self.load_as(path.as_ref(), StrategyForm::Prototxt)?.0)
    }

    /// Writes a file in the form of its extension.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        file::write_file(path, &self.to_bytes(StrategyForm::of(path)))
    }

    /// Merges a file in the form of its extension.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<Vec<Problem>> {
        let path = path.as_ref();
        Ok(self.load_as(path, StrategyForm::of(path))?.0)
    }

    /// Like [`load`](Self::load); also returns the positions of the fields, so that errors of a
    /// later minimisation can name the line.
    pub fn load_with_source(
        &mut self,
        path: impl AsRef<Path>,
    ) -> Result<(StrategySource, Vec<Problem>)> {
        let path = path.as_ref();
        let (warnings, places) = self.load_as(path, StrategyForm::of(path))?;
        Ok((StrategySource::new(path, places), warnings))
    }

    fn load_as(&mut self, path: &Path, form: StrategyForm) -> Result<Merged> {
        self.merge_form(&read_file(path)?, form, Some(path))
    }
}

impl Inspection {
    /// Reads a file, with the problems of its syntax and its fields. An error means that the file
    /// cannot be parsed at all.
    pub fn read(bytes: &[u8], form: StrategyForm) -> Result<Inspection> {
        let mut strategy = DistributedStrategy::new();
        let FillResult { problems, places, .. } = fill(&mut strategy, bytes, form)?;
        Ok(Inspection { strategy, problems, places })
    }

    /// Adds problems of the strategy, with the positions of their fields.
    pub fn add(&mut self, problems: Vec<Problem>) {
        self.problems.extend(problems.into_iter().map(|problem| placed(problem, &self.places)));
        self.problems.sort_by_key(|problem| problem.place);
    }
}

/// Name of the field with a password.
pub(crate) const PASSWORD: &str = "passwd";
/// The text that is shown instead of a password.
pub(crate) const HIDDEN: &str = "***";

/// Returns the text form on one line, for display: without passwords.
pub(crate) fn one_line(message: &dyn crate::Reflect) -> String {
    let text = prototxt::write(message);
    let shown = |line: &str| match line.split_once(": ") {
        Some((PASSWORD, _)) => format!("{PASSWORD}: \"{HIDDEN}\""),
        _ => line.to_string(),
    };
    text.lines().map(str::trim).map(shown).collect::<Vec<_>>().join(" ")
}

/// Reads a file or a pipe that may hold a strategy.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    input::read(path, "a strategy", FILE_BYTES_MAX as u64)
}

fn fill(
    strategy: &mut DistributedStrategy,
    bytes: &[u8],
    form: StrategyForm,
) -> Result<FillResult> {
    input::check_bytes(bytes.len() as u64, "a strategy", FILE_BYTES_MAX as u64)?;
    if form == StrategyForm::Binary {
        binary::merge(strategy, bytes).map_err(|error| match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => error
                .help("the file looks like text, whose extensions are .prototxt, .json and .toml"),
            _ => error,
        })?;
        return Ok(FillResult::default());
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Error::invalid("the file is not text")
            .expected("UTF-8")
            .got(format!("an invalid byte at offset {}", error.valid_up_to()))
            .help("use the extension .pb or .bin for the binary form")
    })?;
    // Some editors write a byte order mark before UTF-8 text; it is not part of the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (entries, problems) = match form {
        StrategyForm::Json => json::read(text),
        StrategyForm::Toml => toml::read(text),
        _ => prototxt::read(text),
    };
    let has_words = form == StrategyForm::Prototxt;
    let mut filled = FillResult { problems, has_words, ..FillResult::default() };
    filled.fill(strategy, entries, "");
    Ok(filled)
}

/// Adds the position of the problem's field, or of the nearest enclosing message.
fn placed(problem: Problem, places: &BTreeMap<String, Place>) -> Problem {
    let place = problem.place.or_else(|| nearest(&problem.path, places));
    Problem { place, ..problem }
}
