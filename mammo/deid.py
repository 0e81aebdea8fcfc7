"""Dataset → what of the patient's identity is left in the header: names of tags, never their values."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydicom import Dataset
from pydicom.datadict import dictionary_has_tag, dictionary_VR, keyword_for_tag

NOTICE = "Headers cannot prove that pixels are clean: look at the pictures for burned-in names."

# PS3.15 table E.1-1, basic profile: to be removed (action X, or X first)
_REMOVED = """
AcquisitionComments AcquisitionDate AcquisitionDateTime AcquisitionTime ActualHumanPerformersSequence
AdditionalPatientHistory AddressTrial AdmissionID AdmittingDate AdmittingDiagnosesDescription
AdmittingTime Allergies AuthorObserverSequence BranchOfService CommentsOnThePerformedProcedureStep
ConfidentialityConstraintOnPatientDataDescription ConsultingPhysicianName CountryOfResidence
CurrentPatientLocation CustodialOrganizationSequence DerivationDescription DeviceSerialNumber
DistributionAddress DistributionName FrameComments GantryID GeneratorID HumanPerformerName
HumanPerformerOrganization IconImageSequence IdentifyingComments ImageComments
ImagingServiceRequestComments InstitutionAddress InstitutionCodeSequence InstitutionName
InstitutionalDepartmentName InsurancePlanIdentification IntendedRecipientsOfResultsIdentificationSequence
InterpretationApproverSequence InterpretationAuthor InterpretationRecorder InterpretationText
InterpretationTranscriber IssuerOfAdmissionID IssuerOfPatientID MedicalAlerts MedicalRecordLocator
MilitaryRank NameOfPhysiciansReadingStudy NamesOfIntendedRecipientsOfResults Occupation
OperatorIdentificationSequence OperatorsName OrderCallbackPhoneNumber OrderEnteredBy OrderEntererLocation
OriginalAttributesSequence OtherPatientIDs OtherPatientIDsSequence OtherPatientNames ParticipantSequence
PatientAddress PatientAge PatientBirthName PatientBirthTime PatientComments
PatientInsurancePlanCodeSequence PatientMotherBirthName PatientReligiousPreference PatientSexNeutered
PatientSize PatientState PatientTelephoneNumbers PatientTransportArrangements PatientWeight
PerformedLocation PerformedProcedureStepDescription PerformedProcedureStepID
PerformedProcedureStepStartDate PerformedProcedureStepStartTime PerformedStationAETitle
PerformedStationName PerformingPhysicianName PersonAddress PersonTelephoneNumbers PhysiciansOfRecord
PhysiciansReadingStudyIdentificationSequence PlateID PreMedication ProtocolName
ReasonForTheRequestedProcedure ReferringPhysicianAddress ReferringPhysicianTelephoneNumbers
RegionOfResidence RequestAttributesSequence RequestedProcedureComments RequestedProcedureDescription
RequestedProcedureID RequestedProcedureLocation RequestingPhysician RequestingService
ResponsibleOrganization ResponsiblePerson ScheduledPerformingPhysicianName
ScheduledProcedureStepDescription ScheduledStationName SeriesDate SeriesDescription SeriesTime
ServiceEpisodeDescription ServiceEpisodeID SmokingStatus SpecialNeeds StationName StudyComments
StudyDescription StudyIDIssuer TextComments TextString TimezoneOffsetFromUTC VerifyingOrganization
VisitComments
"""
# emptied or replaced by a dummy (actions Z and D): no finding once the file says that it is cleaned
_REPLACED = """
AccessionNumber ContentCreatorName ContentDate ContentTime FillerOrderNumberImagingServiceRequest
PatientBirthDate PatientID PatientName PersonName PlacerOrderNumberImagingServiceRequest
ReferringPhysicianName StudyDate StudyID StudyTime VerifyingObserverName
"""
REMOVED, REPLACED = frozenset(_REMOVED.split()), frozenset(_REPLACED.split())
UID_IN_NAME = re.compile(r"(?<![\d.])\d+(?:\.\d+){5,}")


@dataclass(frozen=True)
class Identity:
    """Findings in one file."""

    tags: tuple[str, ...]  # keywords that are still filled
    said_removed: bool  # PatientIdentityRemoved is YES
    burned_in: str  # BurnedInAnnotation: YES, NO or empty (not stated)
    private_tags: int
    uid_in_name: bool


def find_identity(dataset: Dataset, path: Path) -> Identity:
    """Check a header against the basic profile (PS3.15 E.2, table E.1-1), sequences included."""
    said_removed = str(dataset.get("PatientIdentityRemoved", "")).strip().upper() == "YES"
    wanted = REMOVED if said_removed else REMOVED | REPLACED
    filled, private = set(), 0
    for tag, is_filled in _elements(dataset):
        private += tag.startswith("private")
        if is_filled and tag in wanted:
            filled.add(tag)
    burned_in = str(dataset.get("BurnedInAnnotation", "")).strip().upper()
    uid = bool(UID_IN_NAME.search("/".join(path.parts[-4:])))
    return Identity(tuple(sorted(filled)), said_removed, burned_in, private, uid)


def _elements(dataset: Dataset) -> Iterator[tuple[str, bool]]:
    """Keyword and whether it is filled, of every element at every depth; private ones are named `private`."""
    for tag in dataset.keys():  # noqa: SIM118 - iterating a dataset itself would parse every value
        raw = dataset.get_item(tag)
        value = raw.value if raw is not None else None
        keyword = "private" if tag.is_private else keyword_for_tag(tag)
        yield keyword, value is not None and (not hasattr(value, "__len__") or len(value) > 0)
        if not tag.is_private and dictionary_has_tag(tag) and dictionary_VR(tag) == "SQ":
            for item in dataset[tag].value or []:
                yield from _elements(item)
