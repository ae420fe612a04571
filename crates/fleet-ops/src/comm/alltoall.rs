//! `alltoall`: splits `X` along its first dimension into one piece per rank and sends piece `i` to
//! rank `i`. `Out` holds the pieces received from all ranks, in order.

use super::{ATTRS, TRAITS, label, nranks};
use crate::prelude::*;
use crate::rules::check_row_major;

pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "alltoall", inputs: &[one("X")], outputs: &[one("Out")], attrs: ATTRS },
    infer: |i| {
        let x = i.input("X")?;
        super::gather::check_divides(i, &x.shape, nranks(i)?)?;
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let label = label(p.op);
        Ok(Kernel::new(move |k| ring.all_to_all(&label, k.arg(0).bytes(), k.out(0).into_bytes())))
    },
    traits: OpTraits {
        traffic: |c| Some(Traffic::shares(c.input_bytes("X"), c.ranks())),
        ..TRAITS
    },
};
