"""Speed and memory as ratios, and studies; results are kept as JSON."""
