"""Experiments of the papers, as functions that run at any size; each in its own folder.

`heavy_tail` has a closed form for its per-sample gradients; `barcode` and `next_token` give tasks to
`train_privately`, which leaves them to Opacus; `quadratic` looks at single steps.
"""

from dprmt.training.studies._comparison import TunedRuns as TunedRuns
from dprmt.training.studies._comparison import compare_optimizers as compare_optimizers
from dprmt.training.studies._groups import frequency_groups as frequency_groups
from dprmt.training.studies._groups import group_means as group_means
from dprmt.training.studies._private_training import read_records as read_records
from dprmt.training.studies._private_training import train_privately as train_privately
from dprmt.training.studies._task import ClosedFormTask as ClosedFormTask
from dprmt.training.studies._task import GroupRecord as GroupRecord
from dprmt.training.studies._task import Measured as Measured
from dprmt.training.studies._task import PrivateSettings as PrivateSettings
from dprmt.training.studies._task import Task as Task

__all__ = [
    "ClosedFormTask",
    "GroupRecord",
    "Measured",
    "PrivateSettings",
    "Task",
    "TunedRuns",
    "compare_optimizers",
    "frequency_groups",
    "group_means",
    "read_records",
    "train_privately",
]
