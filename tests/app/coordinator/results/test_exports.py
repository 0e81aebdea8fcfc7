"""Exports over REST give the trained model's scores in other tools; a file that does not is never handed out."""

import io
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import onnxruntime
import pytest
import safetensors.torch
import torch
from monai.bundle import ConfigParser
from numpy.typing import NDArray

from app.client import Coordinator, CoordinatorRefused
from app.coordinator.configuration import data_of
from app.coordinator.formats import FORMATS, ExportFailed, checked_file
from app.coordinator.subject import Subject
from app.schemas.runs import Run
from app.schemas.shape import ModelFormat
from app.sources import sites_from
from fl_core.models import MODELS, build_model
from tests.app.coordinator.services import SMALL, Service

pytestmark = pytest.mark.xdist_group("results")
SCORES = NDArray[np.float64]


def patches_of_sites() -> dict[str, torch.Tensor]:
    """The test patches that the runs were scored on, by site."""
    sites = sites_from(data_of(SMALL))
    return {site.name: torch.from_numpy(site.test.read(np.arange(len(site.test.labels)))) for site in sites}


def by_safetensors(data: bytes, patches: torch.Tensor) -> SCORES:
    model = build_model(SMALL.model, 1, 5, seed=1)
    model.load_state_dict(safetensors.torch.load(data))
    with torch.inference_mode():
        return np.asarray(model.eval()(patches).double().softmax(dim=1))


def by_onnx(data: bytes, patches: torch.Tensor) -> SCORES:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 1, "height", "width"]
    assert session.get_modelmeta().custom_metadata_map["algorithm"] == SMALL.algorithm
    return np.asarray(session.run(["scores"], {"patches": patches.numpy()})[0], np.float64)


def by_monai(data: bytes, patches: torch.Tensor, folder: Path) -> SCORES:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        assert {"configs/metadata.json", "docs/README.md"} <= set(packed.namelist())
        packed.extractall(folder)
    parser = ConfigParser()
    parser.read_config(str(folder / "configs" / "inference.json"))
    parser.read_meta(str(folder / "configs" / "metadata.json"))
    parser["bundle_root"] = str(folder)
    network = parser.get_parsed_content("network_def").eval()
    network.load_state_dict(torch.load(folder / "models" / "model.pt", weights_only=True))
    with torch.inference_mode():
        logits = parser.get_parsed_content("inferer")(patches, network)
    return np.stack([np.asarray(parser.get_parsed_content("postprocessing")(row)) for row in logits])


def ordered(scores: SCORES) -> SCORES:
    """Rows in an order of their own, since predictions come shuffled."""
    return scores[np.lexsort(scores.round(4).T)]


def test_each_format_gives_the_scores_that_the_run_was_judged_by(
    lead: Coordinator, run: Run, tmp_path: Path
) -> None:
    patches = torch.cat(list(patches_of_sites().values()))
    wanted = ordered(np.array(lead.predictions(run.id).scores))
    found = {
        "safetensors": by_safetensors(lead.model(run.id, "best", "safetensors"), patches),
        "onnx": by_onnx(lead.model(run.id, "best", "onnx"), patches),
        "monai-bundle": by_monai(lead.model(run.id, "best", "monai-bundle"), patches, tmp_path),
    }
    for name, scores in found.items():
        np.testing.assert_allclose(ordered(scores), wanted, atol=1e-4, err_msg=name)


def test_an_export_is_made_once_and_a_damaged_one_anew(service: Service, lead: Coordinator, run: Run) -> None:
    first = lead.model(run.id, "best", "safetensors")
    folder = service.home / "runs" / run.id / "exports"
    (path,) = [path for path in folder.glob("*.safetensors") if path.read_bytes() == first]
    made = path.stat().st_mtime_ns
    assert lead.model(run.id, "best", "safetensors") == first
    assert path.stat().st_mtime_ns == made
    path.write_bytes(first[:-1] + bytes([first[-1] ^ 1]))
    assert lead.model(run.id, "best", "safetensors") == first


def test_the_file_has_a_name_that_says_what_it_is(service: Service, run: Run) -> None:
    headers = {"Authorization": f"Bearer {service.secret()}"}
    address = f"{service.url}/api/v1/runs/{run.id}/model?format=monai-bundle"
    answer = httpx.get(address, headers=headers, timeout=300)
    name = f"mammofed-{run.id}-bn-scaffold-std-round-{run.best_round}-monai-bundle.zip"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["content-type"] == "application/zip"


def test_the_service_answers_while_a_file_is_made(service: Service, lead: Coordinator, run: Run) -> None:
    for path in (service.home / "runs" / run.id / "exports").glob("*.onnx"):
        path.unlink()
    files: list[bytes] = []
    threads = [threading.Thread(target=lambda: files.append(lead.model(run.id, "best", "onnx"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    answers = 0
    while any(thread.is_alive() for thread in threads):
        assert lead.run(run.id).state == "completed"
        answers += 1
    assert answers > 1
    assert len(files) == 3
    assert len(set(files)) == 1


def test_private_rows_have_one_model_a_site(service: Service, lead: Coordinator, private: Run) -> None:
    with pytest.raises(CoordinatorRefused, match="one of hospital-1, hospital-2") as refused:
        lead.model(private.id, "best", "safetensors")
    assert refused.value.problem.status == 422
    models = {site: lead.model(private.id, "best", "safetensors", site) for site in ("hospital-1", "hospital-2")}
    scores = [by_safetensors(models[site], patches) for site, patches in patches_of_sites().items()]
    wanted = np.array(lead.predictions(private.id).scores)
    np.testing.assert_allclose(ordered(np.concatenate(scores)), ordered(wanted), atol=1e-6)
    with service.client(service.token("site", "hospital-2")) as operator:
        assert operator.model(private.id, "best", "safetensors", "hospital-2") == models["hospital-2"]
        with pytest.raises(CoordinatorRefused, match="not yours to see"):
            operator.model(private.id, "best", "safetensors", "hospital-1")


def test_shared_models_refuse_a_site_and_drafts_have_no_model(lead: Coordinator, run: Run) -> None:
    with pytest.raises(CoordinatorRefused, match="leave `site` out"):
        lead.model(run.id, "best", "safetensors", "hospital-1")
    draft = lead.create(SMALL)
    for ask in (lead.model_card, lambda run: lead.model(run, "best", "onnx")):
        with pytest.raises(CoordinatorRefused, match="no evaluated round"):
            ask(draft.id)


def subject(name: str) -> Subject:
    tensors = dict(build_model(name, 2, 3, seed=0).state_dict())
    return Subject(name, tensors, ("a", "b", "c"), 64, {"run": "1", "round": "2", "algorithm": "fedavg"})


@pytest.mark.parametrize("name", MODELS)
def test_every_network_goes_into_a_bundle(name: str) -> None:
    assert checked_file(subject(name), "monai-bundle")


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_with_other_scores_is_not_handed_out(form: ModelFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(given: Subject) -> bytes:
        tensors = {name: tensor.clone() for name, tensor in given.tensors.items()}
        tensors["class_layers.out.weight"][0] += 0.1
        return right.write(replace(given, tensors=tensors))

    right = FORMATS[form]
    assert checked_file(subject("densenet-small"), form) == checked_file(subject("densenet-small"), form)
    monkeypatch.setitem(FORMATS, form, replace(right, write=spoiled))
    with pytest.raises(ExportFailed, match="not handed out"):
        checked_file(subject("densenet-small"), form)
