//! What was read on a host, as it was read.
//!
//! As a folder, a recording is `files/<path>` for each file, `links/<path>` with the target of each symbolic link,
//! `tools/<name>.out` with what a tool printed and, if it failed or is missing, `tools/<name>.err` with why.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::capture::{FILE_LIMIT_BYTES, TOTAL_LIMIT_BYTES};

/// Files of one recording at most.
const FILES_LIMIT: usize = 50_000;

/// Folders within folders at most.
const DEPTH_LIMIT: usize = 24;

/// Bytes of a name at most.
const NAME_LIMIT_BYTES: usize = 512;

/// The output of a tool, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolOutput {
    /// It ended well and printed this.
    Printed(String),
    /// It is not there, or failed with this.
    Failed(String),
}

/// What was read on a host: absolute paths, and tools by the names of [`super::capture::TOOLS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Files and what they hold.
    pub files: BTreeMap<String, String>,
    /// Symbolic links and where they lead.
    pub links: BTreeMap<String, String>,
    /// Tools and what they printed.
    pub tools: BTreeMap<String, ToolOutput>,
}

/// Why a recording could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// There is none.
    #[error("{} holds no recording: it needs a folder files, links or tools", .0.display())]
    Missing(PathBuf),
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A name that could lead outside of the recording's folder, or that no capture makes.
    #[error("{}: {what}", path.display())]
    Name {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Something in it is too large.
    #[error("{}: {what}", path.display())]
    TooLarge {
        /// Where.
        path: PathBuf,
        /// What, and the limit.
        what: String,
    },
}

/// Whether a path is absolute and stays below the root.
pub(super) fn safe_path(path: &str) -> Result<(), String> {
    let Some(inner) = path.strip_prefix('/') else {
        return Err(format!("{path:?} is not an absolute path"));
    };
    if path.len() > NAME_LIMIT_BYTES || path.chars().any(char::is_control) {
        return Err(format!("{path:?} is too long or holds control characters"));
    }
    if inner.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(format!("{path:?} has an empty part, `.` or `..`"));
    }
    Ok(())
}

/// Whether a tool's name is one file's name.
pub(super) fn safe_name(name: &str) -> Result<(), String> {
    let safe = !name.is_empty()
        && name.len() < NAME_LIMIT_BYTES / 4
        && !name.starts_with('.')
        && name.chars().all(|c| c != '/' && c != '\\' && !c.is_control() && !c.is_whitespace());
    if safe { Ok(()) } else { Err(format!("{name:?} is no name of a tool")) }
}

impl Recording {
    /// Reads a recording's folder.
    ///
    /// # Errors
    ///
    /// If there is none, it cannot be read, it is too large, or it holds something other than files and folders.
    pub fn load(folder: &Path) -> Result<Self, RecordingError> {
        let mut reader = Loader { files: 0, bytes: 0 };
        let mut recording = Self::default();
        let mut found = false;
        for (part, into) in [("files", &mut recording.files), ("links", &mut recording.links)] {
            let root = folder.join(part);
            if root.is_dir() {
                found = true;
                reader.folder(&root, "", 0, into)?;
            }
        }
        let root = folder.join("tools");
        if root.is_dir() {
            found = true;
            let mut outputs = BTreeMap::new();
            reader.folder(&root, "", 0, &mut outputs)?;
            for (path, content) in outputs {
                let name = path.trim_start_matches('/');
                let (name, output) = if let Some(name) = name.strip_suffix(".out") {
                    (name, ToolOutput::Printed(content))
                } else if let Some(name) = name.strip_suffix(".err") {
                    (name, ToolOutput::Failed(content))
                } else {
                    let what = "a tool's file ends in .out or .err".to_owned();
                    return Err(RecordingError::Name { path: root.join(name), what });
                };
                let place = || root.join(path.trim_start_matches('/'));
                safe_name(name).map_err(|what| RecordingError::Name { path: place(), what })?;
                if recording.tools.insert(name.to_owned(), output).is_some() {
                    let what = format!("there are both {name}.out and {name}.err");
                    return Err(RecordingError::Name { path: place(), what });
                }
            }
        }
        if found { Ok(recording) } else { Err(RecordingError::Missing(folder.to_owned())) }
    }

    /// Writes the recording as a folder, over what is there of the same names.
    ///
    /// # Errors
    ///
    /// If a name could lead outside of the folder, or the system refuses.
    pub fn save(&self, folder: &Path) -> Result<(), RecordingError> {
        for (part, entries) in [("files", &self.files), ("links", &self.links)] {
            for (path, content) in entries {
                let at = folder.join(part);
                safe_path(path).map_err(|what| RecordingError::Name { path: at.clone(), what })?;
                write(&at.join(path.trim_start_matches('/')), content)?;
            }
        }
        for (name, output) in &self.tools {
            let at = folder.join("tools");
            safe_name(name).map_err(|what| RecordingError::Name { path: at.clone(), what })?;
            let (kind, other, text) = match output {
                ToolOutput::Printed(text) => ("out", "err", text),
                ToolOutput::Failed(text) => ("err", "out", text),
            };
            write(&at.join(format!("{name}.{kind}")), text)?;
            let stale = at.join(format!("{name}.{other}"));
            match fs::remove_file(&stale) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(RecordingError::Io { path: stale, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The recording without what is nobody else's business.
    pub fn redacted(&self) -> Self {
        super::redact::redacted(self)
    }

    /// A file's content, without white space around it.
    pub(super) fn file(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(|content| content.trim())
    }

    /// What a tool printed.
    ///
    /// # Errors
    ///
    /// Why there is nothing.
    pub fn printed(&self, tool: &str) -> Result<&str, String> {
        match self.tools.get(tool) {
            Some(ToolOutput::Printed(text)) => Ok(text),
            Some(ToolOutput::Failed(why)) => Err(format!("{tool}: {}", why.trim())),
            None => Err(format!("{tool}: not captured")),
        }
    }
}

fn write(path: &Path, content: &str) -> Result<(), RecordingError> {
    let fail = |source| RecordingError::Io { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(fail)?;
    }
    fs::write(path, content).map_err(fail)
}

/// Reads folders, counting what it reads.
struct Loader {
    files: usize,
    bytes: usize,
}

impl Loader {
    fn folder(
        &mut self,
        folder: &Path,
        below: &str,
        depth: usize,
        into: &mut BTreeMap<String, String>,
    ) -> Result<(), RecordingError> {
        let large = |what: String| RecordingError::TooLarge { path: folder.to_owned(), what };
        let fail = |source| RecordingError::Io { path: folder.to_owned(), source };
        if depth > DEPTH_LIMIT {
            return Err(large(format!("more than {DEPTH_LIMIT} folders within folders")));
        }
        for entry in fs::read_dir(folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            self.files += 1;
            if self.files > FILES_LIMIT {
                return Err(large(format!("more than {FILES_LIMIT} files")));
            }
            let path = entry.path();
            let odd =
                |what: &str| RecordingError::Name { path: path.clone(), what: what.to_owned() };
            let name = entry.file_name();
            let name = name.to_str().ok_or_else(|| odd("a name that is not text"))?;
            let inner = format!("{below}/{name}");
            safe_path(&inner).map_err(|what| odd(&what))?;
            // Not following links keeps a recording from reading what lies outside of it.
            let kind = entry.file_type().map_err(fail)?;
            if kind.is_dir() {
                self.folder(&path, &inner, depth + 1, into)?;
            } else if kind.is_file() {
                into.insert(inner, self.file(&path)?);
            } else {
                return Err(odd("a recording holds only files and folders"));
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<String, RecordingError> {
        let fail = |source| RecordingError::Io { path: path.to_owned(), source };
        let large = |what: String| RecordingError::TooLarge { path: path.to_owned(), what };
        let mut content = Vec::new();
        let limit = FILE_LIMIT_BYTES as u64 + 1;
        fs::File::open(path).map_err(fail)?.take(limit).read_to_end(&mut content).map_err(fail)?;
        if content.len() > FILE_LIMIT_BYTES {
            return Err(large(format!("more than {FILE_LIMIT_BYTES} bytes")));
        }
        self.bytes += content.len();
        if self.bytes > TOTAL_LIMIT_BYTES {
            return Err(large(format!("the recording has more than {TOTAL_LIMIT_BYTES} bytes")));
        }
        Ok(String::from_utf8_lossy(&content).into_owned())
    }
}

#[cfg(test)]
#[path = "recording_tests.rs"]
mod tests;
