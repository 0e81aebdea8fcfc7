"""The pages: each fetches, shapes and draws, from top to bottom."""
