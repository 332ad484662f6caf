"""Grad rules."""

import switchgear as sg

rules = sg.Table("nvfuser")
