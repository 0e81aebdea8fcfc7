"""Kills, full disks, and what is left after them."""
