"""What the experiments beside this folder share: training by frequency group, comparisons of optimizers and recipes.

`heavy_tail` has a closed form for its per-sample gradients; `barcode` and `next_token` give tasks to
`train_privately`, which leaves them to Opacus; `quadratic` looks at single steps.
"""

from studies._comparison import TunedRuns as TunedRuns
from studies._comparison import compare_optimizers as compare_optimizers
from studies._groups import frequency_groups as frequency_groups
from studies._groups import group_means as group_means
from studies._private_training import read_records as read_records
from studies._private_training import train_privately as train_privately
from studies._speedup import AccuracyCurve as AccuracyCurve
from studies._speedup import Speedup as Speedup
from studies._speedup import speedups as speedups
from studies._task import ClosedFormTask as ClosedFormTask
from studies._task import GroupRecord as GroupRecord
from studies._task import Measured as Measured
from studies._task import PrivateSettings as PrivateSettings
from studies._task import Task as Task
from studies._variants import accuracy_curve as accuracy_curve
from studies._variants import compare as compare

__all__ = [
    "AccuracyCurve",
    "ClosedFormTask",
    "GroupRecord",
    "Measured",
    "PrivateSettings",
    "Speedup",
    "Task",
    "TunedRuns",
    "accuracy_curve",
    "compare",
    "compare_optimizers",
    "frequency_groups",
    "group_means",
    "read_records",
    "speedups",
    "train_privately",
]
