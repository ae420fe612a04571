//! Named tensors that persist between runs: parameters, optimizer state, statistics.

use fleet_base::{Error, Result, text};
use fleet_tensor::{DType, Layout, Shape, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Named tensors.
///
/// The executor may keep a tensor in another physical layout; [`Scope::tensor`] always returns the
/// row-major form.
///
/// ```
/// use fleet_exec::Scope;
/// use fleet_tensor::Tensor;
/// let mut scope = Scope::new();
/// scope.set("w", Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
/// assert_eq!(scope.tensor("w").unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0]);
/// assert!(scope.tensor("v").is_err());
/// assert_eq!(scope.meta("w"), Some((fleet_tensor::DType::F32, [2].into())));
/// scope.set_step(100); // random numbers resume from there
/// assert_eq!((scope.step(), scope.bytes()), (100, 8));
/// ```
#[derive(Debug)]
pub struct Scope {
    /// Scopes that share a tensor copy it before they change it.
    vars: BTreeMap<String, Arc<Tensor>>,
    /// Replaced whenever an address may have changed, so that a plan knows when to bind again.
    token: Arc<()>,
    /// Number of runs so far, which is part of the random state.
    step: u64,
}

impl Default for Scope {
    fn default() -> Self {
        Scope { vars: BTreeMap::new(), token: Arc::new(()), step: 0 }
    }
}

impl Scope {
    /// Creates an empty scope.
    pub fn new() -> Scope {
        Scope::default()
    }

    /// Sets or replaces a tensor.
    pub fn set(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.vars.insert(name.into(), Arc::new(tensor));
        self.token = Arc::new(());
    }

    /// Copies `tensor` into the existing tensor, which must have the same type and shape. The
    /// existing tensor keeps its address and layout.
    pub fn assign(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let held = self.raw(name)?;
        if held.dtype() != tensor.dtype() || held.shape() != tensor.shape() {
            return Err(Error::invalid(format!(
                "the value assigned to '{name}' has the wrong type or shape"
            ))
            .expected(format!("{}{}", held.dtype(), held.shape()))
            .got(format!("{}{}", tensor.dtype(), tensor.shape())));
        }
        let layout = held.layout();
        let converted = tensor.to_layout(layout)?;
        self.own(name)?.as_bytes_mut().copy_from_slice(converted.as_bytes());
        Ok(())
    }

    /// Returns a scope with the same tensors, which stay in memory once. A scope copies a shared
    /// tensor before a program or an assignment changes it, so that scopes never see each other's
    /// changes.
    ///
    /// ```
    /// use fleet_exec::Scope;
    /// use fleet_tensor::Tensor;
    /// let mut scope = Scope::new();
    /// scope.set("w", Tensor::from_slice(&[1.0f32], [1]).unwrap());
    /// let other = scope.share();
    /// scope.assign("w", &Tensor::from_slice(&[2.0f32], [1]).unwrap()).unwrap();
    /// assert_eq!(other.tensor("w").unwrap().to_vec::<f32>().unwrap(), [1.0]);
    /// ```
    pub fn share(&mut self) -> Scope {
        // Plans that were bound to tensors of this scope alone must not write to them any more.
        self.token = Arc::new(());
        Scope { vars: self.vars.clone(), token: Arc::new(()), step: self.step }
    }

    /// Removes a variable and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        // A copy of a shared tensor fails only if there is no memory for it.
        self.own(name).ok()?;
        self.token = Arc::new(());
        self.vars.remove(name).and_then(Arc::into_inner)
    }

    /// Returns whether the scope has the variable.
    pub fn contains(&self, name: &str) -> bool {
        self.vars.contains_key(name)
    }

    /// Returns a row-major copy of a tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.raw(name)?.to_layout(Layout::RowMajor)
    }

    /// Returns the type and shape of a tensor.
    pub fn meta(&self, name: &str) -> Option<(DType, Shape)> {
        self.vars.get(name).map(|tensor| (tensor.dtype(), *tensor.shape()))
    }

    /// Iterates over the names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.vars.keys().map(String::as_str)
    }

    /// Returns the number of variables.
    pub fn len(&self) -> usize {
        self.vars.len()
    }

    /// Returns whether the scope has no variables.
    pub fn is_empty(&self) -> bool {
        self.vars.is_empty()
    }

    /// Returns the total size of the tensors, in bytes.
    pub fn bytes(&self) -> usize {
        self.vars.values().map(|tensor| tensor.as_bytes().len()).sum()
    }

    /// Returns the number of runs on this scope. Saved with a checkpoint, it lets a resumed job
    /// draw the same random numbers as an uninterrupted one.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Sets the number of steps that have been run.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Returns the tensor as stored in memory.
    pub(crate) fn raw(&self, name: &str) -> Result<&Tensor> {
        self.vars.get(name).map(Arc::as_ref).ok_or_else(|| {
            let hint = text::did_you_mean(name, self.vars.keys().map(String::as_str));
            Error::invalid(format!("the scope has no variable '{name}'{hint}"))
                .help("run the startup program first, or load the variable")
        })
    }

    /// Returns a tensor to be changed, after copying it if another scope has it too.
    pub(crate) fn own(&mut self, name: &str) -> Result<&mut Tensor> {
        let layout = self.raw(name)?.layout();
        if self.vars.get_mut(name).is_some_and(|held| Arc::get_mut(held).is_none()) {
            let copied = self.raw(name)?.to_layout(layout)?;
            self.set(name, copied);
        }
        let held = self.vars.get_mut(name).and_then(Arc::get_mut);
        held.ok_or_else(|| Error::internal(format!("variable '{name}' is still shared")))
    }

    /// Converts the tensor to `layout` if it has another one.
    pub(crate) fn ensure_layout(&mut self, name: &str, layout: Layout) -> Result<()> {
        let held = self.raw(name)?;
        if held.layout() != layout {
            let moved = held.to_layout(layout)?;
            self.set(name, moved);
        }
        Ok(())
    }

    pub(crate) fn token(&self) -> &Arc<()> {
        &self.token
    }
}
