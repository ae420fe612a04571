//! Reading a strategy, with its warnings on the standard error.

use fleet_base::Result;
use fleet_base::output::error_line;
use fleet_strategy::{DistributedStrategy, Problem, StrategySource};
use std::path::Path;

/// Loads a strategy from a file without checking its meaning. Returns the positions of the fields
/// too.
pub fn load_with_source(path: &Path) -> Result<(DistributedStrategy, StrategySource)> {
    let mut strategy = DistributedStrategy::new();
    let (source, warnings) = strategy.load_with_source(path)?;
    print_warnings(&warnings);
    Ok((strategy, source))
}

/// Prints warnings to the standard error: the standard output holds only the result.
pub fn print_warnings(problems: &[Problem]) {
    problems.iter().for_each(error_line);
}
