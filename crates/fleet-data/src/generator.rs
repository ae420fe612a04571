//! Data generators: programs that convert lines of any text to MultiSlot lines.
//!
//! A generator reads its standard input and writes one line per sample to its standard output, so a
//! program in any language can be a `pipe_command`. The first sample defines the slots; later
//! samples must have the same ones.

use fleet_base::{Error, Result};
use std::fmt::{Display, LowerExp};
use std::io::{BufRead, BufReader, Read, Write};

/// One value of a slot.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// Written as it is, without a check of its format.
    Text(String),
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::Float(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(value.to_string())
    }
}

/// The slots of one sample in order: names and values.
pub type Sample = Vec<(String, Vec<Value>)>;

/// Makes samples from lines.
///
/// ```
/// use fleet_data::{DataGenerator, Sample, Value};
/// use fleet_base::Result;
///
/// struct Words;
/// impl DataGenerator for Words {
///     fn generate_sample(
///         &mut self,
///         line: Option<&str>,
///         emit: &mut dyn FnMut(Sample),
///     ) -> Result<()> {
///         let mut words = line.unwrap_or("").split(' ').map(|word| word.parse().unwrap_or(0i64));
///         let label = words.next().unwrap_or(0);
///         let words = words.map(Value::Int).collect();
///         emit(vec![("words".into(), words), ("label".into(), vec![Value::Int(label)])]);
///         Ok(())
///     }
/// }
///
/// let mut out = Vec::new();
/// Words.run(&b"1 1926 8 17\n"[..], &mut out)?;
/// assert_eq!(out, b"3 1926 8 17 1 1\n");
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub trait DataGenerator {
    /// Passes the samples of one line to `emit`: none, one or several. `line` has no newline; it is
    /// `None` if there is no input ([`DataGenerator::run_from_memory`]).
    fn generate_sample(&mut self, line: Option<&str>, emit: &mut dyn FnMut(Sample)) -> Result<()>;

    /// Transforms [`DataGenerator::batch_size`] samples at once (fewer at the end), for example to
    /// pad them to one length.
    fn generate_batch(&mut self, samples: Vec<Sample>, emit: &mut dyn FnMut(Sample)) -> Result<()> {
        samples.into_iter().for_each(emit);
        Ok(())
    }

    /// Returns the number of samples for each call of [`DataGenerator::generate_batch`].
    fn batch_size(&self) -> usize {
        BATCH_SIZE
    }

    /// Reads lines from the standard input and writes samples to the standard output.
    fn run_from_stdin(&mut self) -> Result<()>
    where
        Self: Sized,
    {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        self.run(std::io::stdin().lock(), &mut out)
    }

    /// Makes samples without input: `generate_sample` is called once, with `None`.
    fn run_from_memory(&mut self, out: &mut dyn Write) -> Result<()> {
        let mut writer = SampleWriter::new(out);
        let mut waiting = Vec::new();
        self.generate_sample(None, &mut |sample| waiting.push(sample))?;
        write_batches(self, waiting.drain(..), &mut writer)?;
        writer.finish()
    }

    /// Makes samples from the lines of `from`.
    fn run(&mut self, from: impl Read, out: &mut dyn Write) -> Result<()>
    where
        Self: Sized,
    {
        let mut writer = SampleWriter::new(out);
        let mut from = BufReader::with_capacity(BUFFER_BYTES, from);
        let (mut line, mut number) = (Vec::new(), 0u64);
        let mut waiting: Vec<Sample> = Vec::new();
        loop {
            line.clear();
            number += 1;
            let place = |error: Error| error.at(format!("input line {number}"));
            let read = (&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            let count = read.map_err(|error| {
                place(Error::unavailable(format!("cannot read the input: {error}")))
            })?;
            if count == 0 {
                break;
            }
            if count as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
                return Err(place(Error::exhausted("line is too long")));
            }
            let text = std::str::from_utf8(&line)
                .map_err(|error| place(Error::invalid(format!("line is not UTF-8: {error}"))))?;
            let text = text.strip_suffix('\n').unwrap_or(text);
            let text = text.strip_suffix('\r').unwrap_or(text);
            let marked = text.strip_prefix('\u{feff}').filter(|_| number == 1);
            let text = marked.unwrap_or(text);
            self.generate_sample(Some(text), &mut |sample| waiting.push(sample)).map_err(place)?;
            let size = self.batch_size().max(1);
            let whole = waiting.len() / size * size;
            write_batches(self, waiting.drain(..whole), &mut writer).map_err(place)?;
        }
        write_batches(self, waiting.drain(..), &mut writer)?;
        writer.finish()
    }
}

/// Passes samples through [`DataGenerator::generate_batch`] and writes them; the last batch may be
/// smaller.
fn write_batches<G: DataGenerator + ?Sized>(
    generator: &mut G,
    mut samples: std::vec::Drain<'_, Sample>,
    writer: &mut SampleWriter<'_>,
) -> Result<()> {
    let size = generator.batch_size().max(1);
    loop {
        let batch: Vec<Sample> = samples.by_ref().take(size).collect();
        if batch.is_empty() {
            return Ok(());
        }
        let mut ready = Vec::with_capacity(batch.len());
        generator.generate_batch(batch, &mut |sample| ready.push(sample))?;
        ready.iter().try_for_each(|sample| writer.write(sample))?;
    }
}

/// A slot's name, and the type that its samples had so far.
struct SlotState {
    name: String,
    is_float: bool,
}

/// Checks samples and writes them as lines.
///
/// ```
/// use fleet_data::{SampleWriter, Value};
/// let mut out = Vec::new();
/// let mut writer = SampleWriter::new(&mut out);
/// writer.write(&vec![("x".into(), vec![Value::Float(1e-7), Value::Int(3)])])?;
/// writer.finish()?;
/// assert_eq!(out, b"2 1e-07 3\n");
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct SampleWriter<'a> {
    out: &'a mut dyn Write,
    slots: Option<Vec<SlotState>>,
    line: String,
}

impl<'a> SampleWriter<'a> {
    /// Returns a writer of lines to `out`.
    pub fn new(out: &'a mut dyn Write) -> SampleWriter<'a> {
        SampleWriter { out, slots: None, line: String::new() }
    }

    /// Writes one line. A line whose slots differ from those of the first line is an error.
    pub fn write(&mut self, sample: &Sample) -> Result<()> {
        self.check(sample)?;
        self.line.clear();
        for (_, values) in sample {
            self.line.push_str(&values.len().to_string());
            self.line.push(' ');
            for value in values {
                append(&mut self.line, value);
                self.line.push(' ');
            }
        }
        self.line.pop();
        self.line.push('\n');
        self.out.write_all(self.line.as_bytes()).map_err(unwritten)
    }

    /// Writes out buffered lines.
    pub fn finish(self) -> Result<()> {
        self.out.flush().map_err(unwritten)
    }

    /// Returns the type of each slot so far, `uint64` or `float`. A single float makes a slot
    /// `float`.
    pub fn slot_types(&self) -> Vec<(&str, &'static str)> {
        let slots = self.slots.as_deref().unwrap_or_default().iter();
        slots.map(|it| (it.name.as_str(), if it.is_float { "float" } else { "uint64" })).collect()
    }

    fn check(&mut self, sample: &Sample) -> Result<()> {
        for (name, values) in sample {
            if values.is_empty() {
                return Err(Error::invalid(format!("slot '{name}' is empty"))
                    .help("pad an empty slot, with 0 for example"));
            }
            for value in values {
                check_value(name, value)?;
            }
        }
        if sample.is_empty() {
            return Err(Error::invalid("sample has no slots"));
        }
        let slots = self.slots.get_or_insert_with(|| {
            let initial = |name: &String| SlotState { name: name.clone(), is_float: false };
            sample.iter().map(|(name, _)| initial(name)).collect()
        });
        if slots.len() != sample.len() {
            return Err(Error::invalid("samples have different numbers of slots")
                .expected(slots.len())
                .got(sample.len()));
        }
        for (slot, (name, values)) in slots.iter_mut().zip(sample) {
            if slot.name != *name {
                return Err(Error::invalid("samples have different slot names")
                    .expected(format!("'{}'", slot.name))
                    .got(format!("'{name}'")));
            }
            slot.is_float |= values.iter().any(|value| matches!(value, Value::Float(_)));
        }
        Ok(())
    }
}

fn check_value(name: &str, value: &Value) -> Result<()> {
    match value {
        Value::Float(float) if !float.is_finite() => {
            Err(Error::invalid(format!("slot '{name}' has a number that is not finite")).got(float))
        }
        // A reader would take a blank as the end of the value.
        Value::Text(text) if text.is_empty() || text.contains(char::is_whitespace) => {
            Err(Error::invalid(format!("slot '{name}' has text that is not a single word"))
                .got(format!("'{text}'")))
        }
        _ => Ok(()),
    }
}

fn unwritten(error: std::io::Error) -> Error {
    Error::unavailable(format!("cannot write samples: {error}"))
}

fn append(line: &mut String, value: &Value) {
    use std::fmt::Write as _;
    // Writing to a string cannot fail.
    let _ = match value {
        Value::Int(value) => write!(line, "{value}"),
        Value::Float(value) => write!(line, "{}", float_text(*value)),
        Value::Text(text) => write!(line, "{text}"),
    };
}

/// Returns a float as the documented generators print it: with the fewest digits that parse to the
/// same value, always with a point or an exponent, and with an exponent below 1e-4 and from 1e16.
pub(crate) fn float_text<F: Display + LowerExp + Default + PartialEq>(value: F) -> String {
    // `{:e}` has the shortest digits: d.ddde-7.
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == F::default() || (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Default number of samples for each call of `generate_batch`.
const BATCH_SIZE: usize = 32;
const BUFFER_BYTES: usize = 1 << 18;
/// The same limit as for the lines of records.
const LINE_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(name: &str, values: &[i64]) -> (String, Vec<Value>) {
        (name.to_string(), values.iter().map(|value| Value::Int(*value)).collect())
    }

    fn write(samples: &[Sample]) -> Result<String> {
        let mut out = Vec::new();
        let mut writer = SampleWriter::new(&mut out);
        samples.iter().try_for_each(|sample| writer.write(sample))?;
        writer.finish()?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn golden_lines() {
        let sample = vec![ints("words", &[1926, 8, 17]), ints("label", &[1])];
        assert_eq!(write(&[sample]).unwrap(), "3 1926 8 17 1 1\n");
        let words = ["1926", "08", "17"].map(Value::from).to_vec();
        let text = vec![("words".to_string(), words), ("label".to_string(), vec!["1".into()])];
        assert_eq!(write(&[text]).unwrap(), "3 1926 08 17 1 1\n");
    }

    #[test]
    fn floats_print_as_documented() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-7, "1e-07"),
            (123456789.123, "123456789.123"),
            (1e22, "1e+22"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-10, "1.5e-10"),
            (1e100, "1e+100"),
            (0.004975124378109453, "0.004975124378109453"),
            (-2.5e300, "-2.5e+300"),
            (9999999999999998.0, "9999999999999998.0"),
            (5e-324, "5e-324"),
        ] {
            let mut line = String::new();
            line.push_str(&float_text(value));
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn samples_are_held_to_the_first() {
        let first = vec![ints("a", &[1]), ints("b", &[2])];
        let message = |second: Sample| write(&[first.clone(), second]).unwrap_err();
        let fewer = message(vec![ints("a", &[1])]);
        assert_eq!(fewer.to_string(), "samples have different numbers of slots: expected 2, got 1");
        let renamed = message(vec![ints("a", &[1]), ints("c", &[2])]);
        assert_eq!(renamed.to_string(), "samples have different slot names: expected 'b', got 'c'");
        assert!(
            message(vec![ints("a", &[]), ints("b", &[2])]).to_string().contains("'a' is empty")
        );
        let infinite = vec![("a".into(), vec![Value::Float(f64::INFINITY)]), ints("b", &[2])];
        assert!(message(infinite).to_string().contains("inf"));
        assert!(
            message(vec![("a".into(), vec!["x y".into()]), ints("b", &[2])])
                .got("")
                .message()
                .contains("not a single word")
        );
    }

    #[test]
    fn a_float_makes_a_slot_of_floats() {
        let mut out = Vec::new();
        let mut writer = SampleWriter::new(&mut out);
        writer.write(&vec![ints("a", &[1])]).unwrap();
        assert_eq!(writer.slot_types(), [("a", "uint64")]);
        writer.write(&vec![("a".into(), vec![Value::Float(0.5)])]).unwrap();
        assert_eq!(writer.slot_types(), [("a", "float")]);
    }

    /// Pads the samples of a batch to the longest.
    struct Padding {
        seen: Vec<usize>,
    }

    impl DataGenerator for Padding {
        fn generate_sample(
            &mut self,
            line: Option<&str>,
            emit: &mut dyn FnMut(Sample),
        ) -> Result<()> {
            // Skips empty lines; without input, makes three samples.
            match line {
                Some("") => {}
                Some(line) => emit(vec![ints("x", &vec![7; line.len()])]),
                None => {
                    (1..4).for_each(|count| emit(vec![ints("x", &vec![count; count as usize])]))
                }
            }
            Ok(())
        }

        fn generate_batch(
            &mut self,
            mut samples: Vec<Sample>,
            emit: &mut dyn FnMut(Sample),
        ) -> Result<()> {
            self.seen.push(samples.len());
            let longest = samples.iter().map(|sample| sample[0].1.len()).max().unwrap_or(0);
            samples.iter_mut().for_each(|sample| sample[0].1.resize(longest, Value::Int(0)));
            samples.into_iter().for_each(emit);
            Ok(())
        }

        fn batch_size(&self) -> usize {
            2
        }
    }

    #[test]
    fn batches_come_whole_and_once_for_the_rest() {
        let mut generator = Padding { seen: Vec::new() };
        let mut out = Vec::new();
        generator.run(&b"\xef\xbb\xbfa\nbb\n\nccc\r\nd\ne"[..], &mut out).unwrap();
        assert_eq!(generator.seen, [2, 2, 1]);
        assert_eq!(out, b"2 7 0\n2 7 7\n3 7 7 7\n3 7 0 0\n1 7\n");
        out.clear();
        generator.run_from_memory(&mut out).unwrap();
        assert_eq!(out, b"2 1 0\n2 2 2\n3 3 3 3\n");
        let error = generator.run(&b"a\n\xff\n"[..], &mut out).unwrap_err().to_string();
        assert!(error.contains("not UTF-8") && error.contains("input line 2"), "{error}");
    }
}
