"""One module a group of commands; app/cli.py puts them together."""
