"""Patches → a trained model, by any row of the algorithm table."""
