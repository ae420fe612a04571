//! Segment trees: ranges of cells as few nodes of a binary tree.
//!
//! Node 1 is the root, node n has the children 2n and 2n + 1, and the leaves are the cells. Users
//! keep values by node.

use std::ops::Range;

/// A segment tree over some cells.
#[derive(Clone, Copy)]
pub(crate) struct Tree {
    cells: usize,
}

impl Tree {
    pub fn new(cells: usize) -> Tree {
        Tree { cells }
    }

    /// Returns the number of nodes, including an unused one for the index 0.
    pub fn node_count(self) -> usize {
        2 * self.cells
    }

    /// Returns the nodes that together cover some cells, none twice.
    pub fn cover(self, cells: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
        let (mut low, mut high) = (cells.start + self.cells, cells.end + self.cells);
        std::iter::from_fn(move || {
            while low < high {
                if low % 2 == 1 {
                    low += 1;
                    return Some(low - 1);
                }
                if high % 2 == 1 {
                    high -= 1;
                    return Some(high);
                }
                (low, high) = (low / 2, high / 2);
            }
            None
        })
    }

    /// Returns the inner nodes above the first and the last of some cells. A node that contains a
    /// covering node is among them.
    pub fn above(self, cells: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
        let inner = |cell: usize| self.path(cell).skip(1);
        inner(cells.start).chain(inner(cells.end - 1))
    }

    /// Returns the nodes that contain a cell, from its leaf to the root. Of the nodes that cover a
    /// range, one is among them if the cell is in the range, and otherwise none.
    pub fn path(self, cell: usize) -> impl Iterator<Item = usize> + use<> {
        let nodes = std::iter::successors(Some(cell + self.cells), |node| Some(node / 2));
        nodes.take_while(|node| *node > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_in_one_node_of_each_range_that_contains_it() {
        for count in 1..20 {
            let tree = Tree::new(count);
            for start in 0..count {
                for end in start + 1..=count {
                    let cover: Vec<usize> = tree.cover(&(start..end)).collect();
                    assert!(cover.iter().all(|node| (1..tree.node_count()).contains(node)));
                    for cell in 0..count {
                        let found = tree.path(cell).filter(|node| cover.contains(node)).count();
                        assert_eq!(found, usize::from((start..end).contains(&cell)));
                    }
                }
            }
        }
    }
}
