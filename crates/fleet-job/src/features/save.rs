//! `features.json`: the fitted features as one file with a version and a checksum.
//!
//! The file is one JSON object, `{"fleet_features":1,"crc32":"..","features":..}`. The checksum is
//! that of the value of `features`, byte for byte.

use super::Features;
use fleet_base::file::write_file;
use fleet_base::{Error, Result, input};
use std::path::Path;

const VERSION: &str = "1";
const START: &str = "{\"fleet_features\":";
const SUM: &str = ",\"crc32\":\"";
const BODY: &str = "\",\"features\":";
/// Limit of the file: a hundred million known values.
const BYTES_MAX: u64 = 2 << 30;

/// Writes the features.
pub fn save(features: &Features, path: &Path) -> Result<()> {
    let body = serde_json::to_string(features)
        .map_err(|error| Error::internal(format!("features have no JSON form: {error}")))?;
    let sum = crc32fast::hash(body.as_bytes());
    write_file(path, format!("{START}{VERSION}{SUM}{sum:08x}{BODY}{body}}}\n").as_bytes())
}

/// Reads features that [`save`] wrote.
pub fn load(path: &Path) -> Result<Features> {
    let damaged = |why: &str| {
        Error::invalid(format!("{} is damaged: {why}", path.display()))
            .help("copy the model folder again, or train the model again")
    };
    let bytes = input::read(path, "the features of a model", BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|_| damaged("not text"))?;
    let rest = text.strip_prefix(START).ok_or_else(|| damaged("no features"))?;
    let (version, rest) = rest.split_once(SUM).ok_or_else(|| damaged("no checksum"))?;
    let (sum, rest) = rest.split_once(BODY).ok_or_else(|| damaged("no features"))?;
    let body = rest.strip_suffix("}\n").ok_or_else(|| damaged("it is not complete"))?;
    if format!("{:08x}", crc32fast::hash(body.as_bytes())) != sum {
        return Err(damaged("checksum mismatch"));
    }
    if version != VERSION {
        return Err(Error::unsupported(format!("unsupported version of {}", path.display()))
            .expected(format!("version {VERSION}"))
            .got(format!("version {version}"))
            .help("use the build of Fleet that trained the model, or train it again"));
    }
    serde_json::from_str(body).map_err(|error| damaged(&error.to_string()))
}
