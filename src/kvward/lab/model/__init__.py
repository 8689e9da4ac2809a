"""A Llama forward pass over paged key-value blocks, in numpy and float32."""

from kvward.lab.model.forward import Segment, forward
from kvward.lab.model.pages import new_pages

__all__ = ["Segment", "forward", "new_pages"]
