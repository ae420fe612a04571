//! The modes in which workers and servers synchronise.

use crate::problem::{Problem, all_in_one};
use crate::schema::DistributedStrategy;
use crate::source::Written;
use fleet_base::{Error, Result};
use fleet_table::{Exchange, PushMode};

/// Returns the mode of a strategy; without any assignment it is async, the default of `a_sync`.
pub fn exchange_of(strategy: &DistributedStrategy, half_async: bool) -> Result<Exchange> {
    all_in_one(contradiction(strategy).into_iter().collect())?;
    let k_steps = strategy.a_sync_configs().k_steps();
    if strategy.a_sync_configs().enable_dc_asgd() {
        if strategy.a_sync() && k_steps <= 0 {
            // DC-ASGD corrects a gradient by the parameters that its worker read last, so
            // workers must wait for their own pushes.
            return Ok(Exchange::Pushes(PushMode::HalfAsync));
        }
        return Err(Error::invalid("enable_dc_asgd requires an asynchronous job")
            .expected("a_sync true and k_steps 0")
            .got(format!("a_sync {}, k_steps {k_steps}", strategy.a_sync())));
    }
    Ok(match (strategy.a_sync(), k_steps) {
        (false, ..=0) if half_async => Exchange::Pushes(PushMode::HalfAsync),
        (false, ..=0) => Exchange::Pushes(PushMode::Sync),
        (true, ..=0) => Exchange::Pushes(PushMode::Async),
        (_, k_steps) => Exchange::Geo { k_steps: k_steps as usize },
    })
}

/// Like [`exchange_of`], with the field's position in errors.
pub fn written_exchange(written: &Written<'_>, half_async: bool) -> Result<Exchange> {
    let configs = written.strategy.a_sync_configs();
    let field = if configs.enable_dc_asgd() { "enable_dc_asgd" } else { "k_steps" };
    exchange_of(written.strategy, half_async)
        .map_err(|error| error.at(written.place_of(&format!("a_sync_configs.{field}"))))
}

/// Reports steps of GEO in a synchronous job.
pub fn contradiction(strategy: &DistributedStrategy) -> Option<Problem> {
    let k_steps = strategy.a_sync_configs().k_steps();
    let message = format!("expected 0 without a_sync, got {k_steps}");
    let problem = Problem::error("a_sync_configs.k_steps", message)
        .why("a synchronous parameter server exchanges in every step; more steps are GEO")
        .help("set a_sync to true for GEO, or k_steps to 0");
    (!strategy.a_sync() && k_steps > 0).then_some(problem)
}
