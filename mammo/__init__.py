"""DICOM file → labelled patches and a report on data quality."""
