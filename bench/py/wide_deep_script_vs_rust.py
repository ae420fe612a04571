"""Speed of Paddle's script on Fleet, divided by that of the same job in Rust, in turn."""

import sys
from pathlib import Path

import beside_rust

SCRIPT = Path(__file__).with_name("wide_deep_script_vs_paddle.py")

args = beside_rust.options(rounds=10)
ratios = []
for _ in range(args.rounds):
    ours = beside_rust.median([sys.executable, str(SCRIPT)])
    ratios.append(ours / beside_rust.rust("ps/wide_deep_1s2w_vs_paddle", args))
beside_rust.show("of Rust's speed", ratios, args)
