"""Pictures of records and graphs: the place that their functions are imported from."""

from daari_mlx.intervals import wilson
from daari_mlx.plot_acceptance import plot_acceptance
from daari_mlx.plot_calibration import plot_calibration
from daari_mlx.plot_length import plot_length
from daari_mlx.plot_speed import plot_speed

__all__ = ["plot_acceptance", "plot_calibration", "plot_length", "plot_speed", "wilson"]
