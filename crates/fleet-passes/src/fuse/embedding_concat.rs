//! Fuses `concat(flatten(lookup_table_v2(W, Ids)), rest...)`, the first layer's input of a wide &
//! deep model, into one op, forward and backward. Looked-up rows are written directly to their
//! position in the concatenated tensor, and their gradient is read from there.

use super::fusion::{Fusion, Rule, Variant};
use super::pattern::Match;
use fleet_ir::VarId;

pub(crate) const FUSION: Fusion = Fusion {
    variants: &[Variant {
        forward: Rule {
            find: &[
                "lookup: (Out: rows) = lookup_table_v2(W: w, Ids: ids)",
                "flatten: (Out: flat) = flatten_contiguous_range|flatten2|reshape2(X: rows)",
                "join: (Out: out) = concat(X: flat rest*)",
            ],
            becomes: &["join: (Out: out) = fused_embedding_concat(Rest: rest, ..lookup)"],
        },
        backward: &[Rule {
            find: &[
                "dconcat: (X@GRAD: dflat drest*) = concat_grad(X: flat rest*, Out@GRAD: dout)",
                "dflatten: (X@GRAD: drows) = $flatten_grad(Out@GRAD: dflat)",
                "dlookup: () = lookup_table_v2_grad(W: w, Ids: ids, Out@GRAD: drows)",
            ],
            becomes: &["dlookup: (Rest@GRAD: drest) = \
                 fused_embedding_concat_grad(Rest: rest, Out@GRAD: dout, ..dlookup)"],
        }],
    }],
    accept,
};

fn accept(found: &mut Match<'_>) -> Option<()> {
    let (lookup, concat) = (found.op("lookup")?, found.op("join")?);
    let shape = |name: &str| found.var(name).map(|var| found.program.var(var).shape);
    let (rows, flat) = (shape("rows")?, shape("flat")?);
    let is_matrix = |var: &VarId| found.program.var(*var).shape.rank() == 2;
    let is_plain = !lookup.attr_bool("is_distributed")
        && lookup.attr_str("entry").is_empty()
        && lookup.attr_str("table_class").is_empty();
    let is_whole_rows =
        rows.rank() == 3 && rows[1] > 0 && rows[2] > 0 && flat[1] == rows[1] * rows[2];
    let rest = found.vars("rest");
    if !is_plain
        || rest.is_empty()
        || rest.contains(&found.var("flat")?)
        || !concat.input("X").iter().chain(found.vars("ids")).all(is_matrix)
        || ![1, -1].contains(&concat.attr_int("axis"))
        || !is_whole_rows
    {
        return None;
    }
    if let Some(grad) = found.op("dlookup") {
        if grad.attr_int("padding_idx") != lookup.attr_int("padding_idx") {
            return None;
        }
        let is_unused = |var: &VarId| found.graph.is_only_read_by(found.program, *var, &[]);
        if found.vars("drest").iter().all(is_unused) {
            found.bind("drest", Vec::new());
        }
    }
    Some(())
}
