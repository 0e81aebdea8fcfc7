"""Rounds across hospitals: calls on sites, what is accepted of them, kits, processes; no engine is imported."""
