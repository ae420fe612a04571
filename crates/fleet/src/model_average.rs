//! Averages state that differs between ranks, before a model is saved or evaluated.

use crate::{Fleet, Session};
use fleet_base::{Error, Result};
use fleet_comm::ReduceOp;
use fleet_strategy::{Spread, local_state};
use fleet_tensor::Tensor;
use fleet_topology::Mode;
use std::collections::HashSet;

impl Fleet {
    /// Gives every rank the mean of state that differs between ranks and that the model computes
    /// with: parameters between two averagings of LocalSGD, running statistics of batches. All
    /// ranks must call it before they evaluate or save the trained model; training may continue
    /// afterwards. If all ranks have the same model, nothing is sent.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::{DistributedStrategy, Fleet};
    /// # let folder = std::env::temp_dir().join(format!("fleet-meet-doc-{}", std::process::id()));
    /// let (fleet, net) = (Fleet::collective()?, Net::new());
    /// let y = net.data("x", [-1, 2], DType::F32).fc(1);
    /// let strategy = DistributedStrategy::new().with_localsgd(true);
    /// let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, y.mean())?;
    /// let y = y.name();
    /// let mut session = fleet.session(net.build()?, &job, ExecOptions::default())?;
    /// // .. training
    /// fleet.meet(&mut session)?;
    /// if fleet.is_first_worker() {
    ///     fleet::save_inference_model(&folder, &session.programs.main, &[&y], &session.scope)?;
    /// }
    /// fleet.finish()?;
    /// # std::fs::remove_dir_all(&folder).ok();
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn meet(&self, session: &mut Session) -> Result<()> {
        if self.topology().mode() == Mode::ParameterServer {
            return Err(Error::unsupported(
                "model averaging is not supported on parameter servers",
            )
            .help("save the model on the servers, which hold it"));
        }
        let Some(group) = self.workers()? else { return Ok(()) };
        let test = session.test_program();
        let mut read = HashSet::new();
        test.root_ops().for_each(|(id, _)| test.reads_of(id, &mut read));
        let computed_with = |name: &str| test.find_var(name).is_some_and(|var| read.contains(&var));
        let mut own = local_state(&session.programs.main);
        own.retain(|var| var.spread == Spread::Mean && computed_with(&var.name));
        for var in own {
            let held = session.scope.tensor(&var.name)?;
            let mut values = held.to_vec::<f32>().map_err(|error| error.at(&var.name))?;
            group.all_reduce(&format!("meet: {}", var.name), &mut values, ReduceOp::Avg)?;
            session.scope.assign(&var.name, &Tensor::from_slice(&values, *held.shape())?)?;
        }
        Ok(())
    }
}
