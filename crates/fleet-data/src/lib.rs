//! Data on its way to training. It knows neither programs nor servers: it fills buffers.
//!
//! [`synth`] makes data sets from known models, so that what training reaches can be compared with
//! the best that anything could reach.

pub mod synth;
