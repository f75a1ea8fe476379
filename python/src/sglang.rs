//! The sidecar for SGLang as a function that returns when it has ended.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the sidecar that SGLang has started this process for, until the process is asked to stop. Answers its exit code.
#[pyfunction]
pub(crate) fn run_sglang_sidecar(py: Python<'_>, argv: Vec<OsString>) -> u8 {
    let program = OsString::from("baton.sglang");
    let command_line = std::iter::once(program).chain(argv);
    py.detach(|| baton_daemon::run::with_arguments(command_line, baton_sidecar_sglang::hook::run))
}
