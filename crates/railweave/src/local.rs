//! What is read on this machine itself: files a user names, and the hardware addresses of its netdevs.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use cluster::address::Mac;
use rustix::fs::{Mode, OFlags};

/// The text of a file of at most `limit` bytes. What is no file, such as a pipe that nobody writes to, is refused
/// rather than waited for.
pub(crate) fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text)?;
    if text.len() as u64 > limit {
        let what = format!("it is larger than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

/// The hardware addresses of this machine's netdevs.
pub(crate) fn own_macs() -> Vec<Mac> {
    let Ok(netdevs) = fs::read_dir("/sys/class/net") else { return Vec::new() };
    netdevs
        .flatten()
        .filter_map(|netdev| fs::read_to_string(netdev.path().join("address")).ok())
        .filter_map(|text| text.trim().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_bounded_length_are_read() {
        let folder = std::env::temp_dir().join(format!("railweave-local-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("file");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_text(&file, 5).unwrap(), "12345");
        assert_eq!(read_text(&file, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_text(&folder, 5).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        let pipe = folder.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert_eq!(read_text(&pipe, 5).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        fs::remove_dir_all(&folder).unwrap();
    }
}
