//! The directory of the locks.
//!
//! In: a path. Out: a directory that only we can write to, on a disk of this machine; or the reason why it is
//! refused.
//!
//! A user who can write to the directory can remove a lock file and so break exclusion. A user who can put a
//! link in its place decides which files we write to. Kernel locks on network file systems are local, slow,
//! or lost when a server restarts, so they guarantee nothing.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::files::fault;
use crate::fault::{Fault, FaultKind};

/// The directory of the command-line tool: `/tmp/tenure-<uid>`.
///
/// It depends on the user id alone, so that cron and a login shell use the same one, no matter what their
/// environment is.
#[cfg(unix)]
pub fn default_dir() -> PathBuf {
    PathBuf::from(format!("/tmp/tenure-{}", rustix::process::geteuid().as_raw()))
}

/// The directory of the command-line tool: `tenure` in the user's temporary directory.
#[cfg(not(unix))]
pub fn default_dir() -> PathBuf {
    std::env::temp_dir().join("tenure")
}

/// The path in its final form: absolute, so that a change of the working directory does not affect it, and
/// without a trailing slash, which would follow a link.
pub(super) fn absolute(dir: &Path) -> Result<PathBuf, Fault> {
    let path = std::path::absolute(dir).map_err(|error| fault("find", dir, error))?;
    Ok(path.components().collect())
}

/// Creates the directory if it is missing, and refuses it if it cannot be trusted.
pub(super) fn prepare(dir: &Path) -> Result<(), Fault> {
    create(dir)?;
    let data = fs::symlink_metadata(dir).map_err(|error| fault("look at", dir, error))?;
    match wrong_kind(&data).or_else(|| exposure(&data)).or_else(|| network(dir)) {
        None => Ok(()),
        Some(flaw) => {
            let message = format!("lock directory `{}` {flaw}", dir.display());
            Err(Fault::new(FaultKind::Refused, message))
        }
    }
}

pub(super) fn wrong_kind(data: &Metadata) -> Option<String> {
    let link = data.is_symlink().then_some("is a symbolic link");
    let kind = link.or_else(|| (!data.is_dir()).then_some("is not a directory"));
    kind.map(Into::into)
}

/// Creates only the last component: a missing parent is most likely a typing error.
fn create(dir: &Path) -> Result<(), Fault> {
    match make_private(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(|error| fault("create lock directory", dir, error)),
    }
}

#[cfg(unix)]
fn make_private(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o700).create(dir)
}

#[cfg(not(unix))]
fn make_private(dir: &Path) -> io::Result<()> {
    fs::create_dir(dir)
}

/// How other users could change the directory, if they can.
#[cfg(unix)]
pub(super) fn exposure(data: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (owner, us) = (data.uid(), rustix::process::geteuid().as_raw());
    let mode = data.mode() & 0o7777;
    if owner != us {
        return Some(format!("belongs to uid {owner}, not to uid {us}"));
    }
    (mode & 0o022 != 0).then(|| format!("can be written to by others (mode {mode:04o})"))
}

#[cfg(not(unix))]
pub(super) fn exposure(_: &Metadata) -> Option<String> {
    None
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn network(dir: &Path) -> Option<String> {
    let magic = rustix::fs::statfs(dir).ok()?.f_type;
    // The type of the field differs between platforms; the numbers fit into 32 bits everywhere.
    let name = network_name((magic as u64 & 0xffff_ffff) as u32)?;
    Some(format!("is on a network file system ({name}), where file locks cannot be relied on"))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn network(_: &Path) -> Option<String> {
    None
}

/// From `linux/magic.h` and the sources of the file systems.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn network_name(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x0102_1997 => "9P",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x7461_636f => "OCFS2",
        0x0116_1970 => "GFS2",
        0x1983_0326 => "BeeGFS",
        0x2003_0528 => "PVFS2",
        0xaad7_aaea => "PanFS",
        0x7375_7245 => "Coda",
        0x564c => "NCP",
        0x786f_4256 => "VirtualBox shared folder",
        _ => return None,
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Network file systems are recognised by number; the usual local ones are not.
    #[test]
    fn f5_network_file_systems_are_named() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        assert_eq!(network_name(0xff53_4d42), Some("CIFS"));
        let (ext4, tmpfs, btrfs, xfs) = (0xef53, 0x0102_1994, 0x9123_683e, 0x5846_5342);
        for local in [ext4, tmpfs, btrfs, xfs] {
            assert_eq!(network_name(local), None);
        }
    }
}
