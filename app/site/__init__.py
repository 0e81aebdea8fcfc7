"""The hospital's side: its data, its state on disk, the orders it takes."""
