"""Names → plain words for those who read them in a hospital."""

from app.schemas.shape import MetricName

METRICS: dict[MetricName, str] = {
    "accuracy": "accuracy",
    "auc_ovo": "mean one-vs-one AUC",
    "auc_ovr": "mean one-vs-rest AUC",
}
MODEL_WORDS = {
    "densenet121": "DenseNet-121, the usual network for mammography patches: accurate, and slow without a GPU.",
    "resnet18": "ResNet-18, a plain network of eighteen layers, used for digits and small images.",
    "densenet-small": "A small DenseNet of three blocks: trains in minutes on a laptop, for trials and teaching.",
}
EXPLAINED = {
    "centralized": "All images are brought to one place and one model is trained on them, as hospitals may not. "
    "It is the upper mark against which the others are measured.",
    "local": "Each hospital trains alone, and nothing is shared. "
    "It is the lower mark: what a hospital has without the federation.",
    "fedavg": "Each hospital trains for a while, then the weights are averaged, round after round. "
    "It is simple, and loses accuracy where the hospitals' images look different.",
    "fedbn": "Weights are averaged, but all that adapts the model to brightness and contrast stays at home. "
    "Each hospital gets a model of its own, and a hospital that joins later has none.",
    "silobn": "Only the measured brightness and contrast statistics stay at the hospital; the rest is averaged. "
    "Each hospital gets a model that differs from the others in these statistics alone.",
    "fixbn": "It begins as plain averaging; half-way, the brightness and contrast statistics are frozen for all. "
    "From then on the hospitals no longer pull them in different directions.",
    "fedtan": "Each round begins with a comparison of statistics layer by layer, as if all images lay together. "
    "It is close to central training, at the price of hundreds of messages a round.",
    "scaffold-1": "Each hospital corrects its direction by how far it usually strays from the common one. "
    "The stray is measured over all of the hospital's images at the start of a round, which takes longer.",
    "scaffold": "Each hospital corrects its direction by how far it usually strays from the common one. "
    "The stray is measured along the way, so it costs no time, but twice the traffic of plain averaging.",
    "fedbn+scaffold": "As fedbn, each hospital keeps what adapts the model to its own brightness and contrast. "
    "The shared weights are corrected for each hospital's stray, as in scaffold.",
    "silobn+scaffold": "As silobn, each hospital keeps its measured brightness and contrast statistics. "
    "The shared weights are corrected for each hospital's stray, as in scaffold.",
    "fixbn+scaffold": "As fixbn, the brightness and contrast statistics are frozen for all half-way. "
    "The weights are corrected for each hospital's stray, as in scaffold.",
    "bn-scaffold-1": "Both the direction of training and the brightness and contrast statistics are corrected. "
    "The stray is measured over all of the hospital's images at the start of a round, which takes longer.",
    "bn-scaffold": "Both the direction of training and the brightness and contrast statistics are corrected. "
    "This is the published form; where styles differ strongly it can become unstable, and the run then fails.",
    "bn-std": "The brightness and contrast statistics are corrected in a form that fits each hospital's scale. "
    "The direction of training is left as it is, so it needs hardly more traffic than plain averaging.",
    "bn-scaffold-std": "As bn-scaffold, with a correction that also fits the scale of each hospital's images. "
    "It stays stable where styles differ strongly, comes close to central training, and is the one to begin with.",
}
