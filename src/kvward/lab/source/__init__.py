"""Where further blocks of a prefix come from, when the engine's own pages end."""

from kvward.lab.source.durable import DurableSource
from kvward.lab.source.host import HostSource
from kvward.lab.source.slot import SlotSource

__all__ = ["DurableSource", "HostSource", "SlotSource"]
