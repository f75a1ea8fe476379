//! Which libraries the processes of this host have mapped: an engine's own NIXL is the one to speak to it with.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders from which other processes have mapped a library of this name. What cannot be read is passed over.
pub(crate) fn folders(name: &str) -> BTreeSet<PathBuf> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = processes.map(|entry| entry.path()).filter(|path| {
        let id = path.file_name().and_then(|name| name.to_str());
        id.is_some_and(|id| id != own && id.bytes().all(|byte| byte.is_ascii_digit()))
    });
    others
        .filter_map(|process| fs::read_to_string(process.join("maps")).ok())
        .flat_map(|maps| in_maps(&maps, name))
        .collect()
}

fn in_maps(maps: &str, name: &str) -> BTreeSet<PathBuf> {
    // `address perms offset dev inode path`
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let library = |path: &&str| {
        let file = Path::new(path).file_name().and_then(|file| file.to_str());
        file.is_some_and(|file| file == name || file.starts_with(&format!("{name}.")))
    };
    paths
        .filter(library)
        .filter_map(|path| Path::new(path).parent().map(Path::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_read_from_maps() {
        let maps = "\
7f00-7f01 r-xp 00000000 fe:00 123                        /opt/venv/.nixl_cu13.mesonpy.libs/libnixl.so
7f01-7f02 r--p 00001000 fe:00 123                        /opt/venv/.nixl_cu13.mesonpy.libs/libnixl.so
7f03-7f04 r-xp 00000000 fe:00 124                        /usr/lib/libnixl.so.0.1
7f05-7f06 r-xp 00000000 fe:00 125                        /usr/lib/libnixl_common.so
7f07-7f08 rw-p 00000000 00:00 0                          [heap]
7f09-7f0a rw-p 00000000 00:00 0
";
        let found: Vec<PathBuf> = in_maps(maps, "libnixl.so").into_iter().collect();
        assert_eq!(
            found,
            [
                PathBuf::from("/opt/venv/.nixl_cu13.mesonpy.libs"),
                PathBuf::from("/usr/lib")
            ]
        );
    }
}
