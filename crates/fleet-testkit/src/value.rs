//! Values of variables in tests: dense tensors and sparse rows.

use fleet_base::{Error, Result};
use fleet_ir::VarKind;
use fleet_ops::Meta;
use fleet_tensor::{DType, Layout, Shape, SparseRows, Tensor, bf16, f16};

/// The value of a variable.
#[derive(Debug)]
pub enum Value {
    /// A dense tensor.
    Dense(Tensor),
    /// Some rows of a matrix.
    Rows(SparseRows),
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Dense(tensor)
    }
}

impl From<SparseRows> for Value {
    fn from(rows: SparseRows) -> Value {
        Value::Rows(rows)
    }
}

impl Value {
    /// A dense f32 tensor.
    ///
    /// # Panics
    /// If the number of values does not match the shape. All constructors here panic, so that tests
    /// fail loudly.
    pub fn f32(shape: impl Into<Shape>, values: &[f32]) -> Value {
        Tensor::from_slice(values, shape).expect("values fit the shape").into()
    }

    /// A tensor of integers of 64 bits. Panics if the shape has another size.
    pub fn i64(shape: impl Into<Shape>, values: &[i64]) -> Value {
        Tensor::from_slice(values, shape).expect("values fit the shape").into()
    }

    /// A tensor of integers of 32 bits. Panics if the shape has another size.
    pub fn i32(shape: impl Into<Shape>, values: &[i32]) -> Value {
        Tensor::from_slice(values, shape).expect("values fit the shape").into()
    }

    /// A tensor of any type. The numbers are converted as by `as`.
    pub fn of(dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> Result<Value> {
        Ok(tensor_of(dtype, shape.into(), values)?.into())
    }

    /// Values evenly distributed over [low, high), determined by the seed. Element `i` is computed
    /// from the upper 24 bits of splitmix64 at `seed * 2^32 + i`. Integers are rounded down.
    pub fn random(dtype: DType, shape: impl Into<Shape>, seed: u64, low: f64, high: f64) -> Value {
        let shape = shape.into();
        let values: Vec<f64> = (0..shape.len() as u64)
            .map(|i| {
                let unit = (splitmix64((seed << 32) + i) >> 40) as f64 / (1u64 << 24) as f64;
                let value = low + (high - low) * unit;
                if dtype.is_float() { value } else { value.floor() }
            })
            .collect();
        Value::of(dtype, shape, &values).expect("one value per element")
    }

    /// Sparse rows. `values` holds one row of `shape` for each id.
    pub fn rows(shape: impl Into<Shape>, ids: &[i64], values: &[f32]) -> Value {
        let shape = shape.into();
        let mut dims = shape;
        dims.dims_mut()[0] = ids.len() as i64;
        Value::Rows(SparseRows {
            rows: Tensor::from_slice(ids, [ids.len() as i64]).expect("one id per row"),
            values: Tensor::from_slice(values, dims).expect("one row of values per id"),
            count: ids.len(),
            height: shape.at(0),
        })
    }

    /// Zeroed memory for a variable.
    pub fn zeros(meta: &Meta, layout: Layout) -> Result<Value> {
        match meta.kind {
            VarKind::Dense => Ok(Tensor::zeros_in(meta.dtype, meta.shape, layout)?.into()),
            VarKind::SparseRows => {
                let mut dims = meta.shape;
                dims.dims_mut()[0] = meta.rows as i64;
                Ok(Value::Rows(SparseRows {
                    rows: Tensor::zeros(DType::I64, [meta.rows as i64])?,
                    values: Tensor::zeros(meta.dtype, dims)?,
                    count: 0,
                    height: meta.shape.at(0),
                }))
            }
            VarKind::TensorArray => {
                Err(Error::unsupported("tensor arrays are not supported by the testkit"))
            }
        }
    }

    /// The tensor; for sparse rows, the tensor of their values.
    pub fn tensor(&self) -> &Tensor {
        match self {
            Value::Dense(tensor) => tensor,
            Value::Rows(rows) => &rows.values,
        }
    }

    /// Like [`Value::tensor`], for changes.
    pub fn tensor_mut(&mut self) -> &mut Tensor {
        match self {
            Value::Dense(tensor) => tensor,
            Value::Rows(rows) => &mut rows.values,
        }
    }

    /// Returns the type and shape.
    pub fn meta(&self) -> Meta {
        match self {
            Value::Dense(tensor) => Meta::dense(tensor.dtype(), *tensor.shape()),
            Value::Rows(rows) => {
                let mut shape = *rows.values.shape();
                shape.dims_mut()[0] = rows.height as i64;
                Meta::sparse(rows.values.dtype(), shape, rows.rows.physical_len())
            }
        }
    }

    /// Copies the value. Fails if there is no memory for it.
    pub fn try_clone(&self) -> Result<Value> {
        Ok(match self {
            Value::Dense(tensor) => tensor.try_clone()?.into(),
            Value::Rows(it) => Value::Rows(SparseRows {
                rows: it.rows.try_clone()?,
                values: it.values.try_clone()?,
                count: it.count,
                height: it.height,
            }),
        })
    }

    /// Fills the memory with garbage, so that elements which a kernel does not write are detected.
    pub fn fill_with_garbage(&mut self, byte: u8) {
        self.tensor_mut().as_bytes_mut().fill(byte);
        if let Value::Rows(rows) = self {
            rows.rows.as_bytes_mut().fill(byte);
            rows.count = 0;
        }
    }

    /// The significant content: all bytes of a dense tensor, or the used rows of sparse rows.
    pub fn content(&self) -> (Vec<i64>, &[u8]) {
        match self {
            Value::Dense(tensor) => (Vec::new(), tensor.as_bytes()),
            Value::Rows(rows) => {
                let ids = rows.rows.as_slice::<i64>().expect("ids are i64");
                let bytes = rows.values.as_bytes();
                let row_bytes = bytes.len() / ids.len().max(1);
                (ids[..rows.count].to_vec(), &bytes[..rows.count * row_bytes])
            }
        }
    }

    /// All elements as numbers, in row-major order. Sparse rows are converted to a dense matrix.
    pub fn numbers(&self) -> Vec<f64> {
        match self {
            Value::Dense(tensor) => {
                let physical = numbers_of(tensor);
                match tensor.layout() {
                    Layout::RowMajor => physical,
                    Layout::Filter64 => from_filter64(tensor.shape(), &physical),
                }
            }
            Value::Rows(rows) => {
                let ids = rows.rows.as_slice::<i64>().expect("ids are i64");
                let values = numbers_of(&rows.values);
                let width = values.len() / ids.len().max(1);
                let mut dense = vec![0.0; rows.height * width];
                for (row, id) in ids[..rows.count].iter().enumerate() {
                    for col in 0..width {
                        dense[*id as usize * width + col] += values[row * width + col];
                    }
                }
                dense
            }
        }
    }
}

fn splitmix64(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn tensor_of(dtype: DType, shape: Shape, values: &[f64]) -> Result<Tensor> {
    fn make<T: fleet_tensor::Element>(
        shape: Shape,
        values: &[f64],
        cast: impl Fn(f64) -> T,
    ) -> Result<Tensor> {
        Tensor::from_slice(&values.iter().map(|value| cast(*value)).collect::<Vec<T>>(), shape)
    }
    match dtype {
        DType::Bool => {
            Tensor::from_bools(&values.iter().map(|value| *value != 0.0).collect::<Vec<_>>(), shape)
        }
        DType::U8 => make(shape, values, |value| value as u8),
        DType::I8 => make(shape, values, |value| value as i8),
        DType::I16 => make(shape, values, |value| value as i16),
        DType::I32 => make(shape, values, |value| value as i32),
        DType::I64 => make(shape, values, |value| value as i64),
        DType::F16 => make(shape, values, f16::from_f64),
        DType::BF16 => make(shape, values, bf16::from_f64),
        DType::F32 => make(shape, values, |value| value as f32),
        DType::F64 => make(shape, values, |value| value),
    }
}

fn numbers_of(tensor: &Tensor) -> Vec<f64> {
    fn read<T: fleet_tensor::Element>(tensor: &Tensor, cast: impl Fn(T) -> f64) -> Vec<f64> {
        tensor
            .as_slice::<T>()
            .expect("the type was matched before")
            .iter()
            .map(|it| cast(*it))
            .collect()
    }
    match tensor.dtype() {
        DType::Bool | DType::U8 => read::<u8>(tensor, f64::from),
        DType::I8 => read::<i8>(tensor, f64::from),
        DType::I16 => read::<i16>(tensor, f64::from),
        DType::I32 => read::<i32>(tensor, f64::from),
        DType::I64 => read::<i64>(tensor, |value| value as f64),
        DType::F16 => read::<f16>(tensor, f64::from),
        DType::BF16 => read::<bf16>(tensor, f64::from),
        DType::F32 => read::<f32>(tensor, f64::from),
        DType::F64 => read::<f64>(tensor, |value| value),
    }
}

/// Converts a filter [Cout, Cin, kh, kw] to the layout of the convolution kernels.
pub fn to_filter64(tensor: &Tensor) -> Result<Tensor> {
    let shape = *tensor.shape();
    let mut packed = Tensor::zeros_in(tensor.dtype(), shape, Layout::Filter64)?;
    let from = tensor.as_slice::<f32>()?;
    let to = packed.as_mut_slice::<f32>()?;
    for_filter64(&shape, |plain, physical| to[physical] = from[plain]);
    Ok(packed)
}

fn from_filter64(shape: &Shape, physical: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; shape.len()];
    for_filter64(shape, |plain, at| out[plain] = physical[at]);
    out
}

/// Calls `each(row-major index, index in Filter64)` for every element.
fn for_filter64(shape: &Shape, mut each: impl FnMut(usize, usize)) {
    let (cout, cin) = (shape.at(0), shape.at(1));
    let taps = shape.product(2..shape.rank());
    for o in 0..cout {
        for c in 0..cin {
            for tap in 0..taps {
                let physical = (((o / 64) * taps + tap) * cin + c) * 64 + o % 64;
                each((o * cin + c) * taps + tap, physical);
            }
        }
    }
}
