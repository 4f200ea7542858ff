"""The version, alone in its file: ``setup.py`` reads it without importing torch."""

__version__ = "0.1.0"
