"""Synthetic patches → AUCs of a small DenseNet and of grey-level statistics: is there a shortcut?"""

import time

import numpy as np
import torch
from monai.networks.nets import DenseNet
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F

from benchmarks.ratio import Ratio
from synthetic.lesions import CALC_BENIGN, CALC_MALIGNANT, MASS_BENIGN, MASS_MALIGNANT
from synthetic.patches import Labels, Patches, synthetic_patches

SIZE, TRAIN, TEST, EPOCHS, BATCH = 48, 6000, 2000, 8, 32


def grey_level_statistics(patches: Patches) -> NDArray[np.float64]:
    """Return the histogram, mean, deviation, skewness, kurtosis, minimum and maximum of each patch."""
    bins = np.stack([np.histogram(patch, 32, (0, 1))[0] / patch.size for patch in patches])
    flat = patches.reshape(len(patches), -1).astype(np.float64)
    mean, deviation = flat.mean(axis=1), flat.std(axis=1)
    standard = (flat - mean[:, None]) / deviation[:, None]
    moments = [mean, deviation, (standard**3).mean(axis=1), (standard**4).mean(axis=1)]
    return np.column_stack([bins, *moments, flat.min(axis=1), flat.max(axis=1)])


def shortcut_auc(train: tuple[Patches, Labels], test: tuple[Patches, Labels], *classes: int) -> float:
    """Return the test AUC (mean one-vs-rest beyond two classes) of a linear classifier on statistics."""
    (x, y), (x_test, y_test) = ((p[np.isin(k, classes)], k[np.isin(k, classes)]) for p, k in (train, test))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    scores = model.fit(grey_level_statistics(x), y).predict_proba(grey_level_statistics(x_test))
    if len(classes) == 2:
        return float(roc_auc_score(y_test, scores[:, 1]))
    return float(roc_auc_score(y_test, scores, multi_class="ovr"))


def network_auc(train: tuple[Patches, Labels], test: tuple[Patches, Labels], seed: int = 0) -> float:
    """Return the test mean one-vs-rest AUC of a small DenseNet trained centrally with SGD."""
    torch.manual_seed(seed)
    model = DenseNet(2, 1, 5, init_features=16, growth_rate=12, block_config=(4, 4, 4), bn_size=2)
    model = model.to(memory_format=torch.channels_last)
    images, labels = torch.from_numpy(train[0])[:, None], torch.from_numpy(train[1])
    steps = EPOCHS * (len(labels) // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels))[: len(labels) // BATCH * BATCH].view(-1, BATCH):
            turned = torch.rot90(images[rows], int(torch.randint(4, ())), (2, 3))
            loss = F.cross_entropy(model(turned.contiguous(memory_format=torch.channels_last)), labels[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.inference_mode():
        parts = torch.tensor_split(torch.from_numpy(test[0]), 10)
        scores = torch.cat([model(part[:, None]).softmax(1) for part in parts])
    return float(roc_auc_score(test[1], scores.double().numpy(), multi_class="ovr"))


def measure() -> list[Ratio]:
    """Compare network and statistics on the same patches."""
    train, test = synthetic_patches(TRAIN, SIZE, seed=1), synthetic_patches(TEST, SIZE, seed=2)
    threads, start = torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(1)  # two threads wait for each other on a busy machine, and last five times as long
    network = network_auc(train, test)
    torch.set_num_threads(threads)
    detail = f"mean OvR AUC, {TRAIN} patches of {SIZE} px, {time.perf_counter() - start:.0f} s"
    grey = shortcut_auc(train, test, *range(5))
    mass = shortcut_auc(train, test, MASS_BENIGN, MASS_MALIGNANT)
    calc = shortcut_auc(train, test, CALC_BENIGN, CALC_MALIGNANT)
    return [
        Ratio("shortcut: small DenseNet", network, at_least=0.90, detail=detail),
        Ratio("shortcut: DenseNet minus grey levels", network - grey, at_least=0.15, detail=f"grey {grey:.3f}"),
        Ratio("shortcut: mass by grey levels", mass, at_most=0.65, detail="benign against malignant AUC"),
        Ratio(
            "shortcut: calcifications by grey levels",
            calc,
            at_most=0.65,
            detail="benign against malignant AUC",
        ),
    ]
