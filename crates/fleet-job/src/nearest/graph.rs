//! Links between nodes, and walks along them.
//!
//! Sketch: a search of 128 nodes of a million reads the links of some 150 nodes and the vectors of
//! some 2,500, anywhere in memory. So both are rows in aligned memory with huge pages, the links of
//! the next node are requested while the products with the neighbours of this one are computed, and
//! those products are computed at once.

use fleet_base::Result;
use fleet_kernels::products::prefetch;
use fleet_tensor::{Buffer, Plain, view_as, view_as_mut};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::marker::PhantomData;

/// Most links of a node.
pub const WIDTH_MAX: usize = 32;
/// Mark of a free link.
pub const FREE: u32 = u32::MAX;

/// Rows of equal width.
pub struct Rows<T> {
    width: usize,
    data: Buffer,
    kind: PhantomData<T>,
}

impl<T: Plain> Rows<T> {
    /// Returns rows of zeros.
    pub fn zeros(count: usize, width: usize) -> Result<Rows<T>> {
        let bytes = count.saturating_mul(width).saturating_mul(size_of::<T>());
        Ok(Rows { width, data: Buffer::zeroed(bytes)?, kind: PhantomData })
    }

    pub fn len(&self) -> usize {
        self.data.bytes() / (self.width * size_of::<T>())
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the rows one after the other.
    pub fn all(&self) -> &[T] {
        view_as(self.data.as_slice())
    }

    pub fn all_mut(&mut self) -> &mut [T] {
        view_as_mut(self.data.as_mut_slice())
    }

    pub fn row(&self, at: u32) -> &[T] {
        &self.all()[at as usize * self.width..][..self.width]
    }
}

impl<T> PartialEq for Rows<T> {
    fn eq(&self, other: &Rows<T>) -> bool {
        self.width == other.width && self.data.as_slice() == other.data.as_slice()
    }
}

impl<T> fmt::Debug for Rows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows of {} in {} bytes", self.width, self.data.bytes())
    }
}

/// The links of the first nodes of the order: for each, nodes of this layer, then free links.
pub type Layer = Rows<u32>;

impl Layer {
    /// Returns the links of a node.
    pub fn of(&self, node: u32) -> &[u32] {
        used(self.row(node))
    }

    /// Sets the links of a node.
    pub fn set(&mut self, node: u32, found: &[Near]) {
        let width = self.width;
        let links = &mut self.all_mut()[node as usize * width..][..width];
        links.fill(FREE);
        links.iter_mut().zip(found).for_each(|(link, near)| *link = near.node());
    }
}

/// Returns the links before the free ones.
#[inline]
fn used(links: &[u32]) -> &[u32] {
    let count = links.iter().position(|link| *link == FREE).unwrap_or(links.len());
    &links[..count]
}

/// A node and its product with the query: one number, by which the largest product is first and, of
/// equal ones, the first node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Near(u64);

impl Near {
    #[inline]
    pub fn new(product: f32, node: u32) -> Near {
        let bits = product.to_bits();
        // Larger numbers have smaller keys: bits of negative numbers already grow with their size.
        let key = if bits >> 31 == 0 { !bits & !(1 << 31) } else { bits };
        Near(u64::from(key) << 32 | u64::from(node))
    }

    #[inline]
    pub fn node(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    pub fn product(self) -> f32 {
        let key = (self.0 >> 32) as u32;
        f32::from_bits(if key >> 31 == 0 { !key & !(1 << 31) } else { key })
    }
}

/// Memory of searches, which is reused between them.
#[derive(Default)]
pub struct Scratch {
    /// For each node, the number of the last search that saw it.
    marks: Vec<u8>,
    mark: u8,
    /// Found nodes whose links were not followed.
    open: BinaryHeap<Reverse<Near>>,
    /// The nearest found nodes.
    best: BinaryHeap<Near>,
}

impl Scratch {
    fn begin(&mut self, nodes: usize) {
        if self.marks.len() < nodes {
            self.marks.resize(nodes, 0);
        }
        self.mark = self.mark.wrapping_add(1);
        if self.mark == 0 {
            self.marks.fill(0);
            self.mark = 1;
        }
        self.open.clear();
        self.best.clear();
    }
}

/// Returns the `kept` nearest nodes that a walk finds, nearest first. It starts at some nodes, and
/// ends when no link leads nearer than the farthest kept node. `products` computes the products of
/// the query with nodes.
pub fn search(
    layer: &Layer,
    starts: &[Near],
    kept: usize,
    products: impl Fn(&[u32], &mut [f32]),
    scratch: &mut Scratch,
) -> Vec<Near> {
    scratch.begin(layer.len());
    let Scratch { marks, mark, open, best } = scratch;
    let mut is_new = |node: u32| std::mem::replace(&mut marks[node as usize], *mark) != *mark;
    for start in starts.iter().filter(|start| (start.node() as usize) < layer.len()) {
        if is_new(start.node()) {
            open.push(Reverse(*start));
            best.push(*start);
        }
    }
    while best.len() > kept {
        best.pop();
    }
    let (width, links) = (layer.width(), layer.all());
    let links_of = |near: Near| &links[near.node() as usize * width..][..width];
    let (mut new, mut found) = ([0; WIDTH_MAX], [0.0; WIDTH_MAX]);
    while let Some(Reverse(near)) = open.pop() {
        if best.len() >= kept && best.peek().is_some_and(|worst| near > *worst) {
            break;
        }
        if let Some(Reverse(next)) = open.peek() {
            prefetch(links_of(*next));
        }
        let mut count = 0;
        for node in used(links_of(near)) {
            // Without a branch, which would be mispredicted.
            new[count] = *node;
            count += usize::from(is_new(*node));
        }
        products(&new[..count], &mut found[..count]);
        for (node, product) in new[..count].iter().zip(&found) {
            let found = Near::new(*product, *node);
            if best.len() < kept {
                best.push(found);
                open.push(Reverse(found));
            } else if let Some(mut worst) = best.peek_mut()
                && found < *worst
            {
                *worst = found;
                open.push(Reverse(found));
            }
        }
    }
    let mut found: Vec<Near> = best.drain().collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_ordered_by_product_and_number() {
        let products = [f32::INFINITY, 2.0, 1.5, 1e-40, 0.0, -0.0, -1e-40, -1.0, -f32::INFINITY];
        let all: Vec<Near> =
            products.iter().flat_map(|it| [3, 7].map(|node| Near::new(*it, node))).collect();
        assert!(all.is_sorted_by(|a, b| a < b));
        for (near, product) in all.chunks(2).zip(products) {
            assert_eq!(near[0].product().to_bits(), product.to_bits());
            assert_eq!([near[0].node(), near[1].node()], [3, 7]);
        }
    }

    /// Marks are bytes, so that they are cleared after 255 searches.
    #[test]
    fn searches_find_the_same_again() {
        let mut layer = Layer::zeros(5, 2).unwrap();
        for node in 0..5 {
            let next = [(node + 1) % 5, (node + 2) % 5];
            layer.set(node, &next.map(|it| Near::new(0.0, it)));
        }
        let mut scratch = Scratch::default();
        let products = |nodes: &[u32], out: &mut [f32]| {
            nodes.iter().zip(out).for_each(|(node, out)| *out = *node as f32);
        };
        for _ in 0..600 {
            let near = search(&layer, &[Near::new(0.0, 0)], 3, products, &mut scratch);
            assert_eq!(near, [4, 3, 2].map(|node| Near::new(node as f32, node)));
        }
    }
}
