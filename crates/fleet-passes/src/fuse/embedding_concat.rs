//! Fuses `concat(flatten(lookup_table_v2(W, Ids)), rest...)`, the first layer's input of a wide &
//! deep model, into one op, forward and backward. Looked-up rows are written directly to their
//! position in the concatenated tensor, and their gradient is read from there.

use super::{Edit, Graph, Positions, emit_like, only_var};
use fleet_base::Result;
use fleet_ir::{OpId, Program, VarId};
use fleet_ops::Registry;

const LOOKUP: &str = "lookup_table_v2";
const FLATTENS: [&str; 3] = ["flatten_contiguous_range", "flatten2", "reshape2"];

/// The ops of one match.
struct Match {
    lookup: OpId,
    flatten: OpId,
    concat: OpId,
    backward: Option<Backward>,
}

struct Backward {
    concat: OpId,
    flatten: OpId,
    lookup: OpId,
    /// Gradients of the other parts, if any of them is used.
    rest: Vec<VarId>,
}

pub(crate) fn run(program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
    if registry.find("fused_embedding_concat").is_none() {
        return Ok(false);
    }
    let graph = Graph::new(program, keep);
    let positions = Positions::new(program);
    let concats: Vec<OpId> =
        program.root_ops().filter(|(_, op)| op.name() == "concat").map(|(id, _)| id).collect();
    let mut edit = Edit::default();
    for concat in concats {
        if let Some(found) = find(program, &graph, &positions, concat)
            && edit.is_free(&found.all())
        {
            replace(program, registry, &mut edit, &found)?;
        }
    }
    Ok(edit.apply(program))
}

impl Match {
    fn forward(&self) -> [OpId; 3] {
        [self.lookup, self.flatten, self.concat]
    }

    fn all(&self) -> Vec<OpId> {
        let back = self.backward.as_ref().map(|back| [back.concat, back.flatten, back.lookup]);
        self.forward().into_iter().chain(back.into_iter().flatten()).collect()
    }
}

/// Returns the only op that writes a variable.
fn only_writer(positions: &Positions, var: VarId) -> Option<OpId> {
    match positions.writes(var) {
        [(_, op)] => Some(*op),
        _ => None,
    }
}

fn find(program: &Program, graph: &Graph, positions: &Positions, concat: OpId) -> Option<Match> {
    let op = program.op(concat);
    let flat = *op.input("X").first()?;
    let two = |var: &VarId| program.var(*var).shape.rank() == 2;
    if op.input("X").len() < 2
        || !op.input("X").iter().all(two)
        || op.input("X")[1..].contains(&flat)
        || ![1, -1].contains(&op.attr_int("axis"))
    {
        return None;
    }
    let flatten = only_writer(positions, flat)?;
    let rows = only_var(program.op(flatten), "X")?;
    let lookup = only_writer(positions, rows)?;
    let table = program.op(lookup);
    let (w, ids) = (only_var(table, "W")?, only_var(table, "Ids")?);
    let plain = !table.attr_bool("is_distributed")
        && table.attr_str("entry").is_empty()
        && table.attr_str("table_class").is_empty();
    let shape = program.var(rows).shape;
    let whole_rows = shape.rank() == 3
        && shape[1] > 0
        && shape[2] > 0
        && program.var(flat).shape[1] == shape[1] * shape[2];
    if table.name() != LOOKUP
        || !plain
        || !FLATTENS.contains(&program.op(flatten).name())
        || !whole_rows
        || !two(&ids)
        || [w, ids].iter().any(|var| positions.changes(*var, lookup, concat))
    {
        return None;
    }
    let mut found = Match { lookup, flatten, concat, backward: None };
    if let Some(grad) = graph.user(program, flat, "concat_grad", "X") {
        found.backward = Some(find_backward(program, graph, positions, &found, grad)?);
    }
    let ops = found.all();
    let is_free =
        graph.is_only_read_by(program, rows, &ops) && graph.is_only_read_by(program, flat, &ops);
    is_free.then_some(found)
}

fn find_backward(
    program: &Program,
    graph: &Graph,
    positions: &Positions,
    found: &Match,
    concat: OpId,
) -> Option<Backward> {
    let (op, forward) = (program.op(concat), program.op(found.concat));
    let dy = only_var(op, "Out@GRAD")?;
    if op.input("X") != forward.input("X") {
        return None;
    }
    let (flat, rest) = op.output("X@GRAD").split_first()?;
    let name = format!("{}_grad", program.op(found.flatten).name());
    let flatten = graph.user(program, *flat, &name, "Out@GRAD")?;
    let rows = only_var(program.op(flatten), "X@GRAD")?;
    let lookup = graph.user(program, rows, "lookup_table_v2_grad", "Out@GRAD")?;
    let (table, grad) = (program.op(found.lookup), program.op(lookup));
    let same = ["W", "Ids"].iter().all(|slot| table.input(slot) == grad.input(slot))
        && table.attr_int("padding_idx") == grad.attr_int("padding_idx");
    let ids = only_var(table, "Ids")?;
    if !same
        || !graph.is_only_read_by(program, *flat, &[flatten])
        || !graph.is_only_read_by(program, rows, &[lookup])
        || positions.changes(dy, concat, lookup)
        || positions.changes(ids, found.lookup, lookup)
    {
        return None;
    }
    let unused = rest.iter().all(|var| graph.is_only_read_by(program, *var, &[]));
    let rest = if unused { Vec::new() } else { rest.to_vec() };
    // The fused op runs at the table's gradient, so no gradient may be read before that.
    let late = |var: &VarId| graph.users(*var).iter().any(|user| positions.before(*user, lookup));
    (!rest.iter().any(late)).then_some(Backward { concat, flatten, lookup, rest })
}

fn replace(
    program: &mut Program,
    registry: &Registry,
    edit: &mut Edit,
    found: &Match,
) -> Result<()> {
    let table = program.op(found.lookup).clone();
    let concat = program.op(found.concat).clone();
    let rest = &concat.input("X")[1..];
    let mut emit = emit_like(program, registry, found.concat);
    emit.named_op("fused_embedding_concat")?
        .inputs("W", table.input("W"))
        .inputs("Ids", table.input("Ids"))
        .inputs("Rest", rest)
        .attr("padding_idx", table.attr_int("padding_idx"))
        .attr("is_sparse", table.attr_bool("is_sparse"))
        .outputs("Out", concat.output("Out"))
        .done()?;
    let new = std::mem::take(&mut emit.ops);
    edit.replace(&found.forward(), found.concat, new);
    let Some(back) = &found.backward else { return Ok(()) };
    let grad = program.op(back.lookup).clone();
    let dy = program.op(back.concat).input("Out@GRAD").to_vec();
    let mut emit = emit_like(program, registry, back.lookup);
    emit.named_op("fused_embedding_concat_grad")?
        .inputs("W", grad.input("W"))
        .inputs("Ids", grad.input("Ids"))
        .inputs("Rest", rest)
        .inputs("Out@GRAD", &dy)
        .attr("padding_idx", grad.attr_int("padding_idx"))
        .attr("is_sparse", grad.attr_bool("is_sparse"))
        .outputs("W@GRAD", grad.output("W@GRAD"))
        .outputs("Rest@GRAD", &back.rest)
        .done()?;
    let new = std::mem::take(&mut emit.ops);
    edit.replace(&[back.concat, back.flatten, back.lookup], back.lookup, new);
    Ok(())
}
