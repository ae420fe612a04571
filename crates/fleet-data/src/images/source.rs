//! Sources of images and labels: folders, file lists and tar archives.

use crate::tar::{Member, TAR_BLOCK, members, part, text_until_zero};
use fleet_base::{Error, Result, text};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A list of images with labels. It holds names only; an image is read on request.
#[derive(Clone, Debug, Default)]
pub struct ImageList {
    images: Vec<Image>,
    classes: Vec<String>,
    archives: Vec<PathBuf>,
}

#[derive(Clone, Debug)]
struct Image {
    location: Location,
    label: i64,
}

#[derive(Clone, Debug)]
enum Location {
    File(PathBuf),
    /// A part of an archive.
    Member {
        archive: usize,
        start: u64,
        bytes: u64,
        name: String,
    },
}

impl ImageList {
    /// Lists a folder with one subfolder for each class. Classes in alphabetical order have the
    /// labels 0, 1, ..
    pub fn folder(root: impl AsRef<Path>) -> Result<ImageList> {
        let root = root.as_ref();
        let mut list = ImageList::default();
        for class in sorted(root)?.into_iter().filter(|path| path.is_dir()) {
            let label = list.classes.len() as i64;
            list.classes.push(file_name(&class));
            for path in sorted(&class)?.into_iter().filter(|path| is_image(&file_name(path))) {
                list.images.push(Image { location: Location::File(path), label });
            }
        }
        list.filled(root)
    }

    /// Reads a file of lines `PATH LABEL`; paths are relative to `root`.
    pub fn file_list(list: impl AsRef<Path>, root: impl AsRef<Path>) -> Result<ImageList> {
        let path = list.as_ref();
        let lines = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, &e))?;
        let mut list = ImageList::default();
        for (number, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty())
        {
            // The last blank separates path and label, because a path may contain blanks.
            let parts = line.trim().rsplit_once([' ', '\t']);
            let image = parts.and_then(|(name, label)| Some((name.trim(), label.parse().ok()?)));
            let Some((name, label)) = image else {
                return Err(Error::invalid("line of a file list is not a path and a label")
                    .expected("PATH LABEL")
                    .got(format!("'{line}'"))
                    .at(format!("{}:{}", path.display(), number + 1)));
            };
            list.images.push(Image { location: Location::File(root.as_ref().join(name)), label });
        }
        list.filled(path)
    }

    /// Lists uncompressed tar archives. The label of `NAME.jpg` is the number in `NAME.cls` if the
    /// archive has that file. Otherwise it follows from the image's folder: the folders of all
    /// archives, in alphabetical order, have the labels 0, 1, ..
    pub fn tar_shards<P: Into<PathBuf>>(shards: impl IntoIterator<Item = P>) -> Result<ImageList> {
        let mut list = ImageList::default();
        let mut by_folder: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for shard in shards {
            let path = shard.into();
            let mut file = File::open(&path).map_err(|e| Error::io("open", &path, &e))?;
            let members = members(&mut file).map_err(|error| error.at(path.display()))?;
            let labels = labels(&mut file, &members).map_err(|error| error.at(path.display()))?;
            for member in members.into_iter().filter(|member| is_image(&member.name)) {
                let (stem, _) = member.name.rsplit_once('.').unwrap_or((&member.name, ""));
                let label = labels.get(stem).copied();
                if label.is_none() {
                    let (folder, _) = member.name.rsplit_once('/').unwrap_or(("", ""));
                    by_folder.entry(folder.to_string()).or_default().push(list.images.len());
                }
                let Member { name, start, bytes } = member;
                let location =
                    Location::Member { archive: list.archives.len(), start, bytes, name };
                list.images.push(Image { location, label: label.unwrap_or(0) });
            }
            list.archives.push(path);
        }
        for (label, (folder, images)) in by_folder.into_iter().enumerate() {
            images.iter().for_each(|image| list.images[*image].label = label as i64);
            list.classes.push(folder);
        }
        list.filled(Path::new("tar shards"))
    }

    fn filled(self, from: &Path) -> Result<ImageList> {
        match self.images.len() {
            0 => Err(Error::invalid("no images found")
                .expected("files .jpg, .jpeg or .png")
                .at(from.display())),
            1..=IMAGES_MAX => Ok(self),
            count => Err(Error::exhausted("too many images")
                .expected(format!("at most {IMAGES_MAX}"))
                .got(count)),
        }
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Returns whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Returns the names of the classes by label, if folders are classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the label of an image, by its number.
    pub fn label(&self, image: usize) -> i64 {
        self.images[image].label
    }

    /// Returns the name of an image for errors.
    pub fn name(&self, image: usize) -> String {
        match &self.images[image].location {
            Location::File(path) => path.display().to_string(),
            Location::Member { archive, name, .. } => {
                format!("{}:{name}", self.archives[*archive].display())
            }
        }
    }

    /// Returns the encoded bytes of an image.
    pub fn read(&self, image: usize) -> Result<Vec<u8>> {
        match &self.images[image].location {
            Location::File(path) => {
                let bytes = std::fs::metadata(path).map_err(|e| Error::io("read", path, &e))?.len();
                check_bytes(bytes).map_err(|error| error.at(path.display()))?;
                std::fs::read(path).map_err(|e| Error::io("read", path, &e))
            }
            Location::Member { archive, start, bytes, .. } => {
                let path = &self.archives[*archive];
                let mut file = File::open(path).map_err(|e| Error::io("open", path, &e))?;
                image_part(&mut file, *start, *bytes).map_err(|error| error.at(self.name(image)))
            }
        }
    }
}

/// Reads the labels in files `NAME.cls`, by NAME.
fn labels(file: &mut File, members: &[Member]) -> Result<HashMap<String, i64>> {
    let mut labels = HashMap::new();
    for member in members {
        let Some(stem) = member.name.strip_suffix(".cls") else { continue };
        let text = text_until_zero(&image_part(file, member.start, member.bytes.min(TAR_BLOCK))?);
        let label = text.trim().parse().map_err(|_| {
            Error::invalid(format!("'{}' in a tar archive is not a label", member.name))
                .expected("a number")
                .got(format!("'{}'", text.trim()))
        })?;
        labels.insert(stem.to_string(), label);
    }
    Ok(labels)
}

/// Reads a part of an archive that is an image or a label.
fn image_part(file: &mut File, start: u64, bytes: u64) -> Result<Vec<u8>> {
    check_bytes(bytes)?;
    part(file, start, bytes)
}

fn check_bytes(bytes: u64) -> Result<()> {
    if bytes <= FILE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::exhausted("image file is too large")
        .expected(format!("at most {}", text::bytes(FILE_BYTES_MAX)))
        .got(text::bytes(bytes)))
}

fn is_image(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    matches!(ending.as_deref(), Some("jpg" | "jpeg" | "png"))
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).map_err(|e| Error::io("list the folder", folder, &e))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Limit of a file's size; the largest photographs have tens of megabytes.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Twice the size of the largest public collection of labelled photographs; its names take 10 GB.
const IMAGES_MAX: usize = 1 << 27;
