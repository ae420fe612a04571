//! Assignment of dense parameters, cut into blocks, to servers.

use super::{DistributeTranspilerConfig, block_lens};
use crate::servers::{ParamBlock, ServerPlan};
use fleet_base::Result;
use fleet_base::rng::Sequence;
use fleet_nn::Programs;
use fleet_ops::ps::{recv, send};
use fleet_table::DenseBlock;
use fleet_tensor::Shape;

impl DistributeTranspilerConfig {
    /// Cuts parameters into blocks and assigns each block to a server; returns the parameters'
    /// shapes.
    pub(super) fn assign_blocks(
        &self,
        programs: &Programs,
        plan: &mut ServerPlan,
        server_count: usize,
    ) -> Vec<(String, Shape)> {
        let main = &programs.main;
        let params = plan.tables.dense.iter().flat_map(|table| &table.params);
        let shape = |name: &str| main.find_var(name).map(|var| main.var(var).shape);
        let mut shapes: Vec<(String, Shape)> =
            params.filter_map(|(name, _)| Some((name.clone(), shape(name)?))).collect();
        shapes.sort_by(|a, b| a.0.cmp(&b.0));
        let mut order: Vec<usize> = (0..shapes.len()).collect();
        if !self.slice_var_up {
            // In name order, large and small parameters alternate, so some servers would get only
            // large ones.
            Sequence::new(main.seed(), STREAM).shuffle(&mut order);
        }
        let mut dealt: Vec<Vec<ParamBlock>> = vec![Vec::new(); shapes.len()];
        let mut at = 0;
        for param in order {
            let (name, shape) = &shapes[param];
            let lens = match self.slice_var_up {
                true => block_lens(shape, server_count, self.min_block_size),
                false => vec![shape.numel().unwrap_or(0)],
            };
            for (block, len) in lens.iter().enumerate() {
                let name = match lens.len() {
                    1 => name.clone(),
                    _ => format!("{name}.block{block}"),
                };
                let server = self.split_method.server(at, &name, server_count);
                let block = DenseBlock { len: *len, server };
                dealt[param].push(ParamBlock { name, block });
                at += 1;
            }
        }
        for table in &mut plan.tables.dense {
            let blocks = table.params.iter().filter_map(|(name, _)| {
                Some(dealt[shapes.iter().position(|(other, _)| other == name)?].clone())
            });
            table.blocks = Some(blocks.flatten().collect());
        }
        shapes
    }
}

/// Random number stream for the assignment of parameters to servers.
const STREAM: u64 = 0x7472_616E;

/// Writes the server of each block into `send` and `recv`.
pub(super) fn name_endpoints(
    programs: &mut Programs,
    plan: &ServerPlan,
    endpoints: &[String],
) -> Result<()> {
    let main = &mut programs.main;
    let ops: Vec<_> = main
        .root_ops()
        .filter(|(_, op)| (send::DEF.is(op) || recv::DEF.is(op)) && op.attr_int("is_sparse") == 0)
        .map(|(id, op)| (id, op.attr_int("table_id"), send::DEF.is(op)))
        .collect();
    for (id, table_id, sends) in ops {
        let table = plan.tables.dense.iter().find(|it| i64::from(it.table_id) == table_id);
        let Some(blocks) = table.and_then(|table| table.blocks.as_ref()) else { continue };
        let epmap: Vec<String> =
            blocks.iter().map(|block| endpoints[block.block.server].clone()).collect();
        let op = main.op_mut(id);
        op.set_attr("epmap", epmap)?;
        if sends {
            let names: Vec<String> = blocks.iter().map(|block| grad_name(&block.name)).collect();
            op.set_attr("send_varnames", names)?;
        }
    }
    Ok(())
}

/// Returns the name of a block's gradient: `w@GRAD.block0` for `w.block0`.
pub(super) fn grad_name(block: &str) -> String {
    match block.rsplit_once(".block") {
        Some((name, number)) => format!("{name}@GRAD.block{number}"),
        None => format!("{block}@GRAD"),
    }
}
