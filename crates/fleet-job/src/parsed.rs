//! Raw columns that stay in memory after the pass that fits the features, so that the files are
//! parsed once, not again for the rows of each part.

use fleet_base::Result;
use fleet_base::sync::lock;
use fleet_data::{Block, RecordFormat, RecordReader, Schema};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The blocks of files that were read.
#[derive(Clone, Default)]
pub struct ParsedBlocks(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: HashMap<PathBuf, Arc<Vec<Block>>>,
    bytes: u64,
}

impl ParsedBlocks {
    /// Keeps all blocks of a file.
    pub fn add(&self, file: &Path, blocks: Vec<Block>) {
        let mut state = lock(&self.0);
        state.bytes += blocks.iter().map(|block| block.bytes() as u64).sum::<u64>();
        state.files.insert(file.to_path_buf(), Arc::new(blocks));
    }

    /// Releases the memory. Files are then read again.
    pub fn clear(&self) {
        *lock(&self.0) = State::default();
    }

    /// Returns the memory of the blocks.
    pub fn bytes(&self) -> u64 {
        lock(&self.0).bytes
    }

    /// Returns a format that reads kept files from memory, and the others as before.
    pub fn over(&self, files: Arc<dyn RecordFormat>) -> Arc<dyn RecordFormat> {
        Arc::new(KeptFiles { files, kept: self.clone() })
    }
}

struct KeptFiles {
    files: Arc<dyn RecordFormat>,
    kept: ParsedBlocks,
}

impl RecordFormat for KeptFiles {
    fn schema(&self) -> &Arc<Schema> {
        self.files.schema()
    }

    fn open(&self, path: &Path) -> Result<Box<dyn RecordReader>> {
        let blocks = lock(&self.kept.0).files.get(path).cloned();
        match blocks {
            Some(blocks) => {
                let schema = Arc::clone(self.schema());
                Ok(Box::new(KeptReader { schema, blocks, block: 0, row: 0 }))
            }
            None => self.files.open(path),
        }
    }

    fn for_pass(&self) -> Option<Arc<dyn RecordFormat>> {
        Some(self.kept.over(self.files.for_pass()?))
    }

    fn stop(&self) {
        self.files.stop();
    }

    fn is_local(&self) -> bool {
        self.files.is_local()
    }
}

struct KeptReader {
    schema: Arc<Schema>,
    blocks: Arc<Vec<Block>>,
    /// The next row.
    block: usize,
    row: usize,
}

impl RecordReader for KeptReader {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        let mut count = 0;
        while count < rows_max
            && let Some(from) = self.blocks.get(self.block)
        {
            let end = from.len().min(self.row + rows_max - count);
            block.append(from, self.row..end)?;
            count += end - self.row;
            (self.block, self.row) = match end == from.len() {
                true => (self.block + 1, 0),
                false => (self.block, end),
            };
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_data::{ColumnFiles, ColumnSpec, DataFormat};

    #[test]
    fn kept_files_are_read_from_memory() -> Result<()> {
        let temporary = std::env::temp_dir();
        let folder = fleet_base::temporary::TemporaryFolder::new(&temporary, "fleet-kept")?;
        let path = folder.path().join("rows.csv");
        let lines: String = (0..100).map(|row| format!("{row},word{}\n", row % 7)).collect();
        let write = |text: &str| fleet_base::file::write_file(&path, text.as_bytes());
        write(&format!("x,word\n{lines}"))?;
        let columns = [ColumnSpec::number("x"), ColumnSpec::category("word")];
        let files: Arc<dyn RecordFormat> = Arc::new(ColumnFiles::new(DataFormat::csv(), columns)?);
        let read = |format: &dyn RecordFormat, rows_max: usize| -> Result<Vec<Block>> {
            let (mut reader, mut blocks) = (format.open(&path)?, Vec::new());
            loop {
                let mut block = Block::new(format.schema());
                match reader.read(rows_max, &mut block)? {
                    0 => return Ok(blocks),
                    _ => blocks.push(block),
                }
            }
        };
        let whole = read(&*files, 1000)?.remove(0);
        let kept = ParsedBlocks::default();
        kept.add(&path, read(&*files, 33)?);
        assert!(kept.bytes() >= 100 * 12);
        write("x,word\n7,other\n")?;
        for rows_max in [1, 10, 33, 50, 1000] {
            let mut all = Block::new(files.schema());
            for block in read(&*kept.over(Arc::clone(&files)), rows_max)? {
                assert!(block.len() <= rows_max);
                all.append(&block, 0..block.len())?;
            }
            assert_eq!(all, whole);
        }
        kept.clear();
        assert_eq!((kept.bytes(), read(&*kept.over(files), 10)?[0].len()), (0, 1));
        Ok(())
    }
}
