//! Ops that move elements: reshape, concat, split, slice, gather and similar.

use crate::{Net, Var};
use fleet_base::Error;
use fleet_tensor::DType;

impl Net {
    /// Concatenates variables along an axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let (x, y) = (net.data("x", [-1, 13], DType::F32), net.data("y", [-1, 3], DType::F32));
    /// assert_eq!(net.concat(&[x, y], 1).shape(), Shape::from([-1, 16]));
    /// ```
    #[track_caller]
    pub fn concat<'n>(&'n self, vars: &[Var<'n>], axis: i64) -> Var<'n> {
        self.op("concat").inputs("X", vars).attr("axis", axis).one("Out")
    }

    /// Stacks variables of the same shape along a new axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// assert_eq!(net.stack(&[x, x], 1).shape(), Shape::from([-1, 2, 13]));
    /// ```
    #[track_caller]
    pub fn stack<'n>(&'n self, vars: &[Var<'n>], axis: i64) -> Var<'n> {
        self.op("stack").inputs("X", vars).attr("axis", axis).one("Y")
    }

    /// Returns the elementwise sum of variables.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// assert_eq!(net.sum_of(&[x, x, x]).shape(), Shape::from([-1, 13]));
    /// ```
    #[track_caller]
    pub fn sum_of<'n>(&'n self, vars: &[Var<'n>]) -> Var<'n> {
        self.op("sum").inputs("X", vars).one("Out")
    }

    /// Returns the numbers `start`, `start + step` and so on below `end`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// assert_eq!(net.range(0.0, 8.0, 2.0, DType::I64).shape(), Shape::from([4]));
    /// ```
    #[track_caller]
    pub fn range(&self, start: f64, end: f64, step: f64, dtype: DType) -> Var<'_> {
        let call = self.op("range").attr("start", start).attr("end", end).attr("step", step);
        call.attr("dtype", dtype).one("Out")
    }
}

impl<'n> Var<'n> {
    /// Returns the same elements in another shape. 0 copies a dimension; -1 is inferred.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 26, 16], DType::F32).reshape([0, 416]);
    /// assert_eq!(y.shape(), Shape::from([-1, 416]));
    /// ```
    #[track_caller]
    pub fn reshape(self, shape: impl AsRef<[i64]>) -> Var<'n> {
        self.net.op("reshape2").input("X", self).attr("shape", shape.as_ref()).one("Out")
    }

    /// Flattens the dimensions from `axis` on into one.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 26, 16], DType::F32).flatten(1);
    /// assert_eq!(y.shape(), Shape::from([-1, 416]));
    /// ```
    #[track_caller]
    pub fn flatten(self, axis: i64) -> Var<'n> {
        let call = self.net.op("flatten_contiguous_range").input("X", self);
        call.attr("start_axis", axis).attr("stop_axis", -1i64).one("Out")
    }

    /// Removes the given dimensions, which must have size 1. An empty list removes all dimensions
    /// known to have size 1. The batch dimension is unknown and stays.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 1, 16, 1], DType::F32);
    /// assert_eq!(x.squeeze([1]).shape(), Shape::from([-1, 16, 1]));
    /// assert_eq!(x.squeeze([]).shape(), Shape::from([-1, 16]));
    /// ```
    #[track_caller]
    pub fn squeeze(self, axes: impl AsRef<[i64]>) -> Var<'n> {
        let mut axes = axes.as_ref().to_vec();
        if axes.is_empty() {
            let shape = self.shape();
            axes = (0..shape.rank() as i64).filter(|axis| shape[*axis as usize] == 1).collect();
            if axes.is_empty() {
                return self;
            }
        }
        self.net.op("squeeze2").input("X", self).attr("axes", axes).one("Out")
    }

    /// Inserts dimensions of size 1 at the given axes.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 16], DType::F32).unsqueeze([1]);
    /// assert_eq!(y.shape(), Shape::from([-1, 1, 16]));
    /// ```
    #[track_caller]
    pub fn unsqueeze(self, axes: impl AsRef<[i64]>) -> Var<'n> {
        self.net.op("unsqueeze2").input("X", self).attr("axes", axes.as_ref()).one("Out")
    }

    /// Permutes the dimensions.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 3, 8, 8], DType::F32).transpose([0, 2, 3, 1]);
    /// assert_eq!(y.shape(), Shape::from([-1, 8, 8, 3]));
    /// ```
    #[track_caller]
    pub fn transpose(self, order: impl AsRef<[i64]>) -> Var<'n> {
        self.net.op("transpose2").input("X", self).attr("axis", order.as_ref()).one("Out")
    }

    /// Splits into `N` equal parts along an axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let [a, b] = net.data("x", [-1, 6], DType::F32).split(-1);
    /// assert_eq!((a.shape(), b.shape()), (Shape::from([-1, 3]), Shape::from([-1, 3])));
    /// ```
    #[track_caller]
    pub fn split<const N: usize>(self, axis: i64) -> [Var<'n>; N] {
        let call = self.net.op("split").input("X", self).attr("axis", axis).attr("num", N);
        let made = call.many("Out", N);
        std::array::from_fn(|index| made[index])
    }

    /// Splits into parts of the given sizes along an axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let parts = net.data("x", [-1, 6], DType::F32).split_sections(&[1, 5], 1);
    /// assert_eq!(parts[1].shape(), Shape::from([-1, 5]));
    /// ```
    #[track_caller]
    pub fn split_sections(self, sections: &[i64], axis: i64) -> Vec<Var<'n>> {
        let call = self.net.op("split").input("X", self).attr("axis", axis);
        call.attr("sections", sections).many("Out", sections.len())
    }

    /// Splits an axis of size `N` into one variable per index, without that axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let [a, b] = net.data("x", [-1, 2, 3], DType::F32).unstack(1);
    /// assert_eq!((a.shape(), b.shape()), (Shape::from([-1, 3]), Shape::from([-1, 3])));
    /// ```
    #[track_caller]
    pub fn unstack<const N: usize>(self, axis: i64) -> [Var<'n>; N] {
        let call = self.net.op("unstack").input("X", self).attr("axis", axis).attr("num", N);
        let made = call.many("Y", N);
        std::array::from_fn(|index| made[index])
    }

    /// Returns the elements from `starts` up to `ends` along `axes`. Negative indices count from
    /// the end.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let first = net.data("x", [-1, 128, 768], DType::F32).slice([1], [0], [1]);
    /// assert_eq!(first.shape(), Shape::from([-1, 1, 768]));
    /// ```
    #[track_caller]
    pub fn slice(
        self,
        axes: impl AsRef<[i64]>,
        starts: impl AsRef<[i64]>,
        ends: impl AsRef<[i64]>,
    ) -> Var<'n> {
        let call = self.net.op("slice").input("Input", self).attr("axes", axes.as_ref());
        call.attr("starts", starts.as_ref()).attr("ends", ends.as_ref()).one("Out")
    }

    /// Like [`Var::slice`], with every `strides`-th element.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let even = net.data("x", [-1, 8], DType::F32).strided_slice([1], [0], [8], [2]);
    /// assert_eq!(even.shape(), Shape::from([-1, 4]));
    /// ```
    #[track_caller]
    pub fn strided_slice(
        self,
        axes: impl AsRef<[i64]>,
        starts: impl AsRef<[i64]>,
        ends: impl AsRef<[i64]>,
        strides: impl AsRef<[i64]>,
    ) -> Var<'n> {
        let call = self.net.op("strided_slice").input("Input", self).attr("axes", axes.as_ref());
        let call = call.attr("starts", starts.as_ref()).attr("ends", ends.as_ref());
        call.attr("strides", strides.as_ref()).one("Out")
    }

    /// Returns the rows with the given indices.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let rows = net.data("x", [100, 16], DType::F32).gather(net.data("i", [5], DType::I64));
    /// assert_eq!(rows.shape(), Shape::from([5, 16]));
    /// ```
    #[track_caller]
    pub fn gather(self, index: Var<'n>) -> Var<'n> {
        self.net.op("gather").input("X", self).input("Index", index).one("Out")
    }

    /// Returns elements or slices by their coordinates, which are the last dimension of `index`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let picked = net.data("x", [4, 5], DType::F32).gather_nd(net.data("i", [3, 2], DType::I64));
    /// assert_eq!(picked.shape(), Shape::from([3]));
    /// ```
    #[track_caller]
    pub fn gather_nd(self, index: Var<'n>) -> Var<'n> {
        self.net.op("gather_nd").input("X", self).input("Index", index).one("Out")
    }

    /// Returns a copy in which `updates` replace the rows `ids`. Without `overwrite`, these rows
    /// are the sums of all of their updates.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [100, 16], DType::F32);
    /// let (ids, rows) = (net.data("i", [5], DType::I64), net.data("u", [5, 16], DType::F32));
    /// assert_eq!(x.scatter(ids, rows, true).shape(), Shape::from([100, 16]));
    /// ```
    #[track_caller]
    pub fn scatter(self, ids: Var<'n>, updates: Var<'n>, overwrite: bool) -> Var<'n> {
        let call = self.net.op("scatter").input("X", self).input("Ids", ids);
        call.input("Updates", updates).attr("overwrite", overwrite).one("Out")
    }

    /// Repeats dimensions of size 1 to reach `shape`; -1 keeps a dimension.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [4, 1], DType::F32).expand([4, 3]);
    /// assert_eq!(y.shape(), Shape::from([4, 3]));
    /// ```
    #[track_caller]
    pub fn expand(self, shape: impl AsRef<[i64]>) -> Var<'n> {
        self.net.op("expand_v2").input("X", self).attr("shape", shape.as_ref()).one("Out")
    }

    /// Repeats the whole tensor along each dimension.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [4, 1], DType::F32).tile([2, 3]);
    /// assert_eq!(y.shape(), Shape::from([8, 3]));
    /// ```
    #[track_caller]
    pub fn tile(self, times: impl AsRef<[i64]>) -> Var<'n> {
        self.net.op("tile").input("X", self).attr("repeat_times", times.as_ref()).one("Out")
    }

    /// Pads each dimension with `value`. `paddings` has two numbers per dimension: before and
    /// after.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [4, 4], DType::F32).pad([0, 0, 1, 2], 0.0);
    /// assert_eq!(y.shape(), Shape::from([4, 7]));
    /// ```
    #[track_caller]
    pub fn pad(self, paddings: impl AsRef<[i64]>, value: f64) -> Var<'n> {
        let call = self.net.op("pad").input("X", self).attr("paddings", paddings.as_ref());
        call.attr("pad_value", value).one("Out")
    }

    /// Returns, for each index, a row of zeros with a one at that index.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1], DType::I64).one_hot(10);
    /// assert_eq!(y.shape(), Shape::from([-1, 10]));
    /// ```
    #[track_caller]
    pub fn one_hot(self, depth: i64) -> Var<'n> {
        self.net.op("one_hot_v2").input("X", self).attr("depth", depth).one("Out")
    }

    /// Returns a copy.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 10], DType::F32).assign();
    /// assert_eq!(y.shape(), Shape::from([-1, 10]));
    /// ```
    #[track_caller]
    pub fn assign(self) -> Var<'n> {
        self.net.op("assign").input("X", self).one("Out")
    }

    /// Copies into an existing variable, such as a counter.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let seen = net.create_global_var("seen", [1], 0.0, DType::F32);
    /// (seen + 1.0).assign_to(seen);
    /// # net.build()?;
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn assign_to(self, target: Var<'n>) -> Var<'n> {
        self.net.op("assign").input("X", self).output("Out", target).one("Out")
    }

    /// Returns the shape at run time, as i32.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let batch = net.data("x", [-1, 10], DType::F32).shape_var().slice([0], [0], [1]);
    /// assert_eq!((batch.shape(), batch.dtype()), (Shape::from([1]), DType::I32));
    /// ```
    #[track_caller]
    pub fn shape_var(self) -> Var<'n> {
        self.net.op("shape").input("Input", self).one("Out")
    }

    /// Returns a tensor filled with one value, whose first dimension is the batch size of this one.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let ones = net.data("x", [-1, 10], DType::F32).full_batch([-1, 1], 1.0, DType::F32);
    /// assert_eq!(ones.shape(), Shape::from([-1, 1]));
    /// ```
    #[track_caller]
    pub fn full_batch(self, shape: impl AsRef<[i64]>, value: f64, dtype: DType) -> Var<'n> {
        let call = self.net.op("fill_constant_batch_size_like").input("Input", self);
        call.attr("shape", shape.as_ref()).attr("dtype", dtype).attr("value", value).one("Out")
    }

    /// Returns a tensor filled with one value, with the shape and type of this one.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let zeros = net.data("x", [-1, 10], DType::F32).full_like(0.0);
    /// assert_eq!(zeros.shape(), Shape::from([-1, 10]));
    /// ```
    #[track_caller]
    pub fn full_like(self, value: f64) -> Var<'n> {
        self.net.op("fill_any_like").input("X", self).attr("value", value).one("Out")
    }

    /// Stops gradients at this variable and returns it.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let frozen = net.data("x", [-1, 10], DType::F32).fc(4).stop_gradient();
    /// assert!(net.build()?.main.var(frozen.id()).stop_gradient);
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn stop_gradient(self) -> Var<'n> {
        self.layer(|b, x| {
            let var = b.main.program.var_mut(x);
            if var.is_parameter() {
                return Err(Error::invalid(format!(
                    "cannot set stop_gradient on parameter '{}'",
                    var.name
                ))
                .help("create it with ParamAttr::trainable(false)"));
            }
            var.stop_gradient = true;
            Ok(x)
        })
    }
}
