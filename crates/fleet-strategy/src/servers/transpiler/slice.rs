//! Slicing of parameters into blocks, and assignment of blocks to servers.

use fleet_tensor::Shape;

/// Method of assigning blocks to servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitMethod {
    /// Servers in turn.
    #[default]
    RoundRobin,
    /// By a hash of the block's name, so that a name always has the same server.
    HashName,
}

/// Returns the lengths of a parameter's blocks. There are as many blocks as servers, unless they
/// would have fewer than `min_block_size` elements. Blocks consist of whole rows.
///
/// ```
/// use fleet_strategy::servers::transpiler::block_lens;
/// let shape = |dims: &[i64]| fleet_tensor::Shape::new(dims).unwrap();
/// assert_eq!(block_lens(&shape(&[1000, 128]), 4, 8192), [32000; 4]);
/// assert_eq!(block_lens(&shape(&[784, 1000]), 3, 8192), [262000, 262000, 260000]);
/// assert_eq!(block_lens(&shape(&[7, 1171]), 3, 8192), [8197]);
/// ```
pub fn block_lens(shape: &Shape, server_count: usize, min_block_size: usize) -> Vec<usize> {
    let row: usize = shape.dims().iter().skip(1).map(|dim| (*dim).max(1) as usize).product();
    let len = row * shape.dims().first().map_or(1, |dim| (*dim).max(0) as usize);
    let count = server_count.min((len / min_block_size.max(1)).max(1)).max(1);
    let block = len.div_ceil(count).next_multiple_of(row.max(1)).max(1);
    (0..len.div_ceil(block)).map(|at| block.min(len - at * block)).collect()
}

impl SplitMethod {
    /// Returns the server of the `at`-th assigned block.
    pub(super) fn server(self, at: usize, name: &str, server_count: usize) -> usize {
        match self {
            SplitMethod::RoundRobin => at % server_count,
            SplitMethod::HashName => (hash(name) % server_count as u64) as usize,
        }
    }
}

/// Hashes by FNV-1a, which is small and the same on every machine.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block lengths of Paddle 2.6.2.
    #[test]
    fn recorded_sizes() {
        let check = |dims: &[i64], servers: usize, lens: &[usize]| {
            assert_eq!(block_lens(&Shape::new(dims).unwrap(), servers, 8192), lens, "{dims:?}");
        };
        let mut long = vec![8576; 14];
        long.push(7936);
        check(&[1000, 128], 64, &long);
        check(&[3, 5000], 8, &[15000]);
        check(&[100], 8, &[100]);
        check(&[20000], 2, &[10000, 10000]);
        check(&[0, 4], 2, &[]);
    }

    #[test]
    fn names_stay_where_they_are() {
        let server = |name: &str| SplitMethod::HashName.server(0, name, 5);
        assert_eq!(
            server("fc_0.w_0.block1"),
            SplitMethod::HashName.server(9, "fc_0.w_0.block1", 5)
        );
        let used: std::collections::BTreeSet<usize> =
            (0..50).map(|at| server(&format!("fc_{at}.w_0"))).collect();
        assert_eq!(used.len(), 5, "all servers have something");
    }
}
