//! Columns by name: equal records out of all formats, and errors for files that are wrong.

use fleet_base::temporary::TemporaryFolder;
use fleet_base::{ErrorKind, Result};
use fleet_data::{
    BadRows, Block, ColumnFiles, ColumnSpec, CsvHeader, DataFormat, DatasetOptions,
    InMemoryDataset, RecordFormat, Skipped, TextDictionary, category_hash,
};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder with a file, under any name.
pub struct Files(pub TemporaryFolder);

impl Files {
    pub fn new() -> Files {
        Files(TemporaryFolder::new(&std::env::temp_dir(), "fleet-columns").unwrap())
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

pub fn load(format: &ColumnFiles, path: &Path) -> Result<(Block, Skipped)> {
    let mut block = Block::new(format.schema());
    let mut reader = format.open(path)?;
    while reader.read(3, &mut block)? > 0 {}
    Ok((block, reader.skipped()))
}

/// Reads a text as a file of a format.
fn read_as(format: DataFormat, columns: &[ColumnSpec], text: &[u8]) -> Result<Block> {
    let files = Files::new();
    let format = ColumnFiles::new(format, columns.to_vec())?.missing(["?"])?;
    load(&format, &files.write("f", text)).map(|(block, _)| block)
}

fn read(columns: &[ColumnSpec], text: &[u8]) -> Result<Block> {
    read_as(DataFormat::csv(), columns, text)
}

/// Returns the error for a CSV file, with the file's name in it shortened to `f`.
fn message(columns: &[ColumnSpec], text: &[u8]) -> String {
    let error = read(columns, text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let text = error.to_string();
    let text = text.split("\n  help: ").next().unwrap_or_default().to_string();
    match text.split_once("\n  at ") {
        Some((front, place)) => {
            format!("{front} AT f{}", place.rsplit_once("/f").map_or("", |(_, rest)| rest))
        }
        None => text,
    }
}

fn people() -> [ColumnSpec; 4] {
    [
        ColumnSpec::number("age"),
        ColumnSpec::category("city"),
        ColumnSpec::categories("tags", "|"),
        ColumnSpec::time("day"),
    ]
}

pub fn hashes(words: &[&str]) -> Vec<i64> {
    words.iter().map(|word| category_hash(word.as_bytes()) as i64).collect()
}

/// Returns the words of a column of categories as hashes.
pub fn ids(block: &Block, column: usize, row: usize) -> &[i64] {
    block.column(column).ids(row).unwrap()
}

pub fn float(block: &Block, column: usize, row: usize) -> f32 {
    block.column(column).floats(row).unwrap()[0]
}

#[test]
fn columns_are_found_by_the_header() {
    let text = b"day,unused,city,age,tags\n2024-03-01,x,Paris,30,a|b\n7,,?,,\n ,\"y\"\"\",\"Rome, \
                 Italy\", 1.5 ,c | d\n";
    let block = read(&people(), text).unwrap();
    assert_eq!(block.len(), 3);
    assert_eq!((float(&block, 0, 0), float(&block, 0, 2)), (30.0, 1.5));
    assert!(float(&block, 0, 1).is_nan());
    assert_eq!(ids(&block, 1, 0), hashes(&["Paris"]));
    assert_eq!(ids(&block, 1, 1), [0; 0]);
    assert_eq!(ids(&block, 1, 2), hashes(&["Rome, Italy"]));
    assert_eq!(ids(&block, 2, 0), hashes(&["a", "b"]));
    assert_eq!(ids(&block, 2, 1), [0; 0]);
    assert_eq!(ids(&block, 2, 2), hashes(&["c", "d"]));
    assert_eq!((ids(&block, 3, 0), ids(&block, 3, 1)), (&[1_709_251_200][..], &[7][..]));
    assert_eq!(ids(&block, 3, 2), [0; 0]);
}

/// Words are read eight bytes at a time: their length must not matter, nor what follows them.
#[test]
fn words_of_any_length_are_hashed() {
    let columns = ["a", "b"].map(ColumnSpec::category);
    for length in 1..40 {
        let word: String = ('a'..='z').cycle().take(length).collect();
        let odd = [word.replace('a', "é"), format!("{word} {word}"), format!("{word}'")];
        for word in odd.iter().chain([&word]) {
            let text = format!("a,b\n{word},x\n {word} ,{word}\nx,{word}");
            let block = read(&columns, text.as_bytes()).unwrap();
            let expected = [[word, "x"], [word, word], ["x", word]];
            for (row, expected) in expected.iter().enumerate() {
                let found = [0, 1].map(|column| ids(&block, column, row)[0]);
                assert_eq!(found[..], hashes(expected), "{text}");
            }
        }
    }
}

/// Line ends, a byte order mark, quotes around everything and the order of columns do not matter.
#[test]
fn spellings_of_a_table_are_equal() {
    let plain = read(&people(), b"age,city,tags,day\n30,Paris,a|b,7\n,A long name,,\n").unwrap();
    let lines = "age,city,tags,day\n30,Paris,a|b,7\n,A long name,,\n";
    let quoted = lines.lines().map(|line| {
        let fields: Vec<String> = line.split(',').map(|field| format!("\"{field}\"")).collect();
        fields.join(",") + "\n"
    });
    let spellings = [
        lines.replace('\n', "\r\n"),
        format!("\u{feff}{lines}"),
        lines.trim_end().to_string(),
        lines.replace('\n', "\n\n"),
        quoted.collect(),
        "day,tags,city,age\n7,a|b,Paris,30\n,, A long name ,\n".to_string(),
        "z,age,y,city,tags,day\n,30,1,Paris,a|b,7\n\"a,b\",,2,A long name,,\n".to_string(),
    ];
    for spelling in spellings {
        let block = read(&people(), spelling.as_bytes()).unwrap();
        assert_eq!(block.encode_bits(), plain.encode_bits(), "{spelling}");
    }
    let semicolons = lines.replace(',', ";");
    let format = DataFormat::Csv { separator: b';', header: CsvHeader::FirstLine };
    let block = read_as(format, &people(), semicolons.as_bytes()).unwrap();
    assert_eq!(block.encode_bits(), plain.encode_bits());
}

/// Bits of a block, which are equal also for NaN.
pub trait EncodeBits {
    fn encode_bits(&self) -> Vec<u8>;
}

impl EncodeBits for Block {
    fn encode_bits(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }
}

#[test]
fn files_without_a_header_have_given_or_numbered_names() {
    let names = ["city", "age"].map(str::to_string).to_vec();
    let format = |header| DataFormat::Csv { separator: b'\t', header };
    let columns = [ColumnSpec::number("age"), ColumnSpec::category("city")];
    let named = read_as(format(CsvHeader::Names(names)), &columns, b"Paris\t30\n").unwrap();
    assert_eq!((float(&named, 0, 0), named.len()), (30.0, 1));
    let columns = [ColumnSpec::number("column_2")];
    let numbered = read_as(format(CsvHeader::Numbered), &columns, b"a\t1\nb\t2\n").unwrap();
    assert_eq!((float(&numbered, 0, 1), numbered.len()), (2.0, 2));

    let mut line = String::from("1\t2\t");
    line.push_str(&"\t".repeat(11));
    line.push_str(&"\t68fd1e64".repeat(26));
    let columns = [ColumnSpec::number("I1"), ColumnSpec::category("C26")];
    let block = read_as(DataFormat::Criteo, &columns, line.as_bytes()).unwrap();
    assert_eq!((float(&block, 0, 0), ids(&block, 1, 0)), (2.0, &hashes(&["68fd1e64"])[..]));
    let error = ColumnFiles::new(DataFormat::Criteo, [ColumnSpec::number("I14")]).err().unwrap();
    assert!(error.to_string().contains("no column 'I14'; did you mean 'C14'"), "{error}");
}

#[test]
fn a_quoted_field_may_have_newlines() {
    let columns = [ColumnSpec::category("note"), ColumnSpec::number("n")];
    let long = "x".repeat(300_000);
    let text = format!("note,n\n\"a\nb\",1\n\"\"\"\n\n\",2\n\"{long}\n\",3\nc,4\n\"d\r\ne\",5");
    let block = read(&columns, text.as_bytes()).unwrap();
    let numbers: Vec<f32> = (0..block.len()).map(|row| float(&block, 1, row)).collect();
    assert_eq!(numbers, [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(ids(&block, 0, 0), hashes(&["a\nb"]));
    assert_eq!(ids(&block, 0, 1), hashes(&["\""]));
    assert_eq!(ids(&block, 0, 2), hashes(&[&long]));
    assert_eq!(ids(&block, 0, 4), hashes(&["d\r\ne"]));

    let place = message(&columns, b"note,n\n\"a\nb\",1\n\"c\n\nd\",x\n");
    assert!(place.ends_with("AT f:6:4, at 'x'"), "{place}");
    let open = message(&columns, b"note,n\na,1\n\"b,2\nc,3\n");
    let expected = "quoted field has no closing quote: expected a closing quote within 1 MiB";
    assert_eq!(open, format!("{expected} AT f:3:1, at '\"b,2'"));

    // A stray quote costs one line, also if a later one seems to close it.
    let files = Files::new();
    let format = ColumnFiles::new(DataFormat::csv(), columns).unwrap();
    let format = format.bad_rows(BadRows::at_most(9));
    for text in ["note,n\na,1\n\"b,2\nc,3\n", "note,n\na,1\n\"b,2\nc,3\n\"d\",4\n"] {
        let (block, skipped) = load(&format, &files.write("f", text.as_bytes())).unwrap();
        assert_eq!(skipped.lines, 1, "{text}");
        assert_eq!(block.len(), text.lines().count() - 2, "{text}");
    }
}

#[test]
fn numbers_are_finite_floats() {
    let columns = [ColumnSpec::number("n")];
    let number = |text: &str| read(&columns, format!("n\n{text}\n").as_bytes());
    for (text, value) in [
        ("9007199254740993", 9007199254740992.0),
        ("18446744073709551616", 18446744073709551616.0),
        ("123456789012345678901234567890", 1.2345679e29),
        ("-0", 0.0),
        ("+5", 5.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1E-3", 0.001),
        ("1e-400", 0.0),
        ("true", 1.0),
        ("False", 0.0),
        ("\"7\"", 7.0),
        ("16777217", 16777216.0),
    ] {
        assert_eq!(float(&number(text).unwrap(), 0, 0), value, "{text}");
    }
    for text in ["?", "NaN", "nan", "null", "\"\""] {
        assert!(float(&number(text).unwrap(), 0, 0).is_nan(), "{text}");
    }
    for text in ["1e400", "1e39", "inf", "-Infinity", "x", "1,5", "1 2", "0x10", "1_000", "--1"] {
        let error = number(&format!("\"{text}\"")).unwrap_err().to_string();
        let expected = "column 'n' is not a finite 32-bit float\n  at ";
        assert!(error.starts_with(expected) && error.contains("help: add texts"), "{error}");
        assert!(error.contains("f:2:1"), "{error}");
    }
}

#[test]
fn marks_of_missing_values() {
    let files = Files::new();
    let path = files.write("f.csv", b"n,c,t\n-999,-999,-999\n-999.0,NA,NA\n?,x,5\n");
    let columns = [ColumnSpec::number("n"), ColumnSpec::category("c"), ColumnSpec::time("t")];
    let format = ColumnFiles::new(DataFormat::csv(), columns).unwrap();
    let format = format.missing(["?", "NA", "-999"]).unwrap();
    let (block, _) = load(&format, &path).unwrap();
    assert!((0..3).all(|row| float(&block, 0, row).is_nan()));
    assert_eq!((ids(&block, 1, 0), ids(&block, 1, 1)), (&[][..], &[][..]));
    assert_eq!(ids(&block, 1, 2), hashes(&["x"]));
    assert_eq!((ids(&block, 2, 0), ids(&block, 2, 2)), (&[][..], &[5][..]));
}

#[test]
fn wrong_tables_are_errors_with_places() {
    let columns = [ColumnSpec::number("age"), ColumnSpec::category("city")];
    let message = |text: &[u8]| message(&columns, text);
    assert_eq!(
        message(b"agee,city\n1,a\n"),
        "file has no column 'age'; did you mean 'agee'?: got 2 columns: agee, city AT f:1:1, at \
         'agee,city'"
    );
    assert!(message(b"age,city,age\n1,a,2\n").starts_with("file has two columns 'age'"));
    assert_eq!(
        message(b"age,city\n1,a\n2\n"),
        "line has too few columns: expected 2 columns, got 1 AT f:3:2"
    );
    assert_eq!(
        message(b"age,city\n1,a,b\n"),
        "line has too many columns: expected 2 columns AT f:2:5, at 'b'"
    );
    let quote = message(b"age,city\n1,\"a\"b\n");
    assert!(quote.starts_with("text after a closing quote") && quote.ends_with("f:2:6, at 'b'"));
    let latin = message(b"age,city\n1,Troms\xf8\n");
    assert!(latin.contains("'city' has text that is not UTF-8"), "{latin}");
    assert!(latin.contains("f:2:3, at 'Troms"), "{latin}");
    assert!(message(b"").starts_with("file is empty"));
    assert!(message(b"\xff\xfea\0g\0e\0\n\0").starts_with("file is UTF-16"));
    assert!(message(b"age,city\r1,a\r2,b\r").starts_with("lines end with carriage returns only"));
    assert!(message(b"PAR1....").starts_with("file is a Parquet file: expected CSV"));
    // A file with only a header has no records.
    assert_eq!(read(&columns, b"age,city\n").unwrap().len(), 0);
    let separator = DataFormat::Csv { separator: b'"', header: CsvHeader::FirstLine };
    assert!(ColumnFiles::new(separator, columns.clone()).is_err());
    let twice = [ColumnSpec::number("a"), ColumnSpec::category("a")];
    assert!(ColumnFiles::new(DataFormat::csv(), twice).is_err());
}

/// The header of a file cannot be skipped as a bad line.
#[test]
fn a_header_that_changes_is_an_error() {
    let files = Files::new();
    let columns = [ColumnSpec::number("age"), ColumnSpec::category("city")];
    let format = ColumnFiles::new(DataFormat::csv(), columns).unwrap();
    let options = DatasetOptions::new(format.bad_rows(BadRows::at_most(100))).unwrap();
    let mut dataset = InMemoryDataset::new(options).unwrap();
    let first = files.write("a.csv", b"age,city\n1,a\n");
    let second = files.write("b.csv", b"city,age\nb,2\n");
    dataset.set_filelist([&first, &second]).unwrap();
    dataset.load_into_memory().unwrap();
    assert_eq!(dataset.memory_data_size(), 2);
    let third = files.write("c.csv", b"city,years\nb,2\n");
    dataset.set_filelist([&first, &third]).unwrap();
    let error = dataset.load_into_memory().unwrap_err().to_string();
    assert!(error.contains("no column 'age'") && error.contains("c.csv:1:1"), "{error}");
}

#[test]
fn bad_rows_are_counted_kept_and_limited() {
    let files = Files::new();
    let path = files.write("f.csv", b"age,city\n1,a\nx,b\n2,c,d\n3,\"e\n4,f\n");
    let kept = files.0.path().join("bad.txt");
    let columns = [ColumnSpec::number("age"), ColumnSpec::category("city")];
    let format = ColumnFiles::new(DataFormat::csv(), columns).unwrap();
    let counted = format.clone().bad_rows(BadRows::at_most(3).keep(&kept));
    let options = DatasetOptions::new(counted).unwrap();
    let mut dataset = InMemoryDataset::new(options).unwrap();
    dataset.set_filelist([&path]).unwrap();
    for _ in 0..2 {
        dataset.load_into_memory().unwrap();
        assert_eq!((dataset.memory_data_size(), dataset.skipped().lines), (2, 3));
    }
    let lines = std::fs::read_to_string(&kept).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    let name = path.display();
    assert_eq!(lines.len(), 3);
    let expected = format!("{name}:3:1: column 'age' is not a finite 32-bit float\tx,b");
    assert_eq!(lines[0], expected);
    assert!(lines[1].ends_with("\t2,c,d") && lines[2].ends_with("\t3,\"e"));
    let error = load(&format.bad_rows(BadRows::at_most(2)), &path).unwrap_err().to_string();
    assert!(error.contains("f.csv:5:3") && error.contains("2 bad rows were skipped"), "{error}");
}

#[test]
fn texts_of_categories_are_seen_on_request() {
    let files = Files::new();
    let path = files.write("f.csv", b"a,tags\nx,p|q\ny,q\nx,\n");
    let texts = Arc::new(TextDictionary::new(2, 1 << 20));
    let columns = [ColumnSpec::category("a"), ColumnSpec::categories("tags", "|")];
    let format = ColumnFiles::new(DataFormat::csv(), columns).unwrap();
    let format = format.observe_texts(texts.clone());
    load(&format, &path).unwrap();
    let all = |column| texts.texts(column).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert_eq!((all(0), all(1)), (vec!["x".into(), "y".into()], vec!["p".into(), "q".into()]));
    assert_eq!(texts.text(1, category_hash(b"q")).as_deref(), Some("q"));
}

/// Compressed files are recognized by their content, not by their name.
#[test]
fn compressed_files_are_read() {
    let files = Files::new();
    let text = b"age,city\n1,Paris\n2,Rome\n".as_slice();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text).unwrap();
    let gzip = gzip.finish().unwrap();
    let columns = [ColumnSpec::number("age"), ColumnSpec::category("city")];
    let format = ColumnFiles::new(DataFormat::csv(), columns).unwrap();
    let plain = load(&format, &files.write("a.csv", text)).unwrap().0;
    let unpacked = load(&format, &files.write("a.csv.gz", &gzip)).unwrap().0;
    assert_eq!(plain, unpacked);
    let torn = load(&format, &files.write("b.csv.gz", &gzip[..gzip.len() - 9]));
    assert!(torn.unwrap_err().to_string().contains("cannot read"));
    #[cfg(feature = "zstd")]
    {
        let zstd = zstd::encode_all(text, 1).unwrap();
        let unpacked = load(&format, &files.write("a.csv.zst", &zstd)).unwrap().0;
        assert_eq!(plain, unpacked);
    }
}

/// A row of the table that every format has: price, city, tags, scores, day.
type Row = (Option<f32>, Option<&'static str>, Vec<&'static str>, Vec<f32>, i64);

fn table() -> Vec<Row> {
    vec![
        (Some(1.5), Some("Paris"), vec!["a", "b"], vec![0.5, -2.0], 86_400),
        (None, Some("7"), vec![], vec![], 0),
        (Some(1e-7), None, vec!["Tromsø \"x\""], vec![3.0], 1_709_251_200),
    ]
}

pub fn table_columns() -> Vec<ColumnSpec> {
    vec![
        ColumnSpec::number("price"),
        ColumnSpec::category("city"),
        ColumnSpec::categories("tags", "|"),
        ColumnSpec::numbers("scores", ";"),
        ColumnSpec::time("day"),
    ]
}

/// Returns the records of the table, which every format must give.
pub fn expected() -> Vec<u8> {
    let format = ColumnFiles::new(DataFormat::csv(), table_columns()).unwrap();
    let mut block = Block::new(format.schema());
    for (price, city, tags, scores, day) in table() {
        block.push_floats(0, &[price.unwrap_or(f32::NAN)]).unwrap();
        block.push_ids(1, &hashes(&Vec::from_iter(city))).unwrap();
        block.push_ids(2, &hashes(&tags)).unwrap();
        block.push_floats(3, &scores).unwrap();
        block.push_ids(4, &[day]).unwrap();
        block.end_record().unwrap();
    }
    block.encode_bits()
}

fn joined<T: ToString>(values: &[T], separator: &str) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(separator)
}

fn as_csv() -> String {
    let mut text = String::from("price,city,tags,scores,day\n");
    for (price, city, tags, scores, day) in table() {
        let tags = joined(&tags, "|").replace('"', "\"\"");
        let (price, city) = (joined(&Vec::from_iter(price), ""), city.unwrap_or_default());
        text += &format!("{price},{city},\"{tags}\",{},{day}\n", joined(&scores, ";"));
    }
    text
}

fn as_json() -> String {
    let line = |(price, city, tags, scores, day): Row| {
        serde_json::json!({
            "day": day, "unused": [{"a": [1, "}"]}, null], "tags": tags, "scores": scores,
            "city": city, "price": price,
        })
        .to_string()
    };
    table().into_iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn json_lines_give_the_same_records() {
    let block = read_as(DataFormat::csv(), &table_columns(), as_csv().as_bytes()).unwrap();
    assert_eq!(block.encode_bits(), expected());
    let block = read_as(DataFormat::JsonLines, &table_columns(), as_json().as_bytes()).unwrap();
    assert_eq!(block.encode_bits(), expected());
    // Other types of the same values: numbers as texts, lists as texts, absent keys, dates.
    let text = r#"
        {"price": "1.5", "city": "Paris", "tags": "a|b", "scores": [[0.5], "-2"], "day": "86400"}
        {"price": "", "city": 7, "tags": [], "day": "1970-01-01T00:00Z"}
        {"price":1E-7,"tags":["Troms\u00f8 \"x\"",null,""],"scores":3.0,"day":"2024-03-01"}
    "#;
    let block = read_as(DataFormat::JsonLines, &table_columns(), text.as_bytes()).unwrap();
    assert_eq!(block.encode_bits(), expected());
}

#[test]
fn fields_of_objects_are_columns() {
    let columns = [ColumnSpec::number("user.age"), ColumnSpec::category("user.home.city")].to_vec();
    let text = r#"{"user": {"age": 30, "home": {"city": "Paris", "x": {}}, "age2": []}}
        {"user.age": 31, "user": {"home": null}}
        {"user": 5}
        {}"#;
    let block = read_as(DataFormat::JsonLines, &columns, text.as_bytes()).unwrap();
    assert_eq!((float(&block, 0, 0), float(&block, 0, 1)), (30.0, 31.0));
    assert!(float(&block, 0, 2).is_nan() && float(&block, 0, 3).is_nan());
    assert_eq!(ids(&block, 1, 0), hashes(&["Paris"]));
    assert_eq!(ids(&block, 1, 1), [0; 0]);
}

#[test]
fn wrong_json_is_an_error_with_a_place() {
    let columns = [ColumnSpec::number("x"), ColumnSpec::category("c")];
    let message = |text: &str| {
        let error = read_as(DataFormat::JsonLines, &columns, text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("/f:1:"), "{error}");
        error.to_string()
    };
    let deep = format!("{{\"a\": {}1{}}}", "[".repeat(100), "]".repeat(100));
    for (text, words) in [
        ("[{\"x\": 1}]", "not a JSON object"),
        ("{\"x\": 1", "expected ',' or '}', got the end of the line"),
        ("{\"x\" 1}", "expected ':', got '1'"),
        ("{x: 1}", "expected a key in quotes"),
        ("{\"x\": 1} 2", "expected the end of the line"),
        ("{\"x\": 01}", "expected ',' or '}', got '1'"),
        ("{\"x\": +1}", "expected a value, got '+'"),
        ("{\"x\": 1.}", "expected a value"),
        ("{\"x\": Infinity}", "expected a value"),
        ("{\"x\": tru}", "expected a value"),
        ("{\"x\": 1e400}", "not a finite 32-bit float"),
        ("{\"x\": {\"y\": 1}}", "column 'x' is an object"),
        ("{\"x\": [1, 2]}", "column 'x' has a list of values: expected one value, got 2"),
        ("{\"x\": 1, \"x\": 2}", "duplicate key 'x'"),
        ("{\"c\": \"\\ud800\"}", "invalid escape"),
        ("{\"c\": \"\\q\"}", "invalid escape"),
        ("{\"c\": \"abc}", "no closing quote"),
        ("{\"a\": \"abc}", "no closing quote"),
        ("{\"a\": \"abc\\", "no closing quote"),
        (&deep, "nested too deeply"),
        ("{\"x\": \"abc\"}", "not a finite"),
    ] {
        let error = message(text);
        assert!(error.contains(words), "{text}: {error}");
    }
    let large = read_as(
        DataFormat::JsonLines,
        &[ColumnSpec::category("c"), ColumnSpec::number("x")],
        br#"{"c": 123456789012345678901234567890, "x": 9007199254740993}"#,
    );
    let large = large.unwrap();
    assert_eq!(ids(&large, 0, 0), hashes(&["123456789012345678901234567890"]));
    assert_eq!(float(&large, 1, 0), 9007199254740992.0);
}

/// Any byte of a line may be wrong: the result is an error or other values, never a panic.
#[test]
fn changed_bytes_do_not_panic() {
    for (format, text) in [(DataFormat::csv(), as_csv()), (DataFormat::JsonLines, as_json())] {
        let files = Files::new();
        let columns = ColumnFiles::new(format, table_columns()).unwrap();
        let columns = columns.bad_rows(BadRows::at_most(100));
        for at in 0..text.len() {
            for byte in [0, b'"', b'\\', b',', b'\n', b'[', 0xff] {
                let mut changed = text.clone().into_bytes();
                changed[at] = byte;
                let _ = load(&columns, &files.write("f", &changed));
            }
            let _ = load(&columns, &files.write("f", &text.as_bytes()[..at]));
        }
    }
}

#[test]
fn multi_slot_lines_give_columns() {
    let names = ["tags", "price", "day", "unused"].map(str::to_string).to_vec();
    let format = || DataFormat::MultiSlot { names: names.clone() };
    let columns =
        [ColumnSpec::number("price"), ColumnSpec::categories("tags", ""), ColumnSpec::time("day")];
    let block =
        read_as(format(), &columns, b"2 7 a 1 1.5 1 60 3 1 2 3\n\n1 b 1 ? 1 1 1 0").unwrap();
    assert_eq!(ids(&block, 1, 0), hashes(&["7", "a"]));
    assert_eq!((float(&block, 0, 0), ids(&block, 2, 0)), (1.5, &[60][..]));
    assert!(float(&block, 0, 1).is_nan());
    for (text, words) in [
        ("2 7", "line ends in column 'tags': expected 2 values, got 1"),
        ("1 7 x 1 1 1 1 0", "column 'price' does not start with a count"),
        ("1 7 0 1 1 1 0", "column 'price' does not start with a count"),
        ("1 7 2 1 2 1 1 1 0", "column 'price' has a list of values"),
        ("1 7 1 1", "line ends before column 'day'"),
        ("1 7 1 1 1 1 1 0 9", "more values than its columns"),
        ("99999999999 7", "line ends in column 'tags'"),
    ] {
        let error = read_as(format(), &columns, text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("/f:1:"), "{text}: {error}");
    }
}

/// Numbers of rows are ids without hashes, the same in every format, and checked against the limit.
#[test]
fn rows_are_integers_below_a_limit() {
    let columns = [ColumnSpec::row("a", 1000), ColumnSpec::row("b", 3)];
    let csv = read(&columns, b"a,b\n0,2\n\"999\",?\n 12 ,\n").unwrap();
    let expected: [(&[i64], &[i64]); 3] = [(&[1], &[3]), (&[1000], &[]), (&[13], &[])];
    for (row, (a, b)) in expected.into_iter().enumerate() {
        assert_eq!((ids(&csv, 0, row), ids(&csv, 1, row)), (a, b), "row {row}");
    }
    let lines = b"{\"a\": 0, \"b\": 2.0}\n{\"a\": \"999\"}\n{\"a\": 12, \"b\": null}\n";
    let json = read_as(DataFormat::JsonLines, &columns, lines).unwrap();
    assert_eq!(json, csv);
    let what = "invalid: column 'b' is not the number of a row: expected an integer from 0 to 2";
    for (text, rest) in [
        ("a,b\n1,1\n1,3\n", ", got 3 AT f:3:3, at '3'"),
        ("a,b\n1,-1\n", ", got -1 AT f:2:3, at '-1'"),
        ("a,b\n1,x\n", " AT f:2:3, at 'x'"),
        ("a,b\n1,1.5\n", " AT f:2:3, at '1.5'"),
        ("a,b\n1,18446744073709551615\n", " AT f:2:3, at '18446744073709551615'"),
    ] {
        let got = message(&columns, text.as_bytes());
        assert!(got.ends_with(rest) && got.contains(&what[9..]), "{text:?}: {got}");
    }
    // Texts are the decimal digits.
    let texts = Arc::new(TextDictionary::new(2, 1 << 20));
    let files = Files::new();
    let format = ColumnFiles::new(DataFormat::csv(), columns).unwrap();
    let format = format.observe_texts(texts.clone());
    let (block, _) = load(&format, &files.write("f", b"a,b\n17,1\n")).unwrap();
    assert_eq!(texts.text(0, ids(&block, 0, 0)[0] as u64).as_deref(), Some("17"));
}
