"""Pictures of records and graphs: each function draws one into a file, on a light or a dark ground.

In come benchmark records, held-out answers or graphs; out goes the path of the picture. All of them need the extra
``plot``.
"""

from daari_mlx.ground.intervals import wilson
from daari_mlx.show.plots.acceptance import plot_acceptance
from daari_mlx.show.plots.batch import plot_batch
from daari_mlx.show.plots.calibration import plot_calibration
from daari_mlx.show.plots.learning import plot_learning
from daari_mlx.show.plots.length import plot_length
from daari_mlx.show.plots.machines import plot_machines
from daari_mlx.show.plots.speed import plot_speed

__all__ = [
    "plot_acceptance",
    "plot_batch",
    "plot_calibration",
    "plot_learning",
    "plot_length",
    "plot_machines",
    "plot_speed",
    "wilson",
]
