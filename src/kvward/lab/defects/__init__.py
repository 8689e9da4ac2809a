"""Defects that can be switched on: each an error that real engines have had.

This code plants. It knows nothing of what detects, and nothing here is on unless it is named.
"""

from kvward.lab.defects.defect import Defect
from kvward.lab.defects.delivery import DELIVERY_DEFECTS
from kvward.lab.defects.erasure import ERASURE_DEFECTS
from kvward.lab.defects.failure import FAILURE_DEFECTS
from kvward.lab.defects.geometry import GEOMETRY_DEFECTS
from kvward.lab.defects.key import KEY_DEFECTS
from kvward.lab.defects.lifetime import LIFETIME_DEFECTS
from kvward.lab.defects.planting import plant_defects
from kvward.lab.defects.side_channel import SIDE_CHANNEL_DEFECTS
from kvward.lab.defects.slot import SLOT_DEFECTS
from kvward.lab.defects.speculation import SPECULATION_DEFECTS

DEFECTS = {
    defect.name: defect
    for defect in (
        *KEY_DEFECTS,
        *LIFETIME_DEFECTS,
        *GEOMETRY_DEFECTS,
        *SLOT_DEFECTS,
        *SPECULATION_DEFECTS,
        *FAILURE_DEFECTS,
        *ERASURE_DEFECTS,
        *DELIVERY_DEFECTS,
        *SIDE_CHANNEL_DEFECTS,
    )
}

__all__ = ["DEFECTS", "Defect", "plant_defects"]
