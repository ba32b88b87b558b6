"""edged: an inference daemon for small edge machines."""

__version__ = "0.1.0"
