//! Where the sockets of a launched engine's KV events are.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use baton_daemon::Exit;

/// A folder for the sockets of an engine that this sidecar launches. It goes with the sidecar.
#[derive(Debug)]
pub struct EventsFolder(PathBuf);

impl EventsFolder {
    /// Makes it.
    pub fn make(path: PathBuf) -> Result<Self, Exit> {
        // Events carry the tokens of all prompts: they are nobody else's.
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| {
            Exit::failure(format!(
                "the folder {} for the engine's KV events cannot be made: {error}",
                path.display()
            ))
        })?;
        Ok(Self(path))
    }
}

impl Drop for EventsFolder {
    fn drop(&mut self) {
        // Nothing is lost with it that anybody could still want.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
