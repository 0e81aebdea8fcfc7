"""Routes: parse, call one function, answer a schema."""
