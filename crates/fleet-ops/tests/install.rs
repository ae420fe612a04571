//! Ops of the user in the registry of the process. The registry is fixed at its first use, so this
//! file is one test in a process of its own.

use fleet_base::Error;
use fleet_ir::{OpSpec, Program, SlotSpec, one};
use fleet_ops::{AmpClass, Grad, Kernel, OpDef, OpTraits, Registry};

const INPUTS: &[SlotSpec] = &[one("X")];
const OUTPUTS: &[SlotSpec] = &[one("Out")];

/// An op that returns its input, with this name.
const fn op(name: &'static str, grad: Grad) -> OpDef {
    OpDef {
        spec: OpSpec { name, inputs: INPUTS, outputs: OUTPUTS, attrs: &[] },
        infer: |i| {
            let x = i.input("X")?;
            i.set("Out", x.dtype, x.shape);
            Ok(())
        },
        grad,
        cpu: |_| Ok(Kernel::infallible(|_| {})),
        traits: OpTraits::amp(AmpClass::Gray),
    }
}

static OWN: OpDef = op("own_op", Grad::Op(&OWN_GRAD));
static OWN_GRAD: OpDef = op("own_op_grad", Grad::None);
static LATE: OpDef = op("late_op", Grad::None);
static SCALE: OpDef = op("scale", Grad::None);
static RELU_GRAD: OpDef = op("own_relu", Grad::Op(&GRAD_OF_RELU));
static GRAD_OF_RELU: OpDef = op("relu_grad", Grad::None);
static TWIN: OpDef = op("own_op", Grad::None);

fn check(what: &[&'static OpDef], part: &str) {
    let error = Registry::install(what).map(drop).expect_err("it is refused");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn own_ops_are_in_the_registry_of_the_process() -> Result<(), Error> {
    check(&[&SCALE], "duplicate op 'scale'");
    check(&[&RELU_GRAD], "duplicate op 'relu_grad'");
    check(&[&OWN, &TWIN], "duplicate op 'own_op'");

    let installed = Registry::install(&[&OWN])?;
    assert!(std::ptr::eq(installed, Registry::standard()));
    for name in ["own_op", "own_op_grad", "scale"] {
        assert_eq!(Registry::standard().get(name)?.spec.name, name);
    }
    let forward = Registry::standard().forward_of("own_op_grad");
    assert!(forward.is_some_and(|def| std::ptr::eq(def, &OWN)));
    let text = "fleet program 1\nblock0 {\n  %x: f32[1] data\n  %y: f32[1]\n  \
                (Out: %y) = own_op(X: %x)\n}\n";
    let program = Program::parse(text, Registry::standard())?;
    assert!(program.to_string().contains("(Out: %y) = own_op(X: %x)"), "{program}");

    // A second call with the same ops has no effect; other ops come too late.
    Registry::install(&[&OWN])?;
    check(&[&OWN, &LATE], "got late_op");
    Ok(())
}
