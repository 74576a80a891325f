"""Python loads this as it starts where the folder is on PYTHONPATH: what a watched session starts is watched too."""

import atexit
import importlib.util
import os
import sys
from pathlib import Path

if os.environ.get("GEMM_TRACKS_LINES") and sys.version_info >= (3, 12):
    spec = importlib.util.spec_from_file_location("watched_lines", Path(__file__).parent.parent / "lines_run.py")
    watched_lines = sys.modules["watched_lines"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(watched_lines)
    atexit.register(watched_lines.watch().write_own)
