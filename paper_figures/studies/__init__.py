"""What the experiments beside this folder share: training by frequency group, comparisons of recipes.

`heavy_tail`, `barcode` and `next_token` give tasks to `train_privately`, which is the harness with an observer that
writes records by frequency group; `quadratic` looks at single steps.
"""

from paper_figures.studies._groups import frequency_groups as frequency_groups
from paper_figures.studies._groups import group_means as group_means
from paper_figures.studies._metric import Metric as Metric
from paper_figures.studies._metric import metric_of as metric_of
from paper_figures.studies._private_training import read_records as read_records
from paper_figures.studies._private_training import train_privately as train_privately
from paper_figures.studies._speedup import MetricCurve as MetricCurve
from paper_figures.studies._speedup import NullSpeedup as NullSpeedup
from paper_figures.studies._speedup import Speedup as Speedup
from paper_figures.studies._speedup import null_speedups as null_speedups
from paper_figures.studies._speedup import speedups as speedups
from paper_figures.studies._summed_step import SummedPlan as SummedPlan
from paper_figures.studies._summed_step import SummedStep as SummedStep
from paper_figures.studies._summed_step import plan_sums as plan_sums
from paper_figures.studies._task import ClosedFormTask as ClosedFormTask
from paper_figures.studies._task import GroupRecord as GroupRecord
from paper_figures.studies._task import GroupTask as GroupTask
from paper_figures.studies._task import Measured as Measured
from paper_figures.studies._task import private_settings as private_settings
from paper_figures.studies._variants import compare as compare
from paper_figures.studies._variants import metric_curve as metric_curve

__all__ = [
    "ClosedFormTask",
    "GroupRecord",
    "GroupTask",
    "Measured",
    "Metric",
    "MetricCurve",
    "NullSpeedup",
    "Speedup",
    "SummedPlan",
    "SummedStep",
    "compare",
    "frequency_groups",
    "group_means",
    "metric_curve",
    "metric_of",
    "null_speedups",
    "plan_sums",
    "private_settings",
    "read_records",
    "speedups",
    "train_privately",
]
