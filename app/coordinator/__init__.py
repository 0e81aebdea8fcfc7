"""The study lead's service: REST, rounds, sites, audit."""
