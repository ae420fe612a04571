//! Building the graph, by several threads.
//!
//! Nodes are inserted in rounds. The nodes of a round search the graph as it was before the round,
//! and compare themselves with the nodes of the round before them, so that they find what they
//! would find if they were inserted one after the other. Then each node that is linked gets its new
//! links. Threads divide the searches and the links of a round, and the graph is the same for any
//! number of them.

use super::{Index, LINKS, Layer, Near, Seen, empty_layers, search};
use crate::vectors::{Vectors, product};
use fleet_base::rng::Sequence;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

/// Nodes that an insertion compares for its links: more make a better graph, more slowly.
const CANDIDATES: usize = 128;
/// Nodes of a round: each is compared with half of them, which costs a tenth of its search in a
/// graph of a million nodes. A round has at most as many nodes as the graph before it.
const ROUND_MAX: usize = 512;
/// Seed of the order of the items.
const SEED: u64 = 0x686e_7377;

/// Builds the graph.
pub fn build(vectors: &Vectors, threads: usize) -> Index {
    let (items, starts) = nodes_of(vectors);
    let (layers, sum) = (empty_layers(starts.len() - 1), vectors.sum());
    let mut index = Index { items, starts, layers, sum };
    let space = Space::new(&index, vectors);
    let mut seen: Vec<Seen> = (0..threads.max(1)).map(|_| Seen::default()).collect();
    let (mut first, nodes) = (1, index.nodes());
    while first < nodes {
        let end = (first + first.min(ROUND_MAX)).min(nodes);
        let of_node = |at: usize, seen: &mut Seen| {
            links_of(&index.layers, (first + at) as u32, first as u32, &space, seen)
        };
        let found = in_parallel(end - first, &mut seen, of_node);
        let links = add(&mut index.layers, first, found);
        let groups: Vec<&[Link]> =
            links.chunk_by(|a, b| (a.layer, a.from) == (b.layer, b.from)).collect();
        let layers = &index.layers;
        let of_group =
            |at: usize, _: &mut Seen| linked(&layers[groups[at][0].layer], groups[at], &space);
        let all = in_parallel(groups.len(), &mut seen, of_group);
        for (group, near) in groups.iter().zip(all) {
            index.layers[group[0].layer].set(group[0].from, &near);
        }
        first = end;
    }
    index
}

/// A new link of a node.
struct Link {
    layer: usize,
    from: u32,
    to: Near,
}

/// Calls a function for each index below `count`, in threads that each have a state, and returns
/// the results in order.
fn in_parallel<S: Send, T: Send>(
    count: usize,
    states: &mut [S],
    call: impl Fn(usize, &mut S) -> T + Sync,
) -> Vec<T> {
    let threads = states.len().min(count / SHARE_MIN).max(1);
    let share = count.div_ceil(threads);
    let work = |thread: usize, state: &mut S| -> Vec<T> {
        let range = (thread * share).min(count)..((thread + 1) * share).min(count);
        range.map(|at| call(at, state)).collect()
    };
    let (own, others) = states.split_at_mut(1);
    std::thread::scope(|scope| {
        let work = &work;
        let others = others.iter_mut().take(threads - 1).enumerate();
        let running: Vec<_> =
            others.map(|(at, state)| scope.spawn(move || work(at + 1, state))).collect();
        let mut all = work(0, &mut own[0]);
        for thread in running {
            match thread.join() {
                Ok(part) => all.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

/// Nodes for which a further thread is worth its start: some 10 microseconds each.
const SHARE_MIN: usize = 16;

/// Returns the links of a new node in each of its layers, the layer of all nodes last. `first` is
/// the first node of its round.
fn links_of(
    layers: &[Layer],
    node: u32,
    first: u32,
    space: &Space<'_>,
    seen: &mut Seen,
) -> Vec<Vec<Near>> {
    let near_of = |other: u32| Near { distance: space.distance(node, other), node: other };
    let distance = |other: u32| space.distance(node, other);
    let mut near = vec![near_of(0)];
    let mut links = Vec::new();
    let mut round: Vec<Near> = Vec::new();
    for layer in layers.iter().rev() {
        let is_in_layer = (node as usize) < layer.nodes();
        let kept = if is_in_layer { CANDIDATES } else { 1 };
        near = search(layer, &near, kept, &distance, seen);
        if is_in_layer {
            // All of them are in the layer, too: it has the first nodes.
            if round.is_empty() {
                round.extend((first..node).map(near_of));
            }
            let mut all = [near.as_slice(), &round].concat();
            all.sort_unstable();
            all.truncate(CANDIDATES);
            links.push(chosen(&all, LINKS, space));
        }
    }
    links
}

/// Sets the links of new nodes, and returns those that lead back, by the node that gets them.
fn add(layers: &mut [Layer], first: usize, found: Vec<Vec<Vec<Near>>>) -> Vec<Link> {
    let mut back = Vec::new();
    for (node, links) in (first as u32..).zip(found) {
        for (layer, near) in links.iter().rev().enumerate() {
            layers[layer].set(node, near);
            back.extend(near.iter().map(|other| {
                let to = Near { distance: other.distance, node };
                Link { layer, from: other.node, to }
            }));
        }
    }
    back.sort_unstable_by_key(|link| (link.layer, link.from, link.to.node));
    back
}

/// Returns all links of a node that gets new ones. If there are too many, the best ones stay.
fn linked(layer: &Layer, new: &[Link], space: &Space<'_>) -> Vec<Near> {
    let from = new[0].from;
    let near_of = |other: u32| Near { distance: space.distance(from, other), node: other };
    let own: Vec<u32> = layer.of(from).collect();
    if own.len() + new.len() <= layer.width {
        // Only their nodes are kept.
        let own = own.iter().map(|node| Near { distance: 0.0, node: *node });
        return own.chain(new.iter().map(|link| link.to)).collect();
    }
    let mut all: Vec<Near> = own.into_iter().map(near_of).collect();
    all.extend(new.iter().map(|link| link.to));
    all.sort_unstable();
    chosen(&all, layer.width, space)
}

/// Chooses links among near nodes, nearest first: a node that is nearer to a chosen one than to the
/// linking node is reached through that one. Free places are filled with the nearest others.
fn chosen(near: &[Near], count: usize, space: &Space<'_>) -> Vec<Near> {
    let (mut chosen, mut others): (Vec<Near>, Vec<Near>) = (Vec::new(), Vec::new());
    for found in near {
        if chosen.len() == count {
            break;
        }
        let is_reached =
            chosen.iter().any(|it| space.distance(it.node, found.node) < found.distance);
        if is_reached { others.push(*found) } else { chosen.push(*found) }
    }
    let free = count - chosen.len();
    chosen.extend(others.into_iter().take(free));
    chosen
}

/// The bits of a vector, by which equal ones are found.
struct Bits<'v>(&'v [f32]);

impl PartialEq for Bits<'_> {
    fn eq(&self, other: &Bits<'_>) -> bool {
        self.0.iter().map(|it| it.to_bits()).eq(other.0.iter().map(|it| it.to_bits()))
    }
}

impl Eq for Bits<'_> {}

impl Hash for Bits<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|value| state.write_u32(value.to_bits()));
    }
}

/// Returns the items of all nodes, and where those of each start: items with the same vector are
/// one node. The order of nodes is a random one.
fn nodes_of(vectors: &Vectors) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..vectors.len() as u32).collect();
    Sequence::new(SEED, 0).shuffle(&mut order);
    let mut counts: Vec<u32> = Vec::new();
    let mut known: HashMap<Bits<'_>, u32> = HashMap::with_capacity(order.len());
    let mut node_of = |item: &u32| {
        let node = match known.entry(Bits(vectors.vector(*item as usize))) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                counts.push(0);
                *free.insert(counts.len() as u32 - 1)
            }
        };
        counts[node as usize] += 1;
        node
    };
    let nodes: Vec<u32> = order.iter().map(&mut node_of).collect();
    let mut starts = vec![0];
    starts.extend(counts.iter().scan(0, |end, count| {
        *end += count;
        Some(*end)
    }));
    let mut next = starts.clone();
    let mut items = vec![0; order.len()];
    for (item, node) in order.iter().zip(nodes) {
        items[next[node as usize] as usize] = *item;
        next[node as usize] += 1;
    }
    (items, starts)
}

/// Vectors that are made equally long.
struct Space<'v> {
    vectors: &'v Vectors,
    /// An item of each node.
    items: Vec<u32>,
    /// The squared length of each node's vector.
    lengths: Vec<f32>,
    /// The number that each node's vector gets.
    rest: Vec<f32>,
}

impl<'v> Space<'v> {
    fn new(index: &Index, vectors: &'v Vectors) -> Space<'v> {
        let items: Vec<u32> = (0..index.nodes() as u32).map(|node| index.item(node)).collect();
        let vector = |item: &u32| vectors.vector(*item as usize);
        let length = |item: &u32| product(vector(item), vector(item));
        let lengths: Vec<f32> = items.iter().map(length).collect();
        let longest = lengths.iter().copied().fold(0.0, f32::max);
        let rest = lengths.iter().map(|length| (longest - length).max(0.0).sqrt()).collect();
        Space { vectors, items, lengths, rest }
    }

    /// Returns the squared distance of two nodes.
    fn distance(&self, a: u32, b: u32) -> f32 {
        let [x, y] = [a, b].map(|node| self.vectors.vector(self.items[node as usize] as usize));
        let of = |values: &[f32]| [values[a as usize], values[b as usize]];
        let ([x_length, y_length], [x_rest, y_rest]) = (of(&self.lengths), of(&self.rest));
        let rest = x_rest - y_rest;
        x_length + y_length - 2.0 * product(x, y) + rest * rest
    }
}
