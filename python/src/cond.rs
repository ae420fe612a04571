//! `static.nn.cond`: the steps of a choice between two branches. Between two steps the program
//! holds the open branch, to which layers are added.

use crate::error::OrRaise;
use crate::program::{Place, ProgramCell, index, vars, with_net};
use fleet::nn::OpenCond;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Begins the first branch of a choice by the variable `condition`.
#[pyfunction]
pub fn begin_cond(
    main: &Bound<'_, ProgramCell>,
    startup: &Bound<'_, ProgramCell>,
    place: Place,
    condition: u32,
    name: Option<&str>,
) -> PyResult<()> {
    let open = with_net(main.get(), startup.get(), &place, |net| {
        let condition = vars(net, &[condition])?[0];
        let _name = name.map(|name| net.name_guard(name));
        net.begin_cond(condition).or_raise()
    })?;
    main.get().lock()?.branches.push(open);
    Ok(())
}

/// Ends the first branch, and begins the second one.
#[pyfunction]
pub fn begin_else(
    main: &Bound<'_, ProgramCell>,
    startup: &Bound<'_, ProgramCell>,
    place: Place,
    results: Vec<u32>,
) -> PyResult<()> {
    let mut open = taken(main.get())?;
    with_net(main.get(), startup.get(), &place, |net| {
        net.begin_else(&mut open, &vars(net, &results)?).or_raise()
    })?;
    main.get().lock()?.branches.push(open);
    Ok(())
}

/// Ends the second branch, and returns the results of the choice.
#[pyfunction]
pub fn end_cond(
    main: &Bound<'_, ProgramCell>,
    startup: &Bound<'_, ProgramCell>,
    place: Place,
    results: Vec<u32>,
    name: Option<&str>,
) -> PyResult<Vec<u32>> {
    let open = taken(main.get())?;
    with_net(main.get(), startup.get(), &place, |net| {
        let results = vars(net, &results)?;
        let _name = name.map(|name| net.name_guard(name));
        let made = net.end_cond(open, &results).or_raise()?;
        Ok(made.iter().map(|var| index(var.id())).collect())
    })
}

/// Takes the innermost open branch out of a program.
fn taken(main: &ProgramCell) -> PyResult<OpenCond> {
    let open = main.lock()?.branches.pop();
    open.ok_or_else(|| PyRuntimeError::new_err("the program has no open branch of cond"))
}
