use super::rows::group_positions;
use super::*;
use fleet_base::rng::Sequence;
use std::collections::BTreeMap;

fn floats(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Sequence::new(seed, 1);
    (0..count).map(|_| random.normal() as f32).collect()
}

fn ids(count: usize, rows: usize, seed: u64) -> Vec<i64> {
    let mut random = Sequence::new(seed, 2);
    (0..count).map(|_| (random.below(rows as u64) * random.below(3)) as i64 % rows as i64).collect()
}

#[test]
fn lookup_copies_rows_to_their_places() {
    for (dim, count, rows) in [(1, 5, 3), (8, 100, 7), (16, 3000, 50), (19, 1030, 40), (64, 9, 2)] {
        let table = floats(rows * dim, 1);
        let ids = ids(count, rows, 2);
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            // Three columns before, groups of five adjacent rows, two columns after.
            let width = 3 + 5 * dim + 2;
            let grid = Grid { start: 3, group: 5, group_stride: width, stride: dim };
            let mut out = vec![7.0; count.div_ceil(5) * width];
            lookup(&pool, &table, dim, &ids, Some(0), grid, &mut out).unwrap();
            let mut expected = vec![7.0; out.len()];
            for (position, &id) in ids.iter().enumerate() {
                for column in 0..dim {
                    let value = if id == 0 { 0.0 } else { table[id as usize * dim + column] };
                    expected[position / 5 * width + 3 + position % 5 * dim + column] = value;
                }
            }
            assert_eq!(out, expected);
        }
    }
}

#[test]
fn a_wrong_id_is_reported_not_read() {
    let pool = Pool::new(3);
    let table = floats(10 * 4, 1);
    let mut list = ids(5000, 10, 3);
    list[4100] = 10;
    list[2077] = -1;
    list[4999] = i64::MIN;
    let mut out = vec![0.0; 5000 * 4];
    let expected = BadId { position: 2077, id: -1, rows: 10 };
    let error = lookup(&pool, &table, 4, &list, None, Grid::packed(4), &mut out).unwrap_err();
    assert_eq!(error, expected);
    let message = fleet_base::Error::from(error).to_string();
    assert_eq!(message, "id at position 2077 is out of range: expected 0 to 9, got -1");
    let mut scratch = vec![0; group_scratch_len(list.len())];
    assert_eq!(group(&pool, &list, Some(10), None, &mut scratch).unwrap_err(), expected);
    // The update checks groups that were made without a bound.
    let groups = group(&pool, &list, None, None, &mut scratch).unwrap();
    let source = Source { data: &vec![0.0; 5000 * 4], grid: Grid::packed(4) };
    let mut table = table;
    assert!(sgd_rows(&pool, &groups, &source, 4, 0.1, &mut table).is_err());
    // The padding index may be outside the table, such as -1.
    let padded = lookup(&pool, &table, 4, &[-1, 3], Some(-1), Grid::packed(4), &mut out);
    assert!(padded.is_ok() && out[..4] == [0.0; 4]);
}

fn check_group(list: &[i64], padding: Option<i64>) {
    let mut expected: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (position, &id) in list.iter().enumerate() {
        if padding != Some(id) {
            expected.entry(id as u64).or_default().push(position as u32);
        }
    }
    for threads in [1, 3] {
        let mut scratch = vec![!0; group_scratch_len(list.len())];
        let groups = group(&Pool::new(threads), list, None, padding, &mut scratch).unwrap();
        assert_eq!(groups.ids.len(), expected.len());
        assert_eq!(groups.starts.len(), expected.len() + 1);
        for (unique, (&id, positions)) in expected.iter().enumerate() {
            assert_eq!(groups.ids[unique] as u64, id);
            assert_eq!(group_positions(&groups, unique), positions);
        }
    }
}

#[test]
fn groups_are_sorted_and_stable() {
    check_group(&[], None);
    check_group(&[0], None);
    check_group(&[5; 20_000], None);
    check_group(&[5; 9], Some(5));
    check_group(&ids(53_248, 1_000_000, 1), Some(0));
    check_group(&ids(30_000, 100, 2), Some(99));
    check_group(&ids(9000, 1 << 32, 3), None);
    let wide: Vec<i64> = {
        let mut random = Sequence::new(4, 4);
        (0..20_000).map(|_| random.next_u64() as i64 >> random.below(64)).collect()
    };
    check_group(&wide, Some(-1));
}

/// Returns sums per id in f64, added by position.
fn oracle(list: &[i64], dim: usize, row: impl Fn(usize, usize) -> f64) -> BTreeMap<i64, Vec<f64>> {
    let mut sums: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for (position, &id) in list.iter().enumerate() {
        let sum = sums.entry(id).or_insert_with(|| vec![0.0; dim]);
        for (column, sum) in sum.iter_mut().enumerate() {
            *sum += row(position, column);
        }
    }
    sums
}

fn close(ours: f32, theirs: f64) -> bool {
    (f64::from(ours) - theirs).abs() <= 1e-5 * (1.0 + theirs.abs())
}

#[test]
fn merged_rows_and_updates_match_the_plain_sums() {
    for (dim, count, rows) in
        [(16, 5000, 300), (1, 40, 9), (8, 3000, 4), (70, 600, 50), (130, 77, 20)]
    {
        let list = ids(count, rows, 5);
        let stride = dim + 3;
        let data = floats(count * stride, 6);
        let grid = Grid::columns(2, stride);
        let source = Source { data: &data, grid };
        let sums = oracle(&list, dim, |i, c| f64::from(data[i * stride + 2 + c]));
        let start = floats(rows * dim, 7);
        let mut bits: Vec<Vec<f32>> = Vec::new();
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let mut scratch = vec![0; group_scratch_len(count)];
            let groups = group(&pool, &list, Some(rows), None, &mut scratch).unwrap();
            let mut merged = vec![0.0; groups.ids.len() * dim];
            merge_rows(&pool, &groups, &source, dim, &mut merged);
            let mut dense = vec![3.0; rows * dim];
            dense_gradient(&pool, &groups, &source, dim, &mut dense).unwrap();
            let (mut sgd, mut ada, mut adam) = (start.clone(), start.clone(), start.clone());
            let mut moments = [0.5, 0.1, 0.2].map(|value| vec![value; rows * dim]);
            sgd_rows(&pool, &groups, &source, dim, 0.1, &mut sgd).unwrap();
            let [moment, first, second] = &mut moments;
            adagrad_rows(&pool, &groups, &source, dim, (0.1, 1e-6), &mut ada, moment).unwrap();
            let numbers = AdamRows { lr: 0.01, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
            adam_rows(&pool, &groups, &source, dim, numbers, &mut adam, first, second).unwrap();
            for (unique, (&id, sum)) in sums.iter().enumerate() {
                assert_eq!(groups.ids[unique], id);
                for (column, &sum) in sum.iter().enumerate() {
                    let at = id as usize * dim + column;
                    let old = f64::from(start[at]);
                    assert!(close(merged[unique * dim + column], sum));
                    // Squaring would magnify the rounding error of the sum.
                    let sum = f64::from(merged[unique * dim + column]);
                    assert!(close(dense[at], sum));
                    assert!(close(sgd[at], old - 0.1 * sum));
                    let moment = 0.5 + sum * sum;
                    assert!(close(moments[0][at], moment));
                    assert!(close(ada[at], old - 0.1 * sum / (moment.sqrt() + 1e-6)));
                    let m = 0.9 * 0.1 + 0.1 * sum;
                    let v = 0.99 * 0.2 + 0.01 * sum * sum;
                    assert!(close(adam[at], old - 0.01 * m / (v.sqrt() + 1e-8)));
                }
            }
            for id in (0..rows).filter(|&id| !sums.contains_key(&(id as i64))) {
                let row = id * dim..(id + 1) * dim;
                assert!(dense[row.clone()].iter().all(|&v| v == 0.0));
                assert_eq!(&sgd[row.clone()], &start[row.clone()]);
                assert_eq!(&ada[row.clone()], &start[row.clone()]);
                assert_eq!(&adam[row.clone()], &start[row]);
            }
            bits.push([merged, dense, sgd, ada, adam].concat());
        }
        assert!(bits[0].iter().zip(&bits[1]).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}
