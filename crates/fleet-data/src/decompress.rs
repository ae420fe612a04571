//! Compressed files: recognized by their first bytes, and decompressed while they are read.

use flate2::read::MultiGzDecoder;
use fleet_base::{Error, Result};
use std::io::Read;

/// A way in which a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
    /// Only a command can read it.
    Xz,
    Bzip2,
}

impl Compression {
    /// Returns the compression of a file with these first bytes.
    pub fn of_start(start: &[u8]) -> Option<Compression> {
        match start {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            [0xfd, b'7', b'z', b'X', ..] => Some(Compression::Xz),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some(Compression::Bzip2),
            _ => None,
        }
    }

    /// Decompresses a file, which may consist of several compressed parts.
    pub fn decompress(self, from: impl Read + Send + 'static) -> Result<Box<dyn Read + Send>> {
        match self {
            Compression::Gzip => Ok(Box::new(MultiGzDecoder::new(from))),
            #[cfg(feature = "zstd")]
            Compression::Zstd => match zstd::stream::read::Decoder::new(from) {
                Ok(decoder) => Ok(Box::new(decoder)),
                Err(error) => Err(Error::exhausted(format!("cannot decompress: {error}"))),
            },
            #[cfg(not(feature = "zstd"))]
            Compression::Zstd => Err(self
                .unsupported("zstdcat")
                .help("build with the feature `zstd`, or use pipe_command(\"zstdcat\")")),
            Compression::Xz => Err(self.unsupported("xzcat")),
            Compression::Bzip2 => Err(self.unsupported("bzcat")),
        }
    }

    fn unsupported(self, command: &str) -> Error {
        let expected = if cfg!(feature = "zstd") { "gzip, zstd or none" } else { "gzip or none" };
        Error::unsupported("compression of the file is not supported")
            .expected(expected)
            .got(format!("{self:?}").to_lowercase())
            .help(format!("read it through a command: pipe_command(\"{command}\")"))
    }
}

/// Length of the signatures of compressed files.
pub(crate) const MAGIC_BYTES: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Cursor, Write};

    fn read(bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
        let compression = Compression::of_start(&bytes).unwrap();
        let mut out = Vec::new();
        compression.decompress(Cursor::new(bytes)).unwrap().read_to_end(&mut out)?;
        Ok(out)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn parts_are_read_one_after_the_other() {
        let text = b"1 7\n".repeat(100_000);
        let two = [gzip(&text), gzip(b"1 8\n")].concat();
        assert_eq!(read(two).unwrap(), [&text[..], b"1 8\n"].concat());
        assert!(read(gzip(&text)[..60].to_vec()).is_err());
        #[cfg(feature = "zstd")]
        {
            let pack = |text: &[u8]| zstd::encode_all(text, 1).unwrap();
            let two = [pack(&text), pack(b"1 8\n")].concat();
            assert_eq!(read(two).unwrap(), [&text[..], b"1 8\n"].concat());
            assert!(read(pack(&text)[..20].to_vec()).is_err());
        }
    }

    #[test]
    fn other_compressions_name_a_command() {
        for (bytes, command) in [(&b"\xfd7zXZ"[..], "xzcat"), (b"BZh91AY", "bzcat")] {
            let compression = Compression::of_start(bytes).unwrap();
            let error = compression.decompress(bytes).map(drop).unwrap_err().to_string();
            assert!(error.contains(command) && error.contains("gzip"), "{error}");
        }
        assert_eq!(Compression::of_start(b"1 7\n"), None);
    }
}
