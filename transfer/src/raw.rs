//! All of this crate's `unsafe`: a library that is loaded for good, and memory that others write.

#![allow(
    unsafe_code,
    reason = "the only module that may; each use says what makes it right"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{OnceLock, PoisonError, RwLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nixl_sys::{MemType, MemoryRegion, NixlDescriptor};

/// Never closed: NIXL's threads run its code until the process ends.
static LOADED: OnceLock<Library> = OnceLock::new();

/// Loads a library for the life of the process, if it has all of these functions.
///
/// What `nixl-sys` opens later by the library's bare name is then this very file, since the name is its SONAME.
pub(crate) fn load(file: &Path, functions: &[&str]) -> Result<(), String> {
    // SAFETY: initialisers of the library run. That is what its owner wants who named this file or put it beside an engine.
    let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| error.to_string())?;
    for function in functions {
        // SAFETY: the symbol is looked for and neither called nor read.
        let symbol = unsafe { library.get::<*const ()>(function.as_bytes()) };
        symbol.map_err(|_| format!("it has no function {function}"))?;
    }
    let _ = LOADED.set(library);
    Ok(())
}

/// Memory whose address other processes know.
///
/// A network card, a kernel or another process may write it at any time, so no reference into it is ever made: bytes are
/// copied in and out. Copies within this process take turns.
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    turn: RwLock<()>,
}

// SAFETY: the pointer is owned, and what it points to is only touched by copies that take turns.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// No more than the allocator aligns to anyhow: for more it would write all the zeros, and no page is touched before its
/// time this way.
const ALIGNMENT: usize = 16;

impl Memory {
    /// Zeros; `None` for no bytes or more than there are.
    pub(crate) fn zeroed(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        if bytes == 0 {
            return None;
        }
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self {
            start,
            layout,
            turn: RwLock::default(),
        })
    }

    /// What others call it.
    pub(crate) fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// What this process calls it.
    pub(crate) fn start(&self) -> usize {
        self.start.addr().get()
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    /// Copies bytes out. `None` if there are none there.
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) -> Option<()> {
        self.check(at, into.len())?;
        let _turn = self.turn.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the range is inside the allocation, `into` is borrowed for writing and so is no part of it, and nobody of
        // this process writes meanwhile. Whoever does from outside makes bytes arbitrary, which bytes may be.
        unsafe {
            let from = self.start.as_ptr().add(at);
            from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len());
        }
        Some(())
    }

    /// Copies bytes in. `None` if there is no room for them there.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Option<()> {
        self.check(at, bytes.len())?;
        let _turn = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `read`, and nobody of this process reads meanwhile.
        unsafe {
            let to = self.start.as_ptr().add(at);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Some(())
    }

    fn check(&self, at: usize, bytes: usize) -> Option<()> {
        (at.checked_add(bytes)? <= self.len()).then_some(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody else has it any more: see `nixl::Life` for who might.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory")
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

impl MemoryRegion for Memory {
    unsafe fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    fn size(&self) -> usize {
        self.len()
    }
}

impl NixlDescriptor for Memory {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }

    fn device_id(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_a_function_is_refused() {
        let mathematics = Path::new("libm.so.6");
        let error = load(mathematics, &["cos", "nixl_capi_gen_notif"]).unwrap_err();
        assert_eq!(error, "it has no function nixl_capi_gen_notif");
        assert!(load(Path::new("no such library"), &[]).is_err());
    }

    #[test]
    fn bytes_outside_of_the_memory_are_neither_read_nor_written() {
        let memory = Memory::zeroed(8).unwrap();
        memory.write(4, b"abcd").unwrap();
        let mut bytes = [1; 8];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0\0abcd");
        assert!(memory.write(5, b"abcd").is_none());
        assert!(memory.read(usize::MAX, &mut bytes).is_none());
        assert!(memory.read(8, &mut []).is_some());
        assert!(Memory::zeroed(0).is_none());
        assert!(Memory::zeroed(usize::MAX / 2).is_none());
    }
}
