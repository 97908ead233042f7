"""The only English of conclusions: a template for each reason, result and outcome. Nothing reads these texts back."""
