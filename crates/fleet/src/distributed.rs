//! A network rewritten for a collective job, and its sessions.

use crate::agree::{self, NetworkText, WholeRings};
use crate::options::options_of_worker;
use crate::planner::Prediction;
use crate::step_clock::StepClock;
use crate::{Fleet, Session, exec_options};
use fleet_base::Result;
use fleet_exec::{ExecOptions, Executor};
use fleet_nn::Programs;
use fleet_ops::Services;
use fleet_strategy::{DistributedStrategy, Plan};

/// The result of rewriting a network for the job.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::{Distributed, DistributedStrategy, Fleet};
/// let (fleet, net) = (Fleet::collective()?, Net::new());
/// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
/// let strategy = DistributedStrategy::new().with_lars(true);
/// let optimizer = fleet.distributed_optimizer(Momentum::new(0.1, 0.9), &strategy);
/// let job: Distributed = optimizer.minimize(&net, loss)?;
/// assert!(job.strategy.lars() && job.plan.chain_text().contains("Lars"));
/// # Ok::<(), fleet::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Distributed {
    /// The applied strategies with the reasons, and the rings that the programs use.
    pub plan: Plan,
    /// The strategy as it is in effect, with the choices of `auto`.
    pub strategy: DistributedStrategy,
    pub(crate) network: NetworkText,
    /// The predicted step, if the layout was planned.
    pub(crate) prediction: Option<Prediction>,
    /// Private memory of this process before the layout was planned, in bytes.
    pub(crate) memory_before: Option<u64>,
    /// Whether the strategy is that of a file, which may have a prediction.
    pub(crate) is_of_file: bool,
}

impl Fleet {
    /// Opens a session whose programs communicate over the rings of `job`. All ranks must open it.
    /// The startup program has run, and every rank has the parameters of rank 0.
    ///
    /// The strategy's execution settings override `options`. A `num_threads` of 0 means `CPU_NUM`
    /// threads, or this rank's share of the machine's cores.
    pub fn session(
        &self,
        programs: Programs,
        job: &Distributed,
        options: ExecOptions,
    ) -> Result<Session> {
        let stage = job.plan.stage.as_ref();
        let clock = StepClock::new(job.prediction, job.memory_before, stage, job.is_of_file);
        let options = self.on_own_cores(exec_options(&job.strategy, options))?;
        let options = options_of_worker(options, self.worker_index());
        self.print_in_force(&job.strategy, &options);
        let executor = Executor::new(options);
        let rings = WholeRings::new(&job.plan.rings, self.worker_num());
        let connection = self.connection();
        if let Some(connection) = connection {
            let parts = agree::parts(&job.strategy, &job.network, &rings, &programs.main);
            agree::compare(connection.everyone(), &parts)
                .inspect_err(|error| self.reporter().failed(error))?;
        }
        let services = connection.map(|connection| connection.services(&job.plan.rings));
        let executor = executor.services(services.transpose()?.unwrap_or_else(Services::none));
        let session = Session::with_executor(programs, executor)?;
        let session = session.with_plan(&job.plan)?.with_clock(clock.clone());
        self.watch(clock);
        let Some(connection) = connection else { return Ok(session) };
        let attempt = self.topology().job().attempt();
        let peers = connection.add_session(session.step_count(), &attempt, rings);
        Ok(session.with_peers(peers))
    }
}
