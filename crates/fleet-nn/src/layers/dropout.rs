//! Dropout.

use crate::Var;
use crate::setters::setters;
use fleet_base::Error;

/// Options of dropout. A plain number is the probability of zeroing an element.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 13], DType::F32);
/// let y = x.dropout(Dropout::new(0.5).downgrade_in_infer());
/// assert_eq!(y.shape(), x.shape());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Probability that an element is set to zero in training.
    pub prob: f64,
    /// Whether to scale at inference instead of in training.
    pub downgrade_in_infer: bool,
    /// Seed of this layer; 0 means the program's.
    pub seed: i64,
}

impl Dropout {
    /// Returns a dropout that scales the kept elements by `1 / (1 - prob)` in training.
    pub fn new(prob: f64) -> Dropout {
        Dropout { prob, downgrade_in_infer: false, seed: 0 }
    }

    setters! {
        downgrade_in_infer: true,
        seed: i64,
    }
}

impl From<f64> for Dropout {
    fn from(prob: f64) -> Dropout {
        Dropout::new(prob)
    }
}

impl<'n> Var<'n> {
    /// Zeroes random elements in training and scales up the others. With probability 0, no op is
    /// added.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 13], DType::F32).dropout(0.1);
    /// assert_eq!(y.name(), "dropout_0.tmp_0");
    /// ```
    #[track_caller]
    pub fn dropout(self, with: impl Into<Dropout>) -> Var<'n> {
        let with = with.into();
        self.layer(|b, x| {
            if !(0.0..=1.0).contains(&with.prob) {
                return Err(Error::invalid("wrong probability of dropout")
                    .expected("0 to 1")
                    .got(with.prob));
            }
            if with.prob == 0.0 {
                return Ok(x);
            }
            let stream = b.main.program.next_stream() as i64;
            let kind =
                if with.downgrade_in_infer { "downgrade_in_infer" } else { "upscale_in_train" };
            let layer = b.layer_name("dropout", None);
            let call = b.op("dropout")?.input("X", x).attr("dropout_prob", with.prob);
            let call = call.attr("dropout_implementation", kind).attr("seed", with.seed);
            call.attr("stream", stream).named(format!("{layer}.tmp")).one("Out")
        })
    }
}
