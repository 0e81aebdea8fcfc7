"""Seed → patches and DICOM files that look like breast tissue."""
