"""A trained model ↔ a MONAI bundle: a zip of configurations, weights and a readme that MONAI itself loads."""

import io
import json
import tempfile
import zipfile
from typing import Any

import torch
from torch import Tensor

from app.coordinator.subject import Subject
from app.provenance import provenance

WHEN = (1980, 1, 1, 0, 0, 0)  # of each file in the zip: the same model gives the same bytes
NETWORKS: dict[str, dict[str, Any]] = {
    "densenet121": {"_target_": "monai.networks.nets.DenseNet121", "spatial_dims": 2},
    "densenet-small": {
        "_target_": "monai.networks.nets.DenseNet",
        "spatial_dims": 2,
        "init_features": 16,
        "growth_rate": 12,
        "block_config": [4, 4, 4],
        "bn_size": 4,
    },
    "resnet18": {
        "_target_": "monai.networks.nets.ResNet",
        "block": "basic",
        "layers": [2, 2, 2, 2],
        "block_inplanes": [64, 128, 256, 512],
        "spatial_dims": 2,
        "conv1_t_size": 7,
        "conv1_t_stride": 2,
        "shortcut_type": "B",
    },
}
NAMES = {"resnet18": ("n_input_channels", "num_classes")}  # of the arguments that depend on the data
README = """# {title}

{about}

Patches go in as float32 (B, {channels}, H, W) with grey levels in [0, 1]; after a softmax, scores come out of the
classes {classes}.

    import torch
    from monai.bundle import ConfigParser

    parser = ConfigParser()
    parser.read_config("configs/inference.json")
    parser.read_meta("configs/metadata.json")
    parser.get_parsed_content("load_weights")
    network = parser.get_parsed_content("network").eval()
    with torch.inference_mode():
        scores = network(torch.rand(1, {channels}, {size}, {size})).softmax(dim=1)

A research model, not a medical device: no result of it may guide the care of a patient.
"""


def bundle(subject: Subject) -> bytes:
    """The zip's bytes."""
    weights = io.BytesIO()
    torch.save(subject.tensors, weights)
    files = {
        "configs/metadata.json": json.dumps(metadata(subject), indent=2).encode(),
        "configs/inference.json": json.dumps(inference(subject), indent=2).encode(),
        "models/model.pt": weights.getvalue(),
        "docs/README.md": readme(subject).encode(),
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as packed:
        for name, content in files.items():
            packed.writestr(zipfile.ZipInfo(name, WHEN), content)
    return data.getvalue()


def inference(subject: Subject) -> dict[str, Any]:
    """How MONAI builds the network and loads its weights."""
    channels, classes = NAMES.get(subject.network, ("in_channels", "out_channels"))
    sizes = {channels: subject.channels, classes: len(subject.classes)}
    return {
        "imports": ["$import torch"],
        "bundle_root": ".",
        "checkpoint": "$@bundle_root + '/models/model.pt'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "network_def": {**NETWORKS[subject.network], **sizes},
        "network": "$@network_def.to(@device)",
        "load_weights": "$@network.load_state_dict("
        "torch.load(@checkpoint, map_location=@device, weights_only=True))",
        "inferer": {"_target_": "SimpleInferer"},
        "postprocessing": {"_target_": "Activations", "softmax": True, "dim": 0},
    }


def metadata(subject: Subject) -> dict[str, Any]:
    """What the bundle says of itself, in MONAI's terms."""
    versions = provenance()
    image = {
        "type": "image",
        "format": "magnitude",
        "modality": "MG",
        "num_channels": subject.channels,
        "spatial_shape": ["*", "*"],
        "dtype": "float32",
        "value_range": [0, 1],
        "is_patch_data": True,
        "channel_def": {str(number): "grey level" for number in range(subject.channels)},
    }
    scores = {
        "type": "probabilities",
        "format": "classes",
        "num_channels": len(subject.classes),
        "spatial_shape": [],
        "dtype": "float32",
        "value_range": [0, 1],
        "is_patch_data": False,
        "channel_def": {str(number): name for number, name in enumerate(subject.classes)},
    }
    return {
        "version": versions["mammofed"],
        "changelog": {versions["mammofed"]: f"round {subject.about['round']} of run {subject.about['run']}"},
        "monai_version": versions["monai"],
        "pytorch_version": versions["torch"],
        "numpy_version": versions["numpy"],
        "name": subject.title,
        "task": "Classification of mammography patches",
        "description": f"{subject.network} trained with {subject.about['algorithm']} by mammofed",
        "intended_use": "Research only: not a medical device.",
        "data_type": "patches",
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": scores}},
        "mammofed": subject.about,
    }


def readme(subject: Subject) -> str:
    """The bundle's own words."""
    about = ", ".join(f"{name} {value}" for name, value in subject.about.items())
    return README.format(
        title=subject.title,
        about=about,
        channels=subject.channels,
        classes=", ".join(subject.classes),
        size=subject.size,
    )


def bundle_logits(data: bytes, patches: Tensor) -> Tensor:
    """What the bundle gives for these patches, unpacked and loaded by MONAI's own parser."""
    from monai.bundle import ConfigParser  # here alone: it takes seconds

    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            packed.extractall(folder)
        parser = ConfigParser()
        parser.read_config(f"{folder}/configs/inference.json")
        parser.read_meta(f"{folder}/configs/metadata.json")
        parser["bundle_root"], parser["device"] = folder, "cpu"
        parser.get_parsed_content("load_weights")
        network = parser.get_parsed_content("network").eval()
    with torch.inference_mode():
        found: Tensor = network(patches)
    return found
