"""Rounds over sites: through calls in this process, and through NVFlare's processes with mutual TLS."""
