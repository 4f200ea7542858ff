"""Measure a pair: acceptance of each child, latency of each phase, and what tuning makes of both.

static.py   exact acceptance per position, teacher-forced over text
live.py     acceptance counted while generating, for any verifier
latency.py  times of the engine's own phases by number of tokens and context
speed.py    a tree against plain decoding, taking turns
tuning.py   predictions beside measurements
journal.py  results on disk as they come: everything here continues where it was interrupted
"""

from sequoia.profiling.clock import Clock
from sequoia.profiling.journal import Journal
from sequoia.profiling.latency import LatencySettings, measure_latency
from sequoia.profiling.live import LiveCounter, profile_live
from sequoia.profiling.speed import measure_speed
from sequoia.profiling.static import StaticSettings, profile_static
from sequoia.profiling.texts import Text, file_texts, own_texts, shipped_prompts

__all__ = [
    "Clock",
    "Journal",
    "LatencySettings",
    "LiveCounter",
    "StaticSettings",
    "Text",
    "file_texts",
    "measure_latency",
    "measure_speed",
    "own_texts",
    "profile_live",
    "profile_static",
    "shipped_prompts",
]
