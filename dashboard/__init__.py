"""What people see in the browser."""
