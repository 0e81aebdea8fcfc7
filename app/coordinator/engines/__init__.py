"""Where rounds are trained: on this machine, or across hospitals."""
