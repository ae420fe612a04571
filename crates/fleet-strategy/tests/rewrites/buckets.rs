//! Buckets: the documented rule, compared with recorded groupings.

use fleet_strategy::buckets::{Item, group, group_by_count};
use fleet_tensor::DType;

/// Gradients of a small network, with numbers of f32 elements.
const TINY: [(&str, f64); 5] = [
    ("fc_0.w_0", 262144.0),
    ("fc_0.b_0", 1024.0),
    ("fc_1.w_0", 262144.0),
    ("emb", 10.0),
    ("fc_2.w_0", 1000.0),
];

fn check(memory_mb: f64, parameters_max: i64, expected: &[&[&str]]) {
    let item = |(name, elements): (&'static str, f64)| Item {
        name,
        bytes: 4.0 * elements,
        dtype: DType::F32,
    };
    let items = TINY.map(item);
    let found: Vec<Vec<&str>> = group(&items, memory_mb, parameters_max)
        .iter()
        .map(|bucket| bucket.iter().map(|index| TINY[*index].0).collect())
        .collect();
    assert_eq!(found, expected, "{memory_mb} MB, {parameters_max} parameters");
}

#[test]
fn recorded_groupings() {
    check(1.0, 1, &[&["fc_0.w_0", "fc_0.b_0"], &["fc_1.w_0"], &["emb", "fc_2.w_0"]]);
    check(2.0, 1, &[&["fc_0.w_0", "fc_0.b_0", "fc_1.w_0"], &["emb", "fc_2.w_0"]]);
    check(100.0, 2, &[&["fc_0.w_0", "fc_0.b_0", "fc_1.w_0"], &["emb", "fc_2.w_0"]]);
    check(100.0, 50, &[&["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "emb", "fc_2.w_0"]]);
    check(-1.0, 1, &[&["fc_0.w_0", "fc_0.b_0"], &["fc_1.w_0"], &["emb"], &["fc_2.w_0"]]);
    check(0.0, 1, &[&["emb", "fc_0.b_0", "fc_0.w_0", "fc_1.w_0", "fc_2.w_0"]]);
}

#[test]
fn types_do_not_mix() {
    let item = |name, dtype| Item { name, bytes: 8.0, dtype };
    let items = [
        item("a.w_0", DType::F16),
        item("a.b_0", DType::F32),
        item("b.w_0", DType::F16),
        item("b.b_0", DType::F32),
    ];
    assert_eq!(group(&items, 32.0, 50), [vec![0, 2], vec![1, 3]]);
    assert_eq!(group_by_count(&items, 8), [vec![0, 2], vec![1, 3]]);
    assert_eq!(group_by_count(&items, 1).len(), 4);
    assert!(group(&[], 32.0, 50).is_empty());
}
