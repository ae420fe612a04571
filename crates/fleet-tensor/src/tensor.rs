//! Tensors and sparse rows.

use crate::{Buffer, DType, Element, Layout, Shape, view_as, view_as_mut};
use fleet_base::{Error, Result};
use half::{bf16, f16};
use std::fmt;

/// A dense tensor that owns its memory.
///
/// ```
/// use fleet_tensor::{Shape, Tensor};
/// let t = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
/// assert_eq!(t.shape(), &Shape::from([2, 2]));
/// assert_eq!(t.as_slice::<f32>().unwrap()[3], 4.0);
/// ```
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    layout: Layout,
    data: Buffer,
}

impl Tensor {
    /// Returns a tensor of zeros.
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        Self::zeros_in(dtype, shape.into(), Layout::RowMajor)
    }

    /// Returns a tensor without elements, which holds no memory.
    pub fn empty() -> Tensor {
        let (dtype, shape, layout) = (DType::F32, Shape::from([0]), Layout::RowMajor);
        Tensor { dtype, shape, layout, data: Buffer::empty() }
    }

    /// Returns a zero tensor in a given physical layout.
    pub fn zeros_in(dtype: DType, shape: Shape, layout: Layout) -> Result<Tensor> {
        let too_large = || Error::invalid("size of the shape is unknown or too large").got(shape);
        shape.numel().ok_or_else(too_large)?;
        let bytes = layout.physical_len(&shape).checked_mul(dtype.size()).ok_or_else(too_large)?;
        Ok(Tensor { dtype, shape, layout, data: Buffer::zeroed(bytes)? })
    }

    /// Returns a tensor of these values, in row-major order.
    pub fn from_slice<T: Element>(values: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if shape.numel() != Some(values.len()) {
            return Err(Error::invalid("number of values does not match the shape")
                .expected(format!("{shape}"))
                .got(format!("{} values", values.len())));
        }
        let mut tensor = Tensor::zeros(T::DTYPE, shape)?;
        tensor.as_mut_slice::<T>()?.copy_from_slice(values);
        Ok(tensor)
    }

    /// Returns a tensor of shape `[]` that holds one number.
    pub fn scalar<T: Element>(value: T) -> Result<Tensor> {
        Tensor::from_slice(&[value], Shape::SCALAR)
    }

    /// Returns a tensor of booleans, stored as bytes of 0 and 1.
    pub fn from_bools(values: &[bool], shape: impl Into<Shape>) -> Result<Tensor> {
        let bytes: Vec<u8> = values.iter().map(|value| u8::from(*value)).collect();
        let mut tensor = Tensor::from_slice(&bytes, shape)?;
        tensor.dtype = DType::Bool;
        Ok(tensor)
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the physical layout; tensors of users are row-major.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the number of elements in memory, including the layout's padding.
    pub fn physical_len(&self) -> usize {
        self.data.bytes() / self.dtype.size()
    }

    /// Returns the bytes of the elements, in physical order.
    pub fn as_bytes(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// Returns the bytes of the elements, to be changed.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.data.as_mut_slice()
    }

    /// Returns the address of the elements.
    pub fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// Returns the elements in physical order.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_type::<T>()?;
        Ok(view_as(self.data.as_slice()))
    }

    /// Returns the elements in physical order, to be changed.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check_type::<T>()?;
        Ok(view_as_mut(self.data.as_mut_slice()))
    }

    /// Returns a copy of the elements, in physical order.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.as_slice::<T>()?.to_vec())
    }

    /// Returns the element of a tensor that has only one.
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.as_slice::<T>()? {
            [one] => Ok(*one),
            many => Err(Error::invalid("tensor is not a single number")
                .expected("1 element")
                .got(format!("{} of shape {}", many.len(), self.shape))),
        }
    }

    /// Returns an element, in physical order, as text.
    ///
    /// ```
    /// use fleet_tensor::Tensor;
    /// let t = Tensor::from_slice(&[1.0f32, 2.5], [2]).unwrap();
    /// assert_eq!((t.element_text(1), format!("{t:?}")), ("2.5".into(), "f32[2] 1.0 2.5".into()));
    /// ```
    ///
    /// # Panics
    /// Panics if there is no such element.
    pub fn element_text(&self, index: usize) -> String {
        let bytes = self.as_bytes();
        match self.dtype {
            DType::Bool => (bytes[index] != 0).to_string(),
            DType::U8 => bytes[index].to_string(),
            DType::I8 => view_as::<_, i8>(bytes)[index].to_string(),
            DType::I16 => view_as::<_, i16>(bytes)[index].to_string(),
            DType::I32 => view_as::<_, i32>(bytes)[index].to_string(),
            DType::I64 => view_as::<_, i64>(bytes)[index].to_string(),
            DType::F16 => format!("{:?}", view_as::<_, f16>(bytes)[index].to_f32()),
            DType::BF16 => format!("{:?}", view_as::<_, bf16>(bytes)[index].to_f32()),
            DType::F32 => format!("{:?}", view_as::<_, f32>(bytes)[index]),
            DType::F64 => format!("{:?}", view_as::<_, f64>(bytes)[index]),
        }
    }

    /// Returns the same elements with another shape.
    pub fn reshaped(mut self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if self.layout != Layout::RowMajor || shape.numel() != self.shape.numel() {
            return Err(Error::invalid("cannot reshape the tensor")
                .expected(format!("{} elements", self.shape.len()))
                .got(shape));
        }
        self.shape = shape;
        Ok(self)
    }

    /// Returns a copy. Fails if there is no memory for it.
    pub fn try_clone(&self) -> Result<Tensor> {
        let mut copy = Tensor::zeros_in(self.dtype, self.shape, self.layout)?;
        copy.as_bytes_mut().copy_from_slice(self.as_bytes());
        Ok(copy)
    }

    /// Returns a copy in another physical layout.
    pub fn to_layout(&self, layout: Layout) -> Result<Tensor> {
        if self.layout == layout {
            return self.try_clone();
        }
        let mut moved = Tensor::zeros_in(self.dtype, self.shape, layout)?;
        let dims = [self.shape.at(0), self.shape.at(1), self.shape.product(2..self.shape.rank())];
        let (from, to) = (self.data.as_slice(), moved.data.as_mut_slice());
        match self.dtype.size() {
            1 => move_filter::<1>(from, to, dims, layout),
            2 => move_filter::<2>(from, to, dims, layout),
            4 => move_filter::<4>(from, to, dims, layout),
            _ => move_filter::<8>(from, to, dims, layout),
        }
        Ok(moved)
    }

    fn check_type<T: Element>(&self) -> Result<()> {
        if T::reads(self.dtype) {
            Ok(())
        } else {
            Err(Error::invalid("wrong element type of a tensor").expected(T::DTYPE).got(self.dtype))
        }
    }
}

/// Copies a filter of `[c_out, c_in, taps]` weights of `N` bytes each into another layout. It reads
/// one cache line of plain weights at a time, for all channels of a panel. The packed weights then
/// stay in the cache as well.
fn move_filter<const N: usize>(
    from: &[u8],
    to: &mut [u8],
    [c_out, c_in, taps]: [usize; 3],
    layout: Layout,
) {
    const PANEL: usize = 64;
    const BLOCK: usize = 16;
    let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
    let len = c_in * taps;
    for first in (0..c_out).step_by(PANEL) {
        let channels = (c_out - first).min(PANEL);
        for at in (0..len).step_by(BLOCK) {
            let row = |k: usize| (at + k) % taps * c_in + (at + k) / taps;
            let places: [usize; BLOCK] = std::array::from_fn(|k| first * len + row(k) * PANEL);
            let places = &places[..(len - at).min(BLOCK)];
            for channel in 0..channels {
                let plain = (first + channel) * len + at;
                for (plain, place) in (plain..).zip(places.iter().map(|place| place + channel)) {
                    match layout {
                        Layout::Filter64 => to[place] = from[plain],
                        Layout::RowMajor => to[plain] = from[place],
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)?;
        if self.layout != Layout::RowMajor {
            return write!(f, " {}", self.layout);
        }
        let count = self.shape.len();
        for index in 0..count.min(DEBUG_VALUES_MAX) {
            write!(f, " {}", self.element_text(index))?;
        }
        if count > DEBUG_VALUES_MAX { write!(f, " ..") } else { Ok(()) }
    }
}

/// Limit of the values that `Debug` shows, so that errors and logs stay readable.
const DEBUG_VALUES_MAX: usize = 8;

/// Some rows of a tall matrix, such as the gradient of an embedding: `values[i]` belongs to row
/// `rows[i]`. The tensors have capacity for `rows.len()` rows, and the first `count` are in use.
#[derive(Debug)]
pub struct SparseRows {
    /// Row indices as i64, one per row.
    pub rows: Tensor,
    /// Values of each row.
    pub values: Tensor,
    /// Number of rows in use.
    pub count: usize,
    /// Number of rows of the whole matrix.
    pub height: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_survives_packing() {
        let shape = Shape::from([70, 3, 2, 2]);
        let values: Vec<f32> = (0..shape.len()).map(|i| i as f32).collect();
        let filter = Tensor::from_slice(&values, shape).unwrap();
        let packed = filter.to_layout(Layout::Filter64).unwrap();
        assert_eq!(packed.physical_len(), 128 * 12);
        // Output channel 65, input channel 1, row 1, column 0.
        let at = ((4 + 2) * 3 + 1) * 64 + 1;
        assert_eq!(packed.as_slice::<f32>().unwrap()[at], values[(65 * 3 + 1) * 4 + 2]);
        assert_eq!(packed.to_layout(Layout::RowMajor).unwrap().to_vec::<f32>().unwrap(), values);
    }
}
