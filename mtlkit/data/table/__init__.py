"""Own tables: CSV or Parquet files whose columns are inputs and targets."""

from mtlkit.data.table.dataset import Table
from mtlkit.data.table.preprocessing import Preprocessing

__all__ = ["Preprocessing", "Table"]
