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
