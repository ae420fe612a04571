//! Tables of 32-bit floats as files, after columns of text if wanted: CSV, or Parquet with the
//! feature `parquet`. A file gets its name when it is complete.

use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result};
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

/// Writes rows of floats into a file whose ending tells the format.
///
/// ```
/// use fleet_data::FloatTable;
/// let path = std::env::temp_dir().join(format!("fleet-table-{}.csv", std::process::id()));
/// let mut table = FloatTable::create(&path, &["score".to_string()])?;
/// table.write(&[0.25, 1.5])?;
/// table.finish()?;
/// assert_eq!(std::fs::read_to_string(&path)?, "score\n0.25\n1.5\n");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FloatTable {
    texts: usize,
    columns: usize,
    form: Form,
}

enum Form {
    Csv {
        file: AtomicFile,
        text: String,
    },
    #[cfg(feature = "parquet")]
    Parquet(Box<parquet_table::Table>),
}

impl FloatTable {
    /// Creates a file that ends in `.csv` or `.parquet`, with a column for each name.
    pub fn create(path: &Path, names: &[String]) -> Result<FloatTable> {
        FloatTable::with_texts(path, &[], names)
    }

    /// Like [`FloatTable::create`], with columns of text before those of floats.
    pub fn with_texts(path: &Path, texts: &[String], names: &[String]) -> Result<FloatTable> {
        FloatTable::check_name(path)?;
        let (count, columns) = (texts.len(), names.len());
        if is_csv(path) {
            let names: Vec<String> = texts.iter().chain(names).map(|name| quoted(name)).collect();
            let text = names.join(",") + "\n";
            let form = Form::Csv { file: AtomicFile::create(path)?, text };
            return Ok(FloatTable { texts: count, columns, form });
        }
        #[cfg(feature = "parquet")]
        let form = Form::Parquet(Box::new(parquet_table::Table::create(path, texts, names)?));
        #[cfg(feature = "parquet")]
        return Ok(FloatTable { texts: count, columns, form });
        #[cfg(not(feature = "parquet"))]
        Err(Error::unsupported("built without Parquet files").help("use the feature `parquet`"))
    }

    /// Fails unless the ending of a name tells a format.
    pub fn check_name(path: &Path) -> Result<()> {
        match is_csv(path) || has_ending(path, "parquet") {
            true => Ok(()),
            false => Err(Error::unsupported("format of the output is not supported")
                .expected("a file that ends in .csv or .parquet")
                .got(path.display())),
        }
    }

    /// Appends rows, one after the other, of a table without texts.
    pub fn write(&mut self, values: &[f32]) -> Result<()> {
        self.write_rows(&[], values)
    }

    /// Appends rows, one after the other: their texts, and their floats.
    pub fn write_rows(&mut self, texts: &[String], values: &[f32]) -> Result<()> {
        let rows = values.len() / self.columns.max(1);
        if texts.len() != rows * self.texts {
            return Err(Error::internal("rows of a table without their texts")
                .expected(rows * self.texts)
                .got(texts.len()));
        }
        match &mut self.form {
            Form::Csv { file, text } => {
                for (row, values) in values.chunks(self.columns.max(1)).enumerate() {
                    for it in &texts[row * self.texts..(row + 1) * self.texts] {
                        let _ = write!(text, "{},", quoted(it));
                    }
                    for (index, value) in values.iter().enumerate() {
                        if index > 0 {
                            text.push(',');
                        }
                        push_float(text, *value);
                    }
                    text.push('\n');
                }
                write_text(file, text)
            }
            #[cfg(feature = "parquet")]
            Form::Parquet(table) => table.write(texts, values),
        }
    }

    /// Completes the file, and gives it its name.
    pub fn finish(self) -> Result<()> {
        match self.form {
            Form::Csv { mut file, mut text } => {
                write_text(&mut file, &mut text)?;
                file.commit()
            }
            #[cfg(feature = "parquet")]
            Form::Parquet(table) => table.finish(),
        }
    }
}

/// Appends a float with the fewest digits that parse to it, as its `Display` does. Scores are often
/// between 0 and 1, and have at most nine decimals: these are found by trying, twice as fast.
fn push_float(text: &mut String, value: f32) {
    if (SHORT_MIN..1.0).contains(&value) {
        let exact = f64::from(value);
        for (decimals, scale) in (DECIMALS_MIN..).zip(SCALES) {
            let digits = (exact * scale).round();
            if (digits / scale) as f32 == value {
                return push_decimals(text, digits as u64, decimals);
            }
        }
    }
    let _ = write!(text, "{value}");
}

/// Appends 0 and some decimals, without zeros at their end.
fn push_decimals(text: &mut String, mut digits: u64, mut decimals: usize) {
    while digits.is_multiple_of(10) {
        (digits, decimals) = (digits / 10, decimals - 1);
    }
    let mut bytes = [b'0'; 1 + DECIMALS_MIN + SCALES.len()];
    bytes[1] = b'.';
    for byte in bytes[2..2 + decimals].iter_mut().rev() {
        *byte += (digits % 10) as u8;
        digits /= 10;
    }
    text.push_str(std::str::from_utf8(&bytes[..2 + decimals]).unwrap_or_default());
}

/// Floats from this one on to 1 have few decimals.
const SHORT_MIN: f32 = 1e-4;
/// Decimals that are tried first: few floats have fewer.
const DECIMALS_MIN: usize = 5;
/// Powers of ten of the numbers of decimals that are tried.
const SCALES: [f64; 5] = [1e5, 1e6, 1e7, 1e8, 1e9];

fn write_text(file: &mut AtomicFile, text: &mut String) -> Result<()> {
    let written = file.write_all(text.as_bytes());
    text.clear();
    written.map_err(|error| file.error("write", &error))
}

fn is_csv(path: &Path) -> bool {
    has_ending(path, "csv")
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().and_then(|it| it.to_str()).is_some_and(|it| it.eq_ignore_ascii_case(ending))
}

fn quoted(name: &str) -> String {
    match name.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_string(),
    }
}

#[cfg(feature = "parquet")]
mod parquet_table {
    use super::{AtomicFile, Error, Path, Result};
    use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
    use parquet::data_type::{ByteArray, ByteArrayType, FloatType};
    use parquet::errors::ParquetError;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::types::Type;
    use std::sync::Arc;

    pub struct Table {
        writer: SerializedFileWriter<AtomicFile>,
        /// The values of each column of text that are not written yet.
        texts: Vec<Vec<ByteArray>>,
        /// The values of each column of floats that are not written yet.
        columns: Vec<Vec<f32>>,
    }

    /// Rows of a row group: readers load a group's column at once.
    const GROUP_ROWS: usize = 1 << 20;

    impl Table {
        pub fn create(path: &Path, texts: &[String], names: &[String]) -> Result<Table> {
            let text = |name: &String| {
                let column = Type::primitive_type_builder(name, Physical::BYTE_ARRAY)
                    .with_logical_type(Some(LogicalType::String));
                column.with_repetition(Repetition::REQUIRED).build().map(Arc::new)
            };
            let column = |name: &String| {
                let column = Type::primitive_type_builder(name, Physical::FLOAT);
                column.with_repetition(Repetition::REQUIRED).build().map(Arc::new)
            };
            let fields = texts.iter().map(text).chain(names.iter().map(column));
            let fields: Result<Vec<_>, ParquetError> = fields.collect();
            let fields = fields.map_err(|error| failed(&error))?;
            let schema = Type::group_type_builder("table").with_fields(fields).build();
            let schema = Arc::new(schema.map_err(|error| failed(&error))?);
            let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
            // Scores rarely repeat, so a dictionary would only cost time.
            let properties = Arc::new(properties.set_dictionary_enabled(false).build());
            let file = AtomicFile::create(path)?;
            let writer = SerializedFileWriter::new(file, schema, properties);
            let writer = writer.map_err(|error| failed(&error).at(path.display()))?;
            let (texts, columns) = (vec![Vec::new(); texts.len()], vec![Vec::new(); names.len()]);
            Ok(Table { writer, texts, columns })
        }

        pub fn write(&mut self, texts: &[String], values: &[f32]) -> Result<()> {
            for row in texts.chunks(self.texts.len().max(1)) {
                let bytes = |text: &String| ByteArray::from(text.as_str());
                self.texts.iter_mut().zip(row).for_each(|(column, it)| column.push(bytes(it)));
            }
            for row in values.chunks(self.columns.len().max(1)) {
                self.columns.iter_mut().zip(row).for_each(|(column, value)| column.push(*value));
            }
            match self.columns.first().is_some_and(|column| column.len() >= GROUP_ROWS) {
                true => self.group().map_err(|error| failed(&error)),
                false => Ok(()),
            }
        }

        pub fn finish(mut self) -> Result<()> {
            if self.columns.first().is_some_and(|column| !column.is_empty()) {
                self.group().map_err(|error| failed(&error))?;
            }
            self.writer.into_inner().map_err(|error| failed(&error))?.commit()
        }

        fn group(&mut self) -> Result<(), ParquetError> {
            let mut group = self.writer.next_row_group()?;
            for column in &mut self.texts {
                let Some(mut writer) = group.next_column()? else { break };
                writer.typed::<ByteArrayType>().write_batch(column, None, None)?;
                writer.close()?;
                column.clear();
            }
            for column in &mut self.columns {
                let Some(mut writer) = group.next_column()? else { break };
                writer.typed::<FloatType>().write_batch(column, None, None)?;
                writer.close()?;
                column.clear();
            }
            group.close()?;
            Ok(())
        }
    }

    fn failed(error: &ParquetError) -> Error {
        Error::unavailable(format!("cannot write the Parquet file: {error}"))
    }

    #[cfg(test)]
    mod tests {
        use crate::{Block, ColumnFiles, ColumnSpec, DataFormat, FloatTable, RecordFormat};
        use fleet_base::Result;

        #[test]
        fn floats_are_read_back() -> Result<()> {
            let temporary = std::env::temp_dir();
            let folder = fleet_base::temporary::TemporaryFolder::new(&temporary, "fleet-floats")?;
            let path = folder.path().join("scores.parquet");
            let names = ["a".to_string(), "b, c".to_string()];
            let mut table = FloatTable::with_texts(&path, &["id".to_string()], &names)?;
            let texts = ["x, \"y\"".to_string(), String::new()];
            assert!(table.write(&[1.0, 2.0]).is_err());
            table.write_rows(&texts, &[1.0, 2.0, 0.1, f32::NAN])?;
            assert!(!path.exists());
            table.finish()?;
            let columns =
                [ColumnSpec::number("b, c"), ColumnSpec::number("a"), ColumnSpec::category("id")];
            let files = ColumnFiles::new(DataFormat::Parquet, columns)?;
            let (mut block, mut reader) = (Block::new(files.schema()), files.open(&path)?);
            assert_eq!(reader.read(10, &mut block)?, 2);
            assert_eq!(block.column(1).floats(1), Some(&[0.1][..]));
            assert_eq!(block.column(0).floats(0), Some(&[2.0][..]));
            assert!(block.column(0).floats(1).is_some_and(|it| it[0].is_nan()));
            let hash = crate::category_hash(b"x, \"y\"") as i64;
            assert_eq!(block.column(2).ids(0), Some(&[hash][..]));
            assert_eq!(block.column(2).ids(1), Some(&[][..]));
            assert!(FloatTable::create(&folder.path().join("x.xlsx"), &[]).is_err());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::push_float;
    use std::fmt::Write as _;

    #[test]
    fn floats_have_their_shortest_text() {
        let bits = (1e-5f32.to_bits()..2f32.to_bits()).step_by(1009);
        let powers = (0..20).map(|it| 0.5f32.powi(it).to_bits());
        let around = powers.flat_map(|bits| bits - 2..bits + 3);
        let special = [0.0, -0.0, -0.25, 1.0, 1e-4, 0.1, 0.12345, f32::NAN, f32::INFINITY, 1e30];
        for value in bits.chain(around).map(f32::from_bits).chain(special) {
            let (mut text, mut expected) = (String::new(), String::new());
            push_float(&mut text, value);
            let _ = write!(expected, "{value}");
            assert_eq!(text, expected);
        }
    }
}
