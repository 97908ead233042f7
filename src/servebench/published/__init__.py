"""The published articles' set-ups, simulated, and fleet arithmetic."""
