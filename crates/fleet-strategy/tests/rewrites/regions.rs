//! Pure mixed precision only in marked regions (`use_fp16_guard`).

use crate::world::{Network, rewritten};
use fleet_ir::{Program, VarId};
use fleet_nn::prelude::*;
use fleet_strategy::{AmpConfig, DistributedStrategy, Ranks};

/// Two layers in a region, with an unlisted op and an op on the black list between them.
fn in_part(net: &Net) -> VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let region = net.fp16_guard();
    let hidden = x.fc(8).abs().softmax().fc(8);
    drop(region);
    hidden.abs().fc(1).mean().id()
}

fn unmarked(net: &Net) -> VarId {
    net.data("x", [-1, 6], DType::F32).fc(8).abs().fc(1).mean().id()
}

/// Returns the main program with `amp`.
fn main_of(network: Network, amp: AmpConfig) -> fleet_base::Result<Program> {
    let strategy = DistributedStrategy::new().use_amp(amp);
    let (programs, _) = rewritten(network, &Sgd::new(0.1).into(), &strategy, Ranks::new(0, 1))?;
    Ok(programs.main)
}

/// Returns the output types of the forward ops with this name, in program order.
fn precisions(main: &Program, name: &str) -> Vec<DType> {
    let made = |op: &fleet_ir::Op| op.all_outputs().next().map(|var| main.var(var).dtype);
    let ops = main.root_ops().filter(|(_, op)| op.role.is_forward() && op.name() == name);
    ops.filter_map(|(_, op)| made(op)).collect()
}

#[test]
fn only_regions_compute_in_16_bits() {
    let pure = [
        (AmpConfig::default().with_use_pure_fp16(true), DType::F16),
        (AmpConfig::default().with_use_pure_bf16(true), DType::BF16),
    ];
    for (amp, half) in pure {
        // Assigned or by default, the switch has the same effect here.
        for amp in [amp.clone(), amp.clone().with_use_fp16_guard(true)] {
            let main = main_of(in_part, amp).unwrap();
            assert_eq!(precisions(&main, "mul"), [half, half, DType::F32]);
            assert_eq!(precisions(&main, "abs"), [half, DType::F32]);
            // The lists apply in a region, too.
            assert_eq!(precisions(&main, "softmax"), [DType::F32]);
        }
        let main = main_of(in_part, amp.with_use_fp16_guard(false)).unwrap();
        assert_eq!(precisions(&main, "mul"), [half; 3]);
        assert_eq!(precisions(&main, "abs"), [half; 2]);
    }
}

/// Regions apply to the pure modes only.
#[test]
fn lists_alone_know_no_regions() {
    let amp = AmpConfig::default().with_use_fp16_guard(true);
    let main = main_of(in_part, amp).unwrap();
    assert_eq!(precisions(&main, "mul"), [DType::F16; 3]);
}

#[test]
fn without_a_region_it_is_everything_or_refused() {
    let pure = AmpConfig::default().with_use_pure_fp16(true);
    let main = main_of(unmarked, pure.clone()).unwrap();
    assert_eq!(precisions(&main, "mul"), [DType::F16; 2]);
    let error = main_of(unmarked, pure.with_use_fp16_guard(true)).unwrap_err().to_string();
    assert!(error.contains("no op is under fp16_guard()"), "{error}");
}

/// Both forms of a program preserve the marks.
#[test]
fn programs_keep_their_regions() {
    let net = Net::new();
    in_part(&net);
    let main = net.build().unwrap().main;
    let marks = |program: &Program| -> Vec<bool> {
        program.root_ops().map(|(_, op)| op.fp16_guard).collect()
    };
    let registry = fleet_ops::Registry::standard();
    let text = Program::parse(&main.to_string(), registry).unwrap();
    let bytes = Program::from_bytes(&main.to_bytes(), registry).unwrap();
    assert!(marks(&main).contains(&true) && marks(&main).contains(&false));
    assert_eq!((marks(&text), marks(&bytes)), (marks(&main), marks(&main)));
}
