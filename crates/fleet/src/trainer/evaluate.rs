//! Evaluation of a model over a whole data set, by all workers of a job together.

use super::model::Model;
use super::source::{Feeds, Position, Source};
use crate::Fleet;
use crate::numbers::numbers;
use fleet_base::{Error, Result, text};
use fleet_metrics::{Accumulator, Alone, Auc, Group, Ranking, Reduce};
use fleet_tensor::{DType, Tensor};

/// Metrics of an evaluation: means over rows, and areas under ROC curves.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::Fleet;
/// use fleet::trainer::{Evaluation, from_fn};
/// let fleet = Fleet::collective()?;
/// let net = Net::new();
/// let x = net.data("x", [-1, 1], DType::F32);
/// let mean = x.mean().name();
/// let mut session = Session::new(net.build()?, ExecOptions::default())?;
/// // A batch of two rows and one of a single row.
/// let data = from_fn(|_, batch, feeds| {
///     let x = [vec![0.1f32, 0.3], vec![0.8]].into_iter().nth(batch as usize).unwrap_or_default();
///     feeds.set("x", Tensor::from_slice(&x, [x.len() as i64, 1])?);
///     Ok(batch < 2)
/// });
/// let evaluation = Evaluation::new().mean("mean", &mean);
/// let found = evaluation.run(&fleet, &mut session, data)?;
/// assert_eq!((found.rows, found.batches), (3, 2));
/// assert!((found.get("mean").unwrap() - 0.4).abs() < 1e-6);
/// # Ok::<(), fleet::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Evaluation {
    metrics: Vec<Metric>,
    weights: Option<String>,
}

#[derive(Clone, Debug)]
struct Metric {
    label: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Mean { variable: String },
    Auc { prediction: String, target: String },
    Ndcg { score: String, grade: String, group: String, k: usize },
    MeanOf { labels: Vec<String> },
}

/// Result of an evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// Rows of all workers.
    pub rows: u64,
    /// Batches of all workers.
    pub batches: u64,
    /// Labels and values of the metrics.
    pub scalars: Vec<(String, f64)>,
}

impl Evaluated {
    /// Returns the value of the metric with this label.
    pub fn get(&self, label: &str) -> Option<f64> {
        self.scalars.iter().find(|(known, _)| known == label).map(|(_, value)| *value)
    }
}

impl Evaluation {
    /// Creates an evaluation without metrics.
    pub fn new() -> Evaluation {
        Evaluation::default()
    }

    /// Adds the mean of a variable over all rows. The variable is a mean over its batch, such as a
    /// loss, or has one value for each row.
    pub fn mean(self, label: &str, variable: &str) -> Evaluation {
        self.with(label, Kind::Mean { variable: variable.to_string() })
    }

    /// Adds the area under the ROC curve of predicted probabilities. `target` is the input or
    /// variable with the labels, 0 or 1.
    pub fn auc(self, label: &str, prediction: &str, target: &str) -> Evaluation {
        let (prediction, target) = (prediction.to_string(), target.to_string());
        self.with(label, Kind::Auc { prediction, target })
    }

    /// Adds the mean NDCG of the first `k` items of each group by their scores. `grade` is the
    /// input or variable with grades, 0 or more; `group` has the integer by which items belong
    /// together. All items of a group must be on one worker. Groups without a grade above 0 are
    /// ignored.
    pub fn ndcg(self, label: &str, score: &str, grade: &str, group: &str, k: usize) -> Evaluation {
        let [score, grade, group] = [score, grade, group].map(str::to_string);
        self.with(label, Kind::Ndcg { score, grade, group, k })
    }

    /// Counts each row of means and areas as often as this input or variable says, which has one
    /// number, 0 or more, for each row. Variables of means must then have one value for each row,
    /// too.
    pub fn weights(self, variable: &str) -> Evaluation {
        Evaluation { weights: Some(variable.to_string()), ..self }
    }

    /// Adds the mean of other metrics of this evaluation, which are named by their labels.
    ///
    /// ```
    /// use fleet::trainer::Evaluation;
    /// let evaluation = Evaluation::new().auc("click", "p0", "y0").auc("buy", "p1", "y1");
    /// let evaluation = evaluation.mean_of("auc", ["click", "buy"]);
    /// ```
    pub fn mean_of<'l>(self, label: &str, labels: impl IntoIterator<Item = &'l str>) -> Evaluation {
        let labels = labels.into_iter().map(str::to_string).collect();
        self.with(label, Kind::MeanOf { labels })
    }

    fn with(mut self, label: &str, kind: Kind) -> Evaluation {
        self.metrics.push(Metric { label: label.to_string(), kind });
        self
    }

    pub(super) fn labels(&self) -> impl Iterator<Item = &str> {
        self.metrics.iter().map(|metric| metric.label.as_str())
    }

    /// Runs the forward part of the model over all batches of all workers, as for inference. All
    /// workers of a collective or synchronous job must call it; each brings its share of the data.
    /// Workers of parameter servers that do not wait for each other evaluate their own data alone.
    pub fn run<'m>(
        &self,
        fleet: &Fleet,
        model: impl Into<Model<'m>>,
        mut data: impl Source,
    ) -> Result<Evaluated> {
        self.evaluate(fleet, &mut model.into(), &mut data)
    }

    pub(super) fn evaluate(
        &self,
        fleet: &Fleet,
        model: &mut Model<'_>,
        data: &mut dyn Source,
    ) -> Result<Evaluated> {
        model.settle(fleet)?;
        let mut counts = Counts::new(self)?;
        let own = counts.add_all(model, data);
        // After an error here the others must not wait for this worker's sums.
        if model.is_in_step() {
            let mut failed = [f64::from(u8::from(own.is_err()))];
            fleet.metrics().all_reduce(Reduce::Max, &mut failed)?;
            own?;
            if failed[0] > 0.0 {
                return Err(Error::unavailable("the evaluation failed on another worker"));
            }
            counts.all_reduce(&mut fleet.metrics())?;
        } else {
            own?;
            counts.all_reduce(&mut Alone)?;
        }
        counts.evaluated(self)
    }
}

/// Sums of an evaluation in progress.
struct Counts<'e> {
    evaluation: &'e Evaluation,
    fetch: Vec<&'e str>,
    /// Rows, batches, weights, and for each metric the sum of value times weight.
    sums: Vec<f64>,
    areas: Vec<Auc>,
    rankings: Vec<Ranking>,
}

/// Buckets of scores; the default of the documented `auc` op.
const THRESHOLDS: usize = 4095;
/// Sums before those of metrics.
const HEAD: usize = 3;

impl<'e> Counts<'e> {
    fn new(evaluation: &'e Evaluation) -> Result<Counts<'e>> {
        let mut fetch = Vec::new();
        let (mut areas, mut rankings) = (Vec::new(), Vec::new());
        for metric in &evaluation.metrics {
            match &metric.kind {
                Kind::Mean { variable } => fetch.push(variable.as_str()),
                Kind::Auc { prediction, target } => {
                    fetch.extend([prediction.as_str(), target.as_str()]);
                    areas.push(Auc::new(THRESHOLDS)?);
                }
                Kind::Ndcg { score, grade, group, .. } => {
                    fetch.extend([score.as_str(), grade.as_str(), group.as_str()]);
                    rankings.push(Ranking::default());
                }
                Kind::MeanOf { .. } => {}
            }
        }
        fetch.extend(evaluation.weights.as_deref());
        let sums = vec![0.0; HEAD + evaluation.metrics.len()];
        Ok(Counts { evaluation, fetch, sums, areas, rankings })
    }

    fn add_all(&mut self, model: &mut Model<'_>, data: &mut dyn Source) -> Result<()> {
        let (mut feeds, mut out) = (Feeds::default(), Vec::new());
        let mut pass = data.pass(0, Position::default())?;
        while pass.next(&mut feeds)? {
            let ran = model.session().evaluate_into(&feeds.list(), &self.fetch, &mut out);
            let added = ran.and_then(|()| self.add(feeds.rows(), &out));
            let batch = self.sums[1];
            added.map_err(|error| error.at(format!("batch {batch} of the evaluation")))?;
        }
        Ok(())
    }

    fn add(&mut self, rows: u64, out: &[Tensor]) -> Result<()> {
        let weights = match (&self.evaluation.weights, out) {
            (Some(variable), [.., weights]) => Some(weights_of(weights, rows, variable)?),
            _ => None,
        };
        let (mut out, mut areas) = (out.iter(), self.areas.iter_mut());
        let mut rankings = self.rankings.iter_mut();
        let mut value = || out.next().ok_or_else(|| Error::internal("a metric was not fetched"));
        self.sums[0] += rows as f64;
        self.sums[1] += 1.0;
        self.sums[2] += match &weights {
            Some(weights) => weights.iter().map(|weight| f64::from(*weight)).sum(),
            None => rows as f64,
        };
        for (metric, sum) in self.evaluation.metrics.iter().zip(&mut self.sums[HEAD..]) {
            match &metric.kind {
                Kind::Mean { variable } => {
                    *sum += match &weights {
                        Some(weights) => weighted_sum(value()?, weights, variable)?,
                        None => row_sum(value()?, rows, variable)?,
                    }
                }
                Kind::Auc { .. } => {
                    let (scores, labels) = (floats(value()?)?, floats(value()?)?);
                    let area = areas.next().map_or(Ok(()), |area| match &weights {
                        Some(weights) => area.add_weighted(&scores, &labels, weights),
                        None => area.add(&scores, &labels),
                    });
                    area.map_err(|error| error.at(format!("metric '{}'", metric.label)))?;
                }
                Kind::Ndcg { .. } => {
                    let (scores, grades) = (floats(value()?)?, floats(value()?)?);
                    let groups = value()?.as_slice::<i64>()?;
                    let groups: Vec<u64> = groups.iter().map(|group| *group as u64).collect();
                    let ranking = rankings.next();
                    let added = ranking.map_or(Ok(()), |it| it.add(&groups, &scores, &grades));
                    added.map_err(|error| error.at(format!("metric '{}'", metric.label)))?;
                }
                Kind::MeanOf { .. } => {}
            }
        }
        Ok(())
    }

    fn all_reduce(&mut self, group: &mut dyn Group) -> Result<()> {
        group.all_reduce(Reduce::Sum, &mut self.sums)?;
        self.areas.iter_mut().try_for_each(|area| area.all_reduce(group))?;
        let mut rankings = self.rankings.iter();
        for (metric, sum) in self.evaluation.metrics.iter().zip(&mut self.sums[HEAD..]) {
            if let Kind::Ndcg { k, .. } = &metric.kind
                && let Some(ranking) = rankings.next()
            {
                // The values of a group do not add up by batch: this is the mean itself.
                *sum = ranking.all_reduced(*k, group)?.ndcg;
            }
        }
        Ok(())
    }

    fn evaluated(self, evaluation: &Evaluation) -> Result<Evaluated> {
        let rows = self.sums[0];
        if rows == 0.0 {
            return Err(Error::invalid("the data of the evaluation has no rows")
                .help("check the list of files, and that drop_last leaves a batch"));
        }
        let weight = self.sums[2];
        if weight == 0.0 {
            return Err(Error::invalid("the weights of all rows of the evaluation are 0")
                .help("check the column of weights: missing and negative weights count as 0"));
        }
        let mut areas = self.areas.iter();
        let values = evaluation.metrics.iter().zip(&self.sums[HEAD..]).map(|(metric, sum)| {
            let value = match metric.kind {
                Kind::Mean { .. } => sum / weight,
                Kind::Auc { .. } => areas.next().map_or(f64::NAN, Auc::value),
                Kind::Ndcg { .. } => *sum,
                Kind::MeanOf { .. } => f64::NAN,
            };
            (metric.label.clone(), value)
        });
        let scalars = values.collect();
        let mut found = Evaluated { rows: rows as u64, batches: self.sums[1] as u64, scalars };
        for (at, metric) in evaluation.metrics.iter().enumerate() {
            if let Kind::MeanOf { labels } = &metric.kind {
                found.scalars[at].1 = mean_of(&found, labels, &metric.label)?;
            }
        }
        Ok(found)
    }
}

/// Returns the mean of some metrics.
fn mean_of(found: &Evaluated, labels: &[String], own: &str) -> Result<f64> {
    let value = |label: &String| {
        found.get(label).ok_or_else(|| {
            let known = found.scalars.iter().map(|(known, _)| known.as_str());
            let hint = text::did_you_mean(label, known);
            Error::invalid(format!("metric '{own}' is a mean of an unknown metric{hint}"))
                .got(format!("'{label}'"))
        })
    };
    let values: Result<Vec<f64>> = labels.iter().map(value).collect();
    Ok(values?.iter().sum::<f64>() / labels.len() as f64)
}

fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(numbers(tensor, usize::MAX)?.into_iter().map(|value| value as f32).collect())
}

/// Returns the weights of the rows of a batch.
fn weights_of(tensor: &Tensor, rows: u64, variable: &str) -> Result<Vec<f32>> {
    let weights = floats(tensor)?;
    let wrong = |what: String| {
        Err(Error::invalid("invalid weights of an evaluation")
            .expected(format!("a number, 0 or more, for each of the {rows} rows"))
            .got(what)
            .at(format!("variable '{variable}'")))
    };
    if weights.len() as u64 != rows {
        return wrong(format!("{}{}", tensor.dtype(), tensor.shape()));
    }
    match weights.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
        Some(weight) => wrong(weight.to_string()),
        None => Ok(weights),
    }
}

/// Returns the sum over rows of a variable times their weights.
fn weighted_sum(tensor: &Tensor, weights: &[f32], variable: &str) -> Result<f64> {
    let values = numbers(tensor, usize::MAX)?;
    if values.len() != weights.len() {
        return Err(Error::invalid(format!(
            "cannot take the weighted mean of variable '{variable}'"
        ))
        .expected(format!("one number for each of the {} rows", weights.len()))
        .got(format!("{}{}", tensor.dtype(), tensor.shape()))
        .help("do not reduce it in the network"));
    }
    let products = values.into_iter().zip(weights).map(|(value, weight)| match *weight {
        // The loss of a row that does not count may be infinite.
        0.0 => 0.0,
        weight => value * f64::from(weight),
    });
    Ok(products.sum())
}

/// Returns the sum over rows of a variable: a mean over its batch, or one value for each row.
pub(super) fn row_sum(tensor: &Tensor, rows: u64, variable: &str) -> Result<f64> {
    let sum = |values: &mut dyn ExactSizeIterator<Item = f64>| match values.len() {
        1 => Some(values.sum::<f64>() * rows as f64),
        each if each as u64 == rows => Some(values.sum()),
        _ => None,
    };
    let found = match tensor.dtype() {
        // Without a copy, as in every step.
        DType::F32 => sum(&mut tensor.as_slice::<f32>()?.iter().map(|value| f64::from(*value))),
        _ => sum(&mut numbers(tensor, usize::MAX)?.into_iter()),
    };
    found.ok_or_else(|| {
        Error::invalid(format!("cannot take the mean of variable '{variable}'"))
            .expected(format!("one number, or one for each of the {rows} rows"))
            .got(format!("{}{}", tensor.dtype(), tensor.shape()))
            .help("reduce it in the network: mean, or sum over all but the first dimension")
    })
}
