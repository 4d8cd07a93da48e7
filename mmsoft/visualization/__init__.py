"""Pictures for people: predictions beside the ground truth, and what a network sees."""
from .contact_sheet import contact_sheet, draw_contact_sheet, prediction_rows
from .heat_map import overlay
from .seen import watch

__all__ = ['contact_sheet', 'draw_contact_sheet', 'overlay', 'prediction_rows', 'watch']
