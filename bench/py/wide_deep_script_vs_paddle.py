"""The script of Paddle, `peers/paddle/ps_wide_deep.py`, on Fleet: one server and two workers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers" / "paddle"))
import ps_wide_deep

ps_wide_deep.main([sys.executable, "-m", "fleet.compat"])
