//! The native half of the Python package `baton`: sidecars that live in a Python process.
//!
//! Nothing is decided here. [`sglang`] runs the very daemon that `baton-sidecar-sglang` is; [`worker`] runs a sidecar beside an
//! engine that is an object in the same process. Whatever waits, waits without the interpreter's lock. The Python half, in
//! `baton/`, is what calls the engine. Start reading there.

use pyo3::prelude::*;

mod sglang;
mod worker;

/// See `baton/_native.pyi`.
#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use super::sglang::run_sglang_sidecar;
    #[pymodule_export]
    use super::worker::Worker;
}
