"""What is audited: addresses, protocols, limits, and the operator's controls.

`client` sends and reads, `request` says what; `presets` holds what is known of each server,
`detect` finds the one that fits, `template` reads a description of any other; `shapes`, `reader`,
`answer` and `wire` read answers as the untrusted bytes that they are, `pages` what a server lists;
`limits` keeps the audit within its budget; `controls` runs what only the operator can do; `absence`
sees whether the target was away.
"""

from kvward.audit.target.absence import watch_absence
from kvward.audit.target.client import Target
from kvward.audit.target.controls import Command, Control, ControlRequest, Controls, load_controls
from kvward.audit.target.limits import NO_LIMITS, Limits, Price, Spend, check_budget, planned_spend
from kvward.audit.target.preset import Preset
from kvward.audit.target.presets import PRESETS
from kvward.audit.target.reader import ReplyReader
from kvward.audit.target.request import Request, write_request
from kvward.audit.target.template import load_template

__all__ = [
    "NO_LIMITS",
    "PRESETS",
    "Command",
    "Control",
    "ControlRequest",
    "Controls",
    "Limits",
    "Preset",
    "Price",
    "ReplyReader",
    "Request",
    "Spend",
    "Target",
    "check_budget",
    "load_controls",
    "load_template",
    "planned_spend",
    "watch_absence",
    "write_request",
]
