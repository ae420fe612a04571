//! `fleet predict --keep`: columns of the data beside the scores.

use super::*;

#[test]
fn columns_are_kept_beside_the_scores() {
    let place = binary_job("keep", SHORT);
    place.run("fleet job train job.toml");
    // Two files whose columns have another order, and more rows than a block.
    let more = "y,kind,z,user,tags,city,height,age,note\n\
        no,a,1,u1,t1|x,city 1,1.70,40.0,\"a, \"\"b\"\"\"\nno,a,1,,,?,,,\n";
    let first = rows(5, 5000).replace(",kind\n", ",kind,note\n").replace(",a\n", ",a,é\n");
    let first = first.replace(",b\n", ",b,x\n").replace(",c\n", ",c,x\n");
    fs::write(place.0.join("new-1.csv"), &first).unwrap();
    fs::write(place.0.join("new-2.csv"), more).unwrap();
    place.run("fleet predict model --data new-*.csv --out plain.csv");
    place.run("fleet predict model --data new-*.csv --keep note tags city --out kept.csv");
    let (plain, kept) = (place.read("plain.csv"), place.read("kept.csv"));
    assert!(kept.starts_with("note,tags,city,score\n"), "{}", &kept[..100]);
    assert_eq!(kept.lines().count(), 5003);
    let fields = first.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let expected = fields.map(|it| format!("{},{},{}", it[8], it[3], it[2]));
    let expected: Vec<String> = expected
        .chain(["\"a, \"\"b\"\"\",t1|x,city 1".to_string(), ",,?".to_string()])
        .zip(plain.lines().skip(1))
        .map(|(columns, score)| format!("{columns},{score}"))
        .collect();
    assert_eq!(kept.lines().skip(1).collect::<Vec<_>>(), expected);
    // The same as Parquet, which is read back.
    place.run("fleet predict model --data new-*.csv --keep note city user --out kept.parquet");
    let said = place.run("fleet data show kept.parquet");
    assert!(said.contains("4 columns, 5002 rows"), "{said}");

    for (keep, expected) in [
        ("nite", "did you mean 'note'"),
        ("note note", "the output would have two columns 'note'"),
        ("score", "the output would have two columns 'score'"),
    ] {
        let line = format!("fleet predict model --data new-*.csv --out x.csv --keep {keep}");
        let said = place.fail(&line);
        assert!(said.contains(expected), "{said}");
        assert!(!place.0.join("x.csv").exists());
    }
}
