"""Your own tables: CSV or Parquet files whose columns are inputs and targets."""

from mtlkit.data.table.dataset import Table
from mtlkit.data.table.preprocessing import TablePreprocessing

__all__ = ["Table", "TablePreprocessing"]
