//! Grouping of gradients into shared all-reduces, by the documented rule.

use fleet_tensor::DType;

/// A gradient to be grouped.
#[derive(Clone, Debug, PartialEq)]
pub struct Item<'a> {
    /// The parameter's name.
    pub name: &'a str,
    /// Size of the gradient in bytes.
    pub bytes: f64,
    /// Element type of the gradient. A bucket has one type.
    pub dtype: DType,
}

const MB: f64 = 1024.0 * 1024.0;

/// Groups `items`, given in the order in which they become ready, into buckets of indices.
///
/// * `memory_mb == 0`: a single bucket, sorted by name.
/// * Otherwise the parameters of a layer (the name up to its first dot) stay together, with layers
///   in order of first appearance. With `memory_mb < 0` every layer is a bucket. Otherwise whole
///   layers are added to the open bucket. It is closed once it holds more than `parameters_max`
///   parameters (if that is above 1), or `memory_mb` or more.
/// * Buckets with several element types are split by type.
///
/// ```
/// use fleet_strategy::buckets::{Item, group};
/// use fleet_tensor::DType;
/// let item = |name, mb: f64| Item { name, bytes: mb * 1048576.0, dtype: DType::F32 };
/// let items = [item("fc_1.b_0", 0.1), item("fc_1.w_0", 1.0), item("fc_0.w_0", 1.0)];
/// assert_eq!(group(&items, 1.0, 50), [vec![0, 1], vec![2]]);
/// assert_eq!(group(&items, 32.0, 50), [vec![0, 1, 2]]);
/// ```
pub fn group(items: &[Item<'_>], memory_mb: f64, parameters_max: i64) -> Vec<Vec<usize>> {
    let buckets = if memory_mb == 0.0 {
        let mut all: Vec<usize> = (0..items.len()).collect();
        all.sort_by_key(|index| items[*index].name);
        vec![all]
    } else if memory_mb < 0.0 {
        layers(items)
    } else {
        pack(items, memory_mb, parameters_max)
    };
    let split = buckets.into_iter().flat_map(|bucket| by_type(items, &bucket));
    split.filter(|bucket| !bucket.is_empty()).collect()
}

/// Groups gradients of one type into buckets of at most `count`, in order.
pub fn group_by_count(items: &[Item<'_>], count: usize) -> Vec<Vec<usize>> {
    let all: Vec<usize> = (0..items.len()).collect();
    let of_type = by_type(items, &all);
    of_type.iter().flat_map(|list| list.chunks(count.max(1)).map(<[usize]>::to_vec)).collect()
}

fn layers(items: &[Item<'_>]) -> Vec<Vec<usize>> {
    let names = items.iter().map(|item| item.name.split('.').next());
    let layers = grouped(names.zip(0..));
    layers.into_iter().map(|(_, members)| members).collect()
}

fn pack(items: &[Item<'_>], memory_mb: f64, parameters_max: i64) -> Vec<Vec<usize>> {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for layer in layers(items) {
        open.extend(layer);
        let mb = open.iter().map(|index| items[*index].bytes).sum::<f64>() / MB;
        let full = parameters_max > 1 && open.len() as i64 > parameters_max;
        if full || mb >= memory_mb {
            buckets.push(std::mem::take(&mut open));
        }
    }
    buckets.push(open);
    buckets
}

fn by_type(items: &[Item<'_>], bucket: &[usize]) -> Vec<Vec<usize>> {
    let parts = grouped(bucket.iter().map(|index| (items[*index].dtype, *index)));
    parts.into_iter().map(|(_, members)| members).collect()
}

/// Groups values by key, in the order in which the keys first occur.
pub(crate) fn grouped<K: PartialEq, T>(values: impl Iterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (key, value) in values {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}
