"""What can be wrong with a mammogram, its LUTs, its annotations or a patch store → one error type each."""

from mammofed.errors import BadData


class BadMammogram(BadData):
    """A file that cannot become a mammogram."""


class NotDicom(BadMammogram):
    """The file is empty, is not DICOM, or its header cannot be parsed."""


class NotMammogram(BadMammogram):
    """DICOM, but another modality, colour, or several frames and none named."""


class MissingTag(BadMammogram):
    """A tag that the grey-scale pipeline needs is absent, or its value cannot be used."""


class NoPixels(BadMammogram):
    """The file carries no pixel data."""


class BadPixels(BadMammogram):
    """Pixel data that are truncated, corrupt, or of another size than the header says."""


class TooLarge(BadMammogram):
    """Dimensions beyond any mammogram: refused before memory is asked for."""


class UnsupportedSyntax(BadMammogram):
    """A transfer syntax that is not decoded here."""


class BadLut(BadMammogram):
    """A LUT or window whose description does not fit its content."""


class NoSuchVoi(BadMammogram):
    """The chosen VOI LUT or window is not in the file."""


class BadAnnotation(BadData):
    """A row of an annotation table that cannot be used."""


class BadStore(BadData):
    """A patch store that is incomplete, damaged, or made with other settings."""
