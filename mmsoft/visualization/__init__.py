"""Pictures for people: predictions beside the ground truth."""
from .contact_sheet import contact_sheet, draw_contact_sheet, prediction_rows

__all__ = ['contact_sheet', 'draw_contact_sheet', 'prediction_rows']
