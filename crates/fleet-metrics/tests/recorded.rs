//! Comparison with values of scikit-learn for the same predictions (`tests/oracle/metrics.py`),
//! counted by three workers and merged.

use fleet_base::Result;
use fleet_metrics::{Accumulator, Auc, Classification, Confusion, GroupAuc, Regression};

const COUNT: usize = 240;

/// The data of the script: scores, labels that correlate with them, and the random draws of the
/// labels.
struct Data {
    scores: Vec<f32>,
    labels: Vec<f32>,
    draws: Vec<f64>,
}

fn data() -> Data {
    let score = |at: usize| ((at * 7919 % 1009 + 1) as f64 / 1011.0) as f32;
    let scores: Vec<f32> = (0..COUNT).map(score).collect();
    let draws: Vec<f64> = (0..COUNT).map(|at| (at * 104_729 % 997) as f64 / 997.0).collect();
    let label = |(score, draw): (&f32, &f64)| f32::from(*draw < 0.15 + 0.6 * f64::from(*score));
    let labels = scores.iter().zip(&draws).map(label).collect();
    Data { scores, labels, draws }
}

/// Sample ranges of the three workers.
const PARTS: [std::ops::Range<usize>; 3] = [0..50, 50..51, 51..COUNT];

/// Returns the merged counts of the three workers.
fn counted<A: Accumulator>(
    new: impl Fn() -> A,
    add: impl Fn(&mut A, std::ops::Range<usize>) -> Result<()>,
) -> A {
    let mut all = new();
    for part in PARTS {
        let mut one = new();
        add(&mut one, part).unwrap();
        all.merge(&one).unwrap();
    }
    all
}

fn near(pairs: &[(f64, f64)]) {
    for (place, (value, recorded)) in pairs.iter().enumerate() {
        assert!((value - recorded).abs() < 1e-9, "number {place}: {value} for {recorded}");
    }
}

#[test]
fn scores_of_clicks() {
    let Data { scores, labels, .. } = data();
    let auc = counted(
        || Auc::new(4095).unwrap(),
        |auc, part| auc.add(&scores[part.clone()], &labels[part]),
    );
    assert_eq!((auc.positives(), auc.total()), (114.0, 240.0));
    near(&[
        (auc.value(), 0.6888053467000835),
        (auc.log_loss(), 0.7368147453273886),
        (auc.calibration(), 1.0535079042780573),
        (auc.mae(), 0.40571628885760824),
        (auc.rmse(), 0.4892701258324206),
    ]);
    let taken = counted(
        || Classification::new(0.5).unwrap(),
        |taken, part| taken.add(&scores[part.clone()], &labels[part]),
    );
    near(&[
        (taken.precision(), 0.6198347107438017),
        (taken.recall(), 0.6578947368421053),
        (taken.f1(), 0.6382978723404256),
        (taken.accuracy(), 0.6458333333333334),
    ]);
}

#[test]
fn areas_by_user() {
    let Data { scores, labels, .. } = data();
    let users: Vec<u64> = (0..COUNT as u64).map(|at| at * 31 % 7).collect();
    let mut all = GroupAuc::default();
    for part in PARTS {
        let mut one = GroupAuc::default();
        one.add(&users[part.clone()], &scores[part.clone()], &labels[part]).unwrap();
        all.merge(&one).unwrap();
    }
    near(&[(all.value(), 0.6901222981882812)]);
}

#[test]
fn classes() {
    let guesses: Vec<i64> = (0..COUNT as i64).map(|at| at * 13 % 5).collect();
    let truth = |(at, draw): (usize, &f64)| {
        if *draw < 0.5 { guesses[at] } else { at as i64 * 17 % 5 }
    };
    let truths: Vec<i64> = data().draws.iter().enumerate().map(truth).collect();
    let matrix = counted(
        || Confusion::new(5).unwrap(),
        |matrix, part| matrix.add(&guesses[part.clone()], &truths[part]),
    );
    let recorded = [
        [48.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 25.0, 0.0, 0.0, 24.0],
        [0.0, 0.0, 26.0, 22.0, 0.0],
        [0.0, 0.0, 22.0, 26.0, 0.0],
        [0.0, 23.0, 0.0, 0.0, 24.0],
    ];
    let count = |label| [0, 1, 2, 3, 4].map(|guess| matrix.count(label, guess));
    assert_eq!([0, 1, 2, 3, 4].map(count), recorded);
    near(&[(matrix.accuracy(), 0.6208333333333333), (matrix.macro_f1(), 0.6208120817507685)]);
    let precisions = [1.0, 0.5208333333333334, 0.5416666666666666, 0.5416666666666666, 0.5];
    let recalls =
        [1.0, 0.5102040816326531, 0.5416666666666666, 0.5416666666666666, 0.51063829787234];
    for class in 0..5 {
        near(&[
            (matrix.precision(class), precisions[class]),
            (matrix.recall(class), recalls[class]),
        ]);
    }
}

#[test]
fn numbers() {
    let scores = data().scores;
    let targets: Vec<f32> = (0..COUNT).map(|at| ((at * 53 % 89) as f64 / 89.0) as f32).collect();
    let fit =
        counted(Regression::default, |fit, part| fit.add(&scores[part.clone()], &targets[part]));
    near(&[
        (fit.mae(), 0.3247156284172282),
        (fit.mse(), 0.15796772710189028),
        (fit.r2(), -0.8908940294542758),
    ]);
}
