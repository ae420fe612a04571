//! The ops of an optimizer, defined from its state, attributes and rule.

use super::common::Slots;
use fleet_ir::{Arity, SlotSpec, one, optional};

/// Defines `DEF`, which updates one parameter. With three names, it also defines `FUSED`, which
/// updates many, and `REDUCED`, which first sums the gradients of many over ranks (see
/// `reduced.rs`). Rules that need norms also define `PARTS`, which updates a part of a parameter
/// (see `parts.rs`).
///
/// The module has `SLOTS`, the state; `ATTRS`, the attributes besides those of all optimizers; and
/// `update`, which returns the rule of an op with its options.
macro_rules! optimizer {
    (DEF { name: $name:literal }) => {
        optimizer! {
            DEF { name: $name, traits: common::TRAITS }
        }
    };
    (DEF { name: $name:literal, norms } PARTS { name: $parts:literal }) => {
        optimizer! {
            DEF { name: $name, traits: OpTraits { norms: true, ..common::TRAITS } }
        }

        pub static PARTS: OpDef = OpDef {
            spec: OpSpec {
                name: $parts,
                attrs: &forms::joined::<
                    _,
                    { ATTRS.len() + common::ATTRS.len() + parts::ATTRS.len() },
                >(DEF.spec.attrs, parts::ATTRS),
                ..DEF.spec
            },
            infer: |i| parts::infer(i, &SLOTS),
            grad: Grad::None,
            cpu: |p| parts::cpu(p, &SLOTS, update(p.op)),
            traits: parts::TRAITS,
        };
    };
    (DEF { name: $name:literal, traits: $traits:expr }) => {
        pub static DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &forms::inputs::<{ forms::input_count(&SLOTS) }>(&SLOTS, Arity::One),
                outputs: &forms::outputs::<{ forms::output_count(&SLOTS) }>(&SLOTS, Arity::One),
                attrs: &forms::joined::<_, { ATTRS.len() + common::ATTRS.len() }>(
                    ATTRS,
                    common::ATTRS,
                ),
            },
            infer: |i| common::infer(i, &SLOTS),
            grad: Grad::None,
            cpu: |p| common::cpu(p, &SLOTS, update(p.op)),
            traits: $traits,
        };
    };
    (
        DEF { name: $name:literal }
        FUSED { name: $fused:literal }
        REDUCED { name: $reduced:literal }
    ) => {
        optimizer! {
            DEF { name: $name }
        }

        pub static FUSED: OpDef = OpDef {
            spec: OpSpec {
                name: $fused,
                inputs: &forms::inputs::<{ forms::input_count(&SLOTS) }>(&SLOTS, Arity::Many),
                outputs: &forms::outputs::<{ forms::output_count(&SLOTS) }>(&SLOTS, Arity::Many),
                ..DEF.spec
            },
            ..DEF
        };

        pub static REDUCED: OpDef = OpDef {
            spec: OpSpec {
                name: $reduced,
                inputs: FUSED.spec.inputs,
                outputs: &forms::joined::<
                    _,
                    { forms::output_count(&SLOTS) + reduced::OUTPUTS.len() },
                >(FUSED.spec.outputs, reduced::OUTPUTS),
                attrs: &forms::joined::<
                    _,
                    { ATTRS.len() + common::ATTRS.len() + reduced::ATTRS.len() },
                >(FUSED.spec.attrs, reduced::ATTRS),
            },
            infer: |i| reduced::infer(i, &SLOTS),
            grad: Grad::None,
            cpu: |p| reduced::cpu(p, &SLOTS, update(p.op)),
            traits: reduced::TRAITS,
        };
    };
}

pub(super) use optimizer;

pub(super) const fn input_count(slots: &Slots) -> usize {
    5 + slots.full.len() + slots.single.len()
}

pub(super) const fn output_count(slots: &Slots) -> usize {
    1 + slots.full.len() + slots.single.len()
}

/// Returns the input slots; SkipUpdate is the last. Parameters, gradients and state have the given
/// arity.
pub(super) const fn inputs<const N: usize>(slots: &Slots, arity: Arity) -> [SlotSpec; N] {
    let mut all = [optional("SkipUpdate"); N];
    all[0] = slot("Param", arity);
    all[1] = slot("Grad", arity);
    all[2] = one("LearningRate");
    all[3] = optional("GradScale");
    let mut at = 0;
    while at < slots.full.len() + slots.single.len() {
        let (name, _) = state(slots, at);
        all[4 + at] = slot(name, state_arity(slots, at, arity));
        at += 1;
    }
    all
}

/// Returns the output slots, like [`inputs`].
pub(super) const fn outputs<const N: usize>(slots: &Slots, arity: Arity) -> [SlotSpec; N] {
    let mut all = [slot("ParamOut", arity); N];
    let mut at = 0;
    while at + 1 < N {
        let (_, name) = state(slots, at);
        all[1 + at] = slot(name, state_arity(slots, at, arity));
        at += 1;
    }
    all
}

const fn slot(name: &'static str, arity: Arity) -> SlotSpec {
    SlotSpec { name, arity }
}

const fn state(slots: &Slots, at: usize) -> (&'static str, &'static str) {
    let full = slots.full.len();
    if at < full { slots.full[at] } else { slots.single[at - full] }
}

const fn state_arity(slots: &Slots, at: usize, arity: Arity) -> Arity {
    let full = slots.full.len();
    if at < full && at + slots.optional >= full { Arity::Optional } else { arity }
}

/// Concatenates two lists. `N` is the sum of their lengths.
pub(super) const fn joined<T: Copy, const N: usize>(first: &[T], second: &[T]) -> [T; N] {
    assert!(first.len() + second.len() == N);
    let mut all = [second[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}
