"""How the tasks' gradients interact in a short run of the plain sum, and what to try."""

from mtlkit.diagnosis.result import Diagnosis
from mtlkit.diagnosis.rules import RULES, Finding, Rule
from mtlkit.diagnosis.run import diagnose
from mtlkit.diagnosis.summary import Measurement, Summary

__all__ = ["RULES", "Diagnosis", "Finding", "Measurement", "Rule", "Summary", "diagnose"]
