//! Words with hidden classes: generated text with known conditional probabilities. It has no
//! grammar and no meaning. A model can learn which words occur together and, if enabled, to copy.
//!
//! Word ids are frequency ranks under a power law p. Word w has class w mod C, whose mass is m.
//! After a word of class a, the next word is drawn from p. With probability `stay`, it is drawn
//! from p within class a instead:
//!
//! ```text
//! P(w' | w) = p(w') * K(class w, class w')      K(a, b) = 1 - stay + [a = b] * stay / m_a
//! ```
//!
//! p is stationary, and log K is the pointwise mutual information of neighbours: a matrix of rank C
//! over words, which embeddings of at least C + 1 dimensions can represent. K gives, in closed
//! form, the best losses of skip-gram with negative sampling, of next-token prediction (the entropy
//! rate) and of filling single masked tokens. With a `copy_rate` above zero, a token repeats the
//! one `copy_distance` before it with that probability, so that a language model must attend to it.
//! The best loss is then a mean over the samples tested ([`Text::best_next_loss`]).
//!
//! Skip-gram vectors of 16 dimensions (Adagrad 0.2 decreasing to zero, batch 1024) come within
//! 0.001 nats of the best loss of `tiny`, 2.0753, after two million pairs. Generating a pair takes
//! 0.3 µs.

use fleet_base::rng::Philox;
use fleet_base::{Error, Result};

use crate::{PowerLaw, expect_length, expect_within, part_seed, sample_count, unit_f64};

/// The target of a position that is not to be predicted.
pub const IGNORED_TARGET: i64 = -100;

/// Settings of a text; `tiny` and `small` are presets.
///
/// ```
/// use fleet_synth::{Text, TextConfig};
/// let text = Text::new(TextConfig { stay: 0.0, ..TextConfig::tiny() })?;
/// assert!((text.entropy_rate()? - text.word_entropy()).abs() < 1e-9); // nothing to learn but p
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Seed of all words.
    pub seed: u64,
    /// Number of distinct words.
    pub word_count: usize,
    /// Number of classes of words.
    pub class_count: usize,
    /// Exponent of the words' power law.
    pub word_exponent: f64,
    /// Probability that the next word is drawn within the class of the last one.
    pub stay: f64,
    /// Probability that a token repeats the one `copy_distance` before it; 0 disables copying.
    pub copy_rate: f64,
    /// Distance of a copied token, in tokens.
    pub copy_distance: usize,
    /// Noise words for each skip-gram pair.
    pub negative_count: usize,
    /// Noise words are drawn in proportion to p^noise_power.
    pub noise_power: f64,
    /// Probability that an eligible token is masked.
    pub mask_rate: f64,
}

impl TextConfig {
    /// Returns settings for tests: 500 words in 8 classes.
    pub fn tiny() -> Self {
        TextConfig {
            seed: 1,
            word_count: 500,
            class_count: 8,
            word_exponent: 1.0,
            stay: 0.6,
            copy_rate: 0.0,
            copy_distance: 8,
            negative_count: 5,
            noise_power: 0.75,
            mask_rate: 0.15,
        }
    }

    /// Returns settings for demos: 10,000 words in 32 classes.
    pub fn small() -> Self {
        TextConfig { word_count: 10_000, class_count: 32, ..Self::tiny() }
    }
}

/// A text; the top of this file defines its distribution.
///
/// ```
/// use fleet_synth::{Text, TextConfig};
/// let text = Text::new(TextConfig::tiny())?;
/// let mut tokens = [0; 4 * 32];
/// text.fill_tokens(&mut tokens, 32, 0)?; // four sequences of 32 tokens
/// assert!(tokens.iter().all(|token| (0..500).contains(token)));
/// assert!(text.entropy_rate()? < text.word_entropy());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Text {
    config: TextConfig,
    /// Probability of each word: `word_mass` in the text, `noise_mass` as noise.
    word_mass: Vec<f64>,
    noise_mass: Vec<f64>,
    class_mass: Vec<f64>,
    /// Cumulative sums for drawing: all words, noise words, the words of each class.
    words: Vec<f64>,
    noise: Vec<f64>,
    class_words: Vec<Vec<f64>>,
}

impl Text {
    /// Returns the data set. Fails if a setting is out of range.
    pub fn new(config: TextConfig) -> Result<Text> {
        check(&config)?;
        let law = PowerLaw::new(config.word_count as u64, config.word_exponent);
        let word_mass: Vec<f64> = (0..config.word_count as u64).map(|w| law.mass(w)).collect();
        let raw: Vec<f64> = word_mass.iter().map(|p| p.powf(config.noise_power)).collect();
        let sum: f64 = raw.iter().sum();
        let noise_mass: Vec<f64> = raw.iter().map(|mass| mass / sum).collect();
        let mut class_mass = vec![0.0; config.class_count];
        for (word, mass) in word_mass.iter().enumerate() {
            class_mass[word % config.class_count] += mass;
        }
        let of_class = |class: usize| word_mass.iter().skip(class).step_by(config.class_count);
        let class_words =
            (0..config.class_count).map(|class| running_sums(of_class(class))).collect();
        Ok(Text {
            words: running_sums(word_mass.iter()),
            noise: running_sums(noise_mass.iter()),
            class_words,
            word_mass,
            noise_mass,
            class_mass,
            config,
        })
    }

    /// Returns the settings.
    pub fn config(&self) -> &TextConfig {
        &self.config
    }

    /// Returns the token that replaces masked tokens: one past the last word.
    pub fn mask_token(&self) -> i64 {
        self.config.word_count as i64
    }

    /// Returns the entropy of a single word, in nats: the best loss without any context.
    pub fn word_entropy(&self) -> f64 {
        -self.word_mass.iter().map(|p| p * p.ln()).sum::<f64>()
    }

    /// Fills sequences of `length` tokens, `[n, length]`, starting at sequence `first_sequence`.
    pub fn fill_tokens(
        &self,
        tokens: &mut [i64],
        length: usize,
        first_sequence: u64,
    ) -> Result<()> {
        sample_count("tokens", tokens.len(), length)?;
        let seed = part_seed(self.config.seed, PART_TOKENS);
        for (row, sequence) in tokens.chunks_exact_mut(length).enumerate() {
            let rng = Philox::new(seed, first_sequence.wrapping_add(row as u64));
            for position in 0..length {
                sequence[position] = self.next_token(&rng, &sequence[..position]);
            }
        }
        Ok(())
    }

    /// Returns the probability of `token` after `history`, the tokens of its sequence so far.
    ///
    /// ```
    /// use fleet_synth::{Text, TextConfig};
    /// let text = Text::new(TextConfig::tiny())?;
    /// let sum: f64 = (0..500).map(|token| text.next_probability(&[17], token).unwrap()).sum();
    /// assert!((sum - 1.0).abs() < 1e-9);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn next_probability(&self, history: &[i64], token: i64) -> Result<f64> {
        let word = self.word(token)?;
        let Some(last) = history.last() else { return Ok(self.word_mass[word]) };
        let drawn = self.word_mass[word] * self.lift(self.word(*last)?, word);
        Ok(match self.copied(history) {
            Some(earlier) => {
                let copied = f64::from(u8::from(earlier == token));
                self.config.copy_rate * copied + (1.0 - self.config.copy_rate) * drawn
            }
            None => drawn,
        })
    }

    /// Returns the best mean next-token loss in the long run, in nats. Not supported with copying.
    pub fn entropy_rate(&self) -> Result<f64> {
        self.needs_no_copying("the entropy rate")?;
        let mut information = 0.0;
        for (a, mass) in self.class_mass.iter().enumerate() {
            for (b, other) in self.class_mass.iter().enumerate() {
                let lift = self.lift(a, b);
                information += mass * other * lift * log_or_zero(lift);
            }
        }
        Ok(self.word_entropy() - information)
    }

    /// Returns the mean loss, in nats, of the true probabilities on tokens 1.. of `count`
    /// sequences. This is the score of the best language model on these tokens.
    ///
    /// ```
    /// use fleet_synth::{Text, TextConfig};
    /// let text = Text::new(TextConfig::tiny())?;
    /// assert!((text.best_next_loss(0, 200, 64)? - text.entropy_rate()?).abs() < 0.05);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn best_next_loss(&self, first_sequence: u64, count: usize, length: usize) -> Result<f64> {
        let (mut sum, mut sequence) = (0.0, vec![0; length]);
        for row in 0..count {
            self.fill_tokens(&mut sequence, length, first_sequence.wrapping_add(row as u64))?;
            for position in 1..length {
                sum -= self.next_probability(&sequence[..position], sequence[position])?.ln();
            }
        }
        Ok(sum / (count * length.saturating_sub(1)).max(1) as f64)
    }

    /// Fills sequences like [`Text::fill_tokens`], then replaces some tokens by
    /// [`Text::mask_token`]. The `targets` are the original tokens at masked positions, and
    /// [`IGNORED_TARGET`] elsewhere. The first and the last token, and the neighbours of a masked
    /// token, are never masked.
    ///
    /// ```
    /// use fleet_synth::{IGNORED_TARGET, Text, TextConfig};
    /// let text = Text::new(TextConfig::tiny())?;
    /// let (mut tokens, mut targets) = ([0; 64], [0; 64]);
    /// text.fill_masked(&mut tokens, &mut targets, 64, 0)?;
    /// for (token, target) in tokens.iter().zip(targets) {
    ///     assert_eq!(*token == text.mask_token(), target != IGNORED_TARGET);
    /// }
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn fill_masked(
        &self,
        tokens: &mut [i64],
        targets: &mut [i64],
        length: usize,
        first_sequence: u64,
    ) -> Result<()> {
        expect_length("targets", targets.len(), tokens.len())?;
        self.fill_tokens(tokens, length, first_sequence)?;
        targets.fill(IGNORED_TARGET);
        let seed = part_seed(self.config.seed, PART_MASKS);
        let rows = tokens.chunks_exact_mut(length).zip(targets.chunks_exact_mut(length));
        for (row, (tokens, targets)) in rows.enumerate() {
            let rng = Philox::new(seed, first_sequence.wrapping_add(row as u64));
            for position in 1..length.saturating_sub(1) {
                let free = targets[position - 1] == IGNORED_TARGET;
                if free && unit_f64(rng.word64(position as u64)) < self.config.mask_rate {
                    targets[position] = tokens[position];
                    tokens[position] = self.mask_token();
                }
            }
        }
        Ok(())
    }

    /// Returns the best mean loss over masked tokens, in nats. Not supported with copying.
    ///
    /// A masked token between words of class a and b has P(w) = p(w) K(a, c) K(c, b) / Z(a, b),
    /// where c is its class.
    pub fn best_masked_loss(&self) -> Result<f64> {
        self.needs_no_copying("the best masked loss")?;
        let mass = &self.class_mass;
        let mut information = 0.0;
        for a in 0..mass.len() {
            for b in 0..mass.len() {
                let both = |c: usize| self.lift(a, c) * self.lift(c, b);
                let total: f64 = (0..mass.len()).map(|c| mass[c] * both(c)).sum();
                for c in 0..mass.len() {
                    let joint = mass[a] * mass[b] * mass[c] * both(c);
                    information += joint * log_or_zero(both(c) / total);
                }
            }
        }
        Ok(self.word_entropy() - information)
    }

    /// Fills skip-gram pairs: centers `[n]`, contexts `[n]`, and noise words `[n, negative_count]`,
    /// starting at pair `first_pair`. Pairs are independent of each other.
    ///
    /// ```
    /// use fleet_synth::{Text, TextConfig};
    /// let text = Text::new(TextConfig::tiny())?;
    /// let (mut centers, mut contexts, mut negatives) = ([0; 8], [0; 8], [0; 8 * 5]);
    /// text.fill_pairs(&mut centers, &mut contexts, &mut negatives, 0)?;
    /// assert!(text.true_log_odds(centers[0], contexts[0])?.is_finite());
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn fill_pairs(
        &self,
        centers: &mut [i64],
        contexts: &mut [i64],
        negatives: &mut [i64],
        first_pair: u64,
    ) -> Result<()> {
        let noise_count = self.config.negative_count;
        expect_length("contexts", contexts.len(), centers.len())?;
        expect_length("negatives", negatives.len(), centers.len() * noise_count)?;
        let seed = part_seed(self.config.seed, PART_PAIRS);
        for (row, (center, context)) in centers.iter_mut().zip(contexts).enumerate() {
            let rng = Philox::new(seed, first_pair.wrapping_add(row as u64));
            let word = draw(&self.words, unit_f64(rng.word64(0)));
            *center = word as i64;
            *context = self.neighbour(word, unit_f64(rng.word64(1)), unit_f64(rng.word64(2)));
            let noise = &mut negatives[row * noise_count..][..noise_count];
            for (index, negative) in noise.iter_mut().enumerate() {
                *negative = draw(&self.noise, unit_f64(rng.word64(3 + index as u64))) as i64;
            }
        }
        Ok(())
    }

    /// Returns the log-odds that (center, context) is a true pair rather than noise, to which the
    /// score of a skip-gram model converges:
    /// `log(P(context | center) / (negative_count * noise(context)))`.
    pub fn true_log_odds(&self, center: i64, context: i64) -> Result<f64> {
        Ok(self.log_odds(self.word(center)?, self.word(context)?))
    }

    /// Returns the best expected skip-gram loss of a pair with its noise words, in nats: -log
    /// sigmoid(score) of the pair and -log sigmoid(-score) of each noise word.
    pub fn best_skip_gram_loss(&self) -> f64 {
        let mut loss = 0.0;
        for (class, mass) in self.class_mass.iter().enumerate() {
            for word in 0..self.config.word_count {
                // All words of a class have the same score, and `class` is one of them.
                let score = self.log_odds(class, word);
                let truly = self.word_mass[word] * self.lift(class, word);
                let noise = self.config.negative_count as f64 * self.noise_mass[word];
                if truly > 0.0 {
                    loss += mass * truly * softplus(-score);
                }
                loss += mass * noise * softplus(score);
            }
        }
        loss
    }

    fn log_odds(&self, center: usize, context: usize) -> f64 {
        let noise = self.config.negative_count as f64 * self.noise_mass[context];
        (self.word_mass[context] * self.lift(center, context) / noise).ln()
    }

    /// Returns K of the words' classes: how much more often they are neighbours than by chance.
    #[inline]
    fn lift(&self, first: usize, second: usize) -> f64 {
        let (a, b) = (first % self.config.class_count, second % self.config.class_count);
        let same = if a == b { self.config.stay / self.class_mass[a] } else { 0.0 };
        1.0 - self.config.stay + same
    }

    fn next_token(&self, rng: &Philox, history: &[i64]) -> i64 {
        // Each position has two blocks, so four quantiles.
        let at = 4 * history.len() as u64;
        let [copy, branch, choice] = [at, at + 1, at + 2].map(|word| unit_f64(rng.word64(word)));
        if let Some(earlier) = self.copied(history)
            && copy < self.config.copy_rate
        {
            return earlier;
        }
        match history.last() {
            Some(last) => self.neighbour(*last as usize, branch, choice),
            None => draw(&self.words, choice) as i64,
        }
    }

    /// Returns the token that the next one may repeat.
    fn copied(&self, history: &[i64]) -> Option<i64> {
        let start = history.len().checked_sub(self.config.copy_distance)?;
        history.get(start).copied()
    }

    fn neighbour(&self, word: usize, branch: f64, choice: f64) -> i64 {
        if branch >= self.config.stay {
            return draw(&self.words, choice) as i64;
        }
        let class = word % self.config.class_count;
        (draw(&self.class_words[class], choice) * self.config.class_count + class) as i64
    }

    fn word(&self, token: i64) -> Result<usize> {
        usize::try_from(token).ok().filter(|word| *word < self.config.word_count).ok_or_else(|| {
            Error::invalid("token is out of range")
                .expected(format!("0 to {}", self.config.word_count - 1))
                .got(token)
        })
    }

    fn needs_no_copying(&self, what: &str) -> Result<()> {
        if self.config.copy_rate == 0.0 {
            return Ok(());
        }
        Err(Error::unsupported(format!("{what} has no closed form when tokens are copied"))
            .help("set copy_rate to 0, or use best_next_loss"))
    }
}

fn check(config: &TextConfig) -> Result<()> {
    expect_within("word count", config.word_count as f64, 2.0..1e8)?;
    expect_within("class count", config.class_count as f64, 1.0..1025.0)?;
    if config.class_count > config.word_count {
        return Err(Error::invalid("more classes than words")
            .expected(format!("at most {} classes", config.word_count))
            .got(config.class_count));
    }
    expect_within("word exponent", config.word_exponent, 0.0..5.0)?;
    expect_within("stay", config.stay, 0.0..1.0)?;
    expect_within("copy rate", config.copy_rate, 0.0..1.0)?;
    expect_within("copy distance", config.copy_distance as f64, 1.0..1e6)?;
    expect_within("negative count", config.negative_count as f64, 1.0..1e4)?;
    expect_within("noise power", config.noise_power, 0.0..2.0)?;
    expect_within("mask rate", config.mask_rate, 0.0..1.0)
}

/// Returns cumulative sums, scaled to end at 1.
fn running_sums<'a>(masses: impl Iterator<Item = &'a f64>) -> Vec<f64> {
    let mut total = 0.0;
    let mut sums: Vec<f64> = masses
        .map(|mass| {
            total += mass;
            total
        })
        .collect();
    sums.iter_mut().for_each(|sum| *sum /= total);
    sums
}

/// Returns the index whose part of [0, 1) contains `unit`.
#[inline]
fn draw(sums: &[f64], unit: f64) -> usize {
    sums.partition_point(|sum| *sum <= unit).min(sums.len() - 1)
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Returns log x, or 0 for x = 0, because x log x tends to 0.
fn log_or_zero(x: f64) -> f64 {
    if x > 0.0 { x.ln() } else { 0.0 }
}

const PART_TOKENS: u64 = 0x300;
const PART_MASKS: u64 = 0x301;
const PART_PAIRS: u64 = 0x302;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(change: impl FnOnce(&mut TextConfig)) -> Text {
        let mut config = TextConfig::tiny();
        change(&mut config);
        Text::new(config).unwrap()
    }

    #[test]
    fn sequences_and_pairs_are_made_independently() {
        let text = text(|config| config.copy_rate = 0.3);
        let mut many = [0; 10 * 40];
        text.fill_tokens(&mut many, 40, 3).unwrap();
        let mut one = [0; 40];
        text.fill_tokens(&mut one, 40, 8).unwrap();
        assert_eq!(one, many[5 * 40..6 * 40]);
        // A longer sequence starts with the same tokens as a shorter one.
        let mut long = [0; 80];
        text.fill_tokens(&mut long, 80, 8).unwrap();
        assert_eq!(one, long[..40]);

        let (mut a, mut b, mut n) = ([0; 6], [0; 6], [0; 30]);
        text.fill_pairs(&mut a, &mut b, &mut n, 100).unwrap();
        let (mut center, mut context, mut noise) = ([0], [0], [0; 5]);
        text.fill_pairs(&mut center, &mut context, &mut noise, 104).unwrap();
        assert_eq!((center[0], context[0], &noise[..]), (a[4], b[4], &n[20..25]));
    }

    #[test]
    fn tokens_have_the_stated_entropy() {
        let text = text(|_| ());
        let (rate, word) = (text.entropy_rate().unwrap(), text.word_entropy());
        assert!(word - rate > 0.5, "{word} {rate}: too little to learn");
        let seen = text.best_next_loss(0, 2000, 50).unwrap();
        assert!((seen - rate).abs() < 0.02, "{seen} {rate}");
        // Word frequencies stay those of the power law along a sequence.
        let mut tokens = vec![0; 2000 * 50];
        text.fill_tokens(&mut tokens, 50, 0).unwrap();
        for word in [0usize, 1, 9, 70] {
            let seen = tokens.iter().filter(|token| **token == word as i64).count();
            let ratio = seen as f64 / (tokens.len() as f64 * text.word_mass[word]);
            assert!((ratio - 1.0).abs() < 0.15, "word {word}: {ratio}");
        }
    }

    #[test]
    fn copying_lowers_the_best_loss_and_has_no_closed_form() {
        let text = text(|config| config.copy_rate = 0.5);
        assert!(text.entropy_rate().is_err() && text.best_masked_loss().is_err());
        let loss = text.best_next_loss(0, 300, 64).unwrap();
        let without = Text::new(TextConfig::tiny()).unwrap().entropy_rate().unwrap();
        assert!(loss < without - 1.0, "{loss} {without}");
        let history: Vec<i64> = (0..20).collect();
        let sum: f64 = (0..500).map(|t| text.next_probability(&history, t).unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-9);
        assert!(text.next_probability(&history, 12).unwrap() > 0.5);
    }

    /// Compares the closed form with the posterior, summed over drawn masks.
    #[test]
    fn masked_loss_is_that_of_the_posterior() {
        let text = text(|_| ());
        let (length, count) = (64, 1500);
        let (mut tokens, mut targets) = (vec![0; length * count], vec![0; length * count]);
        text.fill_masked(&mut tokens, &mut targets, length, 0).unwrap();
        let (mut sum, mut masked) = (0.0, 0.0);
        for at in 1..tokens.len() - 1 {
            if targets[at] == IGNORED_TARGET {
                continue;
            }
            let (left, right) = (tokens[at - 1] as usize, tokens[at + 1] as usize);
            let weight = |w: usize| text.word_mass[w] * text.lift(left, w) * text.lift(w, right);
            let total: f64 = (0..500).map(weight).sum();
            sum -= (weight(targets[at] as usize) / total).ln();
            masked += 1.0;
        }
        let best = text.best_masked_loss().unwrap();
        assert!((sum / masked - best).abs() < 0.03, "{} {best}", sum / masked);
        assert!(best < text.entropy_rate().unwrap());
        let share = masked / tokens.len() as f64;
        assert!((0.10..0.15).contains(&share), "{share}");
    }

    #[test]
    fn skip_gram_loss_is_that_of_the_true_log_odds() {
        for power in [0.75, 1.0] {
            let text = text(|config| config.noise_power = power);
            let count = 40_000;
            let (mut a, mut b, mut n) = (vec![0; count], vec![0; count], vec![0; 5 * count]);
            text.fill_pairs(&mut a, &mut b, &mut n, 0).unwrap();
            let mut sum = 0.0;
            for row in 0..count {
                sum += softplus(-text.true_log_odds(a[row], b[row]).unwrap());
                for noise in &n[5 * row..5 * row + 5] {
                    sum += softplus(text.true_log_odds(a[row], *noise).unwrap());
                }
            }
            let (seen, best) = (sum / count as f64, text.best_skip_gram_loss());
            assert!((seen - best).abs() < 0.02, "{seen} {best}");
            // Ignoring the center costs more.
            let blind = text_without_classes(power).best_skip_gram_loss();
            assert!(best < blind - 0.2, "{best} {blind}");
        }
    }

    fn text_without_classes(power: f64) -> Text {
        text(|config| {
            config.noise_power = power;
            config.stay = 0.0;
        })
    }

    #[test]
    fn bad_settings_and_tokens_are_refused() {
        let bad = |change: fn(&mut TextConfig)| {
            let mut config = TextConfig::tiny();
            change(&mut config);
            Text::new(config).unwrap_err().to_string()
        };
        assert_eq!(
            bad(|config| config.stay = 1.0),
            "stay is out of range: expected at least 0 and less than 1, got 1"
        );
        assert_eq!(
            bad(|config| config.class_count = 501),
            "more classes than words: expected at most 500 classes, got 501"
        );
        let text = text(|_| ());
        let error = text.true_log_odds(0, 500).unwrap_err();
        assert_eq!(error.to_string(), "token is out of range: expected 0 to 499, got 500");
        assert!(text.next_probability(&[-1], 0).is_err());
        assert!(text.fill_tokens(&mut [0; 10], 3, 0).is_err());
        assert!(text.fill_tokens(&mut [0; 10], 0, 0).is_err());
    }
}
