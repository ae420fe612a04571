//! Surveys of files: kinds of columns, and what is unusual.

use super::columns::Files;
use fleet_data::{ColumnKind, DataFormat, InferredKind, Survey, SurveyOptions};

fn survey(files: &[(&str, &str)], options: &SurveyOptions) -> fleet_base::Result<Survey> {
    let folder = Files::new();
    let paths: Vec<_> =
        files.iter().map(|(name, text)| folder.write(name, text.as_bytes())).collect();
    Survey::of(&paths, options)
}

fn of(name: &str, text: &str) -> Survey {
    survey(&[(name, text)], &SurveyOptions::default()).unwrap()
}

#[test]
fn kinds_follow_from_the_values() {
    let mut text =
        String::from("user_id,age,price,city,genres,at,timestamp,seen,one,none,flag,sizes\n");
    for row in 0..200 {
        let genre = ["a|b", "a", "b|c|a", "c"][row % 4];
        let city = ["Paris", "Rome", "A, B"][row % 3];
        let (age, price) = (20 + row % 50, row as f64 / 4.0);
        let (day, seconds) = (1 + row % 28, 881_250_949 + 1000 * row);
        text += &format!(
            "{},{age},{price},\"{city}\",{genre},2024-03-{day:02},{seconds},{},x,,{},{};{}\n",
            row % 70,
            row * 3,
            if row % 2 == 0 { "True" } else { "False" },
            row % 5,
            row % 3,
        );
    }
    let survey = of("f.csv", &text);
    let kinds: Vec<&InferredKind> = survey.columns.iter().map(|column| &column.kind).collect();
    let bar = |separator: &str| Some(separator.to_string());
    let expected = [
        InferredKind::Integer,
        InferredKind::Integer,
        InferredKind::Number,
        InferredKind::Category,
        InferredKind::Categories { separator: bar("|") },
        InferredKind::Time,
        InferredKind::Time,
        InferredKind::Integer,
        InferredKind::Constant,
        InferredKind::AllMissing,
        InferredKind::Category,
        InferredKind::Numbers { separator: bar(";") },
    ];
    assert_eq!(kinds, expected.iter().collect::<Vec<_>>());
    assert!(survey.is_complete && survey.rows == 200 && survey.format == DataFormat::csv());
    let [user, age] = [&survey.columns[0], &survey.columns[1]];
    assert!(user.is_id && !age.is_id);
    assert_eq!((&user.spec().kind, &age.spec().kind), (&ColumnKind::Category, &ColumnKind::Number));
    let numbers = age.numbers.unwrap();
    assert_eq!((numbers.min, numbers.max, numbers.mean, age.distinct), (20.0, 69.0, 44.5, 50));
    assert_eq!(survey.columns[3].top[0], ("Paris".to_string(), 67));
    assert_eq!((survey.columns[9].missing, survey.columns[4].missing), (200, 0));
    assert_eq!(survey.findings, ["column 'one' is constant: 'x'", "column 'none' has no values"]);
}

#[test]
fn marks_of_missing_values_are_suggested() {
    let mut text = String::from("n,c\n");
    (0..50).for_each(|row| text += &format!("{row},{}\n", ["x", "y", "NA"][row % 3]));
    text += "unknown,x\nunknown,y\n";
    let found = of("f.csv", &text);
    assert_eq!(found.missing_marks, ["unknown", "NA"]);
    let options =
        SurveyOptions { missing: found.missing_marks.clone(), ..SurveyOptions::default() };
    let read = survey(&[("f.csv", &text)], &options).unwrap();
    assert_eq!((read.columns[0].missing, read.columns[1].missing), (2, 16));
    assert_eq!(read.columns[0].kind, InferredKind::Integer);
    assert!(read.missing_marks.is_empty() && read.findings.is_empty());
}

#[test]
fn unusual_files_are_named() {
    let files = [
        ("a.csv", "x,y\n1,a\n2,b\n"),
        ("b.csv", "y,z\nc,3\nd\n"),
        ("c.csv", ""),
        ("d.csv", "y,x\n\"e,4\n"),
    ];
    let found = survey(&files, &SurveyOptions::default()).unwrap();
    let has = |words: &str| found.findings.iter().any(|finding| finding.contains(words));
    assert!(has("b.csv: other columns than ") && has("without x, with z"), "{found:?}");
    assert!(has("file is empty") && has("c.csv"), "{found:?}");
    assert!(has("2 bad rows; the first: line has too few columns"), "{found:?}");
    assert_eq!((found.rows, found.bad_rows.lines), (3, 2));
    let x = &found.columns[0];
    assert_eq!((x.name.as_str(), x.missing, x.values), ("x", 1, 2));

    let values = of("f.csv", "5.5,x,3\n6.5,y,4\n");
    let names: Vec<&str> = values.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!((names, values.rows), (vec!["column_1", "column_2", "column_3"], 2));
    let options = SurveyOptions { format: Some(DataFormat::csv()), ..SurveyOptions::default() };
    let values = survey(&[("f.csv", "5.5,x,3\n6.5,y,4\n")], &options).unwrap();
    assert!(values.findings[0].contains("first line looks like a row"), "{values:?}");
    let twice = of("f.csv", "a,a,,b\n1,2,3,4\n");
    assert!(twice.findings[0].contains("2 columns without a name or with the name of another"));
    assert_eq!(twice.columns.len(), 1);

    let mixed = survey(&[("a.csv", "x\n1\n"), ("a.jsonl", "{}")], &SurveyOptions::default());
    let mixed = mixed.unwrap().findings;
    assert!(mixed[0].starts_with("file has another format than the first one: expected CSV"));

    let error = |name, text| survey(&[(name, text)], &SurveyOptions::default()).unwrap_err();
    assert!(error("c.csv", "").to_string().contains("file is empty"));
    assert!(error("f.xlsx", "PK").to_string().contains("file name does not tell the format"));
    assert!(Survey::of::<&str>(&[], &SurveyOptions::default()).is_err());
    assert!(Survey::of(&["/no/such/file.csv"], &SurveyOptions::default()).is_err());
}

#[test]
fn large_files_are_read_in_parts() {
    let text = |first: usize| {
        let rows = (first..first + 30_000).map(|row| format!("{row},{}\n", row % 7));
        String::from("id,c\n") + &rows.collect::<String>()
    };
    let (a, b) = (text(0), text(30_000));
    let files = [("a.csv", a.as_str()), ("b.csv", b.as_str())];
    let options = SurveyOptions { rows_max: 20_000, ..SurveyOptions::default() };
    let part = survey(&files, &options).unwrap();
    assert_eq!((part.rows, part.is_complete), (20_000, false));
    let id = &part.columns[0];
    assert_eq!((id.distinct, id.is_distinct_exact), (20_000, true));
    assert_eq!(id.numbers.unwrap().max, 39_999.0);
    let whole = survey(&files, &SurveyOptions::default()).unwrap();
    let id = &whole.columns[0];
    assert!(whole.is_complete && !id.is_distinct_exact);
    assert!((57_000..63_000).contains(&id.distinct), "{}", id.distinct);
    let exact = SurveyOptions { rows_max: 60_000, ..SurveyOptions::default() };
    assert!(survey(&files, &exact).unwrap().is_complete);
}

#[test]
fn json_lines_have_fields_of_objects() {
    let text = r#"{"user": {"id": 1, "tags": ["a", "b"]}, "x": [0.5, 1.5], "events": [{"t": 1}]}
        {"user": {"id": 2, "tags": []}, "x": [1, 2], "late": true}"#;
    let found = of("f.jsonl", text);
    let names: Vec<&str> = found.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["user.id", "user.tags", "x", "late"]);
    let kinds: Vec<&InferredKind> = found.columns.iter().map(|column| &column.kind).collect();
    assert_eq!(*kinds[1], InferredKind::Categories { separator: None });
    assert_eq!(*kinds[2], InferredKind::Numbers { separator: None });
    assert_eq!((found.columns[1].missing, found.columns[3].missing), (1, 1));
    assert_eq!(found.columns[1].longest, 2);
}
