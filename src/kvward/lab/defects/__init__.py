"""Defects that can be switched on: each an error that real engines have had.

This code plants. It knows nothing of what detects, and nothing here is on unless it is named.
"""

from kvward.lab.defects.early_publish import EARLY_PUBLISH
from kvward.lab.defects.registry import Defect, plant_defects
from kvward.lab.defects.reuse_in_flight import REUSE_IN_FLIGHT
from kvward.lab.defects.scope_missing import SCOPE_MISSING

DEFECTS = {defect.name: defect for defect in (SCOPE_MISSING, REUSE_IN_FLIGHT, EARLY_PUBLISH)}

__all__ = ["DEFECTS", "Defect", "plant_defects"]
