"""The deployment's files: valid, and their commands train."""
