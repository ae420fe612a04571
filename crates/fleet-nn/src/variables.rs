//! Inputs, parameters and other variables of a network.

use crate::{Init, Net, ParamAttr, Var};
use fleet_ir::Program;
use fleet_tensor::{DType, Shape};
use std::panic::Location;

impl Net {
    /// Adds an input variable, which is fed. Dimension -1 is the batch.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// assert_eq!(x.shape(), Shape::from([-1, 13]));
    /// ```
    #[track_caller]
    pub fn data(&self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Var<'_> {
        self.data_lod(name, shape, dtype, 0)
    }

    /// Like [`Net::data`], for ragged rows with `lod_level` levels of nesting.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let words = net.data_lod("words", [-1, 1], DType::I64, 1);
    /// assert_eq!(net.build().unwrap().main.var(words.id()).lod_level, 1);
    /// ```
    #[track_caller]
    pub fn data_lod(
        &self,
        name: &str,
        shape: impl Into<Shape>,
        dtype: DType,
        lod_level: u8,
    ) -> Var<'_> {
        let shape = shape.into();
        self.try_emit_var(Location::caller(), |b| {
            let shape = Shape::new(&shape)?;
            let var = fleet_ir::Var { lod_level, ..fleet_ir::Var::data(name, dtype, shape) };
            b.main.program.add_var(Program::ROOT, var)
        })
    }

    /// Returns a variable of the main program by name.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// net.data("x", [-1, 13], DType::F32).fc(1);
    /// assert_eq!(net.var("fc_0.w_0").shape(), Shape::from([13, 1]));
    /// ```
    #[track_caller]
    pub fn var(&self, name: &str) -> Var<'_> {
        self.try_emit_var(Location::caller(), |b| b.main.program.var_named(name))
    }

    /// Adds a parameter. If a parameter with the attribute's name exists, it is shared.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let table = net.create_parameter([1000, 16], DType::F32, Init::normal(0.0, 0.1));
    /// assert_eq!(table.name(), "create_parameter_0.w_0");
    /// let same = net.create_parameter([1000, 16], DType::F32, "create_parameter_0.w_0");
    /// assert_eq!(same.id(), table.id());
    /// ```
    #[track_caller]
    pub fn create_parameter(
        &self,
        shape: impl Into<Shape>,
        dtype: DType,
        attr: impl Into<ParamAttr>,
    ) -> Var<'_> {
        let (shape, attr) = (shape.into(), attr.into());
        self.try_emit_var(Location::caller(), |b| {
            let layer = b.layer_name("create_parameter", None);
            b.parameter(&layer, "w", &attr, shape, dtype, &Init::XAVIER_UNIFORM)
        })
    }

    /// Adds a variable that persists across steps and starts as `value`, such as a counter or a
    /// running sum.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let total = net.create_global_var("total_cnt", [1], 0.0, DType::F32);
    /// (total + 32.0).assign_to(total);
    /// # net.build()?;
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn create_global_var(
        &self,
        name: &str,
        shape: impl Into<Shape>,
        value: f64,
        dtype: DType,
    ) -> Var<'_> {
        let shape = shape.into();
        self.try_emit_var(Location::caller(), |b| b.global_var(name, shape, dtype, value))
    }

    /// Returns a tensor filled with one value, created in each step.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let ones = net.full([2, 3], 1.0, DType::F32);
    /// assert_eq!(ones.shape(), Shape::from([2, 3]));
    /// ```
    #[track_caller]
    pub fn full(&self, shape: impl Into<Shape>, value: f64, dtype: DType) -> Var<'_> {
        self.op("fill_constant")
            .attr("shape", shape.into().to_vec())
            .attr("dtype", dtype)
            .attr("value", value)
            .one("Out")
    }
}
