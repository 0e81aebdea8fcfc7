"""The tables of algorithms and networks, and settings to begin with → what is shown of them."""

from functools import cache

from app.coordinator.words import EXPLAINED, MODEL_WORDS
from app.schemas.runs import DataSettings, RunSettings
from app.schemas.tables import AlgorithmRow, ModelRow, Preset
from fl_core.family import ALGORITHMS, nothing
from fl_core.models import MODELS, build_model
from fl_core.state import byte_size
from fl_core.traffic import traffic

TWO_HOSPITALS = RunSettings(
    name="two hospitals",
    algorithm="bn-scaffold-std",
    model="densenet121",
    rounds=40,
    local_steps=10,
    batch=32,
    rate=0.05,
    data=DataSettings(sites=2, skew=1.0, image_size=64, patches=2000),
)
PRESETS = (
    Preset(
        name="two hospitals",
        explained="DenseNet-121 on two synthetic hospitals whose images look different, with our own algorithm.",
        settings=TWO_HOSPITALS,
    ),
    Preset(
        name="its rival",
        explained="The same hospitals and the same network with plain averaging: compare the two.",
        settings=TWO_HOSPITALS.model_copy(update={"name": "its rival", "algorithm": "fedavg"}),
    ),
    Preset(
        name="five vendors",
        explained="Five synthetic hospitals, each with the image style of another vendor.",
        settings=TWO_HOSPITALS.model_copy(
            update={"name": "five vendors", "data": DataSettings(sites=5, skew=1.0, image_size=64, patches=1000)}
        ),
    ),
    Preset(
        name="quick look",
        explained="A small network on small patches for five rounds: a minute or so, to see how everything works.",
        settings=RunSettings(
            name="quick look",
            model="densenet-small",
            rounds=5,
            local_steps=5,
            batch=16,
            rate=0.1,
            data=DataSettings(image_size=32, patches=400),
        ),
    ),
    Preset(
        name="MNIST label skew",
        explained="Handwritten digits, half of them at each of two sites; needs the folder of MNIST's files.",
        settings=RunSettings(
            name="MNIST label skew",
            model="resnet18",
            rounds=100,
            local_steps=10,
            batch=128,
            rate=0.05,
            data=DataSettings(data="mnist", folder="mnist", sites=2, skew=1.0),
        ),
    ),
)


@cache
def algorithms() -> tuple[AlgorithmRow, ...]:
    """All rows, with what each sends of DenseNet-121."""
    network = build_model("densenet121", channels=1, classes=5, seed=0)
    sent = {name: traffic(row, network) for name, row in ALGORITHMS.items()}
    return tuple(
        AlgorithmRow(
            name=name,
            differs=row.differs,
            bn_policy=row.bn_policy,
            explained=EXPLAINED[name],
            sends=sent[name].formula,
            bytes=sent[name].bytes,
            private=row.private is not nothing,
        )
        for name, row in ALGORITHMS.items()
    )


@cache
def models() -> tuple[ModelRow, ...]:
    """All networks, for grey patches of five classes."""
    networks = {name: build_model(name, channels=1, classes=5, seed=0) for name in MODELS}
    return tuple(
        ModelRow(
            name=name,
            explained=MODEL_WORDS[name],
            parameters=sum(weight.numel() for weight in network.parameters()),
            bytes=byte_size(dict(network.state_dict())),
        )
        for name, network in networks.items()
    )
