"""Images for people: predictions beside the ground truth, and what a network sees."""
from .contact_sheet import contact_sheet, draw_contact_sheet
from .drawing import draw_label_map, overlay
from .seen import watch

__all__ = ['contact_sheet', 'draw_contact_sheet', 'draw_label_map', 'overlay', 'watch']
