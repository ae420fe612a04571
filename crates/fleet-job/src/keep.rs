//! Columns of the data that `fleet predict --keep` copies beside the scores, as text. The files are
//! read once more for them, row for row like those of the features.

use crate::origin::Origin;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_data::{
    Block, ColumnFiles, ColumnSpec, DataFormat, RecordFormat, RecordReader, TextObserver,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The rows of kept columns, in the order of the files.
pub struct Kept {
    files: Vec<PathBuf>,
    format: ColumnFiles,
    texts: Arc<BlockTexts>,
    /// The next file to open.
    next: usize,
    reader: Option<Box<dyn RecordReader>>,
    block: Block,
    /// The next row of the block.
    row: usize,
}

/// Texts of the values of a block, by column and hash.
struct BlockTexts(Mutex<Vec<HashMap<u64, String>>>);

impl TextObserver for BlockTexts {
    fn observe(&self, column: usize, hash: u64, text: &[u8]) {
        if let Some(texts) = lock(&self.0).get_mut(column) {
            texts.entry(hash).or_insert_with(|| String::from_utf8_lossy(text).into_owned());
        }
    }
}

/// Rows that are read at once.
const BLOCK_ROWS: usize = 4096;
/// Between the values of a list.
const SEPARATOR: &str = "|";

impl Kept {
    /// Opens columns of these names. No text stands for a missing value, except the empty one.
    pub fn open(
        origin: &Origin,
        format: DataFormat,
        files: Vec<PathBuf>,
        names: &[String],
    ) -> Result<Kept> {
        // Without a separator, the text of a cell is one value, and lists have one for each item.
        let columns = names.iter().map(|name| ColumnSpec::categories(name, ""));
        let texts = Arc::new(BlockTexts(Mutex::new(vec![HashMap::new(); names.len()])));
        let format = origin.open(ColumnFiles::new(format, columns)?);
        let format = format.observe_texts(Arc::clone(&texts) as Arc<dyn TextObserver>);
        let block = Block::new(format.schema());
        Ok(Kept { files, format, texts, next: 0, reader: None, block, row: 0 })
    }

    /// Appends the texts of the next rows, row after row.
    pub fn read(&mut self, rows: usize, out: &mut Vec<String>) -> Result<()> {
        for _ in 0..rows {
            while self.row == self.block.len() {
                if !self.fill()? {
                    return Err(Error::invalid(
                        "a file has changed: it has fewer rows than before",
                    ));
                }
            }
            let texts = &*lock(&self.texts.0);
            for (at, texts) in texts.iter().enumerate() {
                let hashes = self.block.column(at).ids(self.row).unwrap_or_default();
                let values = hashes.iter().filter_map(|hash| texts.get(&(*hash as u64)));
                let values: Vec<&str> = values.map(String::as_str).collect();
                out.push(values.join(SEPARATOR));
            }
            self.row += 1;
        }
        Ok(())
    }

    /// Reads the next block; returns false at the end of all files.
    fn fill(&mut self) -> Result<bool> {
        self.block.clear();
        self.row = 0;
        lock(&self.texts.0).iter_mut().for_each(HashMap::clear);
        loop {
            let Some(reader) = &mut self.reader else {
                let Some(file) = self.files.get(self.next) else { return Ok(false) };
                self.reader = Some(self.format.open(file)?);
                self.next += 1;
                continue;
            };
            if reader.read(BLOCK_ROWS, &mut self.block)? > 0 {
                return Ok(true);
            }
            self.reader = None;
        }
    }
}
