"""One file per paper whose figures are repeated; see reproduce.py."""

PAPERS = (
    "han2015",
    "han2015_lenet5",
    "sparsest2017",
    "sparsest2017_lenet5",
    "deep_compression2016",
    "smallest2020",
    "smallest2020_lenet5",
    "hinton2015",
    "hinton2015_fashion",
    "zhu_gupta2017",
    "lsq2020",
    "dorefa2016",
    "jacob2018",
    "slim2017",
    "taylor2019",
    "lottery2019",
    "rigl2020",
    "movement2020",
)
