"""Chat templates: messages to the text that a model was trained on, rendered in a bounded process of their own."""

from edgewise.models.templates.load import load_template
from edgewise.models.templates.template import ChatTemplate

__all__ = ["ChatTemplate", "load_template"]
