//! Locks without poisoning.
//!
//! A thread that panics under a lock ends its process or its request, and reports why. What the
//! lock protects is consistent after every statement, so other threads use it as it is: an error
//! about poisoning would hide the first one.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};
use std::time::Duration;

/// Locks the mutex.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the mutex, or returns `None` if another thread holds it.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks for reading.
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing.
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the condition variable is notified, or without a reason.
pub fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// As [`wait`], for a limited time; also returns whether that has passed.
pub fn wait_for<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let waited = changed.wait_timeout(guard, limit);
    let (guard, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
    (guard, outcome.timed_out())
}

/// Waits while a condition holds, for a limited time; also returns whether that has passed.
pub fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
    condition: impl FnMut(&mut T) -> bool,
) -> (MutexGuard<'a, T>, bool) {
    let waited = changed.wait_timeout_while(guard, limit, condition);
    let (guard, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
    (guard, outcome.timed_out())
}
