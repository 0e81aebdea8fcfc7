"""A run's kept states → a model file of the format asked for, checked before anyone gets it.

`export` runs in a process of its own.
"""

import hashlib
import io
import json
import logging
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from app.coordinator.bundles import bundle, bundle_logits
from app.coordinator.logs import log_as_json
from app.coordinator.subject import Subject
from app.coordinator.worker import NICENESS, end_with
from app.schemas.shape import ModelFormat
from fl_core.checkpoint import read_object
from fl_core.state import ServerState, SiteState
from fl_core.wire import tensor_parts, unpack
from mammofed.errors import BadData, MammofedError
from mammofed.files import make_folder, write_atomically

log = logging.getLogger(__name__)
OPSET = 17


class ExportFailed(MammofedError):
    """An export that does not give the trained model's scores; nobody gets it."""


@dataclass(frozen=True)
class Format:
    """How a model is written, and how the file is scored to check it."""

    ending: str
    media_type: str
    write: Callable[[Subject], bytes]
    scores: Callable[[Subject, bytes, Tensor], Tensor]  # (B, C), probabilities
    tolerance: float  # largest difference of a score: other kernels round otherwise


@dataclass(frozen=True)
class Job:
    """One export to make."""

    folder: Path  # of the run
    server: str  # name of the server's state
    site: str | None  # name of the site's state, where its tensors are its own
    network: str
    classes: tuple[str, ...]
    size: int
    about: Mapping[str, str]
    form: ModelFormat
    name: str  # what the file's name begins with


def as_safetensors(subject: Subject) -> bytes:
    """Tensors under their names, and beside them what they are; the same model gives the same bytes."""
    about = {**subject.about, "network": subject.network, "classes": json.dumps(subject.classes)}
    return b"".join(tensor_parts(subject.tensors, about))


def safetensors_scores(subject: Subject, data: bytes, patches: Tensor) -> Tensor:
    """Scores of the tensors read back."""
    with torch.inference_mode():
        return probabilities(subject.model(safetensors.torch.load(data))(patches))


def as_onnx(subject: Subject) -> bytes:
    """A graph from `patches` (batch, C, height, width) to `scores`, the softmax included.

    By the TorchScript exporter: the one built on torch.export takes 18 times as long over DenseNet-121.
    """
    import onnx  # here, since the service itself, which knows this table, has no use for it

    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            nn.Sequential(subject.model(), nn.Softmax(dim=1)).eval(),
            (subject.patches(2),),
            data,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=OPSET,
            input_names=["patches"],
            output_names=["scores"],
            dynamic_axes={"patches": {0: "batch", 2: "height", 3: "width"}, "scores": {0: "batch"}},
        )
    graph = onnx.load_from_string(data.getvalue())
    about = {**subject.about, "network": subject.network, "classes": json.dumps(subject.classes)}
    onnx.helper.set_model_props(graph, about)
    return bytes(graph.SerializeToString(deterministic=True))


def onnx_scores(subject: Subject, data: bytes, patches: Tensor) -> Tensor:
    """Scores by ONNX Runtime, in two batches of different size."""
    import onnx
    import onnxruntime

    onnx.checker.check_model(onnx.load_from_string(data))
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    parts = (patches[:1], patches[1:])
    return torch.cat(
        [torch.from_numpy(session.run(None, {"patches": part.numpy()})[0]) for part in parts]
    ).double()


def bundle_scores(subject: Subject, data: bytes, patches: Tensor) -> Tensor:
    """Scores by MONAI."""
    return probabilities(bundle_logits(data, patches))


FORMATS: dict[ModelFormat, Format] = {
    "safetensors": Format("safetensors", "application/octet-stream", as_safetensors, safetensors_scores, 0.0),
    "onnx": Format("onnx", "application/octet-stream", as_onnx, onnx_scores, 1e-4),
    "monai-bundle": Format("zip", "application/zip", bundle, bundle_scores, 1e-6),
}


def probabilities(logits: Tensor) -> Tensor:
    """Scores as the evaluation takes them."""
    return logits.double().softmax(dim=1)


def checked_file(subject: Subject, form: ModelFormat) -> bytes:
    """The file, after it has given the trained model's scores on random patches."""
    chosen, patches = FORMATS[form], subject.patches()
    data = chosen.write(subject)
    with torch.inference_mode():
        wanted = probabilities(subject.model()(patches))
    off = float((chosen.scores(subject, data, patches) - wanted).abs().max())
    if not off <= chosen.tolerance:
        raise ExportFailed(f"the {form} file's scores differ from the model's by {off:g}: it is not handed out")
    return data


def subject_of(job: Job) -> Subject:
    """The model of the job, every byte of its states checked."""
    tensors = unpack(ServerState, read_object(job.folder, job.server)).model
    if job.site is not None:
        private = unpack(SiteState, read_object(job.folder, job.site)).private
        if not private:
            raise BadData(f"the model of site {job.about['site']!r} is not here: its own tensors stay at the site")
        tensors = {**tensors, **private}
    return Subject(job.network, tensors, job.classes, job.size, dict(job.about))


def export(job: Job, line: Connection) -> None:
    """Make, check and keep the file of a job; the line tells its name, or what went wrong."""
    threading.Thread(target=end_with, args=(line,), daemon=True).start()
    os.nice(NICENESS)
    torch.set_num_threads(1)
    log_as_json(lambda: {"run": job.about["run"], "round": int(job.about["round"]), "export": job.form})
    try:
        data = checked_file(subject_of(job), job.form)
        name = f"{job.name}.{hashlib.sha256(data).hexdigest()}.{FORMATS[job.form].ending}"
        make_folder(job.folder / "exports")
        write_atomically(job.folder / "exports" / name, data)
        line.send(name)
    except MammofedError as error:
        line.send(error)
    except Exception as error:
        log.exception("export failed")
        line.send(ExportFailed(f"the {job.form} file could not be made ({type(error).__name__}); see the log"))
