//! NIXL's library, as the user's engine brought it. Baton brings none.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::{Unavailable, raw};

/// What the library is called. `nixl-sys` 1.5 opens it by the first name; a library that only has the second is found, so
/// that the sentence that refuses it can say why.
const NAMES: [&str; 2] = ["libnixl_capi.so", "libnixl_capi.so.0"];

/// Folders of NIXL's wheels in `site-packages`, by the CUDA version that they were built for. None of them needs CUDA.
const WHEELS: [&str; 2] = ["nixl_cu13", "nixl_cu12"];

/// All that this crate calls. One that is missing would end the process at its first call.
const FUNCTIONS: [&str; 42] = [
    "nixl_capi_create_configured_agent",
    "nixl_capi_destroy_agent",
    "nixl_capi_get_plugin_params",
    "nixl_capi_create_backend",
    "nixl_capi_destroy_backend",
    "nixl_capi_destroy_mem_list",
    "nixl_capi_create_params",
    "nixl_capi_destroy_params",
    "nixl_capi_params_add",
    "nixl_capi_params_create_iterator",
    "nixl_capi_params_iterator_next",
    "nixl_capi_params_destroy_iterator",
    "nixl_capi_get_local_md",
    "nixl_capi_load_remote_md",
    "nixl_capi_invalidate_remote_md",
    "nixl_capi_create_opt_args",
    "nixl_capi_destroy_opt_args",
    "nixl_capi_opt_args_set_has_notif",
    "nixl_capi_opt_args_set_notif_msg",
    "nixl_capi_create_reg_dlist",
    "nixl_capi_destroy_reg_dlist",
    "nixl_capi_reg_dlist_add_desc",
    "nixl_capi_reg_dlist_clear",
    "nixl_capi_register_mem",
    "nixl_capi_deregister_mem",
    "nixl_capi_create_xfer_dlist",
    "nixl_capi_destroy_xfer_dlist",
    "nixl_capi_xfer_dlist_add_desc",
    "nixl_capi_xfer_dlist_clear",
    "nixl_capi_create_xfer_req",
    "nixl_capi_post_xfer_req",
    "nixl_capi_get_xfer_status",
    "nixl_capi_release_xfer_req",
    "nixl_capi_destroy_xfer_req",
    "nixl_capi_gen_notif",
    "nixl_capi_create_notif_map",
    "nixl_capi_destroy_notif_map",
    "nixl_capi_get_notifs",
    "nixl_capi_notif_map_size",
    "nixl_capi_notif_map_get_agent_at",
    "nixl_capi_notif_map_get_notifs_size",
    "nixl_capi_notif_map_get_notif",
];

/// The one that this process has loaded. There is no second: `nixl-sys` asks for it by name.
static LOADED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// NIXL's library: where it is and which version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    path: PathBuf,
    version: Option<String>,
}

impl Library {
    /// Finds the library, without loading it.
    ///
    /// `explicit` is the file, or a folder that has it. Without it the folders in `near` are searched, each of which may be
    /// an engine's Python environment, its `site-packages`, or a folder of libraries; then those in `LD_LIBRARY_PATH`.
    pub fn find(explicit: Option<&Path>, near: &[PathBuf]) -> Result<Self, Unavailable> {
        let found = match explicit {
            Some(file) if file.is_file() => Some(file.to_owned()),
            Some(folder) => in_folder(folder),
            None => {
                let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
                let mut near = near.iter().cloned().chain(std::env::split_paths(&path));
                near.find_map(|folder| in_folder(&folder))
            }
        };
        let path = found.ok_or_else(|| match explicit {
            Some(folder) => {
                Unavailable(format!("there is no {} in {}", NAMES[0], folder.display()))
            }
            None => Unavailable(format!(
                "no {} was found beside the engine; say where it is with BATON_NIXL_LIB",
                NAMES[0]
            )),
        })?;
        // The name must not change its meaning with the working directory.
        let path = std::path::absolute(&path).unwrap_or(path);
        Ok(Self {
            version: version(&path),
            path,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, as the wheel says that it came in; `None` if it came in none.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Loads it for good. Every call of `nixl-sys` ends the process unless this was done.
    pub(crate) fn load(&self) -> Result<(), Unavailable> {
        let mut loaded = LOADED
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*loaded {
            Some(path) if *path == self.path => return Ok(()),
            Some(path) => {
                return Err(Unavailable(format!(
                    "this process has loaded {} already",
                    path.display()
                )));
            }
            None => {}
        }
        let unusable =
            |why: &str| Unavailable(format!("{} cannot be used: {why}", self.path.display()));
        raw::load(&self.path, &FUNCTIONS).map_err(|why| unusable(&why))?;
        if nixl_sys::is_stub() {
            return Err(unusable(&format!("it does not call itself {}", NAMES[0])));
        }
        *loaded = Some(self.path.clone());
        Ok(())
    }
}

fn in_folder(folder: &Path) -> Option<PathBuf> {
    let sites = ["lib", "lib64"]
        .iter()
        .flat_map(|lib| pythons(&folder.join(lib)));
    let sites = std::iter::once(folder.to_owned()).chain(sites);
    let wheels = sites.flat_map(|site| {
        let wheels = WHEELS.map(|wheel| site.join(format!(".{wheel}.mesonpy.libs")));
        std::iter::once(site).chain(wheels)
    });
    wheels
        .flat_map(|folder| NAMES.map(|name| folder.join(name)))
        .find(|file| file.is_file())
}

/// Where the packages of all Python versions of an environment are; Debian and what is built on it call it otherwise.
fn pythons(lib: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(lib).into_iter().flatten().flatten();
    let mut sites: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .flat_map(|entry| ["site-packages", "dist-packages"].map(|name| entry.path().join(name)))
        .collect();
    sites.sort();
    sites
}

/// `…/site-packages/.nixl_cu13.mesonpy.libs/libnixl_capi.so` is of the version that stands in the name of
/// `…/site-packages/nixl_cu13-1.5.1.dist-info`.
fn version(path: &Path) -> Option<String> {
    let libs = path.parent()?;
    let wheel = libs.file_name()?.to_str()?;
    let wheel = wheel.strip_prefix('.')?.strip_suffix(".mesonpy.libs")?;
    std::fs::read_dir(libs.parent()?)
        .ok()?
        .flatten()
        .find_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?.strip_prefix(wheel)?.strip_prefix('-')?;
            Some(name.strip_suffix(".dist-info")?.to_owned())
        })
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    /// An environment with a wheel whose library is none.
    fn environment(packages: &str, wheel: &str, name: &str) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let site = root.path().join("lib/python3.11").join(packages);
        let libs = site.join(format!(".{wheel}.mesonpy.libs"));
        create_dir_all(&libs).unwrap();
        create_dir_all(site.join(format!("{wheel}-1.5.1.dist-info"))).unwrap();
        let file = libs.join(name);
        write(&file, "no library").unwrap();
        (root, file)
    }

    #[test]
    fn a_wheel_is_found_from_each_of_the_folders_around_it() {
        for (packages, wheel) in ["site-packages", "dist-packages"].into_iter().zip(WHEELS) {
            for name in NAMES {
                let (root, file) = environment(packages, wheel, name);
                for near in file.ancestors().skip(1).take(2).chain([root.path()]) {
                    let library = Library::find(None, &[near.to_owned()]).unwrap();
                    assert_eq!((library.path(), library.version()), (&*file, Some("1.5.1")));
                    assert_eq!(Library::find(Some(near), &[]).unwrap(), library);
                }
                assert_eq!(Library::find(Some(&file), &[]).unwrap().path(), file);
            }
        }
    }

    #[test]
    fn what_is_not_there_or_no_library_is_one_sentence() {
        let (root, file) = environment("site-packages", "nixl_cu13", NAMES[0]);
        let nowhere = root.path().join("nowhere");
        let error = Library::find(Some(&nowhere), &[]).unwrap_err().to_string();
        assert!(error.ends_with(&format!(
            "there is no libnixl_capi.so in {}",
            nowhere.display()
        )));
        let error = Library::find(Some(&file), &[]).unwrap().load().unwrap_err();
        assert!(error.to_string().contains("cannot be used: "), "{error}");
    }
}
