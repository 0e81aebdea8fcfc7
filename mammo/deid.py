"""Dataset → what of the patient's identity is left in the header: names of tags, never their values."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydicom import Dataset
from pydicom.datadict import dictionary_has_tag, dictionary_VR, keyword_for_tag

PIXEL_DATA = 0x7FE00010
NOTICE = "Headers cannot prove that pixels are clean: look at the pictures for burned-in names."

# PS3.15 table E.1-1, basic profile: to be removed (action X, or X first). Left out: UIDs, references to other
# images, and what only radiotherapy, cameras and microscopes write
_REMOVED = """
AcquisitionComments AcquisitionDate AcquisitionDateTime AcquisitionDeviceProcessingDescription
AcquisitionProtocolDescription AcquisitionTime ActualHumanPerformersSequence AdditionalPatientHistory
AddressTrial AdmissionID AdmittingDate AdmittingDiagnosesCodeSequence AdmittingDiagnosesDescription
AdmittingTime Allergies Arbitrary AuthorObserverSequence BarcodeValue BranchOfService CameraOwnerName
CassetteID ClinicalTrialProtocolEthicsCommitteeApprovalNumber ClinicalTrialSeriesDescription
ClinicalTrialSeriesID ClinicalTrialTimePointDescription CommentsOnRadiationDose
CommentsOnThePerformedProcedureStep ConfidentialityConstraintOnPatientDataDescription
ConsultingPhysicianIdentificationSequence ContentCreatorIdentificationCodeSequence ContributionDescription
CountryOfResidence CurrentObserverTrial CurrentPatientLocation CurveDate CurveTime
CustodialOrganizationSequence DerivationDescription DetectorID DeviceDescription DeviceSerialNumber
DeviceSettingDescription DigitalSignaturesSequence DischargeDiagnosisDescription DistributionAddress
DistributionName EndAcquisitionDateTime EthnicGroup ExpectedCompletionDateTime FrameComments GantryID
GeneratorID HumanPerformerName HumanPerformerOrganization IconImageSequence IdentifyingComments ImageComments
ImagePresentationComments ImagingServiceRequestComments Impressions InstanceCoercionDateTime
InstanceOriginStatus InstitutionAddress InstitutionCodeSequence InstitutionName InstitutionalDepartmentName
InstitutionalDepartmentTypeCodeSequence InsurancePlanIdentification
IntendedRecipientsOfResultsIdentificationSequence InterpretationApproverSequence InterpretationAuthor
InterpretationDiagnosisDescription InterpretationIDIssuer InterpretationRecorder InterpretationText
InterpretationTranscriber IssuerOfAdmissionID IssuerOfAdmissionIDSequence IssuerOfPatientID
IssuerOfServiceEpisodeID IssuerOfServiceEpisodeIDSequence LabelText LastMenstrualDate LongDeviceDescription
MakerNote MedicalAlerts MedicalRecordLocator MilitaryRank ModifiedAttributesSequence ModifiedImageDescription
ModifyingDeviceID NameOfPhysiciansReadingStudy NamesOfIntendedRecipientsOfResults
NonconformingDataElementValue NonconformingModifiedAttributesSequence ObservationDateTrial
ObservationTimeTrial Occupation OperatorIdentificationSequence OperatorsName OrderCallbackPhoneNumber
OrderCallbackTelecomInformation OrderEnteredBy OrderEntererLocation OriginalAttributesSequence OtherPatientIDs
OtherPatientIDsSequence OtherPatientNames OverlayComments OverlayData OverlayDate OverlayTime
ParticipantSequence PatientAddress PatientAge PatientBirthName PatientBirthTime PatientComments
PatientInstitutionResidence PatientInsurancePlanCodeSequence PatientMotherBirthName
PatientPrimaryLanguageCodeSequence PatientPrimaryLanguageModifierCodeSequence PatientReligiousPreference
PatientSexNeutered PatientSize PatientState PatientTelecomInformation PatientTelephoneNumbers
PatientTransportArrangements PatientWeight PerformedLocation PerformedProcedureStepDescription
PerformedProcedureStepEndDate PerformedProcedureStepEndDateTime PerformedProcedureStepEndTime
PerformedProcedureStepID PerformedProcedureStepStartDate PerformedProcedureStepStartDateTime
PerformedProcedureStepStartTime PerformedStationAETitle PerformedStationGeographicLocationCodeSequence
PerformedStationName PerformedStationNameCodeSequence PerformingPhysicianIdentificationSequence
PerformingPhysicianName PersonAddress PersonTelecomInformation PersonTelephoneNumbers
PhysicianApprovingInterpretation PhysiciansOfRecord PhysiciansOfRecordIdentificationSequence
PhysiciansReadingStudyIdentificationSequence PlateID PreMedication PregnancyStatus
ProcedureStepCancellationDateTime ProtocolName ReasonForRequestedProcedureCodeSequence ReasonForStudy
ReasonForTheImagingServiceRequest ReasonForTheRequestedProcedure ReasonForVisit ReasonForVisitCodeSequence
ReferencedPatientAliasSequence ReferencedPatientPhotoSequence ReferencedPatientSequence
ReferringPhysicianAddress ReferringPhysicianIdentificationSequence ReferringPhysicianTelephoneNumbers
RegionOfResidence RequestAttributesSequence RequestedContrastAgent RequestedProcedureComments
RequestedProcedureDescription RequestedProcedureID RequestedProcedureLocation RequestedSeriesDescription
RequestingPhysician RequestingService ResponsibleOrganization ResponsiblePerson ResultsComments
ResultsDistributionListSequence ResultsIDIssuer ReviewerName ScheduledHumanPerformersSequence
ScheduledPatientInstitutionResidence ScheduledPerformingPhysicianIdentificationSequence
ScheduledPerformingPhysicianName ScheduledProcedureStepDescription ScheduledProcedureStepEndDate
ScheduledProcedureStepEndTime ScheduledProcedureStepExpirationDateTime ScheduledProcedureStepID
ScheduledProcedureStepLocation ScheduledProcedureStepModificationDateTime ScheduledProcedureStepStartDate
ScheduledProcedureStepStartDateTime ScheduledProcedureStepStartTime ScheduledStationAETitle
ScheduledStationGeographicLocationCodeSequence ScheduledStationName ScheduledStationNameCodeSequence
ScheduledStudyLocation ScheduledStudyLocationAETitle SeriesDate SeriesDescription SeriesTime
ServiceEpisodeDescription ServiceEpisodeID SlideIdentifier SmokingStatus SpecialNeeds SpecimenAccessionNumber
StartAcquisitionDateTime StationName StudyComments StudyDescription StudyIDIssuer TelephoneNumberTrial
TextComments TextString TimezoneOffsetFromUTC TopicAuthor TopicKeywords TopicSubject TopicTitle UDISequence
UniqueDeviceIdentifier VerbalSourceIdentifierCodeSequenceTrial VerbalSourceTrial VisitComments
XRayDetectorLabel
"""
# emptied or replaced by a dummy (actions Z and D): no finding once the file says that it is cleaned
_REPLACED = """
AccessionNumber ClinicalTrialCoordinatingCenterName ClinicalTrialProtocolEthicsCommitteeName
ClinicalTrialProtocolID ClinicalTrialProtocolName ClinicalTrialSiteID ClinicalTrialSiteName
ClinicalTrialSponsorName ClinicalTrialSubjectID ClinicalTrialSubjectReadingID ClinicalTrialTimePointID
ConsultingPhysicianName ContentCreatorName ContentDate ContentTime FillerOrderNumberImagingServiceRequest
PatientBirthDate PatientID PatientName PatientSex PersonIdentificationCodeSequence PersonName
PlacerOrderNumberImagingServiceRequest ReferringPhysicianName SpecimenIdentifier StudyDate StudyID StudyTime
VerifyingObserverIdentificationCodeSequence VerifyingObserverName VerifyingObserverSequence
VerifyingOrganization XRayDetectorID XRaySourceID
"""
REMOVED, REPLACED = frozenset(_REMOVED.split()), frozenset(_REPLACED.split())
UID_IN_NAME = re.compile(r"(?<![\d.])\d+(?:\.\d+){5,}")


@dataclass(frozen=True)
class Identity:
    """Findings in one file."""

    tags: tuple[str, ...]  # keywords that are still filled
    dummies: tuple[str, ...]  # keywords that are filled, with a dummy if PatientIdentityRemoved is right
    said_removed: bool  # PatientIdentityRemoved is YES
    burned_in: str  # BurnedInAnnotation: YES, NO or empty (not stated)
    private_tags: int
    uid_in_name: bool


def find_identity(dataset: Dataset, path: Path) -> Identity:
    """Check a header against the basic profile (PS3.15 E.2, table E.1-1), sequences included."""
    said_removed = str(dataset.get("PatientIdentityRemoved", "")).strip().upper() == "YES"
    filled, private = set(), 0
    for tag, is_filled in _elements(dataset):
        private += tag.startswith("private")
        if is_filled:
            filled.add(tag)
    dummies = REPLACED if said_removed else frozenset[str]()
    tags = (REMOVED | REPLACED) - dummies
    burned_in = str(dataset.get("BurnedInAnnotation", "")).strip().upper()
    uid = bool(UID_IN_NAME.search("/".join(path.parts[-4:])))
    return Identity(
        tuple(sorted(filled & tags)), tuple(sorted(filled & dummies)), said_removed, burned_in, private, uid
    )


def _elements(dataset: Dataset) -> Iterator[tuple[str, bool]]:
    """Keyword and whether it is filled, of every element at every depth; private ones are named `private`."""
    for tag in dataset.keys():  # noqa: SIM118 - iterating a dataset itself would parse every value
        raw = dataset.get_item(tag, keep_deferred=tag == PIXEL_DATA)
        value = raw.value if raw is not None else None
        keyword = "private" if tag.is_private else keyword_for_tag(tag)
        yield keyword, value is not None and (not hasattr(value, "__len__") or len(value) > 0)
        if not tag.is_private and dictionary_has_tag(tag) and dictionary_VR(tag) == "SQ":
            for item in dataset[tag].value or []:
                yield from _elements(item)
