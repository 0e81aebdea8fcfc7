"""What the coordinator, and a site's own window, accept and answer: one shape for each thing people speak of."""
