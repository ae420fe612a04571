//! Where the rows of a job are: in files of a folder, in object stores (feature `object-store`), or
//! nowhere, because they are generated.

use crate::made;
use fleet::topology::Env;
use fleet_base::{Error, Result};
use fleet_data::{ColumnFiles, SurveyOptions};
use fleet_synth::Ctr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The folder that names of files are relative to, the object stores of names with a scheme, and
/// the generator of rows.
#[derive(Clone)]
pub struct Origin {
    base: PathBuf,
    /// Made when it is first used.
    clicks: Arc<OnceLock<Arc<Ctr>>>,
    #[cfg(feature = "object-store")]
    stores: fleet_data::ObjectStores,
}

impl Origin {
    /// Names are relative to `base`. Object stores are reached by the variables of `env`.
    pub fn new(base: impl Into<PathBuf>, env: &Env) -> Result<Origin> {
        let (base, clicks) = (base.into(), Arc::default());
        #[cfg(feature = "object-store")]
        {
            let settings = env.iter().map(|(name, value)| (name.to_string(), value.to_string()));
            let stores = fleet_data::ObjectStores::new(settings)?;
            Ok(Origin { base, clicks, stores })
        }
        #[cfg(not(feature = "object-store"))]
        {
            let _ = env;
            Ok(Origin { base, clicks })
        }
    }

    /// Returns the place of a file or folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.base.join(name)
    }

    /// Returns the generator of rows.
    pub fn clicks(&self) -> Result<Arc<Ctr>> {
        if let Some(clicks) = self.clicks.get() {
            return Ok(Arc::clone(clicks));
        }
        let clicks = Arc::new(made::clicks()?);
        Ok(Arc::clone(self.clicks.get_or_init(|| clicks)))
    }

    /// Returns the files that patterns name, each once, or pieces of generated rows.
    pub fn expand(&self, patterns: &[String]) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for pattern in patterns {
            let found = if made::is_made(pattern) {
                made::pieces(pattern)?
            } else if is_object(pattern) {
                self.objects(pattern)?
            } else {
                self.local(pattern)?
            };
            let new = found.into_iter().filter(|file| !files.contains(file));
            files.extend(new.collect::<Vec<_>>());
        }
        Ok(files)
    }

    fn local(&self, pattern: &str) -> Result<Vec<PathBuf>> {
        let path = self.base.join(pattern);
        let Some(path) = path.to_str() else {
            return Err(Error::unsupported("the path of a file is not Unicode").got(path.display()));
        };
        fleet_data::glob(path)
            .map_err(|error| error.or_help("names are relative to the folder of the job file"))
    }

    /// A name that is no pattern is taken as it is: listing needs a permission of its own, and most
    /// web servers cannot list.
    #[cfg(feature = "object-store")]
    fn objects(&self, pattern: &str) -> Result<Vec<PathBuf>> {
        if let Some((message, help)) = fault_of_object(pattern) {
            return Err(Error::unsupported(message).got(pattern).help(help));
        }
        match pattern.contains(['*', '?', '[']) {
            true => self.stores.glob(pattern),
            false => Ok(vec![pattern.into()]),
        }
    }

    #[cfg(not(feature = "object-store"))]
    fn objects(&self, pattern: &str) -> Result<Vec<PathBuf>> {
        Err(Error::unsupported("this program was built without object stores")
            .got(pattern)
            .help("build it with the feature `object-store`"))
    }

    /// Lets files be objects, too.
    pub fn open(&self, files: ColumnFiles) -> ColumnFiles {
        #[cfg(feature = "object-store")]
        return files.object_stores(&self.stores);
        #[cfg(not(feature = "object-store"))]
        files
    }

    /// Lets a survey read objects, too.
    pub fn survey(&self, options: SurveyOptions) -> SurveyOptions {
        #[cfg(feature = "object-store")]
        return SurveyOptions { stores: Some(self.stores.clone()), ..options };
        #[cfg(not(feature = "object-store"))]
        options
    }
}

/// Returns whether a name is that of an object, such as `s3://bucket/key`.
pub fn is_object(name: &str) -> bool {
    name.contains("://")
}

/// Returns what is wrong with the name of an object, and help.
pub fn fault_of_object(name: &str) -> Option<(String, &'static str)> {
    let (scheme, rest) = name.split_once("://")?;
    if !SCHEMES.contains(&scheme) {
        let help = "copy the files to a folder, or mount their file system";
        let message =
            format!("unsupported object store {scheme}://; expected {}", SCHEMES.join(", "));
        return Some((message, help));
    }
    if scheme.starts_with("http") && rest.contains('?') {
        let help = "download the files, or read them from their object store by name";
        return Some(("web addresses with a query are not supported".to_string(), help));
    }
    match rest.split_once('/') {
        Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() => None,
        _ => Some(("invalid object name; expected SCHEME://BUCKET/KEY".to_string(), "add the key")),
    }
}

/// Fails if a name of a file or folder to write, or of a model folder, is that of an object.
pub fn check_local(what: &str, path: &Path) -> Result<()> {
    match path.to_str().is_some_and(is_object) {
        true => Err(Error::unsupported(format!("{what} cannot be in an object store"))
            .got(path.display())
            .help(LOCAL_HELP)),
        false => Ok(()),
    }
}

/// Help for names of objects where only files of this machine are supported.
pub const LOCAL_HELP: &str =
    "name a folder of this machine, and copy it with the tool of the object store";

/// The object stores that are read.
const SCHEMES: [&str; 10] =
    ["s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https"];
