"""Settings → many runs, and what they say together: one JSON, tables, figures."""
