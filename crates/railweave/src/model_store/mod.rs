//! Finds the model file that a name or path stands for, and proves that a fetched one arrived whole.

use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::settings::{expand, nearest, user_directory};

/// A model this program knows by name.
#[derive(Debug, Clone, Copy)]
pub struct KnownModel {
    /// Its name.
    pub name: &'static str,
    /// Its file's name in the store.
    pub file: &'static str,
    /// The file's size.
    pub size_bytes: u64,
    /// The file's SHA-256, in lower-case hexadecimal.
    pub sha256: &'static str,
}

/// Every model known by name.
pub const KNOWN_MODELS: &[KnownModel] = &[KnownModel {
    name: "smollm2-135m",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}];

/// Bytes hashed between two reports of progress.
const BLOCK_BYTES: usize = 1 << 20;

/// A model that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The name clients see.
    pub name: String,
    /// The file.
    pub path: PathBuf,
}

/// A model that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Neither a known name nor a file.
    #[error("no model {written:?}: {}", unknown_hint(.nearest.as_deref()))]
    Unknown {
        /// What was written.
        written: String,
        /// The closest known name.
        nearest: Option<String>,
    },
    /// Known, but not fetched.
    #[error("model {name} is not at {}; fetch it with scripts/fetch-model", path.display())]
    NotFetched {
        /// The name.
        name: String,
        /// Where it should be.
        path: PathBuf,
    },
    /// The file has another size.
    #[error(
        "model file {} is damaged: expected {expected} bytes, found {found}; delete it and run scripts/fetch-model",
        path.display()
    )]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// The file has other content.
    #[error(
        "model file {} is damaged: expected sha256 {expected}, found {found}; delete it and run scripts/fetch-model",
        path.display()
    )]
    WrongContent {
        /// The file.
        path: PathBuf,
        /// The digest it should have.
        expected: String,
        /// The digest it has.
        found: String,
    },
    /// The file cannot be read.
    #[error("cannot read the model file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The path is not a file.
    #[error("model {} is not a file; give the path of a GGUF file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
}

fn unknown_hint(nearest: Option<&str>) -> String {
    let known: Vec<_> = KNOWN_MODELS.iter().map(|model| model.name).collect();
    nearest.map_or_else(
        || format!("give the path of a GGUF file, or one of {}", known.join(", ")),
        |nearest| format!("did you mean {nearest}?"),
    )
}

/// What the side file remembers of a file that was checked: any change of the file makes it unequal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Checked {
    size_bytes: u64,
    modified_seconds: i64,
    modified_nanoseconds: i64,
    inode: u64,
    sha256: String,
}

impl Checked {
    fn of(metadata: &Metadata, sha256: &str) -> Self {
        Self {
            size_bytes: metadata.len(),
            modified_seconds: metadata.mtime(),
            modified_nanoseconds: metadata.mtime_nsec(),
            inode: metadata.ino(),
            sha256: sha256.to_owned(),
        }
    }
}

/// The folder of fetched models.
#[derive(Debug, Clone)]
pub struct ModelStore {
    folder: PathBuf,
}

impl ModelStore {
    /// The user's store: `railweave/models` in the cache directory.
    #[must_use]
    pub fn of_user() -> Self {
        Self::at(user_directory("XDG_CACHE_HOME", ".cache").join("railweave/models"))
    }

    /// A store in a folder.
    #[must_use]
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Finds the file of a name or path. A known model's content is checked unless it was before and has not
    /// changed since; `progress` gets the bytes checked and their total.
    ///
    /// # Errors
    /// There is no such model, it is not fetched, or it is damaged.
    pub fn resolve(
        &self,
        written: &str,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Found, ModelError> {
        if let Some(model) = KNOWN_MODELS.iter().find(|model| model.name == written) {
            let path = self.folder.join(model.file);
            check(model, &path, progress)?;
            return Ok(Found { name: model.name.to_owned(), path });
        }
        let path = expand(written);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
                let name = name.into_owned();
                let path = fs::canonicalize(&path)
                    .map_err(|source| ModelError::Unreadable { path, source })?;
                Ok(Found { name, path })
            }
            Ok(_) => Err(ModelError::NotAFile { path }),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Err(ModelError::Unknown {
                nearest: nearest(written, KNOWN_MODELS.iter().map(|model| model.name))
                    .map(str::to_owned),
                written: written.to_owned(),
            }),
            Err(source) => Err(ModelError::Unreadable { path, source }),
        }
    }
}

fn check(
    model: &KnownModel,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ModelError> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => {
            ModelError::NotFetched { name: model.name.to_owned(), path: path.to_owned() }
        }
        _ => ModelError::Unreadable { path: path.to_owned(), source },
    };
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.len() != model.size_bytes {
        return Err(ModelError::WrongSize {
            path: path.to_owned(),
            expected: model.size_bytes,
            found: metadata.len(),
        });
    }
    let side = path.with_extension("gguf.checked");
    let expected = Checked::of(&metadata, model.sha256);
    let remembered = fs::read(&side).ok().and_then(|text| serde_json::from_slice(&text).ok());
    if remembered.as_ref() == Some(&expected) {
        return Ok(());
    }
    let found = digest(&mut file, model.size_bytes, progress).map_err(unreadable)?;
    if found != model.sha256 {
        return Err(ModelError::WrongContent {
            path: path.to_owned(),
            expected: model.sha256.to_owned(),
            found,
        });
    }
    // A store that cannot be written to only means that the next start checks again.
    if let Ok(text) = serde_json::to_vec(&expected) {
        let _ = fs::write(&side, text);
    }
    Ok(())
}

fn digest(file: &mut File, total: u64, progress: &mut dyn FnMut(u64, u64)) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut done = 0;
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            break;
        }
        hasher.update(&block[..read]);
        done += read as u64;
        progress(done, total);
    }
    let mut text = String::new();
    for byte in hasher.finalize() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    /// SHA-256 of `abc`, from FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("railweave-store-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn abc() -> KnownModel {
        KnownModel { name: "abc", file: "abc.gguf", size_bytes: 3, sha256: ABC }
    }

    #[test]
    fn a_whole_file_is_hashed_once_until_it_changes() {
        let folder = folder("whole");
        let path = folder.join("abc.gguf");
        fs::write(&path, "abc").unwrap();
        let hashes = |path: &Path| {
            let mut blocks = 0;
            check(&abc(), path, &mut |done, total| {
                assert_eq!((done, total), (3, 3));
                blocks += 1;
            })
            .map(|()| blocks)
        };
        assert_eq!(hashes(&path).unwrap(), 1);
        assert_eq!(hashes(&path).unwrap(), 0);
        let later = SystemTime::now() + Duration::from_secs(5);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(hashes(&path).unwrap(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damage_is_an_error_that_says_expected_and_found() {
        let folder = folder("damage");
        let path = folder.join("abc.gguf");
        fs::write(&path, "abd").unwrap();
        let error = check(&abc(), &path, &mut |_, _| {}).unwrap_err();
        assert!(matches!(&error, ModelError::WrongContent { .. }));
        assert!(
            error.to_string().contains(ABC) && error.to_string().contains("a52d159f"),
            "{error}"
        );
        assert!(
            check(&abc(), &path, &mut |_, _| {}).is_err(),
            "damage is not remembered as checked"
        );
        fs::write(&path, "abcd").unwrap();
        let error = check(&abc(), &path, &mut |_, _| {}).unwrap_err();
        assert!(error.to_string().contains("expected 3 bytes, found 4"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_name_a_path_and_neither() {
        let folder = folder("names");
        let store = ModelStore::at(folder.clone());
        let resolve = |written: &str| store.resolve(written, &mut |_, _| {});
        let error = resolve("smollm2-135m").unwrap_err();
        assert!(error.to_string().contains("scripts/fetch-model"), "{error}");
        let error = resolve("smolm2-135m").unwrap_err();
        assert!(error.to_string().contains("did you mean smollm2-135m?"), "{error}");
        assert!(matches!(resolve(folder.to_str().unwrap()), Err(ModelError::NotAFile { .. })));
        let path = folder.join("tiny.gguf");
        fs::write(&path, "x").unwrap();
        let found = resolve(path.to_str().unwrap()).unwrap();
        assert_eq!((found.name.as_str(), found.path), ("tiny", fs::canonicalize(&path).unwrap()));
        fs::remove_dir_all(folder).unwrap();
    }
}
