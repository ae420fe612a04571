//! Generated click logs in the format of Criteo's, from a known model. This is not a model of real
//! users: all its regularities exist to measure training against the best possible score.
//!
//! A sample has dense inputs (uniform on 0, 0.001, .. 1), one id in each slot (independent, a
//! bounded power law over the slot's rows), and a label that is 1 with probability sigmoid(logit):
//!
//! ```text
//! logit = bias + scale * ( sum_i dense_i * beta_i                    (share 0.35 of the variance)
//!                        + sum_s effect[s][rank of id in slot s]     (share 0.55)
//!                        + sum_(s,t) <left[s][rank], right[t][rank]> (share 0.10) )
//! ```
//!
//! `bias` and `scale` are solved for at construction, so that the base rate and the best AUC match
//! the configuration for any other settings.
//!
//! Why the best score can be reached. A table row is learned only from the samples that contain its
//! id. Effects of rare ids could therefore never be learned, and the best AUC would be unreachable.
//! Here the size of an effect is proportional to 1 / (1 + (rank / head)^2). It fades as ids become
//! rare, and is zero from rank 4096. An id that is not in the training data is thus correctly
//! treated as neutral, as its row with small initial values is. About `head` effects a slot must be
//! learned. At n samples each costs about 1 / (n p(1-p)) of logit variance, so 26 slots with head 8
//! cost under 1 % of the signal after 200,000 samples. Interactions have two latent dimensions and
//! a narrower head, because an MLP is slow to learn products.
//!
//! The table lists the gap between a wide & deep model and the best AUC of `tiny`, with each sample
//! seen once. The model has dim 16 and an MLP 400-400-400-1 under Adam; learning rates decrease
//! linearly to zero.
//!
//! | samples | batch | table rule | Adam | gap |
//! | --- | --- | --- | --- | --- |
//! | 200,000 | 256 | SGD 4.0 | 0.001 | 0.0046 |
//! | 300,000 | 512 | SGD 4.0 | 0.002 | 0.0039 |
//! | 500,000 | 512 | SGD 2.0 | 0.002 | 0.0027 |
//! | 1,000,000 | 512 | Adagrad 0.05 | 0.001 | 0.0028 |
//! | 1,000,000 | 2048 | Adagrad 0.1 | 0.002 | 0.0031 |
//!
//! [`CtrConfig::hard`] replaces the products `dense_i * beta_i` by curves with effects of missing
//! numbers (`curve.rs`), and has more effects of rare ids. With it, test AUCs of job
//! files are compared with the best one (`rec/criteo_logs` in `bench/README.md`).
//!
//! A permutation for each slot maps ranks to rows, so that frequent rows are not neighbours in
//! memory, as in a hashed table.
//!
//! Speed: 1 µs per sample and core (18 Philox blocks, 26 powers), 1.4 µs as a line of text (235
//! bytes), without allocations.

use std::io::Write;
use std::ops::Range;

use fleet_base::rng::{Philox, Sequence};
use fleet_base::{Error, Result};

use crate::curve::Curve;
use crate::{PowerLaw, auc_expected, expect_length, expect_within, part_seed, unit_f64};

/// Settings of a click log; `tiny`, `small` and `criteo_like` are presets.
///
/// ```
/// use fleet_synth::{Ctr, CtrConfig};
/// let clicks = Ctr::new(CtrConfig { base_rate: 0.1, seed: 7, ..CtrConfig::tiny() })?;
/// assert!((clicks.best_scores(0, 20_000)?.positive_rate - 0.1).abs() < 0.01);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CtrConfig {
    /// Seed of the model and of the samples.
    pub seed: u64,
    /// Number of dense inputs.
    pub dense_count: usize,
    /// Whether the effects of dense inputs are curves; otherwise they are proportional.
    pub is_curved: bool,
    /// Rows of each slot.
    pub slot_rows: Vec<u32>,
    /// Exponent of the ids' power law; larger means fewer distinct ids in a batch.
    pub id_exponent: f64,
    /// The rank at which an id's effect has fallen to half.
    pub head: f64,
    /// Number of interacting pairs of slots.
    pub pair_count: usize,
    /// Mean probability of label 1.
    pub base_rate: f64,
    /// The AUC of the true probability.
    pub best_auc: f64,
    /// Samples in a day; 0 means one endless day.
    pub samples_per_day: u64,
    /// Rotation of the effects of every second slot each day, in radians. After pi / 2 they are
    /// unrelated to the first day's. The best AUC stays the same.
    pub drift_per_day: f64,
}

impl CtrConfig {
    /// Returns settings for tests: 26 slots of 4 to 1,003 rows, 5,000 in all.
    ///
    /// ```
    /// use fleet_synth::CtrConfig;
    /// assert_eq!(CtrConfig::tiny().slot_rows.iter().sum::<u32>(), 5_000);
    /// ```
    pub fn tiny() -> Self {
        CtrConfig {
            seed: 1,
            dense_count: 13,
            is_curved: false,
            slot_rows: Self::spread(26, 4, 5_000),
            id_exponent: 1.1,
            head: 8.0,
            pair_count: 2,
            base_rate: 0.25,
            best_auc: 0.80,
            samples_per_day: 0,
            drift_per_day: 0.0,
        }
    }

    /// Returns settings for demos: 50,000 rows.
    ///
    /// ```
    /// use fleet_synth::CtrConfig;
    /// assert_eq!(CtrConfig::small().slot_rows.iter().sum::<u32>(), 50_000);
    /// ```
    pub fn small() -> Self {
        CtrConfig {
            slot_rows: Self::spread(26, 4, 50_000),
            head: 16.0,
            pair_count: 4,
            ..Self::tiny()
        }
    }

    /// Returns settings for benchmarks: 1,000,000 rows, of which the largest slot has over a third.
    ///
    /// ```
    /// use fleet_synth::CtrConfig;
    /// assert_eq!(CtrConfig::criteo_like().slot_rows.iter().sum::<u32>(), 1_000_000);
    /// ```
    pub fn criteo_like() -> Self {
        CtrConfig {
            slot_rows: Self::spread(26, 4, 1_000_000),
            head: 32.0,
            pair_count: 6,
            ..Self::tiny()
        }
    }

    /// Returns settings that are as hard to learn as real logs: the ids of `criteo_like` with twice
    /// as many effects, and curves with missing numbers.
    ///
    /// ```
    /// use fleet_synth::CtrConfig;
    /// assert!(CtrConfig::hard().is_curved);
    /// ```
    pub fn hard() -> Self {
        CtrConfig { is_curved: true, head: 64.0, pair_count: 4, ..Self::criteo_like() }
    }

    /// Returns slot sizes in geometric progression from `smallest`, with `total` rows in all. A
    /// total below `slot_count * smallest` is raised to that.
    ///
    /// ```
    /// use fleet_synth::CtrConfig;
    /// assert_eq!(CtrConfig::spread(3, 10, 210), [10, 40, 160]);
    /// ```
    pub fn spread(slot_count: usize, smallest: u32, total: u32) -> Vec<u32> {
        let (smallest, total) = (f64::from(smallest.max(1)), f64::from(total));
        let (mut low, mut high) = (1.0f64, total.max(2.0));
        for _ in 0..200 {
            let ratio = 0.5 * (low + high);
            let sum: f64 = (0..slot_count).map(|slot| smallest * ratio.powi(slot as i32)).sum();
            if sum <= total { low = ratio } else { high = ratio }
        }
        // Sizes within rounding error below an integer are that integer.
        let mut rows: Vec<u32> =
            (0..slot_count).map(|slot| (smallest * low.powi(slot as i32) + 1e-6) as u32).collect();
        let sum: u32 = rows.iter().sum();
        if let Some(last) = rows.last_mut() {
            *last += (total as u32).saturating_sub(sum);
        }
        rows
    }
}

/// Numbering of ids: rows of one shared table, or rows of a table for each slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IdSpace {
    /// Slots have successive rows of one table.
    #[default]
    Global,
    /// The ids of each slot start at 0.
    PerSlot,
}

/// Layout of a batch's ids: `[batch, slot]`, or `[slot, batch]` for programs with an input per
/// slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IdOrder {
    /// `[batch, slot]`.
    #[default]
    SampleMajor,
    /// `[slot, batch]`.
    SlotMajor,
}

/// Numbering and layout of a batch's ids; the default is global ids, `[batch, slot]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IdLayout {
    /// Numbering of the ids.
    pub space: IdSpace,
    /// Order of the dimensions.
    pub order: IdOrder,
}

/// Scores of the true probabilities on a range of samples. No model scores better in expectation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BestScores {
    /// Area under the ROC curve.
    pub auc: f64,
    /// Mean cross-entropy in nats.
    pub log_loss: f64,
    /// Share of samples with label 1.
    pub positive_rate: f64,
}

/// A click log; the top of this file defines its model.
///
/// ```
/// use fleet_synth::{auc_exact, Ctr, CtrConfig};
/// let clicks = Ctr::new(CtrConfig::tiny())?;
/// let n = 1000;
/// let (mut dense, mut ids, mut labels) = (vec![0.0; n * 13], vec![0; n * 26], vec![0.0; n]);
/// clicks.fill_batch(&mut dense, &mut ids, &mut labels, 0)?;
/// let mut truth = vec![0.0; n];
/// clicks.fill_probabilities(&mut truth, 0);
/// let auc = auc_exact(&truth, &labels)?;
/// assert!(auc > 0.75 && auc < 0.85);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ctr {
    config: CtrConfig,
    sample_seed: u64,
    beta: Vec<f64>,
    /// For each dense input, if effects are curves.
    curves: Vec<Curve>,
    slots: Vec<Slot>,
    pairs: Vec<Pair>,
    bias: f64,
    scale: f64,
}

#[derive(Clone, Debug)]
struct Slot {
    law: PowerLaw,
    offset: i64,
    /// row = rank * step mod rows; rank = row * inverse_step mod rows.
    step: u64,
    inverse_step: u64,
    /// By rank: the effect on day 0, and the effect towards which it rotates.
    effects: Vec<[f32; 2]>,
    drifts: bool,
}

/// Two slots whose latent vectors, by rank, are multiplied.
#[derive(Clone, Debug)]
struct Pair {
    slots: [usize; 2],
    left: Vec<[f32; LATENT]>,
    right: Vec<[f32; LATENT]>,
}

impl Ctr {
    /// Builds the model: tables of at most 4096 effects a slot, bias and scale.
    pub fn new(config: CtrConfig) -> Result<Ctr> {
        check(&config)?;
        let beta = dense_effects(&config);
        let curves = if config.is_curved { dense_curves(&config) } else { Vec::new() };
        let slots = build_slots(&config);
        let pairs = build_pairs(&config, &slots);
        let sample_seed = part_seed(config.seed, PART_SAMPLES);
        let mut ctr =
            Ctr { config, sample_seed, beta, curves, slots, pairs, bias: 0.0, scale: 1.0 };
        ctr.calibrate()?;
        Ok(ctr)
    }

    /// Returns the settings.
    pub fn config(&self) -> &CtrConfig {
        &self.config
    }

    /// Returns the number of dense inputs.
    pub fn dense_count(&self) -> usize {
        self.beta.len()
    }

    /// Returns the number of slots.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the rows of the shared table: the sum over slots.
    pub fn row_count(&self) -> u64 {
        self.config.slot_rows.iter().map(|rows| u64::from(*rows)).sum()
    }

    /// Returns the offset from a per-slot id of `slot` to the global id; `None` past the last slot.
    pub fn slot_offset(&self, slot: usize) -> Option<i64> {
        self.slots.get(slot).map(|slot| slot.offset)
    }

    /// Fills consecutive samples from `first_sample`. With n labels, the buffers are dense
    /// `[n, dense_count]`, global ids `[n, slot_count]`, and labels `[n]`.
    pub fn fill_batch(
        &self,
        dense: &mut [f32],
        ids: &mut [i64],
        labels: &mut [f32],
        first_sample: u64,
    ) -> Result<()> {
        self.fill_batch_as(IdLayout::default(), dense, ids, labels, first_sample)
    }

    /// Like [`Ctr::fill_batch`], with another numbering and layout of ids.
    ///
    /// ```
    /// use fleet_synth::{Ctr, CtrConfig, IdLayout, IdOrder, IdSpace};
    /// let clicks = Ctr::new(CtrConfig::tiny())?;
    /// let (mut dense, mut ids, mut labels) = ([0.0; 2 * 13], [0; 2 * 26], [0.0; 2]);
    /// let layout = IdLayout { space: IdSpace::PerSlot, order: IdOrder::SlotMajor };
    /// clicks.fill_batch_as(layout, &mut dense, &mut ids, &mut labels, 0)?;
    /// assert!(ids[..2].iter().all(|id| *id < 4)); // the first slot has four rows
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn fill_batch_as(
        &self,
        layout: IdLayout,
        dense: &mut [f32],
        ids: &mut [i64],
        labels: &mut [f32],
        first_sample: u64,
    ) -> Result<()> {
        let (count, slots) = (labels.len(), self.slots.len());
        expect_length("dense", dense.len(), count * self.beta.len())?;
        expect_length("ids", ids.len(), count * slots)?;
        let strides = match layout.order {
            IdOrder::SampleMajor => (slots, 1),
            IdOrder::SlotMajor => (1, count),
        };
        for (row, label) in labels.iter_mut().enumerate() {
            let sample = first_sample.wrapping_add(row as u64);
            let ranks = self.ranks(sample);
            let inputs = &mut dense[row * self.beta.len()..][..self.beta.len()];
            self.fill_dense(sample, inputs);
            for (index, slot) in self.slots.iter().enumerate() {
                let id = slot.row(ranks[index]);
                ids[row * strides.0 + index * strides.1] = match layout.space {
                    IdSpace::Global => slot.offset + id,
                    IdSpace::PerSlot => id,
                };
            }
            let probability = sigmoid(self.logit_of(inputs, &ranks, self.day(sample)));
            *label = f32::from(u8::from(self.label_quantile(sample) < probability));
        }
        Ok(())
    }

    /// Fills in the true probabilities of label 1 for consecutive samples.
    pub fn fill_probabilities(&self, probabilities: &mut [f64], first_sample: u64) {
        let mut dense = [0.0; DENSE_COUNT_MAX];
        let dense = &mut dense[..self.beta.len()];
        for (row, probability) in probabilities.iter_mut().enumerate() {
            let sample = first_sample.wrapping_add(row as u64);
            self.fill_dense(sample, dense);
            *probability = sigmoid(self.logit_of(dense, &self.ranks(sample), self.day(sample)));
        }
    }

    /// Returns the true logit of any inputs (global ids), on the day of `sample`.
    ///
    /// ```
    /// use fleet_synth::{Ctr, CtrConfig};
    /// let clicks = Ctr::new(CtrConfig::tiny())?;
    /// let (mut dense, mut ids, mut labels) = ([0.0; 13], [0; 26], [0.0]);
    /// clicks.fill_batch(&mut dense, &mut ids, &mut labels, 42)?;
    /// let mut truth = [0.0];
    /// clicks.fill_probabilities(&mut truth, 42);
    /// let logit = clicks.logit(&dense, &ids, 42)?;
    /// assert!((1.0 / (1.0 + (-logit).exp()) - truth[0]).abs() < 1e-12);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn logit(&self, dense: &[f32], ids: &[i64], sample: u64) -> Result<f64> {
        expect_length("dense", dense.len(), self.beta.len())?;
        expect_length("ids", ids.len(), self.slots.len())?;
        let mut ranks = [0; SLOT_COUNT_MAX];
        for (index, (slot, id)) in self.slots.iter().zip(ids).enumerate() {
            let row = id.wrapping_sub(slot.offset);
            if row < 0 || row as u64 >= slot.law.count() {
                return Err(Error::invalid(format!("id of slot {index} is out of range"))
                    .expected(format!(
                        "{} to {}",
                        slot.offset,
                        slot.offset + slot.law.count() as i64 - 1
                    ))
                    .got(id));
            }
            ranks[index] = slot.rank(row);
        }
        Ok(self.logit_of(dense, &ranks, self.day(sample)))
    }

    /// Returns the scores of the true probabilities on `count` samples from `first_sample`. Test a
    /// model on the same samples: most of the sampling noise is then common to both.
    ///
    /// ```
    /// use fleet_synth::{Ctr, CtrConfig};
    /// let best = Ctr::new(CtrConfig::small())?.best_scores(1_000_000, 50_000)?;
    /// assert!((best.auc - 0.80).abs() < 0.01);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn best_scores(&self, first_sample: u64, count: usize) -> Result<BestScores> {
        let mut probabilities = vec![0.0; count];
        self.fill_probabilities(&mut probabilities, first_sample);
        let mean = |sum: f64| sum / count.max(1) as f64;
        Ok(BestScores {
            auc: auc_expected(&probabilities)?,
            log_loss: mean(probabilities.iter().map(|p| entropy(*p)).sum()),
            positive_rate: mean(probabilities.iter().sum()),
        })
    }

    /// Appends one line of the MultiSlot text format: the dense slot, one slot per id (global ids),
    /// the label. `13 0.25 .. 1 371155 1 846239 .. 1 0`.
    ///
    /// ```
    /// use fleet_synth::{Ctr, CtrConfig};
    /// let slot_rows = vec![5, 8];
    /// let config = CtrConfig { dense_count: 1, slot_rows, pair_count: 1, ..CtrConfig::tiny() };
    /// let mut line = Vec::new();
    /// Ctr::new(config)?.append_line(3, &mut line);
    /// let text = String::from_utf8(line).unwrap();
    /// assert_eq!(text.split(' ').count(), 8);
    /// assert!(text.starts_with("1 0.") && text.ends_with('\n'));
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn append_line(&self, sample: u64, line: &mut Vec<u8>) {
        let mut dense = [0.0; DENSE_COUNT_MAX];
        let dense = &mut dense[..self.beta.len()];
        self.fill_dense(sample, dense);
        let ranks = self.ranks(sample);
        if !dense.is_empty() {
            append_integer(dense.len() as u64, line);
            for value in dense.iter() {
                line.push(b' ');
                append_thousandths((value * 1000.0).round() as u64, line);
            }
            line.push(b' ');
        }
        for (slot, rank) in self.slots.iter().zip(ranks) {
            line.extend_from_slice(b"1 ");
            append_integer((slot.offset + slot.row(rank)) as u64, line);
            line.push(b' ');
        }
        let probability = sigmoid(self.logit_of(dense, &ranks, self.day(sample)));
        let clicked = self.label_quantile(sample) < probability;
        line.extend_from_slice(if clicked { b"1 1\n" } else { b"1 0\n" });
    }

    /// Writes the MultiSlot lines of `samples`.
    ///
    /// ```
    /// use fleet_synth::{Ctr, CtrConfig};
    /// let mut file = Vec::new();
    /// Ctr::new(CtrConfig::tiny())?.write_lines(0..10, &mut file)?;
    /// assert!(file.starts_with(b"13 0."));
    /// assert_eq!(file.iter().filter(|byte| **byte == b'\n').count(), 10);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn write_lines(&self, samples: Range<u64>, out: &mut impl Write) -> Result<()> {
        let mut lines = Vec::with_capacity(WRITE_BYTES + WRITE_BYTES / 4);
        let last = samples.end;
        for sample in samples {
            self.append_line(sample, &mut lines);
            if lines.len() >= WRITE_BYTES || sample + 1 == last {
                out.write_all(&lines).map_err(|error| {
                    Error::unavailable(format!("cannot write click log: {error}"))
                        .at(format!("sample {sample}"))
                })?;
                lines.clear();
            }
        }
        Ok(())
    }

    /// Appends one line of Criteo's format: the label, integers, and ids as words of eight
    /// hexadecimal digits, separated by tabs. Integers grow exponentially with the dense input.
    /// Missing numbers are empty, as is the most frequent id of every third slot. Different values
    /// stay different, so that the best score stays the same.
    ///
    /// ```
    /// use fleet_synth::{Ctr, CtrConfig};
    /// let mut line = Vec::new();
    /// Ctr::new(CtrConfig::tiny())?.append_criteo_line(3, &mut line);
    /// assert_eq!(String::from_utf8(line).unwrap().split('\t').count(), 1 + 13 + 26);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn append_criteo_line(&self, sample: u64, line: &mut Vec<u8>) {
        let mut dense = [0.0; DENSE_COUNT_MAX];
        let dense = &mut dense[..self.beta.len()];
        self.fill_dense(sample, dense);
        let ranks = self.ranks(sample);
        let probability = sigmoid(self.logit_of(dense, &ranks, self.day(sample)));
        let clicked = self.label_quantile(sample) < probability;
        line.push(b'0' + u8::from(clicked));
        for (index, value) in dense.iter().enumerate() {
            line.push(b'\t');
            let level = level_of(*value);
            if self.curves.get(index).is_none_or(|curve| !curve.is_missing(level)) {
                append_integer(integer_of(level), line);
            }
        }
        for (index, (slot, rank)) in self.slots.iter().zip(ranks).enumerate() {
            line.push(b'\t');
            if rank > 0 || index % 3 > 0 {
                append_word(index as u64, slot.row(rank) as u64, line);
            }
        }
        line.push(b'\n');
    }

    fn rng(&self, sample: u64) -> Philox {
        Philox::new(self.sample_seed, sample)
    }

    /// Returns the rank of the id in each slot. Each random block serves two slots.
    fn ranks(&self, sample: u64) -> [u32; SLOT_COUNT_MAX] {
        let rng = self.rng(sample);
        let mut ranks = [0; SLOT_COUNT_MAX];
        for (half, slots) in self.slots.chunks(2).enumerate() {
            let block = rng.block(half as u64);
            for (index, slot) in slots.iter().enumerate() {
                let word = u64::from(block[2 * index]) | u64::from(block[2 * index + 1]) << 32;
                ranks[2 * half + index] = slot.law.rank(unit_f64(word)) as u32;
            }
        }
        ranks
    }

    fn fill_dense(&self, sample: u64, dense: &mut [f32]) {
        let rng = self.rng(sample);
        for (group, values) in dense.chunks_mut(4).enumerate() {
            let block = rng.block(DENSE_BLOCK + group as u64);
            for (value, word) in values.iter_mut().zip(block) {
                *value =
                    ((u64::from(word) * DENSE_LEVELS) >> 32) as f32 / (DENSE_LEVELS - 1) as f32;
            }
        }
    }

    fn label_quantile(&self, sample: u64) -> f64 {
        unit_f64(self.rng(sample).word64(2 * LABEL_BLOCK))
    }

    fn day(&self, sample: u64) -> u64 {
        sample.checked_div(self.config.samples_per_day).unwrap_or(0)
    }

    fn logit_of(&self, dense: &[f32], ranks: &[u32; SLOT_COUNT_MAX], day: u64) -> f64 {
        let mut sum = 0.0;
        for (index, (value, beta)) in dense.iter().zip(&self.beta).enumerate() {
            sum += match self.curves.get(index) {
                Some(curve) => curve.effect(level_of(*value)),
                None => (f64::from(*value) - 0.5) * beta,
            };
        }
        let (sine, cosine) = (day as f64 * self.config.drift_per_day).sin_cos();
        for (slot, rank) in self.slots.iter().zip(ranks) {
            if let Some([now, later]) = slot.effects.get(*rank as usize) {
                let turned = f64::from(*now) * cosine + f64::from(*later) * sine;
                sum += if slot.drifts { turned } else { f64::from(*now) };
            }
        }
        for pair in &self.pairs {
            let [left, right] = pair.slots.map(|slot| ranks[slot] as usize);
            if let (Some(left), Some(right)) = (pair.left.get(left), pair.right.get(right)) {
                sum += left.iter().zip(right).map(|(u, v)| f64::from(u * v)).sum::<f64>();
            }
        }
        self.bias + self.scale * sum
    }

    /// Solves for scale and bias, on samples of the first day that no data set contains.
    fn calibrate(&mut self) -> Result<()> {
        let handed_out = self.sample_seed;
        self.sample_seed = part_seed(self.config.seed, PART_CALIBRATION);
        let mut dense = vec![0.0; self.beta.len()];
        let mut raw: Vec<f64> = Vec::with_capacity(CALIBRATION_SAMPLES as usize);
        for sample in 0..CALIBRATION_SAMPLES {
            self.fill_dense(sample, &mut dense);
            raw.push(self.logit_of(&dense, &self.ranks(sample), 0));
        }
        self.sample_seed = handed_out;
        raw.sort_unstable_by(f64::total_cmp);

        let mut probabilities = vec![0.0; raw.len()];
        let mut bias = (self.config.base_rate / (1.0 - self.config.base_rate)).ln();
        let (mut low, mut high) = (0.0, SCALE_MAX);
        for _ in 0..BISECTIONS {
            let scale = 0.5 * (low + high);
            bias = solve_bias(&raw, scale, bias, self.config.base_rate, &mut probabilities);
            if auc_expected(&probabilities)? < self.config.best_auc {
                low = scale;
            } else {
                high = scale;
            }
        }
        // Rounded, so that differences in the last bit of a platform's `exp` do not change the
        // data.
        self.bias = (bias * CALIBRATION_STEPS).round() / CALIBRATION_STEPS;
        self.scale = (high * CALIBRATION_STEPS).round() / CALIBRATION_STEPS;
        if high > 0.99 * SCALE_MAX {
            return Err(Error::invalid("best AUC is unreachable with these inputs")
                .got(self.config.best_auc)
                .help("add dense inputs or more slots to the model"));
        }
        Ok(())
    }
}

impl Slot {
    #[inline]
    fn row(&self, rank: u32) -> i64 {
        (u64::from(rank) * self.step % self.law.count()) as i64
    }

    #[inline]
    fn rank(&self, row: i64) -> u32 {
        (row as u64 * self.inverse_step % self.law.count()) as u32
    }
}

fn check(config: &CtrConfig) -> Result<()> {
    if config.slot_rows.len() > SLOT_COUNT_MAX {
        return Err(Error::invalid("too many slots")
            .expected(format!("at most {SLOT_COUNT_MAX}"))
            .got(config.slot_rows.len()));
    }
    if config.dense_count > DENSE_COUNT_MAX {
        return Err(Error::invalid("too many dense inputs")
            .expected(format!("at most {DENSE_COUNT_MAX}"))
            .got(config.dense_count));
    }
    if let Some(slot) = config.slot_rows.iter().position(|rows| *rows == 0) {
        return Err(Error::invalid(format!("slot {slot} has no rows")));
    }
    if config.pair_count > config.slot_rows.len() / 2 {
        return Err(Error::invalid("too many interacting pairs of slots")
            .expected(format!("at most {}", config.slot_rows.len() / 2))
            .got(config.pair_count));
    }
    expect_within("id exponent", config.id_exponent, 0.0..10.0)?;
    expect_within("head", config.head, 1.0..1e6)?;
    expect_within("base rate", config.base_rate, 0.001..0.999)?;
    expect_within("best AUC", config.best_auc, 0.5..0.99)?;
    expect_within("drift per day", config.drift_per_day, 0.0..std::f64::consts::PI)
}

/// Draws slopes whose variances, over uniform inputs, add up to the dense share.
fn dense_effects(config: &CtrConfig) -> Vec<f64> {
    let mut draws = Sequence::new(part_seed(config.seed, PART_DENSE), 0);
    let beta: Vec<f64> = (0..config.dense_count).map(|_| draws.normal()).collect();
    let levels = DENSE_LEVELS as f64;
    let input_variance = (levels + 1.0) / (12.0 * (levels - 1.0));
    let variance = beta.iter().map(|b| b * b).sum::<f64>() * input_variance;
    let factor = (SHARE_DENSE / variance).sqrt();
    beta.iter().map(|b| b * factor).collect()
}

/// Draws curves whose variances add up to the dense share.
fn dense_curves(config: &CtrConfig) -> Vec<Curve> {
    let mut draws = Sequence::new(part_seed(config.seed, PART_CURVES), 0);
    let levels = DENSE_LEVELS as usize;
    let mut curves: Vec<Curve> = (0..config.dense_count)
        .map(|_| {
            let mut curve = Curve::draw(levels, &mut draws);
            curve.scale(draws.normal());
            curve
        })
        .collect();
    let variance: f64 = curves.iter().map(Curve::variance).sum();
    curves.iter_mut().for_each(|curve| curve.scale((SHARE_DENSE / variance).sqrt()));
    curves
}

fn level_of(value: f32) -> usize {
    // Inputs that are not of this generator have the nearest level.
    (value * (DENSE_LEVELS - 1) as f32).round().clamp(0.0, (DENSE_LEVELS - 1) as f32) as usize
}

fn build_slots(config: &CtrConfig) -> Vec<Slot> {
    let weights = slot_weights(config);
    let mut offset = 0;
    let mut slots = Vec::with_capacity(config.slot_rows.len());
    for (index, rows) in config.slot_rows.iter().enumerate() {
        let law = PowerLaw::new(u64::from(*rows), config.id_exponent);
        let step = coprime_step(u64::from(*rows));
        let inverse_step = inverse(step, u64::from(*rows));
        let draws = Philox::new(part_seed(config.seed, PART_EFFECTS), index as u64);
        let effects = fading_normals(&law, config.head, draws);
        let factor = moments(&law, &effects).map(|(mean, square)| {
            let variance = square - mean * mean;
            if variance > 0.0 { (weights[index] / variance).sqrt() as f32 } else { 0.0 }
        });
        let effects = effects.iter().map(|e| [e[0] * factor[0], e[1] * factor[1]]).collect();
        slots.push(Slot { law, offset, step, inverse_step, effects, drifts: index % 2 == 1 });
        offset += i64::from(*rows);
    }
    slots
}

/// Returns the variance of each slot's effects: a geometric series in an order drawn from the seed.
fn slot_weights(config: &CtrConfig) -> Vec<f64> {
    let count = config.slot_rows.len();
    let mut order: Vec<usize> = (0..count).collect();
    Sequence::new(part_seed(config.seed, PART_WEIGHTS), 0).shuffle(&mut order);
    let raw: Vec<f64> = order.iter().map(|place| WEIGHT_FALL.powi(*place as i32)).collect();
    let sum: f64 = raw.iter().sum();
    raw.iter().map(|weight| SHARE_IDS * weight / sum).collect()
}

/// Draws pairs of distinct slots, with equal variance.
fn build_pairs(config: &CtrConfig, slots: &[Slot]) -> Vec<Pair> {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    Sequence::new(part_seed(config.seed, PART_PAIRS), 0).shuffle(&mut order);
    let head = (config.head / PAIR_HEAD_DIVISOR).max(1.0);
    let seed = part_seed(config.seed, PART_LATENT);
    let mut pairs = Vec::with_capacity(config.pair_count);
    for (index, chosen) in order.chunks_exact(2).take(config.pair_count).enumerate() {
        let [a, b] = [chosen[0], chosen[1]];
        let left = fading_normals(&slots[a].law, head, Philox::new(seed, 2 * index as u64));
        let right = fading_normals(&slots[b].law, head, Philox::new(seed, 2 * index as u64 + 1));
        let variance = product_variance(&slots[a].law, &left, &slots[b].law, &right);
        let share = SHARE_PAIRS / config.pair_count as f64;
        let factor = if variance > 0.0 { (share / variance).sqrt() as f32 } else { 0.0 };
        let left = left.iter().map(|u| u.map(|value| value * factor)).collect();
        pairs.push(Pair { slots: [a, b], left, right });
    }
    pairs
}

/// Draws normal numbers by rank that fade as 1 / (1 + (rank / head)^2).
fn fading_normals(law: &PowerLaw, head: f64, draws: Philox) -> Vec<[f32; LATENT]> {
    (0..law.count().min(HEAD_RANKS_MAX))
        .map(|rank| {
            let size = (1.0 / (1.0 + (rank as f64 / head).powi(2))) as f32;
            [draws.normal(2 * rank) * size, draws.normal(2 * rank + 1) * size]
        })
        .collect()
}

/// Returns mean and mean square of each component under the law.
fn moments(law: &PowerLaw, values: &[[f32; LATENT]]) -> [(f64, f64); LATENT] {
    let mut sums = [(0.0, 0.0); LATENT];
    for (rank, value) in values.iter().enumerate() {
        let mass = law.mass(rank as u64);
        for (sum, component) in sums.iter_mut().zip(value) {
            sum.0 += mass * f64::from(*component);
            sum.1 += mass * f64::from(*component).powi(2);
        }
    }
    sums
}

/// Returns the variance of the inner product of two independent draws.
fn product_variance(
    left_law: &PowerLaw,
    left: &[[f32; LATENT]],
    right_law: &PowerLaw,
    right: &[[f32; LATENT]],
) -> f64 {
    let (a, b) = (moments(left_law, left), moments(right_law, right));
    let cross = |law: &PowerLaw, values: &[[f32; LATENT]]| -> f64 {
        let terms = values.iter().enumerate();
        terms.map(|(rank, v)| law.mass(rank as u64) * f64::from(v[0] * v[1])).sum()
    };
    let square =
        a[0].1 * b[0].1 + a[1].1 * b[1].1 + 2.0 * cross(left_law, left) * cross(right_law, right);
    let mean = a[0].0 * b[0].0 + a[1].0 * b[1].0;
    square - mean * mean
}

/// Solves by Newton's method for the bias at which the mean probability is `rate`. Leaves the
/// probabilities of the last step in `probabilities`.
fn solve_bias(raw: &[f64], scale: f64, start: f64, rate: f64, probabilities: &mut [f64]) -> f64 {
    let mut bias = start;
    for _ in 0..NEWTON_STEPS {
        let (mut mean, mut slope) = (0.0, 0.0);
        for (probability, value) in probabilities.iter_mut().zip(raw) {
            *probability = sigmoid(bias + scale * value);
            mean += *probability;
            slope += *probability * (1.0 - *probability);
        }
        let error = mean / raw.len() as f64 - rate;
        if error.abs() < 1e-7 {
            break;
        }
        // A step of at most 2 keeps Newton's method from overshooting on a flat tail.
        bias -= (error * raw.len() as f64 / slope.max(1e-9)).clamp(-2.0, 2.0);
    }
    bias
}

/// Returns the first number that is coprime to `size`, starting from its golden section.
fn coprime_step(size: u64) -> u64 {
    let mut step = ((size as f64 * GOLDEN_SECTION) as u64).max(1);
    while greatest_common_divisor(step, size) != 1 {
        step += 1;
    }
    step
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Returns the inverse of `value` modulo `size` (extended Euclid); the two must be coprime.
fn inverse(value: u64, size: u64) -> u64 {
    let (mut old, mut new) = ((size as i64, 0i64), ((value % size) as i64, 1i64));
    while new.0 != 0 {
        let quotient = old.0 / new.0;
        (old, new) = (new, (old.0 - quotient * new.0, old.1 - quotient * new.1));
    }
    old.1.rem_euclid(size as i64) as u64
}

#[inline]
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns the entropy of a Bernoulli variable in nats.
fn entropy(p: f64) -> f64 {
    let term = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    term(p) + term(1.0 - p)
}

fn append_integer(mut value: u64, line: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    line.extend_from_slice(&digits[start..]);
}

/// Returns a different integer for each level, with a long tail.
fn integer_of(level: usize) -> u64 {
    let share = level as f64 / (DENSE_LEVELS - 1) as f64;
    level as u64 + (INTEGER_GROWTH * share).exp_m1() as u64
}

/// Writes a word of eight hexadecimal digits, a different one for each row of a slot: the two
/// multiplications by odd numbers can be undone.
fn append_word(slot: u64, row: u64, line: &mut Vec<u8>) {
    let word = ((row + 1) as u32).wrapping_mul(0x9e37_79b1);
    let word = (word ^ (word >> 16)).wrapping_add(slot as u32).wrapping_mul(0x85eb_ca6b);
    let digits = (0..8).rev().map(|place| (word >> (4 * place)) as usize & 15);
    line.extend(digits.map(|digit| b"0123456789abcdef"[digit]));
}

/// Writes value / 1000 as the shortest decimal with a point: 0.0, 0.25, 0.007, 1.0.
fn append_thousandths(value: u64, line: &mut Vec<u8>) {
    append_integer(value / 1000, line);
    line.push(b'.');
    let fraction = [value / 100 % 10, value / 10 % 10, value % 10];
    let digits = fraction.iter().rposition(|digit| *digit != 0).map_or(1, |last| last + 1);
    line.extend(fraction[..digits].iter().map(|digit| b'0' + *digit as u8));
}

/// Random blocks of a sample: ids from 0 (two to a block), then dense inputs, then the label.
const DENSE_BLOCK: u64 = SLOT_COUNT_MAX as u64 / 2;
const LABEL_BLOCK: u64 = DENSE_BLOCK + DENSE_COUNT_MAX as u64 / 4;
/// Limits: ranks and inputs of one sample are on the stack, 1 KB each.
const SLOT_COUNT_MAX: usize = 256;
const DENSE_COUNT_MAX: usize = 256;
/// The largest integer of a Criteo line is about e^13, 440,000.
const INTEGER_GROWTH: f64 = 13.0;
/// Dense inputs are multiples of 1/1000, so that they are short in text.
const DENSE_LEVELS: u64 = 1001;
/// Effects from this rank on are zero; with head 32 they would be below 1e-4 of the first.
const HEAD_RANKS_MAX: u64 = 4096;
const LATENT: usize = 2;
const PAIR_HEAD_DIVISOR: f64 = 4.0;
const SHARE_DENSE: f64 = 0.35;
const SHARE_IDS: f64 = 0.55;
const SHARE_PAIRS: f64 = 0.10;
/// Ratio of the variances of consecutive slots, in the seed's order.
const WEIGHT_FALL: f64 = 0.85;
const GOLDEN_SECTION: f64 = 0.618_033_988_749_894_9;
/// The expected AUC of this many samples varies by about 0.002.
const CALIBRATION_SAMPLES: u64 = 1 << 15;
const CALIBRATION_STEPS: f64 = 1024.0;
/// The raw logit has unit variance; at 60 standard deviations every label is practically certain.
const SCALE_MAX: f64 = 60.0;
const BISECTIONS: usize = 18;
const NEWTON_STEPS: usize = 12;
/// Lines are passed to the writer in pieces of this many bytes.
const WRITE_BYTES: usize = 1 << 18;

const PART_SAMPLES: u64 = 0x100;
const PART_CALIBRATION: u64 = 0x101;
const PART_DENSE: u64 = 0x102;
const PART_EFFECTS: u64 = 0x103;
const PART_WEIGHTS: u64 = 0x104;
const PART_PAIRS: u64 = 0x105;
const PART_LATENT: u64 = 0x106;
const PART_CURVES: u64 = 0x107;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auc_exact;

    struct Batch {
        dense: Vec<f32>,
        ids: Vec<i64>,
        labels: Vec<f32>,
    }

    fn batch(clicks: &Ctr, layout: IdLayout, count: usize, first: u64) -> Batch {
        let mut batch = Batch {
            dense: vec![-1.0; count * clicks.dense_count()],
            ids: vec![-1; count * clicks.slot_count()],
            labels: vec![-1.0; count],
        };
        clicks
            .fill_batch_as(layout, &mut batch.dense, &mut batch.ids, &mut batch.labels, first)
            .unwrap();
        batch
    }

    fn tiny(change: impl FnOnce(&mut CtrConfig)) -> Ctr {
        let mut config = CtrConfig::tiny();
        change(&mut config);
        Ctr::new(config).unwrap()
    }

    #[test]
    fn samples_are_made_independently_in_every_layout() {
        let clicks = tiny(|config| config.samples_per_day = 10);
        let global = batch(&clicks, IdLayout::default(), 30, 5);
        let alone = batch(&clicks, IdLayout::default(), 1, 21);
        assert_eq!(alone.dense, global.dense[16 * 13..17 * 13]);
        assert_eq!(alone.ids, global.ids[16 * 26..17 * 26]);
        assert_eq!(alone.labels[0], global.labels[16]);
        let other_seed = tiny(|config| config.seed = 2);
        assert_ne!(batch(&other_seed, IdLayout::default(), 30, 5).ids, global.ids);

        let layout = IdLayout { space: IdSpace::PerSlot, order: IdOrder::SlotMajor };
        let turned = batch(&clicks, layout, 30, 5);
        assert_eq!((&turned.dense, &turned.labels), (&global.dense, &global.labels));
        for slot in 0..26 {
            for row in 0..30 {
                let id = turned.ids[slot * 30 + row];
                assert!((0..i64::from(clicks.config().slot_rows[slot])).contains(&id));
                let offset = clicks.slot_offset(slot).unwrap();
                assert_eq!(id + offset, global.ids[row * 26 + slot]);
            }
        }
    }

    /// Benchmarks and learning curves are compared on this data set, so it must not change
    /// unnoticed.
    #[test]
    fn data_stays_what_it_was() {
        let clicks = Ctr::new(CtrConfig::criteo_like()).unwrap();
        let batch = batch(&clicks, IdLayout::default(), 1000, 0);
        let ids: i64 = batch.ids.iter().sum();
        let dense: f64 = batch.dense.iter().map(|x| f64::from(*x)).sum();
        let labels: f32 = batch.labels.iter().sum();
        assert_eq!((ids, (dense * 1000.0).round() as i64, labels), GOLDEN);
    }
    const GOLDEN: (i64, i64, f32) = (2_183_998_304, 6_464_708, 246.0);

    #[test]
    fn base_rate_and_best_auc_are_those_asked_for() {
        for config in [
            CtrConfig::tiny(),
            CtrConfig::small(),
            CtrConfig::criteo_like(),
            CtrConfig { seed: 99, best_auc: 0.7, base_rate: 0.05, ..CtrConfig::tiny() },
            CtrConfig { slot_rows: Vec::new(), pair_count: 0, ..CtrConfig::tiny() },
            CtrConfig { dense_count: 0, ..CtrConfig::tiny() },
        ] {
            let (rate, auc) = (config.base_rate, config.best_auc);
            let clicks = Ctr::new(config).unwrap();
            let best = clicks.best_scores(1 << 40, 50_000).unwrap();
            assert!((best.positive_rate - rate).abs() < 0.005, "{best:?} for {rate}");
            assert!((best.auc - auc).abs() < 0.006, "{best:?} for {auc}");
            let batch = batch(&clicks, IdLayout::default(), 50_000, 1 << 40);
            let seen = f64::from(batch.labels.iter().sum::<f32>()) / 50_000.0;
            assert!((seen - rate).abs() < 0.008, "{seen} for {rate}");
        }
    }

    #[test]
    fn labels_follow_the_true_probabilities() {
        let clicks = tiny(|_| ());
        let count = 100_000;
        let batch = batch(&clicks, IdLayout::default(), count, 0);
        let mut truth = vec![0.0; count];
        clicks.fill_probabilities(&mut truth, 0);
        let best = clicks.best_scores(0, count).unwrap();
        assert!((auc_exact(&truth, &batch.labels).unwrap() - best.auc).abs() < 0.006);
        // Calibrated in every tenth of the scores.
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|a, b| truth[*a].total_cmp(&truth[*b]));
        for tenth in order.chunks(count / 10) {
            let mean = |values: &dyn Fn(usize) -> f64| {
                tenth.iter().map(|row| values(*row)).sum::<f64>() / tenth.len() as f64
            };
            let (predicted, seen) =
                (mean(&|row| truth[row]), mean(&|row| f64::from(batch.labels[row])));
            assert!((predicted - seen).abs() < 0.02, "{predicted} {seen}");
        }
        // The logit computed from the inputs alone is the same.
        for row in 0..100 {
            let dense = &batch.dense[row * 13..row * 13 + 13];
            let ids = &batch.ids[row * 26..row * 26 + 26];
            let logit = clicks.logit(dense, ids, row as u64).unwrap();
            assert!((sigmoid(logit) - truth[row]).abs() < 1e-12);
        }
    }

    #[test]
    fn ids_follow_the_power_law_and_are_scattered() {
        let clicks = Ctr::new(CtrConfig::criteo_like()).unwrap();
        let layout = IdLayout { space: IdSpace::PerSlot, order: IdOrder::SlotMajor };
        let count = 20_000;
        let ids = batch(&clicks, layout, count, 0).ids;
        for (slot, seen) in clicks.slots.iter().zip(ids.chunks(count)) {
            for rank in [0, 1, 3] {
                let row = slot.row(rank);
                let share = seen.iter().filter(|id| **id == row).count() as f64 / count as f64;
                assert!((share - slot.law.mass(u64::from(rank))).abs() < 0.015);
            }
        }
        let largest = clicks.slots.last().unwrap();
        for rank in 0..1000 {
            assert_eq!(largest.rank(largest.row(rank)), rank);
            assert!((largest.row(rank) - largest.row(rank + 1)).abs() > 1000);
        }
    }

    #[test]
    fn criteo_lines_keep_all_values_apart() {
        let levels = 0..DENSE_LEVELS as usize;
        assert!(levels.clone().zip(levels.skip(1)).all(|(a, b)| integer_of(a) < integer_of(b)));
        let mut words = std::collections::HashSet::new();
        for row in 0..5000 {
            let mut word = Vec::new();
            append_word(7, row, &mut word);
            assert!(word.len() == 8 && words.insert(word));
        }
        let clicks = tiny(|config| config.is_curved = true);
        let mut text = Vec::new();
        (0..2000).for_each(|sample| clicks.append_criteo_line(sample, &mut text));
        let text = String::from_utf8(text).unwrap();
        let labels = batch(&clicks, IdLayout::default(), 2000, 0).labels;
        let mut empty = [0; 40];
        for (line, label) in text.lines().zip(labels) {
            let fields: Vec<&str> = line.split('\t').collect();
            assert_eq!((fields.len(), fields[0] == "1"), (40, label == 1.0));
            empty
                .iter_mut()
                .zip(&fields)
                .for_each(|(count, it)| *count += i32::from(it.is_empty()));
        }
        let numbers = empty[1..14].iter().filter(|count| **count > 20).count();
        let words = empty[14..].iter().filter(|count| **count > 20).count();
        assert!((3..11).contains(&numbers) && words == 9, "{empty:?}");
    }

    #[test]
    fn curves_keep_the_best_auc() {
        let clicks = tiny(|config| config.is_curved = true);
        let best = clicks.best_scores(0, 100_000).unwrap();
        assert!((best.auc - 0.80).abs() < 0.006, "{best:?}");
        let of_curves: f64 = clicks.curves.iter().map(Curve::variance).sum();
        assert!((of_curves - SHARE_DENSE).abs() < 1e-9, "{of_curves}");
    }

    #[test]
    fn drift_moves_effects_and_keeps_the_best_auc() {
        let clicks = tiny(|config| {
            config.samples_per_day = 50_000;
            config.drift_per_day = 0.4;
        });
        let steady = tiny(|_| ());
        let day = |day: u64| {
            let mut truth = vec![0.0; 20_000];
            clicks.fill_probabilities(&mut truth, day * 50_000);
            let stale = {
                let mut stale = vec![0.0; 20_000];
                steady.fill_probabilities(&mut stale, day * 50_000);
                let labels = batch(&clicks, IdLayout::default(), 20_000, day * 50_000).labels;
                auc_exact(&stale, &labels).unwrap()
            };
            (auc_expected(&truth).unwrap(), stale)
        };
        let (first, fourth) = (day(0), day(4));
        assert!((first.0 - first.1).abs() < 0.01, "{first:?}");
        assert!((fourth.0 - first.0).abs() < 0.02, "{first:?} {fourth:?}");
        // A model of the first day has become stale by the fourth.
        assert!(fourth.1 < fourth.0 - 0.02, "{fourth:?}");
    }

    #[test]
    fn lines_hold_what_batches_hold() {
        let clicks = tiny(|_| ());
        let mut text = Vec::new();
        clicks.write_lines(7..57, &mut text).unwrap();
        let batch = batch(&clicks, IdLayout::default(), 50, 7);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.lines().count(), 50);
        for (row, line) in text.lines().enumerate() {
            let mut expected = String::from("13");
            for value in &batch.dense[row * 13..][..13] {
                expected += &format!(" {value:?}");
            }
            for id in &batch.ids[row * 26..][..26] {
                expected += &format!(" 1 {id}");
            }
            expected += &format!(" 1 {}", batch.labels[row]);
            assert_eq!(line, expected);
        }
        let mut empty = Vec::new();
        clicks.write_lines(9..9, &mut empty).unwrap();
        assert!(empty.is_empty());
    }

    #[test]
    fn thousandths_are_written_shortest() {
        for value in 0..=1000u64 {
            let mut line = Vec::new();
            append_thousandths(value, &mut line);
            let text = String::from_utf8(line).unwrap();
            assert_eq!(text, format!("{:?}", value as f32 / 1000.0));
        }
    }

    #[test]
    fn sizes_spread_to_the_total() {
        for total in [200, 5_000, 1_000_000, 50_000_000] {
            let rows = CtrConfig::spread(26, 4, total);
            assert_eq!(rows.iter().sum::<u32>(), total);
            assert!(rows.is_sorted(), "{rows:?}");
        }
        assert_eq!(CtrConfig::spread(3, 4, 5), [4, 4, 4]);
        assert_eq!(CtrConfig::spread(0, 4, 5), [0; 0]);
        assert_eq!(CtrConfig::spread(1, 4, 50), [50]);
    }

    #[test]
    fn bad_settings_and_buffers_are_refused() {
        let refused = |change: fn(&mut CtrConfig)| {
            let mut config = CtrConfig::tiny();
            change(&mut config);
            Ctr::new(config).unwrap_err().to_string()
        };
        assert_eq!(refused(|config| config.slot_rows[3] = 0), "slot 3 has no rows");
        assert_eq!(
            refused(|config| config.slot_rows = vec![2; 257]),
            "too many slots: expected at most 256, got 257"
        );
        assert!(refused(|config| config.best_auc = 1.0).starts_with("best AUC is out of range"));
        assert!(refused(|config| config.base_rate = f64::NAN).starts_with("base rate"));
        assert!(refused(|config| config.pair_count = 14).starts_with("too many interacting"));
        assert!(
            refused(|config| {
                config.dense_count = 0;
                config.pair_count = 0;
                config.slot_rows = vec![1; 3];
            })
            .starts_with("best AUC is unreachable")
        );
        let clicks = tiny(|_| ());
        let error = clicks.fill_batch(&mut [0.0; 13], &mut [0; 25], &mut [0.0], 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "length of ids does not match the batch: expected 26, got 25"
        );
        let mut ids: Vec<i64> = (0..26).map(|slot| clicks.slot_offset(slot).unwrap()).collect();
        assert!(clicks.logit(&[0.0; 13], &ids, 0).is_ok());
        ids[0] = 4;
        assert_eq!(
            clicks.logit(&[0.0; 13], &ids, 0).unwrap_err().to_string(),
            "id of slot 0 is out of range: expected 0 to 3, got 4"
        );
    }
}
