//! Decodes PNG and JPEG to RGB bytes.

use super::SIDE_MAX;
use fleet_base::{Error, Result};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// A decoded image: rows from the top, three bytes a pixel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Number of rows.
    pub height: usize,
    /// Number of pixels in a row.
    pub width: usize,
    /// Red, green and blue of each pixel: `3 * height * width` bytes.
    pub rgb: Vec<u8>,
}

/// Decodes a PNG or a JPEG, detected by its first bytes. Grey pixels get three equal colours; an
/// alpha channel is dropped.
pub fn decode_image(bytes: &[u8]) -> Result<Pixels> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => png(bytes),
        [0xFF, 0xD8, ..] => jpeg(bytes),
        _ => Err(Error::unsupported("unknown image format")
            .expected("PNG or JPEG")
            .got(format!("a file that starts with {:02x?}", &bytes[..bytes.len().min(4)]))),
    }
}

fn png(bytes: &[u8]) -> Result<Pixels> {
    let broken =
        |error: png::DecodingError| Error::invalid(format!("cannot decode the PNG: {error}"));
    let limits = png::Limits { bytes: IMAGE_BYTES_MAX };
    let mut decoder = png::Decoder::new_with_limits(std::io::Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(broken)?;
    let (height, width) = (reader.info().height as usize, reader.info().width as usize);
    check_size(height, width)?;
    let size = reader.output_buffer_size().ok_or_else(|| Error::exhausted("PNG is too large"))?;
    let mut raw = vec![0; size];
    let frame = reader.next_frame(&mut raw).map_err(broken)?;
    let raw = &raw[..frame.buffer_size()];
    let rgb: Vec<u8> = match frame.color_type {
        png::ColorType::Rgb => raw.to_vec(),
        png::ColorType::Rgba => raw.chunks_exact(4).flat_map(|it| [it[0], it[1], it[2]]).collect(),
        png::ColorType::Grayscale => raw.iter().flat_map(|grey| [*grey; 3]).collect(),
        png::ColorType::GrayscaleAlpha => raw.chunks_exact(2).flat_map(|it| [it[0]; 3]).collect(),
        png::ColorType::Indexed => {
            return Err(Error::internal("PNG decoder returned an indexed image"));
        }
    };
    whole(height, width, rgb)
}

fn jpeg(bytes: &[u8]) -> Result<Pixels> {
    let options = DecoderOptions::default()
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let broken = |error| Error::invalid(format!("cannot decode the JPEG: {error:?}"));
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let rgb = decoder.decode().map_err(broken)?;
    let (width, height) =
        decoder.dimensions().ok_or_else(|| Error::invalid("JPEG has no dimensions"))?;
    whole(height, width, rgb)
}

fn check_size(height: usize, width: usize) -> Result<()> {
    if (1..=SIDE_MAX).contains(&height) && (1..=SIDE_MAX).contains(&width) {
        return Ok(());
    }
    Err(Error::exhausted("image is too large or empty")
        .expected(format!("sides of 1 to {SIDE_MAX}"))
        .got(format!("{height}x{width}")))
}

fn whole(height: usize, width: usize, rgb: Vec<u8>) -> Result<Pixels> {
    check_size(height, width)?;
    if rgb.len() != height * width * 3 {
        return Err(Error::invalid("wrong number of pixels in an image")
            .expected(height * width * 3)
            .got(rgb.len()));
    }
    Ok(Pixels { height, width, rgb })
}

/// Limit of the memory for decoding one image.
const IMAGE_BYTES_MAX: usize = 1 << 30;
