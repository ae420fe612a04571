//! A strategy as a value, by name, and as a file, as docs/strategies.md shows it:
//! `cargo run --release --example strategy`.

use fleet::prelude::*;
use fleet::strategy::{AmpConfig, DistributedStrategy, Value, validate};

/// The argument is the number of steps in other examples, and is not used here.
pub fn train(_: u64) -> Result<()> {
    let file = std::env::temp_dir().join(format!("fleet-strategy-{}.prototxt", std::process::id()));
    let strategy = DistributedStrategy::new()
        .use_amp(AmpConfig::default().with_init_loss_scaling(1024.0))
        .use_recompute(["encoder_0.tmp_2", "encoder_1.tmp_2"])
        .with_fuse_grad_size_in_MB(16);
    validate(&strategy)?; // all errors at once
    assert_eq!(strategy.amp_configs().decr_ratio(), 0.8); // the default; the field itself is None
    strategy.save_to_prototxt(&file)?;
    println!("{strategy}"); // the overview

    let mut strategy = DistributedStrategy::new();
    strategy.load_from_prototxt(&file)?;
    std::fs::remove_file(&file).ok();
    strategy.set("amp_configs", Value::map([("init_loss_scaling", 1024.into())]))?;
    strategy.set("amp_configs.decr_ratio", 0.5)?;
    assert_eq!(strategy.amp_configs().decr_ratio(), 0.5);
    Ok(())
}

fn main() -> Result<()> {
    train(0)
}
