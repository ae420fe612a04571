//! `Program`: names, evaluation copies, pruning, fingerprints.

mod common;

use common::*;
use fleet_ir::{Op, OpRole, Program, Var, VarId};
use fleet_tensor::DType;
use std::collections::HashSet;

/// data -> dropout -> loss, one backward op, one optimizer op.
fn training() -> (Program, VarId, VarId) {
    let mut p = Program::new();
    let x = add(&mut p, Program::ROOT, Var::data("x", DType::F32, [-1, 4]));
    let w = add(&mut p, Program::ROOT, Var::parameter("w", DType::F32, [4], Default::default()));
    let [hidden, loss, grad] = ["hidden", "loss", "w@GRAD"]
        .map(|name| add(&mut p, Program::ROOT, Var::new(name, DType::F32, [-1, 4])));
    let dropout = Op::build(&DROPOUT).input("X", x).output("Out", hidden);
    push(&mut p, Program::ROOT, dropout);
    let mul = Op::build(&MUL).input("X", hidden).input("Y", w).output("Out", loss);
    push(&mut p, Program::ROOT, mul.role(OpRole::FORWARD.with_loss()));
    push(&mut p, Program::ROOT, concat(&[loss, w], grad).role(OpRole::BACKWARD));
    push(&mut p, Program::ROOT, concat(&[grad, w], w).role(OpRole::OPTIMIZE));
    assert_eq!(p.errors(), []);
    (p, hidden, loss)
}

fn names(p: &Program) -> Vec<&str> {
    p.vars().map(|(_, var)| var.name.as_str()).collect()
}

#[test]
fn an_evaluation_copy_has_forward_ops_only() {
    let (p, ..) = training();
    let test = p.clone_for_test().unwrap();
    assert_eq!(names(&test), ["x", "w", "hidden", "loss"]);
    let ops: Vec<&str> = test.root_ops().map(|(_, op)| op.name()).collect();
    assert_eq!(ops, ["dropout", "mul"]);
    assert!(test.root_ops().next().unwrap().1.attr_bool("is_test"));
    assert_eq!(test.errors(), []);
    assert!(test.find_var("w@GRAD").is_none());
    assert_eq!(p.root_ops().len(), 4, "the program itself stays as it is");
    assert!(!p.root_ops().next().unwrap().1.attr_bool("is_test"));
}

#[test]
fn pruning_keeps_what_targets_need() {
    let (p, hidden, loss) = training();
    let to_hidden = p.prune(&[hidden]);
    assert_eq!(names(&to_hidden), ["x", "hidden"]);
    assert_eq!(to_hidden.root_ops().len(), 1);
    let to_loss = p.prune(&[loss]);
    assert_eq!(names(&to_loss), ["x", "w", "hidden", "loss"]);
    assert_eq!(to_loss.root_ops().len(), 2, "the optimizer's write of w comes after its use");
    let w = p.find_var("w").unwrap();
    assert_eq!(p.prune(&[w]).root_ops().len(), 4);
    assert_eq!(names(&p.prune(&[])), Vec::<&str>::new());
    for pruned in [to_hidden, to_loss] {
        assert_eq!(pruned.errors(), []);
    }
}

#[test]
fn pruning_follows_sub_blocks() {
    let p = rich();
    let outer = p.find_var("outer").unwrap();
    let pruned = p.prune(&[outer]);
    let kept: Vec<&str> = pruned.root_ops().map(|(_, op)| op.name()).collect();
    assert_eq!(kept, ["mul", "dropout", "cond"]);
    assert!(names(&pruned).contains(&"t"), "what the sub-block uses stays");
    assert_eq!(pruned.errors(), []);
    let tmp = p.find_var("tmp_0").unwrap();
    let pruned = p.prune(&[tmp]);
    assert_eq!(pruned.root_ops().len(), 1);
    assert_eq!(pruned.block_count(), 1, "the block of the removed op is gone");
    assert_eq!(names(&pruned), ["x", "fc_0.w_0", "tmp_0"]);
    assert_eq!(pruned.errors(), []);
    // Pruning keeps an op whose sub-block writes a target.
    let mut written_inside = p.clone();
    let cond = p.root_ops().find(|(_, op)| op.name() == "cond").map(|(id, _)| id).unwrap();
    written_inside.op_mut(cond).outputs[0].clear();
    assert_eq!(written_inside.prune(&[outer]).root_ops().len(), 3);
}

#[test]
fn pruning_renumbers_blocks() {
    let mut p = rich();
    let root = Program::ROOT;
    let [tmp, flag] = ["tmp_0", "flag"].map(|name| p.find_var(name).unwrap());
    let late = add(&mut p, root, Var::new("late", DType::F32, [-1, 400]));
    let block = p.add_block(root);
    push(&mut p, block, concat(&[tmp], late));
    let cond = Op::build(&COND).input("Cond", flag).input("Input", tmp).output("Out", late);
    push(&mut p, root, cond.attr("sub_block", block));
    assert_eq!((p.block_count(), p.errors()), (4, vec![]));
    let pruned = p.prune(&[late]);
    assert_eq!((pruned.block_count(), pruned.errors()), (2, vec![]));
    let (_, cond) = pruned.root_ops().last().unwrap();
    let inner: Vec<&str> =
        pruned.block_ops(cond.sub_block().unwrap()).map(|(_, op)| op.name()).collect();
    assert_eq!(inner, ["concat"]);
    // The original is unchanged.
    assert_eq!(p.root_ops().last().unwrap().1.sub_block(), Some(block));
}

#[test]
fn a_graph_has_a_node_for_each_value_of_a_variable() {
    let (mut p, hidden, loss) = training();
    let root = Program::ROOT;
    let flag = add(&mut p, root, Var::new("a \"flag\"", DType::Bool, [1]));
    let block = p.add_block(root);
    push(&mut p, block, concat(&[hidden], loss));
    let cond = Op::build(&COND).input("Cond", flag).input("Input", hidden).output("Out", loss);
    push(&mut p, root, cond.attr("sub_block", block));
    let graph = p.to_dot();
    for line in [
        "  var0_1 [label=\"x\\nf32[-1, 4]\", fillcolor=palegreen];\n",
        "  op0 [shape=box, label=\"dropout\", fillcolor=white];\n",
        "  var1_1 -> op1 [label=\"Y\"];\n",
        "  op2 [shape=box, label=\"concat\", fillcolor=lightblue];\n",
        // The update writes the second value of the parameter.
        "  op3 [shape=box, label=\"concat\", fillcolor=khaki];\n",
        "  var1_1 -> op3 [label=\"X\"];\n",
        "  op3 -> var1_2 [label=\"Out\"];\n",
        "  var5_1 [label=\"a \\\"flag\\\"\\nbool[1]\", fillcolor=white];\n",
        "  subgraph cluster_block1 {\n  label=\"block1\";\n",
        "  op4 -> var3_2 [label=\"Out\"];\n",
    ] {
        assert!(graph.contains(line), "no {line} in {graph}");
    }
    let edges: usize = (p.block_ids().flat_map(|block| p.block_ops(block)))
        .map(|(_, op)| op.all_inputs().count() + op.all_outputs().count())
        .sum();
    assert_eq!(graph.matches(" -> ").count(), edges);
    assert_eq!(graph.matches('{').count(), graph.matches('}').count());
}

#[test]
fn names_are_unique_and_as_documented() {
    let mut p = Program::new();
    assert_eq!(p.unique_name("fc"), "fc_0");
    assert_eq!(p.unique_name("fc"), "fc_1");
    assert_eq!(p.unique_name("fc_0.w"), "fc_0.w_0");
    add(&mut p, Program::ROOT, Var::new("fc_2", DType::F32, [1]));
    assert_eq!(p.unique_name("fc"), "fc_3", "a name in use is skipped");
    assert_eq!(p.fresh_name("x@GRAD"), "x@GRAD");
    add(&mut p, Program::ROOT, Var::new("x@GRAD", DType::F32, [1]));
    assert_eq!(p.fresh_name("x@GRAD"), "x@GRAD_0");

    let again = p.add_var(Program::ROOT, Var::new("fc_2", DType::F32, [1]));
    assert!(again.unwrap_err().to_string().contains("duplicate variable name 'fc_2'"));
    assert!(p.add_var(Program::ROOT, Var::new("", DType::F32, [1])).is_err());
    assert!(p.add_var(Program::ROOT, Var::new("n".repeat(1025), DType::F32, [1])).is_err());
    let error = p.var_named("fc2").unwrap_err().to_string();
    assert!(error.contains("did you mean 'fc_2'?"), "{error}");

    let id = p.find_var("fc_2").unwrap();
    p.rename_var(id, "fc_2").unwrap();
    assert!(p.rename_var(id, "x@GRAD").is_err() && p.rename_var(id, "").is_err());
    p.rename_var(id, "renamed").unwrap();
    assert_eq!((p.find_var("renamed"), p.find_var("fc_2")), (Some(id), None));
    p.remove_var(id);
    assert_eq!(p.find_var("renamed"), None);
    assert_eq!(names(&p), ["x@GRAD"]);
}

#[test]
fn fingerprints_follow_content() {
    let (p, ..) = training();
    assert_eq!(p.fingerprint(), training().0.fingerprint());
    assert_eq!(p.fingerprint(), p.clone().fingerprint());
    let mut seen = HashSet::from([p.fingerprint()]);
    let mut check = |change: &dyn Fn(&mut Program)| {
        let mut changed = p.clone();
        change(&mut changed);
        assert!(seen.insert(changed.fingerprint()), "the fingerprint ignores a change:\n{changed}");
    };
    let first = p.root_ops().next().unwrap().0;
    let x = p.find_var("x").unwrap();
    check(&|p| p.set_seed(1));
    check(&|p| p.var_mut(x).shape = [8, 4].into());
    check(&|p| p.var_mut(x).dtype = DType::F64);
    check(&|p| p.op_mut(first).set_attr("dropout_prob", 0.1).unwrap());
    check(&|p| p.op_mut(first).role = OpRole::BACKWARD);
    check(&|p| p.op_mut(first).device = Some("gpu".into()));
    check(&|p| p.retain_ops(Program::ROOT, |_, op| op.role.is_forward()));
    check(&|p| {
        let mut ops = p.block(Program::ROOT).ops().to_vec();
        ops.swap(0, 1);
        p.set_block_ops(Program::ROOT, ops);
    });
    check(&|p| {
        p.add_block(Program::ROOT);
    });
}
