"""What all rooms share: the version, the tree of errors, files written whole, how processes start and end."""

__version__ = "0.1.0"
