//! Training in one process, or on the ranks of a collective job.

use super::{OutputNames, TrainPlan, share_of_batch};
use crate::model::{TablePlace, build};
use crate::optimizer::optimizer;
use crate::rows::Share;
use crate::saved::{FEATURES_FILE, PROGRAM_FOLDER};
use crate::split::Part;
use fleet::nn::Net;
use fleet::trainer::{Ended, StopFlag};
use fleet::{CheckpointPolicy, Fleet, Session};
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result};
use std::time::Instant;

pub fn run(
    plan: &TrainPlan,
    fleet: &Fleet,
    out: &mut Output,
    begin: Instant,
) -> Result<(), ExitReason> {
    let job = &plan.job;
    let net = Net::new();
    let outputs = build(&net, &plan.features, job, TablePlace::Program);
    let names = OutputNames::of(&outputs);
    let loss = outputs.loss;
    let distributed = fleet.distributed_optimizer(
        optimizer(job, job.train.epochs * plan.steps_per_epoch(1, job.train.batch)),
        &plan.strategy,
    );
    let sources = plan.strategy_source.iter().cloned();
    let distributed = sources.fold(distributed, |it, source| it.read_from(source));
    let found =
        distributed.batch(job.train.batch / fleet.worker_num().max(1)).minimize(&net, loss)?;
    let mut session = fleet.session(net.build()?, &found, plan.options.clone())?;
    if let Some(model) = &job.train.warm_start {
        load_parameters(plan, model, &mut session)?;
    }
    plan.describe(fleet, parameters(&session), out)?;

    let (copy, copies) = found.plan.copy;
    let share = Share { own: copy as u64, of: copies as u64 };
    let batch = share_of_batch(job.train.batch, copies)?;
    let mut train = plan.rows(Part::Train, share, batch)?;
    let mut valid = None;
    let folder = plan.checkpoints();
    let mut trainer = plan
        .trainer(fleet, &names)
        .epochs(job.train.epochs)
        .checkpoints(&folder, plan.policy())
        .stop_on(&StopFlag::on_terminate()?);
    if job.data.validation.is_some() {
        let (evaluation, every) = plan.validation(&names);
        let rows = plan.rows(Part::Validation, share, batch.max(VALIDATION_ROWS))?;
        let validation = valid.insert(rows).source(Part::Validation);
        trainer = trainer.validate(evaluation, validation, every).goal(plan.goal());
        trainer = job.train.early_stop.into_iter().fold(trainer, |it, stop| it.early_stop(stop));
    }
    if fleet.is_first_worker() {
        plan.save_job()?;
    }
    let trained = trainer.run(&mut session, train.source(Part::Train))?;
    if trained.ended == Ended::Requested {
        fleet.finish()?;
        return Err(ExitReason::Terminated);
    }
    fleet.meet(&mut session)?;
    if trained.best.is_some() {
        let policy = CheckpointPolicy { keep_last: super::CHECKPOINTS_KEPT, ..plan.policy() };
        let mut best = fleet.checkpoints(folder.join("best"), policy)?;
        best.resume(&session.programs.main, &mut session.scope)?;
    }
    if let Some(whole) = fleet.whole(&session)? {
        let program = plan.folder.join(PROGRAM_FOLDER);
        fleet::save_inference_model(&program, &whole.program, &names.targets(), &whole.scope)?;
        plan.report(&trained, begin, out)?;
    }
    // The first worker may still write its report; if it dies meanwhile, all others learn of it.
    fleet.finish()?;
    if fleet.is_first_worker() {
        plan.remove_checkpoints()?;
    }
    Ok(())
}

/// Rows of a batch of a validation: larger ones are faster.
const VALIDATION_ROWS: usize = 1024;

fn parameters(session: &Session) -> f64 {
    let shapes = session.programs.main.parameters().map(|(_, var)| var.shape);
    shapes.map(|shape| shape.dims().iter().product::<i64>() as f64).sum()
}

/// Begins with the parameters of an earlier model.
fn load_parameters(plan: &TrainPlan, model: &std::path::Path, session: &mut Session) -> Result<()> {
    let base = plan.text.file.parent().unwrap_or(std::path::Path::new(""));
    let folder = base.join(model);
    if !folder.join(FEATURES_FILE).is_file() {
        return Err(Error::invalid("train.warm_start is not a model folder").got(folder.display()));
    }
    let program = folder.join(PROGRAM_FOLDER);
    fleet::load_params(&program, &session.programs.main, &mut session.scope).map_err(|error| {
        error.at("train.warm_start").or_help(
            "the earlier job must have the same model, and have been trained without servers",
        )
    })
}
