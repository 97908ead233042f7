"""The screens of conclusions, as blocks."""
