//! The modes in which workers and servers synchronise.

use fleet_base::Result;
use fleet_config::DistributedStrategy;
use fleet_config::Written;
use fleet_config::{Problem, all_in_one};
use fleet_table::{Exchange, PushMode};

/// Returns the mode of a strategy; without any assignment it is async, the default of `a_sync`.
pub fn exchange_of(strategy: &DistributedStrategy, half_async: bool) -> Result<Exchange> {
    all_in_one(contradiction(strategy).into_iter().collect())?;
    let k_steps = strategy.a_sync_configs().k_steps();
    if strategy.a_sync_configs().enable_dc_asgd() {
        // DC-ASGD corrects a gradient by the parameters that its worker read last, so workers must
        // wait for their own pushes.
        return Ok(Exchange::Pushes(PushMode::HalfAsync));
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

/// Reports steps of GEO in a synchronous job, and DC-ASGD outside of asynchronous ones.
pub fn contradiction(strategy: &DistributedStrategy) -> Option<Problem> {
    let k_steps = strategy.a_sync_configs().k_steps();
    let is_async = strategy.a_sync() && k_steps <= 0;
    if strategy.a_sync_configs().enable_dc_asgd() && !is_async {
        let message = format!(
            "requires a_sync true and k_steps 0, got a_sync {}, k_steps {k_steps}",
            strategy.a_sync()
        );
        let problem = Problem::error("a_sync_configs.enable_dc_asgd", message)
            .why("it corrects gradients that arrive late, which only asynchronous jobs have")
            .help("set a_sync to true and k_steps to 0, or remove it");
        return Some(problem);
    }
    let message = format!("expected 0 without a_sync, got {k_steps}");
    let problem = Problem::error("a_sync_configs.k_steps", message)
        .why("a synchronous parameter server exchanges in every step; more steps are GEO")
        .help("set a_sync to true for GEO, or k_steps to 0");
    (!strategy.a_sync() && k_steps > 0).then_some(problem)
}

/// Reports a combination of gradients that servers do not make.
pub(crate) fn scaled_sum(strategy: &DistributedStrategy) -> Option<Problem> {
    let scale = strategy.gradient_scale_configs().scale_strategy();
    let path = "gradient_scale_configs.scale_strategy";
    let problem = Problem::error(path, format!("{scale} is not supported with parameter servers"))
        .why("synchronous servers take the mean over workers, others apply each gradient by itself")
        .help("use avg");
    (scale != "avg").then_some(problem)
}
