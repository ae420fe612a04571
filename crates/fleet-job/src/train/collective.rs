//! Training in one process, or on the ranks of a collective job.

use super::{OutputNames, PartRows, TrainPlan, share_of_batch};
use crate::lines::Lines;
use crate::model::{TablePlace, build};
use crate::optimizer::optimizer;
use crate::rows::Share;
use crate::saved::{FEATURES_FILE, PROGRAM_FOLDER};
use crate::split::Part;
use crate::trace::Tracing;
use fleet::nn::Net;
use fleet::trainer::{Ended, Event, Every, StopFlag, Trained};
use fleet::{CheckpointPolicy, Fleet, Session};
use fleet_base::file::make_folder;
use fleet_base::output::ExitReason;
use fleet_base::{Error, Result};
use std::ops::ControlFlow;
use std::time::Instant;

pub fn run(
    plan: &TrainPlan,
    fleet: &Fleet,
    out: &mut Lines<'_>,
    begin: Instant,
) -> Result<(), ExitReason> {
    let mut model = RankModel::new(plan, fleet)?;
    let workers = match fleet.worker_num() {
        1 => String::new(),
        workers => format!(", {workers} workers"),
    };
    let batches = format!("batches of {}{workers}", plan.job.train.batch);
    plan.describe(parameters(&model.session), &batches, out)?;
    let mut rows = model.rows(plan)?;
    if fleet.is_first_worker() {
        make_folder(&plan.folder)?;
    }
    let stop = StopFlag::on_terminate()?;
    let trained = model.train(plan, fleet, &mut rows, Length::default(), &stop)?;
    if let Some(line) = model.tracing.finish(fleet)? {
        plan.fact("trace", &line, out)?;
    }
    if trained.ended == Ended::Requested {
        fleet.finish()?;
        return Err(ExitReason::Terminated);
    }
    fleet.meet(&mut model.session)?;
    model.finish(plan, fleet, &trained)?;
    if fleet.is_first_worker() {
        plan.trained(&trained, begin.elapsed().as_secs_f64(), out)?;
        plan.report(&trained, out)?;
    }
    // The first worker may still write its report; if it dies meanwhile, all others learn of it.
    fleet.finish()?;
    if fleet.is_first_worker() {
        plan.drop_checkpoints()?;
    }
    Ok(())
}

/// Rows of a batch of a validation: larger ones are faster.
const VALIDATION_ROWS: usize = 1024;

/// A rank's copy of a model, or its part of one.
pub(crate) struct RankModel {
    session: Session,
    names: OutputNames,
    /// Which copy of the model this rank has, and their number.
    copy: (usize, usize),
    tracing: Tracing,
}

/// Rows of a rank.
pub(crate) struct RankRows {
    train: PartRows,
    validation: Option<PartRows>,
}

/// Length of a part of a training.
#[derive(Default)]
pub(crate) struct Length {
    /// Stops after this step; by default after all epochs.
    pub steps: Option<u64>,
    /// Interval of validations, if it is not that of the job.
    pub every: Option<Every>,
}

impl RankModel {
    /// Builds the model, with the parameters of an earlier one if the job says so.
    pub fn new(plan: &TrainPlan, fleet: &Fleet) -> Result<RankModel> {
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
        if job.model.negatives.is_some() && found.plan.stage.is_some() {
            return Err(Error::unsupported(
                "a pipeline divides the rows of a batch, which end with \
                                           the drawn items",
            )
            .at("model.negatives")
            .help("remove model.negatives, or train data parallel without a pipeline"));
        }
        let mut session = fleet.session(net.build()?, &found, plan.options.clone())?;
        if let Some(model) = &job.train.warm_start {
            load_parameters(plan, model, &mut session)?;
        }
        let copy = found.plan.copy;
        let batch = (job.train.batch / copy.1.max(1)).max(1);
        let steps = job.train.epochs * plan.steps_per_epoch(copy.1 as u64, batch);
        let tracing = Tracing::new(plan.flags.trace.as_deref(), steps)?;
        Ok(RankModel { session, names, copy, tracing })
    }

    /// Opens this rank's rows for training and validation.
    pub fn rows(&self, plan: &TrainPlan) -> Result<RankRows> {
        let (copy, copies) = self.copy;
        let share = Share { own: copy as u64, of: copies as u64 };
        let batch = share_of_batch(plan.job.train.batch, copies)?;
        let train = plan.rows(Part::Train, share, batch)?;
        let validation = plan.job.data.validation.as_ref();
        let validation =
            validation.map(|_| plan.rows(Part::Validation, share, batch.max(VALIDATION_ROWS)));
        Ok(RankRows { train, validation: validation.transpose()? })
    }

    /// Trains, from the newest checkpoint if there is one.
    pub fn train(
        &mut self,
        plan: &TrainPlan,
        fleet: &Fleet,
        rows: &mut RankRows,
        length: Length,
        stop: &StopFlag,
    ) -> Result<Trained> {
        let negatives = plan.negatives(self.copy.0 as u64)?;
        let negatives = negatives.as_ref();
        let tracing = &mut self.tracing;
        let mut trainer =
            plan.trainer(fleet, &self.names).epochs(plan.job.train.epochs).stop_on(stop).on_event(
                |event, model| {
                    if let Event::Step { step, .. } = event {
                        tracing.after_step(*step, &model.session().executor);
                    }
                    Ok(ControlFlow::Continue(()))
                },
            );
        if let Some(folder) = &plan.checkpoints {
            trainer = trainer.checkpoints(folder, plan.policy());
        }
        if let Some(validation) = &mut rows.validation {
            let (evaluation, every) = plan.validation(&self.names);
            let every = length.every.unwrap_or(every);
            let validation = validation.source(Part::Validation, negatives);
            trainer = trainer.validate(evaluation, validation, every).goal(plan.goal());
            let patience = plan.job.train.early_stop;
            trainer = patience.into_iter().fold(trainer, |it, patience| it.early_stop(patience));
        }
        trainer = length.steps.into_iter().fold(trainer, |it, steps| it.steps(steps));
        trainer.run(&mut self.session, rows.train.source(Part::Train, negatives))
    }

    /// Saves the best model of the validations into the model folder.
    pub fn finish(&mut self, plan: &TrainPlan, fleet: &Fleet, trained: &Trained) -> Result<()> {
        let session = &mut self.session;
        if let (Some(_), Some(folder)) = (&trained.best, &plan.checkpoints) {
            let policy = CheckpointPolicy { keep_last: super::CHECKPOINTS_KEPT, ..plan.policy() };
            let mut best = fleet.checkpoints(folder.join("best"), policy)?;
            best.resume(&session.programs.main, &mut session.scope)?;
        }
        if let Some(whole) = fleet.whole(session)? {
            plan.replace_model(|folder| {
                let targets = self.names.targets();
                fleet::save_inference_model(folder, &whole.program, &targets, &whole.scope)
            })?;
        }
        Ok(())
    }
}

impl RankRows {
    /// Sets the rows of a step, for another job over the same rows.
    pub fn set_batch(&mut self, batch: usize) -> Result<()> {
        self.train.set_batch(batch)?;
        match &mut self.validation {
            Some(validation) => validation.set_batch(batch.max(VALIDATION_ROWS)),
            None => Ok(()),
        }
    }
}

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
