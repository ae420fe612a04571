//! Metrics in the network: accuracy, and the areas under the ROC curve and the precision-recall
//! curve.

use crate::Var;
use crate::setters::setters;
use fleet_base::Error;
use fleet_tensor::{DType, Shape};
use std::panic::Location;

/// Maximum number of prediction buckets. f32 cannot distinguish more.
const BUCKETS_MAX: i64 = 1 << 24;
/// Maximum length of the sliding window, in batches. Each batch of the window has its own buckets.
const STEPS_MAX: i64 = 1 << 16;

/// The curve whose area [`Auc`] measures.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let p = net.data("p", [-1, 1], DType::F32);
/// let rare = p.auc(net.data("label", [-1, 1], DType::I64), Auc::new().curve(Curve::Pr));
/// assert_eq!(rare.auc.dtype(), DType::F64);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Curve {
    /// True-positive rate over false-positive rate.
    #[default]
    Roc,
    /// Precision over recall. The area is the average precision.
    Pr,
}

/// Options of the area under a curve.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let p = net.data("p", [-1, 1], DType::F32);
/// let label = net.data("label", [-1, 1], DType::I64);
/// let auc = p.auc(label, Auc::new().num_thresholds(1 << 12).slide_steps(20));
/// assert_eq!(auc.stat_pos.shape(), Shape::from([1, 4097]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Auc {
    /// The curve whose area is measured; ROC by default.
    pub curve: Curve,
    /// Number of thresholds. Predictions are counted in one bucket more.
    pub num_thresholds: i64,
    /// Number of batches in the sliding window of the batch value.
    pub slide_steps: i64,
}

impl Auc {
    /// Returns the defaults: ROC, 4095 thresholds, a window of one batch.
    pub fn new() -> Auc {
        Auc { curve: Curve::Roc, num_thresholds: 4095, slide_steps: 1 }
    }

    setters! {
        curve: Curve,
        num_thresholds: i64,
        slide_steps: i64,
    }
}

impl Default for Auc {
    fn default() -> Self {
        Auc::new()
    }
}

/// Outputs of [`Var::auc`]. The counts persist across steps. Distributed metrics take `stat_pos`
/// and `stat_neg`.
#[derive(Clone, Copy, Debug)]
pub struct AucVars<'n> {
    /// Area over all batches so far.
    pub auc: Var<'n>,
    /// Area over the sliding window.
    pub batch_auc: Var<'n>,
    /// Positive labels of the sliding window: the buckets of each batch, their sum, and a counter.
    pub batch_stat_pos: Var<'n>,
    /// Like `batch_stat_pos`, for negative labels.
    pub batch_stat_neg: Var<'n>,
    /// Positive labels per bucket over all batches so far.
    pub stat_pos: Var<'n>,
    /// Negative labels per bucket over all batches so far.
    pub stat_neg: Var<'n>,
}

impl<'n> Var<'n> {
    /// Returns the share of rows whose class is among the `k` largest predictions.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let p = net.data("p", [-1, 1000], DType::F32);
    /// let top5 = p.accuracy(net.data("label", [-1, 1], DType::I64), 5);
    /// assert_eq!(top5.shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn accuracy(self, label: Var<'n>, k: i64) -> Var<'n> {
        self.accuracy_counts(label, k).0
    }

    /// Like [`Var::accuracy`], and also returns the number of correct rows and the number of rows.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let p = net.data("p", [-1, 1000], DType::F32);
    /// let (accuracy, right, rows) = p.accuracy_counts(net.data("label", [-1, 1], DType::I64), 1);
    /// assert_eq!((right.dtype(), rows.dtype()), (DType::I32, DType::I32));
    /// # let _ = accuracy;
    /// ```
    #[track_caller]
    pub fn accuracy_counts(self, label: Var<'n>, k: i64) -> (Var<'n>, Var<'n>, Var<'n>) {
        let (values, indices) = self.top_k(k);
        let call = self.net.op("accuracy").input("Out", values).input("Indices", indices);
        let made = call.input("Label", label).done();
        (made.one("Accuracy"), made.one("Correct"), made.one("Total"))
    }

    /// Returns the area under the ROC curve, or another [`Curve`], over the last batches and over
    /// all batches. Probabilities are `[N, 1]`, or `[N, 2]` with the positive class in the second
    /// column.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let p = net.data("p", [-1, 2], DType::F32);
    /// let auc = p.auc(net.data("label", [-1, 1], DType::I64), Auc::new());
    /// assert_eq!(auc.auc.dtype(), DType::F64);
    /// ```
    #[track_caller]
    pub fn auc(self, label: Var<'n>, with: Auc) -> AucVars<'n> {
        let net = self.net;
        let made = net.try_emit(Location::caller(), |b| {
            let (n, steps) = (with.num_thresholds, with.slide_steps);
            if !(1..=BUCKETS_MAX).contains(&n) || !(0..=STEPS_MAX).contains(&steps) {
                return Err(Error::invalid("invalid options of auc")
                    .expected(format!(
                        "num_thresholds 1 to {BUCKETS_MAX}, slide_steps 0 to {STEPS_MAX}"
                    ))
                    .got(format!("num_thresholds {n}, slide_steps {steps}")));
            }
            let (predict, label) = (b.id(self)?, b.id(label)?);
            let layer = b.layer_name("auc", None);
            let window = Shape::from([(1 + steps) * (n + 1) + 1]);
            let whole = Shape::from([1, n + 1]);
            let window = if steps == 0 { whole } else { window };
            let mut stats = Vec::with_capacity(4);
            for shape in [window, window, whole, whole] {
                let name = b.main.program.unique_name("_generated_var");
                stats.push(b.global_var(&name, shape, DType::I64, 0.0)?);
            }
            let mut areas = Vec::with_capacity(2);
            for (pair, steps) in stats.chunks(2).zip([steps, 0]) {
                let call = b.op("auc")?.input("Predict", predict).input("Label", label);
                let call = call.input("StatPos", pair[0]).input("StatNeg", pair[1]);
                let call = call.output("StatPosOut", pair[0]).output("StatNegOut", pair[1]);
                let call = call.attr("num_thresholds", n).attr("slide_steps", steps);
                let call = match with.curve {
                    Curve::Roc => call,
                    Curve::Pr => call.attr("curve", "PR"),
                };
                areas.push(call.named(format!("{layer}.tmp")).one("AUC")?);
            }
            Ok([areas[1], areas[0], stats[0], stats[1], stats[2], stats[3]])
        });
        let vars = made.map_or([net.invalid_var(); 6], |ids| ids.map(|id| net.handle(id)));
        let [auc, batch_auc, batch_stat_pos, batch_stat_neg, stat_pos, stat_neg] = vars;
        AucVars { auc, batch_auc, batch_stat_pos, batch_stat_neg, stat_pos, stat_neg }
    }
}
