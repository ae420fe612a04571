//! The three forms of an optimizer, defined from one list of slots.

use fleet_ir::{Arity, SlotSpec};

/// Defines `DEF`, which updates one parameter, `FUSED`, which updates many, and `REDUCED`, which
/// first sums the gradients of many over ranks (see `reduced.rs`).
///
/// The module has their `INPUTS`, `OUTPUTS` and `ATTRS`, as of the fused form, the `SLOTS` of the
/// state, and the functions `rule` and `options` of an op.
macro_rules! forms {
    (
        DEF { name: $name:literal }
        FUSED { name: $fused:literal }
        REDUCED { name: $reduced:literal }
    ) => {
        pub static DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &forms::single::<{ INPUTS.len() }>(INPUTS),
                outputs: &forms::single::<{ OUTPUTS.len() }>(OUTPUTS),
                attrs: ATTRS,
            },
            ..FUSED_FORM
        };

        pub static FUSED: OpDef = FUSED_FORM;

        const FUSED_FORM: OpDef = OpDef {
            spec: OpSpec { name: $fused, inputs: INPUTS, outputs: OUTPUTS, attrs: ATTRS },
            infer: |i| common::infer(i, &SLOTS),
            grad: Grad::None,
            cpu: |p| common::cpu(p, &SLOTS, rule(p.op), options(p.op)),
            traits: common::TRAITS,
        };

        pub static REDUCED: OpDef = OpDef {
            spec: OpSpec {
                name: $reduced,
                inputs: INPUTS,
                outputs: &forms::joined::<_, { OUTPUTS.len() + reduced::OUTPUTS.len() }>(
                    OUTPUTS,
                    reduced::OUTPUTS,
                ),
                attrs: &forms::joined::<_, { ATTRS.len() + reduced::ATTRS.len() }>(
                    ATTRS,
                    reduced::ATTRS,
                ),
            },
            infer: |i| reduced::infer(i, &SLOTS),
            grad: Grad::None,
            cpu: |p| reduced::cpu(p, &SLOTS, rule(p.op), options(p.op)),
            traits: reduced::TRAITS,
        };
    };
}

pub(super) use forms;

/// Returns slots that take one variable where the given ones take many.
pub(super) const fn single<const N: usize>(slots: &[SlotSpec]) -> [SlotSpec; N] {
    let mut all = [slots[0]; N];
    let mut at = 0;
    while at < N {
        let SlotSpec { name, arity } = slots[at];
        let arity = if matches!(arity, Arity::Many) { Arity::One } else { arity };
        all[at] = SlotSpec { name, arity };
        at += 1;
    }
    all
}

/// Concatenates two lists. `N` is the sum of their lengths.
pub(super) const fn joined<T: Copy, const N: usize>(first: &[T], second: &[T]) -> [T; N] {
    assert!(first.len() + second.len() == N);
    let mut all = [first[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}
