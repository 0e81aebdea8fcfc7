"""What is read of finished runs."""
