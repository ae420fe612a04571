//! Writes generated data sets to files: shards of records in a text format. The same settings give
//! the same files on any machine. Also reports the score of the best possible model.

use crate::{
    Blobs, BlobsConfig, Ctr, CtrConfig, Digits, IMAGE_PIXELS, IMAGE_SIDE, Text, TextConfig,
};
use fleet_base::file::make_folder;
use fleet_base::{Error, Result};
use fleet_data::{Block, MultiSlotWriter, Schema, Slot, Values, shard_range};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Kind of a generated data set.
#[derive(Clone, Debug, PartialEq)]
pub enum MakeKind {
    /// Click logs: `dense_input`, `C1` .., `label`.
    Ctr(CtrConfig),
    /// Digits: `image` (784 floats, -1 to 1) and `label`.
    Digits {
        /// Seed of the images.
        seed: u64,
    },
    /// Text: `tokens`.
    Text {
        /// Words and their probabilities.
        config: TextConfig,
        /// Number of tokens in a record.
        length: usize,
    },
    /// Gaussian classes: `x` and `label`.
    Blobs(BlobsConfig),
}

/// File format of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MakeFormat {
    /// Fleet's text format of slots.
    MultiSlot,
    /// A header, and a column for every value.
    Csv,
    /// One object per record, whose keys are slots.
    JsonLines,
    /// The format of Criteo's logs; for click logs only.
    Criteo,
    /// Grey images in a folder for each class; for digits only.
    Png,
}

/// A data set to be written.
///
/// ```
/// use fleet_synth::{CtrConfig, Make, MakeFormat, MakeKind};
/// let folder = std::env::temp_dir().join(format!("make-example-{}", std::process::id()));
/// let make = Make {
///     kind: MakeKind::Ctr(CtrConfig::tiny()),
///     format: MakeFormat::MultiSlot,
///     first_row: 0,
///     rows: 1000,
///     shards: 2,
///     folder: folder.clone(),
/// };
/// let made = make.write()?;
/// assert_eq!(made.files.len(), 2);
/// assert!(made.facts.iter().any(|(name, _)| name == "best possible AUC"));
/// std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Make {
    /// The data set.
    pub kind: MakeKind,
    /// Format of the files.
    pub format: MakeFormat,
    /// First row, of an endless stream. A test set takes rows after those of the training set.
    pub first_row: u64,
    /// Number of rows.
    pub rows: u64,
    /// Number of files that share the rows; 1 for images.
    pub shards: u64,
    /// Created if needed; existing files are never overwritten.
    pub folder: PathBuf,
}

fn not_images() -> Error {
    Error::invalid("only digits can be written as images")
        .help("use the format multislot, csv or jsonl")
}

/// Result of [`Make::write`].
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// The files, in the order of rows.
    pub files: Vec<PathBuf>,
    /// The slots of the records.
    pub schema: Arc<Schema>,
    /// Known facts about the data: names and values.
    pub facts: Vec<(String, f64)>,
}

impl Make {
    /// Writes the files `part-00000` and so on, or one image per row.
    pub fn write(&self) -> Result<Made> {
        self.check()?;
        let generator = Generator::new(&self.kind)?;
        make_folder(&self.folder)?;
        if self.format == MakeFormat::Png {
            let files = self.write_images()?;
            let facts = generator.facts(self.first_row, self.rows)?;
            return Ok(Made { files, schema: generator.schema, facts });
        }
        check_empty(&self.folder)?;
        let mut files = Vec::new();
        for shard in 0..self.shards {
            let path = self.folder.join(format!("part-{shard:05}"));
            let range = shard_range(self.rows, shard, self.shards)?;
            self.write_shard(&generator, &path, range.start..range.end)?;
            files.push(path);
        }
        let facts = generator.facts(self.first_row, self.rows)?;
        Ok(Made { files, schema: generator.schema, facts })
    }

    /// Rejects invalid settings before the folder is created.
    fn check(&self) -> Result<()> {
        if self.shards == 0 || self.shards > SHARDS_MAX {
            return Err(Error::invalid("number of shards is out of range")
                .expected(format!("1 to {SHARDS_MAX}"))
                .got(self.shards));
        }
        if self.first_row == u64::MAX {
            return Err(Error::invalid("no rows after the first row").got(self.first_row));
        }
        if self.rows == 0 || self.first_row.checked_add(self.rows).is_none() {
            return Err(Error::invalid("number of rows is out of range")
                .expected(format!("1 to {}", u64::MAX - self.first_row))
                .got(self.rows));
        }
        if let MakeKind::Text { length, .. } = &self.kind
            && !(2..=TOKENS_MAX).contains(length)
        {
            return Err(Error::invalid("number of tokens per record is out of range")
                .expected(format!("2 to {TOKENS_MAX}"))
                .got(length));
        }
        if self.format == MakeFormat::Criteo && !matches!(self.kind, MakeKind::Ctr(_)) {
            return Err(Error::invalid("only click logs can be written in Criteo's format")
                .help("use the format multislot, csv or jsonl"));
        }
        if self.format != MakeFormat::Png && self.shards > self.rows {
            return Err(Error::invalid("more shards than rows")
                .expected(format!("at most {}", self.rows))
                .got(self.shards));
        }
        if self.format != MakeFormat::Png {
            return Ok(());
        }
        if !matches!(self.kind, MakeKind::Digits { .. }) {
            return Err(not_images());
        }
        if self.shards != 1 || self.rows > IMAGES_MAX {
            return Err(Error::invalid("invalid number of shards or rows for images")
                .expected(format!("1 shard and at most {IMAGES_MAX} rows"))
                .got(format!("{} and {} rows", self.shards, self.rows)));
        }
        Ok(())
    }

    /// Writes an image for each row; `3/00000017.png` is a 3.
    fn write_images(&self) -> Result<Vec<PathBuf>> {
        let MakeKind::Digits { seed } = self.kind else { return Err(not_images()) };
        let digits = Digits::new(seed);
        let (mut image, mut label) = ([0; IMAGE_PIXELS], [0]);
        let mut files = Vec::new();
        for row in self.first_row..self.first_row + self.rows {
            digits.fill_batch_u8(&mut image, &mut label, row)?;
            let folder = self.folder.join(label[0].to_string());
            make_folder(&folder)?;
            let path = folder.join(format!("{row:08}.png"));
            write_atomic(&path, |path, file| write_png(path, file, &image))?;
            files.push(path);
        }
        Ok(files)
    }

    fn write_shard(
        &self,
        generator: &Generator,
        path: &Path,
        rows: std::ops::Range<u64>,
    ) -> Result<()> {
        write_atomic(path, |path, file| self.write_rows(generator, path, file, rows))
    }

    fn write_rows(
        &self,
        generator: &Generator,
        path: &Path,
        file: File,
        rows: std::ops::Range<u64>,
    ) -> Result<()> {
        let failed = |error: std::io::Error| Error::io("write", path, &error);
        let mut out = BufWriter::with_capacity(WRITE_BYTES, file);
        let mut multi_slot = MultiSlotWriter::new(&generator.schema);
        if self.format == MakeFormat::Csv {
            out.write_all(header(&generator.schema).as_bytes()).map_err(failed)?;
        }
        if let (MakeFormat::Criteo, GeneratorKind::Ctr(set)) = (self.format, &generator.set) {
            let mut line = Vec::new();
            for row in rows {
                line.clear();
                set.append_criteo_line(self.first_row + row, &mut line);
                out.write_all(&line).map_err(failed)?;
            }
            return out.flush().map_err(failed);
        }
        let mut block = Block::new(&generator.schema);
        let mut at = rows.start;
        while at < rows.end {
            let count = (rows.end - at).min(CHUNK_ROWS);
            block.clear();
            generator.append(self.first_row + at, count as usize, &mut block)?;
            match self.format {
                MakeFormat::MultiSlot => {
                    multi_slot.write(&block, &mut out).map_err(|error| error.at(path.display()))?;
                }
                MakeFormat::Csv => {
                    (0..block.len())
                        .try_for_each(|row| csv_line(&block, row, &mut out))
                        .map_err(failed)?;
                }
                MakeFormat::JsonLines => {
                    (0..block.len())
                        .try_for_each(|row| json_line(&block, row, &mut out))
                        .map_err(failed)?;
                }
                MakeFormat::Png | MakeFormat::Criteo => {
                    return Err(Error::internal("the format has no blocks"));
                }
            }
            at += count;
        }
        out.flush().map_err(failed)
    }
}

/// A generator and its slots.
struct Generator {
    schema: Arc<Schema>,
    set: GeneratorKind,
}

enum GeneratorKind {
    Ctr(Box<Ctr>),
    Digits(Digits),
    Text(Box<Text>, usize),
    Blobs(Blobs),
}

impl Generator {
    fn new(kind: &MakeKind) -> Result<Generator> {
        let label = Slot::dense_ids("label", [1]);
        let (set, slots) = match kind {
            MakeKind::Ctr(config) => {
                let set = Ctr::new(config.clone())?;
                let dense = (set.dense_count() > 0)
                    .then(|| Slot::dense_floats("dense_input", [set.dense_count()]));
                let ids = (1..=set.slot_count()).map(|it| Slot::dense_ids(format!("C{it}"), [1]));
                let slots: Vec<Slot> = dense.into_iter().chain(ids).chain([label]).collect();
                (GeneratorKind::Ctr(Box::new(set)), slots)
            }
            MakeKind::Digits { seed } => {
                let image = Slot::dense_floats("image", [IMAGE_PIXELS]);
                (GeneratorKind::Digits(Digits::new(*seed)), vec![image, label])
            }
            MakeKind::Text { config, length } => {
                let tokens = Slot::dense_ids("tokens", [*length]);
                (GeneratorKind::Text(Box::new(Text::new(config.clone())?), *length), vec![tokens])
            }
            MakeKind::Blobs(config) => {
                let x = Slot::dense_floats("x", [config.feature_count]);
                (GeneratorKind::Blobs(Blobs::new(config.clone())?), vec![x, label])
            }
        };
        Ok(Generator { schema: Schema::new(slots)?, set })
    }

    fn append(&self, first: u64, count: usize, block: &mut Block) -> Result<()> {
        match &self.set {
            GeneratorKind::Ctr(set) => {
                let (dense_count, slot_count) = (set.dense_count(), set.slot_count());
                let mut dense = vec![0.0; count * dense_count];
                let (mut ids, mut labels) = (vec![0; count * slot_count], vec![0.0; count]);
                set.fill_batch(&mut dense, &mut ids, &mut labels, first)?;
                let before = usize::from(dense_count > 0);
                for row in 0..count {
                    if dense_count > 0 {
                        block.push_floats(0, &dense[row * dense_count..][..dense_count])?;
                    }
                    for slot in 0..slot_count {
                        block.push_ids(before + slot, &[ids[row * slot_count + slot]])?;
                    }
                    block.push_ids(before + slot_count, &[labels[row] as i64])?;
                    block.end_record()?;
                }
            }
            GeneratorKind::Digits(set) => {
                let (mut x, mut labels) = (vec![0.0; count * IMAGE_PIXELS], vec![0; count]);
                set.fill_batch_f32(&mut x, &mut labels, first)?;
                labelled(&x, &labels, block)?;
            }
            GeneratorKind::Text(set, length) => {
                let mut tokens = vec![0; count * length];
                set.fill_tokens(&mut tokens, *length, first)?;
                for record in tokens.chunks_exact(*length) {
                    block.push_ids(0, record)?;
                    block.end_record()?;
                }
            }
            GeneratorKind::Blobs(set) => {
                let width = set.config().feature_count;
                let (mut x, mut labels) = (vec![0.0; count * width], vec![0; count]);
                set.fill_batch(&mut x, &mut labels, first)?;
                labelled(&x, &labels, block)?;
            }
        }
        Ok(())
    }

    fn facts(&self, first: u64, rows: u64) -> Result<Vec<(String, f64)>> {
        let fact = |name: &str, value: f64| (name.to_string(), value);
        Ok(match &self.set {
            GeneratorKind::Ctr(set) => {
                let best = set.best_scores(first, rows.min(FACT_ROWS) as usize)?;
                vec![
                    fact("best possible AUC", best.auc),
                    fact("best possible log-loss", best.log_loss),
                    fact("clicks per row", best.positive_rate),
                    fact("ids", set.row_count() as f64),
                ]
            }
            GeneratorKind::Digits(_) => vec![fact("classes", 10.0)],
            GeneratorKind::Text(set, length) => {
                let count = rows.min(FACT_ROWS / *length as u64).max(1);
                let best = set.best_next_loss(first, count as usize, *length)?;
                vec![
                    fact("best possible loss per next token", best),
                    fact("words", set.config().word_count as f64),
                ]
            }
            GeneratorKind::Blobs(set) => vec![fact("best possible accuracy", set.bayes_accuracy())],
        })
    }
}

fn labelled(x: &[f32], labels: &[i64], block: &mut Block) -> Result<()> {
    let width = x.len() / labels.len().max(1);
    for (row, label) in x.chunks_exact(width.max(1)).zip(labels) {
        block.push_floats(0, row)?;
        block.push_ids(1, &[*label])?;
        block.end_record()?;
    }
    Ok(())
}

/// Rejects a folder that already has shards, because a glob pattern would mix them with the new
/// ones.
fn check_empty(folder: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("list the folder", folder, &error);
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    match names.filter(|name| name.starts_with("part-")).min() {
        None => Ok(()),
        Some(first) => Err(Error::invalid("the folder already has a data set")
            .got(first)
            .help("choose another folder; existing files are not overwritten")
            .at(folder.display())),
    }
}

/// Writes a file under a temporary name and renames it when it is complete. An existing file is not
/// overwritten.
fn write_atomic(path: &Path, write: impl FnOnce(&Path, File) -> Result<()>) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("write", path, &error);
    if path.exists() {
        return Err(failed(std::io::ErrorKind::AlreadyExists.into())
            .help("choose another folder; existing files are not overwritten"));
    }
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    // Hidden, so that no glob pattern matches it.
    let part = path.with_file_name(format!(".{name}.part"));
    let written = File::create(&part)
        .map_err(failed)
        .and_then(|file| write(path, file))
        .and_then(|()| std::fs::rename(&part, path).map_err(failed));
    if written.is_err() {
        // The error below says what happened; a failed removal adds nothing to it.
        let _ = std::fs::remove_file(&part);
    }
    written
}

fn write_png(path: &Path, file: File, grey: &[u8]) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("write", path, &error);
    let mut out = BufWriter::new(file);
    let side = IMAGE_SIDE as u32;
    let mut encoder = png::Encoder::new(&mut out, side, side);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut png| {
        png.write_image_data(grey)?;
        png.finish()
    });
    written.map_err(|error| failed(std::io::Error::other(error)))?;
    out.flush().map_err(failed)
}

/// Returns the header: the slots' names, numbered if a slot has several values.
fn header(schema: &Schema) -> String {
    let mut names = Vec::new();
    for slot in schema.slots() {
        match slot.width() {
            Some(width @ 2..) => names.extend((0..width).map(|at| format!("{}_{at}", slot.name))),
            _ => names.push(slot.name.clone()),
        }
    }
    names.join(",") + "\n"
}

fn csv_line(block: &Block, row: usize, out: &mut impl Write) -> std::io::Result<()> {
    let mut separator = "";
    for slot in 0..block.schema().slots().len() {
        let column = block.column(slot);
        for at in column.range(row) {
            match column.values() {
                Values::Ids(ids) => write!(out, "{separator}{}", ids[at])?,
                Values::Floats(floats) => write!(out, "{separator}{}", floats[at])?,
            }
            separator = ",";
        }
    }
    writeln!(out)
}

fn json_line(block: &Block, row: usize, out: &mut impl Write) -> std::io::Result<()> {
    let mut separator = "{";
    for (index, slot) in block.schema().slots().iter().enumerate() {
        let column = block.column(index);
        write!(out, "{separator}{}:", serde_json::Value::from(slot.name.as_str()))?;
        let values = match column.values() {
            Values::Ids(ids) => serde_json::Value::from(&ids[column.range(row)]),
            Values::Floats(floats) => serde_json::Value::from(&floats[column.range(row)]),
        };
        write!(out, "{values}")?;
        separator = ",";
    }
    writeln!(out, "}}")
}

/// Limit of tokens in a record; longer lines could not be read back.
const TOKENS_MAX: usize = 1 << 20;
/// File names have five digits.
const SHARDS_MAX: u64 = 100_000;
/// Limit of images: file systems handle more files in a few folders badly, and names have eight
/// digits.
const IMAGES_MAX: u64 = 10_000_000;
/// Rows generated at once.
const CHUNK_ROWS: u64 = 1024;
const WRITE_BYTES: usize = 1 << 18;
/// Rows on which the best scores are computed; enough that the AUC varies by less than 0.002.
const FACT_ROWS: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_data::{Csv, CsvColumn, JsonLines, LineFormat, LineReader, MultiSlot, decode_image};

    fn make(kind: MakeKind, format: MakeFormat, name: &str) -> (Made, PathBuf) {
        let folder = std::env::temp_dir().join(format!("fleet-make-{name}-{}", std::process::id()));
        let make = Make { kind, format, first_row: 5, rows: 25, shards: 3, folder: folder.clone() };
        let made = make.write().unwrap();
        std::fs::remove_file(folder.join("part-00000")).unwrap();
        std::fs::remove_file(folder.join("part-00002")).unwrap();
        let again = make.write().unwrap_err().to_string();
        assert!(again.contains("part-00001") && again.contains("not overwritten"), "{again}");
        std::fs::remove_file(folder.join("part-00001")).unwrap();
        assert_eq!(make.write().unwrap(), made);
        let names = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(names, 3, "unfinished files are removed");
        (made, folder)
    }

    #[test]
    fn every_format_holds_the_same_records() {
        let kind = || MakeKind::Blobs(BlobsConfig { feature_count: 12, ..BlobsConfig::default() });
        let mut blocks = Vec::new();
        let formats = [MakeFormat::MultiSlot, MakeFormat::Csv, MakeFormat::JsonLines];
        for (index, format) in formats.into_iter().enumerate() {
            let (made, folder) = make(kind(), format, &format!("formats-{index}"));
            let mut block = Block::new(&made.schema);
            for file in &made.files {
                let text = std::fs::read(file).unwrap();
                let x = (0..12).map(|at| (format!("x_{at}"), CsvColumn::Float("x".into())));
                let label = ("label".to_string(), CsvColumn::Id("label".into()));
                let csv = Csv::new(x.chain([label])).unwrap().with_header();
                let line: Box<dyn LineFormat> = match format {
                    MakeFormat::MultiSlot => Box::new(MultiSlot::new(&made.schema)),
                    MakeFormat::Csv => Box::new(csv),
                    _ => Box::new(JsonLines::new(&made.schema)),
                };
                LineReader::new(&text[..], "f", line).read(100, &mut block).unwrap();
            }
            std::fs::remove_dir_all(folder).unwrap();
            assert_eq!(block.len(), 25);
            blocks.push(block);
        }
        assert_eq!(blocks[0], blocks[1]);
        assert_eq!(blocks[0], blocks[2]);
        let (mut x, mut labels) = (vec![0.0; 12], vec![0]);
        let config = BlobsConfig { feature_count: 12, ..BlobsConfig::default() };
        Blobs::new(config).unwrap().fill_batch(&mut x, &mut labels, 5).unwrap();
        assert_eq!(blocks[0].column(0).floats(0), Some(&x[..]));
    }

    #[test]
    fn digits_are_images_too() {
        let (made, folder) = {
            let folder =
                std::env::temp_dir().join(format!("fleet-make-png-{}", std::process::id()));
            let kind = MakeKind::Digits { seed: 4 };
            let format = MakeFormat::Png;
            let make =
                Make { kind, format, first_row: 7, rows: 30, shards: 1, folder: folder.clone() };
            let made = make.write().unwrap();
            assert!(make.write().unwrap_err().to_string().contains("00000007.png"));
            let blobs = MakeKind::Blobs(BlobsConfig::default());
            let nowhere = folder.with_extension("refused");
            let wrong = Make { folder: nowhere.clone(), ..make };
            assert!(Make { shards: 2, ..wrong.clone() }.write().is_err());
            assert!(Make { kind: blobs, ..wrong.clone() }.write().is_err());
            let error = Make { first_row: u64::MAX, ..wrong }.write().unwrap_err().to_string();
            assert!(error.contains("after the first row"), "{error}");
            assert!(!nowhere.exists(), "a rejected call creates no folder");
            (made, folder)
        };
        let (mut images, mut labels) = (vec![0; 30 * IMAGE_PIXELS], vec![0; 30]);
        Digits::new(4).fill_batch_u8(&mut images, &mut labels, 7).unwrap();
        for ((path, image), label) in made.files.iter().zip(images.chunks(784)).zip(&labels) {
            assert_eq!(path.parent().unwrap(), folder.join(label.to_string()));
            let pixels = decode_image(&std::fs::read(path).unwrap()).unwrap();
            assert_eq!((pixels.height, pixels.width), (28, 28));
            assert!(pixels.rgb.chunks(3).zip(image).all(|(rgb, grey)| rgb == [*grey; 3]));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("fleet-make-none-{}", std::process::id()));
        let blobs = || MakeKind::Blobs(BlobsConfig::default());
        let text = |length| MakeKind::Text { config: TextConfig::tiny(), length };
        for (kind, rows, shards, expected) in [
            (blobs(), 0, 1, "number of rows"),
            (blobs(), 10, 0, "number of shards"),
            (blobs(), 10, SHARDS_MAX + 1, "number of shards"),
            (blobs(), 10, 11, "more shards than rows"),
            (text(0), 10, 1, "tokens per record"),
            (text(1), 10, 1, "tokens per record"),
            (text(TOKENS_MAX + 1), 10, 1, "tokens per record"),
        ] {
            let format = MakeFormat::MultiSlot;
            let make = Make { kind, format, first_row: 0, rows, shards, folder: folder.clone() };
            let error = make.write().unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("expected"), "{error}");
            assert!(!folder.exists(), "{error}");
        }
    }

    /// `/dev/full` stands in for a full disk.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_leaves_no_file() {
        let folder = std::env::temp_dir().join(format!("fleet-make-full-{}", std::process::id()));
        make_folder(&folder).unwrap();
        let path = folder.join("part-0");
        let error = write_atomic(&path, |path, _| {
            let full = File::options().write(true).open("/dev/full").unwrap();
            write_png(path, full, &[0; IMAGE_PIXELS])
        });
        let error = error.unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn every_kind_is_made_with_its_best_score() {
        let text = MakeKind::Text { config: TextConfig::tiny(), length: 20 };
        for (kind, fact) in [
            (MakeKind::Ctr(CtrConfig::tiny()), "best possible AUC"),
            (MakeKind::Digits { seed: 1 }, "classes"),
            (text, "best possible loss per next token"),
        ] {
            let (made, folder) = make(kind, MakeFormat::MultiSlot, &fact.replace(' ', "-"));
            std::fs::remove_dir_all(folder).unwrap();
            assert_eq!(made.facts[0].0, fact);
            assert!(made.facts[0].1 > 0.0);
        }
    }
}
