"""The one tree of errors: each names the bad value and the remedy, and reaches the user as one line."""


class MammofedError(Exception):
    """Anything that mammofed itself refuses; the message is written for the person who sees it."""


class BadSetting(MammofedError):
    """A setting, flag or configuration value that cannot be used."""


class CannotWrite(BadSetting):
    """A place that takes no more: a full disk, a missing right."""


class BadData(MammofedError):
    """Data (a file, a folder, a table) that cannot be used as it is."""


class TrainingFailed(MammofedError):
    """A round that cannot be finished; the last good round stays."""
