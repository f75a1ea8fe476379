//! What threads share, in an ordinary build and in one for loom's model checker.
//!
//! `Arc` is the standard library's in both: that it counts rightly is not ours to check.

#[cfg(not(loom))]
pub(crate) use ordinary::*;

#[cfg(loom)]
pub(crate) use modelled::*;

#[cfg(not(loom))]
mod ordinary {
    use std::ops::Deref;
    use std::sync::{Arc, PoisonError};

    use arc_swap::{ArcSwap, ArcSwapOption};

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::MutexGuard;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

    /// A lock for writers. A panic of one of them does not stop the others: they find what it finished.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A value that is replaced as a whole under its readers.
    #[derive(Debug)]
    pub(crate) struct Published<T>(ArcSwap<T>);

    impl<T> Published<T> {
        pub(crate) fn new(value: Arc<T>) -> Self {
            Self(ArcSwap::new(value))
        }

        pub(crate) fn load(&self) -> impl Deref<Target = Arc<T>> {
            self.0.load()
        }

        pub(crate) fn publish(&self, value: Arc<T>) {
            self.0.store(value);
        }
    }

    /// The same for a value that may be absent.
    #[derive(Debug)]
    pub(crate) struct Place<T>(ArcSwapOption<T>);

    impl<T> Place<T> {
        pub(crate) fn new(value: Option<Arc<T>>) -> Self {
            Self(ArcSwapOption::new(value))
        }

        pub(crate) fn load(&self) -> impl Deref<Target = Option<Arc<T>>> {
            self.0.load()
        }

        pub(crate) fn put(&self, value: Option<Arc<T>>) {
            self.0.store(value);
        }
    }
}

#[cfg(loom)]
mod modelled {
    use std::ops::Deref;
    use std::sync::Arc;

    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64};

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no model panics and goes on")
        }
    }

    #[derive(Debug)]
    pub(crate) struct Published<T>(Mutex<Arc<T>>);

    impl<T> Published<T> {
        pub(crate) fn new(value: Arc<T>) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn load(&self) -> impl Deref<Target = Arc<T>> {
            Loaded(self.0.lock().clone())
        }

        pub(crate) fn publish(&self, value: Arc<T>) {
            *self.0.lock() = value;
        }
    }

    #[derive(Debug)]
    pub(crate) struct Place<T>(Mutex<Option<Arc<T>>>);

    impl<T> Place<T> {
        pub(crate) fn new(value: Option<Arc<T>>) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn load(&self) -> impl Deref<Target = Option<Arc<T>>> {
            Loaded(self.0.lock().clone())
        }

        pub(crate) fn put(&self, value: Option<Arc<T>>) {
            *self.0.lock() = value;
        }
    }

    struct Loaded<T>(T);

    impl<T> Deref for Loaded<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }
}
