//! Typed `u32` ids and the vectors that they index: an [`EntityMap`] assigns the ids, and
//! [`SecondaryMap`]s hold further facts about some of them.
//!
//! ```
//! use fleet_base::{entity_id, EntityMap};
//! entity_id! {
//!     /// A wheel.
//!     pub struct WheelId("wheel");
//! }
//! let mut wheels: EntityMap<WheelId, &str> = EntityMap::new();
//! let front = wheels.push("front");
//! assert_eq!(wheels[front], "front");
//! assert_eq!(front.to_string(), "wheel0");
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A typed index; implement it with [`entity_id!`](crate::entity_id).
pub trait EntityRef: Copy + Eq + Ord + fmt::Debug {
    /// Returns the id with this index. Panics if the index does not fit.
    fn from_index(index: usize) -> Self;
    /// Returns the position of the id's value in an [`EntityMap`].
    fn index(self) -> usize;
}

/// Defines a `u32` id type that implements [`EntityRef`].
#[macro_export]
macro_rules! entity_id {
    ($(#[$meta:meta])* $vis:vis struct $name:ident($prefix:literal);) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis struct $name(u32);

        impl $crate::EntityRef for $name {
            fn from_index(index: usize) -> Self {
                assert!(index < u32::MAX as usize, "more than u32::MAX entities");
                $name(index as u32)
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// A vector indexed by a typed id, which changes its length only at its end.
#[derive(Clone, PartialEq, Eq)]
pub struct EntityMap<K: EntityRef, V> {
    items: Vec<V>,
    key: PhantomData<K>,
}

impl<K: EntityRef, V> EntityMap<K, V> {
    /// Returns an empty map.
    pub fn new() -> Self {
        EntityMap { items: Vec::new(), key: PhantomData }
    }

    /// Appends a value and returns its id.
    pub fn push(&mut self, value: V) -> K {
        let id = K::from_index(self.items.len());
        self.items.push(value);
        id
    }

    /// The id that the next `push` will return.
    pub fn next_id(&self) -> K {
        K::from_index(self.items.len())
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether the map has no values.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the value of an id, or `None` if this map has not assigned the id.
    pub fn get(&self, id: K) -> Option<&V> {
        self.items.get(id.index())
    }

    /// Returns whether this map has assigned an id.
    pub fn contains(&self, id: K) -> bool {
        id.index() < self.items.len()
    }

    /// Keeps the first `len` values. Later calls of `push` return the ids of the others again.
    pub fn truncate(&mut self, len: usize) {
        self.items.truncate(len);
    }

    /// Iterates over ids and values, in the order of insertion.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(index, value)| (K::from_index(index), value))
    }

    /// Iterates over the values, in the order of insertion.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }

    /// Like [`EntityMap::values`], for changes.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.items.iter_mut()
    }

    /// Iterates over the ids, in ascending order. The iterator does not borrow the map.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.items.len()).map(K::from_index)
    }
}

impl<K: EntityRef, V> Default for EntityMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: EntityRef, V> Index<K> for EntityMap<K, V> {
    type Output = V;
    fn index(&self, id: K) -> &V {
        &self.items[id.index()]
    }
}

impl<K: EntityRef, V> IndexMut<K> for EntityMap<K, V> {
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.items[id.index()]
    }
}

impl<K: EntityRef, V> FromIterator<V> for EntityMap<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(iter: I) -> Self {
        EntityMap { items: iter.into_iter().collect(), key: PhantomData }
    }
}

impl<K: EntityRef, V: fmt::Debug> fmt::Debug for EntityMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A map from ids that an [`EntityMap`] assigned. It is a vector up to the largest id in use, so a
/// lookup hashes nothing, and it is iterated in the order of the ids.
///
/// ```
/// use fleet_base::{entity_id, EntityRef, SecondaryMap};
/// entity_id! {
///     pub struct WheelId("wheel");
/// }
/// let [front, rear] = [0, 1].map(WheelId::from_index);
/// let mut spokes: SecondaryMap<WheelId, u32> = SecondaryMap::new();
/// assert_eq!(spokes.insert(rear, 36), None);
/// *spokes.get_or_insert_with(rear, || 0) += 4;
/// assert_eq!((spokes[rear], spokes.get(front)), (40, None));
/// assert!(spokes.iter().eq([(rear, &40)]));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SecondaryMap<K: EntityRef, V> {
    items: Vec<Option<V>>,
    key: PhantomData<K>,
}

impl<K: EntityRef, V> SecondaryMap<K, V> {
    /// Returns an empty map.
    pub fn new() -> Self {
        SecondaryMap { items: Vec::new(), key: PhantomData }
    }

    /// Returns the value of an id, if it has one.
    pub fn get(&self, id: K) -> Option<&V> {
        self.items.get(id.index())?.as_ref()
    }

    /// Like [`SecondaryMap::get`], for changes.
    pub fn get_mut(&mut self, id: K) -> Option<&mut V> {
        self.items.get_mut(id.index())?.as_mut()
    }

    /// Returns whether an id has a value.
    pub fn contains(&self, id: K) -> bool {
        self.get(id).is_some()
    }

    /// Sets the value of an id, and returns the previous one.
    pub fn insert(&mut self, id: K, value: V) -> Option<V> {
        self.slot(id).replace(value)
    }

    /// Removes the value of an id, and returns it.
    pub fn remove(&mut self, id: K) -> Option<V> {
        self.items.get_mut(id.index())?.take()
    }

    /// Returns the value of an id, and sets it to the result of `make` if there is none.
    pub fn get_or_insert_with(&mut self, id: K, make: impl FnOnce() -> V) -> &mut V {
        self.slot(id).get_or_insert_with(make)
    }

    /// Iterates over the ids that have a value, in ascending order, with their values.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        let items = self.items.iter().enumerate();
        items.filter_map(|(index, value)| Some((K::from_index(index), value.as_ref()?)))
    }

    /// Iterates over the ids that have a value, in ascending order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = K> {
        self.iter().map(|(id, _)| id)
    }

    /// Iterates over the values, in ascending order of ids.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> {
        self.items.iter_mut().flatten()
    }

    fn slot(&mut self, id: K) -> &mut Option<V> {
        if id.index() >= self.items.len() {
            self.items.resize_with(id.index() + 1, || None);
        }
        &mut self.items[id.index()]
    }
}

impl<K: EntityRef, V> Default for SecondaryMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

/// Panics if the map has no value for the id.
impl<K: EntityRef, V> Index<K> for SecondaryMap<K, V> {
    type Output = V;
    fn index(&self, id: K) -> &V {
        match self.get(id) {
            Some(value) => value,
            None => panic!("no value for {id:?}"),
        }
    }
}

impl<K: EntityRef, V> FromIterator<(K, V)> for SecondaryMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        let mut map = SecondaryMap::new();
        iter.into_iter().for_each(|(id, value)| drop(map.insert(id, value)));
        map
    }
}

impl<K: EntityRef, V: fmt::Debug> fmt::Debug for SecondaryMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
