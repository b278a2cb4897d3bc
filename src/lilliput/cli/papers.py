"""Where the algorithms come from, for ``lilliput list``."""

from __future__ import annotations

PAPERS = {
    "agp": "Zhu & Gupta 2017, To prune, or not to prune",
    "apoz": "Hu et al. 2016, Network trimming",
    "fpgm": "He et al. 2019, Filter pruning via geometric median",
    "l1": "Li et al. 2017, Pruning filters for efficient ConvNets",
    "least_squares": "Hassibi & Stork 1993, Optimal brain surgeon; Wang et al. 2019, EigenDamage",
    "level": "Han et al. 2015, Learning both weights and connections",
    "mean_activation": "Molchanov et al. 2017, Pruning CNNs for resource efficient inference",
    "sensitivity": "Han et al. 2015, Learning both weights and connections",
    "slim": "Liu et al. 2017, Network slimming",
    "taylorfo": "Molchanov et al. 2019, Importance estimation for neural network pruning",
    "bnn": "Courbariaux et al. 2016, Binarized neural networks",
    "dorefa": "Zhou et al. 2016, DoReFa-Net",
    "lsq": "Esser et al. 2020, Learned step size quantization",
    "lsq_plus": "Bhalgat et al. 2020, LSQ+",
    "ptq": "Nagel et al. 2019, 2020; Xiao et al. 2023 (its options)",
    "qat": "Jacob et al. 2018, Quantization and training for integer-only inference",
}
