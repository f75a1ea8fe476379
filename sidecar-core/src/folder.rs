//! What a sidecar and the engine that it launches share in files: sockets, options.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use baton_daemon::Exit;

/// A folder for an engine that this sidecar launches. It goes with the sidecar.
#[derive(Debug)]
pub struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// A place for one that nobody else has.
    pub fn place() -> PathBuf {
        std::env::temp_dir().join(format!("baton-{}", baton_daemon::fresh::hex_id()))
    }

    /// Makes it.
    pub fn make(path: PathBuf) -> Result<Self, Exit> {
        // KV events carry the tokens of all prompts, options may hold keys: they are nobody else's.
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| {
            Exit::failure(format!(
                "the folder {} for the engine cannot be made: {error}",
                path.display()
            ))
        })?;
        Ok(Self(path))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // Nothing is lost with it that anybody could still want.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
