"""Tests read as claims."""
