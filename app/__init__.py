"""The command line and the services around the core."""
