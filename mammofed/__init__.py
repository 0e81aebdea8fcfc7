"""What all rooms share: the version and the one tree of errors."""

__version__ = "0.1.0"
