//! Compares all collectives, types and operations with a naive reference, on one to nine ranks.

use crate::common::{each_rank, each_rank_on, each_rank_over_tcp, ok};
use fleet_base::Result;
use fleet_comm::{
    Algorithm, Bytes, Fused, Group, GroupOptions, Hierarchy, InPlace, ReduceOp, Rings,
};
use fleet_tensor::{Element, bf16, f16};

/// Small slots, so that little data takes many chunks.
fn options() -> GroupOptions {
    GroupOptions {
        slot_bytes: Some(64 << 10),
        small_bytes_max: Some(1 << 10),
        ..Default::default()
    }
}

/// Numbers of elements: none, one, odd, a small call, and several chunks with an odd rest.
const LENGTHS: [usize; 5] = [0, 1, 77, 256, 40_003];

/// A number type of the tests. Values are small integers, so that sums are exact.
trait Number: Element {
    fn of(value: i64) -> Self;
    fn value(self) -> f64;
}

macro_rules! numbers {
    ($($ty:ty: |$v:ident| $of:expr, |$x:ident| $value:expr;)*) => {$(
        impl Number for $ty {
            fn of($v: i64) -> Self { $of }
            fn value(self) -> f64 { let $x = self; $value }
        }
    )*};
}
numbers! {
    f32: |v| v as f32, |x| f64::from(x);
    f64: |v| v as f64, |x| x;
    f16: |v| f16::from_f64(v as f64), |x| x.to_f64();
    bf16: |v| bf16::from_f64(v as f64), |x| x.to_f64();
    i32: |v| v as i32, |x| f64::from(x);
    i64: |v| v, |x| x as f64;
    u8: |v| v as u8, |x| f64::from(x);
}

/// The value of rank `rank` at index `i`: 1 to 3.
fn value(rank: usize, i: usize) -> i64 {
    1 + ((rank * 7 + i * 3 + i / 11) % 3) as i64
}

fn own<T: Number>(rank: usize, length: usize) -> Vec<T> {
    (0..length).map(|i| T::of(value(rank, i))).collect()
}

/// The reduction in rank order, in the type.
fn reduced<T: Number>(op: ReduceOp, ranks: usize, i: usize) -> T {
    let values = (0..ranks).map(|rank| value(rank, i));
    let exact = match op {
        ReduceOp::Sum => values.sum::<i64>(),
        ReduceOp::Max => values.max().unwrap_or(0),
        ReduceOp::Min => values.min().unwrap_or(0),
        ReduceOp::Prod => values.product(),
        ReduceOp::Avg => {
            let sum = values.sum::<i64>();
            if !T::DTYPE.is_float() {
                return T::of(sum / ranks as i64);
            }
            return round(sum as f64 / ranks as f64, sum as f32 / ranks as f32);
        }
    };
    if T::DTYPE == fleet_tensor::DType::U8 { T::of(i64::from(exact as u8)) } else { T::of(exact) }
}

/// f64 divides in f64; the other types divide in f32 and are rounded once.
fn round<T: Number>(wide: f64, narrow: f32) -> T {
    let bytes = match T::DTYPE {
        fleet_tensor::DType::F64 => wide.to_ne_bytes().to_vec(),
        fleet_tensor::DType::F32 => narrow.to_ne_bytes().to_vec(),
        fleet_tensor::DType::F16 => f16::from_f32(narrow).to_ne_bytes().to_vec(),
        _ => bf16::from_f32(narrow).to_ne_bytes().to_vec(),
    };
    // SAFETY: the bytes are those of the type.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

fn expect<T: Number>(what: &str, got: &[T], expected: impl Fn(usize) -> T) {
    for (i, got) in got.iter().enumerate() {
        let expected = expected(i);
        assert!(
            *got == expected,
            "{what}: element {i} is {} and not {}",
            got.value(),
            expected.value()
        );
    }
}

fn check_type<T: Number>(group: &Group) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    for length in LENGTHS {
        for op in ReduceOp::ALL {
            let what = format!("{} {op} {length} of {size}", T::DTYPE);
            let sum = |i: usize| reduced::<T>(op, size, i);
            let mut data = own::<T>(rank, length);
            group.all_reduce("a", &mut data, op)?;
            expect(&format!("all_reduce {what}"), &data, sum);

            let root = length % size;
            let mut data = own::<T>(rank, length);
            group.reduce("b", &mut data, op, root)?;
            let kept = own::<T>(rank, length);
            let after = |i: usize| if rank == root { sum(i) } else { kept[i] };
            expect(&format!("reduce {what}"), &data, after);

            let wide = own::<T>(rank, length * size);
            let mut block = vec![T::default(); length];
            group.reduce_scatter("c", &wide, &mut block, op)?;
            expect(&format!("reduce_scatter {what}"), &block, |i| sum(rank * length + i));
        }
    }
    Ok(())
}

#[test]
fn reductions_of_all_types() {
    for ranks in 1..=9 {
        ok(each_rank(ranks, &options(), |group, _| all_types(group)));
    }
}

/// All checks in this file that work on any single group.
#[cfg(target_os = "linux")]
pub fn all_of(group: &Group) -> Result<()> {
    all_types(group)?;
    check_all_reduce::<f32>(group)?;
    check_all_reduce::<i64>(group)?;
    [0, 1, 77, 20_011].iter().try_for_each(|length| check_moves(group, *length))
}

fn all_types(group: &Group) -> Result<()> {
    check_type::<f32>(group)?;
    check_type::<f64>(group)?;
    check_type::<f16>(group)?;
    check_type::<bf16>(group)?;
    check_type::<i32>(group)?;
    check_type::<i64>(group)?;
    check_type::<u8>(group)
}

#[test]
fn reductions_over_a_mesh() {
    for ranks in 1..=9 {
        let options = GroupOptions { shared_memory: false, ..options() };
        ok(each_rank(ranks, &options, |group, _| all_types(group)));
    }
}

/// Several rounds of the direct algorithm, on one host and on several.
#[test]
fn rounds_over_a_mesh() {
    const LENGTH: usize = 2_300_001;
    for hosts in [&["one", "one"][..], &["one", "one", "one"], &["one", "two", "three"]] {
        let algorithm = Algorithm::Direct;
        let options = GroupOptions { shared_memory: false, algorithm, ..options() };
        let ranks = hosts.len() as i64;
        ok(each_rank_on(hosts, &options, |group, _| {
            let own = group.rank() as i64;
            let value = |i: usize, rank: i64| (i % 8_191) as i64 * (rank + 1) - 3;
            let sum = |i: usize| (0..ranks).map(|rank| value(i, rank)).sum::<i64>();
            let mut data: Vec<i64> = (0..LENGTH).map(|i| value(i, own)).collect();
            group.all_reduce("whole", &mut data, ReduceOp::Sum)?;
            assert!(data.iter().enumerate().all(|(i, x)| *x == sum(i)));
            let small = |i: usize, rank: i64| (i % 31) as f32 + rank as f32;
            let total = |i: usize| (0..ranks).map(|rank| small(i, rank)).sum::<f32>();
            let mut data: Vec<bf16> = (0..LENGTH).map(|i| bf16::from_f32(small(i, own))).collect();
            group.all_reduce("half", &mut data, ReduceOp::Sum)?;
            assert!(data.iter().enumerate().all(|(i, x)| *x == bf16::from_f32(total(i))));
            Ok(())
        }));
    }
}

#[test]
fn every_algorithm_over_a_mesh() {
    for algorithm in Algorithm::ALL {
        for ranks in 2..=9 {
            let options = GroupOptions { shared_memory: false, algorithm, ..options() };
            let all = ok(each_rank(ranks, &options, |group, _| {
                check_all_reduce::<f32>(group)?;
                check_all_reduce::<bf16>(group)?;
                check_all_reduce::<i64>(group)?;
                check_all_reduce::<u8>(group)?;
                // These sums depend on the order, so equal bits prove the same order on all ranks.
                let mut data: Vec<f32> = (0..5_001)
                    .map(|i| (i as f32 * 0.37).sin() / (group.rank() + 1) as f32)
                    .collect();
                group.all_reduce("bits", &mut data, ReduceOp::Sum)?;
                Ok(data.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            }));
            assert!(all.iter().all(|bits| *bits == all[0]), "{algorithm:?} of {ranks}");
        }
    }
}

fn check_all_reduce<T: Number>(group: &Group) -> Result<()> {
    for length in LENGTHS {
        for op in ReduceOp::ALL {
            let mut data = own::<T>(group.rank(), length);
            group.all_reduce("a", &mut data, op)?;
            expect("all_reduce", &data, |i| reduced::<T>(op, group.size(), i));
        }
    }
    let lengths = [3, 0, 2_000, 1, 700];
    let mut buffers: Vec<Vec<T>> = lengths.iter().map(|n| own(group.rank(), *n)).collect();
    let mut slices: Vec<&mut [T]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    group.all_reduce("bucket", Fused(&mut slices), ReduceOp::Sum)?;
    for buffer in &buffers {
        expect("fused", buffer, |i| reduced(ReduceOp::Sum, group.size(), i));
    }
    Ok(())
}

/// On a transport with message boundaries: buckets of several buffers under every algorithm,
/// reductions, moves.
#[test]
fn everything_over_tcp() {
    for algorithm in Algorithm::ALL {
        for ranks in [2, 3, 5] {
            let options = GroupOptions { algorithm, ..options() };
            ok(each_rank_over_tcp(ranks, &options, |group, _| {
                check_fused::<f32>(group, 1)?;
                check_fused::<bf16>(group, 1)?;
                check_fused::<i64>(group, 100)?;
                check_moves(group, 777)
            }));
        }
    }
}

/// Buckets whose buffers are split by the slices of ranks, reduced to all ranks and to one.
fn check_fused<T: Number>(group: &Group, scale: usize) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    for root in [None, Some(size - 1)] {
        let lengths = [3, 0, 2_000, 1, 700].map(|length| length * scale);
        let mut buffers: Vec<Vec<T>> = lengths.iter().map(|n| own(rank, *n)).collect();
        let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(|it| bytes_of(it)).collect();
        match root {
            None => group.all_reduce("bucket", Bytes(T::DTYPE, &mut slices[..]), ReduceOp::Sum)?,
            Some(root) => {
                group.reduce("one", Bytes(T::DTYPE, &mut slices[..]), ReduceOp::Sum, root)?;
            }
        }
        for buffer in &buffers {
            let kept = own::<T>(rank, buffer.len());
            expect("fused", buffer, |i| match root.is_none_or(|root| root == rank) {
                true => reduced(ReduceOp::Sum, size, i),
                false => kept[i],
            });
        }
    }
    check_told::<T>(group, scale, None)?;
    (0..group.size()).try_for_each(|root| check_told::<T>(group, scale, Some(root)))
}

/// Results that are passed to a callback instead of written back: each element once, in any order,
/// on all ranks or on the root.
fn check_told<T: Number>(group: &Group, scale: usize, root: Option<usize>) -> Result<()> {
    let lengths = [700, 1, 0, 2_000, 3].map(|length| length * scale);
    let mut buffers: Vec<Vec<T>> = lengths.iter().map(|n| own(group.rank(), *n)).collect();
    let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(|it| bytes_of(it)).collect();
    let mut told: Vec<Vec<T>> = lengths.iter().map(|n| vec![T::of(0); *n]).collect();
    let mut places: Vec<&mut [u8]> = told.iter_mut().map(|it| bytes_of(it)).collect();
    let mut bytes = 0;
    let mut tell = |at: usize, start: usize, values: &[u8]| {
        bytes += values.len();
        places[at][start..start + values.len()].copy_from_slice(values);
    };
    let data = Bytes(T::DTYPE, &mut slices[..]);
    match root {
        None => group.all_reduce_then("told", data, ReduceOp::Sum, &mut tell)?,
        Some(root) => group.reduce_then("told", data, ReduceOp::Sum, root, &mut tell)?,
    }
    if root.is_some_and(|root| root != group.rank()) {
        assert_eq!(bytes, 0);
        return Ok(());
    }
    assert_eq!(bytes, lengths.iter().sum::<usize>() * size_of::<T>());
    told.iter().for_each(|it| expect("told", it, |i| reduced(ReduceOp::Sum, group.size(), i)));
    Ok(())
}

fn bytes_of<T: Number>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: any number may be viewed as bytes.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

#[test]
fn two_levels() {
    let cases: [(&[&str], Hierarchy); 5] = [
        (&["a", "a", "b", "b"], Hierarchy::Auto),
        (&["a", "b", "a", "c", "b", "a", "a"], Hierarchy::Auto),
        (&["a", "a", "b"], Hierarchy::Never),
        (&["a", "a", "a", "a", "a", "a"], Hierarchy::Ranks(2)),
        (&["a", "a", "b", "b", "b"], Hierarchy::Ranks(3)),
    ];
    for (hosts, hierarchy) in cases {
        let options = GroupOptions { hierarchy, ..options() };
        ok(each_rank_on(hosts, &options, |group, _| {
            check_all_reduce::<f32>(group)?;
            check_all_reduce::<f16>(group)?;
            check_all_reduce::<i32>(group)?;
            check_moves(group, 777)
        }));
    }
}

#[test]
fn moves_over_a_mesh() {
    for ranks in 1..=9 {
        let options = GroupOptions { shared_memory: false, ..options() };
        ok(each_rank(ranks, &options, |group, _| {
            [0, 1, 77, 5_003, 20_011].iter().try_for_each(|length| check_moves(group, *length))
        }));
    }
}

fn check_moves(group: &Group, length: usize) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    let root = (length + 1) % size;
    let mut data = own::<f32>(rank, length);
    group.broadcast("a", &mut data, root)?;
    expect("broadcast", &data, |i| f32::of(value(root, i)));

    let mut all = vec![0i64; length * size];
    group.all_gather("b", &own::<i64>(rank, length), &mut all)?;
    expect("all_gather", &all, |i| value(i / length, i % length));
    let mut all = vec![0i64; length * size];
    all[rank * length..][..length].copy_from_slice(&own::<i64>(rank, length));
    group.all_gather("b", InPlace, &mut all)?;
    expect("all_gather in place", &all, |i| value(i / length, i % length));

    let counts: Vec<usize> = (0..size).map(|rank| length * (rank % 3)).collect();
    let mut all = vec![0u8; counts.iter().sum()];
    group.all_gather_v("c", &own::<u8>(rank, counts[rank]), &mut all, &counts)?;
    let joined: Vec<u8> = (0..size).flat_map(|rank| own::<u8>(rank, counts[rank])).collect();
    assert!(all == joined, "all_gather_v");

    let wide = own::<i32>(root, length * size);
    let mut block = vec![0; length];
    let input = if rank == root { &wide[..] } else { &[] };
    group.scatter("d", input, &mut block, root)?;
    assert!(block == wide[rank * length..][..length], "scatter");
    let mut all = vec![0; if rank == root { length * size } else { 0 }];
    group.gather("e", &block, &mut all, root)?;
    assert!(rank != root || all == wide, "gather");

    let wide = own::<f32>(rank, length * size);
    let mut swapped = vec![0.0; length * size];
    group.all_to_all("f", &wide, &mut swapped)?;
    expect("all_to_all", &swapped, |i| f32::of(value(i / length, rank * length + i % length)));

    // Rank a sends a * b + length elements to rank b.
    let count = |a: usize, b: usize| a * b + length;
    let sends: Vec<usize> = (0..size).map(|peer| count(rank, peer)).collect();
    let receives: Vec<usize> = (0..size).map(|peer| count(peer, rank)).collect();
    let input: Vec<i64> =
        (0..size).flat_map(|peer| vec![(rank * 100 + peer) as i64; sends[peer]]).collect();
    let mut output = vec![0; receives.iter().sum()];
    group.all_to_all_v("g", &input, &sends, &mut output, &receives)?;
    let expected: Vec<i64> =
        (0..size).flat_map(|peer| vec![(peer * 100 + rank) as i64; receives[peer]]).collect();
    assert!(output == expected, "all_to_all_v");

    let wide = own::<f32>(rank, length * size);
    let mut data = wide.clone();
    group.reduce_scatter("h", InPlace, &mut data, ReduceOp::Sum)?;
    expect("reduce_scatter in place", &data, |i| match i / length == rank {
        true => reduced::<f32>(ReduceOp::Sum, size, i),
        false => wide[i],
    });

    // Around a ring, even ranks first.
    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut got = vec![0.0f64; length];
    if size > 1 {
        for turn in 0..2 {
            if rank % 2 == turn {
                group.send("i", &own::<f64>(rank, length), next)?;
            }
            // If the number of ranks is odd, the last rank and the first both send first. The areas
            // can hold both messages.
            if last % 2 == turn {
                group.recv("i", &mut got, last)?;
            }
        }
        expect("send and recv", &got, |i| f64::of(value(last, i)));
    }
    group.barrier("j")
}

#[test]
fn moves_of_all_lengths() {
    for ranks in 1..=9 {
        ok(each_rank(ranks, &options(), |group, _| {
            [0, 1, 77, 5_003, 20_011].iter().try_for_each(|length| check_moves(group, *length))
        }));
    }
}

/// Sums that depend on the order equal rank 0 + rank 1 + ..., in every form of the call.
#[test]
fn sums_are_in_the_order_of_ranks() {
    let number =
        |rank: usize, i: usize| ((i * 31 + rank * 17) % 101) as f32 * 0.1f32.powi(rank as i32);
    for length in [10, 40_003] {
        let all = ok(each_rank(5, &options(), |group, _| {
            let mut data: Vec<f32> = (0..length).map(|i| number(group.rank(), i)).collect();
            group.all_reduce("sum", &mut data, ReduceOp::Sum).map(|()| data)
        }));
        for i in 0..length {
            let expected = (1..5).fold(number(0, i), |sum, rank| sum + number(rank, i));
            for rank in 0..5 {
                assert_eq!(
                    all[rank][i].to_bits(),
                    expected.to_bits(),
                    "element {i} on rank {rank}"
                );
            }
        }
    }
}

#[test]
fn many_buffers_are_one_operation() {
    let lengths = [3, 0, 20_000, 1, 700, 33_001];
    for scale in [1, 100] {
        ok(each_rank(3, &options(), |group, _| {
            let mut buffers: Vec<Vec<f32>> =
                lengths.iter().map(|length| own(group.rank(), length / scale)).collect();
            let mut slices: Vec<&mut [f32]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            group.all_reduce("bucket", Fused(&mut slices), ReduceOp::Sum)?;
            for buffer in &buffers {
                expect("fused", buffer, |i| reduced(ReduceOp::Sum, 3, i));
            }
            let mut slices: Vec<&mut [f32]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            slices[2].fill(group.rank() as f32);
            group.broadcast("bucket", Fused(&mut slices), 1)?;
            assert!(buffers[2].iter().all(|x| *x == 1.0));
            Ok(())
        }));
    }
}

#[test]
fn groups_side_by_side_and_split() {
    ok(each_rank(6, &options(), |group, world| {
        let rank = group.rank();
        let rings = [
            world.group("ring 1", &[0, 1, 2, 3, 4, 5], &options())?,
            world.group("ring 2", &[5, 4, 3, 2, 1, 0], &options())?,
        ];
        // Each rank uses a different order: groups do not wait for each other.
        let handles: Vec<_> = [rank % 2, 1 - rank % 2]
            .iter()
            .map(|ring| rings[*ring].all_reduce_start("x", vec![rank as i64 + 1; 9], ReduceOp::Sum))
            .collect::<Result<_>>()?;
        for handle in handles {
            assert_eq!(handle.wait()?, [21; 9]);
        }
        assert_eq!(rings[1].rank(), 5 - rank);

        let part = group.split((rank != 3).then_some(rank as u32 % 2), -(rank as i32))?;
        let Some(part) = part else {
            assert_eq!(rank, 3);
            return Ok(());
        };
        let expected: &[usize] = if rank % 2 == 0 { &[4, 2, 0] } else { &[5, 1] };
        assert_eq!(part.ranks(), expected);
        let mut data = [rank as i32];
        part.all_reduce("y", &mut data, ReduceOp::Sum)?;
        assert_eq!(data[0], 6);
        Ok(())
    }));
}

#[test]
fn calls_in_the_background_keep_their_order() {
    ok(each_rank(3, &options(), |group, _| {
        let handles: Vec<_> = (0..50)
            .map(|i| group.all_reduce_start(&format!("g{i}"), vec![i; 100], ReduceOp::Sum))
            .collect::<Result<_>>()?;
        // The barrier comes after all of them.
        group.barrier("end")?;
        for (i, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.wait()?, vec![3 * i as i32; 100]);
        }
        Ok(())
    }));
}

/// Standard groups of a job: on each of two hosts, across them, and by number.
#[test]
fn rings_of_a_topology() {
    ok(each_rank_on(&["a", "b", "a", "b", "b"], &options(), |group, world| {
        let rank = group.rank();
        assert_eq!(world.hosts(), [vec![0, 2], vec![1, 3, 4]]);
        let rings = Rings::new(world, &options());
        let host = rings.host()?;
        let expected: &[usize] = if rank % 2 == 0 && rank < 4 { &[0, 2] } else { &[1, 3, 4] };
        assert_eq!(host.ranks(), expected);
        let mut sum = [rank as i32];
        host.all_reduce("host", &mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [expected.iter().sum::<usize>() as i32]);
        let leaders = rings.leaders()?;
        assert_eq!(leaders.as_ref().map(|it| it.ranks()), (rank < 2).then_some(&[0, 1][..]));
        if let Some(leaders) = leaders {
            leaders.barrier("leaders")?;
        }
        let side = rings.parallel(7, &[0, 1, 2, 3, 4], 3)?;
        let again = rings.parallel(8, &[0, 1, 2, 3, 4], 2)?;
        assert_eq!(side[1].name(), again[0].name());
        let handles: Vec<_> = side
            .iter()
            .map(|ring| ring.all_reduce_start("x", vec![1i64; 5], ReduceOp::Sum))
            .collect::<Result<_>>()?;
        for handle in handles {
            assert_eq!(handle.wait()?, [5; 5]);
        }
        let wrong = rings.ring(8, &[0, 1]).map(|_| ()).unwrap_err();
        assert!(wrong.to_string().contains("'ring 8' was opened with other members"), "{wrong}");
        let twice = world.group("world", &[rank], &options()).map(|_| ()).unwrap_err();
        assert!(twice.to_string().contains("duplicate group name 'world'"), "{twice}");
        assert!(rings.parallel(0, &[0], 0).is_err());
        rings.all()?.barrier("end")
    }));
}
