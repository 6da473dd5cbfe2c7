"""Diagnose how the gradients of the tasks interact, in a short run with the plain sum."""

from mtlkit.diagnosis.result import Diagnosis
from mtlkit.diagnosis.rules import RULES, Finding, Rule
from mtlkit.diagnosis.run import diagnose
from mtlkit.diagnosis.summary import Measurement, Summary

__all__ = ["RULES", "Diagnosis", "Finding", "Measurement", "Rule", "Summary", "diagnose"]
