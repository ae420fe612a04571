//! Building the graph, by several threads.
//!
//! Nodes are inserted in rounds. The nodes of a round search the graph as it was before the round,
//! and compare themselves with the nodes of the round before them, so that they find what they
//! would find if they were inserted one after the other. Then each node that is linked gets its new
//! links. Threads divide the searches and the links of a round, and the graph is the same for any
//! number of them.

use super::graph::{Layer, Near, Rows, Scratch, search};
use super::{Index, LINKS, empty_layers, vectors_of};
use crate::vectors::Vectors;
use fleet_base::Result;
use fleet_base::rng::Sequence;
use fleet_kernels::products::{products, products_at};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Nodes that an insertion compares for its links: more make a better graph, more slowly.
const CANDIDATES: usize = 128;
/// Nodes of a round: each is compared with half of them, which costs a tenth of its search in a
/// graph of a million nodes. A round has at most as many nodes as the graph before it.
const ROUND_MAX: usize = 512;
/// Seed of the order of the items.
const SEED: u64 = 0x686e_7377;

/// Builds the graph.
pub fn build(vectors: &Vectors, threads: usize) -> Result<Index> {
    let (items, starts) = nodes_of(vectors);
    let nodes = starts.len() - 1;
    let mut layers = empty_layers(nodes)?;
    let sum = vectors.sum();
    let vectors = vectors_of(vectors, &items, &starts)?;
    let space = Space::new(&vectors);
    let mut scratch: Vec<Scratch> = (0..threads.max(1)).map(|_| Scratch::default()).collect();
    let mut first = 1;
    while first < nodes {
        let end = (first + first.min(ROUND_MAX)).min(nodes);
        let of_node = |at: usize, scratch: &mut Scratch| {
            links_of(&layers, (first + at) as u32, first as u32, &space, scratch)
        };
        let found = in_parallel(end - first, &mut scratch, of_node);
        let links = add(&mut layers, first, found);
        let groups: Vec<&[Link]> =
            links.chunk_by(|a, b| (a.layer, a.from) == (b.layer, b.from)).collect();
        let of_group =
            |at: usize, _: &mut Scratch| linked(&layers[groups[at][0].layer], groups[at], &space);
        let all = in_parallel(groups.len(), &mut scratch, of_group);
        for (group, near) in groups.iter().zip(all) {
            layers[group[0].layer].set(group[0].from, &near);
        }
        first = end;
    }
    Ok(Index { items, starts, layers, vectors, sum })
}

/// A new link of a node.
struct Link {
    layer: usize,
    from: u32,
    to: Near,
}

/// Calls a function for each index below `count`, in threads that each have a state, and returns
/// the results in order. Each thread takes the next indices when it is ready, since other work may
/// slow down one of them.
fn in_parallel<S: Send, T: Send>(
    count: usize,
    states: &mut [S],
    call: impl Fn(usize, &mut S) -> T + Sync,
) -> Vec<T> {
    let threads = states.len().min(count.div_ceil(SHARE)).max(1);
    let next = AtomicUsize::new(0);
    let work = |state: &mut S| -> Vec<(usize, Vec<T>)> {
        let mut done = Vec::new();
        loop {
            let start = next.fetch_add(SHARE, Relaxed);
            if start >= count {
                return done;
            }
            let share = start..(start + SHARE).min(count);
            done.push((start, share.map(|at| call(at, state)).collect()));
        }
    };
    let (own, others) = states.split_at_mut(1);
    let mut all = std::thread::scope(|scope| {
        let work = &work;
        let others = others.iter_mut().take(threads - 1);
        let running: Vec<_> = others.map(|state| scope.spawn(move || work(state))).collect();
        let mut all = work(&mut own[0]);
        for thread in running {
            match thread.join() {
                Ok(part) => all.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_unstable_by_key(|(start, _)| *start);
    all.into_iter().flat_map(|(_, share)| share).collect()
}

/// Nodes that a thread takes at a time: some 10 microseconds each.
const SHARE: usize = 16;

/// Returns the links of a new node in each of its layers, the layer of all nodes last. `first` is
/// the first node of its round.
fn links_of(
    layers: &[Layer],
    node: u32,
    first: u32,
    space: &Space<'_>,
    scratch: &mut Scratch,
) -> Vec<Vec<Near>> {
    let products = |others: &[u32], out: &mut [f32]| space.products(node, others, out);
    let mut near = space.near(node, &[0]);
    let mut links = Vec::new();
    let mut round: Option<Vec<Near>> = None;
    for layer in layers.iter().rev() {
        let is_in_layer = (node as usize) < layer.len();
        let kept = if is_in_layer { CANDIDATES } else { 1 };
        near = search(layer, &near, kept, products, scratch);
        if is_in_layer {
            // All of them are in the layer, too: it has the first nodes.
            let round = round.get_or_insert_with(|| space.near_of_range(node, first..node));
            let worst = near.last().copied().filter(|_| near.len() == CANDIDATES);
            let mut all = near.clone();
            all.extend(round.iter().filter(|it| worst.is_none_or(|worst| **it < worst)));
            all.sort_unstable();
            all.truncate(CANDIDATES);
            links.push(chosen(all, LINKS, space));
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
                let to = Near::new(other.product(), node);
                Link { layer, from: other.node(), to }
            }));
        }
    }
    back.sort_unstable_by_key(|link| (link.layer, link.from, link.to.node()));
    back
}

/// Returns all links of a node that gets new ones. If there are too many, the best ones stay.
fn linked(layer: &Layer, new: &[Link], space: &Space<'_>) -> Vec<Near> {
    let (from, own) = (new[0].from, layer.of(new[0].from));
    let new = new.iter().map(|link| link.to);
    if own.len() + new.len() <= layer.width() {
        // Only their nodes are kept.
        return own.iter().map(|node| Near::new(0.0, *node)).chain(new).collect();
    }
    let mut all = space.near(from, own);
    all.extend(new);
    all.sort_unstable();
    chosen(all, layer.width(), space)
}

/// Chooses links among near nodes, nearest first: a node that is nearer to a chosen one than to the
/// linking node is reached through that one. Free places are filled with the nearest others.
fn chosen(mut near: Vec<Near>, count: usize, space: &Space<'_>) -> Vec<Near> {
    let mut chosen = Vec::with_capacity(count);
    let mut reached = Vec::with_capacity(near.len());
    let (mut nodes, mut products) = (Vec::with_capacity(near.len()), vec![0.0; near.len()]);
    while chosen.len() < count && !near.is_empty() {
        let next = near.remove(0);
        chosen.push(next);
        nodes.clear();
        nodes.extend(near.iter().map(|it| it.node()));
        space.products(next.node(), &nodes, &mut products[..nodes.len()]);
        let mut product = products.iter();
        near.retain(|it| {
            let is_reached = product.next().is_some_and(|product| *product > it.product());
            if is_reached {
                reached.push(*it);
            }
            !is_reached
        });
    }
    let free = count - chosen.len();
    if free > 0 {
        reached.sort_unstable();
        chosen.extend(reached.into_iter().take(free));
    }
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

/// Vectors of nodes that are made equally long: the nearest ones have the largest products.
struct Space<'v> {
    vectors: &'v Rows<f32>,
    /// The number that each node's vector gets.
    rest: Vec<f32>,
}

impl<'v> Space<'v> {
    fn new(vectors: &'v Rows<f32>) -> Space<'v> {
        let square = |row: &[f32]| -> f32 {
            let mut square = [0.0];
            products(row, row, &mut square);
            square[0]
        };
        let squares: Vec<f32> = vectors.all().chunks_exact(vectors.width()).map(square).collect();
        let largest = squares.iter().copied().fold(0.0, f32::max);
        let rest = squares.iter().map(|square| (largest - square).max(0.0).sqrt()).collect();
        Space { vectors, rest }
    }

    /// Computes the products of a node with others.
    fn products(&self, node: u32, others: &[u32], out: &mut [f32]) {
        products_at(self.vectors.all(), others, self.vectors.row(node), out);
        let rest = self.rest[node as usize];
        for (out, other) in out.iter_mut().zip(others) {
            *out += rest * self.rest[*other as usize];
        }
    }

    /// Returns other nodes with their products with a node.
    fn near(&self, node: u32, others: &[u32]) -> Vec<Near> {
        let mut out = vec![0.0; others.len()];
        self.products(node, others, &mut out);
        out.iter().zip(others).map(|(product, other)| Near::new(*product, *other)).collect()
    }

    /// Like [`Space::near`], for nodes that follow each other.
    fn near_of_range(&self, node: u32, others: Range<u32>) -> Vec<Near> {
        let [start, end] = [others.start, others.end].map(|at| at as usize);
        let width = self.vectors.width();
        let mut out = vec![0.0; end - start];
        let rows = &self.vectors.all()[start * width..end * width];
        products(rows, self.vectors.row(node), &mut out);
        let (rest, rests) = (self.rest[node as usize], &self.rest[start..end]);
        let near = out.iter().zip(rests).zip(others);
        near.map(|((product, other), node)| Near::new(product + rest * other, node)).collect()
    }
}
