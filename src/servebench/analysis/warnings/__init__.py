"""Warnings: reasons why a number may not be believed."""
