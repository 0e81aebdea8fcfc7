"""The coordinator, as a real process."""
